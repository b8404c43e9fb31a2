"""The server goes away in every way it can: what the client does, and what its user sees. Real servers, real sockets."""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import pytest

from penstock import PubSub
from penstock.access import Keyring
from penstock.client.links import remote
from penstock.client.links.remote import MAX_UNANSWERED, RemoteLink
from penstock.client.message import AckResponse, IncomingMessage
from penstock.client.options import SubscriptionKeywords
from penstock.clock import SystemClock
from penstock.errors import FailedPrecondition, InvalidArgument, PenstockError, ServerUnreachable, Unauthenticated, Unavailable
from penstock.journal.core.producers import SEQUENCES
from penstock.testing.proxy import Direction, FaultyProxy
from penstock.testing.server import LocalServer
from penstock.values.message import Message
from penstock.wire.operations import Operations
from tests.integration.client.quiet import run, until

pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    with LocalServer() as server:
        yield server


@pytest.fixture
def proxy(server: LocalServer) -> Iterator[FaultyProxy]:
    assert server.server.native_port is not None
    with FaultyProxy("127.0.0.1", server.server.native_port) as proxy:
        yield proxy


@pytest.fixture
def names(request: pytest.FixtureRequest) -> tuple[str, str]:
    """A topic and a subscription that no other test uses."""
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)[:80].rstrip("-")
    return f"topic-{name}", f"sub-{name}"


async def made(pubsub: PubSub, names: tuple[str, str], **options: Unpack[SubscriptionKeywords]) -> None:
    await pubsub.topic(names[0]).create()
    await pubsub.topic(names[0]).subscription(names[1], **options).create()


def stored(server: LocalServer, topic: str) -> list[bytes]:
    """What the topic's log holds, in its order."""
    broker = server.broker
    with broker.lock:
        stream = next(stream for name, stream in broker.catalog.topics.items() if name.endswith(topic))
        found = [stream.pages.get(offset) for offset in range(stream.next_offset)]
    return [message.data for message in found if message is not None]


# ── publishes ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_answer_that_is_lost_after_the_commit_publishes_nothing_twice(
    server: LocalServer, proxy: FaultyProxy, names: tuple[str, str]
) -> None:
    async def scenario() -> None:
        async with PubSub(f"penstock://{proxy.address}") as pubsub:
            await made(pubsub, names)
            for number in range(25):
                proxy.truncate(number % 5, Direction.DOWN)
                await pubsub.link.publish(names[0], [Message(b"%d" % number), Message(b"%d again" % number)])
            assert proxy.accepted > 25

    run(scenario)
    assert stored(server, names[0]) == [text for number in range(25) for text in (b"%d" % number, b"%d again" % number)]


def test_publishes_in_flight_are_repeated_in_their_order(server: LocalServer, proxy: FaultyProxy, names: tuple[str, str]) -> None:
    count = 3_000

    async def scenario() -> None:
        async with PubSub(f"penstock://{proxy.address}") as pubsub:
            await made(pubsub, names)
            publishing = [
                asyncio.ensure_future(pubsub.link.publish(names[0], [Message(b"%d" % number, ordering_key="k")]))
                for number in range(count)
            ]
            for cut in range(12):
                proxy.truncate(3_000 + 701 * cut, Direction.DOWN if cut % 2 else Direction.UP)
                accepted = proxy.accepted
                await until(
                    partial(lambda before: proxy.accepted > before or publishing[-1].done(), accepted), "another connection"
                )
            ids = [(await one)[0] for one in publishing]
            assert len(set(ids)) == count

    assert MAX_UNANSWERED <= SEQUENCES, "a server must know every repeat again"
    run(scenario)
    assert stored(server, names[0]) == [b"%d" % number for number in range(count)]


def test_no_more_is_unanswered_than_a_server_knows_again(server: LocalServer, proxy: FaultyProxy, names: tuple[str, str]) -> None:
    count = 2 * MAX_UNANSWERED + 500

    async def scenario() -> None:
        async with PubSub(f"penstock://{proxy.address}") as pubsub:
            await made(pubsub, names)
            proxy.swallow(Direction.DOWN)
            publishing = [
                asyncio.ensure_future(pubsub.link.publish(names[0], [Message(b"%d" % number)])) for number in range(count)
            ]
            await until(lambda: len(stored(server, names[0])) >= MAX_UNANSWERED, "what is stored, and not confirmed")
            await asyncio.sleep(0.05)  # more would come now, if it were sent
            proxy.heal()
            proxy.cut()
            await asyncio.gather(*publishing)

    run(scenario)
    assert stored(server, names[0]) == [b"%d" % number for number in range(count)]


