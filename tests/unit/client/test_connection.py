"""Addresses, and one connection: what a server may say, right and wrong. The server speaks by a script, over real sockets."""

from __future__ import annotations

import asyncio
import errno
import itertools
import json
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from penstock.client.links.connection import Connection, ConnectionLost, Request
from penstock.client.links.remote import RemoteLink
from penstock.errors import FailedPrecondition, InvalidArgument, PenstockError, RateLimited, ServerUnreachable, Unavailable
from penstock.values.message import Message
from penstock.wire import frames
from penstock.wire.address import Address, NativePlace, split_servers, text_of
from penstock.wire.frames import Hello, Limits, Ping, Welcome
from penstock.wire.operations import Operations
from tests.integration.client.quiet import run, until
from tests.listening import stop_listening

WELCOME = Welcome(1, "test", "penstock", 1_000_000, is_durable=True)


# ── addresses ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_address_is_what_people_write(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, tuple[str, str, int]]] = [
        ("http://queue.example", ("http", "queue.example", 8085)),
        ("http://queue.example/", ("http", "queue.example", 8085)),
        ("https://queue.example:443", ("https", "queue.example", 443)),
        ("penstock://queue.example", ("penstock", "queue.example", 8087)),
        ("penstocks://queue.example:1", ("penstocks", "queue.example", 1)),
        ("queue.example:8085", ("http", "queue.example", 8085)),
        ("queue.example", ("http", "queue.example", 8085)),
        ("queue.example:", ("http", "queue.example", 8085)),  # as browsers read it
        ("127.0.0.1:65535", ("http", "127.0.0.1", 65535)),
        ("http://[::1]:8085", ("http", "::1", 8085)),
        ("[fe80::1]", ("http", "fe80::1", 8085)),
        ("penstock://[::1]", ("penstock", "::1", 8087)),
    ]
    for text, wanted in rows:
        with subtests.test(text=text, wanted=wanted):
            address = Address.parse(text)
            assert (address.scheme, address.host, address.port) == wanted
            assert address.has_tls is (wanted[0] in {"https", "penstocks"})


def test_an_address_that_is_none_says_what_was_wanted(subtests: pytest.Subtests) -> None:
    rows: list[object] = [
        "",
        None,
        8085,
        b"host",
        "::1",
        "host:0",
        "host:65536",
        "host:http",
        "ftp://host",
        "http://",
        "http://[::1",
        "http://host/path",
        "http://host?x=1",
        "http://host#x",
        "http://user:secret@host",
        "://host",
        " ",
    ]
    for wrong in rows:
        with subtests.test(wrong=wrong):
            with pytest.raises(InvalidArgument, match=r"server (is|has) .*expected") as told:
                Address.parse(wrong)
            assert "http://HOST:8085" in str(told.value.hint)


def test_several_servers_are_a_list_or_a_text_with_commas(subtests: pytest.Subtests) -> None:
    rows: list[tuple[object, list[str]]] = [
        ("a", ["a"]),
        ("http://a:1, b:2,a", ["http://a:1", "b:2", "a"]),
        (["http://a:1", "b", "b"], ["http://a:1", "b"]),
        (("a", "b"), ["a", "b"]),
    ]
    for given, servers in rows:
        with subtests.test(given=given):
            assert split_servers(given) == servers
            assert [one.port for one in Address.parse_all(given)] == [Address.parse(one).port for one in servers]
    for wrong in ([], [8085], {"a"}, "a,,b", "a,", ["a", ""], None):
        with subtests.test(wrong=wrong), pytest.raises(InvalidArgument, match=r"server is .*expected"):
            Address.parse_all(wrong)


def test_a_secret_in_an_address_is_not_repeated(subtests: pytest.Subtests) -> None:
    for wrong in ("http://user:hush@host", "http://hush@host", "http://host?token=hush", "host/#hush"):
        with subtests.test(wrong=wrong):
            with pytest.raises(InvalidArgument) as told:
                Address.parse(wrong)
            assert "hush" not in str(told.value)
            assert "PENSTOCK_TOKEN" in str(told.value.hint)


