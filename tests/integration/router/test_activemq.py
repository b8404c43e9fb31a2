"""The ActiveMQ source against a real server, beyond what the conformance suite asks of every source."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import uvloop

from penstock.clock import monotonic
from penstock.durations import SECOND
from penstock.errors import FailedPrecondition, Unavailable
from penstock.router.core.message import SourceMessage
from penstock.router.sources import activemq, stomp
from penstock.router.sources.activemq import ActiveMqSource
from tests.integration.router.activemq_server import LOGIN, USER, ActiveMqServer, Client, break_connection, running, source_of
from tests.ports import free_port
from tests.together import play_together

LIMIT = 30
QUEUES = count(1)


@pytest.fixture
def server(shared_activemq: ActiveMqServer) -> ActiveMqServer:
    shared_activemq.start()
    return shared_activemq


@pytest.fixture(autouse=True)
def _copies(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every delay is so long that the server is given a copy, but where a test says otherwise."""
    if "waits_here" not in request.fixturenames:
        monkeypatch.setattr(activemq, "SHORT_DELAY", 0)


@pytest.fixture
def waits_here() -> None:
    """Short delays are waited for here, as usual."""


class World:
    """A queue of its own, a client to reach it, and sources of it."""

    def __init__(self, server: ActiveMqServer, client: Client, queue: str) -> None:
        self.server = server
        self.client = client
        self.queue = queue

    def source(self, options: str = "", login: str = LOGIN) -> ActiveMqSource:
        return source_of(f"activemq://{login}@127.0.0.1:{self.server.port}/{self.queue}{options}")

    @asynccontextmanager
    async def started(self, options: str = "", login: str = LOGIN) -> AsyncIterator[ActiveMqSource]:
        source = self.source(options, login)
        await source.start()
        try:
            yield source
        finally:
            await source.stop()

    async def send(self, *bodies: bytes) -> None:
        await self.client.send(self.queue, bodies)

    async def left(self) -> list[bytes]:
        return [body for _, body in await self.client.left(self.queue)]


def play(server: ActiveMqServer, scene: Callable[[World], Coroutine[Any, Any, None]], prefix: str = "test") -> None:
    async def run() -> None:
        async with asyncio.timeout(60):
            client = await Client.connect(server.port)
            try:
                await scene(World(server, client, f"{prefix}.{next(QUEUES)}"))
            finally:
                client.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # as the router does; the conformance suite has the other
        runner.run(run())


async def take(source: ActiveMqSource, number: int) -> list[SourceMessage]:
    found: list[SourceMessage] = []
    async with asyncio.timeout(LIMIT):
        while len(found) < number:
            try:
                found += await source.poll(number - len(found), 1)
            except Unavailable:
                await asyncio.sleep(0.05)
    return found


def bodies_of(received: list[SourceMessage]) -> list[bytes]:
    return [each.body for each in received]


def test_a_nacked_message_keeps_its_id_and_headers_and_its_count_grows(server: ActiveMqServer) -> None:
    async def scene(world: World) -> None:
        given = {"colour": "a:b\\c\nd", "na:me": "x", "correlation-id": "c1", "priority": "7"}
        await world.client.send(world.queue, [b"\0binary\n\n\0"], given)
        async with world.started() as source:
            (first,) = await take(source, 1)
            source.nack(first, 1)
            (second,) = await take(source, 1)
            source.nack(second, 1)
            (third,) = await take(source, 1)
            assert {each.broker_id for each in (first, second, third)} == {first.broker_id}
            assert [each.count for each in (first, second, third)] == [1, 2, 3]
            assert third.body == b"\0binary\n\n\0"
            ((fields, _),) = await world.client.left(world.queue)
            assert fields["colour"] == "a\\cb\\\\c\\nd"
            assert fields["na\\cme"] == "x"
            assert (fields["correlation-id"], fields["priority"], fields["persistent"]) == ("c1", "7", "true")

    play(server, scene)


def test_a_text_message_stays_one_when_it_is_nacked(server: ActiveMqServer) -> None:
    async def scene(world: World) -> None:
        await world.client.send(world.queue, ["grüße".encode()], is_text=True)
        async with world.started() as source:
            source.nack((await take(source, 1))[0], 1)
            (again,) = await take(source, 1)
            assert again.body == "grüße".encode()
            assert "content-length" not in again.receipt.head

    play(server, scene)


