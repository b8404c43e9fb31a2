"""What stands around a router in a test: a queue in memory, targets that answer by script, records that are kept in lists.

They keep the promises of their ports, and say afterwards what they were told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from penstock.clock import Clock
from penstock.durations import SECOND
from penstock.errors import Unavailable
from penstock.http.client.transport import Answer, Done, Failure, FailureKind
from penstock.router.core.message import DEFAULT_GROUP, Pointer, RoutedMessage, SourceMessage
from penstock.router.records import Attempt
from penstock.router.source import QueueDepth
from penstock.testing import ManualClock

PATIENCE = 30.0
"""Seconds after which what should happen counts as not happening."""

OK = Answer(200)
TARGET = "https://target.example/hook"


async def until(condition: Callable[[], object]) -> None:
    """Let the loop turn until something is true."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110  # what is waited for is a state of the code under test, not an event
            await asyncio.sleep(0)


async def turns(count: int = 20) -> None:
    """Let the loop turn: what was only waiting for its turn has then had it."""
    for _ in range(count):
        await asyncio.sleep(0)


def body(message_id: str, group: str | None = None, *, pool: str = "P", target: str = TARGET, **fields: object) -> bytes:
    """A message as specification 001 writes it."""
    named = {} if group is None else {"messageGroupId": group}
    return msgspec.json.encode({"id": message_id, "poolCode": pool, "mediationTarget": target, **named, **fields})


def item(
    message_id: str,
    group: str = DEFAULT_GROUP,
    *,
    pool: str = "P",
    queue: str = "Q",
    batch: int = 1,
    broker_id: str | None = None,
    is_urgent: bool = False,
    origin: object = None,
) -> RoutedMessage:
    """A message on its way, for the rules alone."""
    received = SourceMessage(f"b-{message_id}" if broker_id is None else broker_id, b"")
    return RoutedMessage(Pointer(message_id, pool, TARGET, group, is_urgent), queue, received, origin, batch)


class MemorySource:
    """A queue in memory, in order. What is handed out is hidden until its lease ends, it is nacked, or the source stops."""

    def __init__(self, clock: Clock | None = None, *, lease_seconds: float | None = 120) -> None:
        self.clock: Clock = clock or ManualClock()
        self.lease_seconds = lease_seconds
        self.is_healthy = True
        self.trouble: Exception | None = None
        """What every poll and start raises."""
        self.is_stuck = False
        """Whether polls neither return nor end."""
        self.refuses_nacks = False
        self.starts = self.stops = self.polls = 0
        self.wanted: list[int] = []
        self.acked: list[str] = []
        self.nacked: list[tuple[str, int]] = []
        self.extended: list[tuple[str, int]] = []
        self.stale: list[str] = []
        """What was to be settled with a receipt that does not count any more."""
        self._bodies: dict[str, bytes] = {}
        self._hidden: dict[str, int] = {}
        """By id: until when it is not handed out."""
        self._counts: dict[str, int] = {}
        self._moved = asyncio.Event()
        self._number = 0

    def put(self, *bodies: bytes) -> list[str]:
        """Messages arrive; returns the queue's ids of them."""
        made: list[str] = []
        for one in bodies:
            self._number += 1
            made.append(f"b-{self._number}")
            self._bodies[made[-1]] = one
        self._moved.set()
        return made

    @property
    def left(self) -> int:
        """How many messages the queue holds, handed out or not."""
        return len(self._bodies)

    @property
    def is_seen(self) -> bool:
        """Whether every message was handed out at least once."""
        return all(broker_id in self._counts for broker_id in self._bodies)

    def show(self, broker_id: str) -> None:
        """Let the lease of a message end now."""
        self._hidden.pop(broker_id, None)
        self._moved.set()

    async def start(self) -> None:
        if self.trouble is not None:
            raise self.trouble
        self.starts += 1

    async def stop(self) -> None:
        self.stops += 1
        self._hidden.clear()
        if self.trouble is not None:
            raise self.trouble

    async def poll(self, want: int, wait: float) -> Sequence[SourceMessage]:
        self.polls += 1
        self.wanted.append(want)
        unlisten = self.clock.listen(self._moved.set)
        try:
            async with asyncio.timeout(wait):
                while True:
                    if self.trouble is not None:
                        raise self.trouble
                    self._moved.clear()
                    if not self.is_stuck and (found := self._take(want)):
                        return found
                    await self._moved.wait()
        except TimeoutError:
            return []
        finally:
            unlisten()

    def _take(self, want: int) -> list[SourceMessage]:
        now, found = self.clock.now(), list[SourceMessage]()
        for broker_id, one in self._bodies.items():
            if len(found) < want and self._hidden.get(broker_id, 0) <= now:
                self._counts[broker_id] = count = self._counts.get(broker_id, 0) + 1
                self._hidden[broker_id] = now + int((self.lease_seconds or 1e9) * SECOND)
                found.append(SourceMessage(broker_id, one, count, count))
        return found

    def ack(self, received: SourceMessage) -> None:
        if self._is_current(received):
            self.acked.append(received.broker_id)
            self._bodies.pop(received.broker_id, None)

    def nack(self, received: SourceMessage, delay: int) -> None:
        if self.refuses_nacks:
            raise Unavailable("the queue is away")
        if self._is_current(received):
            self.nacked.append((received.broker_id, delay))
            self._hidden[received.broker_id] = self.clock.now() + delay * SECOND
            self._moved.set()

    def extend(self, received: SourceMessage, seconds: int) -> None:
        if self._is_current(received):
            self.extended.append((received.broker_id, seconds))
            self._hidden[received.broker_id] = self.clock.now() + seconds * SECOND

    def set_lease(self, seconds: int) -> None:
        self.lease_seconds = seconds

    def _is_current(self, received: SourceMessage) -> bool:
        is_current: bool = self._counts.get(received.broker_id) == received.receipt
        if not is_current:
            self.stale.append(received.broker_id)
        return is_current

    def was_extended(self, times: int) -> bool:
        """Whether leases were extended so many times."""
        return len(self.extended) >= times

    async def flush(self) -> None:
        pass

    async def depth(self) -> QueueDepth | None:
        if self.trouble is not None:
            raise self.trouble
        now = self.clock.now()
        hidden = sum(self._hidden.get(broker_id, 0) > now for broker_id in self._bodies)
        return QueueDepth(len(self._bodies) - hidden, hidden)


