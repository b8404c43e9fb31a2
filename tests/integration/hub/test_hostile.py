"""The hub and what no honest client sends: each thing is refused or ends its own connection, and nothing else happens."""

from __future__ import annotations

import asyncio
import json
import logging
import struct
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, suppress
from typing import Any

import pytest

from penstock.hub.core.floor import Floor
from penstock.testing.server import LocalServer
from tests.integration.hub.hostile_frames import (
    BEAT,
    CONNECTED,
    HANDSHAKES,
    HOSTILE,
    INNOCENT,
    MEMBER,
    OPENED,
    ROWS,
    SUBSCRIPTION,
    TOKEN,
    Closed,
    Comes,
    Error,
    Many,
    Pong,
    Reply,
    Row,
)
from tests.integration.hub.wire import CLOSE, PING, PONG, TEXT, Json, RawSocket, Wire, frame, member, raw

SECONDS = 30.0
"""For everything that has to come; only what does not come takes as long."""
SETTINGS: dict[str, Any] = {"hub_history": ("kept",)}



# --- the innocent -------------------------------------------------------------------------------------------------------------


class Innocents:
    """A reader that subscribed before, and a writer: whatever others do, what the one says reaches the other, once."""

    def __init__(self, reader: Wire, writer: Wire, words: dict[str, str]) -> None:
        self._reader = reader
        self._writer = writer
        self._words = words
        self._count = 0

    def filled(self, text: str) -> str:
        """A text with what stands for the reader's secrets replaced by them."""
        for word, value in self._words.items():
            text = text.replace(word, value)
        return text

    async def are_well(self) -> None:
        """The reader has received nothing since the last time, receives a message once, and nothing else."""
        self._count += 1
        await self._reader.nothing_more()
        sent = await self._writer.ask("hub:publish", {"topic": "calm", "type": "calm", "data": self._count})
        assert sent["payload"]["subscriberCount"] == 1, sent
        received = await self._reader.expect("calm")
        assert (received["from"], received["to"], received["payload"]) == ("@(innocent/writer)", INNOCENT, self._count)
        await self._reader.nothing_more()
        await self._writer.nothing_more()


async def innocents(url: str, stack: AsyncExitStack) -> Innocents:
    reader = await stack.enter_async_context(member(url, INNOCENT))
    registered = await reader.ask("hub:register", {"actorAddress": INNOCENT, "capabilities": ["x"], "ttl": 3_600_000})
    subscribed = await reader.ask("hub:subscribe", {"topic": "calm"})
    writer = await stack.enter_async_context(member(url, "@(innocent/writer)", ttl=3_600_000))
    token, subscription = registered["payload"]["renewalToken"], subscribed["payload"]["subscriptionId"]
    return Innocents(reader, writer, {TOKEN: token, SUBSCRIPTION: subscription})


class Scene:
    """A server with two innocents connected to it, whom every row of the tables meets."""

    def __init__(self, url: str, floor: Floor, runner: asyncio.Runner, innocent: Innocents) -> None:
        self.url = url
        self.innocent = innocent
        self._floor = floor
        self._runner = runner

    def play(self, act: Callable[[], Awaitable[None]]) -> None:
        """Let something happen, and make sure that it harmed nobody and left nothing behind."""

        async def scenario() -> None:
            await act()
            await self._alone()
            await self.innocent.are_well()

        self._runner.run(scenario())

    async def _alone(self) -> None:
        """Wait until nobody but the innocents is there, and nothing of anybody else."""
        async with asyncio.timeout(SECONDS):
            while len(self._floor.sessions) != 2:  # noqa: ASYNC110  # a core has nothing to wait on
                await asyncio.sleep(0.002)
        floor = self._floor
        assert (len(floor.registry), len(floor.table), len(floor.watchers), len(floor.durable)) == (2, 1, 0, 0)


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    with asyncio.Runner() as runner, LocalServer(**SETTINGS) as running:
        stack = AsyncExitStack()
        host = running.server.hub
        assert host is not None
        yield Scene(running.url, host.hub.floor, runner, runner.run(innocents(running.url, stack)))
        runner.run(stack.aclose())


@pytest.fixture(autouse=True)
def _silent_log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """What clients do wrong is no error of the server: it logs none."""
    yield
    loud = [record.getMessage() for record in caplog.get_records("call") if record.levelno >= logging.WARNING or record.exc_info]
    assert not loud, loud


# --- a row --------------------------------------------------------------------------------------------------------------------


