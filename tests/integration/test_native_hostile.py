"""The native port and what no honest client sends: each thing is refused or ends its own connection, and nothing else happens."""

import logging
import random
from collections.abc import Iterator

import pytest

from penstock.testing.server import LocalServer
from tests.integration.raw_native import (
    ADJUST,
    CALL,
    CLOSE,
    DELIVERED,
    DONE,
    ENQUEUE,
    HELLO,
    OPEN,
    PING,
    PUBLISH,
    REFUSED,
    SETTLE,
    RawClient,
    frame,
    framed,
    pack,
)
from tests.unit.api.test_operations import NAMES, arguments_of

SECRET = "s3cret-payload"
MIB = 1024 * 1024
LIMITS = [100, MIB, 30.0]
NAN, INF = float("nan"), float("inf")
CLOSED = "closed"
NESTED = b"\x91" * 100_000 + b"\xc0"
SURROGATE = b"\xa3\xed\xa0\x80"
"""A text of one lone surrogate, as no encoder of ours would write it."""

garbage = random.Random(4)

# What a stranger sends: before Hello, a connection is refused and closed whatever it says wrong.
STRANGERS: dict[str, bytes] = {
    "garbage": garbage.randbytes(64),
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a tls hello": bytes.fromhex("16030100c8010000c40303") + bytes(190),
    "a huge length": b"\xff\xff\xff\xff",
    "more than a stranger may send": framed(pack([HELLO, 1, 1, "x" * 5_000])),
    "an empty frame": framed(b""),
    "no array": framed(pack(7)),
    "a map": framed(pack({"call": 1})),
    "an empty array": framed(pack([])),
    "a text in front": frame("hello", 1, 1),
    "trailing bytes": framed(pack([HELLO, 1, 1]) + b"\x00"),
    "an unknown kind": frame(99, 1),
    "a negative kind": frame(-1, 1),
    "a ping": frame(PING, 1),
    "a call": frame(CALL, 1, "info", {}),
    "a publish": frame(PUBLISH, 1, "topic", [[b"x"]]),
    "an open": frame(OPEN, 1, 1, 0, "sub", "me", LIMITS),
    "a settle": frame(SETTLE, 1, 1, [1]),
    "a close": frame(CLOSE, 1),
    "version 0": frame(HELLO, 1, 0),
    "version 2": frame(HELLO, 1, 2),
    "a version of text": frame(HELLO, 1, "1"),
    "a version of half": frame(HELLO, 1, 1.5),
    "no version": frame(HELLO, 1),
    "a call of text": frame(HELLO, "1", 1),
    "a token of bytes": frame(HELLO, 1, 1, b"token"),
    "a token of a number": frame(HELLO, 1, 1, 5),
    "a project with a slash": frame(HELLO, 1, 1, None, "a/b"),
    "a project with a control character": frame(HELLO, 1, 1, None, "a\0b"),
    "a project of a space": frame(HELLO, 1, 1, None, " "),
    "a project too long": frame(HELLO, 1, 1, None, "p" * 300),
    "half a character": framed(b"\x93\x00\x01" + SURROGATE),
    "deep nesting": framed(b"\x93\x00\x01" + b"\x91" * 4_000 + b"\xc0"),
}