def test_a_failure_is_told_in_words(subtests: pytest.Subtests) -> None:
    rows: list[tuple[BaseException, str]] = [
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('127.0.0.1', 1)"), "connection refused"),
        (OSError("Multiple exceptions: [Errno 111] Connect call failed ('::1', 1, 0, 0), [Errno 111] …"), "connection refused"),
        (OSError(-2, "Name or service not known"), "name or service not known"),
        (ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number"), "[SSL: WRONG_VERSION_NUMBER] wrong version number"),
        (TimeoutError(), "it does not answer"),
        (ConnectionResetError("it was cut"), "it was cut"),
        (EOFError(), "EOFError"),
        (Unavailable("the disk is full"), "the disk is full"),
    ]
    for error, text in rows:
        with subtests.test(error=error, text=text):
            assert text_of(error) == text


# ── a server by a script ─────────────────────────────────────────────────────────────────────────────────────────────────

Answer = Callable[["Scripted", frames.Request], Awaitable[None]]


class Scripted:
    """One accepted connection: greets, and answers each other frame as the script says."""

    def __init__(self, writer: asyncio.StreamWriter, number: int) -> None:
        self.writer = writer
        self.number = number
        """Which connection it is, counted from 1."""

    def say(self, *data: bytes | msgspec.Struct) -> None:
        for one in data:
            self.writer.write(one if isinstance(one, bytes) else frames.framed(one))

    def hang_up(self) -> None:
        self.writer.close()


class Server:
    """Listens on a free port of this machine while it is entered."""

    def __init__(self, answer: Answer, *, greets: bool = True) -> None:
        self._answer = answer
        self._greets = greets
        self._serving: list[asyncio.Task[None]] = []
        self.heard: list[tuple[int, frames.Request]] = []
        """(connection, frame) but for greetings and pings."""

    async def __aenter__(self) -> Server:
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._listener.sockets[0].getsockname()[1]
        self.address = f"penstock://127.0.0.1:{self.port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await stop_listening(self._listener)
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.append(task)
        client = Scripted(writer, len(self._serving))
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "little")
                request = frames.decode_request(await reader.readexactly(size))
                if isinstance(request, Hello) and self._greets:
                    client.say(frames.done(request.call, WELCOME))
                elif isinstance(request, Ping):
                    client.say(frames.done(request.call))
                else:
                    self.heard.append((client.number, request))
                    await self._answer(client, request)
                await writer.drain()
        except (asyncio.IncompleteReadError, OSError, asyncio.CancelledError):
            pass
        finally:
            writer.close()


def call_of(request: frames.Request) -> int:
    return int(getattr(request, "call", 0))


GARBAGE = {
    "another protocol": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "no MessagePack": (5).to_bytes(4, "little") + b"\xc1\xc1\xc1\xc1\xc1",
    "no array": (1).to_bytes(4, "little") + b"\xc0",
    "no such frame": frames.framed((99, 1)),
    "a string for a number": frames.framed((0, "one")),
    "an endless frame": b"\xff\xff\xff\xff",
    "an empty frame": bytes(4),
    "a key that is not text": frames.framed((2, 1, [(1, 1, 0, (0, b"", {b"\xff": 1}, "", 0, 0, None, None))])),
}


def test_a_greeting_that_is_garbage_is_told_as_such(subtests: pytest.Subtests) -> None:
    welcomes = [b"\xc0", b"\x01", frames.encode({"version": "one"}), frames.encode({}), b"\xc1"]

    async def answer(client: Scripted, request: frames.Request) -> None:
        client.say(said if said in GARBAGE.values() else frames.framed((0, call_of(request), msgspec.Raw(said))))

    async def scenario() -> None:
        async with Server(answer, greets=False) as server:
            with pytest.raises(ServerUnreachable, match="does not speak Penstock's native protocol"):
                await RemoteLink(server.address).start()

    for said in [*GARBAGE.values(), *welcomes]:
        with subtests.test(said=said):
            run(scenario)


def test_after_garbage_it_connects_again_and_publishes_the_same_once_more(subtests: pytest.Subtests) -> None:
    async def answer(client: Scripted, request: frames.Request) -> None:
        client.say(GARBAGE[said] if client.number == 1 else frames.done(call_of(request), ["id"]))

    async def scenario() -> None:
        async with Server(answer) as server:
            link = RemoteLink(server.address)
            await link.start()
            assert await link.publish("t", [Message(b"x")]) == ["id"]
            (first, one), (second, two) = server.heard
            assert (first, second) == (1, 2)
            assert one == two, "the server must know it again"
            await link.close()

    for said in GARBAGE:
        with subtests.test(said):
            run(scenario)


