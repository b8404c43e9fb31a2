"""Samples every queue and topic for all consoles together: counters in slices, so that other tasks need not wait long.

The totals of each project are always sampled, every five seconds, so that a chart has data when it is opened. Rates of rows come
from the same counters. Ages need a read of the log: they are sampled only while a console is open.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import TypeVar

from penstock.access import Verb
from penstock.broker import backlog, counters
from penstock.broker.aio import AsyncBroker
from penstock.broker.counters import QueueCounters, TopicCounters
from penstock.durations import SECOND
from penstock.errors import BrokerClosed
from penstock.server.console.core.samples import STEP_SECONDS, Series, Totals, smoothed
from penstock.server.console.requests import Caller
from penstock.values.projects import Projects

log = logging.getLogger("penstock.console")

SLICE = 200
"""How many queues are read at once."""
OLDEST_SLICE = 50
"""The same if each may need a read of the disk."""
FRESH_SECONDS = 0.5
"""A sample that is younger than this is reused, if there are more than `FEW` queues."""
FEW = 100
"""This many queues cost next to nothing: every query samples them."""
MIN_RATE_SECONDS = 0.9
"""A rate is the difference of two samples that are at least this far apart."""
MAX_PROJECTS = 100
"""The number of projects whose totals are kept: callers choose how many projects there are."""


class Row:
    """The last sample of a queue, subscription or topic."""

    __slots__ = ("_at", "_in", "_out", "counters", "in_rate", "name", "oldest_at", "out_rate", "project")

    def __init__(self, project: str, name: str) -> None:
        self.project, self.name = project, name
        self.counters: QueueCounters | TopicCounters
        self.in_rate: float | None = None
        self.out_rate: float | None = None
        self.oldest_at: int | None = None
        """When the oldest unsettled message was published; None if not known, or there is none."""
        self._at = 0.0
        self._in = self._out = 0

    def update(self, found: QueueCounters | TopicCounters, entered: int, left: int, now: float) -> None:
        """Take new counters, `now` in seconds."""
        self.counters = found
        seconds = now - self._at
        if not self._at:
            self._at, self._in, self._out = now, entered, left
        elif seconds >= MIN_RATE_SECONDS:
            self.in_rate = smoothed(self.in_rate, entered - self._in, seconds)
            self.out_rate = smoothed(self.out_rate, left - self._out, seconds)
            self._at, self._in, self._out = now, entered, left


class QueueRow(Row):
    """A queue or subscription."""

    __slots__ = ()
    counters: QueueCounters


class TopicRow(Row):
    """A topic."""

    __slots__ = ()
    counters: TopicCounters


R = TypeVar("R", bound=Row)


class Sampler:
    """Takes the samples. All methods belong to the event loop."""

    def __init__(self, aio: AsyncBroker, projects: Projects) -> None:
        self._aio, self._broker, self.projects_of = aio, aio.broker, projects
        self._loop = asyncio.get_running_loop()
        self.queues: dict[int, QueueRow] = {}
        self.topics: dict[int, TopicRow] = {}
        self._series: dict[str, Series] = {}
        self._sampling = asyncio.Lock()
        self._aging = asyncio.Lock()
        self._sampled = self._aged = float("-inf")
        self.lag_seconds = 0.0
        """How late the event loop was at the last sample."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start keeping the totals, until `stop`."""
        self._task = self._loop.create_task(self._run())

    def stop(self) -> None:
        """Stop sampling."""
        if self._task is not None:
            self._task.cancel()

    def invalidate(self) -> None:
        """Something was changed through the console: the next query samples again."""
        self._sampled = self._aged = float("-inf")

    async def sample(self) -> None:
        """Make sure that the counters are recent."""
        async with self._sampling:
            if len(self.queues) <= FEW or self._loop.time() - self._sampled >= FRESH_SECONDS:
                await self._sample()

    async def sample_ages(self) -> None:
        """Make sure that every non-empty queue has an age, which may be some seconds old."""
        await self.sample()
        async with self._aging:
            now = self._loop.time()
            is_all = now - self._aged >= STEP_SECONDS
            if is_all:
                self._aged = now
            filled = [row for row in self.queues.values() if row.counters.backlog and (is_all or row.oldest_at is None)]
            for start in range(0, len(filled), OLDEST_SLICE):
                part = filled[start : start + OLDEST_SLICE]
                found = await self._aio.call(backlog.oldest_times, self._broker, [row.counters.number for row in part])
                for row in part:
                    row.oldest_at = found.get(row.counters.number)

    def queue_rows(self, caller: Caller, *, work_queues: bool) -> list[QueueRow]:
        """The queues, or the subscriptions, that a caller may read."""
        return [row for row in _readable(self.queues.values(), caller) if row.counters.is_work_queue == work_queues]

    def topic_rows(self, caller: Caller) -> list[TopicRow]:
        """The topics that a caller may read."""
        return [*_readable(self.topics.values(), caller)]

    def series(self, caller: Caller) -> Series | None:
        """The last half hour of a project; None if the caller may not read all of it, or it is not kept."""
        return self._series.get(caller.project) if "*" in caller.principal.patterns else None

    def projects(self) -> list[str]:
        """The projects that are not empty."""
        return sorted({row.project for rows in (self.queues, self.topics) for row in rows.values()})

    async def _run(self) -> None:
        due = self._loop.time()
        while True:
            due = max(due + STEP_SECONDS, self._loop.time())
            await asyncio.sleep(due - self._loop.time())
            self.lag_seconds = max(self._loop.time() - due, 0.0)
            try:
                await self.sample()
            except BrokerClosed:
                return
            except Exception:
                log.exception("the console's figures could not be sampled; the next try is in %d s", STEP_SECONDS)

    async def _sample(self) -> None:
        self._aio.advance()
        broker, now = self._broker, self._loop.time()
        numbers = counters.queue_numbers(broker)
        seen: set[int] = set()
        for start in range(0, len(numbers), SLICE):
            for found in counters.queues(broker, numbers[start : start + SLICE]):
                seen.add(found.number)
                row = self.queues.get(found.number)
                if row is None or row.counters.name != found.name:
                    row = self.queues[found.number] = QueueRow(*self.projects_of.split(found.name))
                # Messages that a filter drops are not counted, so this is what is here and what has left.
                entered = found.backlog + found.acked + found.dead_lettered if found.is_filtered else found.published
                row.update(found, entered, found.acked, now)
                if not found.backlog:
                    row.oldest_at = None
            await asyncio.sleep(0)
        _forget(self.queues, seen)
        numbers = counters.topic_numbers(broker)
        seen.clear()
        for start in range(0, len(numbers), SLICE):
            for topic in counters.topics(broker, numbers[start : start + SLICE]):
                seen.add(topic.number)
                kept = self.topics.get(topic.number)
                if kept is None:
                    kept = self.topics[topic.number] = TopicRow(*self.projects_of.split(topic.name))
                kept.update(topic, topic.published, 0, now)
            await asyncio.sleep(0)
        _forget(self.topics, seen)
        self._keep(broker.clock.now() / SECOND)
        self._sampled = now

    def _keep(self, now: float) -> None:
        """Add the totals of each project to its series, if a step has passed."""
        if self._series and not any(series.is_due(now) for series in self._series.values()):
            return
        by_project: dict[str, list[Row]] = defaultdict(list)
        for rows in (self.queues, self.topics):
            for row in rows.values():
                by_project[row.project].append(row)
        for project in by_project.keys() | {self.projects_of.default}:
            series = self._series.get(project)
            if series is None and len(self._series) < MAX_PROJECTS:
                series = self._series[project] = Series()
            if series is not None and series.is_due(now):
                series.add(totals(by_project.get(project, ())), now)
        for gone in self._series.keys() - by_project.keys() - {self.projects_of.default}:
            del self._series[gone]


def totals(rows: Iterable[Row]) -> Totals:
    """The sum of some rows."""
    published = acked = waiting = in_flight = delayed = dead = queues = subscriptions = topics = 0
    for row in rows:
        found = row.counters
        if isinstance(found, TopicCounters):
            topics += 1
            published += found.published
            continue
        if found.is_work_queue:
            queues += 1
            published += found.published
            dead += found.dead
        else:
            subscriptions += 1
        acked += found.acked
        waiting += found.backlog
        in_flight += found.in_flight
        delayed += found.delayed
    return Totals(published, acked, waiting, in_flight, delayed, dead, queues, subscriptions, topics)


def _readable(rows: Iterable[R], caller: Caller) -> Iterator[R]:
    principal, project = caller.principal, caller.project
    principal.check(Verb.READ, project)
    reads_all = "*" in principal.patterns
    for row in rows:
        if row.project == project and (reads_all or principal.may(Verb.READ, project, row.name)):
            yield row


def _forget(rows: dict[int, R], seen: set[int]) -> None:
    for gone in rows.keys() - seen:
        del rows[gone]
