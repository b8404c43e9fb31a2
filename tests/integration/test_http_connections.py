"""Connections to the HTTP port, over real sockets: slow and vanishing clients, too many of them, WebSockets, TLS, stopping."""

import asyncio
import zlib
from contextlib import AsyncExitStack

import aiohttp
import pytest
from aiohttp import web

from penstock.http.bodies import FREE_BYTES
from penstock.http.limits import HttpLimits
from penstock.http.port import HttpServer
from penstock.http.request import Request, open_websocket
from penstock.testing.certificates import Authority
from tests.integration.http_client import Client, connected, echo, eventually, route, scenario, serving

SECRET = "a-secret-that-must-not-be-seen"

HASTY = HttpLimits(head_seconds=0.5, body_seconds=0.5, min_body_rate=1000, idle_seconds=1.0, write_seconds=0.5)


async def trickle(client: Client, data: bytes) -> None:
    """Send a byte at a time, for ever, or until the server has enough."""
    try:
        while True:
            await client.send(data)
            await asyncio.sleep(0.02)
    except (ConnectionError, RuntimeError):  # uvloop's word for a transport that is closed already
        pass


SLOW = [
    (b"", b""),
    (b"GET /who/me HTTP/1.1\r\nX: ", b"a"),
    (b"GET /who/me HTTP/1.1\r\nHost: x\r\n\r\nGET /wh", b"o"),
    (b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n", b"a"),
    (b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\na\r\n"),
]


@scenario
async def test_a_client_that_sends_too_slowly_is_cut() -> None:
    async with serving(limits=HASTY) as (server, port):

        async def dawdle(first: bytes, then: bytes) -> None:
            async with connected(port) as client:
                await client.send(first)
                sending = asyncio.create_task(trickle(client, then)) if then else None
                assert await client.is_cut(), first
                if sending is not None:
                    await sending

        await asyncio.gather(*(dawdle(*slow) for slow in SLOW))
        assert {what: count for what, count in server.traffic.cut.items() if count} == {"head": 3, "body": 2}


@scenario
async def test_bodies_that_stall_are_cut_when_others_have_no_room_and_small_ones_always_have_it() -> None:
    limits = HttpLimits(max_bodies_bytes=250_000, max_request_bytes=100_000, body_stall_seconds=0.3)
    squeezer = zlib.compressobj(wbits=31)
    bomb = squeezer.compress(bytes(90_000)) + squeezer.flush(zlib.Z_SYNC_FLUSH)
    head = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: 90000\r\n\r\n"
    async with serving(limits=limits) as (server, port), AsyncExitStack() as stack:
        client, *stalled = [await stack.enter_async_context(connected(port)) for _ in range(4)]
        for count, one in enumerate(stalled, 1):
            await one.send(head + bomb)
            await eventually(lambda count=count: server.bodies.held == count * (90_000 - FREE_BYTES))  # type: ignore[misc]
        assert (await client.ask("POST", "/echo", bytes(FREE_BYTES))).status == 200
        assert sum(server.traffic.cut.values()) == 0, "nobody waits for room"
        assert (await client.ask("POST", "/echo", bytes(100_000))).status == 200
        assert server.traffic.cut["body"] >= 1


@scenario
async def test_a_body_without_room_is_refused_until_another_request_ends() -> None:
    done = asyncio.Event()

    async def keep(request: Request) -> web.StreamResponse:
        await request.read()
        await done.wait()
        return web.Response()

    limits = HttpLimits(max_bodies_bytes=100_000, max_request_bytes=100_000, body_wait_seconds=0.05)
    async with serving([route("POST", "/keep", keep)], limits=limits) as (server, port), connected(port) as first:
        keeping = asyncio.create_task(first.ask("POST", "/keep", bytes(100_000)))
        await eventually(lambda: server.bodies.held == 100_000 - FREE_BYTES)
        async with connected(port) as second:
            answer = await second.ask("POST", "/echo", bytes(20_000))
            assert (answer.status, answer.reason, answer.headers["retry-after"]) == (503, "bodies_exhausted", "1")
        done.set()
        await keeping
        async with connected(port) as second:
            assert (await second.ask("POST", "/echo", bytes(20_000))).status == 200
        assert server.bodies.held == 0


@scenario
async def test_a_client_that_does_not_read_its_answer_is_cut() -> None:
    async def large(_: Request) -> web.StreamResponse:
        return web.Response(body=bytes(64_000_000))

    async with serving([route("GET", "/large", large)], limits=HASTY) as (server, port), connected(port) as client:
        await client.send(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        await eventually(lambda: server.traffic.cut["write"] == 1)


@scenario
async def test_an_idle_connection_is_closed_and_a_busy_one_is_not() -> None:
    gate = asyncio.Event()

    async def wait(_: Request) -> web.StreamResponse:
        await gate.wait()
        return web.Response(text="at last")

    routes = [route("GET", "/wait", wait)]
    async with serving(routes, limits=HASTY) as (server, port), connected(port) as idle, connected(port) as busy:
        await busy.send(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n")
        await idle.ask("GET", "/who/me")
        assert await idle.is_cut()
        gate.set()
        assert (await busy.answer()).body == b"at last"
    assert sum(server.traffic.cut.values()) == 0


@scenario
async def test_a_connection_beyond_the_limit_is_closed_at_once_and_counted() -> None:
    async with serving(limits=HttpLimits(max_connections=2)) as (server, port):
        async with connected(port) as first, connected(port) as second:
            assert (await first.ask("GET", "/who/me")).status == 200
            assert (await second.ask("GET", "/who/me")).status == 200
            async with connected(port) as third:
                assert await third.is_cut()
            assert (server.traffic.refused, server.traffic.open) == (1, 2)
            assert (await first.ask("GET", "/who/me")).status == 200
        await eventually(lambda: server.traffic.open == 0)
        async with connected(port) as later:
            assert (await later.ask("GET", "/who/me")).status == 200


@scenario
async def test_a_handler_ends_when_its_client_is_gone() -> None:
    ended = asyncio.Event()

    async def wait(_: Request) -> web.StreamResponse:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError

    async with serving([route("GET", "/wait", wait)]) as (server, port):
        async with connected(port) as client:
            await client.send(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n")
            await eventually(lambda: server.traffic.running == 1)
        async with asyncio.timeout(30):
            await ended.wait()
        await eventually(lambda: server.traffic.routes["GET", "/wait"].by_status == {499: 1})


@scenario
async def test_stopping_finishes_what_runs_and_accepts_nothing_more() -> None:
    gate = asyncio.Event()

    async def wait(request: Request) -> web.StreamResponse:
        await gate.wait()
        return web.Response(body=await request.read())

    async with serving([route("POST", "/wait", wait)]) as (server, port), connected(port) as busy, connected(port) as idle:
        await idle.ask("GET", "/who/me")
        await busy.send(b"POST /wait HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n12345")
        await eventually(lambda: server.traffic.running == 1)
        stopping = asyncio.create_task(server.stop(10.0))
        await server.stopping.wait()
        again = asyncio.create_task(server.stop(10.0))
        assert await idle.is_cut()
        with pytest.raises(ConnectionError):
            await asyncio.open_connection("127.0.0.1", port)
        await busy.send(b"67890")
        gate.set()
        answer = await busy.answer()
        assert (answer.body, answer.headers["connection"]) == (b"1234567890", "close")
        assert await busy.is_cut()
        await stopping
        await again
        await server.stop()


@scenario
async def test_what_does_not_end_within_the_grace_is_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    cancelled = asyncio.Event()

    async def never(_: Request) -> web.StreamResponse:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        raise AssertionError

    async with serving([route("GET", "/never", never)]) as (server, port), connected(port) as client:
        await client.send(b"GET /never HTTP/1.1\r\nHost: x\r\n\r\n")
        await eventually(lambda: server.traffic.running == 1)
        await server.stop(0.05)
        assert cancelled.is_set()
        assert await client.is_cut()
    assert "1 requests still run after 0.05 s and are cancelled" in caplog.text


@scenario
async def test_a_handler_that_waits_can_see_that_the_server_stops() -> None:
    async def poll(request: Request) -> web.StreamResponse:
        await request.stopping.wait()
        return web.Response(text="nothing came")

    async with serving([route("GET", "/poll", poll)]) as (server, port), connected(port) as client:
        await client.send(b"GET /poll HTTP/1.1\r\nHost: x\r\n\r\n")
        await eventually(lambda: server.traffic.running == 1)
        await server.stop(10.0)
        assert (await client.answer()).body == b"nothing came"


async def talk(request: Request) -> web.StreamResponse:
    socket = await open_websocket(request, max_message_bytes=1000)
    async for message in socket:
        if message.data == "break":
            raise RuntimeError(SECRET)
        await socket.send_str(message.data)
    return socket


TALK = route("GET", "/talk", talk)


@scenario
async def test_websockets_are_told_that_the_server_goes_away() -> None:
    async with serving([TALK]) as (server, port), aiohttp.ClientSession() as session:
        async with (
            session.ws_connect(f"http://127.0.0.1:{port}/talk") as first,
            session.ws_connect(f"http://127.0.0.1:{port}/talk") as second,
        ):
            for socket in (first, second):
                await socket.send_str("hello")
                assert await socket.receive_str(timeout=30) == "hello"
            stopping = asyncio.create_task(server.stop(5.0))
            for socket in (first, second):
                assert (await socket.receive(timeout=30)).type is aiohttp.WSMsgType.CLOSE
                assert socket.close_code == 1001
            await stopping
        assert server.traffic.running == 0


@pytest.mark.parametrize(("message", "code"), [("break", 1011), ("x" * 1001, 1009)])
@scenario
async def test_a_websocket_that_fails_is_closed_with_the_reason_and_no_details(message: str, code: int) -> None:
    async with serving([TALK]) as (server, port), aiohttp.ClientSession() as session:
        async with session.ws_connect(f"http://127.0.0.1:{port}/talk") as socket:
            await socket.send_str(message)
            closed = await socket.receive(timeout=30)
            assert (socket.close_code, SECRET in str(closed.extra)) == (code, False)
        await eventually(lambda: server.traffic.running == 0)


@scenario
async def test_a_websocket_path_without_an_upgrade_says_so_and_a_foreign_page_cannot_open_one() -> None:
    upgrade = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec_WebSocket_Version": "13",
        "Sec_WebSocket_Key": "AAAAAAAAAAAAAAAAAAAAAA==",
    }
    async with serving([TALK]) as (_, port), connected(port) as client:
        assert (await client.ask("GET", "/talk")).status == 426
        assert (await client.ask("GET", "/talk", None, **upgrade, Origin="https://evil.example.com")).status == 403
        accepted = await client.ask("GET", "/talk", None, **upgrade)
        assert (accepted.status, "x-request-id" in accepted.headers) == (101, True)


@scenario
async def test_the_port_speaks_tls_and_one_who_does_not_is_cut() -> None:
    authority = Authority()
    server = HttpServer([route("POST", "/echo", echo)], limits=HASTY)
    port = await server.start("127.0.0.1", 0, authority.server("localhost"))
    address = f"https://localhost:{port}/echo"
    try:
        async with aiohttp.ClientSession() as session, session.post(address, data=b"safe", ssl=authority.client()) as answer:
            assert await answer.read() == b"safe"
        async with connected(port) as silent, connected(port) as plain:
            await plain.send(b"GET / HTTP/1.1\r\n\r\n")
            assert await plain.is_cut()
            assert await silent.is_cut()
    finally:
        await server.stop(1.0)
