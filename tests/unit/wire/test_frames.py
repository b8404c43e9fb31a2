"""Version 1 of the wire, byte by byte. A change here breaks every client of this version: make another version instead."""

import pickle
from typing import Any

import msgspec
import pytest

from penstock import errors
from penstock.errors import InvalidArgument, InvalidPriority, PenstockError, TopicNotFound
from penstock.values.lease import Lease
from penstock.values.message import Message, StoredMessage
from penstock.values.queue import NewMessage
from penstock.wire import frames
from penstock.wire.frames import (
    QUEUE,
    TOPIC,
    Adjust,
    Call,
    Cancel,
    Close,
    Delivered,
    Done,
    Ended,
    Enqueue,
    Hello,
    Inbox,
    Leaving,
    Limits,
    Nack,
    Open,
    Opened,
    Ping,
    Publish,
    Refused,
    Settle,
    Settled,
    Welcome,
)


def raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.msgpack.encode(value))


REQUESTS: list[tuple[object, str]] = [
    (Hello(1, 1, "token", "project", "client"), "1900000096000101a5746f6b656ea770726f6a656374a6636c69656e74"),
    (Hello(1, 1), "0700000096000101c0c0a0"),
    (
        Call(2, "get_topic", raw({"topic": "orders"})),
        "1b000000940102a96765745f746f70696381a5746f706963a66f7264657273",
    ),
    (
        Publish(3, "orders", [Message(b"x", {"a": "b"}, "key")], ("producer", 7)),
        "28000000950203a66f72646572739198c4017881a161a162a36b657905c0c0c0c092a870726f647563657207",
    ),
    (Enqueue(4, "work", [NewMessage("x", 5)]), "15000000950304a4776f726b9199a17805c0c0c0c0c0c0c0c0"),
    (
        Open(5, 1, TOPIC, "sub", "me", Limits(100, 1_048_576, 30.0), [1, 2]),
        "220000009804050100a3737562a26d659664ce00100000cb403e000000000000c2c201920102",
    ),
    (
        Open(5, 1, QUEUE, "work", "me", Limits(1, 1, 1.0)),
        "1d0000009804050101a4776f726ba26d65960101cb3ff0000000000000c2c201c0",
    ),
    (
        Settle(6, 1, [1], [Nack(2, False, "bad", 1.5)], [([3, 4], 60.0)], [5]),
        "28000000970506019101919502c2a3626164cb3ff8000000000000c29192920304cb404e0000000000009105",
    ),
    (Adjust(1, Limits(1, 2, 3.0, True, True, 100)), "12000000930601960102cb4008000000000000c3c364"),
    (Close(1, True), "04000000930701c3"),
    (Ping(7), "03000000920807"),
    (Cancel(7), "03000000920907"),
]
OLDER_REQUESTS: list[tuple[object, str]] = [
    (
        Open(5, 1, TOPIC, "sub", "me", Limits(100, 1_048_576, 30.0), [1, 2]),
        "210000009804050100a3737562a26d659564ce00100000cb403e000000000000c2c2920102",
    ),
    (Adjust(1, Limits(1, 2, 3.0, True, True)), "11000000930601950102cb4008000000000000c3c3"),
]
"""Requests of clients that do not know the last fields."""
ANSWERS: list[tuple[object, str]] = [
    (Done(1, raw(["id"])), "0700000093000191a26964"),
    (Done(1), "04000000930001c0"),
    (
        Refused(2, "topic_not_found", ["orders"], "create it", "Topic not found: orders"),
        (
            "3d000000960102af746f7069635f6e6f745f666f756e6491a66f7264657273a9637265617465206974"
            "b7546f706963206e6f7420666f756e643a206f7264657273"
        ),
    ),
    (Ended(1, "unavailable", ["gone"], None, "gone"), "1b000000960301ab756e617661696c61626c6591a4676f6e65c0a4676f6e65"),
    (Ended(1), "07000000960301c090c0a0"),
    (Leaving(), "020000009104"),
]


def body_of(wire: bytes) -> bytes:
    [body] = Inbox(1_000).feed(wire)
    return body


def test_the_wire_of_every_request_is_what_it_always_was(subtests: pytest.Subtests) -> None:
    for request_, wire in REQUESTS:
        with subtests.test(request_=request_, wire=wire):
            assert frames.framed(request_).hex() == wire
            assert frames.decode_request(body_of(bytes.fromhex(wire))) == request_


