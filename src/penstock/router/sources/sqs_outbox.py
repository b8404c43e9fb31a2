"""What a source still has to tell its server: collected in a turn of the loop, sent in batches, several at a time.

    put ── waiting ──(a batch is full, or few calls are under way)── under way ── done

Under load batches fill up while earlier ones are under way, so they are cheap; without load nothing waits. Of one message only
one word is under way at a time, and a later word replaces one that waits: the server hears them in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

BATCH = 10
"""Entries of a call: SQS takes no more."""
CALLS = 8
"""Calls under way."""
PARTIAL_CALLS = 2
"""So many may be under way and a batch that is not full still goes at once."""


class Entry(msgspec.Struct, gc=False, eq=False):
    """One message to be settled."""

    broker_id: str
    receipt: str
    seconds: int = 0


class Outbox:
    """Entries on their way to the server."""

    def __init__(self, send: Callable[[list[Entry]], Awaitable[None]]) -> None:
        self._send = send
        self._waiting: dict[str, Entry] = {}
        self._under_way: dict[str, Entry] = {}
        self._calls: set[asyncio.Task[None]] = set()
        self._turn: asyncio.Handle | None = None
        self._flushers: list[asyncio.Future[None]] = []

    def __contains__(self, broker_id: str) -> bool:
        return broker_id in self._waiting or broker_id in self._under_way

    def put(self, entry: Entry) -> None:
        """Send it soon."""
        self._waiting[entry.broker_id] = entry
        if self._turn is None:
            self._turn = asyncio.get_running_loop().call_soon(self._start)

    def drop(self, broker_id: str) -> None:
        """Do not send it, if it still waits."""
        self._waiting.pop(broker_id, None)

    async def flush(self) -> None:
        """Return when what was put so far is done."""
        told = {*self._waiting.values(), *self._under_way.values()}
        while told:
            self._start(CALLS)
            progress = asyncio.get_running_loop().create_future()
            self._flushers.append(progress)
            await progress
            told &= {*self._waiting.values(), *self._under_way.values()}

    async def cancel(self) -> list[Entry]:
        """Give up, and return what was not done."""
        left = [*self._under_way.values(), *self._waiting.values()]
        self._waiting.clear()
        calls = set(self._calls)
        for call in calls:
            call.cancel()
        if calls:
            await asyncio.wait(calls)
        self._under_way.clear()  # a call that was cancelled before it began could not
        return left

    def _start(self, partial_calls: int = PARTIAL_CALLS) -> None:
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
        while self._waiting and len(self._calls) < CALLS:
            batch = self._next()
            if not batch or (len(batch) < BATCH and len(self._calls) >= partial_calls):
                return
            for entry in batch:
                del self._waiting[entry.broker_id]
                self._under_way[entry.broker_id] = entry
            call = asyncio.get_running_loop().create_task(self._carry_out(batch))
            self._calls.add(call)
            call.add_done_callback(self._ended)

    def _next(self) -> list[Entry]:
        batch: list[Entry] = []
        for broker_id, entry in self._waiting.items():
            if broker_id not in self._under_way:
                batch.append(entry)
                if len(batch) == BATCH:
                    break
        return batch

    async def _carry_out(self, batch: list[Entry]) -> None:
        try:
            await self._send(batch)
        finally:
            for entry in batch:
                del self._under_way[entry.broker_id]

    def _ended(self, call: asyncio.Task[None]) -> None:
        self._calls.discard(call)
        self._start()
        flushers, self._flushers = self._flushers, []
        for flusher in flushers:
            if not flusher.done():
                flusher.set_result(None)
