"""The NATS source at a real server: what the conformance suite (tests/conformance/test_router_sources.py) does not ask."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client
from nats.js.api import AckPolicy, ConsumerConfig, RetentionPolicy, StorageType, StreamConfig

from penstock.clock import SystemClock
from penstock.errors import FailedPrecondition, Unavailable
from penstock.router.core.config import QueueConfig
from penstock.router.core.message import SourceMessage
from penstock.router.source import QueueDepth
from penstock.router.sources.nats import NatsSource
from penstock.router.sources.nats_connection import NatsAddress, NatsConnection
from tests.integration.router.nats_server import NatsServer, crash
from tests.ports import free_port

PATIENCE = 50.0
"""Seconds, less than a lease: what comes within this time did not wait for the end of one."""
NUMBERS = count(1)


@pytest.fixture
def server(shared_nats: NatsServer) -> NatsServer:
    shared_nats.start()
    return shared_nats


@pytest.fixture
def stream() -> str:
    """A name that no other test uses."""
    return f"S{next(NUMBERS)}"


def source_of(server: NatsServer, stream: str, *, lease: int = 60, options: str | None = None) -> NatsSource:
    query = f"?subject={stream}.>" if options is None else options
    return NatsSource(QueueConfig("q", f"nats://{server.place}/{stream}/router{query}", visibility_timeout=lease), SystemClock())


@contextlib.asynccontextmanager
async def started(source: NatsSource) -> AsyncIterator[NatsSource]:
    await source.start()
    try:
        yield source
    finally:
        await source.stop()


@contextlib.asynccontextmanager
async def client_of(server: NatsServer) -> AsyncIterator[Client]:
    client = await nats.connect(f"nats://{server.place}")
    try:
        yield client
    finally:
        await client.close()


async def send(client: Client, stream: str, count: int, first: int = 0) -> None:
    """Numbered bodies; returns when the last one is stored."""
    for number in range(first, first + count - 1):
        await client.publish(f"{stream}.m", b"%d" % number)
    await client.jetstream().publish(f"{stream}.m", b"%d" % (first + count - 1))


async def take(source: NatsSource, count: int) -> list[SourceMessage]:
    taken: list[SourceMessage] = []
    async with asyncio.timeout(PATIENCE):
        while len(taken) < count:
            with contextlib.suppress(Unavailable):
                taken += await source.poll(count - len(taken), 1)
    return taken


def numbers(messages: list[SourceMessage]) -> list[int]:
    return [int(received.body) for received in messages]


# ── the stream and the consumer ──────────────────────────────────────────────────────────────────────────────────────────────


def test_a_stream_and_a_consumer_that_are_missing_are_made(server: NatsServer, stream: str) -> None:
    async def run() -> None:
        async with started(source_of(server, stream, lease=45)) as source, client_of(server) as client:
            made = (await client.jetstream().stream_info(stream)).config
            assert (made.retention, made.storage) == (RetentionPolicy.WORK_QUEUE, StorageType.FILE)
            assert made.subjects == [f"{stream}.>"]
            consumer = (await client.jetstream().consumer_info(stream, "router")).config
            assert (consumer.ack_policy, consumer.ack_wait, consumer.filter_subject) == (AckPolicy.EXPLICIT, 45, f"{stream}.>")
            assert (consumer.max_ack_pending or 0) >= 20_000
            assert source.lease_seconds == 45

    asyncio.run(run())


def test_a_consumer_that_exists_is_used_as_it_is_and_says_how_long_leases_are(server: NatsServer, stream: str) -> None:
    async def run() -> None:
        async with client_of(server) as client:
            jetstream = client.jetstream()
            await jetstream.add_stream(StreamConfig(name=stream, subjects=[f"{stream}.>"]))
            # Also with limits of its own, which a request for messages must keep.
            settings = {
                "durable_name": "router",
                "ack_policy": "explicit",
                "ack_wait": 7_000_000_000,
                "max_ack_pending": 9,
                "max_batch": 4,
                "max_expires": 500_000_000,
            }
            wanted = json.dumps({"stream_name": stream, "config": settings}).encode()
            made = await client.request(f"$JS.API.CONSUMER.DURABLE.CREATE.{stream}.router", wanted)
            assert b"error" not in made.data
            async with started(source_of(server, stream, options="")) as source:
                assert source.lease_seconds == 7
                await send(client, stream, 20)
                assert numbers(await take(source, 9)) == list(range(9))
                assert await source.poll(1, 0.2) == []
                assert await source.depth() == QueueDepth(pending=11, not_visible=9)

    asyncio.run(run())


def test_what_nobody_polls_for_any_more_goes_back_and_keeps_its_place(server: NatsServer, stream: str) -> None:
    async def run() -> None:
        async with started(source_of(server, stream)) as source, client_of(server) as client:
            poll = asyncio.ensure_future(source.poll(10, PATIENCE))
            while not source._waiters:  # noqa: ASYNC110  # the source has no event for it
                await asyncio.sleep(0)
            poll.cancel()  # while the request of the poll stays open
            await send(client, stream, 10)
            async with asyncio.timeout(PATIENCE):
                while len(source._buffer) < 10:  # noqa: ASYNC110  # the source has no event for it
                    await asyncio.sleep(0.02)
            await send(client, stream, 5, 10)
            source._keep()  # as every 20 seconds: somebody polled since the last time,
            source._keep()  # and now nobody
            assert not source._buffer

            assert numbers(await take(source, 15)) == list(range(15))

    asyncio.run(run())


def test_ids_counts_headers_and_sizes(server: NatsServer, stream: str) -> None:
    large = random.Random(6).randbytes(1_000_000)  # a server's usual limit is 1 MiB

    async def run() -> None:
        async with started(source_of(server, stream)) as source, client_of(server) as client:
            await client.publish(f"{stream}.a", b"with", headers={"Nats-Msg-Id": "x", "Other": "1"})
            await client.publish(f"{stream}.b", b"")
            await client.publish(f"{stream}.c", large)
            await client.publish(f"{stream}.d", b"MSG x 1 5\r\n\r\n")
            await client.jetstream().publish(f"{stream}.e", large[:300_000], headers={"Other": "y" * 5_000})
            messages = await take(source, 5)
            assert [received.broker_id for received in messages] == [f"{stream}:{number}" for number in range(1, 6)]
            assert [received.body for received in messages] == [b"with", b"", large, b"MSG x 1 5\r\n\r\n", large[:300_000]]
            assert [received.count for received in messages] == [1] * 5
            source.nack(messages[0], 0)
            (again,) = await take(source, 1)
            assert (again.broker_id, again.body, again.count) == (f"{stream}:1", b"with", 2)

    asyncio.run(run())


def test_a_consumer_of_another_kind_is_refused(server: NatsServer, stream: str) -> None:
    async def run() -> None:
        async with client_of(server) as client:
            await client.jetstream().add_stream(StreamConfig(name=stream, subjects=[f"{stream}.>"]))
            for config, problem in (
                (ConsumerConfig(durable_name="router", ack_policy=AckPolicy.NONE), "acks 'none'"),
                (ConsumerConfig(durable_name="router", ack_policy=AckPolicy.ALL), "acks 'all'"),
                (ConsumerConfig(durable_name="router", deliver_subject="elsewhere"), "delivers to 'elsewhere'"),
            ):
                await client.jetstream().add_consumer(stream, config)
                with pytest.raises(FailedPrecondition, match=problem):
                    await source_of(server, stream).start()
                await client.jetstream().delete_consumer(stream, "router")

    asyncio.run(run())


def test_a_stream_that_is_missing_without_a_subject_is_refused(server: NatsServer, stream: str) -> None:
    with pytest.raises(FailedPrecondition, match=f"no stream '{stream}'"):
        asyncio.run(source_of(server, stream, options="").start())


def test_a_subject_that_another_stream_has_is_refused(server: NatsServer, stream: str) -> None:
    async def run() -> None:
        async with client_of(server) as client:
            await client.jetstream().add_stream(StreamConfig(name=f"{stream}x", subjects=[f"{stream}.>"]))
        with pytest.raises(FailedPrecondition, match="overlap"):
            await source_of(server, stream).start()

    asyncio.run(run())


def test_a_consumer_that_is_deleted_is_made_again(server: NatsServer, stream: str) -> None:
    async def run() -> None:
        async with started(source_of(server, stream)) as source, client_of(server) as client:
            waiting = asyncio.ensure_future(source.poll(1, PATIENCE))
            await source.depth()  # the request of the poll is at the server now
            await client.jetstream().delete_consumer(stream, "router")
            with pytest.raises(Unavailable, match="consumer"):
                await waiting
            await send(client, stream, 3)
            assert numbers(await take(source, 3)) == [0, 1, 2]

    asyncio.run(run())


def test_numbers_of_a_stream_that_was_made_anew_are_other_messages(
    server: NatsServer, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.router.sources.nats.SILENCE_SECONDS", 0.5)  # only silence tells that the consumer is gone
    monkeypatch.setattr("penstock.router.sources.nats.HEARTBEAT_SECONDS", 0.1)

    async def run() -> None:
        async with started(source_of(server, stream)) as source, client_of(server) as client:
            await send(client, stream, 5)
            old = await take(source, 5)
            for received in old[:3]:
                source.ack(received)
            await source.flush()
            await client.jetstream().delete_stream(stream)
            await client.jetstream().add_stream(
                StreamConfig(name=stream, subjects=[f"{stream}.>"], retention=RetentionPolicy.WORK_QUEUE)
            )
            await send(client, stream, 5, first=100)
            again = await take(source, 5)
            assert numbers(again) == [100, 101, 102, 103, 104]
            for received in again:
                source.ack(received)
            await source.flush()
            assert await source.depth() == QueueDepth(0, 0)

    asyncio.run(run())


def test_an_ack_that_waited_is_not_of_a_stream_that_was_made_anew(
    server: NatsServer, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with started(source_of(server, stream)) as source, client_of(server) as client:
            await send(client, stream, 6)
            old = await take(source, 6)
            may_connect, connect = asyncio.Event(), NatsConnection.connect

            async def later(address: NatsAddress, name: str) -> NatsConnection:
                await may_connect.wait()
                return await connect(address, name)

            monkeypatch.setattr(NatsConnection, "connect", later)
            assert source._link
            source._link.abort()
            while source.is_healthy:  # noqa: ASYNC110  # the next turn of the loop
                await asyncio.sleep(0)
            for received in old[:3]:
                source.ack(received)
            await client.jetstream().delete_stream(stream)
            kept = StreamConfig(name=stream, subjects=[f"{stream}.>"], retention=RetentionPolicy.WORK_QUEUE)
            await client.jetstream().add_stream(kept)
            await send(client, stream, 6, first=100)
            may_connect.set()
            assert numbers(await take(source, 6)) == [100, 101, 102, 103, 104, 105]
            source.ack(old[4])  # the router has not heard
            await source.flush()
            assert (await client.jetstream().stream_info(stream)).state.messages == 6

    asyncio.run(run())


# ── order at the start ───────────────────────────────────────────────────────────────────────────────────────────────────────

VICTIM = """
    import asyncio, sys
    from penstock.clock import SystemClock
    from penstock.router.core.config import QueueConfig
    from penstock.router.sources.nats import NatsSource

    async def main() -> None:
        source = NatsSource(QueueConfig("q", sys.argv[1], visibility_timeout=int(sys.argv[2])), SystemClock())
        await source.start()
        held = []
        while len(held) < 60:
            held += await source.poll(60 - len(held), 5)
        for received in held[:50:3]:
            source.ack(received)
        for received in held[1:50:3]:
            source.extend(received, 100)
        await source.flush()
        print("ready", flush=True)
        await asyncio.sleep(600)

    asyncio.run(main())
