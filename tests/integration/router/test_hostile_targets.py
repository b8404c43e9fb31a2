"""The router's HTTP client against every hostile target of `penstock.testing.hostile`, all of them at the same time.

Each call ends once, in one defined way; memory stays bounded; a healthy target is answered all the while; nothing is left open.
"""

from __future__ import annotations

import asyncio
import gc
import ssl
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import uvloop

from penstock.clock import monotonic
from penstock.durations import SECOND
from penstock.router.core.outcome import Answer, Disposition, Failure, Trouble, judge
from penstock.router.core.reach import Reach
from penstock.router.options import RouterOptions
from penstock.router.transports.http import HttpTransport
from penstock.testing.hostile import HOSTILE, gzip_bomb
from penstock.testing.target import Target
from tests.integration.router.hostile_server import HostileServer, Seen

TIMEOUT = 2.0
CONNECT_TIMEOUT = 1.0
PATIENCE = 10.0
CALLS = 2
"""For each target, one after the other: what the first left behind must not harm the second."""
BODY_LIMIT = 64 * 1024
MEMORY = 20 * 1024 * 1024
RESIDENT = Path("/proc/self/statm")
PAGE = 4096

FINE = Answer(200, b"{}")
CUT = Answer(200, bytes(BODY_LIMIT))

# What a call may come to. More than one only where it depends on what arrives first.
ENDS: dict[str, Answer | Trouble | set[Answer | Trouble]] = {
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


@dataclass
class Storm:
    """What happened when every hostile target was called at the same time."""

    ends: dict[str, list[list[Answer | Failure]]] = field(default_factory=dict)
    """For each target and each call, what `done` was told: once, one hopes."""
    healthy: list[Answer | Failure] = field(default_factory=list)
    longest: int = 0
    """The longest that the healthy target's answer took, in microseconds."""
    memory: int = 0
    """How much more memory was in use at the worst moment than before, in bytes."""
    before: dict[str, Seen] = field(default_factory=dict)
    after: dict[str, Seen] = field(default_factory=dict)
    """What the targets had seen when the transport was closed, and no connection was open or PATIENCE had passed."""


def resident() -> int:
    """Bytes of memory in use; 0 where the system does not say."""
    return int(RESIDENT.read_text().split()[1]) * PAGE if RESIDENT.exists() else 0


class Caller:
    """Calls targets with one transport, and notes what came of it."""

    def __init__(self, transport: HttpTransport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()

    async def call(self, url: str, told: list[Answer | Failure]) -> Answer | Failure:
        first = self._loop.create_future()

        def done(found: Answer | Failure) -> None:
            told.append(found)
            if not first.done():
                first.set_result(found)

        self._transport.post(url, b"", b'{"messageId":"order-7"}', TIMEOUT, done)
        async with asyncio.timeout(PATIENCE):
            found: Answer | Failure = await first
        return found

    async def calls(self, url: str) -> list[list[Answer | Failure]]:
        """One call after the other."""
        ends: list[list[Answer | Failure]] = [[] for _ in range(CALLS)]
        for told in ends:
            await self.call(f"{url}/hook", told)
        return ends


async def storm(server: HostileServer, healthy: Target) -> Storm:
    found = Storm(before=server.seen())
    options = RouterOptions(connect_timeout=CONNECT_TIMEOUT, body_limit=BODY_LIMIT, http_version="HTTP_1_1")
    trusted = ssl.create_default_context(cadata=server.authority)
    transport = HttpTransport(options, Reach(["127.0.0.0/8"]), tls=trusted)
    caller = Caller(transport)
    await caller.call(healthy.url, found.healthy)  # what is needed only once is not counted
    gc.collect()
    start = resident()

    async def watch() -> None:
        while True:
            began = monotonic()
            await caller.call(healthy.url, found.healthy)
            found.longest = max(found.longest, monotonic() - began)
            found.memory = max(found.memory, resident() - start)
            await asyncio.sleep(0.005)

    watching = asyncio.create_task(watch())
    ends = await asyncio.gather(*(caller.calls(url) for url in server.urls.values()))
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    await transport.close()
    found.ends = dict(zip(server.urls, ends, strict=True))
    deadline = monotonic() + int(PATIENCE * SECOND)
    while True:
        found.after = server.seen()
        if not any(seen.connections for seen in found.after.values()) or monotonic() > deadline:
            return found
        await asyncio.sleep(0.02)


Run = Callable[[Coroutine[Any, Any, Storm]], Storm]


@pytest.fixture(scope="module")
def server() -> Iterator[HostileServer]:
    with HostileServer() as server:
        yield server


@pytest.fixture(scope="module", params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def after_storm(request: pytest.FixtureRequest, server: HostileServer) -> Storm:
    run: Run = request.param
    with Target() as healthy:
        return run(storm(server, healthy))


def test_the_table_is_whole() -> None:
    assert ENDS.keys() == HOSTILE.keys()


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_target_ends_a_call_in_a_defined_way_and_once(after_storm: Storm, name: str) -> None:
    wanted = ENDS[name]
    for told in after_storm.ends[name]:
        [found] = told
        end = found.trouble if isinstance(found, Failure) else found
        assert end in wanted if isinstance(wanted, set) else end == wanted, found
        if isinstance(found, Failure):
            assert 0 < len(found.text) < 300
            assert found.text.isprintable()
        outcome = judge(found, lambda: 0)
        assert 0 <= outcome.effective_delay <= 43_200
        assert outcome.disposition is not Disposition.UNDELIVERABLE or "redirect" in name or found == Answer(404)


def test_no_redirect_is_followed(after_storm: Storm) -> None:
    for name in ("redirect loop", "redirect to metadata"):
        assert after_storm.after[name].requests - after_storm.before[name].requests == CALLS


def test_a_certificate_that_is_not_right_gets_no_request(after_storm: Storm) -> None:
    assert [after_storm.after[name].requests for name, one in HOSTILE.items() if one.tls is not None] == [0, 0, 0]


def test_memory_stays_bounded(after_storm: Storm) -> None:
    if not RESIDENT.exists():
        pytest.skip("this system does not say how much memory a process uses")
    assert 0 <= after_storm.memory < MEMORY


def test_a_healthy_target_is_answered_all_the_while(after_storm: Storm) -> None:
    assert set(after_storm.healthy) == {Answer(200)}
    assert len(after_storm.healthy) > 50
    assert after_storm.longest < TIMEOUT / 2 * SECOND


def test_nothing_is_left_open(after_storm: Storm) -> None:
    assert {name: seen.connections for name, seen in after_storm.after.items() if seen.connections} == {}
