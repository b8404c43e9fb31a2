"""What to do when a stream fails: try again, and when; or give up."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.backoff import exponential
from penstock.durations import SECOND
from penstock.errors import PenstockError

MINIMUM = SECOND // 10
MAXIMUM = 30 * SECOND


@dataclass(slots=True)
class Recovery:
    """Backoff of one stream: transient errors are worth another try, each later than the one before; others are not."""

    minimum: int = MINIMUM
    maximum: int = MAXIMUM
    failures: int = 0

    def failed(self, error: PenstockError) -> int | None:
        """How many microseconds to wait before the next try; None when there must be none."""
        if not error.transient:
            return None
        self.failures += 1
        return exponential(self.failures, self.minimum, self.maximum)

    def worked(self) -> None:
        """A try succeeded: the next failure is a first one."""
        self.failures = 0
