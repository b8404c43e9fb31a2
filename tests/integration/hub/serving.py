"""A hub behind its API on a real port, in the test's own event loop: for rules, logs and faults that no setting asks for."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from penstock.clock import Clock, SystemClock
from penstock.http.limits import HttpLimits
from penstock.http.port import HttpServer
from penstock.hub.core.hub import Hub
from penstock.hub.core.rules import Binding, HubRules
from penstock.hub.ports import TopicLogs, Verifier
from penstock.hub.server.heartbeat import PERIOD_SECONDS
from penstock.hub.server.routes import HubServer
from penstock.hub.service import HubService
from penstock.hub.tokens import OpenVerifier


@dataclass(frozen=True)
class Serving:
    """What runs, and where."""

    url: str
    hub: Hub
    service: HubService
    server: HubServer


@asynccontextmanager
async def serving(
    rules: HubRules | None = None,
    *,
    bindings: Sequence[Binding] = (),
    feed: TopicLogs | None = None,
    verifier: Verifier | None = None,
    clock: Clock | None = None,
    ping_seconds: float = PERIOD_SECONDS,
    limits: HttpLimits | None = None,
    grace_seconds: float = 2.0,
) -> AsyncIterator[Serving]:
    """A hub that serves, and stops at the end."""
    numbers, time = itertools.count(1), clock or SystemClock()
    hub = Hub(
        rules or HubRules(),
        epoch="epoch",
        make_id=lambda: f"00000000-0000-4000-8000-{next(numbers):012d}",
        version="test",
        bindings=bindings,
        now=time.now(),
    )
    service = HubService(hub, feed=feed, verifier=verifier or OpenVerifier(), clock=time)
    service.start()
    server = HubServer(service, ping_seconds=ping_seconds)
    http = HttpServer(server.routes(), limits=limits)
    port = await http.start("127.0.0.1", 0)
    try:
        yield Serving(f"http://127.0.0.1:{port}", hub, service, server)
    finally:
        await service.stop(grace_seconds)
        await http.stop(grace_seconds)
