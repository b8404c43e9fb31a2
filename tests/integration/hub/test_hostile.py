"""The hub and what no honest client sends: each thing is refused or ends its own connection, and nothing else happens."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock.hub.core.state import HubState
from penstock.testing.server import LocalServer, ServerProcess
from tests.integration.hub.hostile_frames import HANDSHAKES, ROWS, handshake
from tests.integration.hub.hostile_row import (
    BEAT,
    CONNECTED,
    HOSTILE,
    INNOCENT,
    MEBIBYTE,
    MEMBER,
    OPENED,
    ORIGINAL,
    SUBSCRIPTION,
    TOKEN,
    Closed,
    Comes,
    Error,
    Many,
    Pong,
    Reply,
    Row,
    said,
)
from tests.integration.hub.serving import Serving, serving
from tests.integration.hub.wire import CLOSE, PING, PONG, TEXT, Json, RawSocket, Wire, frame, member, raw

SECONDS = 60.0
"""For everything that has to come; only what does not come takes as long."""
SETTINGS: dict[str, Any] = {"hub_history": ("kept",), "hub_rate_limit": 100}
"""A rate that a flood exceeds even where everything is slow."""


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
        try:
            await self._reader.nothing_more()
            sent = await self._writer.ask("hub:publish", {"topic": "calm", "type": "calm", "data": self._count})
            assert sent["payload"]["subscriberCount"] == 1, sent
            received = await self._reader.expect("calm")
            assert (received["from"], received["to"], received["payload"]) == ("@(innocent/writer)", INNOCENT, self._count)
            await self._reader.nothing_more()
            await self._writer.nothing_more()
        finally:
            self._reader.kept.clear()  # what one row did wrong is not the next one's fault


async def innocents(url: str, stack: AsyncExitStack) -> Innocents:
    reader = await stack.enter_async_context(member(url, INNOCENT))
    registered = await reader.ask("hub:register", {"actorAddress": INNOCENT, "capabilities": ["x"], "ttl": 3_600_000})
    subscribed = await reader.ask("hub:subscribe", {"topic": "calm"})
    writer = await stack.enter_async_context(member(url, "@(innocent/writer)", ttl=3_600_000))
    token, subscription = registered["payload"]["renewalToken"], subscribed["payload"]["subscriptionId"]
    return Innocents(reader, writer, {TOKEN: token, SUBSCRIPTION: subscription})


class Scene:
    """A server with two innocents connected to it, whom every row of the tables meets."""

    def __init__(self, url: str, state: HubState, runner: asyncio.Runner, innocent: Innocents) -> None:
        self.url = url
        self.innocent = innocent
        self._floor = state
        self._runner = runner

    def play(self, *acts: Callable[[], Awaitable[None]]) -> None:
        """Let things happen one after the other, and make sure that they harmed nobody and left nothing behind."""

        async def scenario() -> None:
            for act in acts:
                await act()
            await self._alone()
            await self.innocent.are_well()

        self._runner.run(scenario())

    async def _alone(self) -> None:
        """Wait until nobody but the innocents is there, and nothing of anybody else."""
        async with asyncio.timeout(SECONDS):
            while len(self._floor.sessions) != 2:  # noqa: ASYNC110  # a core has nothing to wait on
                await asyncio.sleep(0.002)
        state = self._floor
        assert (len(state.registry), len(state.table), len(state.watchers), len(state.durable)) == (2, 1, 0, 0)


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    with asyncio.Runner() as runner, LocalServer(**SETTINGS) as running:
        stack = AsyncExitStack()
        host = running.server.hub
        assert host is not None
        yield Scene(running.url, host.hub.state, runner, runner.run(innocents(running.url, stack)))
        runner.run(stack.aclose())


@pytest.fixture(autouse=True)
def _silent_log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """What clients do wrong is no error of the server: it logs none."""
    yield
    loud = [record.getMessage() for record in caplog.get_records("call") if record.levelno >= logging.WARNING or record.exc_info]
    assert not loud, loud


# --- a row --------------------------------------------------------------------------------------------------------------------


async def begin(wire: RawSocket, stage: str) -> None:
    """Go as far as a row begins."""
    if stage == ORIGINAL:
        await wire.say("hub:connect", metadata={"protocolVersion": "0.1.0"})
        assert (await wire.next())["type"] == "hub:connected"
    elif stage == CONNECTED:
        assert (await wire.connect())["type"] == "hub:connected"
    elif stage == MEMBER:
        assert (await wire.register(HOSTILE))["type"] == "hub:registered"


async def run(url: str, row: Row, filled: Callable[[str], str]) -> None:
    """Send what a row says, see that what it wants comes and nothing else, and that the connection lives if it should."""
    data = b"".join(as_bytes(sent() if callable(sent) else sent, filled) for sent in row.sent)
    async with raw(url) as wire:
        await begin(wire, row.stage)
        pouring = asyncio.create_task(pour(wire, data))
        await asyncio.wait([pouring], timeout=0.2)  # as far as it goes without reading
        early: list[tuple[int, bytes]] = []
        for wanted in row.comes:
            await see(wire, wanted, early)
        await pouring
        if not row.goes_on:
            await ends(wire)
        elif row.comes:  # else the hub has not heard enough to answer anything
            await is_alive(wire, row)


async def ends(wire: RawSocket) -> None:
    """After a close comes nothing but the end."""
    with suppress(ConnectionError):
        await wire.send(frame(CLOSE, struct.pack("!H", 1000)))
        async with asyncio.timeout(SECONDS):
            assert await wire.reader.read() == b""


def as_bytes(sent: str | bytes, filled: Callable[[str], str]) -> bytes:
    return sent if isinstance(sent, bytes) else frame(TEXT, filled(sent).encode())


async def pour(wire: RawSocket, data: bytes) -> None:
    """Write as fast as the other side takes it; it may have had enough before the end."""
    with suppress(ConnectionError):
        wire.writer.write(data)
        await wire.writer.drain()


async def see(wire: RawSocket, wanted: Comes, early: list[tuple[int, bytes]]) -> None:
    """Read what is wanted. A `Many` reads one frame too much, which is put back."""
    match wanted:
        case Pong(payload, times):
            for _ in range(times):
                assert await read(wire, early) == (PONG, payload)
        case Closed(code, reason):
            opcode, payload = await read(wire, early)
            assert (opcode, payload) == (CLOSE, struct.pack("!H", code) + reason.encode())
        case Many(kinds, each):
            seen = set()
            while (came := await read(wire, early))[0] != CLOSE:
                found = [kind for kind in kinds if is_one(came, kind)]
                assert len(found) == 1, came
                seen.add(found[0])
            early.append(came)
            assert seen == {*kinds} or not each
        case _:
            opcode, payload = await read(wire, early)
            assert opcode == TEXT, (wanted, opcode, payload)
            assert fits(json.loads(payload), wanted), (wanted, payload[:2_000])


async def read(wire: RawSocket, early: list[tuple[int, bytes]]) -> tuple[int, bytes]:
    while True:
        found = early.pop() if early else await wire.read(SECONDS)
        if found[0] != PING:  # the hub may ask whether somebody is there at any moment
            return found


def is_one(came: tuple[int, bytes], kind: Error | Reply | Pong) -> bool:
    opcode, payload = came
    if isinstance(kind, Pong):
        return came == (PONG, kind.payload)
    return opcode == TEXT and fits(json.loads(payload), kind)


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


async def is_alive(wire: RawSocket, row: Row) -> None:
    """The connection goes on as if nothing had been, and nothing else has come."""
    is_connected = row.stage != OPENED or any(isinstance(one, Reply) and one.kind == "hub:connected" for one in row.comes)
    if not is_connected:
        await wire.say("hub:connect", {"version": "1.0"})
        await see(wire, Reply("hub:connected"), [])
    await wire.send(frame(TEXT, BEAT.encode()))
    await see(wire, Reply("hub:heartbeat_ack", (("timestamp", 1),)), [])


def representative() -> dict[str, Row]:
    """Of the rows of a table that begin at the same stage and bring the same answer, the first."""
    first: dict[tuple[str, str, str], str] = {}
    for name, found in ROWS.items():
        first.setdefault((name.partition(":")[0], found.stage, repr(found.comes)), name)
    return {name: ROWS[name] for name in first.values()}


def test_what_is_hostile_is_answered_and_harms_nobody(scene: Scene, subtests: pytest.Subtests) -> None:
    for name, row in representative().items():
        with subtests.test(name=name):
            scene.play(lambda row=row: run(scene.url, row, scene.innocent.filled))  # type: ignore[misc]


@pytest.mark.long
@pytest.mark.parametrize("table", sorted({name.partition(":")[0] for name in ROWS}))
def test_the_whole_of_a_table_is_answered_and_harms_nobody(scene: Scene, table: str, subtests: pytest.Subtests) -> None:
    for name, row in ROWS.items():
        if name.startswith(f"{table}:"):
            with subtests.test(name=name):
                scene.play(lambda row=row: run(scene.url, row, scene.innocent.filled))  # type: ignore[misc]


# --- handshakes ---------------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def shaking(url: str, data: bytes) -> AsyncIterator[RawSocket]:
    """A connection that has said this instead of a handshake."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(data)
        yield RawSocket(reader, writer)
    finally:
        writer.transport.abort()


