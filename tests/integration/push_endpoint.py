"""Endpoints for push tests: a real HTTP server in a thread, and one that may say anything at all."""

from __future__ import annotations

import asyncio
import json
import threading
from base64 import b64decode
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Self

from aiohttp import web

from penstock.clock import monotonic
from tests.integration.google.real_client import Arrivals
from tests.listening import stop_listening

React = Callable[["Post"], int | Awaitable[int]]
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass(frozen=True)
class Post:
    """A request that came."""

    path: str
    headers: dict[str, str]
    body: bytes
    at: int

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def data(self) -> bytes:
        return b64decode(self.json["message"].get("data", ""))


class _Threaded:
    """A server with a loop of its own."""

    def __init__(self, port: int = 0) -> None:
        self.port = port
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(30)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve())
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    async def _serve(self) -> None:
        self._stopped = asyncio.Event()
        await self.open()
        self._ready.set()
        await self._stopped.wait()
        await self.close()

    async def open(self) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError


class Endpoint(_Threaded):
    """Answers each POST with the status that `react` gives it, at once or after a wait; without one, with 200."""

    def __init__(self, react: React | None = None, port: int = 0) -> None:
        super().__init__(port)
        self.react: React = react or (lambda _: 200)
        self.posts = Arrivals()
        self.running = self.most_running = 0
        self._hold: asyncio.Event | None = None

    async def open(self) -> None:
        self._served = web.Server(self._answer, handler_cancellation=True)
        self._server = await self._loop.create_server(self._served, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        self._let_go = asyncio.Event()

    async def close(self) -> None:
        self._let_go.set()
        await stop_listening(self._server)
        self._served.pre_shutdown()
        await self._served.shutdown(0.1)

    async def hold(self, _: Post) -> int:
        """A reaction: answer 200 when `let_go` is called, or the endpoint closes."""
        await self._let_go.wait()
        return 200

    def let_go(self) -> None:
        """Let what is held be answered."""
        self._loop.call_soon_threadsafe(self._let_go.set)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        post = Post(request.raw_path, headers, await request.content.read(), monotonic())
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            self.posts.add(post)
            status = self.react(post)
            return web.Response(status=status if isinstance(status, int) else await status)
        finally:
            self.running -= 1


class RawEndpoint(_Threaded):
    """Hands every connection to `talk`."""

    def __init__(self, talk: Talk) -> None:
        super().__init__()
        self._talk = talk
        self.calls = Arrivals()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        await stop_listening(self._server)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:  # also those with something to say that nobody reads
            writer.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            self.calls.add(await reader.readuntil(b"\r\n\r\n"))
            await self._talk(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()


def says(data: bytes) -> Talk:
    """Answer with these bytes and hang up."""

    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()

    return talk


async def is_silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    """Never answer."""
    while await reader.read(65536):
        pass
    await asyncio.Event().wait()


async def floods(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Accept, with a body that does not end."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n")
    while True:
        writer.write(b"x" * 65536)
        await writer.drain()
