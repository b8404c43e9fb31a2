"""Bytes as a NATS server sends them, however they are cut; and what subjects say of a delivery."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.router.sources.nats_connection import NatsConnection, parse_address
from penstock.router.sources.nats_jetstream import (
    ConsumerInfo,
    ConsumerSettings,
    Delivery,
    Outbox,
    Position,
    StreamState,
    clear,
    delivery_of,
)


class Wire:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.is_aborted = False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def abort(self) -> None:
        self.is_aborted = True


MESSAGES = [
    (b"MSG a.b 1 5\r\nhello\r\n", (b"a.b", b"", b"", b"hello")),
    (b"MSG a.b 1 r.1 0\r\n\r\n", (b"a.b", b"r.1", b"", b"")),
    (b"MSG  a\t1  r.1 4\r\n\r\n\r\n\r\n", (b"a", b"r.1", b"", b"\r\n\r\n")),
    (b"HMSG a 1 r 12 17\r\nNATS/1.0\r\n\r\nhello\r\n", (b"a", b"r", b"NATS/1.0\r\n\r\n", b"hello")),
    (b"HMSG a 1 12 12\r\nNATS/1.0\r\n\r\n\r\n", (b"a", b"", b"NATS/1.0\r\n\r\n", b"")),
    (b"PING\r\n", None),
    (b"+OK\r\n", None),
    (b"INFO {}\r\n", None),
    (b"MSG other 99 5\r\nnever\r\n", None),
    (b"MSG big 1 70000\r\n" + b"x" * 70_000 + b"\r\n", (b"big", b"", b"", b"x" * 70_000)),
]


@given(st.lists(st.sampled_from(MESSAGES), max_size=12), st.data())
def test_messages_come_whole_however_they_are_cut(sent: list[tuple[bytes, Any]], data: st.DataObject) -> None:
    whole = b"".join(text for text, _ in sent)
    places = st.one_of(st.integers(0, len(whole)), st.integers(max(0, len(whole) - 60), len(whole)))
    cuts = sorted(data.draw(st.lists(places, max_size=10)))

    async def run() -> None:
        connection, wire, came = NatsConnection(), Wire(), []
        connection.connection_made(cast(asyncio.BaseTransport, wire))
        assert connection.subscribe("x", lambda *message: came.append(message)) == b"1"
        wire.written.clear()
        for start, stop in zip([0, *cuts], [*cuts, len(whole)], strict=True):
            if start < stop:
                connection.data_received(whole[start:stop])
        assert came == [message for _, message in sent if message]
        assert wire.written == [b"PONG\r\n"] * sum(text == b"PING\r\n" for text, _ in sent)
        assert not wire.is_aborted

    asyncio.run(run())


@given(st.binary(max_size=200))
def test_any_bytes_are_taken_or_end_the_connection(said: bytes) -> None:
    async def run() -> None:
        connection = NatsConnection()
        connection.connection_made(cast(asyncio.BaseTransport, Wire()))
        connection.subscribe("x", lambda *_: None)
        for prefix in (b"", b"MSG ", b"HMSG ", b"MSG a 1 ", b"INFO ", b"-ERR "):
            connection.data_received(prefix + said + b"\r\n")

    asyncio.run(run())


def test_a_connection_whose_greeting_is_no_longer_awaited_ends_as_any_other() -> None:
    async def run() -> None:
        connection, lost = NatsConnection(), list[bool]()
        connection.connection_made(cast(asyncio.BaseTransport, Wire()))
        connection.on_lost = lambda: lost.append(True)
        waiting = asyncio.ensure_future(connection._greeting)
        waiting.cancel()  # as a connect that takes too long does
        connection.connection_lost(None)
        assert (connection.ended.is_set(), lost) == (True, [True])

    asyncio.run(run())


@pytest.mark.parametrize(
    ("reply", "found"),
    [
        (b"$JS.ACK.S.C.3.17.40.1700000000000000000.5", Delivery(3, 17, b"1700000000000000000")),
        (b"$JS.ACK.domain.hash.S.C.3.17.40.1700000000000000000.5.random", Delivery(3, 17, b"1700000000000000000")),
        (b"$JS.ACK._.hash.S.C.3.17.40.1700000000000000000.5", Delivery(3, 17, b"1700000000000000000")),
    ],
)
def test_a_reply_says_which_delivery_of_which_message(reply: bytes, found: Delivery) -> None:
    assert delivery_of(reply) == found


def test_what_is_told_in_one_turn_is_one_write_with_naks_in_order() -> None:
    calls: list[None] = []
    outbox = Outbox(lambda: calls.append(None))
    replies = [b"$JS.ACK.S.C.1.%d.%d.0.0" % (number, number) for number in range(12)]
    outbox.ack(replies[3])
    outbox.nak(replies[11], 2)
    outbox.nak(replies[9])
    outbox.ack(replies[1])
    outbox.extend(replies[0])
    outbox.extend(replies[2], 90)

    assert len(calls) == 1
    assert outbox.take() == (
        b"PUB $JS.ACK.S.C.1.0.0.0.0 4\r\n+WPI\r\n"
        b'PUB $JS.ACK.S.C.1.2.2.0.0 27\r\n-NAK {"delay": 90000000000}\r\n'
        b"PUB $JS.ACK.S.C.1.9.9.0.0 4\r\n-NAK\r\n"
        b'PUB $JS.ACK.S.C.1.11.11.0.0 26\r\n-NAK {"delay": 2000000000}\r\n'
        b"PUB $JS.ACK.S.C.1.3.3.0.0 4\r\n+ACK\r\n"
        b"PUB $JS.ACK.S.C.1.1.1.0.0 4\r\n+ACK\r\n"
    )
    assert outbox.is_empty
    assert list(outbox.unconfirmed_acks()) == ["3.0", "1.0"]
    assert list(outbox.unconfirmed_acks()) == []


def test_numbers_that_the_server_has_lost_are_not_settled() -> None:
    outbox = Outbox(lambda: None)
    for number in (4, 5):
        outbox.ack(b"$JS.ACK.S.C.1.%d.1.0.0" % number)
        outbox.nak(b"$JS.ACK.S.C.1.%d.1.0.0" % (number + 10))
    outbox.forget_after(4)
    assert outbox.take() == b"PUB $JS.ACK.S.C.1.4.1.0.0 4\r\n+ACK\r\n"


def test_only_what_the_stream_no_longer_holds_is_acked_for_nobody() -> None:
    class Holes:
        async def holes(self) -> StreamState:
            return StreamState(first_seq=5, last_seq=30, deleted=(7, 9, 10, 22))

    class Link:
        written = b""

        def write(self, data: bytes) -> None:
            self.written += data

        async def ping(self) -> None:
            """It is there."""

    def acked(pending: int) -> list[int]:
        link = Link()
        info = ConsumerInfo(ConsumerSettings(), Position(40, 10), Position(3, 3), num_ack_pending=pending)
        asyncio.run(clear(cast(Any, link), cast(Any, Holes()), parse_address("nats://h/S/C"), info))
        commands = link.written.split(b"PUB $JS.ACK.S.C.1.")[1:]
        assert all(command.endswith(b".40.0.0 4\r\n+ACK\r\n") for command in commands)
        return [int(command.partition(b".")[0]) for command in commands]

    # Handed out may be 4 to 10; of these, 4 is before the stream's first and three are deleted.
    assert acked(pending=2) == [4, 7, 9, 10]
    assert acked(pending=0) == []
