"""Samples over time: rates from counters, and the last half hour of a project's totals."""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

STEP_SECONDS = 5
KEPT = 30 * 60 // STEP_SECONDS
"""Samples of the totals that are kept: half an hour."""
SMOOTH_SECONDS = 3.0
"""How fast a displayed rate follows the measured one."""
_NOTHING = 0.005
"""A lower rate is displayed as 0, which it would only approach."""


def smoothed(rate: float | None, count: float, seconds: float) -> float:
    """A rate after `count` more in `seconds`; None: there was no rate before.

    A counter that fell (its queue was deleted and created again) counts as nothing.
    """
    now = max(count, 0) / seconds
    if rate is None:
        return now
    followed = rate + (now - rate) * (1 - math.exp(-seconds / SMOOTH_SECONDS))
    return followed if followed >= _NOTHING else 0.0


class Totals(NamedTuple):
    """The numbers of all queues, subscriptions and topics of a scope at one moment."""

    published: int = 0
    acked: int = 0
    backlog: int = 0
    in_flight: int = 0
    delayed: int = 0
    dead: int = 0
    queues: int = 0
    subscriptions: int = 0
    topics: int = 0

    @property
    def ready(self) -> int:
        """Waiting and not delayed."""
        return self.backlog - self.in_flight - self.delayed


class Series:
    """Rates and backlog in equal steps, the newest last. A step without a sample is a gap."""

    __slots__ = ("_last", "backlog", "end", "in_rates", "out_rates")

    def __init__(self) -> None:
        self.in_rates: deque[float | None] = deque(maxlen=KEPT)
        self.out_rates: deque[float | None] = deque(maxlen=KEPT)
        self.backlog: deque[int | None] = deque(maxlen=KEPT)
        self.end = 0.0
        """When the last step ended, in seconds."""
        self._last: Totals | None = None

    def is_due(self, now: float) -> bool:
        """Whether a step has passed since the last sample."""
        return not self.end or now - self.end >= STEP_SECONDS

    def add(self, totals: Totals, now: float) -> None:
        """A sample, at a moment in seconds that `is_due`."""
        last, seconds = self._last, now - self.end
        for _ in range(min(int(seconds / STEP_SECONDS) - 1, KEPT) if last is not None else 0):
            self._append(None, None, None)
        if last is None:
            self._append(None, None, totals.backlog)
        else:
            self._append(
                round(max(totals.published - last.published, 0) / seconds, 3),
                round(max(totals.acked - last.acked, 0) / seconds, 3),
                totals.backlog,
            )
        self._last, self.end = totals, now

    def _append(self, in_rate: float | None, out_rate: float | None, backlog: int | None) -> None:
        self.in_rates.append(in_rate)
        self.out_rates.append(out_rate)
        self.backlog.append(backlog)
