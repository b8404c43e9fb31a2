"""RESP3 and SynapRPC without sockets: however the bytes are cut, the calls are the same, and nothing is kept for too much."""

from itertools import pairwise

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.queue_api.binary_commands import OK
from penstock.queue_api.resp3 import Resp3Codec
from penstock.queue_api.socket_server import HTTP_METHODS, Call, Codec, FramingError, HttpReceived, Refused
from penstock.queue_api.synap_rpc import RpcCodec

LIMIT = 1000


def taken(codec: Codec, data: bytes, cuts: list[int]) -> list[Call | Refused]:
    calls: list[Call | Refused] = []
    places = sorted({0, *(cut % (len(data) + 1) for cut in cuts), len(data)})
    for start, stop in pairwise(places):
        codec.feed(data[start:stop])
        while (call := codec.take()) is not None:
            calls.append(call)
    return calls


def resp(words: list[bytes]) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def frame(body: object) -> bytes:
    data = msgspec.msgpack.encode(body)
    return len(data).to_bytes(4, "little") + data


@given(
    requests=st.lists(st.lists(st.binary(max_size=20), min_size=1, max_size=5), max_size=5), cuts=st.lists(st.integers(0, 1000))
)
def test_resp_calls_do_not_depend_on_how_they_are_cut(requests: list[list[bytes]], cuts: list[int]) -> None:
    calls = taken(Resp3Codec(LIMIT), b"".join(map(resp, requests)), cuts)
    assert [call.args for call in calls if isinstance(call, Call)] == [request[1:] for request in requests]


@given(payloads=st.lists(st.binary(max_size=50), max_size=5), cuts=st.lists(st.integers(0, 1000)))
def test_rpc_calls_do_not_depend_on_how_they_are_cut(payloads: list[bytes], cuts: list[int]) -> None:
    data = b"".join(frame([index, "QPUBLISH", [{"Bytes": payload}]]) for index, payload in enumerate(payloads))
    calls = taken(RpcCodec(LIMIT), data, cuts)
    assert [(call.call_id, call.args) for call in calls if isinstance(call, Call)] == [
        (index, [payload]) for index, payload in enumerate(payloads)
    ]


@given(data=st.binary(max_size=300), cuts=st.lists(st.integers(0, 300)))
@example(data=b"POST / HTTP/1.1\r\n", cuts=[])
def test_any_bytes_give_calls_or_lose_the_framing(data: bytes, cuts: list[int]) -> None:
    for codec in (Resp3Codec(LIMIT), RpcCodec(LIMIT)):
        try:
            taken(codec, data, cuts)
        except (FramingError, HttpReceived):
            continue
        assert codec.waiting() <= LIMIT + 4096


def test_the_limit_counts_the_whole_request() -> None:
    codec = Resp3Codec(LIMIT)
    codec.feed(b"*3\r\n" + b"$400\r\n" + b"x" * 400 + b"\r\n" + b"$400\r\n" + b"x" * 400 + b"\r\n$400\r\n")
    with pytest.raises(FramingError, match="a bulk string of 400 is more than"):
        codec.take()


def test_a_line_of_words_is_a_call_too() -> None:
    assert taken(Resp3Codec(LIMIT), b"\r\nping  hello\r\n*0\r\n*-1\r\n", []) == [Call(0, "PING", [b"hello"], 11)]


def test_http_is_known_by_its_first_bytes_however_they_are_cut(subtests: pytest.Subtests) -> None:
    for codec in (Resp3Codec(2**30), RpcCodec(2**30)):
        for method in HTTP_METHODS:
            with subtests.test(codec=codec.name, method=method), pytest.raises(HttpReceived):
                taken(type(codec)(2**30), method + b" / HTTP/1.1\r\n", [1, 2, 3])


def test_a_line_that_is_no_command_ends_the_connection(subtests: pytest.Subtests) -> None:
    for line in (b"Host: localhost", b"FLUSHALL", b"PUBLISH / HTTP/1.1", b"\x16\x03\x01\x02"):
        with subtests.test(line=line), pytest.raises(FramingError, match="not a command"):
            taken(Resp3Codec(LIMIT), line + b"\r\n", [])


VALUES = [
    (None, b"_\r\n", b"$-1\r\n"),
    (OK, b"+OK\r\n", b"+OK\r\n"),
    (True, b"#t\r\n", b":1\r\n"),
    (-7, b":-7\r\n", b":-7\r\n"),
    (10**30, b"$31\r\n1%b\r\n" % (b"0" * 30), b"$31\r\n1%b\r\n" % (b"0" * 30)),
    (1.5, b",1.5\r\n", b"$3\r\n1.5\r\n"),
    ("ü", b"$2\r\n\xc3\xbc\r\n", b"$2\r\n\xc3\xbc\r\n"),
    ({"a": [1, b"x"]}, b"%1\r\n$1\r\na\r\n*2\r\n:1\r\n$1\r\nx\r\n", b"*2\r\n$1\r\na\r\n*2\r\n:1\r\n$1\r\nx\r\n"),
]


def test_resp_values_in_both_versions(subtests: pytest.Subtests) -> None:
    for value, third, second in VALUES:
        with subtests.test(value=value, third=third):
            codec = Resp3Codec(LIMIT)
            assert codec.answer(0, value) == second
            codec.greet([b"3"])
            assert codec.answer(0, value) == third


def test_an_error_stays_on_one_line() -> None:
    assert Resp3Codec(LIMIT).refusal(0, "ERR a\r\nb") == b"-ERR a  b\r\n"


def test_rpc_values_are_tagged() -> None:
    answer = RpcCodec(LIMIT).answer(3, {"a": [None, True, 1, 1.5, b"x", 10**30]})
    tagged = [
        {"Str": "a"},
        {"Array": ["Null", {"Bool": True}, {"Int": 1}, {"Float": 1.5}, {"Bytes": b"x"}, {"Str": str(10**30)}]},
    ]
    assert msgspec.msgpack.decode(answer[4:]) == [3, {"Ok": {"Map": [tagged]}}]
