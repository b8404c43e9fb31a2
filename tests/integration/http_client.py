"""A client that can misbehave: HTTP over a plain socket, byte by byte if need be, and an API to send it to."""

import asyncio
import functools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import uvloop
from aiohttp import web

from penstock.http.pages import documented
from penstock.http.port import HttpServer
from penstock.http.request import Request, json_response
from penstock.http.routes import Handler, Operation, Route

PATIENCE = 60.0
"""Seconds after which a wait in a test is a failure."""


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def reason(self) -> str:
        return str(self.json()["error"]["reason"])


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self, *, has_body: bool = True) -> Answer:
        async with asyncio.timeout(PATIENCE):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = head.strip().split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            length = int(headers.get("content-length", "0")) if has_body else 0
            return Answer(int(first.split()[1]), headers, await self.reader.readexactly(length))

    async def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        given = {"Host": "127.0.0.1"} | {name.replace("_", "-"): value for name, value in headers.items()}
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in given.items())]
        if body is not None:
            lines.append(f"Content-Length: {len(body)}")
        await self.send("\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b""))
        return await self.answer(has_body=method != "HEAD")

    async def is_cut(self) -> bool:
        """Whether the server ended the connection, within the patience of a test; what it said before is dropped."""
        try:
            async with asyncio.timeout(PATIENCE):
                while await self.reader.read(65536):
                    pass
        except ConnectionError:
            return True
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[Client]:
    client = Client(*await asyncio.open_connection("127.0.0.1", port))
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def serving(routes: Iterable[Route] = (), **options: Any) -> AsyncIterator[tuple[HttpServer, int]]:
    options = {"hosts": ["x"]} | options  # what tests that write their own heads call the server
    server = HttpServer(documented([*routes, *ROUTES], version="1", is_secured="gate" in options), **options)
    port = await server.start("127.0.0.1", 0)
    try:
        yield server, port
    finally:
        await server.stop(1.0)


async def eventually(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not is_true():  # noqa: ASYNC110  # what a test waits for is a count of the server, which rings no event
            await asyncio.sleep(0.005)


def route(method: str, path: str, handler: Handler, **options: Any) -> Route:
    return Route(method, path, handler, Operation(f"{method} {path}"), **options)


async def echo(request: Request) -> web.StreamResponse:
    return web.Response(body=await request.read())


async def who(request: Request) -> web.StreamResponse:
    caller = request.principal
    return json_response(
        {"token": caller.token_id, "verbs": sorted(caller.verbs), "match": request.match_info, "id": request.request_id}
    )


ROUTES = [route("POST", "/echo", echo), route("GET", "/who/{name}", who)]


def run(test: Awaitable[None]) -> None:
    """Run a test on the loop that the server runs on."""

    async def bounded() -> None:
        async with asyncio.timeout(100):
            await test

    uvloop.run(bounded())


def scenario(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """A test that is a coroutine."""

    @functools.wraps(test)
    def call(*arguments: object, **named: object) -> None:
        run(test(*arguments, **named))

    return call
