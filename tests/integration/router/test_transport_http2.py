"""The router's HTTP client over HTTP/2: streams share few connections, and what happens to one stream happens to it alone."""

from collections.abc import Callable

import pytest
from h2 import events
from h2.errors import ErrorCodes
from h2.settings import SettingCodes

from penstock.http.client.transport import Answer, Failure, FailureKind
from penstock.testing.certificates import Authority
from tests.integration.router.h2_target import H2Target, Stream
from tests.integration.router.raw_target import Caller, Play, transport, until


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


def answers(stream: Stream) -> None:
    stream.answer()


def keeps_silent(_: Stream) -> None:
    pass


def trouble(found: Answer | Failure) -> FailureKind | None:
    return found.kind if isinstance(found, Failure) else None


def test_a_request_is_whole_and_its_answer_comes_back(run: Callable[[Play], None], authority: Authority) -> None:
    async def play() -> None:
        async with H2Target(lambda stream: stream.answer(429, b"{}", retry_after="7"), authority.server()) as target:
            caller = Caller(transport(tls=authority.client()), target.url)
            found = await caller.one(headers=b"Authorization: Bearer t\r\nX-One: 1\r\n", body=b'{"messageId":"1"}')
            assert found == Answer(429, b"{}", "7")
            await caller.transport.close()

        assert bytes(target.streams[0].body) == b'{"messageId":"1"}'
        assert target.streams[0].headers == {
            b":method": b"POST",
            b":scheme": b"https",
            b":authority": b"127.0.0.1:%d" % target.port,
            b":path": b"/orders",
            b"content-type": b"application/json",
            b"accept": b"application/json",
            b"user-agent": b"penstock-router",
            b"content-length": b"17",
            b"authorization": b"Bearer t",
            b"x-one": b"1",
        }

    run(play)


def test_many_calls_share_one_connection(run: Callable[[Play], None], authority: Authority) -> None:
    async def play() -> None:
        async with H2Target(answers, authority.server()) as target:
            caller = Caller(transport(tls=authority.client()), target.url)
            for _ in range(100):
                caller.post()
            assert await caller.wait(100) == [Answer(200)] * 100
            stats = caller.transport.stats()[0]
            assert (stats.open, stats.connecting, stats.in_flight, stats.waiting) == (1, 0, 0, 0)
            await caller.transport.close()

        assert len(target.wires) == 1

    run(play)


def test_another_connection_is_opened_when_all_are_busy_and_a_target_gets_its_share_alone(
    run: Callable[[Play], None], authority: Authority
) -> None:
    async def play() -> None:
        async with H2Target(keeps_silent, authority.server()) as target:
            caller = Caller(transport(tls=authority.client(), per_target=250), target.url)
            for _ in range(300):
                caller.post()
            await until(lambda: target.whole == 250)
            assert sorted(len(wire.streams) for wire in target.wires) == [50, 100, 100]
            stats = caller.transport.stats()[0]
            assert (stats.open, stats.in_flight, stats.waiting) == (3, 250, 50)
            target.react = answers
            for stream in list(target.streams):
                stream.answer()
            assert await caller.wait(300) == [Answer(200)] * 300
            await caller.transport.close()

        assert len(target.wires) == 3

    run(play)


def test_no_more_streams_are_opened_than_the_target_takes(run: Callable[[Play], None], authority: Authority) -> None:
    async def play() -> None:
        async with H2Target(answers, authority.server(), {SettingCodes.MAX_CONCURRENT_STREAMS: 3}) as target:
            caller = Caller(transport(tls=authority.client()), target.url)
            await caller.one()  # until the target's settings are here, there may be more
            target.react = keeps_silent
            for _ in range(60):
                caller.post()
            await until(lambda: target.whole == 25)
            assert caller.transport.stats()[0].in_flight == 24
            assert caller.transport.stats()[0].open == 8
            target.react = answers
            for stream in list(target.streams)[1:]:
                stream.answer()
            assert await caller.wait(61) == [Answer(200)] * 61
            await caller.transport.close()

        assert len(target.wires) == 8

    run(play)