def test_requests_of_older_clients_are_understood(subtests: pytest.Subtests) -> None:
    for request_, wire in OLDER_REQUESTS:
        with subtests.test(request_=request_, wire=wire):
            assert frames.decode_request(body_of(bytes.fromhex(wire))) == request_


def test_the_wire_of_every_answer_is_what_it_always_was(subtests: pytest.Subtests) -> None:
    for answer, wire in ANSWERS:
        with subtests.test(answer=answer, wire=wire):
            assert frames.framed(answer).hex() == wire
            assert frames.decode_answer(body_of(bytes.fromhex(wire))) == answer


def test_the_wire_of_deliveries_is_what_it_always_was() -> None:
    message = StoredMessage(publish_at=10, data=b"x", attributes={"a": "b"}, key="k", priority=4, size=5)
    wire = frames.delivered(1, [Lease(9, 5, 1, 2, message)])
    assert wire.hex() == "180000009302019194050102980ac4017881a161a162a16b0400c0c0"
    read = frames.decode_answer(body_of(wire))
    assert isinstance(read, Delivered)
    [delivery] = read.deliveries
    assert (read.stream, delivery.offset, delivery.attempt, delivery.epoch) == (1, 5, 1, 2)
    assert (delivery.message.data, delivery.message.key, delivery.message.attributes) == (b"x", "k", {"a": "b"})
    assert frames.framed(read) == wire


def test_the_wire_of_results_is_what_it_always_was(subtests: pytest.Subtests) -> None:
    rows: list[tuple[object, str]] = [
        (
            Welcome(1, "0.1.0", "penstock", 16_777_216, True),
            (
                "85a776657273696f6e01a6736572766572a5302e312e30a770726f6a656374a870656e73746f636b"
                "af6d61785f6672616d655f6279746573ce01000000aa69735f64757261626c65c3"
            ),
        ),
        (
            Opened(3, 2, 5, False, True),
            "85a5717565756503a673747265616d02ac6d61785f617474656d70747305ac65786163746c795f6f6e6365c2a76f726465726564c3",
        ),
        (Settled([7]), "919107"),
    ]
    for result, wire in rows:
        with subtests.test(result=result, wire=wire):
            assert msgspec.msgpack.encode(result).hex() == wire


def test_every_frame_is_among_the_golden_ones() -> None:
    shown = {type(one) for one, _ in REQUESTS + ANSWERS} | {Delivered}
    assert shown == set(frames.Frame.__subclasses__())


def test_receipts_are_what_they_always_were() -> None:
    assert frames.receipt(0, 0, 0) == 0
    assert frames.receipt(5, 1, 2) == 2 << 52 | 1 << 40 | 5
    assert frames.receipt((1 << 40) - 1, (1 << 12) - 1, (1 << 12) - 1) == (1 << 64) - 1
    # Attempts and epochs beyond 12 bits are told apart by their low bits; the offset is never touched.
    assert frames.receipt(5, 1 + (1 << 12), 2 + (1 << 12)) == frames.receipt(5, 1, 2)
    assert frames.offset_of(frames.receipt(5, 4_095, 4_095)) == 5


def every_error() -> list[PenstockError]:
    made = [
        InvalidArgument("wrong", hint="do it right"),
        InvalidPriority(10),
        errors.InvalidAckId("x"),
        errors.InvalidFilter("a =", 3, "no value"),
        errors.AlreadyExists("Topic", "orders"),
        errors.PermissionDenied("read", "topic x"),
        errors.RateLimited(0.5),
        errors.Unavailable("gone"),
        errors.ServerUnreachable("http://x", "refused"),
        errors.Unauthenticated("no token"),
        errors.FailedPrecondition("not now"),
        errors.BrokerClosed(),
    ]
    return made + [kind("orders") for kind in errors.NotFound.__subclasses__() if kind.__module__ == errors.__name__]


def test_an_error_arrives_as_it_was_raised(subtests: pytest.Subtests) -> None:
    for error in every_error():
        with subtests.test(error=type(error).__name__):
            for wire in (frames.refused(7, error), frames.ended(7, error)):
                answer: Any = frames.decode_answer(body_of(wire))
                told = frames.error_in(answer)
                assert (type(told), str(told), told.args, told.hint) == (type(error), str(error), error.args, error.hint)
                assert str(pickle.loads(pickle.dumps(told))) == str(error)


