"""The outcome of a task that ran: the decision, which the executor carries out.

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
    """Raise it in a task to retry after `delay` seconds, or after the task's backoff. It counts as an attempt."""

    delay: float | None = None

    def __init__(self, reason: str = "", *, delay: float | timedelta | None = None) -> None:
        super().__init__(reason)
        if delay is not None:
            self.delay = micros(delay, "delay", maximum=MAX_DELAY_SECONDS) / SECOND


class Reject(Exception):
    """Raise it in a task that can never succeed: the message is dead-lettered at once."""

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
    """It failed, and will be retried."""
    DEAD = "dead"
    """It failed for the last time, and is a dead letter now."""
    RETURNED = "returned"
    """The worker stopped before it ended: another worker gets it, and the attempt does not count."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """The delay before a retry: twice as long each time. Microseconds."""

    minimum: int
    maximum: int

    @classmethod
    def of(cls, value: object) -> Backoff:
        """From the form of the API: (minimum, maximum) seconds, or one number for both."""
        pair = value if isinstance(value, tuple | list) else (value, value)
        if len(pair) != 2:
            raise InvalidArgument.of("backoff", value, "(minimum, maximum) seconds")
        low, high = (micros(one, "backoff", maximum=MAX_DELAY_SECONDS) for one in pair)
        if low > high:
            raise InvalidArgument.of("backoff", value, "a minimum of at most the maximum")
        return cls(low, high)

    def after(self, attempt: int) -> int:
        """The delay after attempt number `attempt`, which starts at 1."""
        return exponential(attempt, self.minimum, self.maximum)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The settlement of a run."""

    outcome: Outcome
    requeue: bool = True
    """False: dead-letter at once, whatever the number of attempts."""
    delay: int | None = None
    """Microseconds until the next attempt."""


SUCCESS = Verdict(Outcome.SUCCEEDED)


def judge(error: BaseException | None, attempt: int, max_retries: int, backoff: Backoff) -> Verdict:
    """The settlement of attempt number `attempt` (from 1) of a message that may be retried `max_retries` times."""
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
    """The text of an error that is stored with its message."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  # a user's error whose text is itself an error
        text = ""
    if isinstance(error, Retry | Reject):
        return text or ("rejected by the task" if isinstance(error, Reject) else "the task asked for a retry")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The result of one run of a task. It contains no payload."""

    task: str
    """The task's name; empty if the message was not a task call."""
    queue: str
    message_id: str
    attempt: int
    """1 for the first attempt."""
    max_retries: int
    seconds: float
    outcome: Outcome
    error: BaseException | None = None
    delay: float | None = None
    """Seconds until the next attempt."""


@dataclass(slots=True)
class WorkerStats:
    """The numbers of a worker since it was created, and of now."""

    succeeded: int = 0
    retried: int = 0
    dead: int = 0
    returned: int = 0
    """Runs that a stop interrupted; another worker gets them."""
    timed_out: int = 0
    """Runs that exceeded their time limit; they are among the retried and dead."""
    abandoned_threads: int = 0
    """Threads that still run a function after its time limit, as of the last check."""
    running: int = 0
    waiting: int = 0
    """Messages in this worker that wait for a free slot."""