def test_a_request_that_is_too_large_is_refused_here_and_harms_nobody(
    server: LocalServer, proxy: FaultyProxy, names: tuple[str, str]
) -> None:
    async def scenario() -> None:
        async with PubSub(f"penstock://{proxy.address}") as pubsub:
            await made(pubsub, names)
            with pytest.raises(InvalidArgument, match=r"has \d+ bytes, expected at most \d+"):
                await pubsub.link.publish(names[0], [Message(b"x" * 9_000_000)] * 2)
            await pubsub.link.publish(names[0], [Message(b"small")])
            assert proxy.accepted == 1

    run(scenario)
    assert stored(server, names[0]) == [b"small"]


# ── calls ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_question_is_asked_again_and_a_change_is_not(server: LocalServer, proxy: FaultyProxy, names: tuple[str, str]) -> None:
    async def scenario() -> None:
        async with PubSub(f"penstock://{proxy.address}") as pubsub:
            proxy.truncate(0, Direction.DOWN)
            assert (await pubsub.info()).version
            assert proxy.accepted == 2
            proxy.truncate(0, Direction.DOWN)
            with pytest.raises(Unavailable, match="may or may not have been executed") as told:
                await pubsub.topic(names[0]).create()
            assert not isinstance(told.value, ServerUnreachable)
            assert "repeat it if not" in str(told.value.hint)
            assert await pubsub.topic(names[0]).exists(), "here it was"

    run(scenario)


def test_a_change_that_was_not_sent_yet_waits_for_the_server(proxy: FaultyProxy, names: tuple[str, str]) -> None:
    async def scenario() -> None:
        async with PubSub(f"penstock://{proxy.address}") as pubsub:
            proxy.refuse()
            proxy.cut()
            await until(lambda: proxy.connections == 0, "the cut")
            with pytest.raises(ServerUnreachable):
                await PubSub(f"penstock://{proxy.address}").open()
            assert not pubsub.link._connection.is_usable  # type: ignore[attr-defined]  # so that it cannot have been sent
            creating = asyncio.ensure_future(pubsub.topic(names[0]).create())
            await asyncio.sleep(0.2)
            assert not creating.done()
            proxy.accept()
            await creating

    run(scenario)


def test_it_gives_up_and_says_where_why_and_after_how_long(proxy: FaultyProxy) -> None:
    async def scenario() -> None:
        async with PubSub(f"penstock://{proxy.address}", give_up_seconds=0.4) as pubsub:
            proxy.refuse()
            proxy.cut()
            began = time.monotonic()
            answers = await asyncio.gather(pubsub.info(), pubsub.topics(), return_exceptions=True)
            assert time.monotonic() - began > 0.3
            for answer in answers:
                assert isinstance(answer, ServerUnreachable)
                # On a busy machine it takes longer, and may not have tried again yet.
                problem = r"connection (refused|reset by peer); gave up after [\d.]+ s"
                assert re.match(f"no connection to the server at penstock://{proxy.address}: {problem}", str(answer)), str(answer)
            proxy.accept()
            assert (await pubsub.info()).version, "the next request tries again"

    run(scenario)


def test_a_wrong_address_is_told_at_once(proxy: FaultyProxy) -> None:
    async def scenario() -> None:
        proxy.refuse()
        for server in (f"penstock://{proxy.address}", f"http://{proxy.address}", proxy.address, f"localhost:{proxy.port}"):
            began = time.monotonic()
            with pytest.raises(ServerUnreachable, match=f"at {server}: connection refused"):
                await PubSub(server).open()
            assert time.monotonic() - began < 20

    run(scenario)


def test_no_token_a_wrong_one_and_a_revoked_one_end_it_at_once(tmp_path: Path) -> None:
    keyring = Keyring(tmp_path / "tokens.json")
    secret = keyring.create("client", SystemClock().now())
    with LocalServer(auth="token", token_file=tmp_path / "tokens.json") as server:

        async def scenario() -> None:
            for token in (None, "wrong"):
                with pytest.raises(Unauthenticated):
                    await PubSub(server.url, token=token).open()
            async with PubSub(server.url, token=secret) as pubsub:
                await made(pubsub, ("t", "s"))
                errors: list[PenstockError] = []
                over = asyncio.Event()
                pubsub.subscription("s").on("error", errors.append).on("close", over.set).on("message", print).open()
                await pubsub.info()
                wait = asyncio.ensure_future(pubsub.subscription("s").pull(wait=60))
                keyring.revoke(keyring.list()[0].id)
                await over.wait()
                assert isinstance(errors[-1], Unauthenticated)
                with pytest.raises(Unauthenticated):
                    await wait
                began = time.monotonic()
                with pytest.raises(Unauthenticated):
                    await pubsub.info()
                assert time.monotonic() - began < 20, "trying again would not help"

        run(scenario)


