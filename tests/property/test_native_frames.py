"""What is said on the native port arrives as it was said, however the network cuts it."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidArgument
from penstock.values.lease import Lease
from penstock.values.message import Message, StoredMessage
from penstock.wire import frames
from penstock.wire.frames import Adjust, Call, Close, Ended, Hello, Inbox, Limits, Nack, Open, Ping, Publish, Refused, Settle

TEXTS = st.text(max_size=30)
NUMBERS = st.integers(-(2**63), 2**64 - 1)
SECONDS = st.floats(allow_nan=False, width=64)
RECEIPTS = st.lists(NUMBERS, max_size=20)
ATTRIBUTES = st.dictionaries(TEXTS, TEXTS, max_size=4)
LIMITS = st.builds(Limits, NUMBERS, NUMBERS, SECONDS, st.booleans(), st.booleans(), NUMBERS)
RAW = st.recursive(
    st.none() | NUMBERS | TEXTS | st.binary(max_size=30), lambda inner: st.lists(inner, max_size=3), max_leaves=8
).map(lambda value: msgspec.Raw(msgspec.msgpack.encode(value)))
MESSAGES = st.builds(Message, st.binary(max_size=100), ATTRIBUTES, TEXTS, st.integers(0, 9), st.none() | SECONDS)
REQUESTS = st.one_of(
    st.builds(Hello, NUMBERS, NUMBERS, st.none() | TEXTS, st.none() | TEXTS, TEXTS),
    st.builds(Call, NUMBERS, TEXTS, RAW),
    st.builds(Publish, NUMBERS, TEXTS, st.lists(MESSAGES, max_size=3), st.none() | st.tuples(TEXTS, NUMBERS)),
    st.builds(Open, NUMBERS, NUMBERS, NUMBERS, TEXTS, TEXTS, LIMITS, st.none() | RECEIPTS),
    st.builds(
        Settle,
        NUMBERS,
        NUMBERS,
        RECEIPTS,
        st.lists(st.builds(Nack, NUMBERS, st.booleans(), st.none() | TEXTS, st.none() | SECONDS), max_size=3),
        st.lists(st.tuples(RECEIPTS, SECONDS), max_size=3),
    ),
    st.builds(Adjust, NUMBERS, LIMITS),
    st.builds(Close, NUMBERS, st.booleans()),
    st.builds(Ping, NUMBERS),
)
ANSWERS = st.one_of(
    st.builds(frames.Done, NUMBERS, RAW),
    st.builds(Refused, NUMBERS, TEXTS, st.lists(TEXTS | NUMBERS, max_size=3), st.none() | TEXTS, TEXTS),
    st.builds(Ended, NUMBERS, st.none() | TEXTS, st.lists(TEXTS, max_size=3), st.none() | TEXTS, TEXTS),
    st.just(frames.Leaving()),
)


@given(said=st.lists(REQUESTS, max_size=5), cuts=st.lists(st.integers(1, 40), max_size=30))
def test_requests_arrive_as_they_were_sent_however_they_are_cut(said: list[object], cuts: list[int]) -> None:
    inbox, wire, heard = Inbox(1 << 20), b"".join(map(frames.framed, said)), []
    for size in [*cuts, len(wire)]:
        part, wire = wire[:size], wire[size:]
        heard += [frames.decode_request(body) for body in inbox.feed(part)]
    assert heard == said


@given(said=ANSWERS)
def test_answers_arrive_as_they_were_sent(said: object) -> None:
    [body] = Inbox(1 << 20).feed(frames.framed(said))
    assert frames.decode_answer(body) == said


@given(
    stream=NUMBERS,
    offset=st.integers(0, (1 << 40) - 1),
    attempt=st.integers(1, 5_000),
    epoch=st.integers(0, 5_000),
    data=st.binary(max_size=50),
    attributes=st.none() | ATTRIBUTES,
    key=TEXTS,
)
def test_deliveries_arrive_as_they_were_leased(
    stream: int, offset: int, attempt: int, epoch: int, data: bytes, attributes: dict[str, str] | None, key: str
) -> None:
    message = StoredMessage(publish_at=1, data=data, attributes=attributes, key=key, priority=4, size=len(data))
    [body] = Inbox(1 << 20).feed(frames.delivered(stream, [Lease(9, offset, attempt, epoch, message)]))
    read: Any = frames.decode_answer(body)
    [delivery] = read.deliveries
    assert (read.stream, delivery.offset, delivery.attempt, delivery.epoch) == (stream, offset, attempt, epoch)
    assert (delivery.message.data, delivery.message.attributes, delivery.message.key) == (data, attributes, key)
    assert frames.offset_of(frames.receipt(offset, attempt, epoch)) == offset


@given(data=st.binary(max_size=200))
def test_no_bytes_raise_anything_unexpected(data: bytes) -> None:
    try:
        bodies = list(Inbox(100).feed(data))
    except InvalidArgument:
        return
    for body in [*bodies, data]:
        for read in (frames.decode_request, frames.decode_answer, frames.call_in):
            try:
                read(body)
            except (InvalidArgument, *frames.UNREADABLE):
                continue


@given(said=REQUESTS, at=st.integers(0, 200), byte=st.integers(0, 255))
def test_a_request_with_one_wrong_byte_is_read_or_refused(said: object, at: int, byte: int) -> None:
    body = bytearray(frames.encode(said))
    body[at % len(body)] = byte
    try:
        frames.decode_request(bytes(body))
    except frames.UNREADABLE:
        return
