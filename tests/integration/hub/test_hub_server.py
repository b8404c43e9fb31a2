"""The hub's API over real sockets: who may connect, what a frame may be, how connections end, and that none harms another."""

from __future__ import annotations

import asyncio
import json
import logging
import struct
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import aiohttp
import jwt
import pytest

from penstock.access import Keyring
from penstock.clock import SystemClock
from penstock.durations import SECOND
from penstock.errors import InvalidArgument, Unauthenticated
from penstock.http.limits import HttpLimits
from penstock.hub.core.close_codes import CLOSES, SLOW_READER
from penstock.hub.core.effects import Effect
from penstock.hub.core.identity import Identity
from penstock.hub.core.rules import HubRules
from penstock.hub.core.session import Session
from penstock.hub.server.socket import HubSocket
from penstock.rate_limit import RateLimit
from penstock.testing import ManualClock
from penstock.testing.server import LocalServer, ServerProcess
from tests.integration.hub.serving import Serving, serving
from tests.integration.hub.wire import (
    BINARY,
    CLOSE,
    CONTINUATION,
    PING,
    PONG,
    TEXT,
    RawSocket,
    connected,
    frame,
    member,
    opened,
    raw,
)

CODES = {close.reason: close.code for close in CLOSES}
MEBIBYTE = 2**20


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    with LocalServer(hub_origins=("https://app.example.com",), hub_rate_limit=0) as running:
        yield running


async def numbers(url: str) -> dict[str, float]:
    """What /metrics says of the hub."""
    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as response:
        lines = (await response.text()).splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line.startswith("penstock_hub_"))}


UPGRADE = {
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
}


async def refused(url: str, path: str = "/ws", **headers: str) -> tuple[int, str]:
    """Status and reason of a handshake that is refused."""
    async with aiohttp.ClientSession() as session, session.get(url + path, headers={**UPGRADE, **headers}) as response:
        return response.status, (await response.json())["error"]["reason"]


# --- who may connect ----------------------------------------------------------------------------------------------------------


def test_a_request_that_does_not_upgrade_is_told_how(server: LocalServer) -> None:
    async def scenario() -> None:
        async with aiohttp.ClientSession() as session, session.get(f"{server.url}/ws") as response:
            assert response.status == 426
            assert response.headers["Upgrade"] == "websocket"
            assert (await response.json())["error"]["reason"] == "upgrade_required"

    asyncio.run(scenario())


def test_a_page_of_a_stranger_may_not_connect(server: LocalServer) -> None:
    for origin in ("https://evil.example.com", "null", "https://app.example.com.evil.com", "http://app.example.com"):
        assert asyncio.run(refused(server.url, Origin=origin)) == (403, "origin_not_allowed"), origin


def test_a_page_of_the_server_itself_or_of_a_named_origin_may_connect(server: LocalServer) -> None:
    async def scenario() -> None:
        for origin in (server.url, "https://app.example.com"):
            async with connected(server.url, origin=origin):
                pass

    asyncio.run(scenario())


def test_an_origin_of_the_hub_may_call_nothing_else(server: LocalServer) -> None:
    found = asyncio.run(refused(server.url, "/metrics", Origin="https://app.example.com"))
    assert found == (403, "origin_not_allowed")


def test_a_server_called_by_a_name_it_was_not_told_refuses(server: LocalServer) -> None:
    assert asyncio.run(refused(server.url, Host="evil.example.com")) == (421, "host_not_allowed")


def test_one_address_may_have_so_many_connections_and_no_more() -> None:
    async def scenario(url: str) -> None:
        for _ in range(5):  # a handshake that fails leaves its place free
            assert await refused(url, Upgrade="h2c") == (426, "upgrade_required")
        async with connected(url) as first:
            async with connected(url):
                for _ in range(10):
                    assert await refused(url) == (429, "too_many_connections")
                await first.nothing_more()
            await comes_back(url)
        assert (await numbers(url))["penstock_hub_connections_refused_total"] >= 1

    async def comes_back(url: str) -> None:
        """The server may see the end of the other connection a little later."""
        async with asyncio.timeout(30):
            while True:
                try:
                    async with connected(url):
                        return
                except aiohttp.WSServerHandshakeError as error:
                    if error.status != 429:
                        raise
                    await asyncio.sleep(0)

    with LocalServer(hub_max_per_address=2) as running:
        asyncio.run(scenario(running.url))


