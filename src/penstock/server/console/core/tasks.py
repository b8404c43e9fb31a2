"""How deliveries of work queues ended, by task."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from penstock.durations import SECOND

Outcome = Literal["done", "failed", "dead"]


class TaskLine(msgspec.Struct):
    """How deliveries of a task's messages ended, and how long they took from lease to end; None: no lease is in sight.

    Without a name: messages that are no calls of a task, and those whose payloads the caller may not see.
    """

    task: str | None
    queue: str
    done: int
    failed: int
    """Nacked, or not settled in time; includes those that were dead-lettered."""
    dead: int
    p50_seconds: float | None
    p95_seconds: float | None


@dataclass(slots=True)
class Ended:
    """A delivery that ended."""

    queue: int
    offset: int
    at: int
    outcome: Outcome
    seconds: float | None = None


class Deliveries:
    """The newest deliveries that ended, at most `most` and none before `since`, from events that are taken newest first."""

    def __init__(self, most: int, since: int) -> None:
        self._most, self.since, self.reached, self._is_full = most, since, since, False
        self._open: dict[tuple[int, int], Ended] = {}
        self.ended: list[Ended] = []

    @property
    def is_complete(self) -> bool:
        """Whether older events add nothing."""
        return self._is_full and not self._open

    def reach(self, at: int) -> None:
        """Report the time of the next event."""
        self.reached = at
        self._is_full = self._is_full or at < self.since

    def end(self, queue: int, offsets: Iterable[int], outcome: Outcome) -> None:
        """These deliveries ended."""
        for offset in offsets:
            if self._is_full:
                return
            ended = self._open[queue, offset] = Ended(queue, offset, self.reached, outcome)
            self.ended.append(ended)
            if len(self.ended) >= self._most:
                self._is_full, self.since = True, ended.at

    def lease(self, queue: int, offsets: Iterable[int]) -> None:
        """These deliveries started."""
        for offset in offsets:
            ended = self._open.pop((queue, offset), None)
            if ended is not None:
                ended.seconds = max(ended.at - self.reached, 0) / SECOND


def by_task(ended: Iterable[tuple[str, str | None, Ended]]) -> list[TaskLine]:
    """Deliveries, each with its queue and task, in groups; those with the most failures first."""
    groups: dict[tuple[str, str | None], list[Ended]] = defaultdict(list)
    for queue, task, one in ended:
        groups[queue, task].append(one)
    lines = []
    for (queue, task), group in groups.items():
        times = sorted(one.seconds for one in group if one.seconds is not None)
        done, dead = (sum(one.outcome == outcome for one in group) for outcome in ("done", "dead"))
        lines.append(TaskLine(task, queue, done, len(group) - done, dead, _percentile(times, 0.5), _percentile(times, 0.95)))
    return sorted(lines, key=lambda line: (-line.failed / (line.done + line.failed), line.task or "", line.queue))


def _percentile(ordered: Sequence[float], part: float) -> float | None:
    return round(ordered[math.ceil(part * len(ordered)) - 1], 6) if ordered else None
