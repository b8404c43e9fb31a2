"""How the newest deliveries of work queues ended, by task: read from the event log, once for all consoles.

Workers report nothing for it: the event log has leases and their ends, and the payload of a call names its task.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import datetime
from itertools import groupby

import msgspec

from penstock.broker.aio import AsyncBroker
from penstock.broker.browse import BLOCK, browse
from penstock.durations import SECOND, to_datetime
from penstock.journal.core import events
from penstock.server.console.core.tasks import Deliveries, TaskLine, by_task
from penstock.server.console.payloads import PREVIEW, Payloads
from penstock.server.console.requests import ROWS, Caller
from penstock.server.console.sampler import Sampler
from penstock.values.message import StoredMessage
from penstock.values.queue import JSON, task_name

MAX_DELIVERIES = 1_000
WINDOW = 15 * 60 * SECOND
SLICE = 5_000
"""How many events are read before other tasks get their turn."""
MAX_SLICES = 6
FRESH_SECONDS = 3.0
"""The result is reused for this many seconds."""
MAX_TASK_BYTES = 64 * 1024
"""A larger payload is not searched for a task."""


class TaskListing(msgspec.Struct):
    """How many of the newest deliveries the caller may see, since when they are complete, and the tasks."""

    deliveries: int
    since_at: datetime
    rows: list[TaskLine]


class TaskReader:
    """Reads how deliveries ended. All methods belong to the event loop."""

    def __init__(self, aio: AsyncBroker, sampler: Sampler, payloads: Payloads) -> None:
        self._aio, self._journal, self._clock = aio, aio.broker.journal, aio.broker.clock
        self._sampler, self._payloads = sampler, payloads
        self._reading = asyncio.Lock()
        self._found = Deliveries(MAX_DELIVERIES, 0)
        self._tasks: dict[tuple[int, int], str | None] = {}
        """Task names found, by queue and offset."""
        self._due = float("-inf")

    async def read(self, caller: Caller) -> TaskListing:
        """The part that the caller may see; the counters were sampled already."""
        loop = asyncio.get_running_loop()
        async with self._reading:
            if loop.time() >= self._due:
                await self._read()
                self._due = loop.time() + FRESH_SECONDS
        names = {row.counters.number: row.name for row in self._sampler.queue_rows(caller, work_queues=True)}
        shown = {number for number, name in names.items() if self._payloads.visibility(caller, name) == "shown"}
        mine = [
            (names[one.queue], self._tasks[one.queue, one.offset] if one.queue in shown else None, one)
            for one in self._found.ended
            if one.queue in names
        ]
        return TaskListing(len(mine), to_datetime(self._found.since), by_task(mine)[:ROWS])

    async def _read(self) -> None:
        found = Deliveries(MAX_DELIVERIES, self._clock.now() - WINDOW)
        queues = {row.counters.number for row in self._sampler.queues.values() if row.counters.is_work_queue}
        earliest, stop = self._journal.event_range()
        for _ in range(MAX_SLICES):
            if stop <= earliest or found.is_complete:
                break
            stop = await self._aio.call(self._step, found, queues, max(stop - SLICE, earliest), stop)
        if stop > earliest:
            found.since = max(found.since, found.reached)  # older deliveries were not searched
        places = sorted({(one.queue, one.offset) for one in found.ended})
        tasks = {place: self._tasks[place] for place in places if place in self._tasks}
        missing = [place for place in places if place not in tasks]
        for (queue, _), block in groupby(missing, key=lambda place: (place[0], place[1] // BLOCK)):
            tasks |= await self._aio.call(self._named, queue, [offset for _, offset in block])
        self._found, self._tasks = found, tasks

    def _step(self, found: Deliveries, queues: set[int], start: int, stop: int) -> int:
        """Take the events of a range, newest first; returns where the events before them end."""
        records = [*self._journal.read_events(start, stop)]
        for _, event in reversed(records):
            found.reach(event.at)
            match event:
                case events.Leased(queue=queue) if queue in queues:
                    found.lease(queue, event.offsets)
                case events.Acked(queue=queue) if queue in queues:
                    found.end(queue, event.offsets, "done")
                case events.Returned(queue=queue, cause="nacked" | "expired") if queue in queues:
                    found.end(queue, event.offsets, "failed")
                case events.DeadLettered(queue=queue, cause="nacked" | "expired") if queue in queues:
                    found.end(queue, event.offsets, "dead")
                case events.Dropped(queue=queue, cause="nacked" | "expired", ranges=[(offset, _)]) if queue in queues:
                    found.end(queue, [offset], "failed")  # the queue keeps no dead letters
        return records[0][0] if records else start

    def _named(self, queue: int, offsets: list[int]) -> dict[tuple[int, int], str | None]:
        """The tasks of messages that are close together; the stream of a work queue has the queue's number."""
        most, places = BLOCK * MAX_TASK_BYTES, dict.fromkeys([(queue, offset) for offset in offsets])
        step = browse(self._journal, queue, offsets[0], offsets[-1] + 1, newest_first=False, most=BLOCK, max_bytes=most)
        return places | {(queue, offset): task_of(message) for offset, message in step.found if (queue, offset) in places}


def task_of(message: StoredMessage) -> str | None:
    """The task that a message calls; None if it is not a call of a task."""
    if message.content == JSON and len(message.data) <= MAX_TASK_BYTES:
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return task_name(msgspec.json.decode(message.data))[:PREVIEW] or None
    return None