# What somebody who was greeted sends, and the reason of the refusal; the connection goes on.
REFUSALS: dict[str, tuple[bytes, str]] = {
    "hello again": (frame(HELLO, 5, 1), "failed_precondition"),
    "an unknown kind": (frame(99, 5, "x"), "invalid_argument"),
    "a kind that only servers send": (frame(10, 5, []), "invalid_argument"),
    "a call of half": (frame(PING, 1.5), CLOSED),
    "a call of nothing": (frame(PING, None), CLOSED),
    "a call of 65 bits": (framed(b"\x92\x08\xcf" + b"\xff" * 9), CLOSED),
    "garbage": (framed(garbage.randbytes(100)), CLOSED),
    "an empty frame": (framed(b""), CLOSED),
    "no array": (framed(pack("ping")), CLOSED),
    "a huge length": (b"\xff\xff\xff\xff", CLOSED),
    "a frame one byte beyond the limit": ((16 * MIB + 1).to_bytes(4, "little"), CLOSED),
    # operations
    "an unknown operation": (frame(CALL, 5, "explode", {}), "unimplemented"),
    "an empty operation": (frame(CALL, 5, "", {}), "unimplemented"),
    "an operation of a number": (frame(CALL, 5, 7, {}), "invalid_argument"),
    "a private method": (frame(CALL, 5, "_change", {}), "unimplemented"),
    "the initialiser": (frame(CALL, 5, "__init__", {}), "unimplemented"),
    "a class attribute": (frame(CALL, 5, "__class__", {}), "unimplemented"),
    "a dotted name": (frame(CALL, 5, "info.__globals__", {}), "unimplemented"),
    "open": (frame(CALL, 5, "open", {}), "unimplemented"),
    "open_queue": (frame(CALL, 5, "open_queue", {}), "unimplemented"),
    "the inner way to a topic with a schema": (frame(CALL, 5, "_create_topic_with_schema", {}), "unimplemented"),
    "an operation of a megabyte": (frame(CALL, 5, "x" * MIB, {}), "unimplemented"),
    "no arguments": (frame(CALL, 5, "info"), "invalid_argument"),
    "arguments in a list": (frame(CALL, 5, "info", []), "invalid_argument"),
    "arguments of text": (frame(CALL, 5, "get_topic", SECRET), "invalid_argument"),
    "an argument missing": (frame(CALL, 5, "get_topic", {}), "invalid_argument"),
    "an argument too many": (frame(CALL, 5, "get_topic", {"topic": "topic", "x": SECRET}), "invalid_argument"),
    "an argument of self": (frame(CALL, 5, "get_topic", {"topic": "topic", "self": 1}), "invalid_argument"),
    "an argument of another type": (frame(CALL, 5, "get_topic", {"topic": 7}), "invalid_argument"),
    "an argument of nothing": (frame(CALL, 5, "get_topic", {"topic": None}), "invalid_argument"),
    "a key that is no text": (frame(CALL, 5, "get_topic", {1: "topic"}), "invalid_argument"),
    "arguments nested deep": (framed(b"\x94\x01\x05" + pack("get_topic") + NESTED), CLOSED),
    "half a character": (framed(b"\x94\x01\x05" + pack("get_topic") + b"\x81" + pack("topic") + SURROGATE), "invalid_argument"),
    # names
    "no name": (frame(CALL, 5, "get_topic", {"topic": ""}), "invalid_argument"),
    "a name with a slash": (frame(CALL, 5, "create_topic", {"topic": "other/topic"}), "invalid_argument"),
    "a name that climbs": (frame(CALL, 5, "create_topic", {"topic": "../topic"}), "invalid_argument"),
    "a name with a control character": (frame(CALL, 5, "create_topic", {"topic": "to\0pic"}), "invalid_argument"),
    "a name with a line break": (frame(CALL, 5, "create_topic", {"topic": "to\npic"}), "invalid_argument"),
    "a name too long": (frame(CALL, 5, "create_topic", {"topic": "t" * 2_000}), "invalid_argument"),
    "a full name of another kind": (frame(CALL, 5, "get_topic", {"topic": "projects/p/queues/q"}), "invalid_argument"),
    "a full name without a project": (frame(CALL, 5, "get_topic", {"topic": "projects//topics/q"}), "invalid_argument"),
    "a full name of a wild project": (frame(CALL, 5, "create_topic", {"topic": "projects/\x07/topics/t"}), "invalid_argument"),
    "a full name of a project of a space": (frame(CALL, 5, "create_topic", {"topic": "projects/ /topics/t"}), "invalid_argument"),
    "a topic of another project": (frame(CALL, 5, "get_topic", {"topic": "projects/other/topics/topic"}), "topic_not_found"),
    # numbers
    "pull 0": (frame(CALL, 5, "pull", {"subscription": "sub", "max_messages": 0}), "invalid_argument"),
    "pull a negative number": (frame(CALL, 5, "pull", {"subscription": "sub", "max_messages": -1}), "invalid_argument"),
    "pull half a message": (frame(CALL, 5, "pull", {"subscription": "sub", "max_messages": 1.5}), "invalid_argument"),
    "wait for not a number": (frame(CALL, 5, "pull", {"subscription": "sub", "wait": NAN}), "invalid_argument"),
    "wait for ever": (frame(CALL, 5, "pull", {"subscription": "sub", "wait": INF}), "invalid_argument"),
    "wait for a year": (frame(CALL, 5, "pull", {"subscription": "sub", "wait": 1e7}), "invalid_argument"),
    "wait for less than nothing": (frame(CALL, 5, "pull", {"subscription": "sub", "wait": -1}), "invalid_argument"),
    "a retention of not a number": (frame(CALL, 5, "create_topic", {"topic": "t2", "retention": NAN}), "invalid_argument"),
    "seek to nowhere": (frame(CALL, 5, "seek", {"subscription": "sub"}), "invalid_argument"),
    "seek to a time without a zone": (
        frame(CALL, 5, "seek", {"subscription": "sub", "time": "2026-01-01T00:00:00"}),
        "invalid_argument",
    ),
    "seek below zero": (frame(CALL, 5, "seek", {"subscription": "sub", "offset": -1}), "invalid_argument"),
    "trace of a number": (frame(CALL, 5, "trace", {"message_id": 7}), "invalid_argument"),
    "a count of 64 bits": (
        frame(CALL, 5, "pull", {"subscription": "sub", "max_messages": 2**64 - 1}),
        "invalid_argument",
    ),
    "options beyond their bounds": (
        frame(CALL, 5, "create_subscription", {"subscription": "s2", "topic": "topic", "options": {"ack_deadline_seconds": 1}}),
        "invalid_argument",
    ),
    "options of not a number": (
        frame(CALL, 5, "create_subscription", {"subscription": "s2", "topic": "topic", "options": {"ack_deadline_seconds": NAN}}),
        "invalid_argument",
    ),
    # publishing
    "publish nothing": (frame(PUBLISH, 5, "topic", []), "invalid_argument"),
    "publish nothing at all": (frame(PUBLISH, 5, "topic"), "invalid_argument"),
    "publish an empty message": (frame(PUBLISH, 5, "topic", [[]]), "invalid_argument"),
    "publish a text": (frame(PUBLISH, 5, "topic", SECRET), "invalid_argument"),
    "publish texts": (frame(PUBLISH, 5, "topic", [[SECRET]]), "invalid_argument"),
    "publish a map": (frame(PUBLISH, 5, "topic", [{"data": b"x"}]), "invalid_argument"),
    "publish 11 MiB": (frame(PUBLISH, 5, "topic", [[b"x" * (11 * MIB)]]), "invalid_argument"),
    "publish too many": (
        framed(b"\x94\x02\x05" + pack("topic") + b"\xdd\x00\x10\x00\x00" + b"\x90" * 0x100000),
        "invalid_argument",
    ),
    "publish a bad one among good": (frame(PUBLISH, 5, "topic", [[b"x"], [b""], [b"x"]]), "invalid_argument"),
    "an attribute that is no text": (frame(PUBLISH, 5, "topic", [[b"x", {"a": 1}]]), "invalid_argument"),
    "a priority of 10": (frame(PUBLISH, 5, "topic", [[b"x", {}, "", 10]]), "invalid_priority"),
    "a priority of 2^64 - 1": (frame(PUBLISH, 5, "topic", [[b"x", {}, "", 2**64 - 1]]), "invalid_priority"),
    "a life of not a number": (frame(PUBLISH, 5, "topic", [[b"x", {}, "", 4, NAN]]), "invalid_argument"),
    "a life of a map": (frame(PUBLISH, 5, "topic", [[b"x", {}, "", 4, {"a": SECRET}]]), "invalid_argument"),
    "a life of something unknown": (
        framed(b"\x94\x02\x05" + pack("topic") + b"\x91\x95" + pack(b"x") + b"\x80\xa0\x04\xd4\x2a\x00"),
        "invalid_argument",
    ),
    "an origin of one": (frame(PUBLISH, 5, "topic", [[b"x"]], ["me"]), "invalid_argument"),
    "an origin without a name": (frame(PUBLISH, 5, "topic", [[b"x"]], ["", 1]), "invalid_argument"),
    "an origin below zero": (frame(PUBLISH, 5, "topic", [[b"x"]], ["me", -1]), "invalid_argument"),
    "publish to nothing": (frame(PUBLISH, 5, "nowhere", [[b"x"]]), "topic_not_found"),
    "publish to a queue as a topic": (frame(PUBLISH, 5, "work", [[b"x"]]), "topic_not_found"),
    "enqueue nothing": (frame(ENQUEUE, 5, "work", []), "invalid_argument"),
    "enqueue to nothing": (frame(ENQUEUE, 5, "nowhere", [["x"]]), "queue_not_found"),
    "enqueue without a payload": (frame(ENQUEUE, 5, "work", [[]]), "invalid_argument"),
    "enqueue something unknown": (framed(b"\x94\x03\x05" + pack("work") + b"\x91\x91\xd4\x2a\x00"), "invalid_argument"),
    "enqueue with a delay of not a number": (frame(ENQUEUE, 5, "work", [["x", 4, None, None, 3, NAN]]), "invalid_argument"),
    # streams
    "open a third kind": (frame(OPEN, 5, 1, 2, "sub", "me", LIMITS), "invalid_argument"),
    "open a negative kind": (frame(OPEN, 5, 1, -1, "sub", "me", LIMITS), "invalid_argument"),
    "open nothing": (frame(OPEN, 5, 1, 0, "nowhere", "me", LIMITS), "subscription_not_found"),
    "open a queue as a subscription": (frame(OPEN, 5, 1, 0, "work", "me", LIMITS), "subscription_not_found"),
    "open a subscription as a queue": (frame(OPEN, 5, 1, 1, "sub", "me", LIMITS), "queue_not_found"),
    "open without a consumer": (frame(OPEN, 5, 1, 0, "sub", "", LIMITS), "invalid_argument"),
    "open with a wild consumer": (frame(OPEN, 5, 1, 0, "sub", "m\0e", LIMITS), "invalid_argument"),
    "open with a long consumer": (frame(OPEN, 5, 1, 0, "sub", "m" * 5_000, LIMITS), "invalid_argument"),
    "open without limits": (frame(OPEN, 5, 1, 0, "sub", "me"), "invalid_argument"),
    "open with limits of text": (frame(OPEN, 5, 1, 0, "sub", "me", "all"), "invalid_argument"),
    "open for 0 messages": (frame(OPEN, 5, 1, 0, "sub", "me", [0, MIB, 30.0]), "invalid_argument"),
    "open for -1 messages": (frame(OPEN, 5, 1, 0, "sub", "me", [-1, MIB, 30.0]), "invalid_argument"),
    "open for 2^64 - 1 messages": (frame(OPEN, 5, 1, 0, "sub", "me", [2**64 - 1, MIB, 30.0]), "invalid_argument"),
    "open for half a message": (frame(OPEN, 5, 1, 0, "sub", "me", [1.5, MIB, 30.0]), "invalid_argument"),
    "open for 0 bytes": (frame(OPEN, 5, 1, 0, "sub", "me", [1, 0, 30.0]), "invalid_argument"),
    "open for -1 bytes": (frame(OPEN, 5, 1, 0, "sub", "me", [1, -1, 30.0]), "invalid_argument"),
    "open for no time": (frame(OPEN, 5, 1, 0, "sub", "me", [1, MIB, 0]), "invalid_argument"),
    "open for less than no time": (frame(OPEN, 5, 1, 0, "sub", "me", [1, MIB, -1.0]), "invalid_argument"),
    "open for not a number": (frame(OPEN, 5, 1, 0, "sub", "me", [1, MIB, NAN]), "invalid_argument"),
    "open for ever": (frame(OPEN, 5, 1, 0, "sub", "me", [1, MIB, INF]), "invalid_argument"),
    "open for a time of text": (frame(OPEN, 5, 1, 0, "sub", "me", [1, MIB, "30"]), "invalid_argument"),
    "open with a flag of a number": (frame(OPEN, 5, 1, 0, "sub", "me", [1, MIB, 30.0, 1]), "invalid_argument"),
    "open with receipts of text": (frame(OPEN, 5, 1, 0, "sub", "me", LIMITS, ["1"]), "invalid_argument"),
    "open with a stream of text": (frame(OPEN, 5, "1", 0, "sub", "me", LIMITS), "invalid_argument"),
    "settle receipts of text": (frame(SETTLE, 5, 1, ["1"]), "invalid_argument"),
    "settle receipts of half": (frame(SETTLE, 5, 1, [1.5]), "invalid_argument"),
    "settle a map": (frame(SETTLE, 5, 1, {"1": 1}), "invalid_argument"),
    "nack without a receipt": (frame(SETTLE, 5, 1, [], [[]]), "invalid_argument"),
    "nack with a flag of text": (frame(SETTLE, 5, 1, [], [[1, "yes"]]), "invalid_argument"),
    "deadlines without seconds": (frame(SETTLE, 5, 1, [], [], [[[1]]]), "invalid_argument"),
    "more verdicts than may be": (
        framed(b"\x95\x05\x05\x01\x90\xdd\x00\x10\x00\x00" + b"\x91\x01" * 0x100000),
        "invalid_argument",
    ),
    "adjust with limits of text": (frame(ADJUST, 1, "all"), "invalid_argument"),
    "close with a flag of text": (frame(CLOSE, 1, "keep"), "invalid_argument"),
}

