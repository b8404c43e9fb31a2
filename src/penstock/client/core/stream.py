"""The messages that a stream holds, and when it reconnects.

The unsettled deliveries, with their deadlines. A lease is extended at half of its time while its message is being handled, up to
a limit; then it expires. So a handler may take long, and one that forgot a message does not keep it forever.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from penstock.backoff import exponential
from penstock.durations import SECOND
from penstock.errors import PenstockError, RateLimited

MIN_INTERVAL = 10_000
"""The shortest interval of checks; leases may be shorter, but more frequent checks would keep a stream busy."""
MINIMUM = SECOND // 10
MAXIMUM = 30 * SECOND


class HeldDelivery(Protocol):
    """The relevant fields of a delivery. Times are microseconds of one monotonic clock."""

    receipt: int
    deadline: int
    """When its lease expires."""
    span: int
    """The full duration of that lease."""
    end_at: int
    """When its lease expires at the latest, however long its handler runs."""
    is_worked_on: bool


H = TypeVar("H", bound=HeldDelivery)


@dataclass(slots=True)
class Plan(Generic[H]):
    """What to do now."""

    extend: dict[int, list[int]] = field(default_factory=dict)
    """Receipts to extend, by the new length of their lease in microseconds."""
    lost: list[H] = field(default_factory=list)
    """Deliveries whose lease has expired."""
    wait: int = 0
    """Microseconds until the next check, at the latest."""


class HeldDeliveries(Generic[H]):
    """The unsettled deliveries of a stream."""

    def __init__(self, ack_deadline: int) -> None:
        self.ack_deadline = ack_deadline
        """The duration of a lease, and of each extension."""
        self.by_receipt: dict[int, H] = {}

    def __len__(self) -> int:
        return len(self.by_receipt)

    @property
    def interval(self) -> int:
        """The interval of `plan`: a quarter of a lease."""
        return max(self.ack_deadline // 4, MIN_INTERVAL)

    def plan(self, now: int, *, may_extend: bool = True, renew: bool = False) -> Plan[H]:
        """What to do now, as if it were done: extended leases last longer, lost ones are removed.

        Without a connection nothing can be extended. After that, `renew` extends all leases of messages being handled, whatever
        their assumed deadlines: the last extensions before the loss may not have arrived.
        """
        plan: Plan[H] = Plan()
        look_at = now + self.interval
        for holding in self.by_receipt.values():
            deadline, half = holding.deadline, holding.span // 2
            if deadline <= now:
                plan.lost.append(holding)
                continue
            may_grow = may_extend and holding.is_worked_on
            if may_grow and (renew or deadline <= now + half):
                until = max(deadline, min(now + self.ack_deadline, holding.end_at))
                may_grow = until > deadline
                if may_grow or renew:
                    plan.extend.setdefault(until - now, []).append(holding.receipt)
                    deadline = holding.deadline = until
                    holding.span = until - now
                    half = holding.span // 2
            look_at = min(look_at, deadline - half if may_grow else deadline)
        for holding in plan.lost:
            del self.by_receipt[holding.receipt]
        plan.wait = max(look_at - now, MIN_INTERVAL)
        return plan


@dataclass(slots=True)
class ReconnectBackoff:
    """Backoff of one stream: transient errors are retried with growing delays; others are not."""

    minimum: int = MINIMUM
    maximum: int = MAXIMUM
    failures: int = 0

    def failed(self, error: PenstockError, lasted: int = 0) -> int | None:
        """Microseconds to wait before the next attempt; None if there must be none.

        `lasted`: how long the stream had been open. After a long time, the backoff starts again.
        """
        if not error.transient:
            return None
        if lasted >= self.maximum:
            self.failures = 0
        self.failures += 1
        wait = exponential(self.failures, self.minimum, self.maximum)
        return max(wait, round(error.retry_after * SECOND)) if isinstance(error, RateLimited) else wait

    def worked(self) -> None:
        """Something was received: the next failure counts as the first."""
        self.failures = 0
