"""The router's monitoring API over a real port: every path and shape, every refusal, and what it tells a scraper."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import msgspec
import pytest

from penstock.access import Principal, Verb
from penstock.durations import SECOND
from penstock.errors import Unauthenticated
from penstock.http.authentication import Gate
from penstock.http.monitoring import monitoring_routes
from penstock.http.pages import documented
from penstock.http.port import HttpServer
from penstock.router.core.circuit import State
from penstock.router.core.outcome import Metric, Severity
from penstock.router.core.snapshot import BreakerState, StandbyState
from penstock.router.core.warnings import Category
from penstock.router.monitoring.api import router_routes, routes_with_server
from penstock.router.monitoring.metrics import router_collector
from penstock.router.monitoring.sandbox import LOCAL_CONFIG
from penstock.router.monitoring.view import RouterView
from penstock.server.metrics import process_collector
from tests.integration.http_client import Answer, Client, connected, run
from tests.integration.router.small_router import DEAD, GOOD, SmallRouter
from tests.unit.http.prometheus import Family, parse

ENCODED_DEAD = "https%3A%2F%2Fdead.example%3A443"
AT = "2026-01-01T00:01:00Z"


class Doorman:
    """`operator` may do everything, `reader` read, `tenant` everything in a project, `narrow` everything with some names."""

    is_open = False

    PRINCIPALS: ClassVar = {
        "operator": Principal("1", None, frozenset(Verb)),
        "reader": Principal("2", None, frozenset({Verb.READ})),
        "tenant": Principal("3", "shop", frozenset(Verb)),
        "narrow": Principal("4", None, frozenset(Verb), ("order*",)),
    }

    def authenticate(self, secret: str | None) -> Principal:
        if secret not in self.PRINCIPALS:
            raise Unauthenticated
        return self.PRINCIPALS[secret]

    def wait_seconds(self, principal: Principal | None, address: str) -> float:
        return 0.0


@asynccontextmanager
async def served(view: RouterView, *, gate: Gate | None = None, is_development: bool = False) -> AsyncIterator[Client]:
    routes = router_routes(view, version="1.2", is_development=is_development, collectors=[process_collector(version="1.2")])
    http_server = HttpServer(documented(routes, version="1.2", is_secured=gate is not None), gate=gate)
    port = await http_server.start("127.0.0.1", 0)
    try:
        async with connected(port) as client:
            yield client
    finally:
        await http_server.stop(1.0)


def asked(
    method: str,
    path: str,
    body: object = None,
    *,
    view: SmallRouter | None = None,
    gate: Gate | None = None,
    is_development: bool = False,
    **headers: str,
) -> Answer:
    """The answer to one request."""
    found: list[Answer] = []

    async def ask() -> None:
        async with served(view or SmallRouter(), gate=gate, is_development=is_development) as client:
            sent = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
            found.append(await client.ask(method, path, sent, **headers))

    run(ask())
    return found[0]


FULL_POOL = {
    "poolCode": "HIGH",
    "totalProcessed": 10,
    "totalSucceeded": 8,
    "totalFailed": 2,
    "totalTransient": 1,
    "totalThrottled": 1,
    "totalRateLimited": 1,
    "successRate": 0.8,
    "activeWorkers": 1,
    "availablePermits": 9,
    "maxConcurrency": 10,
    "queueSize": 2,
    "maxQueueCapacity": 200,
    "averageProcessingTimeMs": 20.0,
    "totalProcessed5min": 10,
    "totalSucceeded5min": 8,
    "totalFailed5min": 2,
    "successRate5min": 0.8,
    "totalProcessed30min": 10,
    "totalSucceeded30min": 8,
    "totalFailed30min": 2,
    "successRate30min": 0.8,
    "totalRateLimited5min": 1,
    "totalRateLimited30min": 1,
}
IDLE_POOL = {
    key: 1.0 if key.startswith("successRate") else 0.0 if key == "averageProcessingTimeMs" else 0 for key in FULL_POOL
} | {"poolCode": "LOW", "availablePermits": 2, "maxConcurrency": 2, "maxQueueCapacity": 50}
FULL_QUEUE = {
    "name": "orders-high",
    "totalMessages": 15,
    "totalConsumed": 9,
    "totalFailed": 1,
    "successRate": 0.9,
    "currentSize": 45,
    "throughput": 0.15,
    "pendingMessages": 40,
    "messagesNotVisible": 5,
    "totalMessages5min": 15,
    "totalConsumed5min": 9,
    "totalFailed5min": 1,
    "successRate5min": 0.9,
    "totalMessages30min": 15,
    "totalConsumed30min": 9,
    "totalFailed30min": 1,
    "successRate30min": 0.9,
    "totalDeferred": 2,
    "totalDeadLettered": 1,
}
IDLE_QUEUE = {key: 1.0 if key.startswith("successRate") else 0 for key in FULL_QUEUE} | {"name": "idle", "throughput": 0.0}


def breaker(name: str, state: str, *numbers: float) -> dict[str, object]:
    fields = ("successfulCalls", "failedCalls", "rejectedCalls", "failureRate", "bufferedCalls", "bufferSize")
    return {"name": name, "state": state, **dict(zip(fields, numbers, strict=True)), "pausedUntil": None}


def flight(message_id: str, at: str, elapsed: int, *, pool: str = "HIGH", attempts: int = 0) -> dict[str, object]:
    return {
        "messageId": message_id,
        "brokerMessageId": f"broker-{message_id}",
        "queueId": "orders-high",
        "addedToInPipelineAt": at,
        "elapsedTimeMs": elapsed,
        "poolCode": pool,
        "messageGroup": "customer-7",
        "attempts": attempts,
    }


FLIGHTS = [
    flight("m-1", "2026-01-01T00:00:30Z", 30_000, attempts=2),
    flight("m-2", "2026-01-01T00:00:40Z", 20_000, attempts=1),
    flight("m-3", "2026-01-01T00:00:50Z", 10_000, pool="LOW"),
]
READY = {"status": "READY", "timestamp": AT, "issues": []}
CONSUMER = {
    "mapKey": "orders-high#1",
    "queueIdentifier": "orders-high",
    "consumerQueueIdentifier": "orders-high",
    "instanceId": "1",
    "isHealthy": True,
    "lastPollTimeMs": 1_767_225_658_000,
    "lastPollTime": "2026-01-01T00:00:58Z",
    "timeSinceLastPollMs": 2_000,
    "timeSinceLastPollSeconds": 2,
    "isRunning": True,
}
NEVER = CONSUMER | {
    "mapKey": "idle#1",
    "queueIdentifier": "idle",
    "consumerQueueIdentifier": "idle",
    "lastPollTimeMs": 0,
    "lastPollTime": "never",
    "timeSinceLastPollMs": -1,
    "timeSinceLastPollSeconds": -1,
}
DETAIL = FLIGHTS[1] | {
    "inPipeline": True,
    "status": "RETRY_BACKOFF",
    "lastSeenAt": "2026-01-01T00:00:59Z",
    "lastSeenElapsedMs": 1_000,
    "mediationTarget": "https://good.example/hook",
}

SHAPES: list[tuple[str, str, object, int, object]] = [
    ("GET", "/health", None, 200, {"healthy": True, "message": "Infrastructure is operational", "issues": None}),
    ("GET", "/health/live", None, 200, {"status": "ALIVE", "timestamp": AT, "issues": []}),
    ("GET", "/health/ready", None, 200, READY),
    ("GET", "/health/startup", None, 200, READY),
    (
        "GET",
        "/monitoring/health",
        None,
        200,
        {
            "status": "WARNING",
            "timestamp": AT,
            "uptimeMillis": 60_000,
            "details": {
                "totalQueues": 2,
                "healthyQueues": 2,
                "totalPools": 2,
                "healthyPools": 1,
                "activeWarnings": 2,
                "criticalWarnings": 0,
                "circuitBreakersOpen": 0,
                "degradationReason": "unhealthy: 1 of 2 pools",
            },
        },
    ),
    ("GET", "/monitoring/queue-stats", None, 200, {"orders-high": FULL_QUEUE, "idle": IDLE_QUEUE}),
    ("GET", "/monitoring/pool-stats", None, 200, {"HIGH": FULL_POOL, "LOW": IDLE_POOL}),
    ("GET", "/monitoring/pool-stats?time_window=5min", None, 200, {"HIGH": FULL_POOL, "LOW": IDLE_POOL}),
    (
        "GET",
        "/monitoring/circuit-breakers",
        None,
        200,
        {GOOD: breaker(GOOD, "CLOSED", 9, 1, 0, 0.1, 10, 10), DEAD: breaker(DEAD, "HALF_OPEN", 0, 5, 3, 0.5, 10, 10)},
    ),
    ("GET", f"/monitoring/circuit-breakers/{ENCODED_DEAD}/state", None, 200, {"name": DEAD, "state": "HALF_OPEN"}),
    (
        "POST",
        f"/monitoring/circuit-breakers/{ENCODED_DEAD}/reset",
        None,
        200,
        {"status": "success", "name": DEAD, "reset": True},
    ),
    ("POST", "/monitoring/circuit-breakers/reset-all", None, 200, {"status": "success", "reset": 2}),
    ("GET", "/monitoring/in-flight-messages", None, 200, FLIGHTS),
    ("GET", "/monitoring/in-flight-messages?limit=1", None, 200, FLIGHTS[:1]),
    ("GET", "/monitoring/in-flight-messages?messageId=M-2", None, 200, FLIGHTS[1:2]),
    ("GET", "/monitoring/in-flight-messages?poolCode=LOW&limit=5&messageId=", None, 200, FLIGHTS[2:]),
    (
        "GET",
        "/monitoring/in-flight-messages/check?messageId=m-3",
        None,
        200,
        {"messageId": "m-3", "inPipeline": True, "poolCode": "LOW", "queueId": "orders-high"},
    ),
    ("GET", "/monitoring/in-flight-messages/check?messageId=x", None, 200, {"messageId": "x", "inPipeline": False}),
    ("GET", "/monitoring/in-flight-messages/detail?messageId=m-2", None, 200, DETAIL),
    ("GET", "/monitoring/in-flight-messages/detail?messageId=x", None, 200, {"messageId": "x", "inPipeline": False}),
    (
        "POST",
        "/monitoring/in-flight-messages/check-batch",
        {"messageIds": ["m-1", "x", "broker-m-2"]},
        200,
        {"m-1": True, "x": False, "broker-m-2": True},
    ),
    (
        "POST",
        "/monitoring/in-flight-messages/m-1/ack",
        None,
        200,
        {
            "messageId": "m-1",
            "removed": True,
            "brokerAcked": True,
            "queueId": "orders-high",
            "poolCode": "HIGH",
            "elapsedTimeMs": 30_000,
            "wasMediating": True,
        },
    ),
    (
        "POST",
        "/monitoring/in-flight-messages/broker-m-2/ack",
        None,
        200,
        {
            "messageId": "m-2",
            "removed": True,
            "brokerAcked": False,
            "brokerAckError": "its receipt is too old",
            "queueId": "orders-high",
            "poolCode": "HIGH",
            "elapsedTimeMs": 20_000,
            "wasMediating": False,
        },
    ),
    (
        "GET",
        "/monitoring/mediating?poolCode=high",
        None,
        200,
        [
            {
                "messageId": "m-1",
                "poolCode": "HIGH",
                "group": "customer-7",
                "queue": "orders-high",
                "target": "https://good.example/hook",
                "attempts": 2,
                "elapsedTimeMs": 5_000,
            }
        ],
    ),
    ("GET", "/monitoring/standby-status", None, 200, {"standbyEnabled": False}),
    (
        "GET",
        "/monitoring/traffic-status",
        None,
        200,
        {
            "enabled": False,
            "strategyType": "none",
            "registered": False,
            "targetInfo": None,
            "lastOperation": None,
            "lastError": None,
        },
    ),
    (
        "GET",
        "/monitoring/consumer-health",
        None,
        200,
        {"currentTimeMs": 1_767_225_660_000, "currentTime": AT, "consumers": {"orders-high#1": CONSUMER, "idle#1": NEVER}},
    ),
    (
        "PUT",
        "/monitoring/pools/HIGH",
        {"concurrency": 20, "rate_limit_per_minute": 600},
        200,
        {"success": True, "pool_code": "HIGH", "new_config": {"concurrency": 20, "rate_limit_per_minute": 600}},
    ),
    ("POST", "/monitoring/broker-stats/refresh", None, 200, {"refreshed": True, "ageSeconds": 0.0}),
    ("POST", "/config/reload", None, 200, {"status": "success", "changed": True}),
    ("DELETE", "/monitoring/warnings", None, 200, {"status": "success"}),
    ("DELETE", "/warnings", None, 200, {"cleared": 2}),
    ("DELETE", "/monitoring/warnings/old", None, 200, {"status": "success"}),
    ("DELETE", "/monitoring/warnings/old?hours=1", None, 200, {"status": "success"}),
    ("DELETE", "/warnings/old?hours=0.0004", None, 200, {"cleared": 1}),
    ("POST", "/warnings/acknowledge-all", None, 200, {"acknowledged": 2}),
    ("GET", "/warnings/critical", None, 200, []),
    ("GET", "/api/config", None, 200, LOCAL_CONFIG),
    ("POST", "/api/test/success", {"messageId": "1"}, 200, {"ack": True, "message": ""}),
    ("POST", "/api/test/fast", {"messageId": "1"}, 200, {"ack": True, "message": ""}),
    ("POST", "/api/test/pending", {}, 200, {"ack": False, "message": "not ready yet"}),
    ("POST", "/api/test/client-error", None, 400, {"ack": False, "message": "the request is wrong, on purpose"}),
    ("POST", "/api/test/server-error", None, 500, {"ack": False, "message": "failed, on purpose"}),
    ("POST", "/api/test/fail", None, 500, {"ack": False, "message": "failed, on purpose"}),
    ("GET", "/api/test/stats", None, 200, {"totalRequests": 0}),
    ("POST", "/api/test/stats/reset", None, 200, {"totalRequests": 0}),
    ("POST", "/api/benchmark/process", {}, 200, {"ack": True, "message": ""}),
    ("POST", "/api/benchmark/process-slow?delayMs=1", {}, 200, {"ack": True, "message": ""}),
    ("POST", "/api/benchmark/reset", None, 200, {"totalRequests": 0, "elapsedMs": 0, "throughputPerSecond": 0.0}),
]


def test_every_path_answers_in_its_shape(subtests: pytest.Subtests) -> None:
    for method, path, body, status, wanted in SHAPES:
        with subtests.test(f"{method} {path}"):
            answer = asked(method, path, body, is_development=True)

            assert (answer.status, answer.json()) == (status, wanted)
            assert answer.headers["content-type"] == "application/json"


WARNINGS = ["status 404 of <b>/hook</b>", "no pool X"]


def test_warnings_are_listed_newest_first(subtests: pytest.Subtests) -> None:
    for prefix in ["/monitoring/warnings", "/warnings"]:
        for path, texts in [
            ("", WARNINGS),
            ("/unacknowledged", WARNINGS[1:]),
            ("/severity/ERROR", WARNINGS[:1]),
            ("/severity/warning", WARNINGS[1:]),
            ("/severity/INFO", []),
            ("?severity=error", WARNINGS[:1]),
            ("?category=routing", WARNINGS[1:]),
            ("?acknowledged=false", WARNINGS[1:]),
            ("?acknowledged=true", WARNINGS[:1]),
        ]:
            with subtests.test(prefix + path):
                view = SmallRouter()
                view.warnings.acknowledge(view.warnings.all(view.clock.now())[0].warning_id)

                assert [warning["message"] for warning in asked("GET", prefix + path, view=view).json()] == texts


@pytest.mark.parametrize(
    ("prefix", "done"), [("/monitoring/warnings", {"status": "success"}), ("/warnings", {"acknowledged": True})]
)
def test_a_warning_is_shown_and_acknowledged(prefix: str, done: object) -> None:
    async def scenario() -> None:
        view = SmallRouter()
        view.warnings.add(Category.ROUTING, Severity.WARN, "no pool X", "router", view.clock.now())
        async with served(view) as client:
            first, second = (await client.ask("GET", prefix)).json()
            assert first == {
                "id": first["id"],
                "category": "ROUTING",
                "severity": "WARN",
                "message": "no pool X",
                "timestamp": AT,
                "source": "router",
                "acknowledged": False,
                "count": 2,
            }
            assert (await client.ask("POST", f"{prefix}/{first['id']}/acknowledge")).json() == done
            assert [warning["id"] for warning in (await client.ask("GET", f"{prefix}/unacknowledged")).json()] == [second["id"]]
            missing = await client.ask("POST", f"{prefix}/nothing/acknowledge")
            assert missing.status == 404
            assert missing.json().items() >= {"status": "error", "message": "Warning not found"}.items()

    run(scenario())


def test_what_is_changed_reaches_the_router_as_it_was_said() -> None:
    async def scenario() -> None:
        view = SmallRouter()
        async with served(view) as client:
            for body in ({"concurrency": 3}, {"concurrency": 0}, {"rate_limit_per_minute": 0}, {}):
                assert (await client.ask("PUT", "/monitoring/pools/LOW", json.dumps(body).encode())).status == 200
            await client.ask("GET", "/monitoring/queue-stats?refresh=true")
            await client.ask("POST", "/monitoring/circuit-breakers/reset-all")
        assert view.told == [
            ("update", "LOW", 3, None),
            ("update", "LOW", None, None),
            ("update", "LOW", None, 0),
            ("update", "LOW", None, None),
            ("refresh",),
            ("reset", GOOD),
            ("reset", DEAD),
        ]

    run(scenario())


def test_a_window_shows_the_totals_of_its_time() -> None:
    async def scenario() -> None:
        view = SmallRouter()
        view.clock.advance(10 * 60)
        view.state.pools[0].metrics.finished(Metric.SUCCEEDED, 10_000, view.clock.now())
        async with served(view) as client:
            for window, processed in (("all", 11), ("30min", 11), ("30m", 11), ("5min", 1), ("5m", 1)):
                found = (await client.ask("GET", f"/monitoring/pool-stats?time_window={window}")).json()["HIGH"]
                assert (found["totalProcessed"], found["totalProcessed5min"]) == (processed, 1), window
            queue = (await client.ask("GET", "/monitoring/queue-stats?time_window=5min")).json()["orders-high"]
            assert (queue["totalMessages"], queue["totalMessages30min"], queue["throughput"]) == (0, 15, 0.0)

    run(scenario())


def test_a_router_that_does_not_work_says_so_with_503_and_is_alive() -> None:
    async def scenario() -> None:
        view = SmallRouter()
        view.change(pools=[], is_ready=False)
        async with served(view) as client:
            health = await client.ask("GET", "/health")
            assert (health.status, health.json()["message"]) == (503, "Infrastructure issues detected")
            assert health.json()["issues"] == ["there are no process pools"]
            for path in ("/health/ready", "/health/startup"):
                ready = await client.ask("GET", path)
                assert (ready.status, ready.json()["status"], len(ready.json()["issues"])) == (503, "NOT_READY", 2)
            assert (await client.ask("GET", "/health/live")).status == 200
            assert (await client.ask("GET", "/monitoring/health")).status == 200
            view.change(is_enabled=False)
            assert (await client.ask("GET", "/health")).json() == {
                "healthy": True,
                "message": "Message router is disabled",
                "issues": None,
            }
            view.warnings.add(Category.CONFIGURATION, Severity.CRITICAL, "501", "mediator", view.clock.now())
            open_one = BreakerState(
                name="x", state=State.OPEN, succeeded=0, failed=5, rejected=1, failure_rate=1.0, buffered=10, size=10
            )
            view.change(breakers=[open_one])
            found = (await client.ask("GET", "/monitoring/health")).json()
            assert (found["status"], found["details"]["criticalWarnings"], found["details"]["circuitBreakersOpen"]) == (
                "DEGRADED",
                1,
                1,
            )

    run(scenario())


def test_a_standby_says_who_is_the_primary() -> None:
    view = SmallRouter()
    view.change(
        standby=StandbyState(
            instance_id="b", role="STANDBY", is_redis_available=False, holder=None, refreshed_at=view.clock.now() - SECOND
        )
    )

    assert asked("GET", "/monitoring/standby-status", view=view).json() == {
        "standbyEnabled": True,
        "instanceId": "b",
        "role": "STANDBY",
        "redisAvailable": False,
        "currentLockHolder": None,
        "lastSuccessfulRefresh": "2026-01-01T00:00:59Z",
        "hasWarning": True,
    }


def test_a_message_is_put_on_the_queue_called_like_its_pool_or_the_first() -> None:
    async def scenario() -> None:
        view = SmallRouter()
        message = {
            "id": "m-9",
            "pool_code": "orders-high",
            "mediation_target": "https://good.example/hook",
            "message_group_id": "g",
            "high_priority": True,
            "auth_token": "secret-1",
            "payload": {"a": [1, 2]},
        }
        async with served(view) as client:
            made = await client.ask("POST", "/messages", json.dumps(message).encode())
            assert (made.status, made.json()) == (
                201,
                {"message_id": "m-9", "broker_message_id": "b-1", "pool_code": "orders-high", "queue_identifier": "orders-high"},
            )
            short = json.dumps({"pool_code": "P", "mediation_target": "https://good.example/hook"}).encode()
            second = (await client.ask("POST", "/messages", short)).json()
            refused = await client.ask("POST", "/messages", short.replace(b'"P"', b'"idle"'))
            assert (refused.status, refused.json()["reason"]) == (501, "unimplemented")
        assert view.told[0] == (
            "send",
            "orders-high",
            {
                "id": "m-9",
                "poolCode": "orders-high",
                "mediationType": "HTTP",
                "mediationTarget": "https://good.example/hook",
                "messageGroupId": "g",
                "highPriority": True,
                "authToken": "secret-1",
                "payload": {"a": [1, 2]},
            },
            "g",
        )
        assert view.told[1] == (
            "send",
            None,
            {
                "id": second["message_id"],
                "poolCode": "P",
                "mediationType": "HTTP",
                "mediationTarget": "https://good.example/hook",
            },
            "__DEFAULT__",
        )

    run(scenario())


def test_seeds_are_spread_as_they_were_asked_for() -> None:
    async def scenario() -> None:
        view = SmallRouter()

        async def seed(**asked: object) -> list[dict[str, Any]]:
            view.told.clear()
            answer = await client.ask("POST", "/api/seed/messages", json.dumps(asked).encode())
            count = asked.get("count", 10)
            assert answer.json() == {"status": "success", "messagesSent": count, "totalRequested": count}, answer.body
            assert {row[1] for row in view.told} == {"orders-high"}
            return [row[2] for row in view.told if isinstance(row[2], dict)]

        async with served(view, is_development=True) as client:
            eight = await seed(count=16, queue="high", endpoint="fast", messageGroupMode="1of8")
            assert {each["mediationTarget"] for each in eight} == {"http://127.0.0.1/api/test/fast"}
            assert {each["poolCode"] for each in eight} <= {"HIGH", "LOW"}  # the pool of that level is not there
            assert len({each["messageGroupId"] for each in eight}) == 8
            assert len({each["id"] for each in eight}) == 16
            assert len({each["messageGroupId"] for each in await seed(queue="high")}) == 10
            single = await seed(queue="orders-high", endpoint="https://good.example/hook", messageGroupMode="single")
            assert len({each["messageGroupId"] for each in single}) == 1
            assert {each["mediationTarget"] for each in single} == {"https://good.example/hook"}
            view.change(pools=[])
            assert {each["poolCode"] for each in await seed(queue="high")} == {"POOL-HIGH"}
            assert {each["poolCode"] for each in await seed(queue="orders-high")} == {"DISPATCH-POOL"}
            missing = await client.ask("POST", "/api/seed/messages", b'{"queue": "medium"}')
            assert (missing.status, missing.json()["reason"]) == (404, "not_found")

    run(scenario())


def test_seeds_wait_for_the_first_configuration_and_for_their_queue() -> None:
    async def scenario() -> None:
        view = SmallRouter()
        view.change(is_ready=False, queues=[])
        async with served(view, is_development=True) as client:
            seeding = asyncio.create_task(client.ask("POST", "/api/seed/messages", b"{}"))
            done, _ = await asyncio.wait([seeding], timeout=0.05)
            assert not done
            queues = SmallRouter().snapshot().queues
            view.change(is_ready=True, queues=[msgspec.structs.replace(queue, is_connected=False) for queue in queues])
            done, _ = await asyncio.wait([seeding], timeout=0.05)
            assert not done
            view.change(queues=queues)
            assert (await seeding).status == 200

    run(scenario())


def test_the_targets_for_trying_count_what_comes() -> None:
    async def scenario() -> None:
        async with served(SmallRouter(), is_development=True) as client:
            seen = {(await client.ask("POST", "/api/test/faulty", b"{}")).status for _ in range(200)}
            assert seen == {200, 400, 500}
            await client.ask("POST", "/api/test/success", b"{}")
            assert (await client.ask("GET", "/api/test/stats")).json() == {"totalRequests": 201}
            await client.ask("POST", "/api/test/stats/reset")
            assert (await client.ask("GET", "/api/test/stats")).json() == {"totalRequests": 0}
            for _ in range(3):
                await client.ask("POST", "/api/benchmark/process", b"{}")
            measured = (await client.ask("GET", "/api/benchmark/stats")).json()
            assert measured.keys() == {"totalRequests", "elapsedMs", "throughputPerSecond"}
            assert measured["totalRequests"] == 3
            assert measured["throughputPerSecond"] > 0

    run(scenario())


def test_a_slow_target_does_not_keep_the_server_from_stopping() -> None:
    async def scenario() -> None:
        http_server = HttpServer(router_routes(SmallRouter(), version="1.2", is_development=True))
        port = await http_server.start("127.0.0.1", 0)
        async with connected(port) as client, connected(port) as other:
            await client.send(b"POST /api/test/slow HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n")
            while (await other.ask("GET", "/api/test/stats")).json()["totalRequests"] == 0:
                pass
            stopping = asyncio.create_task(http_server.stop(20))
            assert (await client.answer()).status == 200
            await stopping

    run(scenario())


DEVELOPMENT = [row for row in SHAPES if row[1].startswith("/api/")] + [("POST", "/api/seed/messages", {}, 200, None)]


def test_what_is_for_trying_is_not_there_in_earnest(subtests: pytest.Subtests) -> None:
    for method, path in [(row[0], row[1]) for row in DEVELOPMENT]:
        with subtests.test(f"{method} {path}"):
            answer = asked(method, path, {} if method == "POST" else None)

            assert answer.status == 404


HOSTILE: list[tuple[str, str, object, int, str]] = [
    ("PUT", "/monitoring/pools/NOPE", {"concurrency": 1}, 404, "not_found"),
    ("PUT", "/monitoring/pools/HIGH", {"concurrency": -1}, 400, "invalid_argument"),
    ("PUT", "/monitoring/pools/HIGH", {"concurrency": 10**9}, 400, "invalid_argument"),
    ("PUT", "/monitoring/pools/HIGH", {"concurrency": 1.5}, 400, "invalid_argument"),
    ("PUT", "/monitoring/pools/HIGH", {"concurrency": "5"}, 400, "invalid_argument"),
    ("PUT", "/monitoring/pools/HIGH", {"concurrency": True}, 400, "invalid_argument"),
    ("PUT", "/monitoring/pools/HIGH", {"concurency": 5}, 400, "invalid_argument"),
    ("PUT", "/monitoring/pools/HIGH", {"rate_limit_per_minute": -1}, 400, "invalid_argument"),
    ("PUT", "/monitoring/pools/HIGH", b"", 400, "invalid_argument"),
    ("PUT", "/monitoring/pools/HIGH", b"{", 400, "invalid_argument"),
    ("PUT", "/monitoring/pools/HIGH", b"[]", 400, "invalid_argument"),
    ("PUT", "/monitoring/pools/HIGH", b"\xff\xfe", 400, "invalid_argument"),
    ("PUT", "/monitoring/pools/HIGH", b"[" * 20_000, 400, "invalid_argument"),
    ("PUT", "/monitoring/pools/HIGH", b" " * 65_537, 413, "request_too_large"),
    ("GET", "/monitoring/pool-stats?time_window=1h", None, 400, "invalid_argument"),
    ("GET", "/monitoring/queue-stats?refresh=perhaps", None, 400, "invalid_argument"),
    ("GET", "/monitoring/in-flight-messages?limit=0", None, 400, "invalid_argument"),
    ("GET", "/monitoring/in-flight-messages?limit=-5", None, 400, "invalid_argument"),
    ("GET", "/monitoring/in-flight-messages?limit=10001", None, 400, "invalid_argument"),
    ("GET", "/monitoring/in-flight-messages?limit=99999999999999999999999", None, 400, "invalid_argument"),
    ("GET", "/monitoring/in-flight-messages?limit=ten", None, 400, "invalid_argument"),
    ("GET", "/monitoring/in-flight-messages?limit=NaN", None, 400, "invalid_argument"),
    ("GET", f"/monitoring/in-flight-messages?messageId={'x' * 2_049}", None, 400, "invalid_argument"),
    ("GET", "/monitoring/in-flight-messages/check", None, 400, "invalid_argument"),
    ("GET", "/monitoring/in-flight-messages/check?messageId=", None, 400, "invalid_argument"),
    ("GET", "/monitoring/in-flight-messages/detail", None, 400, "invalid_argument"),
    ("POST", "/monitoring/in-flight-messages/check-batch", {"messageIds": "m-1"}, 400, "invalid_argument"),
    ("POST", "/monitoring/in-flight-messages/check-batch", {"messageIds": [1]}, 400, "invalid_argument"),
    ("POST", "/monitoring/in-flight-messages/check-batch", {"messageIds": ["x"] * 5_001}, 400, "invalid_argument"),
    ("POST", "/monitoring/in-flight-messages/check-batch", {}, 400, "invalid_argument"),
    ("POST", "/monitoring/in-flight-messages/x/ack", None, 404, "message_not_found"),
    ("GET", "/monitoring/mediating?limit=1000000", None, 400, "invalid_argument"),
    ("GET", "/monitoring/circuit-breakers/nope/state", None, 404, "not_found"),
    ("POST", "/monitoring/circuit-breakers/nope/reset", None, 404, "not_found"),
    ("POST", "/monitoring/circuit-breakers/%2e%2e%2f%00/reset", None, 404, "not_found"),
    ("GET", "/monitoring/warnings/severity/BAD", None, 400, "invalid_argument"),
    ("GET", "/monitoring/warnings?severity=BAD", None, 400, "invalid_argument"),
    ("DELETE", "/monitoring/warnings/old?hours=-1", None, 400, "invalid_argument"),
    ("DELETE", "/monitoring/warnings/old?hours=nan", None, 400, "invalid_argument"),
    ("DELETE", "/monitoring/warnings/old?hours=inf", None, 400, "invalid_argument"),
    ("DELETE", "/monitoring/warnings/old?hours=1e308", None, 400, "invalid_argument"),
    ("DELETE", "/warnings/old?hours=soon", None, 400, "invalid_argument"),
    ("POST", "/messages", {}, 400, "invalid_argument"),
    ("POST", "/messages", {"pool_code": "P"}, 400, "invalid_argument"),
    ("POST", "/messages", {"pool_code": "", "mediation_target": "https://x"}, 400, "invalid_argument"),
    ("POST", "/messages", {"pool_code": "P", "mediation_target": "https://x", "mediation_type": "FTP"}, 400, "invalid_argument"),
    ("POST", "/messages", {"pool_code": "P", "mediation_target": "https://x", "more": 1}, 400, "invalid_argument"),
    ("POST", "/api/seed/messages", {"count": 0}, 400, "invalid_argument"),
    ("POST", "/api/seed/messages", {"count": 10_001}, 400, "invalid_argument"),
    ("POST", "/api/seed/messages", {"count": "many"}, 400, "invalid_argument"),
    ("POST", "/api/seed/messages", {"messageGroupMode": "2of9"}, 400, "invalid_argument"),
    ("POST", "/api/seed/messages", {"queue": "../../x"}, 404, "not_found"),
    ("POST", "/api/benchmark/process-slow?delayMs=600001", {}, 400, "invalid_argument"),
]


def test_what_cannot_be_done_is_refused_with_a_reason(subtests: pytest.Subtests) -> None:
    for method, path, body, status, reason in HOSTILE:
        with subtests.test(f"{method} {path[:60]} {str(body)[:40]}"):
            view = SmallRouter()
            before = view.snapshot()
            answer = asked(method, path, body, view=view, is_development=True)

            found = answer.json()
            assert (answer.status, found["status"], found["reason"]) == (status, "error", reason)
            assert len(found["message"]) < 400
            assert (view.snapshot(), len(view.messages), len(view.warnings)) == (before, 3, 2)
            assert not [told for told in view.told if told[0] in {"update", "send"}]


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "PATCH"])
def test_a_path_is_asked_for_with_its_own_method(method: str) -> None:
    paths = {row[1].partition("?")[0] for row in SHAPES} | {"/monitoring/dashboard", "/metrics", "/q/metrics", "/messages"}
    allowed = {(row[0], row[1].partition("?")[0]) for row in SHAPES} | {
        ("GET", "/monitoring/dashboard"),
        ("GET", "/metrics"),
        ("GET", "/q/metrics"),
        ("POST", "/messages"),
        ("GET", "/monitoring/warnings"),
        ("GET", "/warnings"),
    }

    async def scenario() -> None:
        async with served(SmallRouter(), is_development=True) as client:
            for path in paths:
                if (method, path) not in allowed:
                    assert (await client.ask(method, path, b"")).status == 405, path

    run(scenario())


OPEN = {"/health", "/health/live", "/health/ready", "/health/startup", "/monitoring/health", "/metrics", "/q/metrics"}
PAGES = {"/", "/docs", "/openapi.json", "/monitoring/dashboard"}


def test_what_is_open_is_open_and_all_else_needs_a_token_its_verb_and_everything() -> None:
    routes = router_routes(SmallRouter(), version="1")
    assert {route.path for route in routes if route.is_open} == OPEN | {"/monitoring/dashboard"}
    verbs = {(route.method, route.path): route.verb for route in routes if not route.is_open}
    looks = {("POST", "/monitoring/in-flight-messages/check-batch")}
    assert {key for key, verb in verbs.items() if verb is Verb.READ} == {key for key in verbs if key[0] == "GET"} | looks
    assert {verb for key, verb in verbs.items() if key[0] != "GET" and key not in looks} == {Verb.MANAGE}

    async def scenario() -> None:
        view = SmallRouter()
        async with served(view, gate=Doorman()) as client:
            for path in OPEN | PAGES:
                assert (await client.ask("GET", path)).status == 200, path
            for (method, path), verb in verbs.items():
                target = path.replace("{", "").replace("}", "")
                assert (await client.ask(method, target, b"")).status == 401, path
                assert (await client.ask(method, target, b"", X_API_Key="wrong")).status == 401, path
                for token in ("tenant", "narrow"):
                    refused = await client.ask(method, target, b"", X_API_Key=token)
                    assert (refused.status, refused.json()["reason"]) == (403, "permission_denied"), path
                reader = await client.ask(method, target, b"", X_API_Key="reader")
                assert (reader.status == 403) is (verb is Verb.MANAGE), path
            assert view.told == []
            assert (await client.ask("POST", "/config/reload", X_API_Key="operator")).status == 200

    run(scenario())


async def scrape(client: Client, path: str, **headers: str) -> dict[str, Family]:
    answer = await client.ask("GET", path, None, **headers)
    assert (answer.status, answer.headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    return parse(answer.body.decode())


POOL, QUEUE = (("pool", "HIGH"),), (("queue", "orders-high"),)
NUMBERS: dict[str, dict[tuple[tuple[str, str], ...], float]] = {
    "flowcatalyst_pool_messages_submitted_total": {POOL: 15},
    "flowcatalyst_pool_messages_succeeded_total": {POOL: 8},
    "flowcatalyst_pool_messages_failed_total": {POOL: 2},
    "flowcatalyst_pool_messages_ratelimited_total": {POOL: 1},
    "flowcatalyst_pool_messages_throttled_total": {POOL: 1},
    "flowcatalyst_pool_messages_transient_total": {POOL: 1},
    "flowcatalyst_pool_errors_total": {(("errorType", "ERROR_CONFIG"), *POOL): 1},
    "flowcatalyst_pool_workers_active": {POOL: 1},
    "flowcatalyst_pool_semaphore_available": {POOL: 9},
    "flowcatalyst_pool_queue_size": {POOL: 2},
    "flowcatalyst_pool_messagegroups_count": {POOL: 2},
    "flowcatalyst_queue_messages_received_total": {QUEUE: 15},
    "flowcatalyst_queue_messages_consumed_total": {QUEUE: 9},
    "flowcatalyst_queue_messages_failed_total": {QUEUE: 1},
    "flowcatalyst_queue_messages_deferred_total": {QUEUE: 2},
    "flowcatalyst_queue_messages_dead_lettered_total": {(*QUEUE, ("reason", "undeliverable")): 1},
    "flowcatalyst_queue_depth": {QUEUE: 45},
    "flowcatalyst_queue_pending": {QUEUE: 40},
    "flowcatalyst_queue_not_visible": {QUEUE: 5},
    "flowcatalyst_broker_available": {(): 1},
    "flowcatalyst_queuemanager_pools_active": {(): 2},
    "flowcatalyst_queuemanager_default_pool_usage_total": {(): 3},
    "fc_pool_queue_size": {POOL: 2},
    "fc_pool_active_workers": {POOL: 1},
    "fc_pool_message_groups": {POOL: 2},
    "fc_messages_processed_total": {(*POOL, ("success", "true")): 8, (*POOL, ("success", "false")): 2},
    "fc_rate_limit_exceeded_total": {POOL: 1},
    "fc_in_pipeline_messages": {(): 3},
    "fc_queue_pending_messages": {QUEUE: 40},
    "fc_queue_in_flight_messages": {QUEUE: 5},
    "fc_consumer_messages_received_total": {(("consumer", "orders-high"),): 15},
    "fc_queue_messages_total": {
        (("outcome", "acked"), *QUEUE): 9,
        (("outcome", "nacked"), *QUEUE): 1,
        (("outcome", "deferred"), *QUEUE): 2,
    },
    "fc_circuit_breaker_open": {(("target", GOOD),): 0, (("target", DEAD),): 0},
    "fc_circuit_breaker_calls_total": {
        (("outcome", "failure"), ("target", DEAD)): 5,
        (("outcome", "success"), ("target", GOOD)): 9,
    },
}


def test_the_numbers_are_there_for_prometheus_under_both_paths_and_all_their_names() -> None:
    async def scenario() -> None:
        async with served(SmallRouter()) as client:
            families = await scrape(client, "/metrics")
            assert (await scrape(client, "/q/metrics")).keys() == families.keys()
        for name, samples in NUMBERS.items():
            assert families[name].kind == ("counter" if name.endswith("_total") else "gauge")
            assert families[name].samples.items() >= {(name, labels): value for labels, value in samples.items()}.items(), name
        for name in ("flowcatalyst_pool_processing_duration_seconds", "fc_mediation_duration_seconds"):
            found = families[name].samples
            bounds = [dict(labels)["le"] for sample, labels in found if sample == f"{name}_bucket" and POOL[0] in labels]
            assert bounds == "0.005 0.01 0.025 0.05 0.1 0.25 0.5 1 2.5 5 10 +Inf".split()
            assert (found[f"{name}_count", POOL], found[f"{name}_sum", POOL]) == (12, 0.24)
        assert {name for name in families if name.startswith(("fc_", "flowcatalyst_"))} == {
            *NUMBERS,
            "flowcatalyst_pool_processing_duration_seconds",
            "fc_mediation_duration_seconds",
        }
        assert "process_open_fds" in families

    run(scenario())


def test_beside_a_server_its_paths_stay_its_own_and_tell_of_the_router_too() -> None:
    async def scenario() -> None:
        view, reasons = SmallRouter(), ["the disk is full"]
        server = monitoring_routes(version="1.2", problems=lambda: reasons, collectors=[router_collector(view)])
        http_server = HttpServer(
            documented(routes_with_server(server, view, version="1.2"), version="1.2", is_secured=True), gate=Doorman()
        )
        port = await http_server.start("127.0.0.1", 0)
        async with connected(port) as client:
            view.change(pools=[])
            health = await client.ask("GET", "/health", X_API_Key="reader")
            assert (health.status, health.json()) == (
                200,
                {
                    "status": "healthy",
                    "service": "penstock",
                    "version": "1.2",
                    "healthy": False,
                    "message": "Infrastructure issues detected",
                    "issues": ["there are no process pools"],
                },
            )
            assert (await client.ask("GET", "/health")).status == 401
            ready = await client.ask("GET", "/health/ready")
            assert (ready.status, ready.json()["status"], ready.json()["reasons"]) == (503, "not ready", reasons)
            reasons.clear()
            ready = await client.ask("GET", "/health/ready")
            assert (ready.status, ready.json()) == (
                200,
                {"status": "ready", "reasons": [], "timestamp": AT, "issues": ["there are no process pools"]},
            )
            assert (await client.ask("GET", "/health/startup")).status == 503
            assert (await client.ask("GET", "/health/live")).json() == {"status": "alive"}
            assert (await client.ask("GET", "/metrics")).status == 401
            assert "fc_in_pipeline_messages" in await scrape(client, "/metrics", X_API_Key="reader")
            assert "fc_in_pipeline_messages" in await scrape(client, "/q/metrics")
        await http_server.stop(1.0)

    run(scenario())


def test_a_server_that_is_there_for_its_router_answers_as_a_router() -> None:
    async def scenario() -> None:
        view, reasons = SmallRouter(), ["the disk is full"]
        server = monitoring_routes(version="1.2", problems=lambda: reasons, collectors=[router_collector(view)])
        routes = routes_with_server(server, view, version="1.2", leads=True)
        http_server = HttpServer(documented(routes, version="1.2", is_secured=True), gate=Doorman())
        port = await http_server.start("127.0.0.1", 0)
        async with connected(port) as client:
            for path in OPEN:
                found = await client.ask("GET", path)
                assert found.status == (503 if path == "/health/ready" else 200), path
            ready = (await client.ask("GET", "/health/ready")).json()
            assert ready == {"status": "NOT_READY", "timestamp": AT, "issues": reasons}
            assert (await client.ask("GET", "/health")).json().keys() == {"healthy", "message", "issues"}
            reasons.clear()
            assert (await client.ask("GET", "/health/ready")).json() == READY
            view.change(pools=[])
            for path in ("/health", "/health/ready", "/health/startup"):
                assert (await client.ask("GET", path)).status == 503
            for path in ("/metrics", "/q/metrics"):
                assert "fc_in_pipeline_messages" in await scrape(client, path)
        await http_server.stop(1.0)

    run(scenario())


def test_the_dashboard_is_one_page_that_needs_nothing_from_elsewhere() -> None:
    answer = asked("GET", "/monitoring/dashboard")

    page = answer.body.decode()
    assert (answer.status, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "http://" not in page
    assert "https://" not in page
    assert "innerHTML" not in page
    for path in ("health", "queue-stats", "pool-stats", "circuit-breakers", "warnings", "in-flight-messages", "consumer-health"):
        assert f"/monitoring/{path}" in page


def test_every_route_is_documented_with_its_shape() -> None:
    document = asked("GET", "/openapi.json", is_development=True).json()

    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if "router" in operation.get("tags", []):
                assert operation["summary"], path
                replies = [reply for status, reply in operation["responses"].items() if status.startswith("2")]
                assert replies, (method, path)
                assert all("content" in reply for reply in replies), (method, path)