async def status_of(wire: RawSocket) -> int:
    """The status that a handshake is answered by."""
    async with asyncio.timeout(SECONDS):
        version, status, _ = (await wire.reader.readuntil(b"\r\n")).split(b" ", 2)
    assert version.startswith(b"HTTP/1."), version
    return int(status)


def test_a_handshake_that_is_none_is_refused(scene: Scene, subtests: pytest.Subtests) -> None:
    async def act(data: bytes, status: int | None) -> None:
        async with shaking(scene.url, data) as wire:
            if status is not None:
                assert await status_of(wire) == status

    for name, (data, status) in HANDSHAKES.items():
        with subtests.test(name=name):
            scene.play(partial(act, data, status))


def test_a_connection_that_is_reset_leaves_nothing(scene: Scene) -> None:
    async def in_a_handshake(data: bytes) -> None:
        for _ in range(20):  # it may be met at any point of the server's work
            async with shaking(scene.url, data) as wire:
                reset(wire)

    async def in_a_frame(stage: str) -> None:
        async with raw(scene.url) as wire:
            await begin(wire, stage)
            await wire.send(frame(TEXT, b" " * 100_000)[:50_000])
            reset(wire)

    scene.play(*(partial(in_a_handshake, data) for data in (handshake()[:-2], handshake())))
    scene.play(*(partial(in_a_frame, stage) for stage in (OPENED, CONNECTED, MEMBER)))


