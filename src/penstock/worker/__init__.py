"""Workers: functions that are called by messages.

worker         Worker: what runs, where, and how it stops
task           Task: a decorated function, and sending calls of it
crew           running calls: so many at once, the urgent ones first, within their time limits
lane           one queue's deliveries        threads   where functions that block run
home           the connection, and the event loop it lives in
core/          the rules: what a call looks like, what becomes of one that failed
"""

from penstock.worker.core.verdict import Outcome, Reject, Retry, TimeLimitExceeded
from penstock.worker.result import TaskResult, WorkerStats
from penstock.worker.task import Task
from penstock.worker.worker import Worker

__all__ = ["Outcome", "Reject", "Retry", "Task", "TaskResult", "TimeLimitExceeded", "Worker", "WorkerStats"]
