"""What a process of this machine has used so far: its processor time and its memory."""

from __future__ import annotations

import os
import time
from pathlib import Path

PAGE = os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(pid: int) -> float:
    """The processor time of all threads of a process, user and system."""
    # The scheduler's own count, in nanoseconds; `stat` counts ticks of 10 ms.
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def resident(pid: int) -> int:
    """The bytes of memory a process holds."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE


class Meter:
    """Time and processor time from its making on, of a server and of this process, its client."""

    def __init__(self, server: int) -> None:
        self._server = server
        self._cpu = cpu_seconds(server)
        self._own = time.process_time()
        self._start = time.perf_counter()

    def read(self, number: int) -> dict[str, float]:
        """What each of `number` messages took."""
        seconds = time.perf_counter() - self._start
        server, client = cpu_seconds(self._server) - self._cpu, time.process_time() - self._own
        return {
            "rate": number / seconds,
            "server_us": server / number * 1e6,
            "client_us": client / number * 1e6,
            "busy": server / seconds,
        }
