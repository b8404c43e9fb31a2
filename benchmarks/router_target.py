"""A target that answers at once, with as little work as a server on `httptools` and `uvloop` can do.

`python -m benchmarks.router_target empty|ack|slow|dead` prints its port and serves until it is ended. A GET is answered with the
number of requests so far, as JSON: what arrived is counted here, not where it was sent. The slow one takes a second, the dead one
does not answer.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import cast

import httptools
import uvloop

ANSWERS = {
    "empty": b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    "ack": b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 12\r\n\r\n{"ack":true}',
}


class _Connection(asyncio.Protocol):
    answer = b""
    count = 0

    def __init__(self) -> None:
        self._is_lost = False
        self._feed = httptools.HttpRequestParser(self).feed_data

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._write = cast("asyncio.Transport", transport).write  # uvloop's own class has the same methods

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"GET"):
            body = json.dumps({"count": _Connection.count}).encode()
            self._write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
            return
        self._feed(data)

    def on_message_complete(self) -> None:
        _Connection.count += 1
        self._write(_Connection.answer)


class _SlowConnection(_Connection):
    def on_message_complete(self) -> None:
        _Connection.count += 1
        asyncio.get_running_loop().call_later(1, self._answer)

    def _answer(self) -> None:
        if not self._is_lost:
            self._write(ANSWERS["empty"])


class _DeadConnection(_Connection):
    def on_message_complete(self) -> None:
        _Connection.count += 1


KINDS = {"slow": _SlowConnection, "dead": _DeadConnection}


@dataclass(frozen=True)
class RouterTarget:
    """Where the target is, and which process."""

    port: int
    pid: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/orders"

    def count(self) -> int:
        """The requests that arrived."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/count", timeout=10) as answer:
            return int(json.load(answer)["count"])


@contextmanager
def router_target(kind: str = "empty", *, spins: bool = False) -> Iterator[RouterTarget]:
    """Such a target in a process of its own.

    One that spins never sleeps: a sender does not have to wake it up, as it would not have to for a target on another machine.
    On this one that is dearer than the request, and only a sender that is slower than the target pays for it.
    """
    command = [sys.executable, "-m", "benchmarks.router_target", kind, *(["spins"] if spins else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None, "it is piped"
        try:
            yield RouterTarget(int(process.stdout.readline()), process.pid)
        finally:
            process.kill()


def _spin(loop: asyncio.AbstractEventLoop) -> None:
    loop.call_soon(_spin, loop)


async def serve(kind: str, *, spins: bool) -> None:
    if spins:
        _spin(asyncio.get_running_loop())
    _Connection.answer = ANSWERS.get(kind, b"")
    server = await asyncio.get_running_loop().create_server(KINDS.get(kind, _Connection), "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def main() -> None:
    uvloop.run(serve(sys.argv[1], spins="spins" in sys.argv))


if __name__ == "__main__":
    main()
