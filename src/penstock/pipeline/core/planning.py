"""Splits ranges of offsets into tasks, and shares a limit between streams. The same input always gives the same plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

SMALL_ROWS = 10_000
"""Fewer rows are not worth a separate task, unless more tasks are requested."""
LARGE_ROWS = 1_000_000
"""The maximum number of rows of a task: a task that fails starts again."""


class OffsetRange(NamedTuple):
    """The offsets from `start` up to, not including, `stop` of a stream, which is identified by name and number."""

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
    """The pieces in parts with equal numbers of rows, one part for each task; every offset is in exactly one part.

    Large streams are split, small ones are combined. There are about `cores` parts, fewer if there is little to read.
    `min_partitions` is the minimum number of parts, `max_rows` the maximum size of a part.
    """
    pieces = [piece for piece in pieces if piece.rows > 0]
    total = sum(piece.rows for piece in pieces)
    if not total:
        return []
    count = min_partitions or min(cores, -(-total // SMALL_ROWS))
    count = min(max(count, -(-total // (max_rows or LARGE_ROWS))), total)
    return _cut(pieces, [total * part // count for part in range(1, count + 1)])


def _cut(pieces: Sequence[OffsetRange], ends: Sequence[int]) -> list[list[OffsetRange]]:
    """Concatenate the pieces and cut them at row numbers."""
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
    """How many rows of each stream a limit allows, in proportion to the waiting rows; at least one each, if possible.

    The longest streams come first, so that a stream that gets nothing now, and grows, gets its turn. The limit is fully used.
    """
    order = sorted((stream for stream, rows in waiting.items() if rows > 0), key=lambda stream: (-waiting[stream], stream))
    if sum(waiting[stream] for stream in order) <= limit:
        return {stream: waiting[stream] for stream in order}
    given = dict.fromkeys(order[:limit], 1)
    total, left = sum(waiting[stream] - 1 for stream in given), limit - len(given)
    for stream in given:
        rest = waiting[stream] - 1
        # Each takes its part of the remaining limit, rounded up: it never exceeds its rows, and the last takes the rest.
        more = -(-rest * left // total) if left else 0
        given[stream] += more
        left, total = left - more, total - rest
    return given
