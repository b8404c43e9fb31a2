"""The requests of the log API: their fields, from the query of a GET or the body of a POST."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from penstock.broker.batches import Attempt
from penstock.errors import InvalidArgument
from penstock.http.decoding import UNREADABLE, explain
from penstock.http.request import Request
from penstock.http.routes import Parameter

T = TypeVar("T", bound=msgspec.Struct)

MAX_OFFSET = 1 << 40
MAX_LISTED = 10_000
MAX_PATTERN = 1_000
MAX_NOTE = 10_000
MAX_LEASED = 1_000_000
MAX_LETTERS = 1_000

Name = Annotated[str, Meta(min_length=1, max_length=1030)]
"""The name of a stream or a cursor: at most 1024 bytes, and `queue:`."""
Offset = Annotated[int, Meta(ge=0, le=MAX_OFFSET)]
Micros = Annotated[int, Meta(ge=0, le=1 << 58)]
Names = Annotated[list[Name], Meta(max_length=MAX_LISTED)]
Keys = Annotated[list[Annotated[str, Meta(max_length=1024)]], Meta(max_length=MAX_LISTED)]
Compression = Literal["none", "lz4", "zstd"]
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:=+@-]{0,199}")
Word = Annotated[str, Meta(pattern=rf"^{_WORD.pattern}\Z")]
"""The name of a write, a part or a query. It is used as the name of a file."""


Batch = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Seconds = Annotated[float, Meta(gt=0, le=43_200)]
ManyOffsets = Annotated[list[Offset], Meta(max_length=MAX_LEASED)]
Text = Annotated[str, Meta(max_length=1000)]


class Fields(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The fields of one request."""


class StreamsAsked(Fields):
    """Which streams: the named ones, those whose full name matches a pattern, or all."""

    names: Names = []
    pattern: Annotated[str, Meta(max_length=MAX_PATTERN)] | None = None


class MessagesAsked(Fields):
    """A range of a stream: from offset `start` up to, not including, `stop`; by default the whole stream."""

    stream: Name
    number: Annotated[int, Meta(ge=0, le=1 << 24)] | None = None
    start: Offset | None = None
    stop: Offset | None = None
    columns: Annotated[list[str], Meta(max_length=100)] | None = None
    keys: Keys | None = None
    compression: Compression = "none"


class EventsAsked(Fields):
    """A range of the event log, for all or for some streams."""

    start: Offset | None = None
    stop: Offset | None = None
    streams: Names = []
    compression: Compression = "none"


class TimesAsked(Fields):
    """A time for each stream, in microseconds since 1970."""

    times: Annotated[dict[Name, Micros], Meta(max_length=MAX_LISTED)]


class LimitsAsked(Fields):
    """The position of a reader in each stream, and the number of bytes it wants to read."""

    starts: Annotated[dict[Name, Offset], Meta(max_length=MAX_LISTED)]
    max_bytes: Annotated[int, Meta(ge=1, le=1 << 50)]


class Offsets(msgspec.Struct):
    """An offset for each stream."""

    offsets: dict[str, int]


class SizesAsked(Fields):
    """The position of a reader in each stream."""

    starts: Annotated[dict[Name, Offset], Meta(max_length=MAX_LISTED)]


class Sizes(msgspec.Struct):
    """A number of bytes for each stream."""

    sizes: dict[str, int]


class CursorAsked(Fields):
    """The next offset to read of each stream; other streams stay unchanged. `holds`: whether retention waits for the cursor."""

    offsets: Annotated[dict[Name, Offset], Meta(max_length=MAX_LISTED)]
    holds: bool | None = None


class Created(msgspec.Struct):
    """Whether it was created now; false if it existed."""

    created: bool


class Done(msgspec.Struct):
    """The request is done."""

    done: bool = True


class Released(Fields):
    """The request has no fields."""


class Held(msgspec.Struct):
    """The number of messages."""

    held: int


class CommitAsked(Fields):
    """The parts to publish, in this order. A repeated commit is recognised by query and batch, or by the name of the write."""

    parts: Annotated[list[Word], Meta(max_length=100_000)]
    query: Word | None = None
    batch: Batch = 0
    note: Annotated[str, Meta(max_length=MAX_NOTE)] = ""


class LeasesAsked(Fields):
    """What to lease: at most `rows` new messages of about `max_bytes` in total, for `seconds`, to be read in `parts`."""

    source: Name
    """`queue:NAME` for a work queue, `subscription:NAME` for a subscription."""
    rows: Annotated[int, Meta(ge=1, le=200_000)] = 10_000
    max_bytes: Annotated[int, Meta(ge=1, le=1 << 30)] = 64 * 1024 * 1024
    seconds: Seconds = 600
    parts: Annotated[int, Meta(ge=1, le=10_000)] = 1
    batch: Batch | None = None
    """The expected number; without it the unsettled batch, or the next."""


class LeasedMessagesAsked(Fields):
    """Which messages of a batch: those from offset `start` up to, not including, `stop`."""

    batch: Batch
    start: Offset
    stop: Offset
    compression: Compression = "none"


