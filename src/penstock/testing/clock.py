"""A clock that moves only when a test advances it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from datetime import datetime, timedelta

from penstock.durations import instant, micros, to_datetime

_DEFAULT_START = 1_767_225_600_000_000


class ManualClock:
    """Time stands still until `advance`; effects are visible in the next call of any kind.

    A call that waits (`consume(timeout=…)`) ends when a message arrives, when this clock has advanced by its timeout, or when
    that much real time has passed: a test that forgets to advance is slow, but never stuck.
    """

    runs = False

    def __init__(self, start: datetime | float | None = None) -> None:
        self._now = _DEFAULT_START if start is None else instant(start, "start")
        self._lock = threading.Lock()
        self._waiting: weakref.WeakSet[threading.Condition] = weakref.WeakSet()
        self._listening: list[Callable[[], None]] = []

    def now(self) -> int:
        return self._now

    @property
    def time(self) -> datetime:
        """The current time, as an aware UTC datetime."""
        return to_datetime(self._now)

    def advance(self, seconds: float | timedelta) -> None:
        """Move the time forward, and wake every waiting call and timer."""
        step = micros(seconds, "seconds")
        with self._lock:
            self._now += step
            waiting = list(self._waiting)
            listening = list(self._listening)
        for condition in waiting:
            with condition:
                condition.notify_all()
        for ring in listening:
            ring()

    def listen(self, ring: Callable[[], None]) -> Callable[[], None]:
        with self._lock:
            self._listening.append(ring)

        def stop() -> None:
            with self._lock:
                if ring in self._listening:
                    self._listening.remove(ring)

        return stop

    def wait(self, condition: threading.Condition, timeout: int | None) -> bool:
        with self._lock:
            self._waiting.add(condition)
        until = None if timeout is None else self._now + timeout
        notified = condition.wait(None if timeout is None else timeout / 1_000_000)
        return notified and (until is None or self._now < until)
