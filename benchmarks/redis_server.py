"""Debian's redis-server on a free port of this machine, every write on disk before its answer (`appendfsync always`)."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

START_SECONDS = 10
PROGRAM = "redis-server"


@dataclass(frozen=True, slots=True)
class RedisServer:
    url: str
    pid: int


def is_installed() -> bool:
    return shutil.which(PROGRAM) is not None


@contextmanager
def redis_server(directory: Path, *, fsync: str = "always") -> Iterator[RedisServer]:
    """A server of its own on this directory, stopped and forgotten in the end."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = {
        "port": port,
        "bind": "127.0.0.1",
        "dir": directory,
        "appendonly": "yes",
        "appendfsync": fsync,
        "save": "",  # no snapshots beside the log: they would only slow it down
        "no-appendfsync-on-rewrite": "no",
        "loglevel": "warning",
    }
    command = [PROGRAM, *(str(word) for name, value in settings.items() for word in (f"--{name}", value))]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        _wait(port, process)
        yield RedisServer(f"redis://127.0.0.1:{port}/0", process.pid)
    finally:
        process.terminate()
        process.wait()


def _wait(port: int, process: subprocess.Popen[bytes]) -> None:
    until = time.perf_counter() + START_SECONDS
    while process.poll() is None and time.perf_counter() < until:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.01)
        else:
            return
    raise RuntimeError(f"{PROGRAM} did not start; it ended with {process.poll()}")