"""


@contextlib.contextmanager
def victim(server: NatsServer, stream: str, lease: int) -> Iterator[subprocess.Popen[bytes]]:
    """A process that took 60 messages, acked the first of every three up to 50, and extended the second."""
    uri = f"nats://{server.place}/{stream}/router?subject={stream}.>"
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(VICTIM), uri, str(lease)], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == b"ready\n"
            yield process
        finally:
            process.kill()


LEFT_BY_VICTIM = [number for number in range(60) if number >= 50 or number % 3]


def test_what_a_killed_process_held_comes_first_at_once_and_in_order(server: NatsServer, stream: str) -> None:
    async def run() -> None:
        async with client_of(server) as client:
            async with started(source_of(server, stream)):
                await send(client, stream, 200)
            with victim(server, stream, lease=60) as process:
                os.kill(process.pid, signal.SIGKILL)
                process.wait()
            async with started(source_of(server, stream)) as source:
                rest = await take(source, len(LEFT_BY_VICTIM) + 140)
                assert numbers(rest) == LEFT_BY_VICTIM + list(range(60, 200))

    asyncio.run(run())


def test_what_a_living_router_of_the_same_consumer_holds_is_left_to_it(server: NatsServer, stream: str) -> None:
    async def run() -> None:
        async with client_of(server) as client, started(source_of(server, stream)) as other:
            await send(client, stream, 20)
            held = await take(other, 10)
            async with started(source_of(server, stream)) as source:
                assert numbers(await take(source, 10)) == list(range(10, 20))
                for received in held:
                    other.ack(received)
                await other.flush()
                assert await source.poll(1, 0.3) == []
                assert await source.depth() == QueueDepth(pending=0, not_visible=10)

    asyncio.run(run())


def test_what_a_router_holds_that_may_be_dead_is_waited_for(server: NatsServer, stream: str) -> None:
    """Its connection is there and nobody answers: as a machine that lost its power looks for a while."""

    async def run() -> None:
        async with client_of(server) as client:
            async with started(source_of(server, stream, lease=3)):
                await send(client, stream, 100)
            with victim(server, stream, lease=3) as process:
                os.kill(process.pid, signal.SIGSTOP)
                async with started(source_of(server, stream)) as source:
                    (first, *_) = rest = await take(source, 50)
                    assert first.count == 2
                    # Those whose lease was made longer than this come when that ends, as the dead one said.
                    assert numbers(rest) == [n for n in LEFT_BY_VICTIM if n % 3 != 1 or n >= 50] + list(range(60, 60 + 24))

    asyncio.run(run())


def test_after_a_clean_stop_order_is_kept_whatever_was_told(server: NatsServer, stream: str) -> None:
    async def run() -> None:
        async with client_of(server) as client:
            async with started(source_of(server, stream)) as source:
                await send(client, stream, 40)
                held = await take(source, 20)
                source.extend(held[3], 500)
                source.nack(held[7], 0)
                await source.flush()
                source.nack(held[2], 0)
                source.ack(held[5])
            async with started(source_of(server, stream)) as source:
                rest = await take(source, 39)
                assert numbers(rest) == [number for number in range(40) if number != 5]

    asyncio.run(run())


def test_what_was_handed_out_and_no_longer_exists_is_forgotten(server: NatsServer, stream: str) -> None:
    async def run() -> None:
        source = source_of(server, stream)
        await source.start()
        async with client_of(server) as client:
            await send(client, stream, 10)
        held = await take(source, 6)
        for received in (held[0], held[2], held[3]):
            source.ack(received)
        await source.flush()
        await crash(source)
        server.kill()  # it may have deleted what was acked, and not have written down that it was acked
        await asyncio.to_thread(server.start)
        async with started(source_of(server, stream)) as source:
            seen = set[int]()
            async with asyncio.timeout(PATIENCE):  # nothing is waited for that cannot come
                while not {1, 4, 5, 6, 7, 8, 9} <= seen:
                    for received in await source.poll(10, 1):
                        seen.add(int(received.body))
                        source.ack(received)
            await source.flush()
            assert await source.depth() == QueueDepth(0, 0)

    asyncio.run(run())


@pytest.mark.long
def test_many_left_messages_come_in_order(server: NatsServer, stream: str) -> None:
    async def run() -> None:
        async with client_of(server) as client:
            source = source_of(server, stream)
            await source.start()
            await send(client, stream, 25_000)
            held = await take(source, 20_000)
            for received in random.Random(6).sample(held, 10_000):
                source.ack(received)
            await source.flush()
            await crash(source)
            async with started(source_of(server, stream)) as source:
                rest = numbers(await take(source, 15_000))
                assert rest == sorted(rest)
                assert rest[-5_000:] == list(range(20_000, 25_000))

    asyncio.run(run())


# ── leases and waiting ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_came_and_nobody_asked_for_keeps_its_lease(server: NatsServer, stream: str) -> None:
    async def run() -> None:
        async with started(source_of(server, stream, lease=2)) as source, client_of(server) as client:
            assert await source.poll(30, 0.05) == []  # its request stays open, also for what would come again
            await send(client, stream, 10)
            await asyncio.sleep(2.5)  # longer than a lease: the server would hand them out again
            messages = await source.poll(30, 1)
            assert [received.count for received in messages] == [1] * 10

    asyncio.run(run())


def test_an_idle_source_hands_out_a_new_message_without_waiting_for_a_timer(
    server: NatsServer, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        async with asyncio.timeout(PATIENCE), started(source_of(server, stream)) as source, client_of(server) as client:
            loop = asyncio.get_running_loop()
            call_at = loop.call_at
            with monkeypatch.context() as patch:
                patch.setattr(loop, "call_at", lambda when, *args, **options: call_at(when + 3_600, *args, **options))
                for _ in range(3):
                    waiting = asyncio.ensure_future(source.poll(200, 5))
                    await source.depth()  # the request is at the server now
                    await client.publish(f"{stream}.m", b"1")
                    await client.flush()
                    (received,) = await waiting
                    source.ack(received)

    asyncio.run(run())


def test_a_poll_that_is_cancelled_loses_nothing(server: NatsServer, stream: str) -> None:
    async def run() -> None:
        async with started(source_of(server, stream)) as source, client_of(server) as client:
            for turn in range(20):
                waiting = asyncio.ensure_future(source.poll(10, 5))
                await source.depth()
                sending = asyncio.ensure_future(client.publish(f"{stream}.m", b"%d" % turn))
                while not source._open:  # noqa: ASYNC110  # each turn of the loop counts
                    await asyncio.sleep(0)
                waiting.cancel()  # it may have been given the message in this very turn
                with contextlib.suppress(asyncio.CancelledError):
                    assert await waiting == []
                await sending
                (received,) = await take(source, 1)
                assert int(received.body) == turn
                source.ack(received)

    asyncio.run(run())


# ── servers that go away ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_server_that_hangs_is_given_up(server: NatsServer, stream: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.router.sources.nats_connection.PING_SECONDS", 0.05)

    async def run() -> None:
        async with started(source_of(server, stream)) as source:
            server.pause()
            try:
                with pytest.raises(Unavailable, match="no sign of life"):
                    await source.poll(1, PATIENCE)
                assert not source.is_healthy
            finally:
                server.go_on()
            async with client_of(server) as client:
                await send(client, stream, 1)
            assert numbers(await take(source, 1)) == [0]

    asyncio.run(run())


def test_what_is_sent_goes_to_a_subject_that_the_consumer_takes(server: NatsServer, stream: str) -> None:
    async def run() -> None:
        async with client_of(server) as client:
            config = StreamConfig(name=stream, subjects=[f"{stream}.mails.*", f"{stream}.orders.*.new"])
            await client.jetstream().add_stream(config)
        for options in ("", f"?subject={stream}.orders.*.new"):
            consumer = f"c{len(options)}"
            uri = f"nats://{server.place}/{stream}/{consumer}{options}"
            async with started(NatsSource(QueueConfig("q", uri), SystemClock())) as source:
                sent = await source.send(b"7", "any")
                [received] = [one for one in await take(source, 1) if one.broker_id == sent]
                source.ack(received)
                await source.flush()

    asyncio.run(run())


def test_where_several_servers_are_named_the_first_that_answers_is_taken(server: NatsServer, stream: str) -> None:
    async def run() -> None:
        hosts = f"127.0.0.1:{free_port()},{server.place}"
        uri = f"nats://{hosts}/{stream}/router?subject={stream}.>"
        async with started(NatsSource(QueueConfig("q", uri), SystemClock())) as source:
            assert source.is_healthy

    asyncio.run(run())


def test_stop_while_the_server_is_away_ends(tmp_path: Path) -> None:
    async def run(server: NatsServer) -> None:
        source = source_of(server, "S")
        await source.start()
        async with client_of(server) as client:
            await send(client, "S", 3)
        for received in await take(source, 2):
            source.ack(received)
        server.kill()
        async with asyncio.timeout(30):
            await source.flush()
            await source.stop()
        assert await source.poll(1, 5) == []

    with NatsServer(tmp_path) as server:
        asyncio.run(run(server))
