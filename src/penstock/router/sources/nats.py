"""Messages of a NATS JetStream stream, consumed by a durable pull consumer (see `nats_connection` for the URI).

poll ── a request for messages is open at the server while there are polls: messages arrive as soon as they are published
ack ─── `+ACK`, all of one turn of the loop in one write, not confirmed: see `_lost` for the consequences
nack ── `-NAK`, those of one turn in the stream's order: the server redelivers in the order in which it receives them
extend  `+WPI` restarts the lease; a longer one is a `-NAK` with a delay, which can still be acked
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from contextlib import suppress

from penstock.backoff import exponential
from penstock.clock import Clock
from penstock.durations import SECOND
from penstock.errors import PenstockError, Unavailable
from penstock.router.core.config import QueueConfig
from penstock.router.core.message import SourceMessage
from penstock.router.core.tracker import LateAcks
from penstock.router.source import QueueDepth, Source, SourceContext
from penstock.router.sources.nats_connection import NatsConnection, NoResponders, parse_address
from penstock.router.sources.nats_jetstream import (
    NANOSECONDS,
    ConsumerInfo,
    JetStream,
    Outbox,
    StreamInfo,
    clear,
    delivery_of,
    free,
    presence,
)

PULL_SECONDS = 30.0
"""How long a request for messages stays open at the server."""
HEARTBEAT_SECONDS = 2.0
"""How often the server confirms an open request while no message arrives. Only this shows that a consumer was deleted."""
SILENCE_SECONDS = 2.5 * HEARTBEAT_SECONDS
REFUSED_SECONDS = 1.0
"""How long to wait after a request was refused."""
GATHER_SECONDS = 5.0
"""How long messages that an earlier run left may take to arrive."""
STOP_SECONDS = 3.0
FLUSH_SECONDS = 5.0


def open_source(config: QueueConfig, context: SourceContext) -> Source:
    """A source for a `nats://` URI, not started."""
    return NatsSource(config, context.clock)


class NatsSource:
    """One durable consumer at one server, or at a server of a cluster."""

    def __init__(self, config: QueueConfig, clock: Clock) -> None:
        self._address = parse_address(config.uri)
        self._clock = clock
        self._ack_seconds = config.visibility_timeout
        self.lease_seconds: float | None = config.visibility_timeout
        self._loop: asyncio.AbstractEventLoop
        self._link: NatsConnection | None = None
        self._jetstream: JetStream
        self._life: asyncio.Task[None] | None = None
        self._is_stopping = False
        self._tried: asyncio.Future[PenstockError | None]
        """The result of the next attempt to reconnect."""
        self._created = ""
        """When the stream was created: another time means another stream with the same name."""

        self._subscription = b""
        self._request = b""
        self._most = 0
        """How many messages one request may ask for; 0: any number."""
        self._pull_seconds = PULL_SECONDS
        self._credit = 0
        """How many requested messages have not arrived."""
        self._is_heard = False
        """Whether anything arrived, or was requested, since the last check."""
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._buffer: list[SourceMessage] = []
        self._waiters: dict[asyncio.Future[list[SourceMessage]], int] = {}
        self._gathering = 0
        """While messages of an earlier run arrive: how many. None is delivered until they can be put in order."""
        self._gathered: asyncio.Event
        self._is_recovered = False
        self._is_polled = False
        """Whether there was a poll since the last check."""
        self._returning: asyncio.Task[None] | None = None
        """Messages without a poll are being released."""

        self._prefix = f"$JS.ACK.{self._address.stream}.{self._address.consumer}.".encode()
        self._id_prefix = f"{self._address.stream}:"
        self._open: dict[str, bytes] = {}
        """Messages that arrived and are not settled: the latest delivery of each."""
        self._outbox = Outbox(self._soon)
        self._late_acks = LateAcks()

    # ── start ────────────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def is_healthy(self) -> bool:
        return self._link is not None

    async def start(self) -> None:
        """Connect, find or create the stream and the consumer; messages of an earlier run are recovered in the background."""
        if self._life:
            return
        self._loop = asyncio.get_running_loop()
        self._gathered = asyncio.Event()
        self._tried = self._loop.create_future()
        self._is_stopping = self._is_recovered = False
        link = await self._connect()
        self._life = self._loop.create_task(self._live(link))
        self._keep()
        self._listen()

    async def stop(self) -> None:
        """Accept no more messages, release unsettled ones in the stream's order, and close."""
        life, self._life = self._life, None
        if not life:
            return
        self._is_stopping = True
        life.cancel()
        if self._returning:
            self._returning.cancel()
            self._returning = None
        for timer in self._timers.values():
            timer.cancel()
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result([])
        await asyncio.wait([life])
        self._tell(None)
        with suppress(PenstockError, ConnectionError, TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                if not self._link and (self._open or not self._outbox.is_empty):
                    await self._connect()
                if self._link:
                    await self._give_back(self._link)
        if link := self._link:
            self._link = None
            link.on_lost = _nothing
            await link.close()
        self._buffer.clear()
        self._open.clear()

    async def _give_back(self, link: NatsConnection) -> None:
        link.unsubscribe(self._subscription)
        await link.ping()  # messages on their way have arrived now
        for reply in self._open.values():
            self._outbox.nak(reply)
        self._open.clear()
        self._send()
        await self._jetstream.settle()

    async def _connect(self) -> NatsConnection:
        """A connection on which the consumer was found. Settlements made meanwhile are sent."""
        link = await NatsConnection.connect(self._address, "penstock-router")
        try:
            self._jetstream = JetStream(link, self._address)
            stream = await self._jetstream.stream()
            consumer = await self._jetstream.consumer(self._ack_seconds)
            await clear(link, self._jetstream, self._address, consumer)
            self._forget(stream)
            self._prepare(link, consumer)
            if not link.is_open:
                raise Unavailable(f"the connection to NATS at {self._address!r} is lost: {link.problem}")
        except ConnectionError as error:
            raise Unavailable(f"the connection to NATS at {self._address!r} is lost: {error}") from None
        except BaseException:
            link.abort()
            raise
        link.on_lost = self._lost
        link.on_read = self._serve
        self._link = link
        self._send()
        if self._is_recovered:
            self._announce(link)
            self._ask()
        return link

    def _prepare(self, link: NatsConnection, consumer: ConsumerInfo) -> None:
        self.lease_seconds = consumer.lease_seconds
        self._most = consumer.config.max_batch
        self._pull_seconds = min(PULL_SECONDS, (consumer.config.max_expires or NANOSECONDS << 20) / NANOSECONDS)
        self._credit = 0
        inbox = f"_INBOX.{secrets.token_hex(12)}"
        self._subscription = link.subscribe(inbox, self._arrived)
        self._request = f"PUB $JS.API.CONSUMER.MSG.NEXT.{self._address.stream}.{self._address.consumer} {inbox} ".encode()

    async def _live(self, link: NatsConnection) -> None:
        """Watch the connection until the source is stopped."""
        while True:
            if not self._is_recovered:
                try:
                    await self._recover(link)
                except (PenstockError, ConnectionError, TimeoutError, NoResponders) as error:
                    link.abort(str(error))
            await link.ended.wait()
            failures = 0
            while True:
                try:
                    link = await self._connect()
                except PenstockError as error:
                    self._tell(error)
                    failures += 1
                    await asyncio.sleep(exponential(failures, SECOND // 20, 2 * SECOND) / SECOND)
                else:
                    self._tell(None)
                    break

    def _tell(self, error: PenstockError | None) -> None:
        self._tried.set_result(error)
        self._tried = self._loop.create_future()

    async def _recover(self, link: NatsConnection) -> None:
        """Have messages of an earlier run delivered before all others, and put them in order."""
        self._buffer.clear()  # from a connection that was lost meanwhile: they are redelivered
        self._open.clear()
        if count := await free(link, self._jetstream, self._address):
            self._gathering = count
            self._gathered.clear()
            try:
                self._pull(count, min(GATHER_SECONDS, self._pull_seconds))
                with suppress(TimeoutError):
                    async with asyncio.timeout(GATHER_SECONDS + REFUSED_SECONDS):
                        await self._gathered.wait()
            finally:
                self._gathering = 0
            if not link.is_open:
                return
            self._buffer.sort(key=_place)
        self._is_recovered = True
        self._announce(link)
        self._serve()

    def _announce(self, link: NatsConnection) -> None:
        """Answer other routers of this consumer that this one is alive."""

        def answer(_subject: bytes, reply: bytes, _header: bytes, _body: bytes) -> None:
            if reply:
                link.write(b"PUB %b 0\r\n\r\n" % reply)

        link.subscribe(presence(self._address), answer)

    def _lost(self) -> None:
        """The connection ended. Acks that the server may not have received, or may forget, are in doubt: see `LateAcks`."""
        problem = self._link.problem if self._link else ""
        self._link = None
        self._credit = 0
        self._gathered.set()
        now = self._clock.now()
        for key in self._outbox.unconfirmed_acks():
            self._late_acks.add(key, now)
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(Unavailable(f"the connection to NATS at {self._address!r} is lost: {problem}"))
        self._waiters.clear()

    def _forget(self, stream: StreamInfo) -> None:
        """Drop messages of a stream that was deleted, or of an end that the server has lost: their numbers are used again."""
        last = stream.state.last_seq if stream.created == self._created else -1
        if self._created:
            self._open = {key: reply for key, reply in self._open.items() if delivery_of(reply).sequence <= last}
            self._buffer = [received for received in self._buffer if received.broker_id in self._open]
            self._outbox.forget_after(last)
        self._created = stream.created

    # ── delivering ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def poll(self, want: int, wait: float) -> Sequence[SourceMessage]:
        """Up to `want` messages in the stream's order, as soon as there is one; nothing after `wait` seconds."""
        if not self._life:
            return []
        if not self._link:
            await self._connected(wait)
            if self._is_stopping:
                return []
        if self._buffer and self._is_recovered:
            self._is_polled = True
            return self._take(want)
        waiter: asyncio.Future[list[SourceMessage]] = self._loop.create_future()
        self._waiters[waiter] = want
        self._is_polled = True
        self._ask()
        timer = self._loop.call_later(wait, _end, waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and not waiter.exception():
                # The caller did not get them. Several polls may be cancelled at once, and each puts back its share.
                self._buffer = sorted([*waiter.result(), *self._buffer], key=_place)
            raise
        finally:
            timer.cancel()
            self._waiters.pop(waiter, None)

    async def _connected(self, wait: float) -> None:
        """Wait for the next attempt to reconnect, which continues by itself."""
        problem: PenstockError | None = None
        with suppress(TimeoutError):
            async with asyncio.timeout(wait):
                problem = await asyncio.shield(self._tried)
        if not self._link and not self._is_stopping:
            raise Unavailable(str(problem) if problem else f"no connection to NATS at {self._address!r}") from problem

    def _take(self, want: int) -> list[SourceMessage]:
        taken = self._buffer[:want]
        del self._buffer[:want]
        return taken

    def _ask(self) -> None:
        """Request enough messages for all waiting polls; a small difference is not worth a request."""
        want = sum(self._waiters.values())
        if self._link and self._is_recovered and not self._returning and self._credit * 2 <= want > 0:
            self._pull(want - self._credit, self._pull_seconds)

    def _pull(self, count: int, seconds: float) -> None:
        assert self._link
        self._is_heard = True
        self._credit += count
        heartbeat = min(HEARTBEAT_SECONDS, seconds / 4)
        while count > 0:
            batch = min(count, self._most or count)
            body = b'{"batch":%d,"expires":%d,"idle_heartbeat":%d}' % (batch, seconds * NANOSECONDS, heartbeat * NANOSECONDS)
            self._link.write(b"%b%d\r\n%b\r\n" % (self._request, len(body), body))
            count -= batch

    def _ended(self, count: int) -> None:
        """This many requested messages will not arrive."""
        self._credit = max(0, self._credit - count)
        self._serve()

    def _arrived(self, _subject: bytes, reply: bytes, header: bytes, body: bytes) -> None:
        if not reply:
            self._status_received(header)
            return
        self._is_heard = True
        self._credit -= 1
        if reply.startswith(self._prefix):
            count, sequence, _ = reply[len(self._prefix) :].split(b".", 2)
        else:  # the longer form, with domain and account
            count, sequence = reply.split(b".")[6:8]
        broker_id = self._id_prefix + sequence.decode()
        self._open[broker_id] = reply
        received = SourceMessage(broker_id, body, reply, int(count))
        if self._late_acks and self._late_acks.take(delivery_of(reply).key):
            self.ack(received)
        else:
            self._buffer.append(received)

    def _status_received(self, header: bytes) -> None:
        """A status of a request: usually that it has ended."""
        self._is_heard = True
        line, *fields = header.decode(errors="replace").split("\r\n")
        status = line[9:12]
        if status == "100":
            return  # a heartbeat
        if status == "503" or "Deleted" in line:
            if self._link:
                self._link.abort(f"the consumer is gone: {line[9:]}")
            return
        for field in fields:
            name, _, value = field.partition(":")
            if name.lower() == "nats-pending-messages":
                self._ended(int(value))
                return
        # A whole request was refused, because there are too many, or it is too large: do not repeat it at once.
        self._timers["refused"] = self._loop.call_later(REFUSED_SECONDS, self._ended, self._credit)

    def _serve(self) -> None:
        """Pass arrived messages to waiting polls; request more if some still wait."""
        waiters = self._waiters
        if not self._is_recovered:
            if self._gathering and (len(self._buffer) >= self._gathering or not self._credit):
                self._gathered.set()
            return
        while self._buffer and waiters:
            waiter = next(iter(waiters))
            want = waiters.pop(waiter)
            if not waiter.done():
                waiter.set_result(self._take(want))
        if waiters:
            self._ask()

    def _keep(self) -> None:
        """Extend the leases of messages that no poll has taken yet; release them if polling has stopped."""
        if self._is_polled or self._credit or not self._is_recovered:
            for received in self._buffer:
                self._outbox.extend(received.receipt)
        elif self._buffer:
            for received in self._buffer:
                self.nack(received, 0)
            self._buffer.clear()
            self._returning = self._loop.create_task(self._return())
        self._is_polled = bool(self._waiters)
        self._timers["keep"] = self._loop.call_later(max((self.lease_seconds or 0) / 3, 0.1), self._keep)

    async def _return(self) -> None:
        """Request nothing before the consumer has processed its commands: it would deliver later messages first."""
        await self.flush()
        self._returning = None
        self._ask()

    def _listen(self) -> None:
        """Abort a connection on which messages were requested, and not even heartbeats arrived."""
        if self._link and self._credit and not self._is_heard:
            self._link.abort("requests for messages are not answered: the consumer may be gone")
        self._is_heard = False
        self._timers["listen"] = self._loop.call_later(SILENCE_SECONDS, self._listen)

    # ── settling ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def ack(self, received: SourceMessage) -> None:
        reply = self._open.get(received.broker_id)
        # An older delivery of this message is accepted, but not a message of another stream with the same name and number.
        if reply and (reply is received.receipt or delivery_of(reply).key == delivery_of(received.receipt).key):
            del self._open[received.broker_id]
            self._outbox.ack(reply)

    def nack(self, received: SourceMessage, delay: int) -> None:
        """Redeliver the message after this many seconds; 0: at once, before new messages."""
        if self._open.get(received.broker_id) == received.receipt:
            del self._open[received.broker_id]
            self._outbox.nak(received.receipt, delay)

    def extend(self, received: SourceMessage, seconds: int) -> None:
        """The message is still being processed: its lease runs for this many seconds from now, or longer."""
        if self._open.get(received.broker_id) == received.receipt:
            is_longer = self.lease_seconds is not None and seconds > self.lease_seconds
            self._outbox.extend(received.receipt, seconds if is_longer else 0)

    def set_lease(self, seconds: int) -> None:
        """Only for a consumer that has to be created: an existing one has its own lease setting."""
        self._ack_seconds = seconds

    async def flush(self) -> None:
        """Return when all settlements so far are carried out, or given up."""
        with suppress(PenstockError, ConnectionError, TimeoutError):
            async with asyncio.timeout(FLUSH_SECONDS):
                if self._life and not self._link:
                    await asyncio.shield(self._tried)
                if self._link:
                    self._send()
                    await self._jetstream.settle()

    async def send(self, body: bytes, group: str) -> str:
        """Put a message into the stream; returns its id here. The group is in the body; the stream has one order for all."""
        if not self._link:
            raise Unavailable(f"no connection to NATS at {self._address!r}")
        return f"{self._id_prefix}{await self._jetstream.publish(body)}"

    async def depth(self) -> QueueDepth | None:
        """The number of messages for this consumer."""
        if not self._link:
            return None
        info = await self._jetstream.info()
        return QueueDepth(info.num_pending, info.num_ack_pending)

    def _soon(self) -> None:
        self._loop.call_soon(self._send)

    def _send(self) -> None:
        """Write the settlements since the last time at once. Without a connection they wait for the next."""
        if self._link and (commands := self._outbox.take()):
            self._link.write(commands)


def _end(waiter: asyncio.Future[list[SourceMessage]]) -> None:
    if not waiter.done():
        waiter.set_result([])


def _place(received: SourceMessage) -> int:
    return delivery_of(received.receipt).sequence


def _nothing() -> None:
    """The source is stopped: nothing to do."""