async def begin(socket: RawSocket, stage: str) -> None:
    """Go as far as a row begins."""
    if stage in {CONNECTED, MEMBER}:
        assert (await next_text(socket, socket.connect()))["type"] == "hub:connected"
    if stage == MEMBER:
        payload = {"actorAddress": HOSTILE, "capabilities": ["x"]}
        assert (await next_text(socket, socket.say("hub:register", payload)))["type"] == "hub:registered"


async def next_text(socket: RawSocket, asking: Awaitable[object]) -> Json:
    answer = await asking
    return answer if isinstance(answer, dict) else await socket.next()


async def run(url: str, row: Row, filled: Callable[[str], str]) -> None:
    """Send what a row says, see that what it wants comes and nothing else, and that the connection lives if it should."""
    data = b"".join(as_bytes(sent() if callable(sent) else sent, filled) for sent in row.sent)
    async with raw(url) as socket:
        await begin(socket, row.stage)
        pouring = asyncio.create_task(pour(socket, data))
        await asyncio.wait([pouring], timeout=0.2)  # as far as it goes without reading
        early: list[tuple[int, bytes]] = []
        for wanted in row.comes:
            await see(socket, wanted, early)
        if row.comes and row.goes_on:
            await pouring
            await is_alive(socket, row)
        pouring.cancel()
        await asyncio.wait([pouring])


def as_bytes(sent: str | bytes, filled: Callable[[str], str]) -> bytes:
    return sent if isinstance(sent, bytes) else frame(TEXT, filled(sent).encode())


async def pour(socket: RawSocket, data: bytes) -> None:
    """Write as fast as the other side takes it; it may have had enough before the end."""
    with suppress(ConnectionError):
        socket.writer.write(data)
        await socket.writer.drain()


async def see(socket: RawSocket, wanted: Comes, early: list[tuple[int, bytes]]) -> None:
    """Read what is wanted. A `Many` reads one frame too much, which is put back."""
    match wanted:
        case Pong(payload, times):
            for _ in range(times):
                assert await read(socket, early) == (PONG, payload)
        case Closed(code, or_cut):
            try:
                opcode, payload = await read(socket, early)
            except (ConnectionError, asyncio.IncompleteReadError):
                assert or_cut, "the connection was cut"
                return
            assert (opcode, code_of(payload)) == (CLOSE, code), payload
        case Many(kinds):
            opcode, payload = await read(socket, early)
            seen = set()
            while opcode == TEXT:
                found = [kind for kind in kinds if fits(json.loads(payload), kind)]
                assert len(found) == 1, payload
                seen.add(found[0])
                opcode, payload = await read(socket, early)
            assert seen == {*kinds}
            early.append((opcode, payload))
        case _:
            opcode, payload = await read(socket, early)
            assert opcode == TEXT, (wanted, opcode, payload)
            assert fits(json.loads(payload), wanted), (wanted, payload[:2_000])


async def read(socket: RawSocket, early: list[tuple[int, bytes]]) -> tuple[int, bytes]:
    while True:
        found = early.pop() if early else await socket.read(SECONDS)
        if found[0] != PING:  # the hub may ask whether somebody is there at any moment
            return found


def code_of(payload: bytes) -> int | None:
    found: int = struct.unpack("!H", payload[:2])[0]
    return found


def fits(message: Json, wanted: Error | Reply) -> bool:
    """Whether a frame is what was wanted. An error says what was wrong and what to do, whatever it was."""
    payload = message["payload"]
    if isinstance(wanted, Reply):
        return bool(message["type"] == wanted.kind and all(payload[name] == value for name, value in wanted.fields))
    is_error = message["type"] == "hub:error"
    return bool(
        is_error
        and (payload["code"], payload["details"]["reason"]) == (wanted.code, wanted.reason)
        and payload["message"]
        and payload["resolution"]
        and len(json.dumps(message)) < 4_000
    )


async def is_alive(socket: RawSocket, row: Row) -> None:
    """The connection goes on as if nothing had been, and nothing else has come."""
    is_connected = row.stage != OPENED or any(isinstance(one, Reply) and one.kind == "hub:connected" for one in row.comes)
    if not is_connected:
        await socket.say("hub:connect", {"version": "1.0"})
        await see(socket, Reply("hub:connected"), [])
    await socket.send(frame(TEXT, BEAT.encode()))
    await see(socket, Reply("hub:heartbeat_ack", (("timestamp", 1),)), [])


def test_there_are_as_many_rows_as_were_promised() -> None:
    assert len(ROWS) + len(HANDSHAKES) >= 120


@pytest.mark.parametrize("name", ROWS)
def test_what_is_hostile_is_answered_and_harms_nobody(scene: Scene, name: str) -> None:
    scene.play(lambda: run(scene.url, ROWS[name], scene.innocent.filled))