def reset(wire: RawSocket) -> None:
    """Have a connection end by RST, as a machine ends it that was switched off and on."""
    wire.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def test_who_falls_silent_in_the_middle_of_a_frame_is_let_go() -> None:
    async def scenario() -> None:
        async with serving(ping_seconds=0.1) as running:
            for begun in (b"", b"\x81", frame(TEXT, BEAT.encode())[:20], frame(TEXT, b"x", fin=False)):
                async with raw(running.url) as wire:
                    await wire.send(frame(TEXT, said("hub:connect").encode()) + begun)
                    assert await wire.closed(SECONDS) == (None, ""), begun  # it is asked, and does not answer
                    await vanished(running)

    asyncio.run(scenario())


async def vanished(running: Serving) -> None:
    """Wait until the hub knows nobody any more."""
    state = running.hub.state
    async with asyncio.timeout(SECONDS):
        while state.sessions:  # noqa: ASYNC110  # a core has nothing to wait on
            await asyncio.sleep(0.002)
    assert (len(state.registry), len(state.table)) == (0, 0)


# --- many ---------------------------------------------------------------------------------------------------------------------


def test_many_who_publish_at_once_do_not_cost_one_who_reads_its_connection() -> None:
    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            running = await stack.enter_async_context(serving())
            reader = await stack.enter_async_context(member(running.url, INNOCENT))
            await reader.ask("hub:subscribe", {"topic": "calm"})
            loud = [await stack.enter_async_context(raw(running.url)) for _ in range(20)]
            for number, wire in enumerate(loud):
                await wire.register(f"@(hostile/number-{number})")
            message = frame(TEXT, said("hub:publish", {"topic": "calm", "type": "loud", "data": "x" * 10_000}).encode())
            for wire in loud:
                wire.writer.write(message * 6)  # in one turn of the loop, a little more than may wait
            for _ in range(120):
                await reader.expect("loud", SECONDS)
            await reader.nothing_more()

    asyncio.run(scenario())


LARGE = ("size", "websocket")
KEPT = "message: nearly a mebibyte into a log"
"""Is kept on purpose."""


def _of_size(*, is_large: bool) -> list[Row]:
    names = [name for name in ROWS if not name.startswith("flood") and name != KEPT]
    return [ROWS[name] for name in names if name.startswith(LARGE) == is_large]


@pytest.mark.long
@pytest.mark.parametrize(
    ("rows", "rounds", "most"),
    [(_of_size(is_large=False), 2, 4 * MEBIBYTE), (_of_size(is_large=True), 5, 48 * MEBIBYTE)],
    ids=["small ones", "large ones, of which the allocator keeps some"],
)
def test_the_table_over_and_over_leaves_no_memory_behind(rows: list[Row], rounds: int, most: int) -> None:
    """In a process of its own, whose memory is nobody else's."""

    async def scenario(process: ServerProcess) -> None:
        async with AsyncExitStack() as stack:
            innocent = await innocents(process.url, stack)
            sizes = []
            for _ in range(rounds + 1):
                for row in rows:
                    await run(process.url, row, innocent.filled)
                await innocent.are_well()
                sizes.append(resident(process.process.pid))
            # The first round fills what is bounded: caches, and what is made when it is first needed.
            assert sizes[-1] - sizes[0] < most, sizes

    with ServerProcess(hub_history="kept", hub_rate_limit=0) as process:
        asyncio.run(scenario(process))
        assert "Traceback" not in process.log
        assert "failed with" not in process.log


def resident(process_id: int) -> int:
    """The memory of a process, in bytes."""
    lines = Path(f"/proc/{process_id}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))
