"""The router's HTTP client against every hostile target of `penstock.testing.hostile`, all of them at the same time.

Each call ends once, in one defined way; memory stays bounded; a healthy target is answered all the while; nothing is left open.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.router.core.outcome import Answer, Trouble
from penstock.testing.hostile import HOSTILE, gzip_bomb
from tests.integration.router.hostile_server import HostileServer
from tests.integration.router.hostile_storm import BODY_LIMIT, CALLS, LOOPS, End, Storm, weather

FINE = Answer(200, b"{}")
CUT = Answer(200, bytes(BODY_LIMIT))

# What a call may come to. More than one only where it depends on what arrives first.
ENDS: dict[str, End | set[End]] = {
    "never answers": Trouble.TIMEOUT,
    "accepts and says nothing": Trouble.TIMEOUT,
    "closes at once": Trouble.BROKEN,
    "resets at once": Trouble.BROKEN,
    "closes instead of answering": Trouble.BROKEN,
    "resets instead of answering": Trouble.BROKEN,
    "slow headers": Trouble.TIMEOUT,
    "slow body": Trouble.TIMEOUT,
    "drips for ever": Trouble.TIMEOUT,
    "drips headers for ever": Trouble.TIMEOUT,
    "stalls in the headers": Trouble.TIMEOUT,
    "stalls in the body": Trouble.TIMEOUT,
    "closes in the headers": Trouble.BROKEN,
    "closes in the body": Trouble.BROKEN,
    "closes in a chunk": Trouble.BROKEN,
    "closes between chunks": Trouble.BROKEN,
    "reset in the headers": Trouble.BROKEN,
    "reset in the body": Trouble.BROKEN,
    "endless chunked body": CUT,
    "endless small chunks": Answer(200, b" " * BODY_LIMIT),
    "endless body of a huge length": CUT,
    "endless body without a length": CUT,
    "endless headers": Trouble.BROKEN,
    "endless trailers": Trouble.BROKEN,
    "endless chunk extension": Trouble.BROKEN,
    "endless reason": Trouble.BROKEN,
    "endless empty lines": Trouble.BROKEN,
    "endless 100 Continue": Trouble.BROKEN,
    "one enormous header": Trouble.BROKEN,
    "100 MB": CUT,
    "gzip bomb": Answer(200, gzip_bomb()),  # as it came, never unpacked
    "redirect loop": Answer(302),
    "redirect to metadata": Answer(302),
    "switching protocols": Trouble.BROKEN,
    "length too short": FINE,
    "length too long": Trouble.BROKEN,
    "two lengths": Trouble.BROKEN,
    "two lengths in one line": Trouble.BROKEN,
    "negative length": Trouble.BROKEN,
    "length that is no number": Trouble.BROKEN,
    "length beyond any number": Trouble.BROKEN,
    "chunk of no size": Trouble.BROKEN,
    "chunk of a bad size": Trouble.BROKEN,
    "chunk of a negative size": Trouble.BROKEN,
    "chunk of a size beyond any number": Trouble.BROKEN,
    "chunk longer than its size": Trouble.BROKEN,
    "chunked and a length": Trouble.BROKEN,
    "unknown transfer coding": FINE,  # a body that ends with the connection, as RFC 9112 wants it
    "content without being allowed one": Answer(204),
    "bad status line": Trouble.BROKEN,
    "no status": Trouble.BROKEN,
    "status of letters": Trouble.BROKEN,
    "status 000": Trouble.BROKEN,
    "status 999": Answer(999, b"{}"),
    "status 2000": Trouble.BROKEN,
    "HTTP/0.9": Trouble.BROKEN,
    "HTTP/3.0": Trouble.BROKEN,
    "HTTP/2 to who speaks HTTP/1.1": Trouble.BROKEN,
    "garbage": Trouble.BROKEN,
    "garbage for ever": Trouble.BROKEN,
    "TLS where plain text is spoken": Trouble.BROKEN,
    "plain text where TLS is spoken": Trouble.BROKEN,
    "silence where TLS is spoken": Trouble.CONNECT_TIMEOUT,
    "certificate signed by itself": Trouble.BROKEN,
    "certificate that has run out": Trouble.BROKEN,
    "certificate of another host": Trouble.BROKEN,
    # It says one thing to each connection. Who keeps the connection waits for more in vain.
    "answers before it was asked": {FINE, Trouble.BROKEN, Trouble.TIMEOUT},
    "a second answer": FINE,
    # It comes when the next request is under way: nobody can tell it from that request's answer. It harms that target alone.
    "a second answer later": {FINE, Answer(404), Trouble.BROKEN},
    "answers and resets": FINE,
    "NUL in a header": Trouble.BROKEN,
    "header that is not ASCII": Trouble.BROKEN,
    "header without a colon": Trouble.BROKEN,
    "space before the colon": Trouble.BROKEN,
    "folded header": Trouble.BROKEN,
    "lines that end with CR alone": Trouble.BROKEN,
    "deeply nested JSON": Answer(200, b"[" * 60_000),
    "deeply nested answer": Answer(200, b'{"ack": ' + b"[" * 30_000 + b"]" * 30_000 + b"}"),
    "deeply nested where nobody looks": Answer(200, b'{"other": ' + b"[" * 30_000 + b"]" * 30_000 + b"}"),
    "huge delaySeconds": Answer(200, b'{"ack": false, "delaySeconds": 1' + b"0" * 400 + b"}"),
    "negative delaySeconds": Answer(200, b'{"ack": false, "delaySeconds": -5}'),
    "JSON that is not UTF-8": Answer(200, b'{"ack": false, "message": "\xff\xfe"}'),
    "huge Retry-After": Answer(429, b"", "9" * 5000),
    "Retry-After in the far future": Answer(429, b"", "Fri, 31 Dec 9999 23:59:59 GMT"),
    "Retry-After that is nonsense": Answer(429, b"", "-1e999 \xbd"),
}


@pytest.fixture(scope="module")
def server() -> Iterator[HostileServer]:
    with HostileServer("HTTP_1_1") as server:
        yield server


@pytest.fixture(scope="module", params=LOOPS, ids=["asyncio", "uvloop"])
def after_storm(request: pytest.FixtureRequest, server: HostileServer) -> Storm:
    return weather("HTTP_1_1", server, request.param)


def test_the_table_is_whole() -> None:
    assert ENDS.keys() == HOSTILE.keys()


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_target_ends_a_call_in_a_defined_way_and_once(after_storm: Storm, name: str) -> None:
    after_storm.check_ends(name, ENDS[name])


def test_no_redirect_is_followed(after_storm: Storm) -> None:
    for name in ("redirect loop", "redirect to metadata"):
        assert after_storm.after[name].requests - after_storm.before[name].requests == CALLS


def test_a_certificate_that_is_not_right_gets_no_request(after_storm: Storm) -> None:
    assert [after_storm.after[name].requests for name, one in HOSTILE.items() if one.tls is not None] == [0, 0, 0]


def test_memory_stays_bounded(after_storm: Storm) -> None:
    after_storm.check_memory()


def test_a_healthy_target_is_answered_all_the_while(after_storm: Storm) -> None:
    after_storm.check_healthy()


def test_nothing_is_left_open(after_storm: Storm) -> None:
    after_storm.check_closed()
