"""A target that lives in the test's own loop and says exactly what the test wants, and a caller that keeps what came of calls."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Self

from penstock.http.client.call import HttpCall
from penstock.http.client.client import HttpTransport
from penstock.http.client.transport import Answer, Failure
from penstock.router.options import RouterOptions
from tests.listening import stop_listening

PATIENCE = 30.0


class Everywhere:
    """Lets every address be called, and remembers what it was asked."""

    def __init__(self, refused: frozenset[str] = frozenset()) -> None:
        self.refused = refused
        self.asked: list[tuple[str, str, int]] = []

    def may_connect(self, host: str, address: str, port: int) -> bool:
        self.asked.append((host, address, port))
        return address not in self.refused


@dataclass
class Wire:
    """A connection, from the target's side."""

    number: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    requests: list[bytes] = field(default_factory=list)

    async def request(self) -> bytes:
        """The next request, whole."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        found = head + await self.reader.readexactly(length)
        self.requests.append(found)
        return found

    def say(self, data: bytes) -> None:
        self.writer.write(data)

    async def closed(self) -> None:
        """Return when the other side has closed."""
        while await self.reader.read(65536):
            pass


Talk = Callable[[Wire], Awaitable[None]]
Play = Callable[[], Awaitable[None]]
"""A test's coroutine."""


class RawTarget:
    """Hands every connection to `talk`, and closes it after that."""

    def __init__(self, talk: Talk, *, tls: ssl.SSLContext | None = None) -> None:
        self._talk = talk
        self._tls = tls
        self._tasks: set[asyncio.Task[None]] = set()
        self.wires: list[Wire] = []
        self.open = self.most_open = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0, ssl=self._tls, backlog=1000)
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.url = f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}/orders"
        return self

    async def __aexit__(self, *_: object) -> None:
        await stop_listening(self._server)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        wire = Wire(len(self.wires), reader, writer)
        self.wires.append(wire)
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            await self._talk(wire)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError, ssl.SSLError):
            pass
        finally:
            self.open -= 1
            writer.close()
            self._tasks.discard(task)


class Caller:
    """Posts, and keeps what came of it, in the order in which it came."""

    def __init__(self, transport: HttpTransport, url: str = "") -> None:
        self.transport = transport
        self._url = url
        self.ends: list[tuple[int, Answer | Failure]] = []
        self._count = 0
        self._rang = asyncio.Event()

    def post(self, url: str = "", *, headers: bytes = b"", body: bytes = b"{}", timeout: float = PATIENCE) -> HttpCall:
        number, self._count = self._count, self._count + 1

        def done(found: Answer | Failure) -> None:
            self.ends.append((number, found))
            self._rang.set()

        return self.transport.post(url or self._url, headers, body, timeout, done)

    async def wait(self, count: int) -> list[Answer | Failure]:
        """What came of so many calls, in the order in which they were posted."""
        async with asyncio.timeout(PATIENCE):
            while len(self.ends) < count:
                self._rang.clear()
                await self._rang.wait()
        return [found for _, found in sorted(self.ends, key=lambda end: end[0])]

    async def one(
        self, url: str = "", *, headers: bytes = b"", body: bytes = b"{}", seconds: float = PATIENCE
    ) -> Answer | Failure:
        """What came of one call."""
        number = self._count
        self.post(url, headers=headers, body=body, timeout=seconds)
        await self.wait(len(self.ends) + 1)
        return dict(self.ends)[number]


def transport(
    reach: Everywhere | None = None, *, tls: ssl.SSLContext | None = None, idle: float = 60, **options: object
) -> HttpTransport:
    made = RouterOptions(**options)  # type: ignore[arg-type]  # the test says what it wants
    return HttpTransport(made, reach or Everywhere(), tls=tls, idle_timeout=idle)


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until something holds."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110  # what is waited for happens in sockets, which set no event
            await asyncio.sleep(0.001)
