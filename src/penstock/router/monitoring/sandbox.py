"""Tools to try a router, only in development: a configuration, test messages, and targets with a fixed behaviour."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import suppress
from random import Random
from typing import Annotated, Any, Literal

import msgspec
from aiohttp import web
from msgspec import Meta

from penstock.clock import monotonic
from penstock.durations import SECOND
from penstock.errors import NotFound, Unavailable
from penstock.http.request import Request, json_response
from penstock.http.routes import Operation, Parameter, Reply, Route
from penstock.router.core.snapshot import Snapshot
from penstock.router.monitoring.requests import ROUTER_ERRORS, SMALL, Handler, Text, body, changing, query
from penstock.router.monitoring.view import RouterView

TAGS = ("trying it out",)
MAX_SEEDS = 10_000
MAX_DELAY_MS = 600_000
START_SECONDS, LOOK_SECONDS = 10, 0.02
"""How long sending test messages waits for a router that starts, and how often it checks."""
GROUPS = 8

_LEVELS = ("high", "medium", "low")
_POOLS = {"high": "POOL-HIGH", "medium": "POOL-MEDIUM", "low": "POOL-LOW"}
_QUEUES = {level: f"flow-catalyst-{level}-priority.fifo" for level in _LEVELS}
_ENDPOINTS = ("fast", "slow", "faulty", "fail")
"""The levels to choose from at random."""
_TARGETS = {
    "fast": "200 after 100 ms",
    "slow": "200 after 60 s",
    "faulty": "200, 400 or 500: of five, three, one and one",
    "fail": "500",
    "success": "200, acknowledged",
    "pending": "200, not acknowledged",
    "client-error": "400",
    "server-error": "500",
}
_FAILED = (500, False, "failed, on purpose", 0.0)
_BEHAVIOURS: dict[str, tuple[int, bool, str, float]] = {
    "fast": (200, True, "", 0.1),
    "slow": (200, True, "", 60.0),
    "fail": _FAILED,
    "success": (200, True, "", 0.0),
    "pending": (200, False, "not ready yet", 0.0),
    "client-error": (400, False, "the request is wrong, on purpose", 0.0),
    "server-error": _FAILED,
}
"""Status, whether it acks, its message, and a delay in seconds."""
_FAULTY = ("success", "success", "success", "client-error", "fail")
_OTHER_POOL = "DISPATCH-POOL"

LOCAL_CONFIG = {
    "queues": [
        {"queueUri": f"penstock:///queues/{name}", "queueName": name, "connections": 1}
        for name in (*_QUEUES.values(), "flow-catalyst-dispatch.fifo")
    ],
    "connections": 1,
    "processingPools": [
        {"code": code, "concurrency": concurrency}
        for code, concurrency in (("POOL-HIGH", 10), ("POOL-MEDIUM", 5), ("POOL-LOW", 2), (_OTHER_POOL, 5))
    ],
}
"""Queues of this process, and pools for them."""


class SeedRequest(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """How many messages, for which queue and target (each a keyword, or a name or URL of your own), and in how many groups."""

    count: Annotated[int, Meta(ge=1, le=MAX_SEEDS)] = 10
    queue: Text = "random"
    endpoint: Text = "random"
    message_group_mode: Literal["unique", "1of8", "single"] = "unique"


class Seeded(msgspec.Struct, rename="camel"):
    """How many messages were sent, and how many were requested."""

    status: Literal["success"]
    messages_sent: int
    total_requested: int


class Answer(msgspec.Struct):
    """The answer of a target."""

    ack: bool
    message: str


class Total(msgspec.Struct, rename="camel"):
    """The number of requests."""

    total_requests: int


class Throughput(msgspec.Struct, rename="camel"):
    """The number of requests since counting started, and their rate."""

    total_requests: int
    elapsed_ms: int
    throughput_per_second: float


class DelayQuery(msgspec.Struct, rename="camel"):
    """How long to wait."""

    delay_ms: Annotated[int, Meta(ge=0, le=MAX_DELAY_MS)] = 100


class SandboxRoutes:
    """Routes for trying a router. Its targets need no token, because a router calls them."""

    def __init__(self, view: RouterView, chance: Random | None = None) -> None:
        self._view = view
        self._random = chance or Random()
        self._tested = 0
        self._measured = 0
        self._measured_since = monotonic()

    def routes(self) -> list[Route]:
        delay = Parameter("delayMs", "How long to wait, in milliseconds.", Annotated[int, Meta(ge=0, le=MAX_DELAY_MS)])
        return [
            changing("POST", "/api/seed/messages", self.seed, "Send test messages", Seeded, body=SeedRequest),
            _open("GET", "/api/config", self.config, "A test configuration", dict[str, Any]),
            *(
                _open("POST", f"/api/test/{name}", self._target(name), f"A target: {does}", Answer)
                for name, does in _TARGETS.items()
            ),
            _open("GET", "/api/test/stats", self.tested, "Requests to these targets", Total),
            _open("POST", "/api/test/stats/reset", self.reset_tested, "Reset the count", Total),
            _open("POST", "/api/benchmark/process", self.measure, "A target that answers at once", Answer),
            _open("POST", "/api/benchmark/process-slow", self.measure_slowly, "A target that waits", Answer, delay),
            _open("GET", "/api/benchmark/stats", self.measured, "How fast requests came", Throughput),
            _open("POST", "/api/benchmark/reset", self.reset_measured, "Reset the count", Throughput),
        ]

    async def config(self, _: Request) -> web.StreamResponse:
        return json_response(LOCAL_CONFIG)

    async def seed(self, request: Request) -> web.StreamResponse:
        """Send messages one after the other, so that they are in the queue in this order."""
        asked, origin = await body(request, SeedRequest), f"{request.scheme}://{request.host}"
        snapshot = await self._started(request, asked.queue)
        names, pools = [queue.name for queue in snapshot.queues], [pool.code for pool in snapshot.pools]
        redriven = {f"router.{name}" for name in names}  # these queues only get redriven dead letters of other queues
        levels = [level for level in _LEVELS if _queue_of(level, names)] or [name for name in names if name not in redriven]
        for number in range(asked.count):
            level = self._random.choice(levels) if asked.queue == "random" and levels else asked.queue
            endpoint = self._random.choice(_ENDPOINTS) if asked.endpoint == "random" else asked.endpoint
            group = {"unique": secrets.token_hex(16), "1of8": f"group-{number % GROUPS}", "single": "group"}[
                asked.message_group_mode
            ]
            pointer = {
                "id": secrets.token_hex(16),
                "poolCode": self._pool(level, pools),
                "mediationType": "HTTP",
                "mediationTarget": f"{origin}/api/test/{endpoint}" if endpoint in _TARGETS else endpoint,
                "messageGroupId": group,
            }
            queue = _queue_of(level, names)
            if queue is None:
                raise NotFound(f"queue {level}")
            await self._view.send(queue, msgspec.json.encode(pointer), group)
        return json_response(Seeded("success", asked.count, asked.count))

    async def _started(self, request: Request, asked: str) -> Snapshot:
        """Wait for a router that was just started: for its first configuration, and until the queues of test messages open."""
        until = monotonic() + START_SECONDS * SECOND
        while True:
            snapshot = self._view.snapshot()
            names = [queue.name for queue in snapshot.queues]
            chosen = names if asked == "random" else [_queue_of(asked, names)]
            is_open = all(queue.is_connected for queue in snapshot.queues if queue.name in chosen)
            is_late = monotonic() >= until or request.stopping.is_set()
            if snapshot.is_ready and (is_open or is_late):
                return snapshot
            if is_late:
                raise Unavailable("the router has no configuration yet", hint="its log has the reason; try again later")
            await asyncio.sleep(LOOK_SECONDS)

    def _pool(self, level: str, pools: list[str]) -> str:
        """The pool of a test message: that of its level, or any pool of the router."""
        wanted = _POOLS.get(level, _OTHER_POOL)
        return wanted if wanted in pools or not pools else self._random.choice(pools)

    def _target(self, name: str) -> Handler:
        async def answer(request: Request) -> web.StreamResponse:
            self._tested += 1
            status, is_acked, message, seconds = _BEHAVIOURS[self._random.choice(_FAULTY) if name == "faulty" else name]
            if seconds:
                await _wait(request, seconds)
            return json_response(Answer(is_acked, message), status)

        return answer

    async def tested(self, _: Request) -> web.StreamResponse:
        return json_response(Total(self._tested))

    async def reset_tested(self, _: Request) -> web.StreamResponse:
        self._tested = 0
        return json_response(Total(0))

    async def measure(self, _: Request) -> web.StreamResponse:
        self._measured += 1
        return json_response(Answer(True, ""))

    async def measure_slowly(self, request: Request) -> web.StreamResponse:
        delay = query(request, DelayQuery).delay_ms
        self._measured += 1
        await _wait(request, delay / 1000)
        return json_response(Answer(True, ""))

    async def measured(self, _: Request) -> web.StreamResponse:
        elapsed = monotonic() - self._measured_since
        per_second = self._measured * SECOND / elapsed if elapsed else 0.0
        return json_response(Throughput(self._measured, elapsed // 1000, round(per_second, 3)))

    async def reset_measured(self, _: Request) -> web.StreamResponse:
        self._measured, self._measured_since = 0, monotonic()
        return json_response(Throughput(0, 0, 0.0))


async def _wait(request: Request, seconds: float) -> None:
    """Wait, but not for longer than the server runs."""
    with suppress(TimeoutError):
        await asyncio.wait_for(request.stopping.wait(), seconds)


def _queue_of(level: str, names: list[str]) -> str | None:
    """The queue for a keyword: the one with that name, or one whose name contains it."""
    return level if level in names else next((name for name in names if level in _LEVELS and level in name.lower()), None)


def _open(
    method: str,
    path: str,
    handler: Handler,
    summary: str,
    reply: object,
    *parameters: Parameter,
) -> Route:
    operation = Operation(summary, "Only in development.", TAGS, parameters, replies={200: Reply("Done.", reply)})
    return Route(method, path, handler, operation, ROUTER_ERRORS, is_open=True, max_bytes=SMALL)
