"""Calls every target of a table of hostile ones at the same time, and a healthy one all the while."""

from __future__ import annotations

import asyncio
import gc
import ssl
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from penstock.clock import monotonic
from penstock.durations import SECOND
from penstock.http.client.allowed_addresses import AllowedAddresses
from penstock.http.client.client import HttpTransport
from penstock.http.client.transport import Answer, Failure, FailureKind
from penstock.router.core.outcome import Disposition, judge
from penstock.router.options import RouterOptions
from penstock.testing.target import Target
from tests.integration.router.hostile_server import HostileServer, Seen

PATIENCE = 60.0
"""Seconds; for who waits for what is sure to come, on a busy machine too."""
BODY_LIMIT = 64 * 1024
MEMORY = 40 * 1024 * 1024
"""Bytes that all targets of a table together may cost. Where TLS is spoken the loop alone takes half a megabyte for each."""
RESIDENT = Path("/proc/self/statm")
PAGE = 4096

End = Answer | FailureKind
Version = Literal["HTTP_1_1", "HTTP_2"]
Storming = Coroutine[Any, Any, "list[Storm]"]


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

    def check_ends(self, name: str, wanted: End | set[End]) -> None:
        """Every call to this target was told once what came of it, and that is as it should be."""
        for told in self.ends[name]:
            [found] = told
            end = found.kind if isinstance(found, Failure) else found
            assert end in wanted if isinstance(wanted, set) else end == wanted, found
            if isinstance(found, Failure):
                assert 0 < len(found.text) < 300
                assert found.text.isprintable()
            outcome = judge(found, lambda: 0)
            assert 0 <= outcome.effective_delay <= 43_200
            assert outcome.disposition is not Disposition.UNDELIVERABLE or "redirect" in name or found == Answer(404)

    def check_memory(self) -> None:
        """It stayed bounded; where the system does not say how much is used, nothing is known."""
        assert 0 <= self.memory < MEMORY

    def check_healthy(self) -> None:
        """The healthy target was answered all the while."""
        others = [found for found in self.healthy if found != Answer(200)]
        assert not others, others
        assert len(self.healthy) >= 10
        assert self.longest < PATIENCE * SECOND

    def check_closed(self) -> None:
        """Nothing is left open."""
        assert {name: seen.connections for name, seen in self.after.items() if seen.connections} == {}


def resident() -> int:
    """Bytes of memory in use; 0 where the system does not say."""
    return int(RESIDENT.read_text().split()[1]) * PAGE if RESIDENT.exists() else 0


class Caller:
    """Calls targets with one transport, and notes what came of it."""

    def __init__(self, transport: HttpTransport, timeout: float) -> None:
        self._transport = transport
        self._timeout = timeout
        self._loop = asyncio.get_running_loop()

    async def call(self, url: str, told: list[Answer | Failure], seconds: float | None = None) -> Answer | Failure:
        first = self._loop.create_future()

        def done(found: Answer | Failure) -> None:
            told.append(found)
            if not first.done():
                first.set_result(found)

        self._transport.post(url, b"", b'{"messageId":"order-7"}', seconds or self._timeout, done)
        async with asyncio.timeout(PATIENCE):
            found: Answer | Failure = await first
        return found

    async def calls(self, url: str, count: int) -> list[list[Answer | Failure]]:
        """One call after the other."""
        ends: list[list[Answer | Failure]] = [[] for _ in range(count)]
        for told in ends:
            await self.call(f"{url}/hook", told)
        return ends


def weather(
    targets: Mapping[Version, Iterable[str]], run: Callable[[Storming], list[Storm]], *, calls: int, timeout: float
) -> list[Storm]:
    """A storm for each HTTP version with these targets, at the same time in a loop of their own.

    Each target is called `calls` times, one after the other. `timeout` is that of a call; a connection may take two thirds of it.
    """
    with ExitStack() as stack:
        healthy = stack.enter_context(Target())
        servers = {version: stack.enter_context(HostileServer(names)) for version, names in targets.items()}

        async def storms() -> list[Storm]:
            every = (storm(version, server, healthy, calls, timeout) for version, server in servers.items())
            return await asyncio.gather(*every)

        return run(storms())


async def storm(version: Version, server: HostileServer, healthy: Target, calls: int, seconds: float) -> Storm:
    found = Storm(before=server.seen())
    options = RouterOptions(connect_timeout=seconds * 2 / 3, body_limit=BODY_LIMIT, http_version=version)
    trusted = ssl.create_default_context(cadata=server.authority)
    transport = HttpTransport(options, AllowedAddresses(["127.0.0.0/8"]), tls=trusted)
    caller = Caller(transport, seconds)
    await caller.call(healthy.url, found.healthy)  # what is needed only once is not counted
    gc.collect()
    start = resident()

    over = asyncio.Event()

    async def watch() -> None:
        while not over.is_set():
            began = monotonic()
            await caller.call(healthy.url, found.healthy, PATIENCE)  # how long it took is told apart from that it came
            found.longest = max(found.longest, monotonic() - began)
            found.memory = max(found.memory, resident() - start)
            await asyncio.sleep(0.005)

    watching = asyncio.create_task(watch())
    ends = await asyncio.gather(*(caller.calls(url, calls) for url in server.urls.values()))
    over.set()
    await watching  # its last call too ends before the transport closes, which would be told to that call
    await transport.close()
    found.ends = dict(zip(server.urls, ends, strict=True))
    deadline = monotonic() + int(PATIENCE * SECOND)
    while True:
        found.after = server.seen()
        if not any(seen.connections for seen in found.after.values()) or monotonic() > deadline:
            return found
        await asyncio.sleep(0.02)
