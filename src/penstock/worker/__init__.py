"""Workers: functions that are called by messages.

worker     Worker: the public class: tasks, start and stop
task       Task: a decorated function, and sending calls of it
executor   running calls, in threads if they block; one reader for each queue
loop       the connection, and the event loop it lives in
core/      the rules: what a call looks like, and what happens to one that failed
"""

from penstock.worker.core.verdict import Outcome, Reject, Retry, TaskResult, TimeLimitExceeded, WorkerStats
from penstock.worker.task import Task
from penstock.worker.worker import Worker

__all__ = ["Outcome", "Reject", "Retry", "Task", "TaskResult", "TimeLimitExceeded", "Worker", "WorkerStats"]
