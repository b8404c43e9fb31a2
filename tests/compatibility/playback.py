"""Servers that answer as a recorded one did: what a client of today has to understand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from aiohttp import WSMsgType, web

from tests.compatibility.conversation import Step, load

CALL, OPEN, ADJUST, CLOSE = 1, 4, 6, 7
DONE, REFUSED, DELIVERED, ENDED = range(4)
OPENED = {"queue": 5, "stream": 2, "max_attempts": 5, "exactly_once": False, "ordered": True}
pack, unpack = msgspec.msgpack.encode, msgspec.msgpack.decode


class Script:
    """The steps of a conversation, each to be used once, found by the kind of their request."""

    def __init__(self, steps: list[tuple[object, Step]]) -> None:
        self._steps = steps

    def take(self, kind: object) -> Step | None:
        """The first step of a kind that is left."""
        for index, (each, step) in enumerate(self._steps):
            if each == kind:
                del self._steps[index]
                return step
        return None


def _native_kind(request: Any) -> object:
    """What a frame asks for: of a call its operation and whom it concerns, of a publish or a stream whom it concerns."""
    kind = request[0]
    if kind == CALL:
        operation, arguments = request[2:]
        return operation, next(
            (arguments[each] for each in ("subscription", "queue", "topic", "schema") if each in arguments), None
        )
    return (kind, request[4] if kind == OPEN else request[2]) if kind in {2, 3, OPEN} else kind


@asynccontextmanager
async def native_server() -> AsyncIterator[str]:
    """The native port of the recorded server; gives its address. Calls and streams get the numbers that the client chose."""
    script = Script([(_native_kind(unpack(step.request[4:])), step) for step in load("native")])

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        streams: dict[int, int] = {}
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "little")
                request = unpack(await reader.readexactly(size))
                for frame in _native_replies(script, request, streams):
                    body = pack(frame)
                    writer.write(len(body).to_bytes(4, "little") + body)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"penstock://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def _native_replies(script: Script, request: Any, streams: dict[int, int]) -> list[Any]:
    step = script.take(_native_kind(request))
    if step is None:
        # A sign of life, a settlement without an answer, or another stream of a client that has several: nothing comes on it.
        if request[0] == OPEN:
            return [[DONE, request[1], OPENED]]
        if request[0] == CLOSE:
            return [[ENDED, request[1]]]
        return [[DONE, request[1], None]] if request[0] != ADJUST and request[1] else []
    if request[0] == OPEN:
        streams[unpack(step.request[4:])[2]] = request[2]
    found = []
    for reply in step.replies:
        frame = unpack(reply[4:])
        frame[1] = streams[frame[1]] if frame[0] == DELIVERED else request[1]
        if frame[0] not in {DONE, REFUSED} or frame[1]:
            found.append(frame)
    return found


@asynccontextmanager
async def hub_server() -> AsyncIterator[str]:
    """The hub of the recorded server, as ann saw it; gives the address of its HTTP port."""
    # A client leaves as bob did: ann's connection just ended.
    steps = sorted(load("hub"), key=lambda step: step.connection != "hub:ann")
    script = Script([(json.loads(step.request)["type"], step) for step in steps])

    async def serve(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for message in socket:
            if message.type is WSMsgType.TEXT:
                for frame in _hub_replies(script, json.loads(message.data)):
                    await socket.send_str(json.dumps(frame))
        return socket

    app = web.Application()
    app.router.add_get("/ws", serve)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def _hub_replies(script: Script, request: dict[str, Any]) -> list[dict[str, Any]]:
    step = script.take(request["type"])
    if step is None:
        return []
    asked = json.loads(step.request)["id"]
    found = [json.loads(reply) for reply in step.replies]
    if request["type"] == "hub:subscribe" and (beat := script.take("hub:heartbeat")) is not None:
        # What was forwarded to the subscriber was recorded with its next sign of life.
        found += [each for each in map(json.loads, beat.replies) if "correlationId" not in each]
    return [{**each, "correlationId": request.get("id")} if each.get("correlationId") == asked else each for each in found]
