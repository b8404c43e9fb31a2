"""Two routers, one Redis, one queue: when the one that works is gone, the other takes over; what was in flight is repeated."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.clock import monotonic
from penstock.durations import SECOND
from penstock.testing.target import Target, respond
from tests.integration.router.places import PLACES, QUEUE, Place
from tests.integration.router.proof import body_of
from tests.integration.router.redis_server import needs_redis, redis_server
from tests.integration.router.router_process import RouterProcess, until

MESSAGES = 3_000
GROUPS = 300
CONCURRENCY = 20
SHORT_TTL = 3
TTL = 30
RETRY = 10
"""Seconds within which a router that stands by tries again, at the most."""
JUST_NOW = SECOND // 2
"""A call that ended so long before a kill may not be acked."""


def routers(folder: Path, place: Place, redis: str, ttl: int) -> list[RouterProcess]:
    config = {
        "queues": [{"queueName": QUEUE, "queueUri": place.uri, "visibilityTimeout": place.lease}],
        "processingPools": [{"code": "P", "concurrency": CONCURRENCY}],
    }
    times = None if ttl == TTL else {"ttl": ttl}
    return [RouterProcess(folder / name, config, "--standby", redis, environment=place.environment, times=times) for name in "ab"]


def role(router: RouterProcess) -> str:
    return str(router.get("/monitoring/standby-status")["role"])


# name: (the queue, the lock's time to live, how the first router ends)
CASES = {
    "killed, nats": ("nats", SHORT_TTL, "kill"),
    "killed, remote queue": ("remote queue", SHORT_TTL, "kill"),
    "stopped, nats": ("nats", SHORT_TTL, "stop"),
    "killed, nats, the real time to live": ("nats", TTL, "kill"),
}


@needs_redis
@pytest.mark.crash
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] if "real" in name else []) for name in CASES])
def test_another_router_takes_over(name: str, tmp_path: Path) -> None:
    kind, ttl, end = CASES[name]
    (tmp_path / "redis").mkdir()
    with ExitStack() as stack:
        redis = stack.enter_context(redis_server(tmp_path / "redis"))
        place = stack.enter_context(PLACES[kind](tmp_path / "place"))
        target = stack.enter_context(Target(respond(200, after=0.02)))
        place.fill(
            [(f"g{number % GROUPS}", body_of(f"m{number}", target.url, f"g{number % GROUPS}", "P")) for number in range(MESSAGES)]
        )
        both = [stack.enter_context(router) for router in routers(tmp_path, place, redis.url, ttl)]
        # A Redis that has just been started may have forgotten a lock: nobody works before a time to live is over.
        until(lambda: len(target.requests) >= MESSAGES // 3, ttl + 60, "a router works")
        first, second = sorted(both, key=lambda router: role(router) != "PRIMARY")
        assert [role(first), role(second)] == ["PRIMARY", "STANDBY"]
        assert second.in_flight() == []
        if end == "kill":
            first.kill()
        else:
            assert first.stop() == 0
        ended_at = monotonic()
        until(lambda: target.connections == 0, 10, "the target knows that the router is gone")
        before = len(target.requests)
        until(lambda: len(target.requests) > before, ttl + RETRY, "the other one works")
        assert role(second) == "PRIMARY"
        until(lambda: len({request.message_id for request in target.requests}) == MESSAGES, 60, "all are delivered")
        second.until_empty()
        assert second.stop() == 0
        assert place.left(second.data_dir) == 0
        counts = Counter(request.message_id for request in target.requests)
        assert counts.keys() == {f"m{number}" for number in range(MESSAGES)}
        repeated = {message for message, count in counts.items() if count > 1}
        in_flight = {request.message_id for request in target.requests[:before] if request.ended_at >= ended_at - JUST_NOW}
        assert repeated <= (in_flight if end == "kill" else set())
        assert max(counts.values()) <= 2
        for router in both:
            assert "Traceback" not in router.log, router.log
