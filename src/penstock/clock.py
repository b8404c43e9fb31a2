"""The only place that reads time.

There are two times: wall time, in microseconds since 1970, for what is stored and compared across restarts; and the time a
thread waits here and now, which `wait` measures by itself. They are never compared with each other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """What the broker needs of time."""

    runs: bool
    """Whether time passes by itself, so that timers are needed."""

    def now(self) -> int:
        """Wall time in microseconds since 1970. May step backwards; nothing may rely on it not to."""

    def listen(self, ring: Callable[[], None]) -> Callable[[], None]:
        """Have `ring` called, from any thread, whenever time jumps: that of a test does. Call what is returned to end that."""

    def wait(self, condition: threading.Condition, timeout: int | None) -> bool:
        """Wait on a held condition for `timeout` microseconds (None: forever); False when the time is up."""


class SystemClock:
    """The machine's clock."""

    runs = True

    def now(self) -> int:
        return time.time_ns() // 1000

    def listen(self, ring: Callable[[], None]) -> Callable[[], None]:
        return lambda: None

    def wait(self, condition: threading.Condition, timeout: int | None) -> bool:
        return condition.wait(None if timeout is None else min(timeout / 1_000_000, threading.TIMEOUT_MAX))


def steady(clock: Clock) -> Callable[[], int]:
    """What spans inside this process are measured with: it never steps, unless the clock is a test's, which says when it does."""
    return monotonic if clock.runs else clock.now


def monotonic() -> int:
    """Microseconds of a clock that never steps, for measuring spans inside this process."""
    return time.monotonic_ns() // 1000
