"""Watches the queries of a job until they end, are told to, or fail."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.clock import monotonic
from penstock.pipeline.failure import failure_of, in_our_words
from penstock.pipeline.progress import Meter, report_of

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

LOOK_SECONDS = 0.25

Show = Callable[[Sequence[Meter]], None]
"""Told again and again how far the queries are."""


def watch(queries: Sequence[StreamingQuery], stop: threading.Event, show: Show) -> list[Meter]:
    """Return when all have ended by themselves, or after `stop` is set: then a batch that runs is given up, to be done again.

    What a query fails with is raised, in our words, when the others have been stopped.
    """
    meters = {query.id: Meter(query.name or query.id, monotonic()) for query in queries}
    try:
        with in_our_words():
            while not _are_over(queries, stop):
                _look(queries, meters, stop, show)
                stop.wait(LOOK_SECONDS)
            _look(queries, meters, stop, show)  # at what was reported last
    finally:
        for query in queries:
            if query.isActive:
                query.stop()
    return list(meters.values())


def _are_over(queries: Sequence[StreamingQuery], stop: threading.Event) -> bool:
    return stop.is_set() or not any(query.isActive for query in queries)


def _look(queries: Sequence[StreamingQuery], meters: Mapping[str, Meter], stop: threading.Event, show: Show) -> None:
    for query in queries:
        _take(query, meters[query.id])
        if not query.isActive and not stop.is_set() and (error := query.exception()) is not None:
            raise failure_of(error)
    show(list(meters.values()))


def _take(query: StreamingQuery, meter: Meter) -> None:
    """Read what a query has reported since; more than the last only when it reported more than once."""
    last = query.lastProgress
    if last is None:
        return
    newest = report_of(json.loads(last.json))
    if meter.last is not None and newest.batch <= meter.last.batch + 1:
        meter.add(newest, monotonic())
        return
    for progress in query.recentProgress:
        meter.add(report_of(json.loads(progress.json)), monotonic())
