"""The router's HTTP client against real sockets: HTTP/1.1, its connections, its limits, and what it says of what went wrong."""

import asyncio
import socket
import ssl
import struct
from collections.abc import Callable, Mapping
from functools import partial

import pytest

from penstock.http.client.client import HttpTransport
from penstock.http.client.transport import Answer, Failure, FailureKind
from penstock.router.options import RouterOptions
from penstock.testing.certificates import Authority, self_signed
from tests.integration.router.raw_target import PATIENCE, Caller, Everywhere, Play, RawTarget, Talk, Wire, transport, until

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


Rows = Callable[[Mapping[str, Play]], None]


@pytest.fixture
def run_rows(run: Callable[[Play], None], subtests: pytest.Subtests) -> Rows:
    """Run several plays at the same time, and report each as a subtest."""

    def runs(plays: Mapping[str, Play]) -> None:
        failures: list[BaseException | None] = []

        async def play() -> None:
            failures.extend(await asyncio.gather(*(one() for one in plays.values()), return_exceptions=True))

        run(play)
        for name, failure in zip(plays, failures, strict=True):
            with subtests.test(name):
                if failure is not None:
                    raise failure

    return runs


def says(*parts: bytes) -> Talk:
    """Answer every request with these pieces, each in a packet of its own, and keep the connection."""

    async def talk(wire: Wire) -> None:
        while True:
            await wire.request()
            for part in parts:
                wire.say(part)
                await wire.writer.drain()
                await asyncio.sleep(0.002 if len(parts) > 1 else 0)

    return talk


def says_and_closes(data: bytes) -> Talk:
    async def talk(wire: Wire) -> None:
        await wire.request()
        wire.say(data)

    return talk


def trouble(found: Answer | Failure) -> FailureKind | None:
    return found.kind if isinstance(found, Failure) else None


# ── requests and answers ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_request_is_whole_and_its_answer_comes_back(run: Callable[[Play], None]) -> None:
    async def play() -> None:
        async with RawTarget(says(b'HTTP/1.1 202 Accepted\r\nContent-Length: 12\r\n\r\n{"ack":true}')) as target:
            caller = Caller(transport())
            found = await caller.one(
                target.url + "?a=b", headers=b"Authorization: Bearer t\r\nX-One: 1\r\n", body=b'{"messageId":"1"}'
            )
            await caller.transport.close()

        assert found == Answer(202, b'{"ack":true}')
        head, _, body = target.wires[0].requests[0].partition(b"\r\n\r\n")
        assert body == b'{"messageId":"1"}'
        assert head.split(b"\r\n") == [
            b"POST /orders?a=b HTTP/1.1",
            b"Host: 127.0.0.1:%d" % target.port,
            b"Content-Type: application/json",
            b"Accept: application/json",
            b"User-Agent: penstock-router",
            b"Content-Length: 17",
            b"Authorization: Bearer t",
            b"X-One: 1",
        ]

    run(play)


CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n" + b'{"ac\r\n8;x=y\r\nk":true}\r\n0\r\nX-Trailer: 1\r\n\r\n'
)
ANSWERS: dict[str, tuple[bytes, Answer]] = {
    "nothing": (OK, Answer(200)),
    "a length": (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", Answer(200, b"{}")),
    "chunks": (CHUNKED, Answer(200, b'{"ack":true}')),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", Answer(204)),
    "not modified, with the length of what it does not send": (
        b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n",
        Answer(304),
    ),
    "a redirect, not followed": (b"HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n", Answer(302)),
    "interim answers": (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + OK, Answer(200)),
    "Retry-After as a number": (
        b"HTTP/1.1 429 Slow\r\nA: b\r\nretry-AFTER:  7 \r\nContent-Length: 2\r\n\r\n{}",
        Answer(429, b"{}", "7"),
    ),
    "Retry-After as a date": (
        b"HTTP/1.1 503 No\r\nRetry-After: Mon, 16 Nov 2026 10:00:00 GMT\r\nContent-Length: 0\r\n\r\n",
        Answer(503, b"", "Mon, 16 Nov 2026 10:00:00 GMT"),
    ),
    "Retry-After in an interim answer and in the body": (
        b"HTTP/1.1 103 Hints\r\nX: y\r\n\r\nHTTP/1.1 429 Slow\r\nContent-Length: 21\r\n\r\n\r\nRetry-After: 99\r\n\r\n",
        Answer(429, b"\r\nRetry-After: 99\r\n\r\n"),
    ),
    "no reason": (b"HTTP/1.1 599 \r\nContent-Length: 0\r\n\r\n", Answer(599)),
}


def test_an_answer_is_read_however_it_is_split(run_rows: Rows) -> None:
    async def play(size: int, data: bytes, wanted: Answer) -> None:
        parts = [data[start : start + size] for start in range(0, len(data), size)]
        async with RawTarget(says(*parts)) as target:
            caller = Caller(transport(), target.url)
            assert [await caller.one(), await caller.one()] == [wanted, wanted]
            await caller.transport.close()

        assert len(target.wires) == 1, "the connection was kept"

    run_rows({f"{name}, by {size}": partial(play, size, *row) for name, row in ANSWERS.items() for size in (1, 7, 1_000_000)})


def test_the_limits_are_of_one_answer_not_of_all_on_a_connection(run: Callable[[Play], None]) -> None:
    head = b"HTTP/1.1 200 OK\r\n" + b"X-Long: %b\r\n" % (b"y" * 30_000)

    async def play() -> None:
        async with RawTarget(says(head, b"Content-Length: 2\r\n\r\n", b"{}")) as target:
            caller = Caller(transport(body_limit=2), target.url)
            assert [await caller.one() for _ in range(5)] == [Answer(200, b"{}")] * 5
            await caller.transport.close()

        assert len(target.wires) == 1

    run(play)


CLOSING = {
    "says so": b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}",
    "has no other end": b"HTTP/1.1 200 OK\r\n\r\n{}",
    "is of HTTP/1.0": b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}",
    "has bytes after it": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}x",
    "has part of an answer after it": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}HT",
    "has an answer after it": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}HTTP/1.1 500 No\r\nContent-Length: 1\r\n\r\nx",
}


def test_an_answer_after_which_the_connection_is_not_used_again(run_rows: Rows) -> None:
    async def play(name: str) -> None:
        async def talk(wire: Wire) -> None:
            await wire.request()
            wire.say(CLOSING[name])
            if name != "has no other end":
                await wire.closed()

        async with RawTarget(talk) as target:
            caller = Caller(transport(), target.url)
            assert [await caller.one() for _ in range(3)] == [Answer(200, b"{}")] * 3
            await until(lambda: target.open == 0)
            await caller.transport.close()

        assert len(target.wires) == 3

    run_rows({name: partial(play, name) for name in CLOSING})


def test_bytes_that_nobody_asked_for_close_the_connection(run: Callable[[Play], None]) -> None:
    async def talk(wire: Wire) -> None:
        await wire.request()
        wire.say(OK)
        await go_on.wait()
        wire.say(b"HTTP/1.1 500 Never asked\r\nContent-Length: 0\r\n\r\n")
        await wire.closed()

    async def play() -> None:
        async with RawTarget(talk) as target:
            caller = Caller(transport(), target.url)
            assert await caller.one() == Answer(200)
            go_on.set()
            await until(lambda: target.open == 0)
            assert await caller.one() == Answer(200)
            await caller.transport.close()

        assert len(target.wires) == 2

    go_on = asyncio.Event()
    run(play)


def test_a_body_is_cut_at_the_limit_and_its_connection_closed(run_rows: Rows) -> None:
    async def play(head: str, chunk: bytes) -> None:
        async def talk(wire: Wire) -> None:
            await wire.request()
            wire.say(b"HTTP/1.1 200 OK\r\n" + head.encode() + b"\r\n\r\n")
            while True:
                wire.say(chunk)
                await wire.writer.drain()

        async with RawTarget(talk) as target:
            caller = Caller(transport(body_limit=2500), target.url)
            assert await caller.one() == Answer(200, b"x" * 2500)
            await until(lambda: target.open == 0)
            await caller.transport.close()

    plain = b"x" * 1000
    rows = {"Content-Length: 1000000": plain, "Transfer-Encoding: chunked": b"3e8\r\n" + plain + b"\r\n", "X: y": plain}
    run_rows({head: partial(play, head, chunk) for head, chunk in rows.items()})


