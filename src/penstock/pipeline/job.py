"""What every job is given: where the log is, where the lake is, and how it runs; and whether that log can be reached."""

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
"""How long `check_log` waits for a server: less than a reader does, which may sit out a restart, because a person is waiting."""


@dataclass(frozen=True, slots=True)
class Target:
    """The log that a job reads and writes: a server (`endpoint`) or a data directory on this machine (`path`, reading only).

    With both, `path` is the directory of that server: tasks read the rows there, and the server has all else.
    """

    endpoint: str | None = None
    path: str | None = None
    token: str | None = field(default=None, repr=False)
    project: str | None = None

    def options(self) -> dict[str, str]:
        """As options of `format("penstock")`: the server, or the directory if there is none."""
        return self.reading() if self.endpoint is None else {k: v for k, v in self.reading().items() if k != "path"}

    def reading(self) -> dict[str, str]:
        """The same for reading, which can have both."""
        given = {"endpoint": self.endpoint, "path": self.path, "token": self.token, "project": self.project}
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Plan:
    """One run of a job."""

    target: Target
    lake: str
    """The lake: a directory, or the URL of an object store."""
    checkpoints: str
    """Where Spark keeps its progress; each query has a directory of its own below it."""
    is_once: bool = False
    """Take what is there now, then end, instead of continuing."""
    interval: str = "1 second"
    """How often a batch begins, when there is something new; "0 seconds" is as soon as the last one is done."""
    streams: str = ".*"
    """A pattern of the streams that matter."""
    watermark: str = "10 minutes"
    """How late an event may come and still count where it belongs."""
    window: str = "1 minute"
    max_rows: int | None = None
    """At most this many rows in a batch."""
    hold: bool = False
    """Whether retention waits for the archive: what it has not taken yet stays in the log."""
    typed: bool = False
    """Whether the archive also keeps a table with the fields of the schema as columns, for each topic that has one."""


Start = Callable[["SparkSession", Plan], "list[StreamingQuery]"]
"""A job that continues: starts its queries and returns them."""


def check_log(target: Target, streams: str | None = None, names: Sequence[str] | None = None) -> None:
    """Raise what is wrong with the address, the token, the pattern or the names, before Spark is started, which takes seconds."""
    with closing(_log(target)) as log:
        log.spans(names, pattern=streams)


def nearby(target: Target) -> Target:
    """The same log, read in the directory of its server if that can be opened here. For a Spark on this machine alone."""
    if target.endpoint is None or target.path is not None or "," in target.endpoint:  # of several nodes, another may be next
        return target
    with closing(_log(target)) as log, suppress(PenstockError):
        assert isinstance(log, HttpLog), "that of an endpoint is"
        return replace(target, path=log.directory())
    return target


def open_target(target: Target) -> Log:
    """The server of a target, or its directory where there is none."""
    if target.endpoint is not None:
        return open_log(endpoint=target.endpoint, token=target.token, project=target.project)
    return open_log(path=target.path, project=target.project)


def _log(target: Target) -> Log:
    if target.endpoint is not None:
        return HttpLog(target.endpoint, token=target.token, project=target.project, timeout=PATIENCE_SECONDS)
    return open_log(path=target.path, project=target.project)
