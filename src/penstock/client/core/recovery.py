"""What to do when a stream fails: try again, and when; or give up."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.backoff import exponential
from penstock.durations import SECOND
from penstock.errors import PenstockError, RateLimited

MINIMUM = SECOND // 10
MAXIMUM = 30 * SECOND


@dataclass(slots=True)
class Recovery:
    """Backoff of one stream: transient errors are worth another try, each later than the one before; others are not."""

    minimum: int = MINIMUM
    maximum: int = MAXIMUM
    failures: int = 0

    def failed(self, error: PenstockError, lasted: int = 0) -> int | None:
        """How many microseconds to wait before the next try; None when there must be none.

        `lasted`: for how long the stream had been open. One that was open for long has not failed again, but anew.
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
