"""Computes a row for each window from samples of queue depths and pool utilisation. No I/O."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

SAMPLES = 4
"""The number of samples in a window."""


class Level(msgspec.Struct, frozen=True):
    """The state of a queue, subscription, pool or target. `retries` and `rate_limit_waits` are totals that never decrease."""

    kind: str
    """`queue`, `subscription`, `pool` or `target`."""
    name: str
    priority: int | None = None
    """If set, only the messages of this priority that can be delivered now are counted; null: all."""
    ready: int = 0
    in_flight: int = 0
    delayed: int = 0
    dead: int = 0
    oldest_seconds: float | None = None
    utilisation: float | None = None
    """The used part of a pool's concurrency."""
    retries: int = 0
    rate_limit_waits: int = 0
    is_open: bool = False
    """Whether the circuit breaker of a target is open."""

    @property
    def key(self) -> tuple[str, str, int | None]:
        return self.kind, self.name, self.priority


class Sample(msgspec.Struct, frozen=True):
    """All levels of a server at one time."""

    at: datetime
    levels: list[Level]


def rows(samples: Sequence[Sample], before: Sample) -> list[dict[str, Any]]:
    """Rows with the columns of LEVELS for a window of samples, which begins at `before`, the last sample of the previous one."""
    totals = {level.key: level for level in before.levels}
    found: dict[tuple[str, str, int | None], list[Level]] = defaultdict(list)
    for sample in samples:
        for level in sample.levels:
            found[level.key].append(level)
    start, end = before.at, samples[-1].at
    span = (end - start).total_seconds() * 1000
    made = []
    for (kind, name, priority), levels in found.items():
        last, first = levels[-1], totals.get(levels[0].key, levels[0])
        ages = [level.oldest_seconds for level in levels if level.oldest_seconds is not None]
        used = [level.utilisation for level in levels if level.utilisation is not None]
        made.append(
            {
                "window_start": start,
                "window_end": end,
                "kind": kind,
                "name": name,
                "priority": priority,
                "ready": last.ready,
                "ready_max": max(level.ready for level in levels),
                "in_flight": last.in_flight,
                "delayed": last.delayed,
                "dead": last.dead,
                "oldest_age_ms": max(ages) * 1000 if ages else None,
                "utilisation": sum(used) / len(used) if used else None,
                # A total that decreased started again at 0: the server was restarted.
                "retries": last.retries - first.retries if last.retries >= first.retries else last.retries,
                "rate_limit_waits": max(last.rate_limit_waits - first.rate_limit_waits, 0),
                "open_ms": span * sum(level.is_open for level in levels) / len(samples),
            }
        )
    return sorted(made, key=lambda row: (row["kind"], row["name"], -1 if row["priority"] is None else row["priority"]))