def test_a_delay_outlives_the_router_and_the_server(server: ActiveMqServer) -> None:
    async def scene(world: World) -> None:
        await world.send(b"late", b"next")
        async with world.started() as source:
            late, _ = await take(source, 2)
            began = monotonic()
            source.nack(late, 2)
            await source.flush()
            assert await world.left() == [b"next"]  # the original is gone, the copy is the scheduler's
            server.kill()
        server.start()
        async with world.started() as source:
            assert bodies_of(await take(source, 1)) == [b"next"]
            (again,) = await take(source, 1)
            assert (again.body, again.broker_id) == (b"late", late.broker_id)
            assert monotonic() - began >= 1.7 * SECOND

    play(server, scene)


@pytest.mark.usefixtures("waits_here")
def test_a_message_keeps_its_place_through_a_short_delay_and_a_restart(server: ActiveMqServer) -> None:
    async def scene(world: World) -> None:
        await world.send(b"late", b"next")
        async with world.started() as source:
            late, _ = await take(source, 2)
            source.nack(late, 30)
            await source.flush()
        async with world.started() as source:
            assert bodies_of(await take(source, 2)) == [b"late", b"next"]

    play(server, scene)


def test_what_a_killed_process_held_comes_first_and_in_order(server: ActiveMqServer) -> None:
    async def scene(world: World) -> None:
        sent = [b"%04d" % number for number in range(500)]
        await world.send(*sent)
        uri = server.uri(world.queue)
        child = await asyncio.create_subprocess_exec(sys.executable, "-c", HOLDING, uri, stdout=subprocess.PIPE)
        assert child.stdout is not None
        assert await child.stdout.readline() == b"300\n"
        child.kill()
        await child.wait()
        async with world.started() as source:
            found = await take(source, 499)
            assert bodies_of(found) == [body for body in sent if body != b"0007"]
            assert [each.count for each in found[:299]] == [2] * 299

    play(server, scene)


HOLDING = """
import asyncio, sys
from tests.integration.router.activemq_server import source_of

async def hold():
    source = source_of(sys.argv[1])
    await source.start()
    held = []
    while len(held) < 300:
        held += await source.poll(300 - len(held), 1)
    source.ack(held[7])
    await source.flush()
    print(len(held), flush=True)
    await asyncio.sleep(60)

asyncio.run(hold())
"""


def test_an_ack_that_the_server_did_not_hear_of_is_made_up_for(server: ActiveMqServer) -> None:
    async def scene(world: World) -> None:
        await world.send(b"a", b"b", b"c")
        async with world.started() as source:
            a, b, _ = await take(source, 3)
            source.ack(a)
            break_connection(source)  # before the turn in which the ack is written
            await source.flush()
            assert not source.is_healthy
            source.ack(b)
            (c,) = await take(source, 1)
            assert (c.body, c.count) == (b"c", 2)
            await source.flush()
            assert await world.left() == [b"c"]

    play(server, scene)


def test_an_old_delivery_settles_the_newest(server: ActiveMqServer) -> None:
    async def scene(world: World) -> None:
        await world.send(b"a")
        async with world.started() as source:
            (old,) = await take(source, 1)
            break_connection(source)
            (new,) = await take(source, 1)
            assert new.broker_id == old.broker_id
            source.ack(old)
            await source.flush()
            assert await world.left() == []

    play(server, scene)


def test_a_nack_that_the_server_did_not_hear_of_is_made_up_for(server: ActiveMqServer) -> None:
    async def comes_late(source: ActiveMqSource, first: SourceMessage) -> None:
        began = monotonic()
        (again,) = await take(source, 1)
        assert again.broker_id == first.broker_id
        assert monotonic() - began >= 0.7 * SECOND

    async def broken_after_the_nack(world: World) -> None:
        await world.send(b"a")
        async with world.started() as source:
            (first,) = await take(source, 1)
            source.nack(first, 1)
            break_connection(source)
            await source.flush()
            await comes_late(source, first)

    async def broken_before_the_nack(world: World) -> None:
        await world.send(b"a")
        async with world.started() as source:
            (first,) = await take(source, 1)
            break_connection(source)
            await source.flush()
            assert not source.is_healthy
            source.nack(first, 1)
            await comes_late(source, first)

    async def both(world: World) -> None:
        other = World(server, world.client, f"{world.queue}.other")
        await asyncio.gather(broken_after_the_nack(world), broken_before_the_nack(other))

    play(server, both)


