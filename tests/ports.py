"""Ports for servers that a test starts, kills and starts again."""

from __future__ import annotations

import socket
from contextlib import suppress
from random import SystemRandom

_ports = SystemRandom()


def free_port() -> int:
    """One that the system gives to nobody who does not ask for it: a server that is killed gets it again."""
    while True:
        port = _ports.randrange(15_000, 32_000)
        with socket.socket() as taken, suppress(OSError):
            taken.bind(("127.0.0.1", port))
            return port