def test_a_body_of_just_the_limit_is_whole_and_its_connection_kept(run: Callable[[Play], None]) -> None:
    async def play() -> None:
        async with RawTarget(says(b"HTTP/1.1 200 OK\r\nContent-Length: 2500\r\n\r\n" + b"x" * 2500)) as target:
            caller = Caller(transport(body_limit=2500), target.url)
            assert [await caller.one() for _ in range(2)] == [Answer(200, b"x" * 2500)] * 2
            await caller.transport.close()

        assert len(target.wires) == 1

    run(play)


def test_a_large_request_is_sent_whole(run: Callable[[Play], None]) -> None:
    async def play() -> None:
        async with RawTarget(says(OK)) as target:
            target_body = bytes(range(256)) * 8192
            caller = Caller(transport(), target.url)
            assert await caller.one(body=target_body) == Answer(200)
            await caller.transport.close()

        assert target.wires[0].requests[0].endswith(b"\r\n\r\n" + target_body)

    run(play)


# ── connections ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_connections_are_kept_and_a_target_gets_no_more_than_its_share(run: Callable[[Play], None]) -> None:
    async def play() -> None:
        async with RawTarget(says(OK)) as target:
            caller = Caller(transport(per_target=5), target.url)
            for _ in range(200):
                caller.post()
            stats = caller.transport.stats()[0]
            assert (stats.waiting, stats.in_flight) == (200, 0)
            assert await caller.wait(200) == [Answer(200)] * 200
            stats = caller.transport.stats()[0]
            assert (stats.open, stats.connecting, stats.waiting, stats.in_flight) == (5, 0, 0, 0)
            await caller.transport.close()

        assert target.most_open == 5
        assert len(target.wires) == 5

    run(play)


def test_waiting_calls_are_sent_in_the_order_in_which_they_came(run: Callable[[Play], None]) -> None:
    async def play() -> None:
        async with RawTarget(says(OK)) as target:
            caller = Caller(transport(per_target=1), target.url)
            for number in range(100):
                caller.post(body=b"%d" % number)
            await caller.wait(100)
            await caller.transport.close()

        assert [request.rpartition(b"\r\n")[2] for request in target.wires[0].requests] == [
            b"%d" % number for number in range(100)
        ]
        assert [number for number, _ in caller.ends] == list(range(100))

    run(play)


def test_done_is_never_called_before_post_returns(run: Callable[[Play], None]) -> None:
    async def play() -> None:
        async with RawTarget(says(OK)) as target:
            caller = Caller(transport(), target.url)
            await caller.one()  # a connection is free
            for url in [target.url, "nonsense"]:
                before = len(caller.ends)
                caller.post(url)
                assert len(caller.ends) == before
                await caller.wait(before + 1)
            await caller.transport.close()

    run(play)


def test_the_connection_that_was_used_last_is_used_first_and_idle_ones_are_closed(run: Callable[[Play], None]) -> None:
    async def play() -> None:
        async with RawTarget(says(OK)) as target:
            caller = Caller(transport(idle=0.3), target.url)
            for _ in range(4):
                caller.post()
            await caller.wait(4)
            while target.open > 1:
                await caller.one()
            served = [len(wire.requests) for wire in target.wires]
            assert sorted(served)[:3] == [1, 1, 1]
            await until(lambda: target.open == 0)
            await until(lambda: caller.transport.stats() == [])
            await caller.transport.close()

    run(play)