def test_without_the_hub_there_is_no_such_path() -> None:
    with LocalServer(hub=False) as running:
        assert asyncio.run(refused(running.url)) == (404, "no_such_path")


def test_the_asyncapi_document_names_this_server(server: LocalServer) -> None:
    async def scenario() -> None:
        async with aiohttp.ClientSession() as session, session.get(f"{server.url}/asyncapi.json") as response:
            assert response.status == 200
            document = await response.json()
        assert document["asyncapi"].startswith("3.")
        assert server.url.removeprefix("http://") in json.dumps(document["servers"])

    asyncio.run(scenario())


def test_a_handshake_is_answered_in_the_servers_own_name(server: LocalServer) -> None:
    async def scenario() -> None:
        async with aiohttp.ClientSession() as session, session.get(f"{server.url}/ws", headers=UPGRADE) as response:
            assert response.status == 101
            assert response.headers.getall("Server") == ["penstock"]
            assert response.headers["Sec-WebSocket-Accept"] == "ICX+Yqv66kxgM0FcWaLWlFLwTAI="
            assert {"Content-Type", "Content-Length", "Transfer-Encoding"}.isdisjoint(response.headers)

    asyncio.run(scenario())


def test_a_handshake_of_another_version_is_told_which_one_is_spoken(server: LocalServer) -> None:
    async def scenario() -> None:
        wanted = {**UPGRADE, "Sec-WebSocket-Version": "8"}
        async with aiohttp.ClientSession() as session, session.get(f"{server.url}/ws", headers=wanted) as response:
            assert (response.status, response.headers["Sec-WebSocket-Version"]) == (426, "13")

    asyncio.run(scenario())


def test_a_subprotocol_that_is_not_spoken_is_passed_over_and_not_logged(
    server: LocalServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with connected(server.url, protocols=("mqtt", "graphql-ws")) as wire:
            assert wire.socket.protocol is None

    with caplog.at_level(logging.INFO):
        asyncio.run(scenario())
    assert not [record for record in caplog.records if record.name.startswith("aiohttp")]


# --- what a frame may be ------------------------------------------------------------------------------------------------------


def test_messages_of_every_length_arrive_whole(server: LocalServer) -> None:
    """The headers of frames are made by hand: 7, 16 and 64 bits of length."""

    async def scenario() -> None:
        async with member(server.url, "@(test/lengths)") as wire:
            await wire.ask("hub:subscribe", {"topic": "lengths"})
            for length in [0, 1, *range(100, 300, 7), 65_000, 65_535, 65_536, 70_000, 900_000]:
                await wire.say("hub:publish", {"topic": "lengths", "type": "length", "data": "x" * length})
                assert (await wire.expect("length"))["payload"] == "x" * length
                await wire.expect("hub:delivery_ack")

    asyncio.run(scenario())


def test_a_frame_that_is_far_too_large_is_told_so_and_counted() -> None:
    """Also a client that sends all of it before it reads."""

    async def scenario() -> None:
        async with serving() as running:
            for stage in ("opened", "connected"):
                async with raw(running.url) as socket:
                    if stage == "connected":
                        await socket.connect()
                    await socket.send(frame(TEXT, b"x" * 5_000_000))
                    assert await socket.closed() == (1009, "message_too_large")
            await no_session(running)
            assert running.hub.metrics.closed["message_too_large"] == 2

    asyncio.run(scenario())


BEAT = json.dumps({"type": "hub:heartbeat", "payload": {"timestamp": 1}}).encode()


@pytest.mark.parametrize("stage", ["opened", "connected"])
@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(lambda: frame(TEXT, BEAT.ljust(600 * 1024)), id="bytes"),
        pytest.param(
            lambda: frame(TEXT, fin=False) + frame(CONTINUATION, fin=False) * 600 + frame(CONTINUATION, BEAT), id="fragments"
        ),
    ],
)
def test_what_a_client_sends_beyond_the_rate_waits_and_is_not_lost(stage: str, sent: Callable[[], bytes]) -> None:
    """600 KiB, and 600 fragments of nothing, take half a second with a burst of 100 KiB and 1,000 KiB a second."""

    async def scenario() -> None:
        async with serving(HubRules(anonymous=True, read_rate=RateLimit(1_000, 100))) as running, raw(running.url) as socket:
            if stage == "connected":
                await socket.connect()
            loop = asyncio.get_running_loop()
            began = loop.time()
            await socket.send(sent() + frame(TEXT, BEAT))
            assert [(await socket.next())["type"] for _ in range(2)] == ["hub:heartbeat_ack"] * 2
            assert loop.time() - began > 0.3

    asyncio.run(scenario())


