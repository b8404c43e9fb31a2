"""Sets of offsets as ranges: sorted, disjoint (start, stop) pairs."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

Ranges = list[tuple[int, int]]


def merge(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Any ranges, in any order, as a set: sorted, disjoint, joined."""
    merged: Ranges = []
    for start, stop in sorted(ranges):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return merged


def subtract(ranges: Ranges, holes: Ranges) -> Ranges:
    """The offsets of one set that are not in the other."""
    result: Ranges = []
    index = 0
    for first, stop in ranges:
        start = first
        while index < len(holes) and holes[index][1] <= start:
            index += 1
        at = index
        while at < len(holes) and holes[at][0] < stop:
            if start < holes[at][0]:
                result.append((start, holes[at][0]))
            start = holes[at][1]
            at += 1
        if start < stop:
            result.append((start, stop))
    return result


def holds(ranges: Ranges, offset: int) -> bool:
    """Whether a set contains an offset."""
    return overlaps(ranges, offset, offset + 1)


def overlaps(ranges: Ranges, start: int, stop: int) -> bool:
    """Whether a set contains any offset from `start` up to `stop`."""
    index = bisect_right(ranges, start, key=lambda span: span[1])
    return index < len(ranges) and ranges[index][0] < stop
