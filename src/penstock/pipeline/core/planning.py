"""How ranges of offsets become the tasks of a read, and how a limit is shared between streams. The same input, the same plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

SMALL_ROWS = 10_000
"""Fewer rows are not worth a task of their own, unless more tasks are asked for."""
LARGE_ROWS = 1_000_000
"""More rows are not read in one task: one that fails begins again."""


class OffsetRange(NamedTuple):
    """The offsets from `start` up to, not including, `stop` of a stream, which is known by its name and its number."""

    stream: str
    number: int
    start: int
    stop: int

    @property
    def rows(self) -> int:
        return self.stop - self.start


def plan(
    pieces: Iterable[OffsetRange], *, cores: int, min_partitions: int | None = None, max_rows: int | None = None
) -> list[list[OffsetRange]]:
    """The pieces cut into parts of as many rows as each other, one for each task; every offset is in exactly one.

    Large streams are cut, small ones are gathered. There are about as many parts as `cores`, fewer when there is little to read;
    `min_partitions` asks for at least this many, `max_rows` for none that is larger.
    """
    pieces = [piece for piece in pieces if piece.rows > 0]
    total = sum(piece.rows for piece in pieces)
    if not total:
        return []
    count = min_partitions or min(cores, -(-total // SMALL_ROWS))
    count = min(max(count, -(-total // (max_rows or LARGE_ROWS))), total)
    return _cut(pieces, [total * part // count for part in range(1, count + 1)])


def _cut(pieces: Sequence[OffsetRange], ends: Sequence[int]) -> list[list[OffsetRange]]:
    """Pieces laid end to end and cut at row numbers."""
    parts: list[list[OffsetRange]] = []
    waiting = iter(pieces)
    piece, at = next(waiting), 0
    for end in ends:
        part: list[OffsetRange] = []
        while at < end:
            if piece.start == piece.stop:
                piece = next(waiting)
            taken = min(piece.rows, end - at)
            part.append(piece._replace(stop=piece.start + taken))
            piece = piece._replace(start=piece.start + taken)
            at += taken
        parts.append(part)
    return parts


def share(waiting: Mapping[str, int], limit: int) -> dict[str, int]:
    """How many rows of each stream a limit allows, in proportion to how many wait; one at least, as far as the limit goes.

    The longest come first, so that a stream that gets nothing this time, and grows, gets its turn. All of the limit is used.
    """
    order = sorted((stream for stream, rows in waiting.items() if rows > 0), key=lambda stream: (-waiting[stream], stream))
    if sum(waiting[stream] for stream in order) <= limit:
        return {stream: waiting[stream] for stream in order}
    given = dict.fromkeys(order[:limit], 1)
    total, left = sum(waiting[stream] - 1 for stream in given), limit - len(given)
    for stream in given:
        rest = waiting[stream] - 1
        # Each takes its part of what is left, rounded up: it never exceeds what waits, and the last takes what remains.
        more = -(-rest * left // total) if left else 0
        given[stream] += more
        left, total = left - more, total - rest
    return given
