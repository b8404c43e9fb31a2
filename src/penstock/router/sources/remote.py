"""The queues of a Penstock server as sources of a router: one stream of deliveries for each queue, over the native protocol.

A poll asks the server for the messages it needs and for the same number again, so that the next poll finds its messages here.
Messages that no poll takes soon are returned, uncounted: they must not stay here until their lease ends. All of them are also
returned if an earlier message returns to its place. Acks, nacks and extensions of one turn of the loop are sent together, and
the server reports which were too late; those of a lost connection are sent again on the next one. A server that crashed may have
forgotten the last acks that it confirmed: messages that were acked just before are not delivered again.

    closed ──start──> open ──the connection or the stream ends──> lost ──poll, or something to settle──> open
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from penstock.client.link import Channel, Delivery, created
from penstock.client.links.remote import RemoteLink
from penstock.clock import monotonic
from penstock.durations import SECOND
from penstock.errors import FailedPrecondition, PenstockError, ServerUnreachable, Unavailable
from penstock.ids import message_id
from penstock.router.core.config import QueueConfig
from penstock.router.core.message import SourceMessage
from penstock.router.core.tracker import LateAcks
from penstock.router.source import QueueDepth, Source
from penstock.router.sources.local import MAX_ERROR, consumer_name
from penstock.router.sources.penstock import Kind
from penstock.values.policy import ROUTER_QUEUE
from penstock.values.queue import NewMessage
from penstock.wire import frames
from penstock.wire.frames import Limits, Nack
from penstock.wire.operations import Operations

log = logging.getLogger("penstock.router")

MAX_BYTES = 16 * 1024 * 1024
"""The limit of buffered messages for the next poll, in bytes; one message may exceed it."""
GIVE_UP_SECONDS = 5.0
"""How long a poll tries to connect before it fails."""
RETRY_SECONDS = 0.5
STOP_SECONDS = 5.0
UNCONFIRMED_SECONDS = 10
"""For how long a crash of the server may undo a confirmed ack: far more than it takes to be on disk."""


class ServerQueues:
    """The queues of Penstock servers (`RemoteQueues`)."""

    def open(self, server: str, kind: Kind, name: str, config: QueueConfig, environment: Mapping[str, str]) -> Source:

        def link() -> RemoteLink:
            token, project = environment.get("PENSTOCK_TOKEN") or None, environment.get("PENSTOCK_PROJECT") or None
            return RemoteLink(server, token=token, project=project, give_up_seconds=GIVE_UP_SECONDS)

        link()  # an invalid address is refused here
        return (RemoteSource if kind is Kind.SUBSCRIPTION else RemoteQueueSource)(link, kind, name, config)


class RemoteSource:
    """A subscription at a server, and the base of a work queue. It is the receiver of its own stream."""

    def __init__(self, link: Callable[[], RemoteLink], kind: Kind, name: str, config: QueueConfig) -> None:
        self.lease_seconds: float | None = config.visibility_timeout
        self._make_link = link
        self._link: RemoteLink | None = None
        """Set from start to stop."""
        self._kind, self._name = frames.TOPIC if kind is Kind.SUBSCRIPTION else frames.QUEUE, name
        self._lease = config.visibility_timeout
        self._consumer = consumer_name(config)
        self._channel: Channel | None = None
        self._opening = asyncio.Lock()
        self._came: deque[SourceMessage] = deque()
        """Messages for the next poll."""
        self._since = 0
        """When the oldest of them arrived."""
        self._held: dict[int, SourceMessage] = {}
        """Delivered messages by offset: the latest delivery of each."""
        self._parked: dict[int, tuple[int, int]] = {}
        """Messages that were nacked with a delay, by offset: the delivery, and the end of its lease. A message that has to wait
        is not nacked at the server, so that it returns to its place if this router restarts and knows nothing of it."""
        self._settling = 0
        """How many deliveries are settled here but not yet reported to the server."""
        self._wanted: deque[asyncio.Future[None]] = deque()
        self._want = 0
        """How many messages the waiting polls need in total."""
        self._ahead = 0
        """How many messages may be buffered for polls to come."""
        self._room = 0
        """The limit of deliveries that the server knows."""
        self._acks: list[int] = []
        self._nacks: dict[int, Nack] = {}
        self._deadlines: dict[int, list[int]] = {}
        self._ids: dict[int, str] = {}
        """The message ids of acks that have not been confirmed."""
        self._teller: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._late_acks = LateAcks()
        self._recent: deque[tuple[int, list[str]]] = deque()
        """When the server confirmed which acks, kept for a while."""
        self._is_returning = False
        """A message returns to its place: what the server sent before it learned of that is out of order."""

    # ── start ────────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        """Connect, find the queue, and release the messages of an earlier run."""
        if self._link is not None:
            return
        link = self._make_link()
        try:
            await link.start()
            await self._make(link)
            self._link = link
            await self._open(link)
        except BaseException:
            self._link = None
            await link.close()
            raise

    async def stop(self) -> None:
        """Send the settlements, and close the stream: the server releases the rest at once."""
        link, self._link = self._link, None
        if link is None:
            return
        self._wake()
        if self._timer is not None:
            self._timer.cancel()
        if self._teller is not None:
            self._teller.cancel()
            await asyncio.wait([self._teller])
        with suppress(PenstockError, TimeoutError):  # what cannot be sent is redelivered
            async with asyncio.timeout(STOP_SECONDS):
                if self._channel is None and (self._acks or self._nacks):
                    await self._open(link)
                channel, self._channel = self._channel, None
                if channel is not None:
                    await self._tell(channel)
                    await channel.close()
        self._channel = None
        await link.close()

    @property
    def is_healthy(self) -> bool:
        return self._channel is not None

    async def poll(self, want: int, wait: float) -> Sequence[SourceMessage]:
        until = monotonic() + int(wait * SECOND)
        while self._link is not None:
            await self._connected()
            if self._came:
                return self._handed_out(want)
            left = max(until - monotonic(), 0)
            if not left and self._room >= self._out() + want:
                break  # the server was asked, and has no messages
            await self._arrival(want, max(left / SECOND, 0.05))
            if not left and not self._came:
                break
        return ()

    # ── settling ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def ack(self, received: SourceMessage) -> None:
        """The message is finished, whichever of its deliveries this is."""
        held = self._held.pop(frames.offset_of(received.receipt), None)
        if held is not None:
            self._acks.append(held.receipt)
            self._ids[held.receipt] = held.broker_id
            self._settling += 1
            if self._channel is None:
                self._late_acks.add(held.broker_id, monotonic())
            self._soon()

    def nack(self, received: SourceMessage, delay: int) -> None:
        """Requeue the message. Without a delay it was not tried, so no attempt is counted."""
        if self._holds(received):
            offset = frames.offset_of(received.receipt)
            receipt: int = self._held.pop(offset).receipt
            if delay:
                self._park(offset, receipt, delay)
            else:
                self._nacks[receipt] = Nack(receipt, unseen=True)
                self._settling += 1
                self._return_unseen()
            self._soon()

    def extend(self, received: SourceMessage, seconds: int) -> None:
        if self._holds(received):
            self._deadlines.setdefault(seconds, []).append(received.receipt)
            self._soon()

    def set_lease(self, seconds: int) -> None:
        """Use another deadline for messages that the server sends from now on."""
        self.lease_seconds, self._lease = seconds, seconds
        if self._channel is not None:
            self._channel.adjust(self._limits(self._room))

    async def flush(self) -> None:
        """Return when the server has received all settlements."""
        while (teller := self._teller) is not None and not teller.done():
            await asyncio.wait([teller])

    async def depth(self) -> QueueDepth | None:
        """The depth of the queue, including messages buffered here that no poll has taken."""
        link = self._link
        if link is None:
            return None
        if self._kind == frames.QUEUE:
            work = await link.call(Operations.queue_stats, self._name)
            ready, hidden = work.depth, work.in_flight + work.delayed
        else:
            stats = await link.call(Operations.subscription_stats, self._name)
            ready, hidden = stats.ready, stats.in_flight + stats.delayed
        return QueueDepth(ready + len(self._came), hidden - len(self._came))

    # ── as a receiver ────────────────────────────────────────────────────────────────────────────────────────────────────

    def receive(self, channel: Channel, deliveries: Sequence[Delivery]) -> None:
        stream = channel.opened.stream
        if not self._came:
            self._since = monotonic()
        for delivery in deliveries:
            message = delivery.message
            self._parked.pop(delivery.offset, None)
            self._came.append(
                SourceMessage(
                    message_id(message.publish_at, stream, delivery.offset),
                    message.data,
                    frames.receipt(delivery.offset, delivery.attempt, delivery.epoch),
                    delivery.attempt,
                )
            )
        if len(self._late_acks):
            self._without_settled()
        if self._is_returning:
            self._return_unseen()
            self._soon()
            return
        self._wake()
        self._watch()

    def ended(self, channel: Channel, error: PenstockError | None) -> None:
        """The stream has ended: messages that were not delivered are redelivered on the next one."""
        if channel is self._channel:
            self._channel = None
            self._came.clear()
            self._room = 0
            self._is_returning = False  # pending settlements are sent before new messages are requested
            self._recent.append((monotonic(), [*self._ids.values()]))
            for at, ids in self._recent:
                for one in ids:
                    self._late_acks.add(one, at)
            self._recent.clear()
            self._wake()
            if self._link is not None and (self._acks or self._nacks or self._deadlines):
                self._soon()

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _make(self, link: RemoteLink) -> None:
        """Create the queue if needed. Not for a subscription: it needs a topic."""

    def _out(self) -> int:
        """How many deliveries the server counts for us, as far as is known here."""
        return len(self._held) + len(self._came) + len(self._parked) + self._settling

    async def _connected(self) -> Channel | None:
        """The stream, reopened if it was lost; None if the source is stopped meanwhile."""
        async with self._opening:
            if self._channel is None and self._link is not None:
                await self._open(self._link)
            return self._channel

    async def _open(self, link: RemoteLink) -> None:
        # Other messages that the server believes to be here are released at once: they never arrived, or only in an earlier run.
        here = [received.receipt for received in self._held.values()]
        held = [*here, *(receipt for receipt, _ in self._parked.values()), *self._acks, *self._nacks]
        limits = self._limits(len(held))
        try:
            self._channel = await link.open(self._kind, self._name, self._consumer, limits, self, held=held)
        except ServerUnreachable as error:
            raise Unavailable(str(error)) from None
        self._settling = len(self._acks) + len(self._nacks)
        self._room = limits.max_messages
        self._ask()

    def _limits(self, room: int) -> Limits:
        return Limits(max(room, 1), 1 << 40, self._lease, is_paused=room <= 0)

    def _ask(self) -> None:
        wanted = self._want + self._ahead - len(self._came)
        room = self._out() + max(wanted, 0)
        if self._channel is not None and not self._is_returning and room != self._room:
            self._room = room
            self._channel.adjust(self._limits(room))

    async def _arrival(self, want: int, seconds: float) -> None:
        """Return when messages arrived, the stream ended, or the time is over."""
        arrived: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._wanted.append(arrived)
        self._want += want
        self._ahead = max(self._ahead, want)
        self._ask()
        try:
            await asyncio.wait([arrived], timeout=seconds)
        finally:
            self._want -= want
            with suppress(ValueError):
                self._wanted.remove(arrived)

    def _wake(self) -> None:
        while self._wanted:
            arrived = self._wanted.popleft()
            if not arrived.done():
                arrived.set_result(None)

    def _handed_out(self, want: int) -> list[SourceMessage]:
        found = [self._came.popleft() for _ in range(min(want, len(self._came)))]
        for received in found:
            self._held[frames.offset_of(received.receipt)] = received
        if self._since < monotonic() - self._lease * SECOND // 8:
            for received in found:  # the lease starts now, not when the message arrived
                self.extend(received, self._lease)
        self._ahead = max(self._ahead, want)
        self._ask()
        return found

    def _park(self, offset: int, receipt: int, delay: int) -> None:
        """Have the server hold a delivery until its delay is over."""
        now = monotonic()
        while self._parked and next(iter(self._parked.values()))[1] < now:
            del self._parked[next(iter(self._parked))]  # it was not redelivered: another consumer has it, or it was removed
        self._parked[offset] = receipt, now + (delay + self._lease) * SECOND
        self._deadlines.setdefault(delay, []).append(receipt)

    def _holds(self, received: SourceMessage) -> bool:
        """Whether this is the latest delivery of a message that is delivered."""
        held = self._held.get(frames.offset_of(received.receipt))
        return held is not None and held.receipt == received.receipt

    def _without_settled(self) -> None:
        """Ack messages again that were redelivered although they are finished."""
        came, self._came = self._came, deque()
        for received in came:
            if self._late_acks.take(received.broker_id):
                self._held[frames.offset_of(received.receipt)] = received
                self.ack(received)
            else:
                self._came.append(received)

    def _watch(self) -> None:
        """Release messages that no poll takes."""
        if self._came and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._lease / 4, self._release_idle)

    def _release_idle(self) -> None:
        self._timer = None
        if self._link is None or not self._came:
            return
        if monotonic() - self._since < self._lease * SECOND // 4:
            self._watch()
            return
        self._return_unseen()
        self._soon()

    def _return_unseen(self) -> None:
        """Release messages that were not delivered, and accept no more before the server has processed that."""
        self._is_returning, self._ahead = True, 0
        self._settling += len(self._came)
        self._nacks.update({one.receipt: Nack(one.receipt, unseen=True) for one in self._came})
        self._came.clear()
        if self._channel is not None and self._room:
            self._room = 0
            self._channel.adjust(self._limits(0))

    def _soon(self) -> None:
        if self._teller is None or self._teller.done():
            self._teller = asyncio.get_running_loop().create_task(self._run(), name=f"settling for {self._consumer}")

    async def _run(self) -> None:
        """Send settlements until the server has received all."""
        while self._acks or self._nacks or self._deadlines:
            try:
                channel = await self._connected()
                if channel is None:
                    return
                await self._tell(channel)
            except Unavailable as error:
                log.debug("what was settled waits for the server: %s", error)
                await asyncio.sleep(RETRY_SECONDS)
            except PenstockError as error:
                log.warning("the queue %r cannot be settled: %s", self._name, error)
                await asyncio.sleep(RETRY_SECONDS)

    async def _tell(self, channel: Channel) -> None:
        acks, nacks, deadlines = self._acks, self._nacks, self._deadlines
        if not acks and not nacks and not deadlines:
            return
        self._acks, self._nacks, self._deadlines = [], {}, {}
        self._settling = 0
        self._ask()  # in the same turn: the server must not fill the new room beyond what is needed
        try:
            failed = await channel.confirm(acks, [*nacks.values()], [(receipts, span) for span, receipts in deadlines.items()])
        except BaseException:
            # A lost extension is not sent again: the router repeats it. Lost settlements are sent again.
            self._acks, self._nacks = acks + self._acks, nacks | self._nacks
            self._settling = len(self._acks) + len(self._nacks)
            raise
        self._confirmed(acks, set(failed), monotonic())
        if not self._nacks:
            self._is_returning = False
        self._ask()

    def _confirmed(self, acks: list[int], late: set[int], now: int) -> None:
        ids = [self._ids.pop(receipt) for receipt in acks]
        for receipt, name in zip(acks, ids, strict=True) if late else ():
            if receipt in late:
                self._late_acks.add(name, now)
        if late:
            self._without_settled()
        if ids:
            self._recent.append((now, ids))
        while self._recent and self._recent[0][0] < now - UNCONFIRMED_SECONDS * SECOND:
            self._recent.popleft()


class RemoteQueueSource(RemoteSource):
    """A work queue at a server, which has its own dead letters."""

    async def send(self, body: bytes, group: str) -> str:
        """Put a message on the queue. The group is in the body; the queue has one order for all groups."""
        if self._link is None:
            raise Unavailable(f"the source of the queue {self._name!r} is not started")
        try:
            return (await self._link.enqueue(self._name, [NewMessage(body)]))[0]
        except ServerUnreachable as error:
            raise Unavailable(str(error)) from None

    async def dead_letter(self, received: SourceMessage, reason: str, error: str, attempts: int) -> None:
        """Move the message to the queue's dead letters; the error text has the reason and the attempts of this router."""
        channel, receipt = await self._connected(), received.receipt
        if channel is None or not self._holds(received):
            raise FailedPrecondition(f"the message {received.broker_id} is not held any more: it is redelivered")
        told = f"{reason} after {attempts} attempts" if attempts > 1 else reason
        text = f"{told}: {error}" if error else told
        if await channel.confirm([], [Nack(receipt, requeue=False, error=text[:MAX_ERROR])], []):
            raise FailedPrecondition(f"the message {received.broker_id} is not held any more: it is redelivered")
        self._held.pop(frames.offset_of(receipt), None)

    async def _make(self, link: RemoteLink) -> None:
        await created(link.call(Operations.create_queue, self._name, ROUTER_QUEUE), exist_ok=True)