def test_a_kept_connection_that_turns_out_closed_is_replaced_silently(run: Callable[[Play], None]) -> None:
    async def talk(wire: Wire) -> None:
        await wire.request()
        wire.say(OK)
        if wire.number == 0:
            await wire.request()
            _reset(wire)
        else:
            await wire.closed()

    async def play() -> None:
        async with RawTarget(talk) as target:
            caller = Caller(transport(per_target=1), target.url)
            assert await caller.one(body=b"1") == Answer(200)
            assert await caller.one(body=b"2") == Answer(200)
            await caller.transport.close()

        assert [[request[-1:] for request in wire.requests] for wire in target.wires] == [[b"1", b"2"], [b"2"]]

    run(play)


def test_a_kept_connection_is_replaced_once_alone(run: Callable[[Play], None]) -> None:
    async def talk(wire: Wire) -> None:
        await wire.request()
        if wire.number == 0:
            wire.say(OK)
            await wire.request()

    async def play() -> None:
        async with RawTarget(talk) as target:
            caller = Caller(transport(per_target=1), target.url)
            assert await caller.one() == Answer(200)
            assert trouble(await caller.one()) is FailureKind.BROKEN
            await caller.transport.close()

        assert len(target.wires) == 2

    run(play)


def test_after_the_first_byte_of_an_answer_nothing_is_replaced(run: Callable[[Play], None]) -> None:
    async def talk(wire: Wire) -> None:
        await wire.request()
        wire.say(OK)
        await wire.request()
        wire.say(b"H")

    async def play() -> None:
        async with RawTarget(talk) as target:
            caller = Caller(transport(), target.url)
            assert await caller.one() == Answer(200)
            assert trouble(await caller.one()) is FailureKind.BROKEN
            await caller.transport.close()

        assert len(target.wires) == 1

    run(play)


def test_a_target_that_starts_anew_costs_no_call(run: Callable[[Play], None]) -> None:
    async def play() -> None:
        async with RawTarget(says(OK)) as target:
            caller = Caller(transport(), target.url)
            for _ in range(20):
                caller.post()
            await caller.wait(20)
            for wire in target.wires:
                _reset(wire)
            for _ in range(20):  # before this loop hears that they are closed
                caller.post()
            assert await caller.wait(40) == [Answer(200)] * 40
            await caller.transport.close()

    run(play)


def test_a_connection_that_the_target_closes_while_it_is_idle_is_forgotten(run: Callable[[Play], None]) -> None:
    async def play() -> None:
        async with RawTarget(says(OK)) as target:
            caller = Caller(transport(), target.url)
            await caller.one()
            target.wires[0].writer.close()
            await until(lambda: caller.transport.stats()[0].open == 0)
            assert await caller.one() == Answer(200)
            await caller.transport.close()

        assert len(target.wires) == 2

    run(play)


# ── time, cancelling and closing ─────────────────────────────────────────────────────────────────────────────────────────


async def is_silent(wire: Wire) -> None:
    await wire.closed()


def test_a_call_without_an_answer_ends_at_its_time_and_its_connection_is_closed(run: Callable[[Play], None]) -> None:
    async def play() -> None:
        async with RawTarget(is_silent) as target:
            caller, loop = Caller(transport(per_target=2), target.url), asyncio.get_running_loop()
            start = loop.time()
            for timeout in [0.4, 0.2, 0.3, 0.1]:
                caller.post(timeout=timeout)
            ends = await caller.wait(4)
            assert [trouble(end) for end in ends] == [FailureKind.TIMEOUT] * 4
            assert [number for number, _ in caller.ends] == [3, 1, 2, 0]
            assert loop.time() - start > 0.35
            await until(lambda: target.open == 0)
            assert caller.transport.stats()[0].waiting == 0
            await caller.transport.close()

    run(play)


def test_the_wait_for_a_turn_counts_towards_the_timeout(run: Callable[[Play], None]) -> None:
    async def play() -> None:
        async with RawTarget(is_silent) as target:
            caller = Caller(transport(per_target=1), target.url)
            caller.post(timeout=PATIENCE)
            await until(lambda: target.open == 1)
            assert trouble(await caller.one(seconds=0.05)) is FailureKind.TIMEOUT
            stats = caller.transport.stats()[0]
            assert (stats.in_flight, stats.waiting) == (1, 0)
            await caller.transport.close()

        assert len(target.wires) == 1

    run(play)