def test_an_answer_that_comes_with_a_smaller_limit_makes_no_room_beyond_it(
    run: Callable[[Play], None], authority: Authority
) -> None:
    async def play() -> None:
        async with H2Target(keeps_silent, authority.server(), {SettingCodes.MAX_CONCURRENT_STREAMS: 3}) as target:
            caller = Caller(transport(tls=authority.client(), per_target=3), target.url)
            for _ in range(6):
                caller.post()
            await until(lambda: target.whole == 3)
            wire, (first, *others) = target.wires[0], list(target.streams)
            wire.h2.send_headers(first.number, [(":status", "200")], end_stream=True)
            wire.h2.update_settings({SettingCodes.MAX_CONCURRENT_STREAMS: 1})
            wire.flush()  # both in one piece
            await caller.wait(1)
            target.react = answers
            for stream in others:
                stream.answer()
            assert await caller.wait(6) == [Answer(200)] * 6
            assert caller.transport.stats()[0].in_flight == 0
            await caller.transport.close()

    run(play)


def test_a_target_that_takes_no_streams_keeps_no_connection(run: Callable[[Play], None], authority: Authority) -> None:
    async def play() -> None:
        async with H2Target(answers, authority.server(), {SettingCodes.MAX_CONCURRENT_STREAMS: 0}) as target:
            caller = Caller(transport(tls=authority.client(), idle=0.2), target.url)
            assert trouble(await caller.one(seconds=0.5)) is FailureKind.TIMEOUT
            await until(lambda: target.open == 0 and not caller.transport.stats())
            await caller.transport.close()

    run(play)


def test_a_target_cannot_make_the_table_of_headers_grow(run: Callable[[Play], None], authority: Authority) -> None:
    async def play() -> None:
        async with H2Target(answers, authority.server(), {SettingCodes.HEADER_TABLE_SIZE: 2**32 - 1}) as target:
            caller = Caller(transport(tls=authority.client()), target.url)
            assert await caller.one() == Answer(200)
            for number in range(200):
                assert await caller.one(headers=b"X-Long: %d%b\r\n" % (number, b"x" * 200)) == Answer(200)
            [wire] = target.wires
            assert wire.h2.decoder.header_table._current_size <= 4096
            await caller.transport.close()

    run(play)


def test_a_refused_stream_is_sent_again_once(run: Callable[[Play], None], authority: Authority) -> None:
    async def play() -> None:
        refusals = [True, False, True, True]

        def react(stream: Stream) -> None:
            stream.reset(ErrorCodes.REFUSED_STREAM) if refusals.pop(0) else stream.answer()

        async with H2Target(react, authority.server()) as target:
            caller = Caller(transport(tls=authority.client()), target.url)
            assert await caller.one() == Answer(200)
            assert trouble(await caller.one()) is FailureKind.BROKEN
            await caller.transport.close()

        assert len(target.streams) == 4
        assert len(target.wires) == 1

    run(play)


def test_a_stream_that_is_reset_breaks_alone(run: Callable[[Play], None], authority: Authority) -> None:
    async def play() -> None:
        def react(stream: Stream) -> None:
            stream.reset(ErrorCodes.INTERNAL_ERROR) if stream.body == b"bad" else stream.answer()

        async with H2Target(react, authority.server()) as target:
            caller = Caller(transport(tls=authority.client()), target.url)
            for body in [b"good", b"bad", b"good"]:
                caller.post(body=body)
            first, second, third = await caller.wait(3)
            assert (first, third) == (Answer(200), Answer(200))
            assert isinstance(second, Failure)
            assert second.kind is FailureKind.BROKEN
            assert "INTERNAL_ERROR" in second.text
            await caller.transport.close()

        assert len(target.wires) == 1

    run(play)


def test_a_target_that_goes_away_answers_what_it_saw_and_the_rest_goes_elsewhere(
    run: Callable[[Play], None], authority: Authority
) -> None:
    async def play() -> None:
        async with H2Target(keeps_silent, authority.server()) as target:
            caller = Caller(transport(tls=authority.client()), target.url)
            for number in range(4):
                caller.post(body=b"%d" % number)
            await until(lambda: len(target.streams) == 4)
            target.react = answers
            seen = target.streams[:2]
            _go_away(target, last=seen[-1].number)
            assert (await _first(caller, 2)) == {2, 3}
            for stream in seen:
                stream.answer(201)
            assert await caller.wait(4) == [Answer(201), Answer(201), Answer(200), Answer(200)]
            await until(lambda: target.open == 1)
            await caller.transport.close()

        assert [bytes(stream.body) for stream in target.wires[1].streams.values()] == [b"2", b"3"]

    run(play)


