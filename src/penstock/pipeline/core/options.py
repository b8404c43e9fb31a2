"""The options of `format("penstock")`: parsed once, on the driver, into a value with all that the readers need.

Spark passes options as text with lower-case names; errors name them as users write them. An unknown option may be one of Spark,
so it is accepted, unless it looks like a misspelling of an option of Penstock.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from enum import Enum

from penstock.durations import instant, micros, scaled
from penstock.errors import InvalidArgument
from penstock.log.log import EVENTS
from penstock.pipeline import schemas

SOURCE_OPTIONS = (
    "endpoint",
    "path",
    "token",
    "project",
    "timeout",
    "view",
    "subscribe",
    "subscribePattern",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "columns",
    "includeHeaders",
    "keys",
    "failOnDataLoss",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxBytesPerTrigger",
    "cursor",
    "storage",
    "lake",
)
TABLE_OPTIONS = ("lake", "table")
SINK_OPTIONS = ("endpoint", "token", "project", "timeout", "stream", "topic", "queue", "payload", "query", "batch")

MESSAGES, EVENT_LOG, DEAD_LETTERS = "messages", "events", "deadletters"
VIEWS = {MESSAGES: schemas.MESSAGES, EVENT_LOG: schemas.EVENTS, DEAD_LETTERS: schemas.DEAD_LETTERS}
LOG, LAKE, AUTO = "log", "lake", "auto"

SPARK_OPTIONS = frozenset({"path", "paths", "checkpointlocation", "queryname", "mode"})
"""Options that Spark adds itself, or that its own writers use."""

KAFKA = {
    "kafka.bootstrap.servers": "option('endpoint', 'http://host:port') names the server",
    "kafka.group.id": "option('cursor', NAME) shows the query at the server under a name",
    "groupid": "option('cursor', NAME) shows the query at the server under a name",
    "groupidprefix": "option('cursor', NAME) shows the query at the server under a name",
    "assign": "option('subscribe', 'orders'): a stream has one partition",
    "startingoffsetsbytimestampstrategy": "leave it out: a time after the last message is the end of the stream",
    "kafkaconsumer.polltimeoutms": "option('timeout', SECONDS)",
}
"""The replacement for options of Spark's Kafka source that have another name or no meaning here."""
PUSH_FILTERS = "pushfilters"
"""A removed option. The value `false` is the behaviour now."""
HEADERS = "attributes"
_SIZES = {"": 1, "b": 1, "k": 1 << 10, "kb": 1 << 10, "m": 1 << 20, "mb": 1 << 20, "g": 1 << 30, "gb": 1 << 30}
_MAX = (1 << 63) - 1
DELAY_SECONDS = 900.0
"""Fifteen minutes, as in Kafka's source."""


class OptionReader:
    """Options as Spark passes them. `known` are the names of the supported options, as users write them."""

    def __init__(self, options: Mapping[str, str], known: Iterable[str]) -> None:
        self._values = {name.lower(): value for name, value in options.items() if value is not None}
        ours = {name.lower(): name for name in known}
        for name in self._values:
            if name in KAFKA or name.startswith(("kafka.", "kafkaconsumer.", "fetchoffset.")):
                raise InvalidArgument(
                    f"{name} is an option of Kafka, and not of Penstock",
                    hint=KAFKA.get(name, "leave it out: it sets up a client of Kafka"),
                )
        if self._values.get(PUSH_FILTERS, "false").lower() != "false":
            raise InvalidArgument(
                f"pushFilters is {self._values[PUSH_FILTERS]!r}, and there is no such option any more: "
                "Spark gives the rows that the filters of one query leave to other queries of the same frame",
                hint="leave it out, and say what is read with subscribe, startingOffsets, endingOffsets, startingTimestamp, "
                "endingTimestamp and keys",
            )
        for name in sorted(self._values.keys() - ours.keys() - SPARK_OPTIONS):
            if near := get_close_matches(name.replace("_", "").replace("-", ""), ours, 1, 0.85):
                raise InvalidArgument(
                    f"{name} is no option; did you mean {ours[near[0]]}?", hint=f"options are {', '.join(known)}"
                )

    def wrong(self, name: str, wanted: str, hint: str | None = None) -> InvalidArgument:
        """The error for an invalid option."""
        return InvalidArgument.of(name, self._values.get(name.lower()), wanted, hint)

    def text(self, name: str) -> str | None:
        """The text of an option; None if it is not set."""
        value = self._values.get(name.lower())
        if value is not None and not value.strip():
            raise self.wrong(name, "some text, or to leave it out")
        return value

    def choice(self, name: str, choices: Iterable[str], default: str) -> str:
        value = self._values.get(name.lower(), default).lower()
        if value not in choices:
            raise self.wrong(name, f"one of {', '.join(choices)}")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        return self.choice(name, ("true", "false"), str(default).lower()) == "true"

    def number(self, name: str) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        number = int(value) if re.fullmatch(r" *[0-9]{1,18} *", value, re.ASCII) else 0
        if number < 1:
            raise self.wrong(name, "a whole number, 1 or more")
        return number

    def seconds(self, name: str) -> float | None:
        """A number of seconds above 0: 30, 30s, 15m or 1h."""
        value = self.text(name)
        if value is None:
            return None
        found = re.fullmatch(r" *([0-9]{1,9}(?:\.[0-9]{1,6})?)(ms|s|m|h|) *", value, re.ASCII)
        if found is None or not float(found[1]) > 0:
            raise self.wrong(name, "a number of seconds above 0, such as 30, or 15m")
        return float(found[1]) * {"ms": 0.001, "s": 1, "": 1, "m": 60, "h": 3_600}[found[2]]

    def size(self, name: str) -> int | None:
        """A number of bytes: 1048576, 512k, 64m or 1g."""
        value = self.text(name)
        if value is None:
            return None
        try:
            size = int(scaled(value.lower(), _SIZES))
        except ValueError:
            size = 0
        if size < 1:
            raise self.wrong(name, "a number of bytes, such as 1048576, 512k, 64m or 1g")
        return size

    def names(self, name: str) -> tuple[str, ...] | None:
        value = self.text(name)
        if value is None:
            return None
        names = tuple(part.strip() for part in value.split(","))
        if not all(names) or len(set(names)) < len(names):
            raise self.wrong(name, "names with commas between them, each once")
        return names

    def one_of(self, *names: str) -> str | None:
        """Which of these options is set. More than one is an error."""
        given = [name for name in names if self._values.get(name.lower()) is not None]
        if len(given) > 1:
            raise InvalidArgument(f"{' and '.join(given)} are given, expected one of them")
        return given[0] if given else None