@pytest.mark.parametrize(
    "error",
    [FailedPrecondition("the client speaks version 1 of the protocol, this server 2"), InvalidArgument("no such project")],
    ids=lambda error: type(error).__name__,
)
def test_a_refusal_that_will_not_change_is_told_at_once(error: PenstockError) -> None:
    async def answer(client: Scripted, request: frames.Request) -> None:
        client.say(frames.refused(call_of(request), error))
        client.hang_up()

    async def scenario() -> None:
        async with Server(answer, greets=False) as server:
            link = RemoteLink(server.address)
            with pytest.raises(type(error), match=str(error)):
                await link.start()
            assert len(server.heard) == 1

    run(scenario)


def test_a_refusal_that_may_pass_is_tried_again() -> None:
    async def answer(client: Scripted, request: frames.Request) -> None:
        if isinstance(request, Hello):
            client.say(
                frames.done(request.call, WELCOME) if client.number in {1, 4} else frames.refused(request.call, RateLimited(1.0))
            )
        elif client.number == 1:
            client.hang_up()
        else:
            client.say(frames.done(call_of(request), ["id"]))

    async def scenario() -> None:
        async with Server(answer, greets=False) as server:
            link = RemoteLink(server.address)
            await link.start()
            assert await link.publish("t", [Message(b"x")]) == ["id"]
            await link.close()

    run(scenario)


def test_a_server_that_hangs_up_over_and_over_loses_nobody() -> None:
    async def answer(client: Scripted, request: frames.Request) -> None:
        if client.number < 10:
            client.hang_up()
        else:
            client.say(frames.done(call_of(request), [f"id {call_of(request)}"]))

    async def scenario() -> None:
        async with Server(answer) as server:
            link = RemoteLink(server.address)
            await link.start()
            answers = await asyncio.gather(*(link.publish("t", [Message(b"%d" % number)]) for number in range(20)))
            assert len({answer[0] for answer in answers}) == 20
            last = [request.messages[0].data for number, request in server.heard if number == 10]  # type: ignore[union-attr]
            assert last == [b"%d" % number for number in range(20)]
            await link.close()

    run(scenario)


@pytest.mark.parametrize("last_words", [b"", frames.framed(frames.Leaving())], ids=["hangs up", "leaves"])
def test_a_server_that_greets_and_ends_in_one_breath_is_tried_again(last_words: bytes) -> None:
    async def answer(client: Scripted, request: frames.Request) -> None:
        if isinstance(request, Hello):
            client.say(frames.done(request.call, WELCOME))
            if 1 < client.number < 5:
                client.say(last_words)
                client.hang_up()
        elif client.number == 1:
            client.hang_up()
        else:
            client.say(frames.done(call_of(request), ["id"]))

    async def scenario() -> None:
        async with Server(answer, greets=False) as server:
            link = RemoteLink(server.address)
            await link.start()
            assert await link.publish("t", [Message(b"x")]) == ["id"]
            await link.close()

    run(scenario)


def test_a_server_that_is_stopping_still_answers_and_what_is_new_comes_after_it() -> None:
    async def answer(client: Scripted, request: frames.Request) -> None:
        if client.number == 1 and len(server.heard) == 2:
            first, second = (call_of(one) for _, one in server.heard)
            client.say(frames.Leaving())
            await client.writer.drain()
            await asyncio.sleep(0)
            client.say(frames.done(second, ["second"]))
            left.set()
            await asked.wait()
            client.hang_up()  # the first has no answer
            assert first
        elif client.number == 2:
            client.say(frames.done(call_of(request), [f"on {client.number}"]))

    async def scenario() -> None:
        async with server:
            link = RemoteLink(server.address)
            await link.start()
            one = asyncio.ensure_future(link.publish("t", [Message(b"1")]))
            two = asyncio.ensure_future(link.publish("t", [Message(b"2")]))
            assert await two == ["second"]
            await left.wait()
            three = asyncio.ensure_future(link.publish("t", [Message(b"3")]))
            await asyncio.sleep(0)
            asked.set()
            assert [*await asyncio.gather(one, three)] == [["on 2"], ["on 2"]]
            sent = [request.messages[0].data for number, request in server.heard if number == 2]  # type: ignore[union-attr]
            assert sent == [b"1", b"3"], "what was asked first is asked first again"
            await link.close()

    server, left, asked = Server(answer), asyncio.Event(), asyncio.Event()
    run(scenario)