def test_an_idle_connection_that_goes_away_is_closed_and_replaced(run: Callable[[Play], None], authority: Authority) -> None:
    async def play() -> None:
        async with H2Target(answers, authority.server()) as target:
            caller = Caller(transport(tls=authority.client()), target.url)
            assert await caller.one() == Answer(200)
            _go_away(target, last=1)
            await until(lambda: target.open == 0)
            assert await caller.one() == Answer(200)
            await caller.transport.close()

        assert len(target.wires) == 2

    run(play)


def test_a_kept_connection_that_turns_out_closed_is_replaced_silently(run: Callable[[Play], None], authority: Authority) -> None:
    async def play() -> None:
        def closes(stream: Stream) -> None:
            target.react = answers
            stream.wire.transport.abort()

        async with H2Target(answers, authority.server()) as target:
            caller = Caller(transport(tls=authority.client()), target.url)
            target.react = closes
            assert trouble(await caller.one()) is FailureKind.BROKEN, "the first call on a connection is not replaced"
            assert await caller.one() == Answer(200)
            target.react = closes
            assert await caller.one() == Answer(200)
            await caller.transport.close()

    run(play)


def test_a_body_is_cut_at_the_limit_and_its_stream_alone_is_reset(run: Callable[[Play], None], authority: Authority) -> None:
    async def play() -> None:
        def react(stream: Stream) -> None:
            if stream.body == b"big":
                stream.wire.h2.send_headers(stream.number, [(":status", "200")])
                for _ in range(4):
                    stream.wire.h2.send_data(stream.number, b"x" * 1000)
            else:
                stream.answer()

        async with H2Target(react, authority.server()) as target:
            caller = Caller(transport(tls=authority.client(), body_limit=2500), target.url)
            assert await caller.one(body=b"big") == Answer(200, b"x" * 2500)
            assert await caller.one(body=b"small") == Answer(200)
            await until(lambda: target.streams[0].is_reset)
            await caller.transport.close()

        assert len(target.wires) == 1

    run(play)


def test_flow_control_is_kept_both_ways(run: Callable[[Play], None], authority: Authority) -> None:
    body = bytes(range(256)) * 2048  # far beyond the first window of 64 KiB

    async def play() -> None:
        def react(stream: Stream) -> None:
            stream.answer(200, b"y" * 16_000)

        async with H2Target(react, authority.server()) as target:
            caller = Caller(transport(tls=authority.client()), target.url)
            for _ in range(10):
                caller.post(body=body)
            assert await caller.wait(10) == [Answer(200, b"y" * 16_000)] * 10
            await caller.transport.close()

        assert all(bytes(stream.body) == body for stream in target.streams)

    run(play)


def test_an_answer_before_the_request_is_whole_ends_the_call(run: Callable[[Play], None], authority: Authority) -> None:
    async def play() -> None:
        async with H2Target(keeps_silent, authority.server()) as target:
            target.reads_bodies = False  # so the body stops at the end of the window
            caller = Caller(transport(tls=authority.client()), target.url)
            caller.post(body=bytes(1_000_000))
            await until(lambda: bool(target.streams and len(target.streams[0].body) == 65_535))
            target.streams[0].answer(413)
            assert await caller.wait(1) == [Answer(413)]
            await until(lambda: target.streams[0].is_reset)
            await caller.transport.close()

    run(play)


def test_a_call_that_is_cancelled_or_too_late_gives_up_its_stream_alone(
    run: Callable[[Play], None], authority: Authority
) -> None:
    async def play() -> None:
        async with H2Target(keeps_silent, authority.server()) as target:
            caller = Caller(transport(tls=authority.client()), target.url)
            caller.post()
            cancelled = caller.post()
            await until(lambda: len(target.streams) == 2)
            cancelled.cancel()
            assert trouble(await caller.one(seconds=0.05)) is FailureKind.TIMEOUT
            await until(lambda: [stream.is_reset for stream in target.streams] == [False, True, True])
            assert caller.transport.stats()[0].in_flight == 1
            target.streams[0].answer()
            await caller.wait(2)
            assert caller.ends[1] == (0, Answer(200))
            await caller.transport.close()

        assert len(target.wires) == 1

    run(play)


