"""How often a pool may call: so many times a minute (specification 001, "Rate Limiting")."""

from __future__ import annotations

from penstock.durations import SECOND
from penstock.errors import InvalidArgument

MINUTE = 60 * SECOND


class RateLimit:
    """A bucket that holds the permits of one minute and fills evenly. Says how long to wait; never waits."""

    __slots__ = ("_due", "_slack", "_step", "per_minute")

    def __init__(self, per_minute: int) -> None:
        if per_minute < 1:
            raise InvalidArgument.of("rate_per_minute", per_minute, "a whole number from 1 on", hint="leave it out for no limit")
        self.per_minute = per_minute
        self._step = -(-MINUTE // per_minute)  # rounded up: never faster than asked
        self._slack = (per_minute - 1) * self._step
        self._due: int | None = None
        """When the next permit would be due if none could be saved up; None before the first."""

    def take(self, now: int) -> int:
        """Take a permit and return 0, or return the time until there is one."""
        full = now - self._slack
        due = full if self._due is None or self._due < full else self._due
        if due > now:
            return due - now
        self._due = due + self._step
        return 0