# What is odd, and right: it has an answer like any other.
ANSWERS: dict[str, tuple[bytes, list[object]]] = {
    "a ping of 2^64 - 1": (frame(PING, 2**64 - 1), [DONE, 2**64 - 1, None]),
    "a ping of -2^63": (frame(PING, -(2**63)), [DONE, -(2**63), None]),
    "a ping with more than this version knows": (frame(PING, 5, "later", {"version": 2}), [DONE, 5, None]),
    "settle an unknown stream": (frame(SETTLE, 5, 77, [1, -2], [[3]], [[[4], 1.0]]), [DONE, 5, [[1, -2, 3, 4]]]),
    "settle nothing": (frame(SETTLE, 5, 77), [DONE, 5, [[]]]),
    "an operation in full": (frame(CALL, 5, "list_queues", {}), [DONE, 5, ["work"]]),
}


WEIRD: list[object] = [
    *(None, True, -1, 0, 2**63, 2**64 - 1, NAN, INF, -0.5, 1e300),
    *("", "\0", "a/b", "projects/p/topics/t", "x" * 100_000, "0" * 30, "9999-12-31T23:59:59Z", "0001-01-01T00:00:00Z"),
    *(b"", b"\xff" * 10, [], [None], ["x"] * 1_000, [[]], {}, {"a": 1}, {"": []}),
]
"""What may stand in for any argument."""


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    with LocalServer() as server, RawClient(server.server.native_port or 0) as client:
        client.greet()
        client.call("create_topic", topic="quiet")  # nobody listens: what is left there is in nobody's way
        client.call("create_topic", topic="topic")
        client.call("create_subscription", subscription="sub", topic="topic", options={})
        client.call("create_queue", queue="work", config={})
        yield server


