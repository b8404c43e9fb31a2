"""Settling deliveries: acks, nacks and deadlines are gathered for one turn of the event loop and sent together.

`Settler` settles the messages of a stream through its channel, and keeps settlements that may not have arrived. `PullSettler` and
`QueueSettler` settle messages that were leased without a stream, by operations.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sized
from contextlib import suppress
from typing import Any, NamedTuple, ParamSpec

from penstock import forks
from penstock.client.core.stream import HeldDeliveries
from penstock.client.link import Channel, Link, check_loop
from penstock.client.message import AckResponse, IncomingMessage, response_to
from penstock.clock import Clock, steady
from penstock.durations import SECOND
from penstock.errors import PenstockError, ServerUnreachable, Unavailable
from penstock.wire.frames import Nack
from penstock.wire.operations import Operations

P = ParamSpec("P")

log = logging.getLogger("penstock.client")


class Settler:
    """Settles the messages of one stream, through the channel that is open.

    Without one it waits. After its end, calls have no effect.
    """

    def __init__(
        self,
        holdings: HeldDeliveries[IncomingMessage],
        clock: Clock,
        on_change: Callable[[], None],
        on_move: Callable[[], None],
        on_settled: Callable[[IncomingMessage, bool], None] | None = None,
    ) -> None:
        self._now = steady(clock)
        self._is_immediate = not clock.runs
        """For a clock of a test, which may advance by days in the same turn."""
        self._held = holdings.by_receipt
        self._on_change = on_change
        """Called after a settlement."""
        self._on_move = on_move
        """Called after deadlines have changed."""
        self.before_flush: Callable[[], None] | None = None
        """Called before settlements are sent, if their order matters to the broker."""
        self.on_settled = on_settled
        """Called with a message that is not held any more, and whether it was acknowledged."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._channel: Channel | None = None
        self._connected: asyncio.Future[None] = self._loop.create_future()
        self._acks: list[int] = []
        self._nacks: list[Nack] = []
        self._deadlines: dict[float, list[int]] = {}
        self._begun: list[int] = []
        self._is_due = False
        self._is_over = False
        forks.own(self, "client")

    def use(self, channel: Channel) -> None:
        self._channel = channel
        if not self._connected.done():
            self._connected.set_result(None)
        self._soon()

    def let_go(self) -> None:
        """Send the gathered settlements through the channel, and nothing more until there is another channel."""
        self.flush()
        self._channel = None
        if self._connected.done():
            self._connected = self._loop.create_future()

    def repeat(self, acks: list[int], nacks: list[Nack]) -> None:
        """Acks and nacks that were sent and may not have arrived."""
        self._acks += acks
        self._nacks += nacks

    def end(self, *, is_gone: bool = False) -> None:
        """End: nothing can be settled any more. `is_gone`: nothing will be redelivered either."""
        if self._acks and not is_gone:
            log.warning("%d acks did not reach the broker: their messages will be redelivered", len(self._acks))
        self._is_over = True
        self._channel = None
        self._connected.cancel()
        self._drop()

    @property
    def is_connected(self) -> bool:
        """Whether there is a channel."""
        return self._channel is not None

    @property
    def pending(self) -> list[int]:
        """Receipts of settlements that may not have arrived yet."""
        return [*self._acks, *(nack.receipt for nack in self._nacks)]

    def begin(self, message: IncomingMessage) -> None:
        self._across(self._begin, message.receipt)

    def ack(self, message: IncomingMessage) -> None:
        if threading.get_ident() == self._thread:
            receipt = message.receipt
            self._acks.append(receipt)
            held = self._held.pop(receipt, None)
            if self.on_settled is not None and held is not None:
                self.on_settled(held, True)
            if not self._is_due:
                self._soon()
        else:
            self._across(self.ack, message)

    def nack(self, message: IncomingMessage, nack: Nack) -> None:
        self._across(self._nack, nack)

    def move(self, message: IncomingMessage, seconds: float) -> None:
        self._across(self._move, message, seconds)

    def extend(self, receipts: list[int], seconds: float) -> None:
        self._deadlines.setdefault(seconds, []).extend(receipts)
        self._soon()

    def give_back(self, nacks: list[Nack]) -> None:
        for nack in nacks:
            self._nack(nack)

    async def confirm(
        self, message: IncomingMessage, *, acks: list[int] | None = None, nack: Nack | None = None, seconds: float | None = None
    ) -> AckResponse:
        """Settle one delivery, and return the result. Without a connection it waits for one, until the lease expires."""
        check_loop(self._loop)
        if not self._is_over and self._channel is None:
            await asyncio.wait([self._connected], timeout=max(message.deadline - self._now(), 0) / SECOND)
        if self._is_over:
            return AckResponse.INVALID
        channel = self._channel
        if channel is None:
            return AckResponse.OTHER
        held = None
        if seconds:
            self._lease(message, seconds)
        else:
            held = self._held.pop(message.receipt, None)
        self.flush()
        if seconds:
            self._on_move()
        elif held is not None and self.on_settled is not None:
            self.on_settled(held, acks is not None)  # its answer follows the settlements that are sent now
        deadlines = [] if seconds is None else [([message.receipt], seconds)]
        return await response_to(channel.confirm(acks or [], [nack] if nack is not None else [], deadlines))

    def flush(self) -> None:
        self._is_due = False
        if self.before_flush is not None:
            self.before_flush()
        channel = self._channel
        if self._is_over:
            self._drop()
        elif channel is not None and (self._acks or self._nacks or self._deadlines or self._begun):
            acks, nacks, deadlines = self._acks, self._nacks, self._deadlines
            begun = [receipt for receipt in self._begun if receipt in self._held]
            self._acks, self._nacks, self._deadlines, self._begun = [], [], {}, []
            try:
                channel.settle(acks, nacks, [(receipts, seconds) for seconds, receipts in deadlines.items()], begun)
            except PenstockError as error:
                log.warning("%d acks and %d nacks have no effect: %s", len(acks), len(nacks), error)
            if deadlines:
                self._on_move()
        self._on_change()

    def _begin(self, receipt: int) -> None:
        self._begun.append(receipt)
        self._soon()

    def _nack(self, nack: Nack) -> None:
        self._nacks.append(nack)
        held = self._held.pop(nack.receipt, None)
        if held is not None and self.on_settled is not None:
            self.on_settled(held, False)
        self._soon()

    def _move(self, message: IncomingMessage, seconds: float) -> None:
        if seconds:
            self._lease(message, seconds)
            self.extend([message.receipt], seconds)
        else:
            self._nack(Nack(message.receipt))

    def _lease(self, message: IncomingMessage, seconds: float) -> None:
        message.span = round(seconds * SECOND)
        message.deadline = self._now() + message.span

    def _drop(self) -> None:
        self._acks.clear()
        self._nacks.clear()
        self._deadlines.clear()
        self._begun.clear()

    def _soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            if self._is_immediate:
                self.flush()
            else:
                self._loop.call_soon(self.flush)

    def _across(self, function: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call it in the loop's thread."""
        if threading.get_ident() == self._thread:
            function(*args, **kwargs)
        else:
            with suppress(RuntimeError):  # the loop is closed: nothing is held any more
                self._loop.call_soon_threadsafe(lambda: function(*args, **kwargs))


class Settlement(NamedTuple):
    """An ack (`seconds` is None), a nack (0), or another deadline."""

    seconds: float | None = None
    requeue: bool = True
    error: str | None = None
    delay: float | None = None


ACK = Settlement()


class NoSettler:
    """For peeked messages: they cannot be settled."""

    def begin(self, message: IncomingMessage) -> None:
        """Nothing to report."""

    def ack(self, message: IncomingMessage) -> None:
        """Nothing to settle."""

    def nack(self, message: IncomingMessage, nack: Nack) -> None:
        """Nothing to requeue."""

    def move(self, message: IncomingMessage, seconds: float) -> None:
        """No lease."""

    async def confirm(
        self, message: IncomingMessage, *, acks: list[int] | None = None, nack: Nack | None = None, seconds: float | None = None
    ) -> AckResponse:
        return AckResponse.INVALID


class PullSettler:
    """Settles deliveries of one subscription by their ack ids."""

    def __init__(self, link: Link, name: str) -> None:
        self._link = link
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._waiting: dict[Settlement, list[IncomingMessage]] = {}
        self._running: set[asyncio.Task[Any]] = set()
        forks.own(self, "client")

    def begin(self, message: IncomingMessage) -> None:
        """Nothing to do: a lease that expires counts as an attempt."""

    def ack(self, message: IncomingMessage) -> None:
        self._across(message, ACK)

    def nack(self, message: IncomingMessage, nack: Nack) -> None:
        self._across(message, _of_nack(nack))

    def move(self, message: IncomingMessage, seconds: float) -> None:
        self._across(message, Settlement(seconds))

    async def confirm(
        self, message: IncomingMessage, *, acks: list[int] | None = None, nack: Nack | None = None, seconds: float | None = None
    ) -> AckResponse:
        settlement = ACK if acks else _of_nack(nack) if nack is not None else Settlement(seconds or 0)
        return await response_to(self._settle([message], settlement))

    async def finish(self) -> None:
        """Return once all requests so far are done."""
        self._flush()
        if self._running:
            await asyncio.wait(self._running)

    async def _settle(self, messages: list[IncomingMessage], settlement: Settlement) -> Sized:
        ids = [message.ack_id for message in messages]
        if settlement.seconds is None:
            return await self._link.call(Operations.acknowledge, self._name, ids)
        return await self._link.call(Operations.modify_ack_deadline, self._name, ids, settlement.seconds)

    def _may_repeat(self, settlement: Settlement) -> bool:
        """Whether a repeat is harmless: an ack id belongs to one delivery."""
        return True

    def _across(self, message: IncomingMessage, settlement: Settlement) -> None:
        if threading.get_ident() == self._thread:
            self._add(message, settlement)
        else:
            with suppress(RuntimeError):  # the loop is closed: the lease will expire
                self._loop.call_soon_threadsafe(self._add, message, settlement)

    def _add(self, message: IncomingMessage, settlement: Settlement) -> None:
        if not self._waiting:
            self._loop.call_soon(self._flush)
        self._waiting.setdefault(settlement, []).append(message)

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for settlement, messages in waiting.items():
            task = self._loop.create_task(self._try(messages, settlement))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _try(self, messages: list[IncomingMessage], settlement: Settlement) -> None:
        try:
            try:
                await self._settle(messages, settlement)
            except Unavailable as error:
                if isinstance(error, ServerUnreachable) or not self._may_repeat(settlement):
                    raise
                await self._settle(messages, settlement)  # the connection was lost
        except PenstockError as error:
            log.warning("%d messages of %r could not be settled: %s", len(messages), self._name, error)


class QueueSettler(PullSettler):
    """Settles deliveries of one work queue by their message ids, for their consumer."""

    def __init__(self, link: Link, name: str, consumer: str) -> None:
        super().__init__(link, name)
        self._consumer = consumer

    async def _settle(self, messages: list[IncomingMessage], settlement: Settlement) -> Sized:
        call, ids, seconds = self._link.call, [message.id for message in messages], settlement.seconds
        if seconds is None:
            return await call(Operations.ack_messages, self._name, ids, self._consumer)
        if seconds:
            for one in ids:
                await call(Operations.extend_message, self._name, one, seconds, self._consumer)
            return ()
        return await call(
            Operations.nack_messages, self._name, ids, settlement.requeue, settlement.error, self._consumer, settlement.delay
        )

    def _may_repeat(self, settlement: Settlement) -> bool:
        """Only an ack may be repeated: the message is not redelivered after it.

        An id is the same for all deliveries of a message.
        """
        return settlement == ACK


def _of_nack(nack: Nack) -> Settlement:
    return Settlement(0, nack.requeue, nack.error, nack.delay)