class Kind(Enum):
    """The kinds of points in a stream."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSET = "offset"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Point:
    """A point in a stream: its start, its end, an offset, or the first message at or after a time (microseconds)."""

    kind: Kind
    value: int = 0


EARLIEST, LATEST = Point(Kind.EARLIEST), Point(Kind.LATEST)
_NUMBERS = {Kind.EARLIEST: -2, Kind.LATEST: -1}
"""The special offsets of Kafka."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The start or the end of a read: for named streams, and for all others. `option` is the option that set it."""

    option: str
    others: Point | None
    """None: the default."""
    by_stream: Mapping[str, Point] = field(default_factory=dict)

    def of(self, stream: str, default: Point) -> Point:
        return self.by_stream.get(stream) or self.others or default


@dataclass(frozen=True, slots=True)
class TableOptions:
    """A table of the lake to read as a whole."""

    lake: str
    table: str


def table_options(options: Mapping[str, str]) -> TableOptions | None:
    """The options of reading a table of the lake; None if there is no option `table`."""
    if not any(name.lower() == "table" for name in options):
        return None
    given = OptionReader(options, TABLE_OPTIONS)
    lake, table = given.text("lake"), given.text("table")
    if lake is None:
        raise InvalidArgument(f"table is {table!r} and lake is missing, expected the lake's directory or URL")
    for name in SOURCE_OPTIONS:
        if name not in TABLE_OPTIONS and given.text(name) is not None:
            raise given.wrong(name, "none beside table", hint="a table of the lake is read as a whole: filter its rows")
    return TableOptions(lake, table or "")


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What to read, from where, and how much at once."""

    endpoint: str | None
    path: str | None
    token: str | None = field(repr=False)
    project: str | None
    timeout: float | None
    view: str
    streams: tuple[str, ...] | None
    pattern: str | None
    start: Bound
    stop: Bound
    columns: tuple[str, ...]
    keys: tuple[str, ...] | None
    """Only messages with one of these ordering keys."""
    is_strict: bool
    """Whether lost data is an error: failOnDataLoss."""
    min_partitions: int | None
    max_partition_rows: int | None
    max_rows: int | None
    max_bytes: int | None
    min_rows: int | None
    max_delay: float
    """Seconds after which a batch may have fewer than `min_rows`."""
    cursor: str | None
    storage: str
    lake: str | None

    @property
    def is_messages(self) -> bool:
        """Whether it reads streams, and not the event log."""
        return self.view == MESSAGES

    def matches(self, stream: str) -> bool:
        """Whether a stream is selected."""
        if not self.is_messages:
            return stream == EVENTS
        return stream in self.streams if self.streams is not None else re.fullmatch(self.pattern or "", stream) is not None

    def check_batch(self) -> None:
        """Raise InvalidArgument for options that only a streaming read can have."""
        if self.cursor is not None:
            raise InvalidArgument.of("cursor", self.cursor, "none in a batch read", hint="a cursor follows readStream")
        if LATEST in (self.start.others, *self.start.by_stream.values()):
            raise InvalidArgument.of(
                self.start.option,
                "latest",
                "earliest, an offset or a time in a batch read",
                hint="from latest on there is nothing",
            )

    def check_stream(self) -> None:
        """Raise InvalidArgument for options that only a batch read can have."""
        if self.stop.others is not None or self.stop.by_stream:
            raise InvalidArgument(
                f"{self.stop.option} is given, and a stream has no end", hint="use spark.read, or trigger(availableNow=True)"
            )


CREATED = (
    "Spark hands the OPTIONS of CREATE TABLE to no Python data source: "
    "SELECT … FROM t WITH (endpoint = 'http://host:port', subscribe = 'orders'), "
    "or CREATE TEMPORARY VIEW … USING penstock OPTIONS (…)"
)


def from_environment(options: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """The options, with the server of the environment if they name none. Its token is sent to no other server."""
    named = {name.lower() for name in options}
    server = environ.get("PENSTOCK_SERVER")
    if not server or named & {"endpoint", "path", "table"}:
        return dict(options)
    token = environ.get("PENSTOCK_TOKEN")
    return dict(options) | {"endpoint": server} | ({"token": token} if token and "token" not in named else {})


def source_options(options: Mapping[str, str]) -> SourceOptions:
    """The options of reading. Raises InvalidArgument that names the wrong option."""
    given = OptionReader(options, SOURCE_OPTIONS)
    if not {name.lower() for name in options} & {name.lower() for name in SOURCE_OPTIONS}:
        raise InvalidArgument("no option says what is read: endpoint and subscribe are missing", hint=CREATED)
    storage = given.choice("storage", (LOG, LAKE, AUTO), LOG)
    cursor, path, endpoint, token = given.text("cursor"), given.text("path"), given.text("endpoint"), given.text("token")
    if endpoint is None and path is None and storage != LAKE:
        raise InvalidArgument(
            "endpoint and path are missing, expected one of them",
            hint='.option("endpoint", "http://host:port") of a running server, or .option("path", its data directory)',
        )
    lake = given.text("lake")
    if storage != LOG and lake is None:
        raise InvalidArgument(f"storage is {storage!r} and lake is missing, expected the lake's directory or URL")
    view = given.choice("view", VIEWS if storage == LOG else (MESSAGES, EVENT_LOG), MESSAGES)
    streams, pattern = _subscription(given, view)
    min_rows, max_rows = given.number("minOffsetsPerTrigger"), given.number("maxOffsetsPerTrigger")
    if min_rows is not None and max_rows is not None and min_rows > max_rows:
        raise given.wrong("minOffsetsPerTrigger", f"at most maxOffsetsPerTrigger, {max_rows}")
    if endpoint is None and path is not None:
        if cursor is not None:
            raise given.wrong("cursor", "none beside path alone", hint="cursors are kept by a server: name its endpoint, too")
        if token is not None:
            raise InvalidArgument("token is given beside path alone", hint="leave it out: a data directory asks for no token")
    return SourceOptions(
        endpoint=endpoint,
        path=path,
        token=token,
        project=given.text("project"),
        timeout=given.seconds("timeout"),
        view=view,
        streams=streams,
        pattern=pattern,
        start=_bound(given, "startingOffsets", "startingTimestamp", (EARLIEST, LATEST)),
        stop=_bound(given, "endingOffsets", "endingTimestamp", (LATEST,)),
        columns=_columns(given, view),
        keys=_keys(given, view),
        is_strict=given.flag("failOnDataLoss", default=True),
        min_partitions=given.number("minPartitions"),
        max_partition_rows=given.number("maxRecordsPerPartition"),
        max_rows=max_rows,
        max_bytes=given.size("maxBytesPerTrigger"),
        min_rows=min_rows,
        max_delay=given.seconds("maxTriggerDelay") or DELAY_SECONDS,
        cursor=cursor,
        storage=storage,
        lake=lake,
    )


def column_names(view: str) -> tuple[str, ...]:
    """The columns of a view, in order."""
    return tuple(column.split(" ", 1)[0] for column in VIEWS[view].split(", "))


def schema_of(options: SourceOptions) -> str:
    columns = dict(zip(column_names(options.view), VIEWS[options.view].split(", "), strict=True))
    return ", ".join(columns[name] for name in options.columns)


def _subscription(given: OptionReader, view: str) -> tuple[tuple[str, ...] | None, str | None]:
    option, streams, pattern = (
        given.one_of("subscribe", "subscribePattern"),
        given.names("subscribe"),
        given.text("subscribePattern"),
    )
    if view == MESSAGES and option is None:
        raise InvalidArgument(
            "subscribe and subscribePattern are missing, expected one of them",
            hint='.option("subscribe", "orders,refunds"), or .option("subscribePattern", ".*") for all streams; '
            "in SQL, SELECT … FROM t WITH (subscribe = 'orders')",
        )
    if pattern is None:
        return streams, None
    if view != MESSAGES:
        raise given.wrong(
            "subscribePattern", f"none for {view}", hint="name streams with subscribe, or filter by the column stream"
        )
    try:
        re.compile(pattern)
    except re.error as error:
        raise given.wrong("subscribePattern", f"a regular expression ({error})") from None
    return streams, pattern


def _keys(given: OptionReader, view: str) -> tuple[str, ...] | None:
    """Ordering keys separated by commas, or a JSON list of them, for keys that contain commas."""
    text = given.text("keys")
    if text is None:
        return None
    if view != MESSAGES:
        raise given.wrong("keys", f"none for {view}", hint="only messages have ordering keys: filter by the column")
    if not text.lstrip().startswith("["):
        return given.names("keys")
    try:
        keys = tuple(json.loads(text))
    except (ValueError, RecursionError):
        keys = ()
    if not keys or not all(isinstance(key, str) for key in keys):
        raise given.wrong("keys", 'ordering keys with commas between them, or a JSON list of them, such as ["ann","bob"]')
    return keys


def _columns(given: OptionReader, view: str) -> tuple[str, ...]:
    known, names, with_headers = column_names(view), given.names("columns"), given.flag("includeHeaders", default=True)
    if names is None:
        return known if with_headers else tuple(name for name in known if name != HEADERS)
    if unknown := [name for name in names if name not in known]:
        near = get_close_matches(unknown[0], known, 1)
        hint = f"did you mean {near[0]}?" if near else None
        raise given.wrong("columns", f"names out of {', '.join(known)}", hint)
    if HEADERS in names and not with_headers:
        raise given.wrong("columns", f"no {HEADERS} while includeHeaders is false")
    return names


def _bound(given: OptionReader, offsets: str, timestamp: str, words: tuple[Point, ...]) -> Bound:
    """The start or the end from the options. `words`: the points with a name; the first is for streams that are not named."""
    by_timestamp = f"{offsets}ByTimestamp"  # as in Kafka's source
    option = given.one_of(offsets, timestamp, by_timestamp)
    if option in {timestamp, by_timestamp}:
        wanted = "an ISO 8601 time, milliseconds since 1970, or JSON with one for each stream"
        return _parsed(given, option or "", _time, others=words[0], wanted=wanted)
    known: dict[object, Point] = {point.kind.value: point for point in words}
    known |= {_NUMBERS[point.kind]: point for point in words}

    def offset(value: object) -> Point:
        point = known.get(value.strip().lower() if isinstance(value, str) else value)
        if point is not None:
            return point
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MAX:
            raise ValueError
        return Point(Kind.OFFSET, value)

    named = " or ".join(point.kind.value for point in words)
    wanted = f'{named}, or JSON with an offset for each stream, as {{"orders": 120}}'
    return _parsed(given, offsets, offset, others=words[0], wanted=wanted)


def _parsed(given: OptionReader, option: str, point: Callable[[object], Point], *, others: Point, wanted: str) -> Bound:
    """The bound in an option's text: a word, a number, or a JSON object by stream; `others` is for streams not named in it."""
    text = given.text(option)
    if text is None:
        return Bound(option, None)
    try:
        if not text.lstrip().startswith("{"):
            return Bound(option, point(text))
        found = json.loads(text, object_pairs_hook=_once)
        by_stream = {stream: point(_of_partition(value)) for stream, value in found.items()}
    except (ValueError, TypeError, RecursionError, OverflowError, InvalidArgument):
        raise given.wrong(option, wanted) from None
    return Bound(option, others, by_stream)


def _of_partition(value: object) -> object:
    """The value of a stream. As in Kafka's source it may be by partition, `{"0": 120}`; a stream has one partition."""
    if isinstance(value, dict):
        if set(value) != {"0"}:
            raise ValueError
        return value["0"]
    return value


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """A JSON object. Raises ValueError if a name occurs twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError
    return found


def _time(value: object) -> Point:
    if isinstance(value, str) and not re.fullmatch(r"[0-9]+", value.strip(), re.ASCII):
        at = datetime.fromisoformat(value.strip())
        return Point(Kind.TIME, max(instant(at if at.tzinfo else at.replace(tzinfo=UTC), "timestamp"), 0))
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError
    return Point(Kind.TIME, micros(timedelta(milliseconds=int(value)), "timestamp"))