@pytest.fixture
def port(server: LocalServer, caplog: pytest.LogCaptureFixture) -> Iterator[int]:
    """The port of a server; at the end of the test somebody else is still served, and nothing was logged that should not be."""
    number = server.server.native_port or 0
    with RawClient(number) as other, caplog.at_level(logging.INFO):
        assert other.greet()[0] == DONE
        yield number
        assert other.is_answered()
    shown = [record for record in caplog.records if record.levelno >= logging.WARNING or SECRET in record.getMessage()]
    assert shown == []


def test_a_stranger_who_says_something_wrong_is_refused_and_closed(port: int, subtests: pytest.Subtests) -> None:
    for name, sent in STRANGERS.items():
        with subtests.test(name=name), RawClient(port) as client:
            client.socket.sendall(sent)
            answer = client.read()
            assert answer is not None
            assert answer[0] == REFUSED
            assert answer[5], "an error says what was wrong"
            assert client.read() is None


def test_what_is_wrong_is_refused_and_the_connection_goes_on_where_it_can(port: int, subtests: pytest.Subtests) -> None:
    for name, (sent, reason) in REFUSALS.items():
        with subtests.test(name=name), RawClient(port) as client:
            client.greet()
            client.socket.sendall(sent)
            kind, call, told, *_, text = client.read()
            if reason == CLOSED:
                assert (kind, call, told) == (REFUSED, 0, "invalid_argument")
                assert client.read() is None
            else:
                assert (kind, call, told) == (REFUSED, 5 if sent[5] not in {ADJUST, CLOSE} else 0, reason)
                assert client.is_answered()
            assert text
            assert SECRET not in text or "expected" in text