def test_a_cancelled_call_is_never_heard_of_and_its_connection_is_closed(run: Callable[[Play], None]) -> None:
    async def talk(wire: Wire) -> None:
        await wire.request()
        if wire.number:
            wire.say(OK)
        await wire.closed()

    async def play() -> None:
        async with RawTarget(talk) as target:
            caller = Caller(transport(per_target=1), target.url)
            first, second, _ = caller.post(), caller.post(), caller.post()
            await until(lambda: bool(target.wires and target.wires[0].requests))
            second.cancel()
            first.cancel()
            await caller.wait(1)
            first.cancel()
            second.cancel()
            await caller.transport.close()

        assert caller.ends == [(2, Answer(200))]
        assert len(target.wires) == 2

    run(play)


def test_closing_ends_every_call_and_connection(run: Callable[[Play], None]) -> None:
    async def play() -> None:
        async with RawTarget(is_silent) as target:
            caller = Caller(transport(per_target=2), target.url)
            for _ in range(5):
                caller.post()
            caller.post("http://127.0.0.1:9/")
            await until(lambda: target.open == 2)
            await caller.transport.close()
            assert [trouble(end) for end in await caller.wait(6)].count(FailureKind.CANCELLED) >= 5
            assert trouble(await caller.one()) is FailureKind.CANCELLED
            await until(lambda: target.open == 0)
            assert caller.transport.stats() == []
            await caller.transport.close()
        assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []

    run(play)


# ── what goes wrong ──────────────────────────────────────────────────────────────────────────────────────────────────────

BROKEN = {
    "nothing at all": b"",
    "garbage": b"\x16\x03\x01\x00\x05hello, this is not HTTP\r\n\r\n",
    "HTTP/0.9": b"<html></html>",
    "another version": b"HTTP/3.7 200 OK\r\nContent-Length: 0\r\n\r\n",
    "a status that is none": b"HTTP/1.1 2x0 OK\r\n\r\n",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    "a negative length": b"HTTP/1.1 200 OK\r\nContent-Length: -2\r\n\r\n{}",
    "a length beyond numbers": b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\n{}",
    "a length and chunks": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    "a body that is too short": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n{}",
    "a chunk that is too short": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{}",
    "no last chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n",
    "a chunk whose size is none": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n",
    "a head that does not end": b"HTTP/1.1 200 OK\r\nX: y\r\n",
    "a header without a name": b"HTTP/1.1 200 OK\r\n: y\r\nContent-Length: 0\r\n\r\n",
    "a zero byte in a header": b"HTTP/1.1 200 OK\r\nX: \x00\r\nContent-Length: 0\r\n\r\n",
    "another protocol": b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
    "101 without a protocol": b"HTTP/1.1 101 Switching\r\n\r\n" + OK,
    "interim answers alone": b"HTTP/1.1 100 Continue\r\n\r\n",
    "interim answers without end": b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000,
    "headers without end": b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100_000,
}


def test_what_is_not_an_answer_is_a_broken_connection(run_rows: Rows) -> None:
    async def play(said: bytes) -> None:
        async with RawTarget(says_and_closes(said)) as target:
            caller = Caller(transport(), target.url)
            found = await caller.one()
            assert trouble(found) is FailureKind.BROKEN
            assert isinstance(found, Failure)
            assert target.url.removesuffix("/orders") in found.text
            await until(lambda: caller.transport.stats()[0].open == 0)
            await caller.transport.close()

    run_rows({name: partial(play, said) for name, said in BROKEN.items()})


def test_a_url_that_cannot_be_called_is_malformed(run_rows: Rows) -> None:
    async def play(url: str) -> None:
        caller = Caller(transport(), url)
        found = await caller.one()
        caller.post().cancel()
        await caller.transport.close()
        assert isinstance(found, Failure)
        assert found.kind is FailureKind.MALFORMED
        assert "secret" not in found.text
        assert len(caller.ends) == 1

    urls = ["", "nonsense", "http://h/\r\nX: y", "ftp://127.0.0.1/", "http://u:secret@h/"]
    run_rows({url: partial(play, url) for url in urls})


