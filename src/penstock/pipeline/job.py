"""The settings of every job: the log, the lake, and how to run; and a check that the log can be reached."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from penstock.errors import PenstockError
from penstock.log.http import HttpLog
from penstock.log.open import open_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from penstock.log.log import Log

PATIENCE_SECONDS = 3.0
"""How long `check_log` waits for a server. A reader waits longer, for restarts; here a user waits at the terminal."""


@dataclass(frozen=True, slots=True)
class Target:
    """The log that a job reads and writes: a server (`endpoint`) or a data directory on this machine (`path`, reading only).

    With both, `path` is the directory of that server: tasks read rows from the directory, everything else uses the server.
    """

    endpoint: str | None = None
    path: str | None = None
    token: str | None = field(default=None, repr=False)
    project: str | None = None

    def options(self) -> dict[str, str]:
        """Options of `format("penstock")` for writing: the server, or the directory if there is none."""
        return self.reading() if self.endpoint is None else {k: v for k, v in self.reading().items() if k != "path"}

    def reading(self) -> dict[str, str]:
        """Options of `format("penstock")` for reading, which may have both."""
        given = {"endpoint": self.endpoint, "path": self.path, "token": self.token, "project": self.project}
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Plan:
    """One run of a job."""

    target: Target
    lake: str
    """The lake: a directory, or the URL of an object store."""
    checkpoints: str
    """The directory where Spark stores its progress; each query has its own directory in it."""
    is_once: bool = False
    """Process what exists now, then end, instead of running continuously."""
    interval: str = "1 second"
    """The interval between batches, if there is something new; "0 seconds" starts each batch when the previous one is done."""
    streams: str = ".*"
    """A pattern of the streams to process."""
    watermark: str = "10 minutes"
    """How late an event may arrive and still be counted in its window."""
    window: str = "1 minute"
    max_rows: int | None = None
    """At most this many rows in a batch."""
    hold: bool = False
    """Whether retention waits for the archive: messages that are not archived yet stay in the log."""
    typed: bool = False
    """Whether the archive also writes, for each topic with a schema, a table with the fields of the schema as columns."""


Start = Callable[["SparkSession", Plan], "list[StreamingQuery]"]
"""A continuous job: it starts its queries and returns them."""


def check_log(target: Target, streams: str | None = None, names: Sequence[str] | None = None) -> None:
    """Raise errors of the address, the token, the pattern or the names before Spark is started, which takes seconds."""
    with closing(_log(target)) as log:
        log.spans(names, pattern=streams)


def nearby(target: Target) -> Target:
    """The same log, with the directory of its server if it can be opened here. Only for a Spark that runs on this machine."""
    if target.endpoint is None or target.path is not None or "," in target.endpoint:  # of several nodes, another may take over
        return target
    with closing(_log(target)) as log, suppress(PenstockError):
        assert isinstance(log, HttpLog), "that of an endpoint is"
        return replace(target, path=log.directory())
    return target


def open_target(target: Target) -> Log:
    """The log of a target: its server, or its directory if there is no server."""
    if target.endpoint is not None:
        return open_log(endpoint=target.endpoint, token=target.token, project=target.project)
    return open_log(path=target.path, project=target.project)


def _log(target: Target) -> Log:
    if target.endpoint is not None:
        return HttpLog(target.endpoint, token=target.token, project=target.project, timeout=PATIENCE_SECONDS)
    return open_log(path=target.path, project=target.project)