def test_what_is_odd_and_right_is_answered(port: int, subtests: pytest.Subtests) -> None:
    for name, (sent, answer) in ANSWERS.items():
        with subtests.test(name=name), RawClient(port) as client:
            client.greet()
            client.socket.sendall(sent)
            assert client.read() == answer


def test_frames_may_arrive_byte_by_byte_and_all_at_once(port: int) -> None:
    with RawClient(port) as client:
        for byte in frame(HELLO, 1, 1):
            client.socket.sendall(bytes([byte]))
        assert client.read()[0] == DONE
        client.socket.sendall(b"".join(frame(PING, call) for call in range(5_000)))
        assert [client.read()[1] for _ in range(5_000)] == list(range(5_000))


def test_a_client_that_leaves_in_the_middle_of_a_frame_is_forgotten(port: int) -> None:
    for part in (b"\x05", b"\x05\x00\x00\x00", frame(HELLO, 1, 1)[:-1]):
        with RawClient(port) as client:
            client.socket.sendall(part)


def test_a_frame_just_at_the_limit_is_read(port: int) -> None:
    head = pack([CALL, 5, "x"])[:-1].replace(b"\x93", b"\x94")
    with RawClient(port) as client:
        client.greet()
        empty = len(head) + 1 + len(pack({"a": b""})) + 3  # a text or bytes of this size has 3 more bytes of length
        body = head + b"x" + pack({"a": b"\0" * (16 * MIB - empty)})
        assert len(body) == 16 * MIB
        client.socket.sendall(framed(body))
        assert client.read()[:3] == [REFUSED, 5, "unimplemented"]


