"""Deliverable messages, by priority, and within a priority by age.

The age is the offset. Most messages arrive and leave in order, so a level keeps *runs* of offsets rather than offsets: a million
waiting messages are one pair of numbers. Requeued messages and the next messages of keys are in a heap beside the runs and are
taken when they are the oldest, so they keep their place by age. Removal from the middle only marks the offset; the mark is
dropped when the offset comes up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush

from penstock.journal.core.ranges import Ranges, merge, subtract

_LEFTOVERS = 512


class Level:
    """The waiting messages of one priority."""

    __slots__ = ("_gone", "_later", "_returned", "_start", "_stop", "count", "priority")

    def __init__(self, ranges: Iterable[tuple[int, int]] = (), priority: int = 0) -> None:
        self.priority = priority
        self._start = 0
        self._stop = 0
        self._later: deque[tuple[int, int]] | None = None
        self._returned: list[int] = []
        self._gone: set[int] = set()
        self.count = 0
        for start, stop in ranges:
            self.add(start, stop)

    def add(self, start: int, stop: int) -> None:
        """Add the offsets from `start` up to `stop`, at their place by age."""
        self.count += stop - start
        if self._gone:
            for offset in range(start, stop):
                self._come_back(offset)
        elif self._start == self._stop and not self._later:
            self._start, self._stop = start, stop
        elif not self._later and start == self._stop:
            self._stop = stop
        elif start >= self._end():
            if self._later is None:
                self._later = deque()
            if self._later and self._later[-1][1] == start:
                self._later[-1] = (self._later[-1][0], stop)
            else:
                self._later.append((start, stop))
        else:
            for offset in range(start, stop):
                heappush(self._returned, offset)

    def _come_back(self, offset: int) -> None:
        """Add an offset while some are marked as removed: if it is one of them, it is in its place already."""
        if offset in self._gone:
            self._gone.discard(offset)
        else:
            heappush(self._returned, offset)

    def remove(self, offset: int) -> None:
        """Remove an offset of this level."""
        self._gone.add(offset)
        self.count -= 1
        if len(self._gone) > self.count + _LEFTOVERS or not self.count:
            self._sweep()

    def _sweep(self) -> None:
        """Rebuild the level: most of its offsets are removed."""
        kept = merge(self.ranges())
        self._start = self._stop = self.count = 0
        self._later, self._returned, self._gone = None, [], set()
        for start, stop in kept:
            self.add(start, stop)

    def take(self, most: int) -> tuple[int, int]:
        """Take the next offsets (start, stop) if they are one run and nothing older waits; otherwise (0, 0): then use `first`."""
        if self._gone or (self._returned and self._returned[0] < self._stop):
            return 0, 0
        start, stop = self._start, self._stop
        if stop - start > most:
            stop = start + most
            self._start = stop
        elif self._later:
            self._start, self._stop = self._later.popleft()
        else:
            self._start = stop
        self.count -= stop - start
        return start, stop

    def first(self) -> int:
        """The oldest offset, which is not removed; there must be one."""
        while True:
            if self._returned and (self._start == self._stop or self._returned[0] < self._start):
                offset = self._returned[0]
                if offset not in self._gone:
                    return offset
                heappop(self._returned)
            else:
                offset = self._start
                if offset not in self._gone:
                    return offset
                self._advance()
            self._gone.discard(offset)

    def pop(self) -> None:
        """Remove the offset that `first` returned."""
        self.count -= 1
        if self._returned and (self._start == self._stop or self._returned[0] < self._start):
            heappop(self._returned)
        else:
            self._advance()

    def __contains__(self, offset: int) -> bool:
        if offset in self._gone:
            return False
        return (
            self._start <= offset < self._stop or any(a <= offset < b for a, b in self._later or ()) or offset in self._returned
        )

    def ranges(self) -> Ranges:
        runs = [(self._start, self._stop), *(self._later or ()), *((offset, offset + 1) for offset in self._returned)]
        waiting = merge(run for run in runs if run[0] < run[1])
        return subtract(waiting, merge((offset, offset + 1) for offset in self._gone)) if self._gone else waiting

    def _advance(self) -> None:
        self._start += 1
        if self._start == self._stop:
            self._next_run()

    def _next_run(self) -> None:
        if self._later:
            self._start, self._stop = self._later.popleft()

    def _end(self) -> int:
        return self._later[-1][1] if self._later else self._stop


class Ready:
    """The levels, most urgent first."""

    __slots__ = ("by_priority", "levels")

    def __init__(self) -> None:
        self.by_priority: dict[int, Level] = {}
        self.levels: list[Level] = []
        """Priorities in the order of delivery."""

    def add(self, priority: int, start: int, stop: int) -> None:
        """Add the offsets from `start` up to `stop` with this priority."""
        level = self.by_priority.get(priority)
        if level is None:
            level = self.by_priority[priority] = Level(priority=priority)
            self.levels = [self.by_priority[p] for p in sorted(self.by_priority, reverse=True)]
        level.add(start, stop)

    def remove(self, priority: int, offset: int) -> None:
        self.by_priority[priority].remove(offset)

    def first(self) -> Level | None:
        """The level of the next message."""
        for level in self.levels:
            if level.count:
                return level
        return None

    def ahead(self, priority: int) -> int:
        """How many wait with this priority or a higher one."""
        count = 0
        for level in self.levels:
            if level.priority >= priority:
                count += level.count
        return count

    def ranges(self) -> Iterator[tuple[int, int]]:
        """Every waiting offset, as ranges in no particular order."""
        for level in self.levels:
            yield from level.ranges()

    def __contains__(self, offset: int) -> bool:
        return any(offset in level for level in self.levels)
