"""The part of JetStream that a router uses: requests, settling of deliveries, and recovery when a router starts.

`JetStream` finds or creates the stream and its pull consumer, and reads their state. `Outbox` collects acks and nacks, sends
them together, and knows which of them are in doubt after a lost connection.

`free` makes messages that an earlier run of a router left unsettled come first. JetStream redelivers such messages only when
their leases end, and delivers newer ones meanwhile. But it accepts a `-NAK` from any client that names the message, ignores it
for a message that is not delivered, and puts the others into the list that is delivered before anything new. So a router that
starts and is alone sends `-NAK` for everything between the oldest unacked message and the newest delivered one, in ascending
order. A message that was nacked with a delay also comes earlier: after a start, order is more important than the delay.

A router is alone if no other router of the same consumer answers, because the subject that each of them subscribes to has no
subscriber, and no request for messages is waiting. If there is a subscriber that does not answer (its machine failed, and the
server has not noticed yet), the router waits for the leases instead.

A server that was killed may remember a message as delivered that was acked and deleted. Such a message is never redelivered and
never ends, and the server pauses for a moment each time that its lease ends. `clear` acks messages that no longer exist: this is
always safe.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any, NoReturn, TypeVar

import msgspec

from penstock.errors import FailedPrecondition, Unavailable
from penstock.router.sources.nats_connection import NatsAddress, NatsConnection, NoResponders

NANOSECONDS = 1_000_000_000
SETTLE_SECONDS = 2.0
MAX_ACK_PENDING = 50_000
"""The limit of unsettled deliveries of a consumer that is created here."""

_CONSUMER_MISSING = 10_014
_STREAM_MISSING = 10_059
_DISABLED = {10_039, 10_076}
_UNAVAILABLE = 503
_NO_MESSAGE = 1 << 62
_ANY_WORD = "router"
"""A wildcard for one word of a subject."""


class _Error(msgspec.Struct):
    code: int = 0
    err_code: int = 0
    description: str = ""


class _Failed(Exception):
    def __init__(self, error: _Error) -> None:
        super().__init__(error.description)
        self.error = error


class Position(msgspec.Struct, frozen=True):
    """A position in the consumer's deliveries, and in the stream's messages."""

    consumer_seq: int = 0
    stream_seq: int = 0


class ConsumerSettings(msgspec.Struct, frozen=True):
    """The settings of a consumer. Durations are nanoseconds."""

    ack_policy: str = "none"
    ack_wait: int = 0
    backoff: tuple[int, ...] = ()
    deliver_subject: str = ""
    filter_subject: str = ""
    max_batch: int = 0
    max_expires: int = 0


class ConsumerInfo(msgspec.Struct, frozen=True):
    """The present state of a consumer."""

    config: ConsumerSettings
    delivered: Position
    ack_floor: Position
    num_ack_pending: int = 0
    num_pending: int = 0
    num_waiting: int = 0

    @property
    def lease_seconds(self) -> float:
        """How long a lease lasts: the first one, if that changes from one delivery to the next."""
        return min(self.config.backoff, default=self.config.ack_wait) / NANOSECONDS


class StreamState(msgspec.Struct, frozen=True):
    """The messages of a stream."""

    first_seq: int = 0
    last_seq: int = 0
    deleted: tuple[int, ...] | None = None
    """The numbers between them that were deleted, if requested."""


class StreamSettings(msgspec.Struct, frozen=True):
    """The settings of a stream."""

    subjects: tuple[str, ...] = ()


class StreamInfo(msgspec.Struct, frozen=True):
    """The present state of a stream."""

    created: str
    state: StreamState
    config: StreamSettings = StreamSettings()


class _Stored(msgspec.Struct):
    """The place of a published message."""

    stream: str
    seq: int


class _Answer(msgspec.Struct):
    error: _Error | None = None


_failure = msgspec.json.Decoder(_Answer)
_consumer = msgspec.json.Decoder(ConsumerInfo)
_stream = msgspec.json.Decoder(StreamInfo)
_stored = msgspec.json.Decoder(_Stored)
_T = TypeVar("_T")


class JetStream:
    """JetStream at one server, for one stream and one consumer.

    Unavailable if it does not answer now; FailedPrecondition if the stream or the consumer cannot be used in its present state.
    """

    def __init__(self, link: NatsConnection, address: NatsAddress) -> None:
        self._link = link
        self._address = address
        self._place = f"{address.stream}.{address.consumer}"
        self._subject = ""
        """The subject to publish messages for the consumer to; "" if not known yet."""

    async def stream(self) -> StreamInfo:
        """The stream; it is created if it is missing and the URI has a subject for it."""
        try:
            return await self._ask(_stream, f"STREAM.INFO.{self._address.stream}")
        except _Failed as failed:
            if failed.error.err_code != _STREAM_MISSING:
                self._refuse(failed)
        if not self._address.subject:
            raise FailedPrecondition(
                f"NATS has no stream {self._address.stream!r} ({self._address!r})",
                hint="create it, or have it made: write ?subject=SUBJECT at the end of the queue's URI",
            )
        wanted = {
            "name": self._address.stream,
            "subjects": [self._address.subject],
            "retention": "workqueue",
            "storage": "file",
            "num_replicas": 1,
        }
        try:
            return await self._ask(_stream, f"STREAM.CREATE.{self._address.stream}", wanted)
        except _Failed as failed:
            self._refuse(failed)

    async def holes(self) -> StreamState:
        """The state of the stream, with the numbers of deleted messages."""
        try:
            return (await self._ask(_stream, f"STREAM.INFO.{self._address.stream}", {"deleted_details": True})).state
        except _Failed as failed:
            self._refuse(failed)

    async def consumer(self, ack_seconds: int) -> ConsumerInfo:
        """The consumer; it is created if it is missing, with leases of this many seconds."""
        try:
            found = await self._info()
        except _Failed as failed:
            if failed.error.err_code != _CONSUMER_MISSING:
                self._refuse(failed)
            found = await self._create(ack_seconds)
        settings = found.config
        if settings.deliver_subject or settings.ack_policy != "explicit":
            kind = f"delivers to {settings.deliver_subject!r}" if settings.deliver_subject else f"acks {settings.ack_policy!r}"
            raise FailedPrecondition(
                f"the consumer {self._address.consumer!r} of NATS ({self._address!r}) {kind}",
                hint="a router needs a pull consumer with ack policy explicit; name another one, it is made when it is missing",
            )
        return found

    async def info(self) -> ConsumerInfo:
        try:
            return await self._info()
        except _Failed as failed:
            self._refuse(failed)

    async def _open_subject(self) -> str:
        found = self._address.subject or (await self.info()).config.filter_subject
        if not found:
            found = next(iter((await self.stream()).config.subjects), "")
        if not found:
            raise FailedPrecondition(f"the stream {self._address.stream!r} of NATS ({self._address!r}) takes no messages itself")
        return ".".join(_ANY_WORD if word in {"*", ">"} else word for word in found.split("."))

    async def publish(self, body: bytes) -> int:
        """Put a message into the stream, for the consumer; returns its number there when it is stored safely."""
        subject = self._subject = self._subject or await self._open_subject()
        try:
            stored = await self._request(_stored, subject, body)
        except _Failed as failed:
            self._refuse(failed)
        if stored.stream != self._address.stream:
            raise FailedPrecondition(f"what is published to {subject!r} goes to another stream of NATS, {stored.stream!r}")
        return stored.seq

    async def settle(self) -> None:
        """Return when the consumer has processed every answer to a message that was written so far.

        The server processes those in a list of their own, in order, so a PONG would not prove it. This sends a request about a
        message that does not exist. If the server does not answer, but is alive, that counts as processed.
        """
        try:
            await self._link.request(f"$JS.ACK.{self._place}.1.{_NO_MESSAGE}.1.0.0", b"+WPI", seconds=SETTLE_SECONDS)
        except (TimeoutError, NoResponders, PermissionError):
            await self._link.ping()

    async def _info(self) -> ConsumerInfo:
        return await self._ask(_consumer, f"CONSUMER.INFO.{self._place}")

    async def _create(self, ack_seconds: int) -> ConsumerInfo:
        settings: dict[str, Any] = {  # Any: as JSON
            "durable_name": self._address.consumer,
            "deliver_policy": "all",
            "ack_policy": "explicit",
            "replay_policy": "instant",
            "ack_wait": ack_seconds * NANOSECONDS,
            "max_deliver": -1,
            "max_ack_pending": MAX_ACK_PENDING,
        }
        if self._address.subject:
            settings["filter_subject"] = self._address.subject
        wanted = {"stream_name": self._address.stream, "config": settings}
        try:
            return await self._ask(_consumer, f"CONSUMER.DURABLE.CREATE.{self._place}", wanted)
        except _Failed as failed:
            self._refuse(failed)

    async def _ask(self, kind: msgspec.json.Decoder[_T], what: str, body: object = None) -> _T:
        return await self._request(kind, f"$JS.API.{what}", b"" if body is None else msgspec.json.encode(body))

    async def _request(self, kind: msgspec.json.Decoder[_T], subject: str, body: bytes) -> _T:
        try:
            answer = await self._link.request(subject, body)
        except NoResponders:
            raise self._disabled() from None
        except PermissionError as error:
            raise FailedPrecondition(
                f"NATS at {self._address!r} does not let this user ask: {error}", hint=f"allow the user to publish to {subject}"
            ) from None
        except TimeoutError:
            raise Unavailable(f"NATS at {self._address!r} does not answer to {subject}") from None
        except ConnectionError as error:
            raise Unavailable(f"the connection to NATS at {self._address!r} is lost: {error}") from None
        try:
            failure = _failure.decode(answer).error
            if not failure:
                return kind.decode(answer)
        except msgspec.MsgspecError as error:
            raise Unavailable(f"NATS at {self._address!r} answers to {subject} what is not understood: {error}") from None
        if failure.err_code in _DISABLED:
            raise self._disabled()
        if failure.code == _UNAVAILABLE:
            raise Unavailable(f"NATS at {self._address!r}: {failure.description}")
        raise _Failed(failure)

    def _disabled(self) -> FailedPrecondition:
        return FailedPrecondition(
            f"NATS at {self._address!r} has no JetStream", hint="start nats-server with -js, and allow it for this account"
        )

    def _refuse(self, failed: _Failed) -> NoReturn:
        raise FailedPrecondition(
            f"NATS at {self._address!r} refuses: {failed.error.description}",
            hint="look at the stream and the consumer with `nats stream info` and `nats consumer info`",
        ) from None


REMEMBERED = 100_000
"""How many recent acks are in doubt when the connection is lost: a server that is killed forgets its last seconds."""


class Delivery(msgspec.Struct, frozen=True):
    """A message, as identified by the subject that settles it: its number in the stream and the time it was stored.

    A number alone may be used again, if a stream is created again or a server has lost the end of it.
    """

    count: int
    """How many times it was delivered."""
    sequence: int
    stored: bytes

    @property
    def key(self) -> str:
        """The same for every delivery of this message, and for no other message."""
        return f"{self.sequence}.{self.stored.decode()}"


def delivery_of(reply: bytes) -> Delivery:
    """`$JS.ACK.<stream>.<consumer>.<count>.<sequence>.<delivery>.<stored>.<pending>`, or with domain and account before that.

    ValueError or IndexError if it is neither.
    """
    words = reply.split(b".")
    start = 4 if len(words) == 9 else 6
    return Delivery(int(words[start]), int(words[start + 1]), words[start + 3])


class Outbox:
    """Collects acks and nacks. Its owner is called at the first one, and then takes all that were collected."""

    def __init__(self, on_first: Callable[[], None]) -> None:
        self._on_first = on_first
        self._is_due = False
        self._acks: list[bytes] = []
        self._naks: list[tuple[int, bytes]] = []
        self._leases: list[bytes] = []
        self._acked: deque[bytes] = deque(maxlen=REMEMBERED)

    def ack(self, reply: bytes) -> None:
        self._acks.append(reply)
        self._acked.append(reply)
        if not self._is_due:
            self._due()

    def nak(self, reply: bytes, delay: int = 0) -> None:
        """Redeliver the message after this many seconds."""
        self._naks.append((delivery_of(reply).sequence, _nak(reply, delay)))
        self._due()

    def extend(self, reply: bytes, seconds: int = 0) -> None:
        """Restart the lease of the message; with seconds: let it run for this long, whatever the consumer's setting is.

        The latter is a `-NAK` with a delay: for the server it only sets when the message is redelivered, unless it is acked
        before.
        """
        self._leases.append(_nak(reply, seconds) if seconds else b"PUB %b 4\r\n+WPI\r\n" % reply)
        self._due()

    def take(self) -> bytes:
        """The commands for all settlements. Naks are in the stream's order: the server redelivers in the order received."""
        self._is_due = False
        parts = self._leases
        parts += (nak for _, nak in sorted(self._naks))
        if self._acks:
            parts += (b"PUB ", b" 4\r\n+ACK\r\nPUB ".join(self._acks), b" 4\r\n+ACK\r\n")
        commands = b"".join(parts)
        self._leases, self._naks, self._acks = [], [], []
        return commands

    def unconfirmed_acks(self) -> Iterator[str]:
        """Keys of messages that were acked recently: if the connection is lost, the server may not know it."""
        while self._acked:
            yield delivery_of(self._acked.popleft()).key

    def forget_after(self, last: int) -> None:
        """Numbers above this one now belong to other messages, or to none."""
        self._acks = [reply for reply in self._acks if delivery_of(reply).sequence <= last]
        self._naks = [nak for nak in self._naks if nak[0] <= last]
        self._leases = []

    @property
    def is_empty(self) -> bool:
        return not (self._acks or self._naks or self._leases)

    def _due(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._on_first()


def _nak(reply: bytes, delay: int) -> bytes:
    command = b'-NAK {"delay": %d}' % (delay * NANOSECONDS) if delay > 0 else b"-NAK"
    return b"PUB %b %d\r\n%b\r\n" % (reply, len(command), command)


ASK_SECONDS = 0.5
"""How long another router may take to answer."""
MOST = 1_000_000
"""The limit for the range of messages to release: with more, that would take longer than waiting for the leases to end."""
_AT_A_TIME = 10_000


def presence(address: NatsAddress) -> str:
    """The subject on which a router of this consumer reports that it is alive."""
    return f"_PENSTOCK.router.{address.stream}.{address.consumer}"


async def free(link: NatsConnection, jetstream: JetStream, address: NatsAddress) -> int:
    """Have messages that an earlier run left unsettled delivered next; returns how many there are.

    0 if there are none, or if they belong to another running router.
    """
    loop = asyncio.get_running_loop()
    info = await jetstream.info()
    until = loop.time() + info.lease_seconds
    while info.num_ack_pending:
        match await _is_alone(link, address):
            case True if info.num_waiting:
                return 0  # another kind of program consumes from this consumer
            case True if len(_unsettled(info)) <= MOST:
                await _tell(link, address, info, "-NAK", _unsettled(info))
                await jetstream.settle()
                return (await jetstream.info()).num_ack_pending
            case False:
                return 0
        if loop.time() >= until:
            break
        await asyncio.sleep(min(1.0, max(until - loop.time(), 0)))
        info = await jetstream.info()
    return info.num_ack_pending


async def _is_alone(link: NatsConnection, address: NatsAddress) -> bool | None:
    """Whether no other router of the consumer runs; None if unknown."""
    try:
        await link.request(presence(address), seconds=ASK_SECONDS)
    except NoResponders:
        return True
    except (TimeoutError, PermissionError):
        return None
    return False


async def clear(link: NatsConnection, jetstream: JetStream, address: NatsAddress, info: ConsumerInfo) -> None:
    """Make the consumer forget deliveries of messages that the stream no longer has."""
    numbers = _unsettled(info)
    if info.num_ack_pending and len(numbers) <= MOST:
        held = await jetstream.holes()
        gone = chain(range(numbers.start, min(numbers.stop, held.first_seq)), held.deleted or ())
        await _tell(link, address, info, "+ACK", (number for number in gone if number in numbers))


def _unsettled(info: ConsumerInfo) -> range:
    """A range of numbers in the stream that contains all unsettled deliveries."""
    return range(info.ack_floor.stream_seq + 1, info.delivered.stream_seq + 1)


async def _tell(link: NatsConnection, address: NatsAddress, info: ConsumerInfo, what: str, numbers: Iterable[int]) -> None:
    # The server identifies a message by its number in the stream (%d); the delivery only has to be plausible.
    command = f"PUB $JS.ACK.{address.stream}.{address.consumer}.1.%d.{info.delivered.consumer_seq}.0.0 4\r\n{what}\r\n"
    rest = iter(numbers)
    while some := list(islice(rest, _AT_A_TIME)):
        link.write("".join([command % number for number in some]).encode())
        await link.ping()
