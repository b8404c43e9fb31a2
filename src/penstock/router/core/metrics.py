"""The counters of pools and queues. Called once or twice a message, so an event costs a comparison and an addition or two.

Windows cost nothing more: the counters only grow, and every ten seconds in which something happens they are copied into a
history. The numbers of the last five minutes are the counters now minus the counters then.

One thread writes; any thread may read, and may see numbers that are an instant old.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import Final

import msgspec

from penstock.durations import FOREVER, SECOND
from penstock.router.core.outcome import Metric, Severity
from penstock.router.core.warnings import Category

STEP: Final = 10 * SECOND
FIVE_MINUTES: Final = 300 * SECOND
THIRTY_MINUTES: Final = 1800 * SECOND
BOUNDS: Final = tuple(int(bound * SECOND) for bound in (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10))

BACKLOG: Final = 1_000
"""If more messages than this wait in a queue, there is a warning."""
GROWTH: Final = 100
"""A queue grows if it has at least this many more messages at the end of a period than at its start."""
GROWTH_PERIOD: Final = 30 * SECOND
GROWTH_PERIODS: Final = 3


class History:
    """Copies of growing counters, one for each ten seconds in which they grew, for half an hour."""

    __slots__ = ("_rows", "_times", "_width")

    def __init__(self, width: int) -> None:
        self._width = width
        self._times = array("q")
        self._rows = array("q")

    def keep(self, counters: tuple[int, ...], now: int) -> int:
        """Copy the counters as they were before the present event; returns when to do it again."""
        begin = now - now % STEP
        if self._times and self._times[-1] >= begin:  # the clock was set back: later events count as of that time
            return self._times[-1] + STEP
        too_old = bisect_left(self._times, begin - THIRTY_MINUTES - STEP)
        if too_old:
            # Replaced, not modified: another thread may be reading.
            self._times, self._rows = self._times[too_old:], self._rows[too_old * self._width :]
        self._rows.extend(counters)
        self._times.append(begin)
        return begin + STEP

    def since(self, span: int, now: int, counters: tuple[int, ...]) -> tuple[int, ...]:
        """How much the counters grew within the span, with a resolution of ten seconds; `counters` are the present ones."""
        # The reading thread may have been interrupted after it read the counters: then the difference is 0, not negative.
        return tuple(max(count - old, 0) for count, old in zip(counters, self._before(span, now, counters), strict=True))

    def _before(self, span: int, now: int, counters: tuple[int, ...]) -> tuple[int, ...]:
        times, rows, width = self._times, self._rows, self._width
        index = bisect_left(times, now - span - STEP + 1)
        row = rows[index * width : (index + 1) * width]
        return tuple(row) if len(row) == width else counters


class PoolCounts(msgspec.Struct, frozen=True):
    """What happened in a pool within a span, or since it was created."""

    succeeded: int
    failed: int
    transient: int
    throttled: int
    """Attempts that the target answered with 429."""
    rate_limited: int
    """Waits for the pool's own rate limit."""
    time: int
    """The total duration of all attempts in microseconds."""

    @property
    def processed(self) -> int:
        """Messages that were delivered or failed. Messages that are retried do not count."""
        return self.succeeded + self.failed

    @property
    def success_rate(self) -> float:
        """1 if no message was processed."""
        return self.succeeded / self.processed if self.processed else 1.0

    @property
    def attempts(self) -> int:
        return self.succeeded + self.failed + self.transient + self.throttled

    @property
    def average_time(self) -> float:
        """The average duration of an attempt in microseconds; 0 if there was none."""
        return self.time / self.attempts if self.attempts else 0.0


class PoolMetrics:
    """The counters of a pool."""

    __slots__ = (
        "_history",
        "_until",
        "durations",
        "errors",
        "failed",
        "rate_limited",
        "submitted",
        "succeeded",
        "throttled",
        "time",
        "transient",
    )

    def __init__(self) -> None:
        self.submitted = 0
        """Messages that the pool accepted; the caller of `submit` counts them."""
        self.succeeded = 0
        self.failed = 0
        self.transient = 0
        self.throttled = 0
        self.rate_limited = 0
        self.time = 0
        """The total duration of all attempts in microseconds."""
        self.durations = [0] * (len(BOUNDS) + 1)
        """The number of attempts by duration; the last counts those above all bounds."""
        self.errors: dict[str, int] = {}
        """Attempts that did not succeed, by kind of error."""
        self._history = History(6)
        self._until = 0

    def finished(self, metric: Metric, duration: int, now: int) -> None:
        """An attempt ended, after this many microseconds."""
        if now >= self._until:
            self._until = self._history.keep(self._counters(), now)
        if metric is Metric.SUCCEEDED:
            self.succeeded += 1
        elif metric is Metric.TRANSIENT:
            self.transient += 1
        elif metric is Metric.FAILED:
            self.failed += 1
        elif metric is Metric.THROTTLED:
            self.throttled += 1
        else:
            return  # no call was made: there is nothing to measure
        self.time += duration
        self.durations[bisect_left(BOUNDS, duration)] += 1

    def limited(self, count: int, now: int) -> None:
        """Messages had to wait for the pool's rate limit."""
        if now >= self._until:
            self._until = self._history.keep(self._counters(), now)
        self.rate_limited += count

    def errored(self, kind: str) -> None:
        """An attempt failed, with `ERROR_PROCESS` or another kind. Call this in addition to `finished`."""
        self.errors[kind] = self.errors.get(kind, 0) + 1

    def numbers(self, span: int | None, now: int) -> PoolCounts:
        """What happened within the span, or since the start if it is None."""
        counters = self._counters()
        return PoolCounts(*(counters if span is None else self._history.since(span, now, counters)))

    def _counters(self) -> tuple[int, int, int, int, int, int]:
        return self.succeeded, self.failed, self.transient, self.throttled, self.rate_limited, self.time


