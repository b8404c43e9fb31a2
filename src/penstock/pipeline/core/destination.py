"""The destination of a write: server, stream and required columns.

The options of the sink and the types of the columns are checked once, on the driver, before anything runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from penstock.errors import InvalidArgument
from penstock.log.log import QUEUE, TOPIC, stream_name
from penstock.pipeline.core.options import SINK_OPTIONS, OptionReader

JSON = "json"

_QUERY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:=+@-]{0,199}", re.ASCII)
"""The rule of the server, checked before the work instead of after it."""


@dataclass(frozen=True, slots=True)
class Destination:
    """The server, the stream, and the ids that identify a repeated write."""

    endpoint: str
    token: str | None = field(repr=False)
    project: str | None
    timeout: float | None
    stream: str | None
    """The stream of rows without their own."""
    is_json: bool
    query: str | None
    batch: int | None

    def for_batch(self) -> tuple[str | None, int]:
        """(query, batch) of a batch write; without a query the server does not record it."""
        if self.batch is not None and self.query is None:
            raise InvalidArgument(
                f"batch is {self.batch} and query is missing, expected both",
                hint="a batch is known again by both: option('query', …)",
            )
        return self.query, self.batch or 0

    def for_stream(self) -> None:
        """Raise InvalidArgument for options that only a batch write has."""
        if self.batch is not None:
            raise InvalidArgument.of("batch", self.batch, "none in a stream", hint="leave it out: Spark numbers the batches")


def destination(options: Mapping[str, str]) -> Destination:
    """The options of writing. Raises InvalidArgument that names the wrong option."""
    given = OptionReader(options, SINK_OPTIONS)
    if path := given.text("path"):
        raise InvalidArgument(
            f"path is {path!r}: a log is written to through its server",
            hint=".option('endpoint', 'http://host:port') of a running server, and save() or start() without a path",
        )
    endpoint = given.text("endpoint")
    if endpoint is None:
        raise InvalidArgument("endpoint is missing", hint=".option('endpoint', 'http://host:port') of a running server")
    return Destination(
        endpoint=endpoint,
        token=given.text("token"),
        project=given.text("project"),
        timeout=given.seconds("timeout"),
        stream=_stream(given),
        is_json=given.choice("payload", (VALUE, JSON), VALUE) == JSON,
        query=_query(given),
        batch=_batch(given),
    )


def _stream(given: OptionReader) -> str | None:
    match given.one_of("stream", "topic", "queue"):
        case "topic":
            return stream_name(TOPIC, given.text("topic") or "")
        case "queue":
            return stream_name(QUEUE, given.text("queue") or "")
        case _:
            return given.text("stream")


def _query(given: OptionReader) -> str | None:
    query = given.text("query")
    if query is not None and not _QUERY.fullmatch(query):
        raise given.wrong("query", "up to 200 letters, digits and ._:=+@-, the first a letter or digit")
    return query


def _batch(given: OptionReader) -> int | None:
    text = given.text("batch")
    if text is None:
        return None
    if not re.fullmatch(r" *[0-9]{1,18} *", text, re.ASCII):
        raise given.wrong("batch", "the number of the batch: 0 or more")
    return int(text)


VALUE, KEY, ATTRIBUTES, PRIORITY, TTL, DELIVER_AT, STREAM = (
    "value",
    "key",
    "attributes",
    "priority",
    "ttl",
    "deliver_at",
    "stream",
)
TOPIC_COLUMN, HEADERS = "topic", "headers"
"""The names of `stream` and `attributes` in Kafka's sink."""
SAME = {TOPIC_COLUMN: STREAM, HEADERS: ATTRIBUTES}

_TEXT = r"string( collate .*)?|(var)?char\(\d+\)"
_WHOLE = "tinyint|smallint|int|bigint"
_DECIMAL = r"decimal\(.*\)"
_NUMBER = f"{_WHOLE}|float|double|{_DECIMAL}"
_DURATION = "interval (day|hour|minute|second).*"
_INSTANT = "timestamp|timestamp_ntz"

# The columns with a special meaning: the allowed types, and their description in errors.
_WANTED: dict[str, tuple[str, str]] = {
    VALUE: (f"{_TEXT}|binary", "string or binary"),
    KEY: (_TEXT, "string"),
    ATTRIBUTES: ("map<string,string>", "map<string,string>"),
    PRIORITY: (_WHOLE, "a whole number: tinyint, smallint, int or bigint"),
    TTL: (f"{_NUMBER}|{_DURATION}", "seconds as a number, or an interval of days to seconds"),
    DELIVER_AT: ("timestamp", "timestamp"),
    STREAM: (_TEXT, "string"),
    TOPIC_COLUMN: (_TEXT, "string"),
    HEADERS: ("array<struct<key:string,value:binary>>", "array<struct<key:string,value:binary>>"),
}

