"""The router's HTTP client against the hostile targets of `penstock.testing`, all of one HTTP version at the same time.

Each call ends once, in one defined way; memory stays bounded; a healthy target is answered all the while; nothing is left open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import uvloop

from penstock.http.client.answer import Answer, FailureKind
from penstock.testing.hostile import HOSTILE, gzip_bomb
from tests.integration.router.hostile_http2 import HOSTILE_HTTP2
from tests.integration.router.hostile_storm import BODY_LIMIT, End, Storm, Storming, Version, weather

FINE = Answer(200, b"{}")
CUT = Answer(200, bytes(BODY_LIMIT))

# What a call may come to. More than one only where it depends on what arrives first.
ENDS: dict[str, End | set[End]] = {
    "never answers": FailureKind.TIMEOUT,
    "accepts and says nothing": FailureKind.TIMEOUT,
    "closes at once": FailureKind.BROKEN,
    "resets at once": FailureKind.BROKEN,
    "closes instead of answering": FailureKind.BROKEN,
    "resets instead of answering": FailureKind.BROKEN,
    "slow headers": FailureKind.TIMEOUT,
    "slow body": FailureKind.TIMEOUT,
    "drips for ever": FailureKind.TIMEOUT,
    "drips headers for ever": FailureKind.TIMEOUT,
    "stalls in the headers": FailureKind.TIMEOUT,
    "stalls in the body": FailureKind.TIMEOUT,
    "closes in the headers": FailureKind.BROKEN,
    "closes in the body": FailureKind.BROKEN,
    "closes in a chunk": FailureKind.BROKEN,
    "closes between chunks": FailureKind.BROKEN,
    "reset in the headers": FailureKind.BROKEN,
    "reset in the body": FailureKind.BROKEN,
    "endless chunked body": CUT,
    "endless small chunks": Answer(200, b" " * BODY_LIMIT),
    "endless body of a huge length": CUT,
    "endless body without a length": CUT,
    "endless headers": FailureKind.BROKEN,
    "endless trailers": FailureKind.BROKEN,
    "endless chunk extension": FailureKind.BROKEN,
    "endless reason": FailureKind.BROKEN,
    "endless empty lines": FailureKind.BROKEN,
    "endless 100 Continue": FailureKind.BROKEN,
    "one enormous header": FailureKind.BROKEN,
    "100 MB": CUT,
    "gzip bomb": Answer(200, gzip_bomb()),  # as it came, never unpacked
    "redirect loop": Answer(302),
    "redirect to metadata": Answer(302),
    "switching protocols": FailureKind.BROKEN,
    "length too short": FINE,
    "length too long": FailureKind.BROKEN,
    "two lengths": FailureKind.BROKEN,
    "two lengths in one line": FailureKind.BROKEN,
    "negative length": FailureKind.BROKEN,
    "length that is no number": FailureKind.BROKEN,
    "length beyond any number": FailureKind.BROKEN,
    "chunk of no size": FailureKind.BROKEN,
    "chunk of a bad size": FailureKind.BROKEN,
    "chunk of a negative size": FailureKind.BROKEN,
    "chunk of a size beyond any number": FailureKind.BROKEN,
    "chunk longer than its size": FailureKind.BROKEN,
    "chunked and a length": FailureKind.BROKEN,
    "unknown transfer coding": FINE,  # a body that ends with the connection, as RFC 9112 wants it
    "content without being allowed one": Answer(204),
    "bad status line": FailureKind.BROKEN,
    "no status": FailureKind.BROKEN,
    "status of letters": FailureKind.BROKEN,
    "status 000": FailureKind.BROKEN,
    "status 999": Answer(999, b"{}"),
    "status 2000": FailureKind.BROKEN,
    "HTTP/0.9": FailureKind.BROKEN,
    "HTTP/3.0": FailureKind.BROKEN,
    "HTTP/2 to who speaks HTTP/1.1": FailureKind.BROKEN,
    "garbage": FailureKind.BROKEN,
    "garbage for ever": FailureKind.BROKEN,
    "TLS where plain text is spoken": FailureKind.BROKEN,
    "plain text where TLS is spoken": FailureKind.BROKEN,
    "silence where TLS is spoken": FailureKind.CONNECT_TIMEOUT,
    "certificate signed by itself": FailureKind.BROKEN,
    "certificate that has run out": FailureKind.BROKEN,
    "certificate of another host": FailureKind.BROKEN,
    # It says one thing to each connection. Who keeps the connection waits for more in vain.
    "answers before it was asked": {FINE, FailureKind.BROKEN, FailureKind.TIMEOUT},
    "a second answer": FINE,
    # It comes when the next request is under way: nobody can tell it from that request's answer. It harms that target alone.
    "a second answer later": {FINE, Answer(404), FailureKind.BROKEN},
    "answers and resets": FINE,
    "NUL in a header": FailureKind.BROKEN,
    "header that is not ASCII": FailureKind.BROKEN,
    "header without a colon": FailureKind.BROKEN,
    "space before the colon": FailureKind.BROKEN,
    "folded header": FailureKind.BROKEN,
    "lines that end with CR alone": FailureKind.BROKEN,
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


ENDS_HTTP2: dict[str, End | set[End]] = {
    "HTTP/2: silence instead of settings": FailureKind.CONNECT_TIMEOUT,
    "HTTP/2: HTTP/1.1 where HTTP/2 was agreed on": FailureKind.CONNECT_TIMEOUT,  # as a frame it is a very long one, still to come
    "HTTP/2: garbage": FailureKind.CONNECT_TIMEOUT,
    "HTTP/2: takes no streams": FailureKind.TIMEOUT,
    "HTTP/2: takes no body": FailureKind.TIMEOUT,
    "HTTP/2: never answers": FailureKind.TIMEOUT,
    "HTTP/2: stalls in the headers": FailureKind.TIMEOUT,
    "HTTP/2: stalls in the body": FailureKind.TIMEOUT,
    "HTTP/2: stalls in a frame": FailureKind.TIMEOUT,
    "HTTP/2: endless body": Answer(200, bytes(BODY_LIMIT)),
    "HTTP/2: body of small frames": Answer(200, b" " * BODY_LIMIT),
}
"""What a call over HTTP/2 comes to; BROKEN where nothing is said."""

# One for each way through the client; what is only malformed is in test_transport and test_transport_http2 as well.
SOME = [
    "never answers",
    "closes at once",
    "resets instead of answering",
    "slow headers",
    "drips for ever",
    "endless small chunks",
    "endless headers",
    "endless 100 Continue",
    "100 MB",
    "gzip bomb",
    "redirect loop",
    "switching protocols",
    "two lengths",
    "garbage for ever",
    "TLS where plain text is spoken",
    "plain text where TLS is spoken",
    "silence where TLS is spoken",
    "certificate signed by itself",
    "certificate of another host",
    "answers before it was asked",
    "a second answer",
    "deeply nested answer",
    "huge Retry-After",
]
SOME_HTTP2 = [
    "HTTP/2: silence instead of settings",
    "HTTP/2: takes no streams",
    "HTTP/2: takes no body",
    "HTTP/2: never answers",
    "HTTP/2: refuses every stream",
    "HTTP/2: goes away from every call",
    "HTTP/2: no status",
    "HTTP/2: bomb of headers",
    "HTTP/2: a push",
    "HTTP/2: a frame too large",
    "HTTP/2: endless continuation",
    "HTTP/2: endless empty frames of a body",
    "HTTP/2: endless body",
    "HTTP/2: endless PING",
]


def test_the_table_is_whole() -> None:
    assert ENDS.keys() == HOSTILE.keys()
    assert ENDS_HTTP2.keys() <= HOSTILE_HTTP2.keys()


def test_some_hostile_targets(subtests: pytest.Subtests) -> None:
    first, second = weather({"HTTP_1_1": SOME, "HTTP_2": SOME_HTTP2}, uvloop.run, calls=1, timeout=4)
    check("HTTP_1_1", first, subtests)
    check("HTTP_2", second, subtests)


@pytest.mark.long
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_every_hostile_target(run: Callable[[Storming], list[Storm]], subtests: pytest.Subtests) -> None:
    # Two calls: what the first left behind must not harm the second. The time is for a busy machine.
    [storm] = weather({"HTTP_1_1": HOSTILE}, run, calls=2, timeout=10)
    check("HTTP_1_1", storm, subtests)
    [storm] = weather({"HTTP_2": HOSTILE_HTTP2}, run, calls=1, timeout=20)
    check("HTTP_2", storm, subtests)


def check(version: Version, storm: Storm, subtests: pytest.Subtests) -> None:
    for name, calls in storm.ends.items():
        with subtests.test(name):
            storm.check_ends(name, ENDS[name] if version == "HTTP_1_1" else ENDS_HTTP2.get(name, FailureKind.BROKEN))
            requests = storm.after[name].requests - storm.before[name].requests
            if "redirect" in name:
                assert requests == len(calls), "it is not followed"
            if "certificate" in name:
                assert requests == 0
    with subtests.test(f"memory stays bounded over {version}"):
        storm.check_memory()
    with subtests.test(f"a healthy target is answered all the while over {version}"):
        storm.check_healthy()
    with subtests.test(f"nothing is left open over {version}"):
        storm.check_closed()