def opened(client: RawClient, number: int = 1, consumer: str = "me", **more: object) -> None:
    client.greet()
    kind, _, _ = client.ask(OPEN, 3, number, 0, "sub", consumer, LIMITS, *more.values())
    assert kind == DONE


def drained(client: RawClient, want: int) -> list[list[int]]:
    """(offset, attempt, epoch) of so many deliveries."""
    found: list[list[int]] = []
    while len(found) < want:
        found += [delivery[:3] for delivery in client.read_until(DELIVERED)[2]]
    return found


def receipt(offset: int, attempt: int, epoch: int) -> int:
    return (epoch << 12 | attempt) << 40 | offset


def test_a_settle_that_is_wrong_in_one_place_settles_nothing(port: int) -> None:
    wrongs: list[tuple[object, object]] = [
        ([[0, True, None, NAN]], []),
        ([[0, True, None, -1.0]], []),
        ([[0, True, None, 1e12]], []),
        ([], [[[0], NAN]]),
        ([], [[[0], -1.0]]),
        ([], [[[0], INF]]),
        ([], [[[0], 1e9]]),
    ]
    with RawClient(port) as client:
        opened(client)
        client.ask(PUBLISH, 4, "topic", [[b"a"], [b"b"]])
        first, second = (receipt(*one) for one in drained(client, 2))
        for nacks, deadlines in wrongs:
            answer = client.ask(SETTLE, 5, 1, [first, second], nacks, deadlines)
            assert answer[:3] == [REFUSED, 5, "invalid_argument"]
        assert client.ask(SETTLE, 6, 1, [first, second]) == [DONE, 6, [[]]]
        assert client.ask(SETTLE, 7, 1, [first], [[second]]) == [DONE, 7, [[first, second]]]


def test_receipts_that_stand_for_nothing_are_told_and_harm_nothing(port: int) -> None:
    with RawClient(port) as client:
        opened(client)
        client.ask(PUBLISH, 4, "topic", [[b"a"]])
        [live] = (receipt(*one) for one in drained(client, 1))
        wrong = [0, -1, 2**63, 2**64 - 1, -(2**63), live + 1, live + (1 << 40), live + (1 << 52)]
        assert client.ask(SETTLE, 5, 1, wrong) == [DONE, 5, [wrong]]
        assert client.ask(SETTLE, 5, 1, [live, live]) == [DONE, 5, [[live]]]


