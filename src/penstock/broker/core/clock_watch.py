"""Detects jumps of the clock: after a jump of more than a day, retention is paused for an hour.

A jump is stored as a document before any event with the time after it. Otherwise, for a restart within that hour, the last event
in the log would look recent.
"""

from __future__ import annotations

import msgspec

from penstock.durations import DAY, SECOND

DOCUMENT = "clock:jump"
JUMP = DAY
"""A clock that is further than this ahead of the expected time may be wrong."""
CORRECTION_TIME = 3_600 * SECOND
"""How long retention is paused after a jump, so that the clock can be corrected."""


class ClockJump(msgspec.Struct, frozen=True):
    """A jump of the clock that may still be corrected."""

    since: int
    """The last time that was plausible."""
    until: int
    """When the hour is over, by the clock after the jump."""


def encode(jump: ClockJump) -> bytes:
    return msgspec.json.encode(jump)


def decode(body: bytes) -> ClockJump:
    return msgspec.json.decode(body, type=ClockJump)


class ClockWatch:
    """Compares the clock with the last event at a start (`wrote_at`), and with a monotonic clock from then on.

    `stored` is the stored jump that a restart found.
    """

    def __init__(self, now: int, steady: int, wrote_at: int, stored: ClockJump | None) -> None:
        self.jump = _at_start(now, wrote_at, stored)
        """The jump for which retention is paused; None if the clock looks right."""
        self._held_until = steady + self.jump.until - now if self.jump is not None else 0
        """The end of the hour by the monotonic clock."""
        self._seen = now, steady

    def look(self, now: int, steady: int) -> bool:
        """Start a jump, or end it when its hour is over or the clock was corrected. Returns whether `jump` has changed."""
        expected = self._seen[0] + steady - self._seen[1]
        self._seen = now, steady
        before = self.jump
        if now - expected > JUMP:
            self.jump = ClockJump(expected if before is None else before.since, now + CORRECTION_TIME)
            self._held_until = steady + CORRECTION_TIME
        elif before is not None and (steady >= self._held_until or now - before.since <= JUMP):
            self.jump = None
        return self.jump is not before

    def look_at(self) -> int:
        """When to check again at the latest, by the clock: any jump goes beyond it."""
        now, steady = self._seen
        return now + JUMP if self.jump is None else now + min(max(self._held_until - steady, 0), JUMP)


def _at_start(now: int, wrote_at: int, stored: ClockJump | None) -> ClockJump | None:
    is_recent = now - wrote_at <= JUMP
    if stored is None:
        return None if is_recent else ClockJump(wrote_at, now + CORRECTION_TIME)
    is_over = is_recent and now >= stored.until
    if is_over or now - stored.since <= JUMP:
        return None
    is_same = stored.until - CORRECTION_TIME <= now < stored.until
    return stored if is_same else ClockJump(stored.since, now + CORRECTION_TIME)