def test_an_answer_of_another_shape_is_an_error_of_versions_not_of_python() -> None:
    async def answer(client: Scripted, request: frames.Request) -> None:
        client.say(frames.done(call_of(request), {"what": "is this"}))

    async def scenario() -> None:
        async with Server(answer) as server:
            link = RemoteLink(server.address)
            await link.start()
            with pytest.raises(FailedPrecondition, match="the answer to info cannot be read"):
                await link.call(Operations.info)
            with pytest.raises(FailedPrecondition, match="the answer to publish cannot be read"):
                await link.publish("t", [Message(b"x")])
            await link.close()

    run(scenario)


class Heap:
    """Receives, and tells what."""

    def __init__(self) -> None:
        self.got: list[Any] = []
        self.ends: list[PenstockError | None] = []

    def receive(self, channel: object, deliveries: Any) -> None:
        self.got += deliveries

    def ended(self, channel: object, error: PenstockError | None) -> None:
        self.ends.append(error)


LIMITS = Limits(10, 1_000, 60.0)
OPENED = {"queue": 1, "stream": 1, "max_attempts": None, "exactly_once": False, "ordered": False}


def test_a_stream_that_cannot_be_opened_says_why_and_one_that_is_called_off_is_closed() -> None:
    async def answer(client: Scripted, request: frames.Request) -> None:
        if isinstance(request, frames.Open) and request.name == "none":
            client.say(frames.refused(request.call, FailedPrecondition("it is a push subscription")))
        elif isinstance(request, frames.Open) and request.name == "garbage":
            client.say(frames.done(request.call, {"queue": "one"}))

    async def scenario() -> None:
        async with Server(answer) as server:
            link = RemoteLink(server.address)
            await link.start()
            with pytest.raises(FailedPrecondition, match="push"):
                await link.open(frames.TOPIC, "none", "c", LIMITS, Heap())
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await link.open(frames.TOPIC, "slow", "c", LIMITS, Heap())
            await until(lambda: isinstance(server.heard[-1][1], frames.Close), "the stream that nobody wants is closed")
            with pytest.raises(Unavailable, match="does not speak"):
                await link.open(frames.TOPIC, "garbage", "c", LIMITS, Heap())
            await link.close()

    run(scenario)


def test_settlements_that_were_not_confirmed_are_known_when_the_stream_ends() -> None:
    async def answer(client: Scripted, request: frames.Request) -> None:
        if isinstance(request, frames.Open):
            client.say(frames.done(request.call, OPENED))
        elif isinstance(request, frames.Settle) and request.acks == [1]:
            client.say(frames.done(request.call, frames.Settled([])))
        elif isinstance(request, frames.Settle) and request.acks == [4]:
            client.hang_up()

    async def scenario() -> None:
        async with Server(answer) as server:
            link, heap = RemoteLink(server.address), Heap()
            await link.start()
            channel = await link.open(frames.TOPIC, "s", "c", LIMITS, heap)
            nack = frames.Nack(3, requeue=False, error="boom")
            channel.settle([1], [], [])
            await until(lambda: not channel.unconfirmed()[0], "the first is confirmed")
            channel.settle([2], [nack], [([9], 10.0)])
            with pytest.raises(Unavailable, match="lost before the answer came"):
                await channel.confirm([4], [], [])
            assert channel.unconfirmed() == ([2], [nack])
            assert [type(error) for error in heap.ends] == [Unavailable]
            with pytest.raises(Unavailable, match="the connection was lost"):
                await channel.confirm([5], [], [])
            await channel.close()
            await link.close()

    run(scenario)


def test_settlements_that_cross_the_end_of_their_stream_are_not_confirmed() -> None:
    """The server has forgotten the stream and says that nothing of it was live: the acks must be sent through another."""

    async def answer(client: Scripted, request: frames.Request) -> None:
        if isinstance(request, frames.Open):
            client.say(frames.done(request.call, OPENED))
        elif isinstance(request, frames.Settle):
            end = frames.ended(request.stream, Unavailable("for a moment"))
            client.say(end + frames.done(request.call, frames.Settled(request.acks)))

    async def scenario() -> None:
        async with Server(answer) as server:
            link, heap = RemoteLink(server.address), Heap()
            await link.start()
            channel = await link.open(frames.TOPIC, "s", "c", LIMITS, heap)
            channel.settle([1], [], [])
            await until(lambda: bool(heap.ends), "it has ended")
            assert channel.unconfirmed() == ([1], [])
            await link.close()

    run(scenario)


