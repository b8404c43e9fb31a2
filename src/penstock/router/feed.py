"""One queue at work: polls its source while there is room for messages, and extends the leases of those in the router.

A queue that feeds several pools is polled while any of them has room: messages for a full pool are requeued, and the others are
accepted. Only if every pool that it has fed recently is full does it wait for room; if none appears soon, it polls anyway.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from penstock.clock import Clock, steady
from penstock.durations import SECOND
from penstock.errors import PenstockError, Unavailable
from penstock.router.core.config import QueueConfig, shown_uri
from penstock.router.core.message import RoutedMessage, SourceMessage
from penstock.router.core.metrics import QueueMetrics
from penstock.router.core.outcome import DEFAULT_DELAY, Severity
from penstock.router.core.snapshot import ConsumerState
from penstock.router.core.warnings import Category
from penstock.router.runner import Runner
from penstock.router.source import QueueDepth, Source


class ClosedSource:
    """Replaces a source that was closed while some of its messages are in the router.

    Those messages are in their queue again, and the next source delivers them. What the router decides about them meanwhile is
    kept here and applied when they arrive: a message that is done is acked and not delivered a second time.
    """

    lease_seconds: float | None = None
    is_healthy = False

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._decided: dict[tuple[str, bytes], int] = {}
        """By id and body: 0 for a message that is done, otherwise when it may be delivered again."""

    def __len__(self) -> int:
        return len(self._decided)

    def without_settled(self, batch: Sequence[SourceMessage], source: Source) -> list[SourceMessage]:
        """Settle the messages of a batch that were decided about at the source; returns the others."""
        now, others = self._clock.now(), list[SourceMessage]()
        for received in batch:
            due = self._decided.pop(_key(received), None)
            if due == 0:
                source.ack(received)
            elif due is not None and due > now:
                source.nack(received, -(-(due - now) // SECOND))
            else:
                others.append(received)
        return others

    def ack(self, received: SourceMessage) -> None:
        self._decided[_key(received)] = 0

    def nack(self, received: SourceMessage, delay: int) -> None:
        """The message has to wait for `delay` seconds; it is in its queue already."""
        if delay > 0:
            self._decided[_key(received)] = self._clock.now() + delay * SECOND

    def extend(self, received: SourceMessage, seconds: int) -> None:
        """Nothing to do: there are no leases."""

    def set_lease(self, seconds: int) -> None:
        """Nothing to do: there are no leases."""

    async def start(self) -> None:
        """Nothing to do."""

    async def stop(self) -> None:
        """Nothing to do."""

    async def poll(self, want: int, wait: float) -> Sequence[SourceMessage]:
        """Always empty."""
        return ()

    async def flush(self) -> None:
        """Nothing to do: decisions are applied when the messages arrive."""

    async def depth(self) -> QueueDepth | None:
        """Not known: None."""
        return None


def _key(received: SourceMessage) -> tuple[str, bytes]:
    return received.broker_id, received.body


log = logging.getLogger("penstock.router")

POLL_SECONDS = 20.0
ROOM_SECONDS = 0.5
PROBE = 10
"""The minimum number of messages to ask for."""
REMEMBERED_FOR = 300 * SECOND
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 15.0
HAND_OVER_SECONDS = 10.0
"""How long messages in the router may delay opening a queue again: its new source starts when the old one is closed."""
LOOK_SECONDS = 0.02
CLOSE_SECONDS = 25.0
"""A server that does not answer must not keep the router from stopping."""
FEED = "QueueConsumer"
"""The source of its warnings."""


class MessageRouter(Protocol):
    """The router, as a feed sees it."""

    @property
    def runners(self) -> Mapping[str, Runner]:
        """The running pools, by code."""

    def route(self, feed: Feed, batch: Sequence[SourceMessage]) -> None:
        """Route a batch; `feed.fed` gets the pools."""

    def tracked(self, queue: str) -> list[RoutedMessage]:
        """The messages of a queue that are in the router, oldest first."""

    def may_poll(self) -> bool:
        """Whether this router may consume messages at this moment."""

    def warn(self, category: str, severity: Severity, message: str, source: str) -> None:
        """Record a warning."""


class Feed:
    """Polls one queue."""

    def __init__(
        self,
        config: QueueConfig,
        source: Source,
        routes: MessageRouter,
        clock: Clock,
        batch: int,
        *,
        before: Sequence[Feed] = (),
    ) -> None:
        self.config = config
        self.source = source
        """Settles messages. After `hand_over` it only remembers the decisions about them."""
        self.metrics = QueueMetrics(clock.now())
        self.is_running = False
        self.polled_at: list[int] = [0] * config.connections
        """For each connection: when a poll, or the start of the source, last succeeded (steady time); 0 if none has."""
        self.since = 0
        """When it was started, or resumed by a configuration; restarts for health do not count."""
        self.is_closing = False
        """Whether another feed replaces it, or none of its messages are in the router any more."""
        self.inherited: ClosedSource = before[-1].inherited if before else ClosedSource(clock)
        """The decisions about messages that the feeds before this one consumed, and that are redelivered."""
        self.in_flight = 0
        """Messages of this feed in the router."""
        self.trouble: str | None = None
        """Why the queue cannot be reached, as far as is known."""
        self._routes = routes
        self._clock = clock
        self._steady = steady(clock)
        self._batch = batch
        self._fed: dict[str, int] = {}
        """By pool code: when a message for the pool last arrived."""
        self._tasks: list[asyncio.Task[None]] = []
        self._at_server: set[asyncio.Task[None]] = set()
        """Those tasks whose poll must not be cancelled (`source.PollsAtServer`)."""
        self._starting: asyncio.Future[None] | None = None
        self._own = source
        self._before = before
        self._closing = asyncio.Lock()
        self._is_stuck = False
        """Whether no pool that this queue feeds has had room for a while: then messages without room are requeued."""

    def start(self) -> None:
        """Start to poll. This includes connecting: if the server cannot be reached yet, it is retried."""
        self.is_running, self.since = True, self.since or self._steady()
        self._tasks = [asyncio.create_task(self._poll(number)) for number in range(self.config.connections)]
        self._tasks.append(asyncio.create_task(self._keep_leases()))

    async def stop_polling(self, seconds: float) -> bool:
        """Stop polling; messages in the router can still be settled. False if a poll did not end within `seconds`.

        Polls that wait at their server are awaited, and their messages are routed: otherwise nobody would receive them.
        """
        self.is_running = False
        polls, self._tasks = self._tasks[:-1], self._tasks[-1:]
        if not polls:
            return True
        for task in polls:
            if task not in self._at_server:
                task.cancel()
        _, late = await asyncio.wait(polls, timeout=seconds)
        for task in late:
            task.cancel()
        return not late

    async def change(self, config: QueueConfig, seconds: float) -> None:
        """Restart polling with the same source, so that its messages keep their places. Running polls have `seconds` to end."""
        if not self.is_running:
            self.since = 0
        await self.stop_polling(seconds)
        for task in self._tasks:
            task.cancel()
        self.config = config
        self.polled_at = [min(self.polled_at)] * config.connections
        self.source.set_lease(config.visibility_timeout)
        self.start()

    async def hand_over(self, heir: Feed) -> None:
        """Close soon: when none of its messages are in the router any more, or after a while. Then the heir opens the queue."""
        with suppress(TimeoutError):
            async with asyncio.timeout(HAND_OVER_SECONDS):
                while self.in_flight:  # noqa: ASYNC110  # counted for every message: an event would cost more
                    await asyncio.sleep(LOOK_SECONDS)
        self.source = heir.inherited
        await asyncio.shield(asyncio.ensure_future(self.close()))  # if it were cancelled, it could not release its messages

    async def close(self) -> None:
        """Send the settlements to the source, release the other messages, and close it."""
        async with self._closing:
            await self._close()

    async def _close(self) -> None:
        self.is_closing = True
        await self.stop_polling(0)
        ending = [*self._tasks, *([self._starting] if self._starting is not None else [])]
        self._tasks, self._starting = [], None
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._own.stop()
        except PenstockError as error:
            log.warning("the queue %r could not be closed cleanly: %s", self.config.name, error)
        except TimeoutError:
            log.warning("the queue %r could not be closed within %g s", self.config.name, CLOSE_SECONDS)
        except Exception as error:  # noqa: BLE001  # after any error, the other queues must still be closed
            self._unexpected_error("it could not be closed cleanly", error)

    def consumers(self) -> list[ConsumerState]:
        """Its poll loops, with times as of the present wall clock: a clock that jumps changes no age."""
        name, offset = shown_uri(self.config.name), self._clock.now() - self._steady()
        return [
            ConsumerState(
                queue=name,
                instance_id=str(number),
                is_running=self.is_running,
                polled_at=polled_at + offset if polled_at else 0,
                since=self.since + offset if self.since else 0,
                is_connected=self.source.is_healthy,
            )
            for number, polled_at in enumerate(self.polled_at)
        ]

    def is_polling(self, now: int) -> bool:
        """Whether each connection had a successful poll in the last minute (specification 001), or is not older than that."""
        return self.is_running and all(consumer.is_polling(now) for consumer in self.consumers())

    def fed(self, code: str, now: int) -> None:
        self._fed[code] = now

    async def _poll(self, number: int) -> None:
        pause, is_started = FIRST_PAUSE, False
        while self.is_running:
            try:
                if not is_started:
                    await self._start()
                    is_started = True
                want = await self._room()
                if not self._routes.may_poll():
                    self.polled_at[number] = self._steady()
                    await asyncio.sleep(pause)
                    continue
                batch = await self._poll_once(want)
                self.polled_at[number] = self._steady()
                self.trouble, pause = None, FIRST_PAUSE
            except Exception as error:  # noqa: BLE001  # after any error: nobody would notice that a queue is not polled any more
                self._complain(error, is_open=is_started)
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
                continue
            if batch and not self._routes.may_poll():  # another router is primary by now
                for received in batch:
                    self.source.nack(received, 0)
            elif batch:
                self._route(batch)
                await asyncio.sleep(0)  # a source that always has messages must not block the loop

    async def _poll_once(self, want: int) -> Sequence[SourceMessage]:
        poll = asyncio.current_task()
        if poll is None or not getattr(self.source, "polls_at_server", False):
            return await self.source.poll(want, POLL_SECONDS)
        self._at_server.add(poll)
        try:
            return await self.source.poll(want, POLL_SECONDS)
        finally:
            self._at_server.discard(poll)

    def _route(self, batch: Sequence[SourceMessage]) -> None:
        if self.inherited and not (batch := self.inherited.without_settled(batch, self.source)):
            return
        try:
            self._routes.route(self, batch)
        except Exception as error:  # noqa: BLE001  # as above; messages that were not accepted are redelivered
            self._unexpected_error("a batch could not be routed", error)
            inside = {id(item.received) for item in self._routes.tracked(self.config.name)}
            for received in batch:
                if id(received) not in inside:
                    self.source.nack(received, DEFAULT_DELAY)

    async def _start(self) -> None:
        if self._starting is None:
            self._starting = asyncio.ensure_future(self._open())
        try:
            await asyncio.shield(self._starting)
        except Exception:
            self._starting = None
            raise

    async def _open(self) -> None:
        await asyncio.gather(*(feed.hand_over(self) for feed in self._before))
        self._before = ()
        await self._own.start()
        self.polled_at = [self._steady()] * len(self.polled_at)

    def _complain(self, error: Exception, *, is_open: bool) -> None:
        if not isinstance(error, PenstockError):
            self.trouble = "it failed unexpectedly"
            self._unexpected_error("it cannot be polled, will try again", error)
            return
        text = str(error)
        if self.trouble != text:
            level = logging.WARNING if isinstance(error, Unavailable) else logging.ERROR
            log.log(level, "the queue %r cannot be polled, will try again: %s", self.config.name, text)
            if not is_open:
                said = f"the queue {shown_uri(self.config.name)!r} cannot be opened, will try again: {text}"
                self._routes.warn(Category.QUEUE_VALIDATION, Severity.WARN, said, FEED)
        self.trouble = text

    def _unexpected_error(self, what: str, error: Exception) -> None:
        """Report an unexpected error. Its own text may contain anything, so that is only logged."""
        text = f"the queue {self.config.name!r}: {what}: {type(error).__name__}"
        log.error("%s", text, exc_info=error)
        self._routes.warn(Category.PROCESSING, Severity.WARN, text, FEED)

    async def _room(self) -> int:
        """Wait until a pool that this queue feeds has room; returns how many messages to ask for."""
        runners, batch = self._routes.runners, self._batch
        if len(self._fed) > 1:
            for code in self._fed:
                if code in runners and runners[code].has_room(batch):
                    return batch
        now = self._steady()
        self._fed = {code: at for code, at in self._fed.items() if code in runners and at > now - REMEMBERED_FOR}
        if not self._fed:
            return batch
        # Wait for the emptiest one, but not for long: behind messages for a pool that is stuck there may be messages for others.
        best = max((runners[code] for code in self._fed), key=lambda runner: runner.pool.room)
        if self._is_stuck and not best.has_room(batch):
            return batch
        self._is_stuck = not await best.room(batch, ROOM_SECONDS)
        return batch if self._is_stuck else min(batch, max(best.pool.room, PROBE))

    async def _keep_leases(self) -> None:
        """Extend the leases of messages in the router, periodically."""
        while True:
            lease = self.source.lease_seconds
            if lease is None:
                await asyncio.sleep(POLL_SECONDS)
                continue
            await asyncio.sleep(lease / 4)
            try:
                self._extend_leases(lease)
            except Exception as error:  # noqa: BLE001  # after any error: without this every message would be redelivered, repeatedly
                self._unexpected_error("leases could not be extended", error)

    def _extend_leases(self, lease: float) -> None:
        now = self._steady()
        too_old = now - int(lease * SECOND / 4)
        for item in self._routes.tracked(self.config.name):
            if item.leased_at <= too_old and item.origin is self:
                item.leased_at = now
                self.source.extend(item.received, max(round(lease), 1))
