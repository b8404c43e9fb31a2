"""A request under way, and the one timer that ends those that take too long.

    post ──> waiting at its origin ──> on a connection ──> done(answer or failure)
                    └────────┴── cancel, or its time is up: whoever has it lets go of it

A call is under way exactly as long as it stands in its lane; what takes it out of there is what ends it, so it ends once.
"""

from __future__ import annotations

import asyncio
from math import inf
from typing import Final, Protocol

import msgspec

from penstock.http.client.target import Target
from penstock.http.client.transport import Answer, Done, Failure, FailureKind

MANY_LANES: Final = 64


class CallHolder(Protocol):
    """Who has a call: an origin where it waits, or a connection."""

    def drop(self, call: HttpCall) -> None:
        """Let go of a call that ended before its answer was there."""


class HttpCall(msgspec.Struct, gc=False, eq=False):
    """A request, and who is to hear of its answer."""

    target: Target
    headers: bytes
    body: bytes
    done: Done
    lane: dict[HttpCall, float]
    place: CallHolder | None = None
    is_replaced: bool = False
    """Whether it was sent again already, since a kept connection turned out closed."""

    def cancel(self) -> None:
        """Cut it off; `done` is not called any more. No effect when it was called already."""
        if self.lane.pop(self, None) is not None:
            self._leave()

    def finish(self, found: Answer | Failure) -> None:
        """Tell what came of it. Whoever has it has let go of it before."""
        if self.lane.pop(self, None) is not None:
            self.done(found)

    def cut_off(self, failure: Failure) -> None:
        """End it from outside, wherever it is."""
        if self.lane.pop(self, None) is not None:
            self._leave()
            self.done(failure)

    def _leave(self) -> None:
        place, self.place = self.place, None
        if place is not None:
            place.drop(self)


class Deadlines:
    """All calls under way, in lanes of equal timeouts: in each the first is the next to end, so that one timer serves all."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._time = loop.time
        self._lanes: dict[float, dict[HttpCall, float]] = {}
        self._due = inf
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, target: Target, headers: bytes, body: bytes, timeout: float, done: Done) -> HttpCall:
        lane = self._lanes.get(timeout)
        if lane is None:
            lane = self._new_lane(timeout)
        call = HttpCall(target, headers, body, done, lane)
        deadline = lane[call] = self._time() + timeout
        if deadline < self._due:
            self._arm(deadline)
        return call

    def close(self, failure: Failure) -> None:
        """End every call, and those that these calls bring about."""
        while calls := [call for lane in self._lanes.values() for call in lane]:
            for call in calls:
                call.cut_off(failure)
        self._arm(inf)

    def _new_lane(self, timeout: float) -> dict[HttpCall, float]:
        if len(self._lanes) >= MANY_LANES:
            self._lanes = {key: lane for key, lane in self._lanes.items() if lane}
        lane = self._lanes[timeout] = {}
        return lane

    def _arm(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due = due
        self._timer = self._loop.call_at(due, self._ring) if due < inf else None

    def _ring(self) -> None:
        self._timer, self._due = None, inf
        now, late, due = self._time(), list[HttpCall](), inf
        for lane in self._lanes.values():
            for call, deadline in lane.items():
                if deadline > now:
                    due = min(due, deadline)
                    break
                late.append(call)
        self._arm(due)
        for call in late:
            self._loop.call_soon(
                call.cut_off, TIMED_OUT
            )  # each by itself: one listener that fails must not keep it from the others


TIMED_OUT: Final = Failure(FailureKind.TIMEOUT, "the target did not answer in time")
