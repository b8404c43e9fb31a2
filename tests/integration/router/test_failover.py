"""Two routers, one Redis, one queue: when the one that works is gone, the other takes over; what was in flight is repeated."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from threading import Event

import pytest

from penstock.clock import monotonic
from penstock.durations import SECOND
from penstock.testing.target import Behaviour, Request, Target, respond
from tests.integration.router.places import PLACES, QUEUE, Place
from tests.integration.router.proof import body_of
from tests.integration.router.redis_server import RedisServer, needs_redis
from tests.integration.router.router_process import RouterProcess, until

MESSAGES = 600
GROUPS = 60
CONCURRENCY = 20
QUICK, SLOW = respond(200), respond(200, after=1)
SHORT_TTL = 3
TTL = 30
RETRY = 10
"""Seconds within which a router that stands by tries again, at the most."""
JUST_NOW = 2 * SECOND
"""The ack of a call that ended this long before a kill may be lost."""


def routers(folder: Path, place: Place, redis: str, ttl: int) -> list[RouterProcess]:
    config = {
        "queues": [{"queueName": QUEUE, "queueUri": place.uri, "visibilityTimeout": place.lease}],
        "processingPools": [{"code": "P", "concurrency": CONCURRENCY}],
    }
    times = None if ttl == TTL else {"ttl": ttl}
    return [RouterProcess(folder / name, config, "--standby", redis, environment=place.environment, times=times) for name in "ab"]


def role(router: RouterProcess) -> str:
    return str(router.get("/monitoring/standby-status")["role"])


@needs_redis
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("kind", "ttl", "end"),
    [
        ("nats", SHORT_TTL, "kill"),
        pytest.param("remote queue", SHORT_TTL, "kill", marks=pytest.mark.long),
        pytest.param("nats", SHORT_TTL, "stop", marks=pytest.mark.long),
        pytest.param("nats", TTL, "kill", marks=pytest.mark.long),
    ],
)
def test_another_router_takes_over(kind: str, ttl: int, end: str, shared_redis: RedisServer, tmp_path: Path) -> None:
    redis = shared_redis.url_of_next_database()
    has_ended = Event()

    def slows_down(request: Request) -> Behaviour:
        """So that there is plenty left to do when the first router ends."""
        return SLOW if request.number >= MESSAGES // 3 and not has_ended.is_set() else QUICK

    with ExitStack() as stack:
        place = stack.enter_context(PLACES[kind](tmp_path / "place"))
        target = stack.enter_context(Target(slows_down))
        place.fill(
            [(f"g{number % GROUPS}", body_of(f"m{number}", target.url, f"g{number % GROUPS}", "P")) for number in range(MESSAGES)]
        )
        both = routers(tmp_path, place, redis, ttl)
        for router in both:
            router.launch()
            stack.push(router)
        for router in both:
            router.ready()
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
        has_ended.set()
        until(lambda: role(second) == "PRIMARY", ttl + RETRY + 60, "the other one takes over")
        until(lambda: len({request.message_id for request in target.requests}) == MESSAGES, 60, "all are delivered")
        second.until_empty()
        assert second.stop() == 0
        assert place.left(second.data_dir) == 0
        counts = Counter(request.message_id for request in target.requests)
        assert counts.keys() == {f"m{number}" for number in range(MESSAGES)}
        repeated = {message for message, count in counts.items() if count > 1}
        first_calls: dict[str, Request] = {}
        for request in target.requests:
            first_calls.setdefault(request.message_id, request)
        # The target may notice a call shortly after the kill; the other router waits until the lock has run out.
        in_flight = {
            message
            for message, call in first_calls.items()
            if call.started_at < ended_at + SECOND and call.ended_at >= ended_at - JUST_NOW
        }
        assert repeated <= (in_flight if end == "kill" else set())
        assert max(counts.values()) <= 2
        for router in both:
            assert "Traceback" not in router.log, router.log
