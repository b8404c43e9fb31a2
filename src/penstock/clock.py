"""The only place that reads time.

There are two kinds of time: wall time, in microseconds since 1970, which is stored and compared across restarts; and the time
that a thread waits, which `wait` measures by itself. They are never compared with each other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """The port to time that a broker uses."""

    runs: bool
    """Whether time passes by itself, so that timers are needed. It does not in tests with a manual clock."""

    def now(self) -> int:
        """Wall time in microseconds since 1970. May step backwards; nothing may rely on it not to."""

    def listen(self, ring: Callable[[], None]) -> Callable[[], None]:
        """Call `ring`, from any thread, whenever time jumps, as a manual clock does. Returns a function that ends this."""

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
    """Return a monotonic clock for spans inside this process; with a manual clock, the time of that clock."""
    return monotonic if clock.runs else clock.now


def monotonic() -> int:
    """Microseconds of a monotonic clock, to measure spans inside this process."""
    return time.monotonic_ns() // 1000