class Request:
    """A call to a target."""

    def __init__(
        self, transport: ScriptedTransport, url: str, headers: bytes, content: bytes, timeout: float, done: Done
    ) -> None:
        self.url = url
        self.headers = headers
        self.body = content
        self.message_id: str = msgspec.json.decode(content)["messageId"]
        self.timeout = timeout
        self.is_open = True
        self._transport = transport
        self._done = done

    def answer(self, found: Answer | Failure = OK) -> None:
        """The target answers."""
        if self.is_open:
            self._close()
            self._done(found)

    def cancel(self) -> None:
        if self.is_open:
            self._close()
            self._transport.cancelled.append(self.message_id)

    def _close(self) -> None:
        self.is_open = False
        self._transport.open.remove(self)


class ScriptedTransport:
    """Targets that answer as `script` says; a call for which it says nothing stays open until the test answers it."""

    def __init__(self, script: Callable[[Request], Answer | Failure | None] | None = None) -> None:
        self.script = script or (lambda _request: OK)
        self.requests: list[Request] = []
        self.open: list[Request] = []
        self.most_open = 0
        self.cancelled: list[str] = []
        self.breaks: Exception | None = None
        """What `post` raises."""

    def post(self, url: str, headers: bytes, body: bytes, timeout: float, done: Done) -> Request:  # as the port has it
        if self.breaks is not None:
            raise self.breaks
        request = Request(self, url, headers, body, timeout, done)
        self.requests.append(request)
        self.open.append(request)
        self.most_open = max(self.most_open, len(self.open))
        found = self.script(request)
        if found is not None:
            asyncio.get_running_loop().call_soon(request.answer, found)
        return request

    async def close(self) -> None:
        for request in [*self.open]:
            request.answer(Failure(FailureKind.CANCELLED))

    @property
    def called(self) -> list[str]:
        """The messages of all calls, in order."""
        return [request.message_id for request in self.requests]

    def one(self, message_id: str) -> Request:
        """The open call of a message."""
        return next(request for request in self.open if request.message_id == message_id)


class KeptRecords:
    """Attempts and dead letters, in lists."""

    def __init__(self) -> None:
        self.attempts: list[Attempt] = []
        self.buried: list[tuple[str, str, str]] = []
        """Message id, reason, error."""
        self.dead_attempts: list[int] = []
        self.trouble: Exception | None = None
        self.gate: asyncio.Event | None = None
        """What every burial waits for."""
        self.flushes = 0

    def attempted(self, attempt: Attempt) -> None:
        self.attempts.append(attempt)

    async def dead_letter(self, item: RoutedMessage, reason: str, error: str) -> None:
        if self.gate is not None:
            await self.gate.wait()
        if self.trouble is not None:
            raise self.trouble
        self.buried.append((item.pointer.message_id, reason, error))
        self.dead_attempts.append(item.attempts)

    async def flush(self) -> None:
        self.flushes += 1

    async def until(self, count: int, message_id: str | None = None) -> None:
        """Wait for so many attempts, of any message or of this one."""
        await until(lambda: sum(message_id in {None, attempt.message_id} for attempt in self.attempts) == count)


class KeepsDeadSource(MemorySource):
    """A queue with dead letters of its own."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.dead: list[tuple[str, str]] = []
        self.dead_attempts: list[int] = []

    async def dead_letter(self, received: SourceMessage, reason: str, error: str, attempts: int) -> None:
        self.dead.append((received.broker_id, reason))
        self.dead_attempts.append(attempts)
        self._bodies.pop(received.broker_id, None)
