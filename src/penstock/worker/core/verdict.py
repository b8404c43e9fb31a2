"""What becomes of a task that was run: the decision, for somebody else to carry out.

    run ── returned ───────────────────────────> succeeded   (ack)
     ├──── raised, tries left ─────────────────> retried     (nack with a delay; Retry may name it)
     ├──── raised, no tries left ──────────────> dead        (nack: the broker counts too, and keeps the error)
     ├──── Reject, or no task call at all ─────> dead        (nack without requeue)
     └──── the worker stopped before the end ──> returned    (released, the attempt does not count)

An attempt is one delivery of the message, the first being 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from penstock.backoff import exponential
from penstock.durations import SECOND, micros
from penstock.errors import InvalidArgument

MAX_DELAY_SECONDS = 366 * 86_400


class Retry(Exception):
    """Raised by a task to be tried again, after `delay` seconds, or after the task's backoff. It counts as a try."""

    delay: float | None = None

    def __init__(self, reason: str = "", *, delay: float | timedelta | None = None) -> None:
        super().__init__(reason)
        if delay is not None:
            self.delay = micros(delay, "delay", maximum=MAX_DELAY_SECONDS) / SECOND


class Reject(Exception):
    """Raised by a task that can never succeed: the message goes to the dead letters at once."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)


class TimeLimitExceeded(Exception):
    """A task did not end within its time limit."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds

    def __str__(self) -> str:
        return f"the time limit of {self.seconds:g} s is over"


class Outcome(StrEnum):
    """How the run of a task ended."""

    SUCCEEDED = "succeeded"
    RETRIED = "retried"
    """It failed, and is tried again."""
    DEAD = "dead"
    """It failed for good, and is a dead letter now."""
    RETURNED = "returned"
    """The worker stopped before it ended: another one gets it, and the try does not count."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before a retry: twice as long each time. Microseconds."""

    minimum: int
    maximum: int

    @classmethod
    def of(cls, value: object) -> Backoff:
        """From what people write: (minimum, maximum) seconds, or one number for both."""
        pair = value if isinstance(value, tuple | list) else (value, value)
        if len(pair) != 2:
            raise InvalidArgument.of("backoff", value, "(minimum, maximum) seconds")
        low, high = (micros(one, "backoff", maximum=MAX_DELAY_SECONDS) for one in pair)
        if low > high:
            raise InvalidArgument.of("backoff", value, "a minimum that is not more than the maximum")
        return cls(low, high)

    def after(self, attempt: int) -> int:
        """The wait after try number `attempt`, the first being 1."""
        return exponential(attempt, self.minimum, self.maximum)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is to be done about a run."""

    outcome: Outcome
    requeue: bool = True
    """False: to the dead letters at once, whatever the broker counts."""
    delay: int | None = None
    """Microseconds until the next try."""


SUCCESS = Verdict(Outcome.SUCCEEDED)


def judge(error: BaseException | None, attempt: int, max_retries: int, backoff: Backoff) -> Verdict:
    """What becomes of try number `attempt` (1 is the first) of a message that may be retried `max_retries` times."""
    if error is None:
        return SUCCESS
    if isinstance(error, Reject):
        return Verdict(Outcome.DEAD, requeue=False)
    if attempt > max_retries:
        return Verdict(Outcome.DEAD)
    if isinstance(error, Retry) and error.delay is not None:
        return Verdict(Outcome.RETRIED, delay=round(error.delay * SECOND))
    return Verdict(Outcome.RETRIED, delay=backoff.after(attempt))


def text_of(error: BaseException) -> str:
    """An error as it is kept with its message."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  # a user's error whose text is itself an error
        text = ""
    if isinstance(error, Retry | Reject):
        return text or ("rejected by the task" if isinstance(error, Reject) else "the task asked for a retry")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


@dataclass(frozen=True, slots=True)
class TaskResult:
    """How one run of a task ended. It carries no payload."""

    task: str
    """The task's name; empty when the message was not a task call."""
    queue: str
    message_id: str
    attempt: int
    """1 for the first try."""
    max_retries: int
    seconds: float
    outcome: Outcome
    error: BaseException | None = None
    delay: float | None = None
    """Seconds until the next try."""


@dataclass(slots=True)
class WorkerStats:
    """What a worker has done since it was made, and does now."""

    succeeded: int = 0
    retried: int = 0
    dead: int = 0
    returned: int = 0
    """Runs that a stop cut short; another worker gets them."""
    timed_out: int = 0
    """Runs that exceeded their time limit; they are among the retried and dead."""
    abandoned_threads: int = 0
    """Threads that still run a function whose time was over, or did when last looked at."""
    running: int = 0
    waiting: int = 0
    """Messages that are here and wait for one that runs to end."""
