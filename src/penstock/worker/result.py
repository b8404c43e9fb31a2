"""What a worker tells: of one run, and of all."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.worker.core.verdict import Outcome


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
