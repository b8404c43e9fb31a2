"""Notifications to systemd for `Type=notify`: the server is ready, it stops, its event loop is alive.

The protocol is that of sd_notify(3): lines of NAME=value in one datagram to the socket that NOTIFY_SOCKET names.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import MutableMapping

log = logging.getLogger("penstock.server")

SECOND_USEC = 1_000_000


class Supervisor:
    """systemd, if it started this process and expects notifications; otherwise every call does nothing."""

    def __init__(self, environ: MutableMapping[str, str]) -> None:
        """Remove systemd's variables from the environment, so that no child process answers for this one."""
        self._path = environ.pop("NOTIFY_SOCKET", "")
        limit, process = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
        is_ours = process in {"", str(os.getpid())}
        self._interval = int(limit) / SECOND_USEC / 2 if self._path and is_ours and limit.isdecimal() else 0.0
        """Half of what systemd waits for, in seconds, as its manual advises; 0 if it does not wait."""
        self._timer: asyncio.TimerHandle | None = None

    def ready(self, status: str) -> None:
        """Report that it is ready, and from now on that the event loop is alive."""
        self._send(f"READY=1\nSTATUS={status}\n")
        if self._interval:
            self._beat(asyncio.get_running_loop())

    def stopping(self, status: str) -> None:
        """Report that it stops. The event loop is still watched."""
        self._send(f"STOPPING=1\nSTATUS={status}\n")

    def close(self) -> None:
        """Report nothing more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _beat(self, loop: asyncio.AbstractEventLoop) -> None:
        self._send("WATCHDOG=1\n")
        self._timer = loop.call_later(self._interval, self._beat, loop)

    def _send(self, message: str) -> None:
        if not self._path:
            return
        # An abstract socket has @ in place of NUL.
        address = "\0" + self._path[1:] if self._path.startswith("@") else self._path
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as sender:
                sender.sendto(message.encode(), address)
        except OSError as error:
            log.warning("cannot notify systemd at %s: %s", self._path, error.strerror)
