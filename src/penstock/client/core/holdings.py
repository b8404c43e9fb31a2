"""What a stream holds: every delivery that is not settled, until when, and which leases are to be extended.

A lease is extended while somebody works on its message, up to a limit; when nobody does any more, it is left to run out. So a
handler may take its time, and one that forgot a message does not keep it for ever.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar


class Holding(Protocol):
    """A delivery, as far as it matters here. Instants are microseconds of one clock."""

    receipt: int
    received_at: int
    deadline: int
    is_worked_on: bool


H = TypeVar("H", bound=Holding)


@dataclass(frozen=True, slots=True)
class Plan(Generic[H]):
    """What is to be done at one instant."""

    extend: list[int]
    """Receipts whose lease is to last `ack_deadline` from now on."""
    lost: list[H]
    """Deliveries whose lease has run out: they are nobody's any more."""


class Holdings(Generic[H]):
    """The unsettled deliveries of a stream."""

    def __init__(self, *, ack_deadline: int, max_extension: int) -> None:
        self.ack_deadline = ack_deadline
        self.max_extension = max_extension
        """How long after its delivery a lease is extended at most."""
        self.by_receipt: dict[int, H] = {}

    def __len__(self) -> int:
        return len(self.by_receipt)

    @property
    def interval(self) -> int:
        """How often `plan` wants to be asked: four times in the life of a lease."""
        return max(self.ack_deadline // 4, 1)

    def add(self, holding: H) -> None:
        """Take a delivery."""
        self.by_receipt[holding.receipt] = holding

    def settle(self, receipt: int) -> bool:
        """Let go of a delivery; False when it was lost before."""
        return self.by_receipt.pop(receipt, None) is not None

    def plan(self, now: int) -> Plan[H]:
        """What to do now, and as if it were done: extended leases last longer, lost ones are gone."""
        extend: list[int] = []
        lost: list[H] = []
        soon = now + self.ack_deadline // 2
        for holding in self.by_receipt.values():
            if holding.deadline <= now:
                lost.append(holding)
            elif holding.is_worked_on and holding.deadline <= soon:
                last = holding.received_at + self.max_extension
                if now < last:
                    extend.append(holding.receipt)
                    holding.deadline = now + self.ack_deadline
        for holding in lost:
            del self.by_receipt[holding.receipt]
        return Plan(extend, lost)
