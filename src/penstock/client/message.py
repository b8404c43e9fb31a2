"""A message as a subscriber receives it."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sized
from datetime import datetime
from enum import IntEnum
from types import MappingProxyType
from typing import Any, Protocol

import msgspec

from penstock.client.link import Delivery
from penstock.durations import SECOND, micros, to_datetime
from penstock.errors import FailedPrecondition, InvalidArgument, PenstockError, PermissionDenied
from penstock.ids import ack_id, message_id
from penstock.values.policy import Duration
from penstock.wire.frames import Nack, Opened

MAX_DEADLINE = 600
_NOTHING: Mapping[str, str] = MappingProxyType({})


class AckResponse(IntEnum):
    """The result of an ack or nack with response; the numbers are those of gRPC."""

    SUCCESS = 0
    INVALID = 3
    """The delivery was over already: settled, expired, or redelivered."""
    PERMISSION_DENIED = 7
    FAILED_PRECONDITION = 9
    OTHER = 13
    """Unknown: the connection was lost before the answer came."""


async def response_to(settling: Awaitable[Sized]) -> AckResponse:
    """The response for a settlement, which returns the receipts that were not live any more."""
    try:
        failed = await settling
    except PermissionDenied:
        return AckResponse.PERMISSION_DENIED
    except FailedPrecondition:
        return AckResponse.FAILED_PRECONDITION
    except PenstockError:
        return AckResponse.OTHER
    return AckResponse.INVALID if failed else AckResponse.SUCCESS


class DeliverySettler(Protocol):
    """Settles deliveries. Thread-safe."""

    def begin(self, message: IncomingMessage) -> None:
        """Report that its handler starts."""

    def ack(self, message: IncomingMessage) -> None:
        """Acknowledge it."""

    def nack(self, message: IncomingMessage, nack: Nack) -> None:
        """Requeue it."""

    def move(self, message: IncomingMessage, seconds: float) -> None:
        """Set another deadline of its lease."""

    async def confirm(
        self, message: IncomingMessage, *, acks: list[int] | None = None, nack: Nack | None = None, seconds: float | None = None
    ) -> AckResponse:
        """Do one of these, and return the result."""


class IncomingMessage:
    """One delivery. Settle it with `ack` or `nack`; the first call counts, later ones do nothing.

    It can be used from any thread, except for coroutines, which belong to the event loop.
    """

    __slots__ = (
        "_delivery",
        "_is_settled",
        "_opened",
        "_settler",
        "deadline",
        "end_at",
        "is_worked_on",
        "receipt",
        "received_at",
        "span",
        "stream",
    )

    def __init__(  # noqa: PLR0917
        self, settler: DeliverySettler, opened: Opened, delivery: Delivery, receipt: int, now: int, deadline: int
    ) -> None:
        self._settler = settler
        self._opened = opened
        self._delivery = delivery
        self.receipt = receipt
        self.received_at = now
        self.deadline = deadline
        """When its lease expires, as far as is known here; by a monotonic clock."""
        self.span = 0
        """The full duration of that lease."""
        self.end_at = deadline
        """The limit of extensions of its lease."""
        self.is_worked_on = False
        self.stream = 0
        """The number of the stream that delivered it, from 0."""
        self._is_settled = False

    @property
    def id(self) -> str:
        """The message's id: unique across all topics, sortable by time, and the same for every delivery."""
        return message_id(self._delivery.message.publish_at, self._opened.stream, self._delivery.offset)

    @property
    def ack_id(self) -> str:
        """The id of this delivery."""
        return ack_id(self._opened.queue, self._delivery.offset, self._delivery.attempt, self._delivery.epoch)

    @property
    def data(self) -> bytes:
        """The payload."""
        return self._delivery.message.data

    @property
    def attributes(self) -> Mapping[str, str]:
        """The attributes, read-only."""
        attributes = self._delivery.message.attributes
        return MappingProxyType(attributes) if attributes else _NOTHING

    @property
    def ordering_key(self) -> str:
        """The ordering key, empty if there is none."""
        return self._delivery.message.key

    @property
    def publish_time(self) -> datetime:
        """When it was published; a dead letter keeps the time of its first publication."""
        body = self._delivery.message
        return to_datetime(body.origin_at or body.publish_at)

    @property
    def received(self) -> datetime:
        """When it arrived here."""
        return to_datetime(self.received_at)

    @property
    def delivery_attempt(self) -> int:
        """1 for the first delivery."""
        return self._delivery.attempt

    @property
    def priority(self) -> int:
        """0 to 9; 9 is delivered first."""
        return self._delivery.message.priority

    @property
    def length(self) -> int:
        """Bytes of the payload."""
        return len(self._delivery.message.data)

    @property
    def offset(self) -> int:
        """Its offset in its topic's log."""
        return self._delivery.offset

    @property
    def is_settled(self) -> bool:
        """Whether it was acked or nacked here."""
        return self._is_settled

    def json(self) -> Any:
        """The payload, parsed as JSON."""
        try:
            return msgspec.json.decode(self._delivery.message.data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidArgument(f"the data of message {self.id} is not JSON: {error}") from None

    def begin(self) -> None:
        """Report that its handler starts: if this process dies, the attempt counts. Streams report it themselves."""
        if not self._is_settled:
            self._settler.begin(self)

    def ack(self) -> None:
        """Acknowledge it."""
        if not self._is_settled:
            self._is_settled = True
            self._settler.ack(self)

    def nack(self) -> None:
        """Requeue it: it is redelivered, at once or after the retry policy's backoff, or becomes a dead letter."""
        if not self._is_settled:
            self._is_settled = True
            self._settler.nack(self, Nack(self.receipt))

    def modify_ack_deadline(self, seconds: Duration) -> None:
        """Set the end of the lease to `seconds` from now; 0 requeues the message."""
        span = _span(seconds)
        if not self._is_settled:
            self._is_settled = not span
            self._settler.move(self, span)

    async def ack_with_response(self) -> AckResponse:
        """Acknowledge it, and return once that is certain; INVALID if the lease was over."""
        if self._is_settled:
            return AckResponse.INVALID
        self._is_settled = True
        return await self._settler.confirm(self, acks=[self.receipt])

    async def nack_with_response(self) -> AckResponse:
        """Requeue it, and return once that is certain; INVALID if the lease was over."""
        if self._is_settled:
            return AckResponse.INVALID
        self._is_settled = True
        return await self._settler.confirm(self, nack=Nack(self.receipt))

    async def modify_ack_deadline_with_response(self, seconds: Duration) -> AckResponse:
        """As `modify_ack_deadline`; INVALID if the lease was over."""
        span = _span(seconds)
        if self._is_settled:
            return AckResponse.INVALID
        self._is_settled = not span
        return await self._settler.confirm(self, seconds=span)

    def __repr__(self) -> str:
        return f"<IncomingMessage {self.id} attempt {self.delivery_attempt}, {self.length} bytes>"


def _span(seconds: Duration) -> float:
    """The seconds of a valid deadline."""
    try:
        return micros(seconds, "seconds", maximum=MAX_DEADLINE) / SECOND
    except InvalidArgument:
        raise InvalidArgument(f"Ack deadline must be between 0 and {MAX_DEADLINE} seconds, got {seconds!r}") from None