# ── networks ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_a_first_open_delivered_into_a_cut_comes_again_at_once(
    server: LocalServer, proxy: FaultyProxy, names: tuple[str, str]
) -> None:
    async def scenario() -> None:
        async with PubSub(server.url) as direct, PubSub(f"penstock://{proxy.address}") as pubsub:
            await made(direct, names)
            await direct.topic(names[0]).publish_many([Message(b"%d" % number) for number in range(10)])
            attempts: list[int] = []
            subscription = pubsub.subscription(names[1])

            @subscription.handler
            def take(message: IncomingMessage) -> None:
                attempts.append(message.delivery_attempt)
                message.ack()

            proxy.truncate(0, Direction.DOWN)  # the server opens the stream and delivers, and nothing of it arrives
            subscription.open()
            await until(lambda: attempts == [1] * 10, "all have come", patience=30)

    run(scenario)


def test_acks_of_what_was_pulled_are_sent_again_too(server: LocalServer, proxy: FaultyProxy, names: tuple[str, str]) -> None:
    async def scenario() -> None:
        async with PubSub(f"penstock://{proxy.address}") as pubsub:
            await made(pubsub, names)
            subscription, queue = pubsub.subscription(names[1]), await pubsub.queue(names[0]).create()
            await pubsub.topic(names[0]).publish_message(b"x")
            await queue.publish("x")
            (message,), (task,) = await subscription.pull(), await queue.consume()
            proxy.truncate(0, Direction.UP)
            message.ack()
            task.ack()
            await subscription.close()
            await queue.close()
            assert ((await subscription.stats()).acked_total, (await queue.stats()).acked_total) == (1, 1)

    run(scenario)


def test_a_half_open_connection_is_noticed_and_left(server: LocalServer, proxy: FaultyProxy, names: tuple[str, str]) -> None:
    async def scenario() -> None:
        async with PubSub(f"penstock://{proxy.address}", ping_seconds=0.2) as pubsub:
            await made(pubsub, names)
            for direction in (Direction.UP, Direction.DOWN, Direction.BOTH):
                proxy.swallow(direction)
                swallowed = proxy.swallowed
                publishing = asyncio.ensure_future(pubsub.link.publish(names[0], [Message(str(direction.name).encode())]))
                await until(partial(lambda before: proxy.swallowed > before, swallowed), "lost bytes")
                assert not publishing.done()
                proxy.heal()
                await publishing

    run(scenario)
    assert stored(server, names[0]) == [b"UP", b"DOWN", b"BOTH"]


def test_a_program_that_is_busy_does_not_lose_its_server(proxy: FaultyProxy) -> None:
    async def scenario() -> None:
        async with PubSub(f"penstock://{proxy.address}", ping_seconds=0.5) as pubsub:
            for _ in range(2):
                time.sleep(1.2)  # noqa: ASYNC251  # what a handler does that does not know better
                assert (await pubsub.info()).version
            assert proxy.accepted == 1

    run(scenario)


def test_a_server_that_moved_is_found_where_it_is_now(tmp_path: Path) -> None:
    first = LocalServer(data_dir=str(tmp_path)).start()
    port, before = first.server.port, first.server.native_port
    assert before is not None

    async def scenario() -> None:
        async with PubSub(f"127.0.0.1:{port}") as pubsub:
            topic = await pubsub.topic("t").create()
            await topic.subscription("s").create()
            one = (await pubsub.link.publish("t", [Message(b"1")]))[0]
            await asyncio.to_thread(first.stop)
            publishing = asyncio.ensure_future(pubsub.link.publish("t", [Message(b"2")]))
            with socket.create_server(("127.0.0.1", before)):  # somebody else sits there now
                second = LocalServer(data_dir=str(tmp_path), port=port)
                await asyncio.to_thread(second.start)
            assert second.server.native_port != before
            two = (await publishing)[0]
            pulled = await pubsub.subscription("s").pull(10)
            assert [message.id for message in pulled] == [one, two]
        await asyncio.to_thread(second.stop)

    run(scenario)