@pytest.mark.parametrize("rate", [None, RateLimit(1_000_000, 1_000)], ids=["without a rate", "with a rate"])
def test_a_message_in_more_fragments_than_are_read_at_once_arrives(rate: RateLimit | None) -> None:
    async def scenario() -> None:
        async with serving(HubRules(anonymous=True, read_rate=rate)) as running, raw(running.url) as socket:
            middle = frame(CONTINUATION, b" ", fin=False) * 100_000
            await socket.send(frame(TEXT, fin=False) + middle + frame(CONTINUATION, BEAT) + frame(TEXT, BEAT))
            assert [(await socket.next())["type"] for _ in range(2)] == ["hub:heartbeat_ack"] * 2

    asyncio.run(scenario())


def test_fragments_without_end_leave_the_others_their_turn() -> None:
    part = frame(CONTINUATION, fin=False) * 10_000

    async def scenario() -> None:
        async with serving() as running, raw(running.url) as hostile, member(running.url, "@(test/other)") as other:
            hostile.writer.write(frame(TEXT, fin=False))
            for _ in range(20):
                if hostile.writer.transport.get_write_buffer_size() < len(part):
                    hostile.writer.write(part)
                await other.nothing_more()

    asyncio.run(scenario())


# --- how connections end ------------------------------------------------------------------------------------------------------


def test_nothing_is_heard_after_a_goodbye_and_its_close_comes_once(server: LocalServer) -> None:
    async def scenario() -> None:
        async with raw(server.url) as socket:
            await socket.connect()
            goodbye, more = (json.dumps({"type": kind}).encode() for kind in ("hub:disconnect", "hub:heartbeat"))
            await socket.send(frame(TEXT, goodbye), *[frame(TEXT, more)] * 200)
            assert (await socket.next())["type"] == "hub:disconnect_ack"
            opcode, payload = await socket.read()
            assert (opcode, payload[:2]) == (CLOSE, struct.pack("!H", 1000))
            await socket.send(frame(CLOSE, payload))
            with pytest.raises(asyncio.IncompleteReadError) as ended:
                await socket.read()
            assert ended.value.partial == b""

    asyncio.run(scenario())


def test_a_close_is_answered_by_the_same(server: LocalServer) -> None:
    async def scenario() -> None:
        for payload in (b"", struct.pack("!H", 1000) + b"bye", struct.pack("!H", 4999)):
            async with raw(server.url) as socket:
                await socket.send(frame(CLOSE, payload))
                assert await socket.read() == (CLOSE, payload[:2])
                assert await socket.closed() == (None, "")

    asyncio.run(scenario())


def test_a_client_that_never_says_hello_is_let_go() -> None:
    clock = ManualClock()

    async def scenario(url: str) -> None:
        async with opened(url) as silent, opened(url) as late:
            await silent.ask("ping-that-nobody-knows")  # it is there
            clock.advance(9.9)
            assert (await late.ask("hub:connect", {"version": "1.0"}))["type"] == "hub:connected"
            clock.advance(0.1)
            assert await silent.closed() == (CODES["connect_timeout"], "connect_timeout")
            await late.nothing_more()

    with LocalServer(clock=clock) as running:
        asyncio.run(scenario(running.url))


def test_without_a_valid_token_the_connection_ends() -> None:
    async def scenario(url: str) -> None:
        for payload in ({"version": "1.0"}, {"version": "1.0", "jwt": "no-such-token"}):
            async with opened(url) as wire:
                reply = await wire.ask("hub:connect", payload)
                assert reply["payload"]["code"] == "unauthorized"
                assert await wire.closed() == (CODES["unauthorized"], "unauthorized")

    class Nobody:
        async def verify(self, token: str | None, claimed: str | None) -> Identity:
            raise Unauthenticated("no such token")

        def check(self, identity: Identity) -> None:
            pass

    async def serve() -> None:
        async with serving(verifier=Nobody()) as running:
            await scenario(running.url)

    asyncio.run(serve())


