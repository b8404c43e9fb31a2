"""What a subscriber may be told."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from penstock.durations import micros
from penstock.errors import InvalidArgument
from penstock.values.policy import Duration, FlowControl, check_count, check_flag

MAX_MESSAGES = 1_000
MAX_BYTES = 100 * 1024 * 1024


class CloseBehavior(StrEnum):
    """What a closing stream does with messages that are not settled."""

    WAIT = "wait"
    """Wait for them to be settled, or for their leases to run out."""
    NACK = "nack"
    """Give them back at once, so that others get them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriberOptions:
    """How a MessageStream takes its messages. Durations are seconds or `timedelta`."""

    flow_control: FlowControl = field(default_factory=FlowControl)
    """Limits of what is unsettled at once; what is None in it is 1,000 messages or 100 MiB."""
    ack_deadline: Duration = 60
    """How long a lease lasts unless it is extended."""
    message_ordering: bool = False
    """Messages of one ordering key come one at a time, in order. The subscription must have been created so."""
    max_streams: int = 5
    """How many streams bring messages side by side. They share the limits."""
    max_extension: Duration = 3_600
    """How long after its delivery a lease ends at the latest, however long its handler runs."""
    close_behavior: CloseBehavior = CloseBehavior.WAIT
    close_timeout: Duration | None = None
    """How long a close waits for what is unsettled, before it gives that back; None: as long as leases last."""

    def __post_init__(self) -> None:
        if not isinstance(self.flow_control, FlowControl):
            raise InvalidArgument.of("flow_control", self.flow_control, "a FlowControl")
        micros(self.ack_deadline, "ack_deadline", minimum=1e-3, maximum=600)
        check_flag(self.message_ordering, "message_ordering")
        check_count(self.max_streams, "max_streams", 1, 100)
        micros(self.max_extension, "max_extension", maximum=366 * 86_400)
        if self.close_timeout is not None:
            micros(self.close_timeout, "close_timeout", maximum=366 * 86_400)
        try:
            object.__setattr__(self, "close_behavior", CloseBehavior(self.close_behavior))
        except ValueError:
            raise InvalidArgument.of("close_behavior", self.close_behavior, "'wait' or 'nack'") from None

    @property
    def max_messages(self) -> int:
        """The limit of unsettled messages."""
        return self.flow_control.max_messages or MAX_MESSAGES

    @property
    def max_bytes(self) -> int:
        """The limit of unsettled bytes."""
        return self.flow_control.max_bytes or MAX_BYTES