def test_a_stream_number_is_used_once_at_a_time(port: int) -> None:
    with RawClient(port) as client:
        opened(client, 2**64 - 1)
        assert client.ask(OPEN, 5, 2**64 - 1, 0, "sub", "me", LIMITS)[:3] == [REFUSED, 5, "already_exists"]
        assert client.ask(CLOSE, 2**64 - 1) == [3, 2**64 - 1, None, [], None, ""]
        assert client.ask(OPEN, 5, 2**64 - 1, 0, "sub", "me", LIMITS)[0] == DONE


def test_limits_that_are_wrong_leave_those_of_before(port: int) -> None:
    with RawClient(port) as client:
        opened(client, consumer="adjusted")
        for wrong in ([0, 1, 1.0], [1, 0, 1.0], [1, 1, NAN], [1, 1, 0.0]):
            assert client.ask(ADJUST, 1, wrong)[:3] == [REFUSED, 0, "invalid_argument"]
        client.send(PUBLISH, 4, "topic", [[b"x" * 100]] * 3)
        receipts = [receipt(*one) for one in drained(client, 3)]
        client.send(SETTLE, 9, 1, receipts)
        assert client.read_until(DONE)


def test_thousands_of_streams_are_refused_beyond_the_limit(port: int) -> None:
    with RawClient(port) as client:
        client.greet()
        client.socket.sendall(b"".join(frame(OPEN, 5, number, 0, "sub", "me", LIMITS) for number in range(1_500)))
        answers = [client.read() for _ in range(1_500)]
        assert [answer[0] for answer in answers].count(DONE) == 1_000
        assert {answer[2] for answer in answers if answer[0] == REFUSED} == {"resource_exhausted"}
        assert client.is_answered()


def test_a_hundred_connections_that_say_nothing_and_a_hundred_that_leave_harm_nobody(port: int) -> None:
    silent = [RawClient(port) for _ in range(100)]
    for _ in range(100):
        with RawClient(port) as client:
            client.socket.sendall(b"\0")
    with RawClient(port) as client:
        assert client.greet()[0] == DONE
    for one in silent:
        one.socket.close()


def test_no_argument_makes_an_operation_fail_inside(caplog: pytest.LogCaptureFixture, subtests: pytest.Subtests) -> None:
    with LocalServer() as server, RawClient(server.server.native_port or 0) as client:
        client.greet()
        for name in NAMES:
            good = arguments_of(name)
            if "wait" in good:
                good["wait"] = 0
            client.call("create_topic", topic="some-name")
            client.call("create_subscription", subscription="some-name", topic="some-name", options={})
            client.call("create_snapshot", snapshot="some-name", subscription="some-name")
            client.call("create_queue", queue="some-name", config={})
            client.call("create_schema", schema="some-name", kind="AVRO", definition='"string"')
            with subtests.test(name=name):
                for argument in good:
                    for value in WEIRD:
                        kind, _, *rest = client.call(name, **{**good, argument: value})
                        assert kind == DONE or (rest[0] != "unknown" and rest[-1]), (argument, value, rest)
                assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


FIELDS: dict[str, tuple[int, list[object], list[object]]] = {
    "publish": (PUBLISH, ["quiet"], [b"x", {}, "", 5, None, None, None, None]),
    "enqueue": (ENQUEUE, ["work"], ["x", 5, None, None, None, None, None, None, None]),
    "nack": (SETTLE, [1, []], [1, True, None, None, False]),
    "limits": (OPEN, [9, 0, "sub", "weird"], [10, MIB, 30.0, False, True]),
}


def test_no_field_makes_a_frame_fail_inside(port: int, subtests: pytest.Subtests) -> None:
    for name, (kind, before, fields) in FIELDS.items():
        with subtests.test(name=name), RawClient(port) as client:
            opened(client, consumer="weird")
            client.send(ADJUST, 1, [10, MIB, 30.0, False, True])
            for place in range(len(fields)):
                for value in WEIRD:
                    changed = [*fields[:place], value, *fields[place + 1 :]]
                    given = changed if name == "limits" else [changed]
                    answer = client.ask(kind, 5, *before, given)
                    assert answer[0] == DONE or (answer[2] != "unknown" and answer[-1]), (place, value, answer)
                    if name == "limits" and answer[0] == DONE:
                        client.ask(CLOSE, 9)
            assert client.is_answered()