_JSON_SCALAR = re.compile(rf"{_TEXT}|{_NUMBER}|{_DURATION}|{_INSTANT}|binary|boolean|date|time\(.*\)|void")
_JSON_KEY = re.compile(rf"{_TEXT}|{_NUMBER}|{_INSTANT}|date")


class Column(NamedTuple):
    """A column of the table: its name, and its type as Spark's text and as a tree."""

    name: str
    kind: str
    tree: Any
    """The result of `DataType.jsonValue()`."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How a row is converted to a message."""

    special: tuple[str, ...]
    """The special columns, which are sent unchanged, by the names above."""
    payload: tuple[str, ...] | None
    """The columns of the JSON object that becomes the value; None if there is a column `value`."""


def layout(columns: Sequence[Column], *, is_json: bool, has_stream: bool) -> Layout:
    """How these columns are written. Raises InvalidArgument with the wrong column, its type, and the expected type.

    `has_stream`: an option names the stream, so that rows need not.
    """
    names = [column.name for column in columns]
    for name in names:
        if names.count(name) > 1:
            raise InvalidArgument(f"column {name!r} is there more than once", hint="rename one of them, or drop it")
    # With payload json, columns with Kafka's names are ordinary data.
    plain = {VALUE, *SAME} if is_json else set()
    special = [column for column in columns if column.name in _WANTED and column.name not in plain]
    others = [column for column in columns if column not in special]
    for column in special:
        _check_special(column)
    for other, own in SAME.items():
        if other in names and own in names and not is_json:
            raise InvalidArgument(f"there are columns {own!r} and {other!r}, expected one of them", hint="drop one of them")
    if not has_stream and STREAM not in names and TOPIC_COLUMN not in names:
        raise InvalidArgument(
            "no stream to write to",
            hint="option('topic', 'NAME') or option('queue', 'NAME'), or a column `stream`",
        )
    if is_json:
        return Layout(tuple(column.name for column in special), _payload(others))
    _check_plain(names, others)
    return Layout(tuple(column.name for column in special), None)


def _check_special(column: Column) -> None:
    fitting, wanted = _WANTED[column.name]
    if not re.fullmatch(fitting, column.kind):
        raise InvalidArgument.of(f"the type of column {column.name!r}", column.kind, wanted, hint=_remedy(column))


def _remedy(column: Column) -> str:
    if column.name == VALUE:
        return "option('payload', 'json') writes all columns as one JSON object; or cast it, or use to_json"
    if column.name == DELIVER_AT and column.kind == "timestamp_ntz":
        return "without a time zone it is no instant: cast it to timestamp"
    return "cast it, or rename it when it is data of yours"


def _check_plain(names: Sequence[str], others: Sequence[Column]) -> None:
    listed = ", ".join(repr(column.name) for column in others)
    if VALUE not in names:
        found = f"; there are {', '.join(map(repr, names))}" if names else ""
        raise InvalidArgument(
            f"no column `value` to write{found}",
            hint="option('payload', 'json') writes all columns as one JSON object; or rename the one that holds the message",
        )
    if others:
        raise InvalidArgument(
            f"columns that a message does not have: {listed}; expected out of {', '.join(_WANTED)}",
            hint="option('payload', 'json') writes them as one JSON object; or leave them out with select()",
        )


def _payload(columns: Sequence[Column]) -> tuple[str, ...]:
    if not columns:
        raise InvalidArgument("no column is left for the JSON payload", hint=f"columns beside {', '.join(_WANTED)} make it")
    for column in columns:
        for kind, wanted in _misfits(column.tree, column.kind):
            raise InvalidArgument.of(
                f"column {column.name!r} as JSON: its type", kind, wanted, hint="cast it to string, or leave it out with select()"
            )
    return tuple(column.name for column in columns)


def _misfits(tree: object, kind: str) -> Iterator[tuple[str, str]]:
    """The parts of a type that cannot be written as JSON: (the type, what is expected)."""
    match tree:
        case {"type": "struct", "fields": list(fields)}:
            for field in fields:
                yield from _misfits(field["type"], _text(field["type"]))
        case {"type": "array", "elementType": element}:
            yield from _misfits(element, _text(element))
        case {"type": "map", "keyType": key, "valueType": value}:
            if not _JSON_KEY.fullmatch(_text(key)):
                yield kind, "a map with keys that are texts, numbers, dates or timestamps"
            yield from _misfits(value, _text(value))
        case _ if not _JSON_SCALAR.fullmatch(kind):
            yield kind, "a type that has a form in JSON"


# Types with different names in Spark's JSON and in SQL.
_SQL = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}


def _text(tree: object) -> str:
    """The name of a type in SQL; for a type with inner types only its own name."""
    if isinstance(tree, Mapping):
        return str(tree["type"])
    return _SQL.get(str(tree), str(tree))
