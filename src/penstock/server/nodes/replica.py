"""The log as a read node serves it: from a hot standby of PostgreSQL, and only confirmed events."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.access import Action, Verb
from penstock.http.monitoring.samples import Metric, Sample
from penstock.http.request import Request
from penstock.http.routes import Route
from penstock.journal.postgres_reader import ReadOnlyPostgres
from penstock.log.directory import JournalView
from penstock.log.server.api import LogReadApi
from penstock.log.server.reading import LogReads
from penstock.log.server.scope import Scope
from penstock.values.projects import Projects

LAG = Metric("penstock_read_lag_seconds", "gauge", "How far the log that this node reads is behind the owner's; of read nodes.")


class Replica:
    """Create it in a thread: it queries the database. Close it when the port is closed."""

    def __init__(self, journal: str, projects: Projects, read_rate: int | None = None) -> None:
        self._read_rate = read_rate
        self._journal = ReadOnlyPostgres(journal)
        self._view = JournalView(self._journal)
        self._projects = projects
        self._reads: LogReads | None = None
        self.lag_seconds = 0.0
        """As of the last `measure`."""

    def routes(self) -> list[Route]:
        """The routes that read the log. Call it in the event loop."""
        self._reads = LogReads(self._read_rate)
        return LogReadApi(self._reads, self._scope, is_remote=True).routes()

    def measure(self) -> None:
        """Query how far the standby is behind."""
        self.lag_seconds = self._journal.standby_lag()

    def collect(self) -> Iterator[Sample]:
        yield Sample(LAG, (), self.lag_seconds)

    def close(self) -> None:
        if self._reads is not None:
            self._reads.close()
        self._journal.close()

    def _scope(self, request: Request, verb: Action = Verb.READ) -> Scope:
        return Scope(self._view, self._projects, request.principal, request.query.get("project"), verb)