def test_ipv6() -> None:
    try:
        server = LocalServer(host="::1").start()
    except OSError:
        pytest.skip("this machine has no IPv6")

    async def scenario() -> None:
        for address in (
            f"http://[::1]:{server.server.port}",
            f"[::1]:{server.server.port}",
            f"penstock://[::1]:{server.server.native_port}",
        ):
            async with PubSub(address) as pubsub:
                assert (await pubsub.info()).version

    run(scenario)
    server.stop()


# ── streams ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_deliveries_that_were_lost_on_the_wire_come_back_at_once(
    server: LocalServer, proxy: FaultyProxy, names: tuple[str, str]
) -> None:
    async def scenario() -> None:
        got: asyncio.Queue[IncomingMessage] = asyncio.Queue()
        async with PubSub(server.url) as healthy, PubSub(f"penstock://{proxy.address}") as pubsub:
            await made(healthy, names)
            subscription = pubsub.subscription(names[1]).on("message", got.put_nowait).on("error", lambda error: None)
            subscription.open()
            await healthy.link.publish(names[0], [Message(b"first")])
            (await got.get()).ack()
            proxy.swallow(Direction.DOWN)
            await healthy.link.publish(names[0], [Message(b"lost")])
            await until(lambda: proxy.swallowed > 0, "a delivery that is lost")
            proxy.heal()
            proxy.cut()
            async with asyncio.timeout(30):  # its lease would last for a minute
                message = await got.get()
            assert (message.data, message.delivery_attempt) == (b"lost", 1), "it never reached anybody, so it does not count"
            message.ack()

    run(scenario)


def test_what_is_worked_on_is_not_delivered_again_and_its_ack_counts(
    server: LocalServer, proxy: FaultyProxy, names: tuple[str, str]
) -> None:
    async def scenario() -> None:
        got: asyncio.Queue[IncomingMessage] = asyncio.Queue()
        async with PubSub(server.url) as healthy, PubSub(f"penstock://{proxy.address}") as pubsub:
            await made(healthy, names)
            errors: list[PenstockError] = []
            subscription = pubsub.subscription(names[1]).on("message", got.put_nowait).on("error", errors.append)
            subscription.open()
            await healthy.link.publish(names[0], [Message(b"long work"), Message(b"acked in the dark")])
            work, dark = await got.get(), await got.get()
            proxy.swallow(Direction.UP)
            dark.ack()
            await until(lambda: proxy.swallowed > 0, "an ack that is lost")
            proxy.heal()
            proxy.cut()
            await healthy.link.publish(names[0], [Message(b"next")])
            following = await got.get()
            assert following.data == b"next", "neither of the others came again"
            assert all(error.transient for error in errors)
            assert errors
            following.ack()
            assert await work.ack_with_response() is AckResponse.SUCCESS
            stats = await healthy.subscription(names[1]).stats()
            await until(lambda: not got.qsize(), "nothing more")
            assert (stats.backlog, stats.acked_total, stats.delivered_total) == (0, 3, 3)

    run(scenario)


def test_a_nack_that_was_lost_is_repeated_with_all_it_said(
    server: LocalServer, proxy: FaultyProxy, names: tuple[str, str]
) -> None:
    async def scenario() -> None:
        got: asyncio.Queue[IncomingMessage] = asyncio.Queue()
        async with PubSub(server.url) as healthy, PubSub(f"penstock://{proxy.address}") as pubsub:
            await made(healthy, names)
            subscription = pubsub.subscription(names[1]).on("message", got.put_nowait).on("error", lambda error: None)
            subscription.open()
            await healthy.link.publish(names[0], [Message(b"fails")])
            first = await got.get()
            proxy.swallow(Direction.UP)
            first.nack()
            await until(lambda: proxy.swallowed > 0, "a nack that is lost")
            proxy.heal()
            proxy.cut()
            again = await got.get()
            assert again.delivery_attempt == 2, "a delivery that failed counts"
            again.ack()

    run(scenario)