class QueueCounts(msgspec.Struct, frozen=True):
    """What happened to a queue's messages within a span, or since it was opened."""

    received: int
    consumed: int
    """Acked at the queue."""
    failed: int
    """Released because they could not be delivered."""
    deferred: int
    """Released because there was no room for them, or a target asked for it."""
    per_second: float
    """Messages consumed."""

    @property
    def success_rate(self) -> float:
        """1 when nothing was settled."""
        settled = self.consumed + self.failed
        return self.consumed / settled if settled else 1.0


class QueueFinding(msgspec.Struct, frozen=True):
    """A finding about a queue that deserves a warning; the source of the warning is the queue."""

    category: Category
    severity: Severity
    message: str


# The texts have no numbers, so that equal ones are counted in one warning while the problem lasts.
_BACKLOG: Final = QueueFinding(Category.QUEUE_BACKLOG, Severity.WARN, f"more than {BACKLOG} messages wait in the queue")
_GROWING: Final = QueueFinding(
    Category.QUEUE_GROWING,
    Severity.WARN,
    f"the queue grew by {GROWTH} messages or more in each of the last {GROWTH_PERIODS} periods of 30 s",
)


class QueueMetrics:
    """The counters of a queue, and its depth."""

    __slots__ = (
        "_checked_at",
        "_checked_pending",
        "_consumed",
        "_deferred",
        "_failed",
        "_growths",
        "_history",
        "_opened_at",
        "_received",
        "_until",
        "dead",
        "not_visible",
        "pending",
    )

    def __init__(self, now: int) -> None:
        self._received = 0
        self._consumed = 0
        self._failed = 0
        self._deferred = 0
        self._history = History(4)
        self._until = 0
        self._opened_at = now
        self.dead: dict[str, int] = {}
        """Dead letters, by reason. They are also counted as consumed."""
        self.pending = 0
        """Messages that can be delivered, when the depth was last read."""
        self.not_visible = 0
        """Messages that are leased or delayed, when the depth was last read."""
        self._checked_at = -FOREVER
        self._checked_pending = 0
        self._growths = 0

    def received(self, count: int, now: int) -> None:
        if now >= self._until:
            self._until = self._history.keep(self._counters(), now)
        self._received += count

    def consumed(self, now: int) -> None:
        if now >= self._until:
            self._until = self._history.keep(self._counters(), now)
        self._consumed += 1

    def dead_lettered(self, reason: str) -> None:
        """A message was kept as a dead letter. Call this in addition to `consumed`."""
        self.dead[reason] = self.dead.get(reason, 0) + 1

    def failed(self, now: int) -> None:
        """A message was released because it could not be delivered."""
        if now >= self._until:
            self._until = self._history.keep(self._counters(), now)
        self._failed += 1

    def deferred(self, count: int, now: int) -> None:
        """Messages were released because there was no room for them, or because their target asked for it."""
        if now >= self._until:
            self._until = self._history.keep(self._counters(), now)
        self._deferred += count

    def depth(self, pending: int, not_visible: int, now: int) -> list[QueueFinding]:
        """The depth of the queue was read; returns findings that deserve a warning."""
        self.pending, self.not_visible = pending, not_visible
        found = [_BACKLOG] if pending > BACKLOG else []
        if now - self._checked_at >= GROWTH_PERIOD:
            has_grown = self._checked_at >= 0 and pending - self._checked_pending >= GROWTH
            self._growths = self._growths + 1 if has_grown else 0
            self._checked_at, self._checked_pending = now, pending
            if self._growths >= GROWTH_PERIODS:
                found.append(_GROWING)
        return found

    def numbers(self, span: int | None, now: int) -> QueueCounts:
        """What happened within the span, or since the start if it is None."""
        counters, age = self._counters(), max(now - self._opened_at, SECOND)
        if span is None:
            return QueueCounts(*counters, counters[1] * SECOND / age)
        received, consumed, failed, deferred = self._history.since(span, now, counters)
        return QueueCounts(received, consumed, failed, deferred, consumed * SECOND / min(span, age))

    def _counters(self) -> tuple[int, int, int, int]:
        return self._received, self._consumed, self._failed, self._deferred
