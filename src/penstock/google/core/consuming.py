"""What the unary calls of a consumer may ask for: Pull, Acknowledge, ModifyAckDeadline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.errors import InvalidArgument
from penstock.google.core.periods import SECONDS

MAX_MODIFIED_DEADLINE = 600
MAX_PULLED = 1000


def pull_limit(request: Any) -> int:
    """How many messages a Pull may return at most."""
    if request.max_messages <= 0:
        raise InvalidArgument.of("max_messages", request.max_messages, "a number above 0")
    return min(int(request.max_messages), MAX_PULLED)


def acknowledged(request: Any) -> list[str]:
    """The ack ids of an Acknowledge."""
    return _some(request.ack_ids)


def modified(request: Any) -> tuple[list[str], int]:
    """The ack ids of a ModifyAckDeadline, and for how many microseconds from now each is leased; 0: given back."""
    return _some(request.ack_ids), modified_deadline(request.ack_deadline_seconds, "ack_deadline_seconds")


def modified_deadline(seconds: int, field: str) -> int:
    """A new ack deadline in microseconds from now; 0 gives the message back."""
    if not 0 <= seconds <= MAX_MODIFIED_DEADLINE:
        raise InvalidArgument.of(field, seconds, f"seconds from 0 to {MAX_MODIFIED_DEADLINE}")
    return seconds * SECONDS


def _some(ack_ids: Sequence[str]) -> list[str]:
    if not ack_ids:
        raise InvalidArgument.of("ack_ids", [], "at least one ack id")
    return list(ack_ids)
