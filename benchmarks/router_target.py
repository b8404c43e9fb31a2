"""A target that answers at once, with as little work as a server on `httptools` and `uvloop` can do.

`python -m benchmarks.router_target empty|ack|slow|dead` prints its port and serves until it is ended. A GET is answered with the
number of requests so far, as JSON: what arrived is counted here, not where it was sent. The slow one takes a second, the dead one
does not answer. With `tls=FOLDER` it speaks TLS, HTTP/1.1 or HTTP/2 as the client chooses, and writes its certificate there.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import struct
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import httptools
import uvloop

from tests.integration.router.certificate import CertificateFiles

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


class _Http2Connection(asyncio.Protocol):
    """Answers each request with status 200 and nothing else. Frames alone are read: no header is looked at."""

    def __init__(self) -> None:
        self._data = b""
        self._got = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._write = cast("asyncio.Transport", transport).write
        self._write(_frame(SETTINGS, 0, 0, struct.pack(">HI", MAX_STREAMS, 1_000)))

    def data_received(self, data: bytes) -> None:
        data = self._data + data
        if data.startswith(b"PRI"):
            data = data[len(PREFACE) :]
        answers = []
        while len(data) >= 9 and len(data) >= (end := 9 + int.from_bytes(data[:3])):
            kind, flags, stream = data[3], data[4], int.from_bytes(data[5:9])
            if kind == DATA:
                self._got += end - 9
            if kind in {DATA, HEADERS} and flags & END:
                _Connection.count += 1
                answers.append(_frame(HEADERS, END | END_HEADERS, stream, STATUS_200))
            elif kind in {SETTINGS, PING} and not flags & ACK:
                answers.append(_frame(kind, ACK, 0, data[9:end] if kind == PING else b""))
            data = data[end:]
        if self._got > 1 << 14:
            answers.append(_frame(WINDOW_UPDATE, 0, 0, self._got.to_bytes(4)))
            self._got = 0
        self._data = data
        if answers:
            self._write(b"".join(answers))


class _Negotiated(asyncio.Protocol):
    """HTTP/1.1 or HTTP/2, as TLS has agreed on."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        chosen = transport.get_extra_info("ssl_object").selected_alpn_protocol()
        protocol = _Http2Connection() if chosen == "h2" else _Connection()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS, PING, WINDOW_UPDATE = 0, 1, 4, 6, 8
END = ACK = 1
END_HEADERS = 4
MAX_STREAMS = 3
STATUS_200 = b"\x88"


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">IBI", len(payload) << 8 | kind, flags, stream) + payload


KINDS = {"slow": _SlowConnection, "dead": _DeadConnection}


@dataclass(frozen=True)
class RouterTarget:
    """Where the target is, and which process."""

    port: int
    pid: int
    certificate: Path | None = None

    @property
    def url(self) -> str:
        return f"http{'s' if self.certificate else ''}://127.0.0.1:{self.port}/orders"

    def count(self) -> int:
        """The requests that arrived."""
        tls = ssl.create_default_context(cafile=self.certificate) if self.certificate else None
        with urllib.request.urlopen(self.url, timeout=10, context=tls) as answer:
            return int(json.load(answer)["count"])


@contextmanager
def router_target(kind: str = "empty", *, spins: bool = False, tls: Path | None = None) -> Iterator[RouterTarget]:
    """Such a target in a process of its own.

    One that spins never sleeps: a sender does not have to wake it up, as it would not have to for a target on another machine.
    On this one that is dearer than the request, and only a sender that is slower than the target pays for it.
    """
    command = [sys.executable, "-m", "benchmarks.router_target", kind, *(["spins"] if spins else [])]
    certificate = None
    if tls is not None:
        certificate = CertificateFiles(tls).certificate
        command.append(f"tls={tls}")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None, "it is piped"
        try:
            yield RouterTarget(int(process.stdout.readline()), process.pid, certificate)
        finally:
            process.kill()


def _spin(loop: asyncio.AbstractEventLoop) -> None:
    loop.call_soon(_spin, loop)


async def serve(kind: str, *, spins: bool, tls: Path | None) -> None:
    if spins:
        _spin(asyncio.get_running_loop())
    _Connection.answer = ANSWERS.get(kind, b"")
    protocol: type[asyncio.Protocol] = KINDS.get(kind, _Connection)
    context = None
    if tls is not None:
        protocol, context = _Negotiated, ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(tls / "certificate.pem", tls / "key.pem")
        context.set_alpn_protocols(["h2", "http/1.1"])
    server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0, backlog=4096, ssl=context)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def main() -> None:
    folder = next((Path(each[4:]) for each in sys.argv if each.startswith("tls=")), None)
    uvloop.run(serve(sys.argv[1], spins="spins" in sys.argv, tls=folder))


if __name__ == "__main__":
    main()