def test_a_router_that_does_not_poll_and_holds_nothing_leaves_the_messages_to_others(server: ActiveMqServer) -> None:
    async def scene(world: World) -> None:
        await world.send(*[b"%d" % number for number in range(9)])
        async with world.started() as lazy, world.started() as busy:
            (first,) = await take(lazy, 1)
            lazy.ack(first)
            assert sorted(bodies_of(await take(busy, 8))) == [b"%d" % number for number in range(1, 9)]
            await world.send(b"new")
            break_connection(busy)
            assert len(await take(lazy, 9)) == 9  # it subscribes again when it polls again

    play(server, scene)


def test_exclusive_routers_take_over_in_order(server: ActiveMqServer) -> None:
    async def scene(world: World) -> None:
        sent = [b"%d" % number for number in range(9)]
        async with world.started("?exclusive=true") as first, world.started("?exclusive=true") as second:
            polls = [asyncio.ensure_future(source.poll(4, LIMIT)) for source in (first, second)]
            await world.send(*sent)
            await polls[0]
            assert not polls[1].done()
            break_connection(first)
            found = [*await polls[1]]
            assert bodies_of(found + await take(second, 9 - len(found))) == sent

    play(server, scene)


def test_a_message_of_megabytes_comes_whole(server: ActiveMqServer) -> None:
    async def scene(world: World) -> None:
        body = bytes(range(256)) * 20_000
        await world.send(body)
        async with world.started() as source:
            assert bodies_of(await take(source, 1)) == [body]

    play(server, scene)


def test_headers_that_look_like_ours_do_no_harm(server: ActiveMqServer) -> None:
    async def scene(world: World) -> None:
        for fields in ({"penstock-count": "many", "penstock-due": "soon"}, {"penstock-count": "9" * 40}, {"penstock-id": ""}):
            await world.client.send(world.queue, [b"x"], fields)
        async with world.started() as source:
            found = await take(source, 3)
            assert [each.count for each in found] == [1, 1, 1]
            assert len({each.broker_id for each in found}) == 3

    play(server, scene)


def test_wrong_credentials_are_refused_and_not_shown(server: ActiveMqServer) -> None:
    async def scene(world: World) -> None:
        for login in (f"{USER}:hush", "nobody:hush"):
            source = world.source(login=login)
            for _ in range(2):
                # ActiveMQ may close the connection before its refusal is on the wire; then the hint alone speaks of the login.
                with pytest.raises((FailedPrecondition, Unavailable)) as caught:
                    await source.start()
                assert "hush" not in f"{caught.value} {caught.value.hint}"
                assert "the user and the password" in str(caught.value.hint)
                assert not source.is_healthy
            await source.stop()

    play(server, scene)


def test_a_queue_that_may_not_be_read_is_refused(server: ActiveMqServer) -> None:
    async def scene(world: World) -> None:
        source = world.source(login="reader:reader")
        with pytest.raises(FailedPrecondition, match="does not let the queue"):
            await source.start()
        await source.stop()

    play(server, scene)


def test_a_nack_waits_here_where_no_copy_may_be_written(server: ActiveMqServer) -> None:
    async def scene(world: World) -> None:
        await world.send(b"a", b"b")
        async with world.started(login="reader:reader") as source:
            a, b = await take(source, 2)
            began = monotonic()
            source.nack(a, 1)
            (again,) = await take(source, 1)
            assert (again.body, again.count) == (b"a", 2)
            assert monotonic() - began >= 0.9 * SECOND
            source.ack(again)
            source.ack(b)
            await source.flush()
            assert await world.left() == []

    play(server, scene, "read")


