"""The numbers of this process: memory, processor, files, and how late the event loop is."""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import Iterator
from pathlib import Path

from penstock.clock import Clock, SystemClock
from penstock.durations import SECOND
from penstock.http.monitoring.samples import Collector, Metric, Sample

_START = Metric("process_start_time_seconds", "gauge", "When this process began to serve, in seconds since 1970.")
_RSS = Metric("process_resident_memory_bytes", "gauge", "Memory that this process holds.")
_CPU = Metric("process_cpu_seconds_total", "counter", "Processor time that this process used, user and system.")
_FDS = Metric("process_open_fds", "gauge", "Open files and sockets.")
_MAX_FDS = Metric("process_max_fds", "gauge", "How many files and sockets may be open.")
_LAG = Metric("penstock_event_loop_lag_seconds", "gauge", "The longest the event loop was late since the last scrape.")
_VERSION = Metric("penstock_info", "gauge", "Always 1; the label is the version that runs.", ("version",))

_PROC = Path("/proc/self")


class LoopLag:
    """Measures how late a timer of the event loop comes. Start it on the loop; `worst` may be asked for in any thread."""

    INTERVAL_SECONDS = 0.25

    def __init__(self) -> None:
        self._worst = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Measure from now on, until `stop`."""
        loop = asyncio.get_running_loop()

        def tick(due: float) -> None:
            now = loop.time()
            self._worst = max(self._worst, now - due)
            self._timer = loop.call_at(now + self.INTERVAL_SECONDS, tick, now + self.INTERVAL_SECONDS)

        if self._timer is None:
            tick(loop.time())

    def stop(self) -> None:
        """Measure no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def worst(self) -> float:
        """The longest lag since this was last asked, in seconds."""
        worst, self._worst = self._worst, 0.0
        return worst


def process_collector(*, version: str, lag: LoopLag | None = None, clock: Clock | None = None) -> Collector:
    """The numbers of this process, from now on."""
    started = (clock or SystemClock()).now() / SECOND

    def collect() -> Iterator[Sample]:
        yield Sample(_VERSION, (version,), 1)
        yield Sample(_START, (), started)
        times = os.times()
        yield Sample(_CPU, (), times.user + times.system)
        yield Sample(_MAX_FDS, (), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        if _PROC.exists():
            yield Sample(_RSS, (), int((_PROC / "statm").read_text().split()[1]) * resource.getpagesize())
            yield Sample(_FDS, (), sum(1 for _ in (_PROC / "fd").iterdir()))
        if lag is not None:
            yield Sample(_LAG, (), lag.worst())

    return collect