class ExtensionAsked(Fields):
    """How long a batch stays leased from now on."""

    batch: Batch
    seconds: Seconds


class EndingAsked(Fields):
    """Messages that are requeued: `delay` is seconds, null for the delay of the queue's retry policy."""

    offsets: ManyOffsets
    delay: Annotated[float, Meta(ge=0, le=43_200)] | None = None
    error: Text | None = None


class DeadAsked(Fields):
    """Messages to dead-letter; `attempts`: the number of attempts, if it is not the number of leases."""

    offsets: ManyOffsets
    reason: Annotated[str, Meta(min_length=1, max_length=100)] = "rejected"
    error: Text | None = None
    attempts: Annotated[int, Meta(ge=1)] | None = None


class KeptAsked(Fields):
    """A message that stays leased by the query: seconds until it is due, and the number of its attempts."""

    offset: Offset
    delay: Annotated[float, Meta(ge=0, le=43_200)] = 0
    attempts: Annotated[int, Meta(ge=0)] = 0
    failures: Annotated[int, Meta(ge=0)] = 0


class SettlementAsked(Fields):
    """How a batch ends. Messages that are not named stay leased, and are the first of the next batch."""

    batch: Batch
    ack: ManyOffsets = []
    dead: Annotated[list[DeadAsked], Meta(max_length=MAX_LEASED)] = []
    nack: Annotated[list[EndingAsked], Meta(max_length=MAX_LEASED)] = []
    release: Annotated[list[EndingAsked], Meta(max_length=MAX_LEASED)] = []
    keep: Annotated[list[KeptAsked], Meta(max_length=MAX_LEASED)] = []
    attempts: Annotated[list[Attempt], Meta(max_length=MAX_LEASED)] = []
    """For the event log, as lists: offset, message id, pool, target, number, calls, status, microseconds, outcome, error."""
    router_name: Annotated[str, Meta(max_length=2048)] = ""
    """The name of the queue in the configuration of the router that tried to deliver its messages."""


class RedriveBegun(Fields):
    """A note about a redrive, for the program that runs it."""

    note: Annotated[str, Meta(max_length=MAX_NOTE)]


class LettersAsked(Fields):
    """Dead letters of `queue:NAME` or `subscription:NAME`: ids in publish order, each with when it was dead-lettered."""

    source: Name
    letters: Annotated[list[tuple[Annotated[str, Meta(max_length=100)], Micros]], Meta(max_length=MAX_LETTERS)]


PROJECT = Parameter(
    "project",
    "The project; without it that of the token, or the server's own.",
    {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._:-]{0,99}$"},
)
_START = Parameter("start", "The first offset; by default the oldest.", Offset)
_STOP = Parameter("stop", "The offset to stop at, not included; by default the current end.", Offset)
_COMPRESSION = Parameter("compression", "How the batches are compressed.", Compression)
STREAMS = (
    Parameter("name", "A stream; may be repeated.", Names),
    Parameter(
        "pattern", "A regular expression (RE2) that the whole name must match.", Annotated[str, Meta(max_length=MAX_PATTERN)]
    ),
)
MESSAGES = (
    Parameter("stream", "The stream: a topic's name, or `queue:NAME` for a work queue.", Name, required=True),
    Parameter("number", "The number that the stream must have.", Annotated[int, Meta(ge=0, le=1 << 24)]),
    _START,
    _STOP,
    Parameter("columns", "Only these columns, with commas between.", str),
    Parameter("key", "Only messages with this ordering key; may be repeated.", Keys),
    _COMPRESSION,
)
EVENTS = (_START, _STOP, Parameter("stream", "Only events about this stream; may be repeated.", Names), _COMPRESSION)

_FIELDS_OF_QUERY = {
    StreamsAsked: {"name": "names"},
    MessagesAsked: {"key": "keys"},
    EventsAsked: {"stream": "streams"},
}
"""The parameters that may be repeated in a query, and their list fields."""


def word(request: Request, name: str) -> str:
    """The name of a write or a part in a path. It is used as the name of a file, so its characters are restricted."""
    value = request.match_info[name]
    if _WORD.fullmatch(value) is None:
        raise InvalidArgument.of(name, value, "up to 200 letters, digits and ._:=+@-, the first a letter or digit")
    return value


async def asked(request: Request, kind: type[T]) -> T:
    if request.method in {"GET", "HEAD"}:
        return _from_query(request, kind)
    body = await request.read()
    try:
        return msgspec.json.decode(body, type=kind)
    except UNREADABLE as error:
        raise explain(error, kind) from None


def _from_query(request: Request, kind: type[T]) -> T:
    repeated: Mapping[str, str] = _FIELDS_OF_QUERY[kind]
    fields: dict[str, Any] = {}
    for name, value in request.query.items():
        if name in repeated:
            fields.setdefault(repeated[name], []).append(value)
        elif name == "columns":
            fields[name] = value.split(",")
        elif name != PROJECT.name:
            fields[name] = value
    try:
        return msgspec.convert(fields, kind, strict=False)
    except msgspec.ValidationError as error:
        raise explain(error, kind) from None
