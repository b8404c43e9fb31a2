"""Where a table is written to, and under which name: the options of the sink, read once, on the driver."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.errors import InvalidArgument
from penstock.log.log import QUEUE, TOPIC, stream_name
from penstock.pipeline.core.options import SINK_OPTIONS, Given

JSON, VALUE = "json", "value"

_QUERY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:=+@-]{0,199}", re.ASCII)
"""As the server has it, said before the work rather than after it."""


@dataclass(frozen=True, slots=True)
class Destination:
    """The server, the stream, and what makes a write known again when it is repeated."""

    endpoint: str
    token: str | None = field(repr=False)
    project: str | None
    stream: str | None
    """That of the rows that do not say their own."""
    is_json: bool
    query: str | None
    batch: int | None

    def for_batch(self) -> tuple[str | None, int]:
        """(query, batch) of a batch write; without a query the server keeps no note of it."""
        if self.batch is not None and self.query is None:
            raise InvalidArgument(
                f"batch is {self.batch} and query is missing, wanted both",
                hint="a batch is known again by both: option('query', …)",
            )
        return self.query, self.batch or 0

    def for_stream(self) -> None:
        """An error for what only a batch write has."""
        if self.batch is not None:
            raise InvalidArgument.of("batch", self.batch, "none in a stream", hint="leave it out: Spark numbers the batches")


def destination(options: Mapping[str, str]) -> Destination:
    """The options of writing; InvalidArgument names the one that is wrong."""
    given = Given(options, SINK_OPTIONS)
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
        stream=_stream(given),
        is_json=given.choice("payload", (VALUE, JSON), VALUE) == JSON,
        query=_query(given),
        batch=_batch(given),
    )


def _stream(given: Given) -> str | None:
    match given.one_of("stream", "topic", "queue"):
        case "topic":
            return stream_name(TOPIC, given.text("topic") or "")
        case "queue":
            return stream_name(QUEUE, given.text("queue") or "")
        case _:
            return given.text("stream")


def _query(given: Given) -> str | None:
    query = given.text("query")
    if query is not None and not _QUERY.fullmatch(query):
        raise given.wrong("query", "up to 200 letters, digits and ._:=+@-, the first a letter or digit")
    return query


def _batch(given: Given) -> int | None:
    text = given.text("batch")
    if text is None:
        return None
    if not re.fullmatch(r" *[0-9]{1,18} *", text, re.ASCII):
        raise given.wrong("batch", "the number of the batch: 0 or more")
    return int(text)