def test_a_session_ends_soon_after_its_token_was_revoked(tmp_path: Path) -> None:
    file, clock = tmp_path / "tokens", ManualClock()
    keyring = Keyring(file)
    secrets = {name: keyring.create(name, clock.now()) for name in ("revoked", "kept")}
    names = {token.name: token.id for token in keyring.list()}

    async def scenario(url: str) -> None:
        async with (
            member(url, "@(test/one)", token=secrets["revoked"]) as wire,
            member(url, "@(test/two)", token=secrets["kept"]) as other,
        ):
            keyring.revoke(names["revoked"])
            clock.advance(2)
            assert (await wire.expect("hub:error"))["payload"]["details"]["reason"] == "invalid_token"
            assert (await wire.expect("hub:disconnect"))["payload"]["reason"] == "unauthorized"
            assert await wire.closed() == (CODES["unauthorized"], "unauthorized")
            await other.nothing_more()

    with LocalServer(auth="token", token_file=file, clock=clock) as running:
        asyncio.run(scenario(running.url))


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    place = tmp_path / "hub.secret"
    place.write_text("a secret of the tests, long enough to sign with: 0123456789")
    place.chmod(0o600)
    return place


def test_a_token_with_two_seconds_to_live_is_warned_then_and_closed_30_seconds_later(secret: Path) -> None:
    clock = ManualClock()
    now = clock.now() // SECOND
    claims = {"iss": "signal-hub", "iat": now, "exp": now + 2, "actorId": "test/one"}
    token = jwt.encode(claims, secret.read_text(), algorithm="HS256")

    async def scenario(url: str) -> None:
        async with member(url, "@(test/one)", token=token) as wire:
            clock.advance(1.9)
            await wire.nothing_more()
            clock.advance(0.1)
            assert (await wire.expect("hub:error"))["payload"]["details"]["reason"] == "expired_token"
            clock.advance(29.9)
            assert (await wire.ask("hub:heartbeat"))["payload"]["details"]["reason"] == "expired_token"
            clock.advance(0.1)
            assert await wire.closed() == (CODES["unauthorized"], "unauthorized")

    with LocalServer(clock=clock, hub_jwt_secret_file=secret, insecure=True) as running:
        asyncio.run(scenario(running.url))


def test_a_server_whose_hub_needs_tokens_and_whose_other_apis_do_not_refuses_to_start(secret: Path) -> None:
    """Else anybody could publish to `hub.chat` over REST, with any `hub.from`."""
    with pytest.raises(InvalidArgument, match="hub_jwt_secret_file is set and auth is 'none'") as refused:
        LocalServer(hub_jwt_secret_file=secret).start()
    assert "--auth token" in (refused.value.hint or "")
    with LocalServer(hub_jwt_secret_file=secret, auth="token", token_file=secret.with_name("tokens")):
        pass
    with LocalServer(hub_jwt_secret_file=secret, hub=False):
        pass


def test_a_server_that_stops_says_so() -> None:
    async def scenario(process: ServerProcess) -> None:
        async with member(process.url, "@(test/one)") as one, connected(process.url) as two, opened(process.url) as three:
            stopping = asyncio.create_task(asyncio.to_thread(process.stop))
            for wire in (one, two, three):
                assert (await wire.expect("hub:disconnect"))["payload"]["reason"] == "server_shutdown"
                assert await wire.closed() == (1001, "server_shutdown")
            assert await stopping == 0

    with ServerProcess() as process:
        assert f"ws://127.0.0.1:{process.port}/ws  (try penstock hub listen '#' --server {process.url})" in process.log
        asyncio.run(scenario(process))
        assert "Traceback" not in process.log


def test_a_stop_does_not_wait_for_those_who_do_not_answer() -> None:
    async def scenario(running: LocalServer) -> None:
        async with raw(running.url) as socket:
            await socket.connect()  # and never answers a close
            await asyncio.to_thread(running.stop)
            assert (await socket.closed())[0] == 1001

    with LocalServer() as running:
        asyncio.run(scenario(running))


# --- clients that do not read -------------------------------------------------------------------------------------------------


FLOOD = 150
"""How many messages of 40,000 bytes are more than the system takes in for a connection that is not read."""


async def subscribed(slow: RawSocket) -> None:
    """Subscribe to what `flood` publishes."""
    await slow.register("@(test/slow)")
    await slow.say("hub:subscribe", {"topic": "slow"})
    assert (await slow.next())["type"] == "hub:subscribed"


