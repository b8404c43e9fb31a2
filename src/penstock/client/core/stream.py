"""What a stream holds and when it tries again.

Holdings are the deliveries that are not settled, with their deadlines. A lease is extended in the middle of its life while its
message is worked on, up to a limit; after that it is left to expire. So a handler may take its time, and one that forgot a
message does not keep it forever.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from penstock.backoff import exponential
from penstock.durations import SECOND
from penstock.errors import PenstockError, RateLimited

MIN_INTERVAL = 10_000
"""Leases may be shorter than this; looking at them more often would be all that a stream does."""
MINIMUM = SECOND // 10
MAXIMUM = 30 * SECOND


class HeldDelivery(Protocol):
    """A delivery, as far as it matters here. Instants are microseconds of one clock, which never steps."""

    receipt: int
    deadline: int
    """When its lease runs out."""
    span: int
    """How long that lease lasts as a whole."""
    end_at: int
    """When it does so at the latest, however long its message is worked on."""
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
    """Microseconds after which to ask again at the latest."""


class HeldDeliveries(Generic[H]):
    """The unsettled deliveries of a stream."""

    def __init__(self, ack_deadline: int) -> None:
        self.ack_deadline = ack_deadline
        """How long a lease lasts unless it is extended, and from each extension on."""
        self.by_receipt: dict[int, H] = {}

    def __len__(self) -> int:
        return len(self.by_receipt)

    @property
    def interval(self) -> int:
        """How often `plan` wants to be asked: four times in the life of a lease."""
        return max(self.ack_deadline // 4, MIN_INTERVAL)

    def plan(self, now: int, *, may_extend: bool = True, renew: bool = False) -> Plan[H]:
        """What to do now, and as if it were done: extended leases last longer, lost ones are gone.

        Without a way to the broker nothing can be extended. After that, `renew` all leases that are worked on, however long they
        are believed to last: what was asked for just before the way was lost may not have arrived.
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
    """Backoff of one stream: transient errors are worth another try, each later than the one before; others are not."""

    minimum: int = MINIMUM
    maximum: int = MAXIMUM
    failures: int = 0

    def failed(self, error: PenstockError, lasted: int = 0) -> int | None:
        """How many microseconds to wait before the next try; None when there must be none.

        `lasted`: for how long the stream had been open. After a long time, the backoff starts again.
        """
        if not error.transient:
            return None
        if lasted >= self.maximum:
            self.failures = 0
        self.failures += 1
        wait = exponential(self.failures, self.minimum, self.maximum)
        return max(wait, round(error.retry_after * SECOND)) if isinstance(error, RateLimited) else wait

    def worked(self) -> None:
        """Something came through: the next failure is a first one."""
        self.failures = 0
