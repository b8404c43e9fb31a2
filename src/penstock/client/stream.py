"""MessageStream: streaming pull (specification 004). A `Session` is one life of a stream, from its start to its close.

    opening ──> open ──────────────────────────────> closing ──> over
      ▲  │       │                                    ▲  unsettled messages are settled, expire, or are requeued
      │  └───────┴── transient error: 'error', wait   │
      └──────────────────┘  fatal error: 'error' ─────┘  'close'

The broker enforces the limits: it knows what this consumer holds. Here is what a consumer does itself: extend leases while
handlers run, settle in batches, reopen after an error with what it still holds, and close cleanly.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any, Protocol

from penstock.client.core.ordering import KeyLanes
from penstock.client.core.stream import HeldDeliveries, ReconnectBackoff
from penstock.client.link import Channel, Delivery, Link
from penstock.client.message import IncomingMessage
from penstock.client.options import CloseBehavior, SubscriberOptions
from penstock.client.settlement import Settler
from penstock.clock import monotonic, steady
from penstock.durations import SECOND, micros
from penstock.errors import FailedPrecondition, InvalidArgument, PenstockError, Unavailable
from penstock.wire.frames import Limits, Nack, Opened, receipt

log = logging.getLogger("penstock.client")

OPENING_SECONDS = 1.0
"""How long a channel may still take to open after another one has ended."""
LAST_ACKS_SECONDS = 5.0
"""How long a close waits for acks to arrive while the broker is unreachable."""


class MessageStream:
    """A continuous delivery of messages. Belongs to one event loop; all methods except `stop` return at once.

    It may be started, stopped and started again: each time it is another consumer. It keeps the settings of `pause` and
    `set_options`.
    """

    def __init__(self, subscription: Source, options: SubscriberOptions | None = None) -> None:
        self._source = subscription
        self._options = options or SubscriberOptions()
        self._is_paused = False
        self._session: Session | None = None
        self.failure: PenstockError | None = None
        """The error that ended it; None while it is open, or if it was stopped."""

    @property
    def options(self) -> SubscriberOptions:
        """Its options; `set_options` changes them."""
        return self._options

    @property
    def is_open(self) -> bool:
        """Whether it was started and has not ended."""
        return self._session is not None

    @property
    def is_paused(self) -> bool:
        """Whether delivery is paused."""
        return self._is_paused

    @property
    def in_flight(self) -> int:
        """How many messages it holds."""
        return self._session.in_flight if self._session is not None else 0

    def start(self) -> None:
        """Start delivering. Does nothing if it has started; an ended stream can be started again."""
        if self._session is None:
            self.failure = None
            self._session = Session(self._source, self._options, is_paused=self._is_paused, on_end=self._ended)
        elif self._session.is_closing:
            raise FailedPrecondition(
                f"the stream of {self._source.name!r} is closing", hint="await close(), or wait for 'close', and open it then"
            )

    def begin_stop(self) -> None:
        """Stop receiving, without waiting for the end; `stop` waits."""
        if self._session is not None:
            self._session.close()

    async def stop(self) -> None:
        """Stop receiving; returns when unsettled messages are settled or requeued, as `close_behavior` says.

        Cancelling this call does not stop the close.
        """
        if self._session is not None:
            await self._session.stop()

    def pause(self) -> None:
        """Deliver nothing more until `resume`; delivered messages keep their leases."""
        self._is_paused = True
        if self._session is not None:
            self._session.pause()

    def resume(self) -> None:
        """Resume delivery."""
        self._is_paused = False
        if self._session is not None:
            self._session.resume()

    def set_options(self, options: SubscriberOptions) -> None:
        """Change the options. Leases keep their deadlines; options of ordering cannot change while it is open."""
        if not isinstance(options, SubscriberOptions):
            raise InvalidArgument.of("options", options, "a SubscriberOptions")
        if self._session is not None:
            for name in ("message_ordering", "ordering_window"):
                if getattr(options, name) != getattr(self._options, name):
                    raise FailedPrecondition(
                        f"{name} of an open stream cannot change", hint="close it, set the option, and open it again"
                    )
        self._options = options
        if self._session is not None:
            self._session.set_options(options)

    def _ended(self, failure: PenstockError | None) -> None:
        self._session = None
        self.failure = failure


class MessageSink(Protocol):
    """The consumer of messages, of the source's message type. A Dispatcher is one."""

    @property
    def free(self) -> int | None:
        """How many more messages it would handle at once, negative if some wait; None: any number."""

    def begin(self, on_done: Callable[[], None], on_free: Callable[[], None]) -> None:
        """A stream starts: `on_done` is called whenever a message was handled, `on_free` when `free` has changed."""

    def end(self) -> None:
        """The stream has ended."""

    def take(self, message: Any) -> None:
        """A message has arrived. Sets `is_worked_on` while it is being handled."""

    def drain(self) -> Sequence[IncomingMessage]:
        """Remove and return messages that are not being handled."""

    def lose(self, receipts: Collection[int]) -> None:
        """Leases have expired: drop the messages that are not being handled."""

    def held_by(self, tasks: Collection[asyncio.Task[Any]]) -> set[int]:
        """Receipts of the messages that these tasks handle."""

    def is_busy(self, but: Collection[asyncio.Task[Any]] = ()) -> bool:
        """Whether anything is being handled, except by these tasks."""


