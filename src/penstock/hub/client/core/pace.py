"""How fast a client sends after the hub has said that it sends too fast."""

from __future__ import annotations

from penstock.durations import SECOND

FORGOTTEN = SECOND
"""After so long without anything to send, nobody has to wait any more: the hub has forgotten too."""


class Pace:
    """Whose turn is when, in microseconds: at once, and after a refusal one request after another, as far apart as the hub wants.

    Those that were refused together must not come back together: all but one would be refused again, and a hub closes the
    connection of a client that goes on like that.
    """

    __slots__ = ("_free_at", "_gap")

    def __init__(self) -> None:
        self._gap = 0
        self._free_at = 0

    def refused(self, now: int, retry_after: int, gap: int) -> None:
        """A request was refused: the next one may come after `retry_after`, and then one each `gap`."""
        self._gap = max(gap, 1)
        self._free_at = max(self._free_at, now + retry_after)

    def turn(self, now: int) -> int:
        """How long to wait before one request is sent."""
        if now > self._free_at + FORGOTTEN:
            self._gap = 0
        if not self._gap:
            return 0
        at = max(now, self._free_at)
        self._free_at = at + self._gap
        return at - now
