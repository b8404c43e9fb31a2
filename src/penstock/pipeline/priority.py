"""Low priority on the machine of a server: Spark gets the processor time that the server and its clients do not use.

Linux may group processes by session (autogroup) and share the processors between the groups: a nice value only has an effect
within a group. Spark's Java has its own session, with all its workers, so the group of that session gets the same value.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

NICENESS = 5
"""If both are busy, a process with this value gets about a third of the processor time of a process without. With less, the
Python workers of Spark may not start within their limit of ten seconds on a busy machine.
"""


def is_on_this_machine(endpoint: str) -> bool:
    """Whether an address of a server, or one of several, belongs to this machine: it does if a socket can be bound to it."""
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
    """Lower the priority of the calling thread, and of everything it starts. It cannot be raised again."""
    os.nice(max(NICENESS - os.getpriority(os.PRIO_PROCESS, 0), 0))


def lower_session_of(process: int) -> None:
    """Lower the priority of the session that a process leads, if the kernel schedules by session."""
    with suppress(OSError):
        Path(f"/proc/{process}/autogroup").write_text(f"{NICENESS}\n", encoding="ascii")


def spare_cores() -> int:
    """The number of processors of this process minus one, which is left for the server; at least 1."""
    return max(len(os.sched_getaffinity(0)) - 1, 1)