class Source(Protocol):
    """The source of a stream's messages, and the owner of its listeners. A Subscription is one."""

    kind: int
    """`frames.TOPIC` for a subscription, `frames.QUEUE` for a work queue."""
    name: str
    message_type: type[IncomingMessage]

    @property
    def dispatcher(self) -> MessageSink:
        """The destination of messages."""

    @property
    def link(self) -> Link:
        """The link to the broker."""

    def emit(self, event: str, *args: Any) -> None:
        """Call listeners: 'error' with the error, 'close'."""


class Session:
    """One life of a stream. Starts when it is created. Belongs to one event loop."""

    def __init__(
        self, source: Source, options: SubscriberOptions, *, is_paused: bool, on_end: Callable[[PenstockError | None], None]
    ) -> None:
        self._source = source
        self._link = source.link
        self._clock = self._link.clock
        self._now = steady(self._clock)
        self._loop = asyncio.get_running_loop()
        self._on_end = on_end
        self._options = options
        self._is_paused = is_paused
        self._consumer = f"stream-{secrets.token_hex(8)}"
        self._channels: dict[Channel, int] = {}
        """The open channels, and their numbers."""
        self._early: list[tuple[Channel, Sequence[Delivery]]] = []
        """Deliveries of channels that are still being opened."""
        self._arrived: deque[IncomingMessage] = deque()
        """Deliveries while the stream was paused."""
        self._opened: Opened | None = None
        self._is_opening = False
        """Whether delivery waits for the other streams that share the messages."""
        self._sent: Limits | None = None
        """The limits of the channels, if there is a high-water mark."""
        self._recovery = ReconnectBackoff()
        self._broken, self._changed = asyncio.Event(), asyncio.Event()
        self._opening: asyncio.Task[None]
        self._error: PenstockError | None = None
        self._failure: PenstockError | None = None
        self._holdings: HeldDeliveries[IncomingMessage]
        self._lanes: KeyLanes[IncomingMessage] | None
        """Messages with ordering keys, if several of a key may be held."""
        self._is_passing = False
        """Whether ready messages will be passed on in the next turn of the loop."""
        self._settler: Settler
        self._begin()
        self._is_fitting = False
        source.dispatcher.begin(self._changed.set, self._fit_soon)
        self._closing: asyncio.Task[None] | None = None
        self._callers: set[asyncio.Task[Any]] = set()
        """The callers that wait for the close."""
        self._timer: asyncio.TimerHandle | None = None
        self._stop_listening = self._clock.listen(self._jumped)
        self._task = self._loop.create_task(self._run(), name=f"penstock stream of {source.name}")
        self._look_after()

    # ── for the stream ───────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def in_flight(self) -> int:
        """How many messages are held."""
        return len(self._holdings)

    @property
    def is_closing(self) -> bool:
        """Whether it is ending."""
        return self._closing is not None

    def pause(self) -> None:
        """Deliver nothing until `resume`."""
        self._is_paused = True
        self._adjust()

    def resume(self) -> None:
        """Deliver again, starting with the messages that arrived meanwhile."""
        self._is_paused = False
        self._adjust()
        while self._arrived and not self._is_paused:
            self._source.dispatcher.take(self._arrived.popleft())
        self._pass_on()

    def set_options(self, options: SubscriberOptions) -> None:
        """Change the options."""
        has_streams = options.max_streams != self._options.max_streams
        self._options = options
        self._holdings.ack_deadline = micros(options.ack_deadline, "ack_deadline")
        self._settler.before_flush = None if options.high_water_mark is None else self._fit
        if self._lanes is not None:
            self._lanes.max_failures = _max_failures(options)
        self._adjust()
        self._look_after()
        if has_streams and not self.is_closing:
            self._broken.set()

    def close(self) -> None:
        """Start closing."""
        if self._closing is None:
            self._closing = self._loop.create_task(self._finish(), name=f"penstock close of {self._source.name}")
            self._adjust()
            # Messages that no handler has seen are requeued at once, without counting an attempt.
            unseen = [*self._arrived, *self._source.dispatcher.drain(), *self._waiting()]
            self._arrived.clear()
            self._settler.on_settled = None  # no message gets its turn any more
            self._settler.give_back([_unseen(message.receipt) for message in unseen])
        self._changed.set()  # `stop` may have added a caller that must not wait for itself

    async def stop(self) -> None:
        """Close, and return once it is over. A cancelled wait does not stop it; a calling handler is not waited for."""
        caller = asyncio.current_task()
        assert caller is not None, "it is awaited"
        self._callers.add(caller)
        self.close()
        assert self._closing is not None, "it has started"
        try:
            await asyncio.shield(self._closing)
        finally:
            self._callers.discard(caller)

    # ── from the link ────────────────────────────────────────────────────────────────────────────────────────────────────

    def receive(self, channel: Channel, deliveries: Sequence[Delivery]) -> None:
        """Deliveries have arrived."""
        number = self._channels.get(channel)
        if number is None or (self._early and self._lanes is not None):  # a key may arrive through several channels, in order
            self._early.append((channel, deliveries))
            return
        if self._closing is not None:
            channel.settle([], [_unseen(receipt(one.offset, one.attempt, one.epoch)) for one in deliveries], [])
            return
        self._recovery.worked()
        now, steadily = self._clock.now(), self._now()
        span = self._holdings.ack_deadline
        deadline = steadily + span
        end_at = steadily + micros(self._options.max_extension, "max_extension")
        held, opened, settler, make = self._holdings.by_receipt, channel.opened, self._settler, self._source.message_type
        take, lanes = self._source.dispatcher.take, self._lanes
        for delivery in deliveries:
            attempt = delivery.attempt
            mark = receipt(delivery.offset, attempt, delivery.epoch)
            if attempt > 1:
                # Whatever the local clock shows: the earlier delivery is over.
                held.pop(receipt(delivery.offset, attempt - 1, delivery.epoch), None)
            message = make(settler, opened, delivery, mark, now, deadline)
            message.stream, message.span, message.end_at = number, span, end_at
            held[mark] = message
            if lanes is not None and delivery.message.key and not self._has_turn(lanes, message):
                continue
            if self._is_paused:  # perhaps by the handler of the previous message
                message.is_worked_on = True
                self._arrived.append(message)
            else:
                take(message)

    def ended(self, channel: Channel, error: PenstockError | None) -> None:
        """A channel has ended."""
        self._error = self._error or error or Unavailable("the stream was ended by the broker")
        self._broken.set()
        # Channels that are being opened get a moment, so that they can be closed cleanly.
        self._loop.call_later(OPENING_SECONDS, self._opening.cancel)

    # ── opening ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _run(self) -> None:
        """Keep the channels open until the stream is closed or fails."""
        while True:
            self._broken.clear()
            self._error = None
            began = monotonic()
            self._opening = self._loop.create_task(self._open())
            try:
                await self._opening
                await self._broken.wait()
            except asyncio.CancelledError:
                if self._task.cancelling():
                    raise
            except PenstockError as error:
                self._error = error
            except Exception as error:
                log.exception("the stream of %r failed", self._source.name)
                self._error = PenstockError(f"the stream of {self._source.name!r} failed: {error!r}")
            await self._let_go(keep=self._error is None or self._error.transient)
            if self._error is None:
                continue  # the options have changed
            wait = self._recovery.failed(self._error, monotonic() - began)
            if wait is None:
                self._fail(self._error)
                return
            self._source.emit("error", self._error)
            await asyncio.sleep(wait / SECOND)

    async def _open(self) -> None:
        source = self._source
        # Other consumers may have them by now: they are redelivered, in order.
        for message in self._waiting():
            self._holdings.by_receipt.pop(message.receipt, None)
        # Also the first time, with none held: an earlier attempt may have been cut off after the server started to deliver.
        held = [*self._holdings.by_receipt, *self._settler.pending]
        streams = self._options.max_streams
        self._is_opening = streams > 1
        for number in range(streams):
            limits = self._limits()
            channel = await self._link.open(
                source.kind, source.name, self._consumer, limits, self, held=held if not number else None
            )
            try:
                self._adopt(channel, number)
            except PenstockError:
                await channel.close()
                raise
            if limits != self._limits():  # they have changed in the meantime
                channel.adjust(self._limits())
        if self._is_opening:
            self._is_opening = False
            self._adjust()

    def _adopt(self, channel: Channel, number: int) -> None:
        """Add a channel, and process its earlier deliveries."""
        opened, before = channel.opened, self._opened
        if (self._options.message_ordering or self._options.ordering_window > 1) and not opened.ordered:
            raise FailedPrecondition(
                f"{self._source.name!r} was created without message_ordering, so its messages have no order",
                hint="create it again with message_ordering=True, or open it without",
            )
        if not number:
            if before is not None and before.queue != opened.queue:
                # It was deleted and created again: held messages are gone, and must not settle new ones with the same numbers.
                self._settler.end()
                self._forget()
                self._begin()
            self._opened = opened
            self._settler.use(channel)
            if before is not None:
                self._look_after(renew=True)
        elif before is not None and before.queue != opened.queue:
            raise Unavailable(f"{self._source.name!r} was deleted and created again")
        self._channels[channel] = number
        early, self._early = self._early, []
        for one, deliveries in early:
            self.receive(one, deliveries)

    async def _let_go(self, *, keep: bool) -> None:
        """Close the channels; settlements that could not be sent are kept for new ones."""
        channels = [*self._channels]
        self._settler.let_go()
        self._channels.clear()
        self._early.clear()
        # All at once: without an answer, each takes its full timeout.
        await asyncio.gather(*(channel.close(keep=keep) for channel in channels), return_exceptions=True)
        if channels:
            self._settler.repeat(*channels[0].unconfirmed())

    def _begin(self) -> None:
        """Reset: hold nothing."""
        options = self._options
        self._holdings = HeldDeliveries(micros(options.ack_deadline, "ack_deadline"))
        self._lanes = KeyLanes(_max_failures(options)) if options.ordering_window > 1 else None
        on_settled = self._settled if self._lanes is not None else None
        self._settler = Settler(self._holdings, self._clock, self._changed.set, self._look_after, on_settled)
        self._settler.before_flush = None if options.high_water_mark is None else self._fit

    def _forget(self) -> None:
        """Drop everything that is held; it cannot be settled any more."""
        self._arrived.clear()
        self._waiting()
        self._source.dispatcher.drain()
        self._holdings.by_receipt.clear()
        self._changed.set()

    # ── closing ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _fail(self, error: PenstockError) -> None:
        """End by itself, after a fatal error."""
        self._failure = error
        self._source.emit("error", error)
        self._forget()
        self.close()

    async def _finish(self) -> None:
        try:
            if self._options.close_behavior is CloseBehavior.WAIT and self._failure is None:
                timeout = self._options.close_timeout
                with suppress(TimeoutError):
                    async with asyncio.timeout(None if timeout is None else micros(timeout, "close_timeout") / SECOND):
                        await self._until_settled()
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._settler.give_back([Nack(mark) for mark in self._holdings.by_receipt.copy()])
            await self._let_go(keep=False)
        finally:
            self._settler.end(is_gone=self._failure is not None)
            self._stop_listening()
            if self._timer is not None:
                self._timer.cancel()
            self._task.cancel()
            self._on_end(self._failure)
            self._source.dispatcher.end()
            self._source.emit("close")

    async def _until_settled(self) -> None:
        """Wait for held messages, handlers and acks, except for messages that the closing handler itself works on."""
        while self._failure is None and self._is_waited_for():
            await self._change()
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_ACKS_SECONDS):
                while self._failure is None and self._settler.pending:
                    await self._change()

    def _is_waited_for(self) -> bool:
        dispatcher, callers = self._source.dispatcher, self._callers
        return dispatcher.is_busy(callers) or not self._holdings.by_receipt.keys() <= dispatcher.held_by(callers)

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _limits(self) -> Limits:
        options = self._options
        most, free = options.max_messages, self._source.dispatcher.free
        is_bounded = options.high_water_mark is not None and free is not None
        if is_bounded:
            # Messages that are handled, that would be taken at once, and that may wait.
            most = min(most, len(self._holdings) + (free or 0) + (options.high_water_mark or 0))
        return Limits(
            max(most, 1),
            options.max_bytes,
            self._holdings.ack_deadline / SECOND,
            options.flow_control.allow_excess_messages and not is_bounded,
            most < 1 or self._is_paused or self._is_opening or self._closing is not None,
            options.ordering_window,
        )

    def _adjust(self) -> None:
        self._sent = limits = self._limits()
        for channel in self._channels:
            channel.adjust(limits)

    def _fit_soon(self) -> None:
        if self._options.high_water_mark is not None and not self._is_fitting:
            self._is_fitting = True  # once per turn: settlements and new requests of the same turn often cancel each other
            self._loop.call_soon(self._fit)

    def _fit(self) -> None:
        """Request as many messages as can be handled or may wait."""
        self._is_fitting = False
        if self._limits() != self._sent:
            self._adjust()

    def _jumped(self) -> None:
        with suppress(RuntimeError):  # the loop is closed: nothing is held any more
            self._loop.call_soon_threadsafe(self._look_after)

    def _look_after(self, *, renew: bool = False) -> None:
        """Extend leases of messages being handled, drop expired ones, and schedule the next check."""
        plan = self._holdings.plan(self._now(), may_extend=self._settler.is_connected, renew=renew)
        for span, receipts in plan.extend.items():
            self._settler.extend(receipts, span / SECOND)
        if plan.lost:
            log.debug("%d leases of %r have expired", len(plan.lost), self._source.name)
            lost = {message.receipt for message in plan.lost}
            self._lose(lost)
            if self._lanes is not None and self._closing is None:
                # Later messages of their keys must not overtake them, if the broker has not noticed yet.
                keyed = [message for message in plan.lost if message.ordering_key]
                self._settler.give_back([Nack(message.receipt) for message in keyed])
                for message in keyed:
                    self._settled(message, False)
        if self._clock.runs:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_later(plan.wait / SECOND, self._look_after)

    def _lose(self, receipts: set[int]) -> None:
        """Drop deliveries that no handler has seen and that are not leased any more."""
        self._arrived = deque(message for message in self._arrived if message.receipt not in receipts)
        self._source.dispatcher.lose(receipts)
        self._fit_soon()
        self._changed.set()

    # ── several messages of an ordering key ──────────────────────────────────────────────────────────────────────────────

    def _has_turn(self, lanes: KeyLanes[IncomingMessage], message: IncomingMessage) -> bool:
        """Whether a message may be handled now. If not, it waits, with its lease extended, or is returned."""
        message.is_worked_on = True
        is_next, returned = lanes.arrive(message)
        if returned:
            self._settler.give_back([_unseen(one.receipt) for one in returned])
            self._lose({one.receipt for one in returned})
        return is_next

    def _settled(self, message: IncomingMessage, is_done: bool) -> None:
        """A message is not held any more: the next of its key gets its turn, or the later ones of its key are returned."""
        assert self._lanes is not None, "it is called only then"
        if not message.ordering_key:
            return
        if not is_done:
            self._settler.give_back([_unseen(one.receipt) for one in self._lanes.fail(message)])
            return
        self._lanes.settle(message)
        if not self._is_passing:
            # Not from inside a call of `ack`: the next handler may call it, too.
            self._is_passing = True
            self._loop.call_soon(self._pass_on)

    def _pass_on(self) -> None:
        """Pass on the messages that are ready."""
        self._is_passing = False
        lanes = self._lanes
        while lanes is not None and not self._is_paused and (message := lanes.take_ready()) is not None:
            self._source.dispatcher.take(message)

    def _waiting(self) -> list[IncomingMessage]:
        """Remove and return the messages that wait for their turn."""
        return self._lanes.drain() if self._lanes is not None else []


def _max_failures(options: SubscriberOptions) -> int:
    """How many nacks may be in transit to the broker; `allow_excess_messages` exceeds the limit by a batch."""
    return options.max_messages + 1_000


def _unseen(mark: int) -> Nack:
    return Nack(mark, unseen=True)
