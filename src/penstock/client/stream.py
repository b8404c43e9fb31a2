"""MessageStream: streaming pull (specification 004).

    closed ──start──> opening ──> open ──stop──> stopping ──> closed
                        ▲  │       │
                        │  └───────┴── transient error: 'error', wait (backoff), open again
                        └─────────────┘ fatal error: 'error', 'close', closed

The broker enforces the limits: it knows what this consumer holds. Here is what a consumer has to do itself: extend leases
while their messages are worked on, settle in batches, come back after an error with what it still holds, and stop in good order.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

from penstock.api.frames import Limits, Nack, Opened, receipt
from penstock.broker.aio import Nudge
from penstock.client.core.holdings import Holdings
from penstock.client.core.recovery import Recovery
from penstock.client.link import Channel, Link, Parcel
from penstock.client.message import IncomingMessage
from penstock.client.options import CloseBehavior, SubscriberOptions
from penstock.client.settler import Settler
from penstock.durations import SECOND, micros
from penstock.errors import FailedPrecondition, InvalidArgument, PenstockError, Unavailable

log = logging.getLogger("penstock.client")

FAREWELL_SECONDS = 5.0
"""How long a stop waits for acks to arrive when the broker cannot be reached."""


class Source(Protocol):
    """What a stream streams from, and whom it tells. A Subscription is one."""

    kind: int
    """`frames.TOPIC` for a subscription, `frames.QUEUE` for a work queue."""
    name: str
    message_type: type[IncomingMessage]

    @property
    def link(self) -> Link:
        """The way to the broker."""

    def take(self, message: IncomingMessage) -> None:
        """A message has arrived. Whoever works on it says so in `is_worked_on`."""

    def take_back(self) -> list[IncomingMessage]:
        """Give up the messages that nobody has begun to work on."""

    async def finish(self) -> None:
        """Return when nobody works on anything any more."""

    def emit(self, event: str, *args: Any) -> None:
        """Tell listeners: 'error' with the error, 'close'."""


class MessageStream:
    """A continuous delivery of messages. Belongs to one event loop; `pause`, `resume` and `start` return at once."""

    def __init__(self, subscription: Source, options: SubscriberOptions | None = None) -> None:
        self._source = subscription
        self.options = options or SubscriberOptions()
        self._consumer = f"stream-{secrets.token_hex(8)}"
        self._channels: list[Channel] = []
        self._opened: Opened | None = None
        self._recovery = Recovery()
        self._is_paused = False
        self._is_stopping = False
        self._arrived: deque[IncomingMessage] = deque()
        """What arrived while the stream was paused."""
        self._task: asyncio.Task[None] | None = None
        self._holdings: Holdings[IncomingMessage] = Holdings(
            ack_deadline=micros(self.options.ack_deadline, "ack_deadline"),
            max_extension=micros(self.options.max_extension, "max_extension"),
        )
        self.failure: PenstockError | None = None
        """The error that ended it; None while it goes on, or when it was stopped."""

    # ── for users ────────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def is_open(self) -> bool:
        """Whether it was started and has not ended."""
        return self._task is not None

    @property
    def in_flight(self) -> int:
        """How many messages it holds."""
        return len(self._holdings)

    def start(self) -> None:
        """Begin to deliver. Does nothing when it has begun; one that has ended may begin again."""
        if self._task is not None:
            return
        loop = asyncio.get_running_loop()
        self._loop = loop
        self._clock = self._source.link.clock
        self._broken, self._stopped, self._changed = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._error: PenstockError | None = None
        self._settler = Settler(self._holdings, self._clock, self._changed.set)
        self._is_stopping, self.failure = False, None
        self._tick_handle: asyncio.TimerHandle | None = None
        self._stop_listening = self._clock.listen(Nudge(self._tick).ring)
        self._task = loop.create_task(self._run(), name=f"penstock stream of {self._source.name}")
        if self._clock.runs:
            self._schedule()

    async def stop(self) -> None:
        """Take no more, and return when what is out is settled, or was given back, as `close_behavior` says."""
        if self._task is None:
            return
        if self._is_stopping:
            await self._stopped.wait()
            return
        self._is_stopping = True
        self._adjust()
        for message in [*self._arrived, *self._source.take_back()]:
            self._return(message)
        self._arrived.clear()
        if self.options.close_behavior is CloseBehavior.WAIT:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.options.close_timeout):
                    await self._until_settled()
        await self._end()

    def pause(self) -> None:
        """Deliver nothing more until `resume`; what is out goes on, and so do its leases."""
        self._is_paused = True
        self._adjust()

    def resume(self) -> None:
        """Deliver again."""
        self._is_paused = False
        self._adjust()
        while self._arrived and not self._is_paused:
            self._source.take(self._arrived.popleft())

    def set_options(self, options: SubscriberOptions) -> None:
        """Live by other options from now on. Leases that are out keep their deadline; `message_ordering` stays as it was."""
        if not isinstance(options, SubscriberOptions):
            raise InvalidArgument.of("options", options, "a SubscriberOptions")
        if self.is_open and options.message_ordering != self.options.message_ordering:
            raise FailedPrecondition(
                "message_ordering of an open stream cannot change", hint="close it, set the option, and open it again"
            )
        has_streams = options.max_streams != self.options.max_streams
        self.options = options
        self._holdings.ack_deadline = micros(options.ack_deadline, "ack_deadline")
        self._holdings.max_extension = micros(options.max_extension, "max_extension")
        self._adjust()
        if has_streams and self._channels:
            self._broken.set()

    # ── from the link ────────────────────────────────────────────────────────────────────────────────────────────────────

    def receive(self, channel: Channel, parcels: Sequence[Parcel]) -> None:
        """Deliveries have come."""
        if self._is_stopping:
            # They go back with the channel; where leases end by themselves alone they are given back one by one.
            if channel.opened.exactly_once:
                channel.settle([], [Nack(receipt(one.offset, one.attempt, one.epoch)) for one in parcels], [])
            return
        self._recovery.worked()
        now = self._clock.now()
        deadline = now + self._holdings.ack_deadline
        number = self._channels.index(channel) if channel in self._channels else 0
        held, opened, settler, make = self._holdings.by_receipt, channel.opened, self._settler, self._source.message_type
        take: Callable[[IncomingMessage], None] = self._arrived.append if self._is_paused else self._source.take
        for parcel in parcels:
            mark = receipt(parcel.offset, parcel.attempt, parcel.epoch)
            message = make(settler, opened, parcel, mark, now, deadline)
            message.stream = number
            held[mark] = message
            take(message)
        if self._is_paused:
            for message in self._arrived:
                message.is_worked_on = True

    def ended(self, channel: Channel, error: PenstockError | None) -> None:
        """A channel is over."""
        self._error = self._error or error or Unavailable("the stream was ended by the broker")
        self._broken.set()

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _run(self) -> None:
        """Keep the channels open until the stream is stopped, or cannot go on."""
        while True:
            self._broken.clear()
            self._error = None
            try:
                await self._open()
                await self._broken.wait()
            except PenstockError as error:
                self._error = error
            await self._let_go(keep=True)
            if self._error is None:  # other options
                continue
            wait = self._recovery.failed(self._error)
            if wait is None:
                self.failure = self._error
                self._source.emit("error", self._error)
                self._loop.call_soon(self._give_up)
                return
            self._source.emit("error", self._error)
            await asyncio.sleep(wait / SECOND)

    async def _open(self) -> None:
        limits = self._limits()
        held = None if self._opened is None else [*self._holdings.by_receipt, *self._settler.pending]
        link, source = self._source.link, self._source
        for index in range(self.options.max_streams):
            channel = await link.open(source.kind, source.name, self._consumer, limits, self, held=held if not index else None)
            if self.options.message_ordering and not channel.opened.ordered:
                await channel.close()
                raise FailedPrecondition(
                    f"Subscription {source.name!r} was created without message_ordering, so its messages come in no order",
                    hint="create it again with message_ordering=True, or open it without",
                )
            if not index:
                if self._opened is not None and self._opened.queue != channel.opened.queue:
                    self._forget()  # it was deleted and made again: what is held is nobody's
                self._opened = channel.opened
                self._settler.use(channel)
            self._channels.append(channel)
        if limits != self._limits():
            self._adjust()

    async def _let_go(self, *, keep: bool) -> None:
        channels, self._channels = self._channels, []
        self._settler.flush()
        for channel in channels:
            with suppress(PenstockError):
                await channel.close(keep=keep)
        self._settler.use(None)

    async def _until_settled(self) -> None:
        """Wait for what is out, and for acks to be on their way."""
        while self._holdings:
            self._changed.clear()
            await self._changed.wait()
        await self._source.finish()
        if self._settler.pending and not self._channels:
            with suppress(TimeoutError):
                async with asyncio.timeout(FAREWELL_SECONDS):
                    while self._settler.pending:
                        self._changed.clear()
                        await self._changed.wait()

    def _give_up(self) -> None:
        """End by itself, after a fatal error: nothing that is held can be settled any more."""
        if not self._is_stopping and self._task is not None:
            self._is_stopping = True
            self._forget()
            self._task = self._loop.create_task(self._end())

    async def _end(self) -> None:
        task = self._task
        if task is not None and task is not asyncio.current_task():
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        self._return_rest()
        await self._let_go(keep=False)
        self._stop_listening()
        if self._tick_handle is not None:
            self._tick_handle.cancel()
        self._forget()
        self._opened = None
        self._task = None
        self._stopped.set()
        self._source.emit("close")

    def _return_rest(self) -> None:
        """Closing the channels gives back what is still held, but where leases end by themselves alone."""
        if self._opened is not None and self._opened.exactly_once and self._channels:
            self._channels[0].settle([], [Nack(mark) for mark in self._holdings.by_receipt], [])

    def _return(self, message: IncomingMessage) -> None:
        """Let go of a message that nobody has seen: closing the channel gives it back as if it had not been delivered."""
        if self._opened is not None and self._opened.exactly_once and self._channels:
            self._channels[0].settle([], [Nack(message.receipt)], [])
        self._holdings.settle(message.receipt)

    def _forget(self) -> None:
        self._holdings.by_receipt.clear()
        self._changed.set()

    def _limits(self) -> Limits:
        options = self.options
        return Limits(
            options.max_messages,
            options.max_bytes,
            self._holdings.ack_deadline / SECOND,
            options.flow_control.allow_excess_messages,
            self._is_paused or self._is_stopping,
        )

    def _adjust(self) -> None:
        for channel in self._channels:
            channel.adjust(self._limits())

    def _schedule(self) -> None:
        self._tick_handle = self._loop.call_later(self._holdings.interval / SECOND, self._on_timer)

    def _on_timer(self) -> None:
        self._tick()
        self._schedule()

    def _tick(self) -> None:
        """Extend leases that are worked on, and let go of those that have run out."""
        plan = self._holdings.plan(self._clock.now())
        if plan.extend:
            self._settler.extend(plan.extend, self._holdings.ack_deadline / SECOND)
        if plan.lost:
            log.debug("%d leases of %r have run out", len(plan.lost), self._source.name)
            self._changed.set()