async def flood(url: str) -> None:
    """Publish `FLOOD` messages."""
    data = "x" * 40_000
    async with member(url, "@(test/flood)") as wire:
        for _ in range(FLOOD):
            await wire.ask("hub:publish", {"topic": "slow", "type": "flood", "data": data})


async def no_session(running: Serving) -> None:
    """Wait until the hub knows no connection any more."""
    async with asyncio.timeout(60):
        while running.hub.state.sessions:  # noqa: ASYNC110  # a core has nothing to wait on
            await asyncio.sleep(0.01)


def test_who_does_not_read_is_cut_off_with_its_code_and_the_others_get_everything() -> None:
    async def wakes_when_it_is_cut_off(slow: RawSocket, session: Session) -> tuple[set[str], bytes]:
        """What types of frames it reads then, each of them whole, and the close behind them."""
        async with asyncio.timeout(60):
            while session.closing is None:  # noqa: ASYNC110  # a core has nothing to wait on
                await asyncio.sleep(0.001)
        kinds = set()
        while (found := await slow.read())[0] != CLOSE:
            kinds.add(json.loads(found[1])["type"])
        return kinds, found[1]

    async def scenario() -> None:
        async with serving(HubRules(rate=None)) as running, raw(running.url, receive_buffer=4096) as slow:
            await subscribed(slow)
            (session,) = running.hub.state.sessions
            async with member(running.url, "@(test/reader)") as reader:
                await reader.ask("hub:subscribe", {"topic": "slow"})
                waking = asyncio.create_task(wakes_when_it_is_cut_off(slow, session))
                flooding = asyncio.create_task(flood(running.url))
                for _ in range(FLOOD):
                    await reader.expect("flood")
                await flooding
                assert await waking == ({"flood"}, struct.pack("!H", CODES["slow_reader"]) + b"slow_reader")
                await reader.nothing_more()
            slow.writer.close()
            await no_session(running)
            assert running.hub.metrics.closed["slow_reader"] == 1

    asyncio.run(scenario())


def test_who_does_not_even_take_the_close_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.hub.server.socket.TAKE_SECONDS", 0.1)

    async def scenario() -> None:
        rules = HubRules(max_outbox_bytes=100_000, rate=None)
        async with serving(rules) as running, raw(running.url, receive_buffer=4096) as slow:
            await subscribed(slow)
            await flood(running.url)
            await no_session(running)
            assert running.hub.metrics.closed["slow_reader"] == 1

    asyncio.run(scenario())


async def full(running: Serving, slow: RawSocket) -> HubSocket:
    """Publish to a client that does not read until nothing more can be written to it; returns the server's end of it."""
    await subscribed(slow)
    (session,) = running.hub.state.sessions
    await flood(running.url)
    assert len(session.outbox)
    end = session.peer.socket
    assert isinstance(end, HubSocket)
    return end


def test_who_says_close_and_does_not_take_the_answer_is_cut_as_well() -> None:
    """It is none of the hub's any more by then, and still holds what waits for it."""

    async def scenario() -> None:
        rules, limits = HubRules(max_outbox_bytes=64 * MEBIBYTE, rate=None), HttpLimits(write_seconds=0.2)
        async with serving(rules, limits=limits) as running, raw(running.url, receive_buffer=4096) as slow:
            connection = (await full(running, slow))._connection
            await slow.send(frame(CLOSE, struct.pack("!H", 1000)))
            await no_session(running)
            async with asyncio.timeout(60):
                while connection.transport is not None:  # noqa: ASYNC110  # nobody tells when a transport is gone
                    await asyncio.sleep(0.01)

    asyncio.run(scenario())