@pytest.mark.parametrize("exactly_once", [pytest.param(False, marks=pytest.mark.long), True])
def test_a_server_that_restarts_in_good_order_loses_no_ack(tmp_path: Path, exactly_once: bool) -> None:
    first = LocalServer(data_dir=str(tmp_path)).start()
    port = first.server.port

    async def scenario() -> None:
        got: dict[bytes, int] = {}
        running = first
        async with PubSub(f"http://127.0.0.1:{port}") as pubsub:
            await made(pubsub, ("t", "s"), exactly_once=exactly_once)

            def take(message: IncomingMessage) -> None:
                got[message.data] = got.get(message.data, 0) + 1
                message.ack()

            pubsub.subscription("s").on("message", take).on("error", lambda error: None).open()
            sent = 0
            for _ in range(3):
                publishing = [
                    asyncio.ensure_future(pubsub.link.publish("t", [Message(b"%d" % number)]))
                    for number in range(sent, sent + 300)
                ]
                sent += 300
                await until(partial(lambda least: len(got) > least, sent - 200), "deliveries")
                await asyncio.to_thread(running.stop)
                running = await asyncio.to_thread(LocalServer(data_dir=str(tmp_path), port=port).start)
                await asyncio.gather(*publishing)
            await until(lambda: len(got) == sent, "every message")
        assert set(got) == {b"%d" % number for number in range(sent)}
        assert max(got.values()) == 1, f"delivered again: {[data for data, count in got.items() if count > 1][:5]}"
        await asyncio.to_thread(running.stop)

    run(scenario)


# ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_close_while_requests_are_without_answer_tells_each_of_them(proxy: FaultyProxy, names: tuple[str, str]) -> None:
    async def scenario() -> None:
        link = RemoteLink(f"penstock://{proxy.address}")
        await link.start()
        proxy.swallow()
        asked: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(link.publish(names[0], [Message(b"x")])) for _ in range(MAX_UNANSWERED + 10)
        ]
        asked.append(asyncio.ensure_future(link.call(Operations.info)))
        await until(lambda: proxy.swallowed > 0, "requests on their way")
        await link.close()
        for answer in await asyncio.gather(*asked, return_exceptions=True):
            assert isinstance(answer, FailedPrecondition)
            assert "closed" in str(answer)
        await link.close()
        with pytest.raises(FailedPrecondition, match="the client is closed"):
            await link.call(Operations.info)

    run(scenario)


def test_close_while_there_is_no_connection_tells_those_who_wait_for_one(proxy: FaultyProxy, names: tuple[str, str]) -> None:
    async def scenario() -> None:
        for fault in (proxy.refuse, proxy.swallow):
            proxy.heal()
            link = RemoteLink(f"penstock://{proxy.address}")
            await link.start()
            fault()
            proxy.cut()
            await until(lambda: proxy.connections == 0, "the cut")
            asked = asyncio.ensure_future(link.publish(names[0], [Message(b"x")]))
            await asyncio.sleep(0.01)
            await asyncio.gather(link.close(), link.close())
            with pytest.raises(FailedPrecondition, match="closed before the answer came"):
                await asked

    run(scenario)


def test_close_while_it_starts_and_a_start_after_a_close(proxy: FaultyProxy) -> None:
    async def scenario() -> None:
        link = RemoteLink(f"penstock://{proxy.address}")
        proxy.swallow()
        starting = asyncio.ensure_future(link.start())
        await until(lambda: proxy.swallowed > 0, "a greeting that is lost")
        await link.close()
        with pytest.raises(FailedPrecondition, match="closed"):
            await starting
        proxy.heal()
        await link.start()
        await link.start()
        assert (await link.call(Operations.info)).version
        await link.close()

    run(scenario)


def test_a_start_that_is_called_off_leaves_nothing_behind(proxy: FaultyProxy) -> None:
    async def scenario() -> None:
        proxy.swallow()
        for server in (f"penstock://{proxy.address}", f"http://{proxy.address}"):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await PubSub(server).open()

    run(scenario)


def test_a_server_that_never_greets_is_given_up(proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "CONNECT_SECONDS", 0.1)

    async def scenario() -> None:
        proxy.swallow()
        with pytest.raises(ServerUnreachable, match="it does not answer"):
            await PubSub(f"penstock://{proxy.address}").open()

    run(scenario)


def test_a_close_does_not_wait_for_a_server_that_takes_nothing(
    proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch, names: tuple[str, str]
) -> None:
    monkeypatch.setattr(remote, "CLOSE_SECONDS", 0.1)

    async def scenario() -> None:
        pubsub = PubSub(f"penstock://{proxy.address}")
        await pubsub.open()
        await made(pubsub, names)
        pubsub.subscription(names[1]).on("message", lambda message: message.ack()).open()
        await pubsub.info()
        proxy.throttle(1, Direction.UP)
        asked = asyncio.ensure_future(pubsub.link.publish(names[0], [Message(b"x" * 9_000_000)]))
        await asyncio.sleep(0.01)
        began = time.monotonic()
        await pubsub.close()
        assert time.monotonic() - began < 20
        with pytest.raises(FailedPrecondition, match="closed"):
            await asked

    run(scenario)
