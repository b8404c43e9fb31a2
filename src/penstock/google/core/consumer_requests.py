"""The requests of consumers: Pull, Acknowledge, ModifyAckDeadline, and those of a StreamingPull."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.errors import InvalidArgument
from penstock.google.core.fields import SECONDS
from penstock.google.core.subscriptions import MAX_ACK_DEADLINE, MIN_ACK_DEADLINE
from penstock.values.resource_names import SUBSCRIPTIONS, Name, parse

MAX_MODIFIED_DEADLINE = 600
MAX_PULLED = 1000
FIRST_ONLY = ("subscription", "max_outstanding_messages", "max_outstanding_bytes", "protocol_version")


def pull_limit(request: Any) -> int:
    if request.max_messages <= 0:
        raise InvalidArgument.of("max_messages", request.max_messages, "a number above 0")
    return min(int(request.max_messages), MAX_PULLED)


def acknowledged(request: Any) -> list[str]:
    return _some(request.ack_ids)


def modified(request: Any) -> tuple[list[str], int]:
    """The ack ids of a ModifyAckDeadline, and for how many microseconds from now each is leased; 0: released."""
    return _some(request.ack_ids), modified_deadline(request.ack_deadline_seconds, "ack_deadline_seconds")


def modified_deadline(seconds: int, field: str) -> int:
    """A new ack deadline in microseconds from now; 0 nacks the message."""
    if not 0 <= seconds <= MAX_MODIFIED_DEADLINE:
        raise InvalidArgument.of(field, seconds, f"seconds from 0 to {MAX_MODIFIED_DEADLINE}")
    return seconds * SECONDS


def _some(ack_ids: Sequence[str]) -> list[str]:
    if not ack_ids:
        raise InvalidArgument.of("ack_ids", [], "at least one ack id")
    return list(ack_ids)


@dataclass(frozen=True, slots=True)
class StreamChange:
    """The changes of one request."""

    ack_deadline: int | None = None
    """The ack deadline of later deliveries, in microseconds; None: unchanged."""
    ack_ids: tuple[str, ...] = ()
    deadlines: tuple[tuple[str, int], ...] = ()
    """(ack id, microseconds from now); 0 nacks the message."""

    def __bool__(self) -> bool:
        """False for a request that only keeps the stream alive."""
        return self != _NOTHING


_NOTHING = StreamChange()


@dataclass(frozen=True, slots=True)
class StreamOpening:
    """The contents of the first request."""

    subscription: Name
    ack_deadline: int
    client_id: str
    max_messages: int | None
    max_bytes: int | None
    """The limit of outstanding messages of the stream; None: no limit."""
    change: StreamChange
    """Acks and deadlines in the first request: those of a stream that broke."""


def opened(request: Any) -> StreamOpening:
    """Parse the first request of a stream."""
    subscription = parse(request.subscription, SUBSCRIPTIONS, "subscription")
    ack_deadline = _stream_deadline(request.stream_ack_deadline_seconds)
    return StreamOpening(
        subscription=subscription,
        ack_deadline=ack_deadline,
        client_id=request.client_id,
        max_messages=_limit(request.max_outstanding_messages),
        max_bytes=_limit(request.max_outstanding_bytes),
        change=_change(request, None),
    )


def changed(request: Any) -> StreamChange:
    for field in FIRST_ONLY:
        if value := getattr(request, field):
            raise InvalidArgument.of(field, value, "nothing after the first request of a stream")
    seconds = request.stream_ack_deadline_seconds
    return _change(request, _stream_deadline(seconds) if seconds else None)


def _change(request: Any, ack_deadline: int | None) -> StreamChange:
    ids, seconds = request.modify_deadline_ack_ids, request.modify_deadline_seconds
    if len(ids) != len(seconds):
        raise InvalidArgument(
            f"modify_deadline_seconds has {len(seconds)} entries, expected {len(ids)}, as in modify_deadline_ack_ids"
        )
    deadlines = (modified_deadline(each, f"modify_deadline_seconds[{index}]") for index, each in enumerate(seconds))
    return StreamChange(ack_deadline, tuple(request.ack_ids), tuple(zip(ids, deadlines, strict=True)))


def _stream_deadline(seconds: int) -> int:
    if not MIN_ACK_DEADLINE <= seconds <= MAX_ACK_DEADLINE:
        raise InvalidArgument.of("stream_ack_deadline_seconds", seconds, f"seconds from {MIN_ACK_DEADLINE} to {MAX_ACK_DEADLINE}")
    return seconds * SECONDS


def _limit(value: int) -> int | None:
    return value if value > 0 else None