@pytest.mark.parametrize("how", ["reads on", "stops again", "takes too long"])
def test_who_reads_on_after_it_was_cut_off_hears_why_within_reason(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.hub.server.socket.TAKE_SECONDS", 3_600.0)  # the test says when it is time to look

    async def scenario() -> None:
        rules = HubRules(max_outbox_bytes=64 * MEBIBYTE, rate=None)
        async with serving(rules) as running, raw(running.url, receive_buffer=4096) as slow:
            end = await full(running, slow)
            (session,) = running.hub.state.sessions
            running.hub.state.cut(session, SLOW_READER, SystemClock().now())
            session.peer.write()
            now, before = asyncio.get_running_loop().time(), end._unsent()
            while end._unsent() == before:
                await slow.read()
            left = end._unsent()
            end._look(before, now if how == "takes too long" else now + 3_600)
            if how == "stops again":
                end._look(left, now + 3_600)
            assert (await slow.closed())[0] == (SLOW_READER.code if how == "reads on" else None)

    asyncio.run(scenario())


def test_who_takes_nothing_for_the_span_is_cut_off_though_little_waits() -> None:
    clock = ManualClock()

    async def scenario() -> None:
        rules = HubRules(max_outbox_bytes=64 * MEBIBYTE, rate=None)
        async with serving(rules, clock=clock) as running, raw(running.url, receive_buffer=4096) as slow:
            await subscribed(slow)
            await flood(running.url)
            (session,) = running.hub.state.sessions
            assert len(session.outbox)
            clock.advance(29)
            async with connected(running.url) as other:
                await other.nothing_more()  # the clock's news come by way of the loop
            assert session.closing is None
            clock.advance(1.1)
            assert (await slow.closed())[0] == CODES["slow_reader"]

    asyncio.run(scenario())


@pytest.mark.parametrize("reads", [True, False])
def test_who_says_goodbye_gets_what_waits_before_the_close_if_it_reads_in_time(reads: bool) -> None:
    async def scenario() -> None:
        rules = HubRules(max_outbox_bytes=64 * MEBIBYTE, rate=None, leaving=(30 if reads else 0) * SECOND)
        async with serving(rules) as running, raw(running.url, receive_buffer=4096) as slow:
            await subscribed(slow)
            await flood(running.url)
            (session,) = running.hub.state.sessions
            await slow.say("hub:disconnect")
            async with asyncio.timeout(30):
                while session.closing is None or (not reads and len(session.outbox)):  # noqa: ASYNC110  # as above
                    await asyncio.sleep(0.001)
            kinds = []
            while (found := await slow.read())[0] != CLOSE:
                kinds.append(json.loads(found[1])["type"])
            assert found[1][:2] == struct.pack("!H", 1000)
            assert (kinds == ["flood"] * FLOOD + ["hub:disconnect_ack"]) is reads

    asyncio.run(scenario())


def test_who_pauses_for_a_while_gets_everything_after_it() -> None:
    """What the HTTP port does with clients that do not read is not for the hub's, which may rightly be busy now and then."""

    async def scenario() -> None:
        rules, limits = HubRules(max_outbox_bytes=64 * MEBIBYTE, rate=None), HttpLimits(write_seconds=0.05)
        async with serving(rules, limits=limits) as running, raw(running.url, receive_buffer=4096) as slow:
            await full(running, slow)
            await asyncio.sleep(0.2)  # real time: the port's watch has no other
            assert [(await slow.next())["type"] for _ in range(FLOOD)] == ["flood"] * FLOOD

    asyncio.run(scenario())


def test_who_asks_and_asks_and_never_reads_the_answers_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.hub.server.socket.TAKE_SECONDS", 0.1)

    async def scenario() -> None:
        rules = HubRules(max_outbox_bytes=100_000, rate=None)
        async with serving(rules) as running, raw(running.url, receive_buffer=4096) as slow:
            await slow.connect()
            heartbeat = frame(TEXT, json.dumps({"type": "hub:heartbeat", "id": "x" * 250}).encode())
            with suppress(ConnectionError, TimeoutError):
                while running.hub.state.sessions:
                    await slow.send(heartbeat * 100)
            await no_session(running)
            assert running.hub.metrics.closed["slow_reader"] == 1

    asyncio.run(scenario())


# --- clients that are gone ----------------------------------------------------------------------------------------------------


def test_who_does_not_answer_pings_is_gone_and_who_does_stays() -> None:
    """That they are asked of themselves is in `test_hostile.py`: those that fall silent are let go."""

    async def scenario() -> None:
        async with serving() as running, connected(running.url) as living, raw(running.url) as vanished:
            await vanished.connect()
            first, second = (session.peer.socket for session in running.hub.state.sessions)
            assert isinstance(first, HubSocket)
            assert isinstance(second, HubSocket)
            for _ in range(2):
                assert first.ask()
                await living.nothing_more()  # aiohttp answers pings while it reads
            assert [second.ask(), second.ask()] == [True, False]

    asyncio.run(scenario())


def test_a_connection_that_is_lost_is_cleaned_up(server: LocalServer) -> None:
    async def scenario() -> None:
        async with member(server.url, "@(test/watcher)") as watcher:
            await watcher.ask("hub:subscribe", {"topic": "lost", "presence": True})
            async with raw(server.url) as lost:
                await lost.register("@(test/lost)")
                await lost.say("hub:subscribe", {"topic": "lost"})
                assert (await watcher.expect("hub:presence"))["payload"]["event"] == "join"
            news = (await watcher.expect("hub:presence"))["payload"]
            assert (news["event"], news["actors"]) == ("leave", ["@(test/lost)"])

    asyncio.run(scenario())


# --- none harms another -------------------------------------------------------------------------------------------------------


def test_an_error_inside_the_hub_ends_one_connection_alone_and_its_log_holds_no_payload(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        async with serving() as running:
            hub = running.hub
            receive = hub.receive

            def broken(session: Session, text: str, now: int) -> Effect | None:
                if "secret-payload" in text:
                    raise RuntimeError(f"cannot bear {text}")
                return receive(session, text, now)

            hub.receive = broken  # type: ignore[method-assign]  # a fault that the hub itself does not have
            async with member(running.url, "@(test/victim)") as victim, member(running.url, "@(test/other)") as other:
                await other.ask("hub:subscribe", {"topic": "t"})
                await victim.say("hub:publish", {"topic": "t", "type": "x", "data": "secret-payload"})
                assert await victim.closed() == (1011, "internal_error")
                await other.ask("hub:publish", {"topic": "t", "type": "x", "data": 1})
                assert (await other.expect("x"))["payload"] == 1
                assert [*hub.state.sessions] == [actor.session for actor in [hub.state.registry.get("@(test/other)", 0)] if actor]

    with caplog.at_level(logging.DEBUG):
        asyncio.run(scenario())
    assert "RuntimeError" in caplog.text
    assert "secret-payload" not in caplog.text


@pytest.mark.parametrize(
    "noise",
    [
        pytest.param(frame(PING, b""), id="pings"),
        pytest.param(frame(PONG, b""), id="pongs", marks=pytest.mark.long),
        pytest.param(frame(BINARY, b"x"), id="binary", marks=pytest.mark.long),
        pytest.param(frame(TEXT, b"x"), id="no json", marks=pytest.mark.long),
        pytest.param(frame(TEXT, b'{"type":"hub:heartbeat"}'), id="heartbeats"),
    ],
)
def test_a_flood_of_frames_leaves_the_others_their_turn(server: LocalServer, noise: bytes) -> None:
    """The flood has no end: if it took all the hub's time, no heartbeat would be answered."""

    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            quiet = await stack.enter_async_context(connected(server.url))
            sockets = [await stack.enter_async_context(raw(server.url)) for _ in range(4)]
            for socket in sockets:
                await socket.connect()
            floods = [asyncio.create_task(_pour(socket, noise * 5_000)) for socket in sockets]
            for _ in range(10):
                await quiet.ask("hub:heartbeat", {"timestamp": 1})
            for task in floods:
                task.cancel()
            await asyncio.wait(floods)

    asyncio.run(scenario())


async def _pour(socket: RawSocket, noise: bytes) -> None:
    """Send noise for ever, reading whatever comes back."""

    async def read() -> None:
        while await socket.reader.read(2**16):
            pass

    reading = asyncio.create_task(read())
    try:
        while True:
            await socket.send(noise)
    except ConnectionError:
        pass  # who floods may be closed for it
    finally:
        reading.cancel()


# --- numbers ------------------------------------------------------------------------------------------------------------------


def test_the_numbers_tell_what_goes_on() -> None:
    async def scenario(url: str) -> None:
        async with member(url, "@(test/one)") as one, connected(url):
            await one.ask("hub:subscribe", {"topic": "t"})
            await one.ask("hub:publish", {"topic": "t", "type": "x"})
            await one.ask("hub:publish", {"topic": "t"})
            found = await numbers(url)
            assert found["penstock_hub_connections"] == 2
            assert found["penstock_hub_actors"] == 1
            assert found["penstock_hub_topics"] == 1
            assert found["penstock_hub_connections_opened_total"] == 2
            assert found["penstock_hub_messages_received_total"] == 6
            assert found["penstock_hub_messages_sent_total"] == 7
            assert found['penstock_hub_errors_total{code="internal_error"}'] == 1
            await one.ask("hub:disconnect")
            await one.closed()

    with LocalServer() as running:
        asyncio.run(scenario(running.url))
