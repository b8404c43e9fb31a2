"""The progress of a job's queries, summed up from Spark's reports, and waiting until queries end, are stopped, or fail."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.clock import monotonic
from penstock.durations import SECOND
from penstock.pipeline.failure import as_penstock_error, failure_of

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


RECENT = 10 * SECOND
"""The time span of rates."""


FETCHED: dict[str | None, dict[int, int]] = {}
"""Rows that a job of this process fetched without Spark, which does not count them: by the name of the query, then by batch."""


class Lag(NamedTuple):
    """How far a query is behind the end of a stream, or of several."""

    rows: int
    bytes: int | None
    """Their approximate stored size; None if the log could not report it."""


@dataclass(frozen=True, slots=True)
class Report:
    """Spark's report after a batch, or from time to time if there is nothing to do."""

    batch: int
    at: str
    rows: int
    seconds: float
    """The duration of the batch."""
    lag: Lag | None
    """Rows that were available but not read yet; None if the source does not report it."""
    state: int
    """Rows in the state of the query."""


def report_of(progress: Mapping[str, Any]) -> Report:
    """A report from a `StreamingQueryProgress`, as decoded JSON."""
    sources = progress.get("sources", ())
    fetched = FETCHED.get(progress.get("name"), {}).get(progress["batchId"])
    lags = list(lags_of(progress).values())
    sizes = [lag.bytes for lag in lags if lag.bytes is not None]
    return Report(
        batch=progress["batchId"],
        at=progress["timestamp"],
        rows=progress.get("numInputRows") or (_moved(sources) if fetched is None else fetched),
        seconds=(progress.get("durationMs") or {}).get("triggerExecution", 0) / 1000,
        lag=Lag(sum(lag.rows for lag in lags), sum(sizes) if len(sizes) == len(lags) else None) if lags else None,
        state=sum(operator.get("numRowsTotal", 0) for operator in progress.get("stateOperators", ())),
    )


def lags_of(progress: Mapping[str, Any]) -> dict[str, Lag]:
    """The lag of each stream that the Penstock sources of a query read, from its progress as decoded JSON."""
    found: dict[str, Lag] = {}
    for source in progress.get("sources", ()):
        latest = source.get("latestOffset")
        for stream, end in latest.items() if isinstance(latest, Mapping) else ():
            if isinstance(end, Mapping) and "rowsBehind" in end:
                lag = Lag(end["rowsBehind"], end.get("bytesBehind"))
                found[stream] = max(found.get(stream, lag), lag, key=lambda one: one.rows)
    return found


class QueryProgress:
    """The progress of one query so far."""

    def __init__(self, query: str, now: int) -> None:
        self.query = query
        self.rows = 0
        self.batches = 0
        self.last: Report | None = None
        self._begun = now
        self._recent: deque[tuple[int, int]] = deque()
        """(time, rows) of the batches that the rate is computed from."""
        self._seen: set[tuple[int, str]] = set()

    def add(self, report: Report, now: int) -> bool:
        """Add a report; False if it was added before. `now` must not decrease."""
        if (report.batch, report.at) in self._seen:
            return False
        self._seen = {seen for seen in self._seen if seen[0] >= report.batch - 200} | {(report.batch, report.at)}
        self.last = report
        if report.rows:
            self.rows += report.rows
            self.batches += 1
            self._recent.append((now, report.rows))
        return True

    def seconds(self, now: int) -> float:
        return (now - self._begun) / SECOND

    def rate(self, now: int) -> float:
        """Rows a second in the last ten seconds, or since the start."""
        while self._recent and self._recent[0][0] < now - RECENT:
            self._recent.popleft()
        return sum(rows for _, rows in self._recent) * SECOND / max(min(now - self._begun, RECENT), SECOND)


def _moved(sources: Sequence[Mapping[str, Any]]) -> int:
    """The number of offsets of Penstock sources in a batch. A stream that is new in the batch counts as none."""
    found = 0
    for source in sources:
        start, end = source.get("startOffset"), source.get("endOffset")
        if isinstance(start, Mapping) and isinstance(end, Mapping):
            found += sum(max(_offset(value) - _offset(start[stream]), 0) for stream, value in end.items() if stream in start)
    return found


def _offset(value: object) -> int:
    last = value[-1] if isinstance(value, list) and value else value
    return last if isinstance(last, int) else 0


LOOK_SECONDS = 0.25

Show = Callable[[Sequence[QueryProgress]], None]
"""Called repeatedly with the progress of the queries."""


def watch(queries: Sequence[StreamingQuery], stop: threading.Event, show: Show) -> list[QueryProgress]:
    """Return when all queries have ended, or after `stop` is set: a running batch is then abandoned, and repeated next time.

    If a query fails, its error is raised as an error of Penstock after the others have been stopped.
    """
    meters = {query.id: QueryProgress(query.name or query.id, monotonic()) for query in queries}
    try:
        with as_penstock_error():
            while not _are_over(queries, stop):
                _look(queries, meters, stop, show)
                stop.wait(LOOK_SECONDS)
            _look(queries, meters, stop, show)  # for the last reports
    finally:
        for query in queries:
            if query.isActive:
                query.stop()
    return list(meters.values())


def _are_over(queries: Sequence[StreamingQuery], stop: threading.Event) -> bool:
    return stop.is_set() or not any(query.isActive for query in queries)


def _look(queries: Sequence[StreamingQuery], meters: Mapping[str, QueryProgress], stop: threading.Event, show: Show) -> None:
    for query in queries:
        _take(query, meters[query.id])
        if not query.isActive and not stop.is_set() and (error := query.exception()) is not None:
            raise failure_of(error)
    show(list(meters.values()))


def _take(query: StreamingQuery, meter: QueryProgress) -> None:
    """Add the new reports of a query; more than the last one only if there were several since."""
    last = query.lastProgress
    if last is None:
        return
    newest = report_of(json.loads(last.json))
    if meter.last is not None and newest.batch <= meter.last.batch + 1:
        meter.add(newest, monotonic())
        return
    for progress in query.recentProgress:
        meter.add(report_of(json.loads(progress.json)), monotonic())
