"""Requests under way, and one timer for the timeouts of all of them.

    post ──> waiting at its origin ──> on a connection ──> done(answer or failure)
                    └────────┴── cancel or timeout: the holder drops it

A call is under way exactly as long as it is in its lane. Removing it from the lane ends it, so it ends once.
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
    """The holder of a call: the origin where it waits, or a connection."""

    def drop(self, call: HttpCall) -> None:
        """Drop a call that ended before its answer arrived."""


class HttpCall(msgspec.Struct, gc=False, eq=False):
    """A request, and the callback for its answer."""

    target: Target
    headers: bytes
    body: bytes
    done: Done
    lane: dict[HttpCall, float]
    place: CallHolder | None = None
    is_replaced: bool = False
    """Whether it was sent a second time, because the kept-alive connection was already closed."""

    def cancel(self) -> None:
        """Cancel it: `done` will not be called. No effect if it was already called."""
        if self.lane.pop(self, None) is not None:
            self._leave()

    def finish(self, found: Answer | Failure) -> None:
        """Report the result. The holder must have dropped the call before."""
        if self.lane.pop(self, None) is not None:
            self.done(found)

    def cut_off(self, failure: Failure) -> None:
        """End it with a failure, wherever it is."""
        if self.lane.pop(self, None) is not None:
            self._leave()
            self.done(failure)

    def _leave(self) -> None:
        place, self.place = self.place, None
        if place is not None:
            place.drop(self)


class Deadlines:
    """All calls under way, in lanes of equal timeouts. The first call of a lane times out first, so one timer serves all."""

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
        """End every call, also those that the callbacks of these calls start."""
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
            self._loop.call_soon(call.cut_off, TIMED_OUT)  # in separate callbacks: one that fails must not stop the others


TIMED_OUT: Final = Failure(FailureKind.TIMEOUT, "the target did not answer in time")
