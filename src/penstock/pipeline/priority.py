"""Standing back on the machine of a server: Spark gets what the server, its publishers and its consumers leave of the processors.

Linux may group processes by session (autogroup) and share the processors between the groups: a nice value counts only within one.
Spark's Java has a session of its own, with all its workers, so the group of that session is given the same value.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

NICENESS = 5
"""About a third of the processor time of a process without one, where both want to run. With less, Spark on a busy machine waits
in vain for its Python workers, which have ten seconds to start.
"""


def is_on_this_machine(endpoint: str) -> bool:
    """Whether an address of a server, or one of several, belongs to this machine: one that does can be listened at."""
    return any(_is_here(url) for url in endpoint.split(","))


def _is_here(url: str) -> bool:
    try:
        found = socket.getaddrinfo(urlsplit(url.strip()).hostname or "", 0, type=socket.SOCK_STREAM)
    except (OSError, ValueError):
        return False
    return any(_can_listen(family, address) for family, _, _, _, address in found)


def _can_listen(family: int, address: tuple[object, ...]) -> bool:
    with suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.bind(address)
        return True
    return False


def lower_own() -> None:
    """Lower the priority of the calling thread, and of all that it starts. It cannot be raised again."""
    os.nice(max(NICENESS - os.getpriority(os.PRIO_PROCESS, 0), 0))


def lower_session_of(process: int) -> None:
    """Lower the priority of the session that a process leads, where the kernel shares the processors between sessions."""
    with suppress(OSError):
        Path(f"/proc/{process}/autogroup").write_text(f"{NICENESS}\n", encoding="ascii")


def spare_cores() -> int:
    """All processors of this process but one, which the server has; one at least."""
    return max(len(os.sched_getaffinity(0)) - 1, 1)
