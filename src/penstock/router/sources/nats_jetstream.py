"""JetStream's requests, as far as a router makes them: find or make the stream and its pull consumer, ask how they are."""

from __future__ import annotations

from typing import Any, NoReturn, TypeVar

import msgspec

from penstock.errors import FailedPrecondition, Unavailable
from penstock.router.sources.nats_address import NatsAddress
from penstock.router.sources.nats_connection import NatsConnection, NoResponders

NANOSECONDS = 1_000_000_000
SETTLE_SECONDS = 2.0
MAX_ACK_PENDING = 50_000
"""How many messages a consumer that is made here may have handed out at a time."""

_CONSUMER_MISSING = 10_014
_STREAM_MISSING = 10_059
_DISABLED = {10_039, 10_076}
_UNAVAILABLE = 503
_NO_MESSAGE = 1 << 62
_ANY_WORD = "router"
"""Stands where a subject leaves a word open."""


class _Error(msgspec.Struct):
    code: int = 0
    err_code: int = 0
    description: str = ""


class _Failed(Exception):
    def __init__(self, error: _Error) -> None:
        super().__init__(error.description)
        self.error = error


class Position(msgspec.Struct, frozen=True):
    """How far something is: in the consumer's deliveries, and in the stream's messages."""

    consumer_seq: int = 0
    stream_seq: int = 0


class ConsumerSettings(msgspec.Struct, frozen=True):
    """What a consumer was made with. Durations are nanoseconds."""

    ack_policy: str = "none"
    ack_wait: int = 0
    backoff: tuple[int, ...] = ()
    deliver_subject: str = ""
    filter_subject: str = ""
    max_batch: int = 0
    max_expires: int = 0


class ConsumerInfo(msgspec.Struct, frozen=True):
    """A consumer as it is now."""

    config: ConsumerSettings
    delivered: Position
    ack_floor: Position
    num_ack_pending: int = 0
    num_pending: int = 0
    num_waiting: int = 0

    @property
    def lease_seconds(self) -> float:
        """How long a delivery may go unanswered: at first, where that changes from one to the next."""
        return min(self.config.backoff, default=self.config.ack_wait) / NANOSECONDS


class StreamState(msgspec.Struct, frozen=True):
    """What a stream holds."""

    first_seq: int = 0
    last_seq: int = 0
    deleted: tuple[int, ...] | None = None
    """The numbers between that it no longer holds, where they were asked for."""


class StreamSettings(msgspec.Struct, frozen=True):
    """What a stream was made with."""

    subjects: tuple[str, ...] = ()


class StreamInfo(msgspec.Struct, frozen=True):
    """A stream as it is now."""

    created: str
    state: StreamState
    config: StreamSettings = StreamSettings()


class _Stored(msgspec.Struct):
    """Where a message is that was published."""

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
    """JetStream at one server, of one stream and one consumer.

    Unavailable when it does not answer now; FailedPrecondition when it does, but the stream or the consumer is not as it must be.
    """

    def __init__(self, link: NatsConnection, address: NatsAddress) -> None:
        self._link = link
        self._address = address
        self._place = f"{address.stream}.{address.consumer}"
        self._subject = ""
        """Where messages for the consumer are published; "": not known yet."""

    async def stream(self) -> StreamInfo:
        """The stream; it is made when it is missing and the URI says for which subject."""
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
        """What the stream holds, with the numbers that it no longer does."""
        try:
            return (await self._ask(_stream, f"STREAM.INFO.{self._address.stream}", {"deleted_details": True})).state
        except _Failed as failed:
            self._refuse(failed)

    async def consumer(self, ack_seconds: int) -> ConsumerInfo:
        """The consumer; it is made when it is missing, with leases of so many seconds."""
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
        """The consumer as it is now."""
        try:
            return await self._info()
        except _Failed as failed:
            self._refuse(failed)

    async def _open_subject(self) -> str:
        """A subject whose messages the consumer takes."""
        found = self._address.subject or (await self.info()).config.filter_subject
        if not found:
            found = next(iter((await self.stream()).config.subjects), "")
        if not found:
            raise FailedPrecondition(f"the stream {self._address.stream!r} of NATS ({self._address!r}) takes no messages itself")
        return ".".join(_ANY_WORD if word in {"*", ">"} else word for word in found.split("."))

    async def publish(self, body: bytes) -> int:
        """Put a message into the stream, for the consumer; returns its number there when it is safe."""
        subject = self._subject = self._subject or await self._open_subject()
        try:
            stored = await self._request(_stored, subject, body)
        except _Failed as failed:
            self._refuse(failed)
        if stored.stream != self._address.stream:
            raise FailedPrecondition(f"what is published to {subject!r} goes to another stream of NATS, {stored.stream!r}")
        return stored.seq

    async def settle(self) -> None:
        """Return when the consumer has carried out every answer to a message that was written so far.

        The server takes those from a list of its own, in order, so a PONG would not say it. This asks of a message that is none.
        A server that leaves that unanswered, but lives, counts as having done so.
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