def test_an_error_with_something_that_the_wire_cannot_carry_still_arrives(subtests: pytest.Subtests) -> None:
    rows: list[object] = [2**70, object(), "half \ud800", float, {1, 2}]
    for field in rows:
        with subtests.test(field=type(field).__name__):
            answer = frames.decode_answer(body_of(frames.refused(7, InvalidPriority(field))))
            assert isinstance(answer, Refused)
            assert (answer.call, answer.reason) == (7, "invalid_priority")
            assert answer.text.startswith("Invalid priority")
            assert isinstance(frames.error_in(answer), PenstockError)


def test_what_the_wire_has_no_form_for_is_refused_where_it_is_sent(subtests: pytest.Subtests) -> None:
    rows: list[object] = [2**70, object(), "half \ud800", {"half \ud800": 1}]
    for value in rows:
        with subtests.test(value=type(value).__name__), pytest.raises(InvalidArgument, match="this cannot be sent"):
            frames.framed([1, 2, value])


def test_an_error_of_a_newer_server_keeps_its_text() -> None:
    told = frames.error_in(Refused(1, "quota_of_tomorrow", ["x", 1], "wait", "too much today"))
    assert (type(told), str(told), told.hint) == (PenstockError, "too much today", "wait")


def test_an_error_whose_fields_are_others_keeps_its_text() -> None:
    told = frames.error_in(Refused(1, TopicNotFound.reason, [1, 2, 3], None, "Topic not found: orders"))
    assert str(told) == "Topic not found: orders"


def test_the_call_of_what_cannot_be_read(subtests: pytest.Subtests) -> None:
    rows: list[tuple[bytes, int]] = [
        (msgspec.msgpack.encode([99, 7, "x"]), 7),
        (msgspec.msgpack.encode([1, 7]), 7),
        (msgspec.msgpack.encode([1]), 0),
        (msgspec.msgpack.encode([6, 7, "x"]), 0),
        (msgspec.msgpack.encode([7, 7, "x"]), 0),
    ]
    for body, call in rows:
        with subtests.test(body=body, call=call):
            assert frames.call_in(body) == call


def test_what_is_no_frame_has_no_call(subtests: pytest.Subtests) -> None:
    rows: list[bytes] = [b"", b"\xc1", b"\x90", b"\x81\x01\x02", b"\x92\xa1x\x01", b"\x92\x01", b"\x91" * 10_000]
    for body in rows:
        with subtests.test(body=body), pytest.raises(InvalidArgument):
            frames.call_in(body)


def test_fields_that_a_later_version_adds_are_ignored() -> None:
    assert frames.decode_request(msgspec.msgpack.encode([8, 7, "new", {"x": 1}])) == Ping(7)
    assert frames.decode_answer(msgspec.msgpack.encode([0, 7, None, "new"])) == Done(7)


def test_an_inbox_refuses_a_frame_beyond_its_limit_by_its_header_alone() -> None:
    inbox = Inbox(10)
    assert list(inbox.feed((10).to_bytes(4, "little") + b"x" * 10)) == [b"x" * 10]
    with pytest.raises(InvalidArgument, match="a frame of 11 bytes is more than 10"):
        list(inbox.feed((11).to_bytes(4, "little")))


def test_a_payload_that_messagepack_has_no_form_for_travels_as_json_text() -> None:
    deep: list[Any] = []
    for _ in range(150):
        deep = [deep]
    messages = [NewMessage([1 << 64, deep]), NewMessage(bytearray(b"bytes")), NewMessage("text"), NewMessage(None)]

    read = frames.decode_request(frames.encode(Enqueue(1, "q", messages)))

    assert isinstance(read, Enqueue)
    assert read.messages == messages


def test_an_extension_that_is_no_json_cannot_be_read(subtests: pytest.Subtests) -> None:
    for text in (b"", b"{", b"\xff", b"1" * 10_000, b"[" * 100_000):
        frame = msgspec.msgpack.encode([3, 1, "q", [[msgspec.msgpack.Ext(frames.JSON_TEXT, text)]]])
        with subtests.test(text=text[:20]), pytest.raises(frames.UNREADABLE):
            frames.decode_request(frame)