@pytest.mark.long
def test_a_nack_waits_here_where_the_server_has_no_scheduler(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        await world.send(b"a")
        async with world.started() as source:
            (first,) = await take(source, 1)
            for number in (2, 3):
                began = monotonic()
                source.nack(first, 1)
                (again,) = await take(source, 1)
                assert (again.broker_id, again.count) == (first.broker_id, number)
                assert monotonic() - began >= 0.9 * SECOND
                first = again
            source.ack(first)
            await source.flush()
            assert await world.left() == []

    with running(tmp_path, has_scheduler=False) as plain:
        play(plain, scene)


def test_tls(server: ActiveMqServer) -> None:
    async def scene(world: World) -> None:
        await world.send(b"a", b"b" * 100_000)
        place = f"activemq://{LOGIN}@127.0.0.1:{server.tls_port}/{world.queue}?tls=true"
        source = source_of(f"{place}&ca={server.certificate}")
        await source.start()
        found = await take(source, 2)
        assert bodies_of(found) == [b"a", b"b" * 100_000]
        source.ack(found[0])
        await source.stop()
        assert await world.left() == [b"b" * 100_000]
        with pytest.raises(Unavailable, match="certificate"):
            await source_of(place).start()
        with pytest.raises(FailedPrecondition, match="certificates"):
            await source_of(f"{place}&ca=missing").start()

    play(server, scene)


def test_the_next_host_is_tried(server: ActiveMqServer) -> None:
    async def scene(world: World) -> None:
        await world.send(b"a")
        source = source_of(f"activemq://{LOGIN}@127.0.0.1:{free_port()},127.0.0.1:{server.port}/{world.queue}")
        await source.start()
        assert bodies_of(await take(source, 1)) == [b"a"]
        await source.stop()

    play(server, scene)


@asynccontextmanager
async def pretending(*answers: bytes) -> AsyncIterator[int]:
    """A server that answers this to what comes first, that to what comes next, and then nothing."""
    served = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            for answer in answers:
                await reader.read(1000)
                writer.write(answer)
            await reader.read()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        served.set()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listening:
        yield listening.sockets[0].getsockname()[1]
    await served.wait()


NO_ACTIVEMQ = {
    "nothing": b"",
    "HTTP": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "no STOMP": b"HELLO\n\n\0",
    "bad header": b"CONNECTED\nversion:1.2\nno colon\n\n\0",
    "bad message": b"CONNECTED\nversion:1.2\n\n\0MESSAGE\ncontent-length:x\n\n\0",
    "zeros": b"\0\0\0\0",
}


def test_a_server_that_is_no_activemq_is_unavailable(monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests) -> None:
    monkeypatch.setattr(stomp, "ANSWER_LIMIT", 0.3)

    async def scene(answer: bytes) -> None:
        async with pretending(answer) as port:
            source = source_of(f"activemq://127.0.0.1:{port}/q")
            with pytest.raises(Unavailable):
                await source.start()
            await source.stop()

    play_together({name: partial(scene, answer) for name, answer in NO_ACTIVEMQ.items()}, subtests)


def test_a_stop_does_not_wait_for_a_server_that_does_not_answer() -> None:
    async def scene() -> None:
        async with pretending() as port:
            source = source_of(f"activemq://127.0.0.1:{port}/q")
            source._stopped.clear()  # as after a start whose connection is lost
            poll = asyncio.ensure_future(source.poll(1, LIMIT))
            await asyncio.sleep(0.1)  # it may have begun to connect or not: both must do
            async with asyncio.timeout(LIMIT / 2):
                await source.stop()
            poll.cancel()
            await asyncio.wait([poll])

    asyncio.run(scene())


def test_a_server_that_falls_silent_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stomp, "HEARTBEAT", 0.05)

    async def scene() -> None:
        greeting, receipt = b"CONNECTED\nversion:1.2\nheart-beat:50,50\n\n\0", b"RECEIPT\nreceipt-id:1\n\n\0"
        async with pretending(greeting, receipt) as port:
            source = source_of(f"activemq://127.0.0.1:{port}/q")
            await source.start()
            with pytest.raises(Unavailable, match="nothing was heard"):
                await source.poll(1, LIMIT)
            assert not source.is_healthy

    asyncio.run(scene())


def test_an_idle_connection_lives_on_heart_beats(server: ActiveMqServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stomp, "HEARTBEAT", 0.2)
    monkeypatch.setattr(activemq, "IDLE", 0.1)

    async def scene(world: World) -> None:
        async with world.started() as source:
            life = source._life
            assert [*await source.poll(1, 1)] == []
            assert source.is_healthy
            assert source._life == life

    play(server, scene)
