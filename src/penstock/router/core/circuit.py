"""Whether a target is called at all (specification 001, "Circuit Breaker").

    closed ──half of the last 10 calls failed──> open ──5 s──> half open ──3 calls succeed──> closed
                                                  ^                │
                                                  └──a call fails──┘

While it is half open, one call at a time may go through to test the target. The breaker records outcomes: a target that refuses a
message is up.

A target may also ask for a pause (429, or `Retry-After` of a 503). No call is made until the pause is over; then one at a time,
until the target answers with anything but another request for a pause.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Self

import msgspec

from penstock.durations import SECOND
from penstock.router.core.outcome import Health

WINDOW = 10
FAILURES = 5
"""This many failures in the last WINDOW calls open it."""
OPEN_FOR = 5 * SECOND
SUCCESSES = 3
"""This many successful calls in a row close it."""

PROBE_WAIT = SECOND
"""How long other calls wait while the first call after a pause is running."""

_ALL = (1 << WINDOW) - 1


class State(StrEnum):
    """The state of a breaker."""

    CLOSED = "CLOSED"
    OPEN = "OPEN"
    HALF_OPEN = "HALF_OPEN"


class ExportedBreaker(msgspec.Struct, frozen=True, array_like=True):
    """A breaker in a form for other processes: with durations, since instants mean nothing elsewhere."""

    state: State = State.CLOSED
    window: int = 0
    calls: int = 0
    passed: int = 0
    open_for: int = 0
    """Microseconds until the target may be called again."""
    paused_for: int = 0
    is_resuming: bool = False


class Breaker:
    """The breaker of one target."""

    __slots__ = (
        "_calls",
        "_is_probed",
        "_is_resuming",
        "_passed",
        "_window",
        "epoch",
        "error",
        "failed",
        "is_clean",
        "open_until",
        "paused_until",
        "rejected",
        "state",
        "succeeded",
        "used_at",
    )

    def __init__(self) -> None:
        self.state = State.CLOSED
        self.succeeded = self.failed = self.rejected = 0
        self.used_at = 0
        self.epoch = 0
        """Counts the changes of state: the outcome of a call from before the last change says nothing about the present state."""
        self.is_clean = False
        """Whether it is closed and all recent calls succeeded: then another success only changes the total."""
        self.paused_until = 0
        """The end of the pause that the target asked for."""
        self._is_resuming = False
        """Whether no answer since the pause has shown that it is over."""
        self._window = 0
        """One bit for each of the last calls, 1 for a failure."""
        self._calls = 0
        self.open_until = 0
        """When the target may be called again after it opened."""
        self.error = ""
        """The result of the last call that the target did not accept."""
        self._passed = 0
        self._is_probed = False

    def may(self, now: int) -> int:
        """0 if a call may be made; its outcome must then be recorded. Otherwise how long to wait before asking again."""
        self.used_at = now
        if self.is_calm:
            return 0
        if self.state is State.OPEN and now >= max(self.open_until, self.paused_until):
            self.state, self._passed, self._is_probed = State.HALF_OPEN, 0, False
            self.epoch += 1
        if self.state is not State.OPEN and now >= self.paused_until and not self._is_probed:
            self._is_probed = True
            return 0
        self.rejected += 1
        if self.state is State.OPEN or now < self.paused_until:
            return max(self.open_until, self.paused_until) - now
        return OPEN_FOR if self.state is State.HALF_OPEN else PROBE_WAIT

    @property
    def is_calm(self) -> bool:
        """Whether any number of calls may be made."""
        return self.state is State.CLOSED and not self._is_resuming

    def pause(self, until: int) -> None:
        """The target asks for no calls until then. Running calls say nothing about the time after it."""
        self.paused_until = max(self.paused_until, until)
        self._is_resuming, self._is_probed, self.is_clean = True, False, False
        self.epoch += 1

    def record(self, health: Health, now: int, epoch: int) -> bool:
        """Record the outcome of a call that was made in this `epoch`; True if the state changed."""
        self.used_at = now
        if health is Health.UP:
            self.succeeded += 1
        elif health is Health.DOWN:
            self.failed += 1
        if epoch != self.epoch:
            return False
        self._is_resuming = False
        if self.state is State.CLOSED:
            self._is_probed = False
            return health is not Health.UNKNOWN and self._count(health, now)
        self._is_probed = False
        if health is Health.DOWN:
            return self._open(now)
        if health is Health.UP:
            self._passed += 1
            if self._passed >= SUCCESSES:
                self.reset()
                return True
        return False

    def reset(self) -> None:
        """Close it and end a pause. The totals stay."""
        self.state = State.CLOSED
        self.paused_until = self.open_until = 0
        self._is_resuming = False
        self.epoch += 1
        self._window = self._calls = self._passed = 0
        self._is_probed = self.is_clean = False

    @property
    def failure_rate(self) -> float:
        """The share of failed calls in the window, 0 to 1."""
        return self._window.bit_count() / self.buffered if self._calls else 0.0

    @property
    def buffered(self) -> int:
        return min(self._calls, WINDOW)

    def export(self, now: int) -> ExportedBreaker:
        """The state that another process needs to continue, without running calls."""
        return ExportedBreaker(
            self.state,
            self._window,
            min(self._calls, WINDOW),
            self._passed,
            max(self.open_until - now, 0),
            max(self.paused_until - now, 0),
            self._is_resuming,
        )

    @classmethod
    def restore(cls, state: ExportedBreaker, now: int) -> Self:
        """The breaker that was exported, as of `now`; its totals start at 0."""
        made = cls()
        made.state, made._window, made._calls, made._passed = state.state, state.window, state.calls, state.passed
        made.open_until = now + state.open_for if state.open_for else 0
        made.paused_until = now + state.paused_for if state.paused_for else 0
        made._is_resuming = state.is_resuming
        made.used_at = now
        return made

    def _count(self, health: Health, now: int) -> bool:
        """Add a call to the window; True if that opens the breaker."""
        self._window = (self._window << 1 | (health is Health.DOWN)) & _ALL
        self._calls += 1
        self.is_clean = not self._window and self._calls >= WINDOW
        return self._calls >= WINDOW and self._window.bit_count() >= FAILURES and self._open(now)

    def _open(self, now: int) -> bool:
        self.state, self.open_until = State.OPEN, now + OPEN_FOR
        self.epoch += 1
        self.is_clean = False
        return True


def merge(states: Iterable[ExportedBreaker]) -> ExportedBreaker:
    """Merge the states in which several processes left the breaker of a target: the most restrictive one counts."""
    return max(states, key=_distrust)


def _distrust(state: ExportedBreaker) -> tuple[int, ...]:
    order = (State.CLOSED, State.HALF_OPEN, State.OPEN).index(state.state)
    return (order, state.open_for, state.paused_for, state.is_resuming, -state.passed, state.window.bit_count(), state.calls)