def test_interim_answers_and_trailers_are_passed_over(run: Callable[[Play], None], authority: Authority) -> None:
    async def play() -> None:
        def react(stream: Stream) -> None:
            h2, number = stream.wire.h2, stream.number
            h2.send_headers(number, [(":status", "103"), ("link", "</a>")])
            h2.send_headers(number, [(":status", "200")])
            h2.send_data(number, b"{}")
            h2.send_headers(number, [("x-trailer", "1")], end_stream=True)

        async with H2Target(react, authority.server()) as target:
            caller = Caller(transport(tls=authority.client()), target.url)
            assert await caller.one() == Answer(200, b"{}")
            await caller.transport.close()

    run(play)


def test_what_is_not_http_2_breaks_every_call_of_the_connection(run: Callable[[Play], None], authority: Authority) -> None:
    async def play() -> None:
        for data in (b"\x00\x00\x05\x63hello", b"HTTP/1.1 400 Bad\r\n\r\n", bytes(9) + b"\xff" * 64):
            await breaks(data)

    async def breaks(data: bytes) -> None:
        async with H2Target(keeps_silent, authority.server()) as target:
            caller = Caller(transport(tls=authority.client()), target.url)
            for _ in range(3):
                caller.post()
            await until(lambda: len(target.streams) == 3)
            target.wires[0].transport.write(data)
            target.wires[0].transport.close()
            assert [trouble(end) for end in await caller.wait(3)] == [FailureKind.BROKEN] * 3
            await until(lambda: caller.transport.stats()[0].open == 0)
            await caller.transport.close()

    run(play)


def test_a_ping_is_answered_and_a_connection_that_answers_none_is_given_up(
    run: Callable[[Play], None], authority: Authority
) -> None:
    async def play() -> None:
        async with H2Target(keeps_silent, authority.server()) as target:
            caller = Caller(transport(tls=authority.client(), idle=0.3), target.url)
            caller.post()
            await until(lambda: bool(target.streams))
            wire = target.wires[0]
            wire.h2.ping(b"12345678")
            wire.flush()
            for kind in [events.PingAckReceived, events.PingReceived]:
                await until(lambda kind=kind: any(isinstance(event, kind) for event in wire.events))  # type: ignore[misc]
            wire.reads = False
            assert trouble((await caller.wait(1))[0]) is FailureKind.BROKEN
            await caller.transport.close()

    run(play)


def test_a_target_without_http_2_gets_http_1_1(run: Callable[[Play], None], authority: Authority) -> None:
    async def play() -> None:
        tls = authority.server()
        async with H2Target(answers, tls) as target:
            tls.set_alpn_protocols(["http/1.1"])
            caller = Caller(transport(tls=authority.client()), target.url)
            caller.post(timeout=1)
            assert trouble((await caller.wait(1))[0]) is FailureKind.BROKEN, "that server cannot read it, but it was asked"
            await caller.transport.close()

        assert target.streams == []

    run(play)


def test_closing_ends_every_stream_and_idle_connections_are_closed(run: Callable[[Play], None], authority: Authority) -> None:
    async def play() -> None:
        async with H2Target(answers, authority.server()) as target:
            caller = Caller(transport(tls=authority.client(), idle=0.2), target.url)
            assert await caller.one() == Answer(200)
            await until(lambda: target.open == 0)
            target.react = keeps_silent
            for _ in range(5):
                caller.post()
            await until(lambda: len(target.streams) == 6)
            await caller.transport.close()
            assert [trouble(end) for end in (await caller.wait(6))[1:]] == [FailureKind.CANCELLED] * 5
            await until(lambda: target.open == 0)

    run(play)


def _go_away(target: H2Target, last: int) -> None:
    """Say that nothing after this stream was looked at; the library would close the connection with it."""
    from hyperframe.frame import GoAwayFrame

    target.wires[0].transport.write(GoAwayFrame(0, last_stream_id=last).serialize())


async def _first(caller: Caller, count: int) -> set[int]:
    await caller.wait(count)
    return {number for number, _ in caller.ends[:count]}