def test_a_port_where_nobody_listens_is_unreachable_for_every_call(run: Callable[[Play], None]) -> None:
    async def play() -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            for scheme in ["http", "https"]:
                caller = Caller(transport(per_target=3), f"{scheme}://127.0.0.1:{free.getsockname()[1]}/")
                for _ in range(10):
                    caller.post()
                assert [trouble(end) for end in await caller.wait(10)] == [FailureKind.UNREACHABLE] * 10
                await caller.transport.close()

    run(play)


def test_a_connection_that_is_never_made_is_a_connect_timeout(run_rows: Rows) -> None:
    async def play(scheme: str) -> None:
        with socket.socket() as full, socket.socket() as filler:
            full.bind(("127.0.0.1", 0))
            full.listen(0)
            filler.connect(full.getsockname())  # nobody accepts, so that there is no room for another
            caller = Caller(transport(connect_timeout=0.2), f"{scheme}://127.0.0.1:{full.getsockname()[1]}/")
            for _ in range(3):
                caller.post()
            assert {trouble(end) for end in await caller.wait(3)} == {FailureKind.CONNECT_TIMEOUT}
            await caller.transport.close()

    run_rows({scheme: partial(play, scheme) for scheme in ("http", "https")})


def test_a_name_that_leads_nowhere_is_unresolved(run: Callable[[Play], None], monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> None:
        caller, names = Caller(transport(), "http://nowhere.invalid/"), Names({})
        names.install(monkeypatch)
        for _ in range(50):
            caller.post()
        assert [trouble(end) for end in await caller.wait(50)] == [FailureKind.UNRESOLVED] * 50
        assert names.asked == ["nowhere.invalid"], "all of them wait for one answer"
        await caller.transport.close()

    run(play)


def test_an_address_is_checked_at_every_connect_and_the_very_address_is_called(
    run: Callable[[Play], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play() -> None:
        Names({"hooks.example": ["127.0.0.66", "127.0.0.1"]}).install(monkeypatch)
        reach = Everywhere(frozenset({"127.0.0.66"}))
        async with RawTarget(says_and_closes(OK)) as target:
            caller = Caller(transport(reach), f"http://hooks.example:{target.port}/")
            assert await caller.one() == Answer(200)
            await until(lambda: caller.transport.stats()[0].open == 0)
            reach.refused = frozenset({"127.0.0.66", "127.0.0.1"})
            assert trouble(await caller.one()) is FailureKind.NOT_ALLOWED
            await caller.transport.close()

        assert reach.asked == [("hooks.example", address, target.port) for address in ["127.0.0.66", "127.0.0.1"] * 2]
        assert b"\r\nHost: hooks.example:%d\r\n" % target.port in target.wires[0].requests[0]
        assert len(target.wires) == 1

    run(play)


def test_a_name_whose_first_address_does_not_answer_is_called_at_its_next(
    run: Callable[[Play], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play() -> None:
        Names({"hooks.example": ["127.0.0.66", "127.0.0.1"]}).install(monkeypatch)
        async with RawTarget(says(OK)) as target:  # listens on 127.0.0.1 alone
            caller = Caller(transport(), f"http://hooks.example:{target.port}/")
            assert await caller.one() == Answer(200)
            await caller.transport.close()

    run(play)


# ── TLS ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


def test_https_is_spoken_with_the_name_though_an_address_is_called(
    run: Callable[[Play], None], authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play() -> None:
        Names({"hooks.example": ["127.0.0.1"]}).install(monkeypatch)
        async with RawTarget(says(OK), tls=authority.server("hooks.example")) as target:
            caller = Caller(transport(tls=authority.client()), f"https://hooks.example:{target.port}/")
            for _ in range(10):
                caller.post()
            assert await caller.wait(10) == [Answer(200)] * 10
            await caller.transport.close()

    run(play)


def test_a_certificate_that_does_not_fit_breaks_the_connection(run: Callable[[Play], None], authority: Authority) -> None:
    servers = {
        "of nobody": self_signed(),
        "of another host": authority.server("other.example"),
        "of yesterday": authority.server(days=-2),
    }

    async def play() -> None:
        for context in servers.values():
            async with RawTarget(says(OK), tls=context) as target:
                caller = Caller(transport(tls=authority.client()), target.url)
                for _ in range(3):
                    caller.post()
                found = await caller.wait(3)
                assert [trouble(end) for end in found] == [FailureKind.BROKEN] * 3
                assert isinstance(found[0], Failure)
                assert "certificate" in found[0].text
                await caller.transport.close()

    run(play)


def test_a_target_that_speaks_no_tls_breaks_the_connection(run: Callable[[Play], None], authority: Authority) -> None:
    async def garbles(wire: Wire) -> None:
        await wire.reader.read(100)
        wire.say(b"HTTP/1.1 400 TLS is not spoken here\r\n\r\n")

    async def play() -> None:
        async with RawTarget(garbles) as target:
            caller = Caller(transport(tls=authority.client()), target.url.replace("http:", "https:"))
            assert trouble(await caller.one()) is FailureKind.BROKEN
            await caller.transport.close()

    run(play)


def test_http_1_1_alone_is_offered_when_the_operator_wants_that(run: Callable[[Play], None], authority: Authority) -> None:
    async def talk(wire: Wire) -> None:
        chosen.append(wire.writer.get_extra_info("ssl_object").selected_alpn_protocol())
        await says(OK)(wire)

    async def play() -> None:
        context = authority.server()
        context.set_alpn_protocols(["h2", "http/1.1"])
        async with RawTarget(talk, tls=context) as target:
            caller = Caller(transport(tls=authority.client(), http_version="HTTP_1_1"), target.url)
            assert await caller.one() == Answer(200)
            await caller.transport.close()

    chosen: list[str | None] = []
    run(play)
    assert chosen == ["http/1.1"]


# ── a name service of the test's own ─────────────────────────────────────────────────────────────────────────────────────


class Names:
    """Answers in place of the machine's name service: what names lead to is no business of a test's surroundings."""

    def __init__(self, addresses: dict[str, list[str]]) -> None:
        self._addresses = addresses
        self.asked: list[str] = []

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("penstock.http.client.dial.look_up", self.look_up)

    async def look_up(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        await asyncio.sleep(0)
        return self._addresses.get(host, [])


def _reset(wire: Wire) -> None:
    """Close with a reset instead of an end."""
    found: socket.socket = wire.writer.get_extra_info("socket")
    found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wire.writer.transport.abort()


def test_messages_for_many_targets_leave_few_connections_open(
    run: Callable[[Play], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play() -> None:
        async with RawTarget(says(OK)) as target:
            Names({f"host-{number}.test": ["127.0.0.1"] for number in range(100)}).install(monkeypatch)
            caller = Caller(HttpTransport(RouterOptions(), Everywhere(), most_kept=20))
            for number in range(100):
                assert await caller.one(f"http://host-{number}.test:{target.port}/") == Answer(200)
                assert sum(origin.open for origin in caller.transport.stats()) <= 25
            await caller.transport.close()

    run(play)


def test_the_machines_own_name_service_is_asked(run: Callable[[Play], None]) -> None:
    async def play() -> None:
        async with RawTarget(says(OK)) as target:
            caller = Caller(transport(), f"http://localhost:{target.port}/")
            assert await caller.one() == Answer(200)
            await caller.transport.close()

    run(play)


def test_the_certificates_of_the_machine_are_trusted_by_default(run: Callable[[Play], None], authority: Authority) -> None:
    async def play() -> None:
        async with RawTarget(says(OK), tls=authority.server()) as target:
            caller = Caller(transport(), target.url)
            assert trouble(await caller.one()) is FailureKind.BROKEN
            await caller.transport.close()

    run(play)
    assert ssl.create_default_context().verify_mode is ssl.CERT_REQUIRED
