"""Names in order, so that a page of them costs what the page costs, however many there are and however often they change.

They lie in blocks of bounded length: a name that comes or goes moves only its block. One list would move half of all names each
time, and sorting when somebody asks would stop the hub for as long as it takes.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from operator import itemgetter

BLOCK = 512
"""A block is cut in two when it is twice as long."""
_AFTER = "\x7f"
"""Sorts behind every character of a name."""

_last = itemgetter(-1)


class Names:
    """A set of names that is always sorted. Names are ASCII; prefixes may be anything."""

    __slots__ = ("_blocks",)

    def __init__(self) -> None:
        self._blocks: list[list[str]] = []  # none of them empty

    def add(self, name: str) -> None:
        """Put in a name that is not there."""
        blocks = self._blocks
        if not blocks:
            blocks.append([name])
            return
        at = min(bisect_left(blocks, name, key=_last), len(blocks) - 1)
        block = blocks[at]
        insort(block, name)
        if len(block) == 2 * BLOCK:
            blocks.insert(at + 1, block[BLOCK:])
            del block[BLOCK:]

    def remove(self, name: str) -> None:
        """Take out a name that is there."""
        at = bisect_left(self._blocks, name, key=_last)
        block = self._blocks[at]
        del block[bisect_left(block, name)]
        if not block:
            del self._blocks[at]

    def count(self, prefix: str) -> int:
        """How many begin with a prefix."""
        return self._rank(prefix + _AFTER) - self._rank(prefix)

    def page(self, prefix: str, offset: int, limit: int) -> list[str]:
        """Those that begin with a prefix, from the one at `offset` among them on, at most `limit`."""
        first = self._rank(prefix)
        start, stop = first + offset, min(first + offset + limit, self._rank(prefix + _AFTER))
        found: list[str] = []
        for block in self._blocks:
            if stop <= 0:
                break
            found += block[max(start, 0) : stop]
            start -= len(block)
            stop -= len(block)
        return found

    def _rank(self, name: str) -> int:
        """How many sort before a name."""
        at = bisect_left(self._blocks, name, key=_last)
        before = sum(map(len, self._blocks[:at]))
        return before + bisect_left(self._blocks[at], name) if at < len(self._blocks) else before