# ── one connection ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_who_is_silent_is_left_after_two_signs_of_life_that_did_not_come() -> None:
    async def quiet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        size = int.from_bytes(await reader.readexactly(4), "little")
        hello = frames.decode_request(await reader.readexactly(size))
        writer.write(frames.done(call_of(hello), WELCOME))
        while await reader.read(1_000):
            pass
        writer.close()

    async def scenario() -> None:
        listener = await asyncio.start_server(quiet, "127.0.0.1", 0)
        told: list[list[Request]] = []
        calls = itertools.count(1)
        connection = await Connection.connect(
            "127.0.0.1",
            listener.sockets[0].getsockname()[1],
            None,
            Hello(next(calls), frames.VERSION),
            calls=calls,
            ping_seconds=0.02,
            on_lost=lambda _, requests: told.append(requests),
        )
        request = Request(next(calls), Ping(1))
        connection.submit(request)
        await connection.lost.wait()
        assert connection.problem == "nothing was received from the server for 0.04 s"
        assert told == [[request]]
        assert not request.answer.done(), "who keeps the connection decides what becomes of it"
        request.fail(ConnectionLost("x"))
        request.fail(ConnectionLost("y"))
        with pytest.raises(ConnectionLost, match="x"):
            await request.answer
        listener.close()

    run(scenario)


NO_PENSTOCK = {
    b"SSH-2.0-OpenSSH\r\n": "it does not speak HTTP",
    b"": "it does not speak HTTP",
    b"HTTP/1.1 404 Not Found\r\n\r\n": "it answers 404 to GET /native",
    b"HTTP/1.1 200 OK\r\n\r\n<html>": "returns no port",
    b"HTTP/1.1 200 OK\r\n\r\n[]": "returns no port",
    b'HTTP/1.1 200 OK\r\n\r\n{"port": "none", "tls": false}': "returns no port",
    b"HTTP/1.1 200 OK\r\n\r\n" + b"{" * 20_000: "returns no port",
    b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n{" + b"}" * 4: "returns no port",
    b"HTTP/1.1 200 OK\r\n\r\n\xff\xfe": "returns no port",
}


def test_what_answers_http_and_is_no_penstock_is_told_as_such(subtests: pytest.Subtests) -> None:
    async def scenario() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(reply)
            writer.close()

        listener = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = listener.sockets[0].getsockname()[1]
        with pytest.raises(ServerUnreachable, match=NO_PENSTOCK[reply]):
            await RemoteLink(f"http://127.0.0.1:{port}").start()
        listener.close()

    for reply in NO_PENSTOCK:
        with subtests.test(reply=reply[:60]):
            run(scenario)


def test_an_http_answer_is_whole_when_its_length_says_so_also_if_nobody_hangs_up() -> None:
    async def scenario() -> None:
        over = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            asked = await reader.readuntil(b"\r\n\r\n")
            assert asked.startswith(b"GET /native HTTP/1.0\r\nHost: 127.0.0.1:")
            body = json.dumps({"port": 4711, "version": 1, "tls": True}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body))
            await writer.drain()
            writer.write(body)
            await over.wait()
            writer.close()

        listener = await asyncio.start_server(serve, "127.0.0.1", 0)
        address = Address.parse(f"127.0.0.1:{listener.sockets[0].getsockname()[1]}")
        assert await address.native(None) == NativePlace(4711, has_tls=True)
        over.set()
        await asyncio.sleep(0.01)
        listener.close()

    run(scenario)


def test_options_that_make_no_sense_are_refused(subtests: pytest.Subtests) -> None:
    rows: list[dict[str, Any]] = [{"give_up_seconds": -1}, {"ping_seconds": 0}, {"ping_seconds": 61}, {"give_up_seconds": "1"}]
    for options in rows:
        with subtests.test(options=options), pytest.raises(InvalidArgument):
            RemoteLink("http://localhost", **options)
