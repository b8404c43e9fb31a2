"""What operators see: health, readiness and metrics of a real broker behind a real port."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import ClassVar

from penstock import Broker, Message, MessageQueue, QueueManager
from penstock.access import Principal, Verb
from penstock.errors import Unauthenticated
from penstock.http.monitoring import monitoring_routes
from penstock.http.pages import documented
from penstock.http.port import HttpServer
from penstock.http.traffic import Traffic, traffic_collector
from penstock.server.metrics import LoopLag, broker_collector, process_collector
from penstock.testing import ManualClock
from tests.integration.http_client import Client, connected, run
from tests.unit.http.prometheus import Family, parse


class Doorman:
    """`all` reads everything, `shop` its project, `jobs` two names of the default project, `writer` nothing."""

    is_open = False

    PRINCIPALS: ClassVar = {
        "all": Principal("1", None, frozenset({Verb.METRICS})),
        "shop": Principal("2", "shop", frozenset({Verb.READ})),
        "jobs": Principal("3", "penstock", frozenset({Verb.READ}), ("job*",)),
        "writer": Principal("4", None, frozenset({Verb.PUBLISH})),
    }

    def authenticate(self, secret: str | None) -> Principal:
        if secret not in self.PRINCIPALS:
            raise Unauthenticated
        return self.PRINCIPALS[secret]

    def wait_seconds(self, principal: Principal | None, address: str) -> float:
        return 0.0


@asynccontextmanager
async def monitored(
    broker: Broker, problems: Callable[[], list[str]] = list, *, gate: Doorman | None = None
) -> AsyncIterator[Client]:
    traffic, lag = Traffic(), LoopLag()
    collectors = [process_collector(version="1.2", lag=lag), traffic_collector(traffic), broker_collector(broker)]
    routes = monitoring_routes(version="1.2", problems=problems, collectors=collectors)
    server = HttpServer(documented(routes, version="1.2", is_secured=gate is not None), gate=gate, traffic=traffic)
    port = await server.start("127.0.0.1", 0)
    lag.start()
    try:
        async with connected(port) as client:
            yield client
    finally:
        await server.stop(1.0)
        lag.stop()


async def scrape(client: Client, **headers: str) -> dict[str, Family]:
    answer = await client.ask("GET", "/metrics", None, **headers)
    assert (answer.status, answer.headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    return parse(answer.body.decode())


def test_it_is_alive_ready_or_says_why_not() -> None:
    reasons: list[str] = []

    async def scenario() -> None:
        with Broker() as broker:
            async with monitored(broker, lambda: reasons) as client:
                health = await client.ask("GET", "/health")
                assert health.json() == {"status": "healthy", "service": "penstock", "version": "1.2"}
                assert (await client.ask("GET", "/health/ready")).json() == {"status": "ready", "reasons": []}
                reasons.append("the disk is full")
                late = await client.ask("GET", "/health/ready")
                assert (late.status, late.json()) == (503, {"status": "not ready", "reasons": ["the disk is full"]})
                assert (await client.ask("GET", "/health/live")).status == 200

    run(scenario())


def test_the_metrics_tell_what_became_of_messages() -> None:
    async def scenario() -> None:
        clock = ManualClock()
        with Broker(clock=clock) as broker:
            queue, manager = MessageQueue(broker=broker), QueueManager(broker=broker)
            queue.register_topic("shop/orders")
            queue.register_subscription("shop/billing", "shop/orders")
            queue.publish("shop/orders", [Message(b"abc"), Message(b"de")])
            queue.ack(queue.pull("shop/billing")[0].ack_id)
            manager.create('strange "name"\\')
            manager.publish('strange "name"\\', b"12345")
            manager.consume('strange "name"\\')
            clock.advance(7)
            async with monitored(broker) as client:
                families = await scrape(client)

        at = {
            "subscription": (("project", "shop"), ("subscription", "billing")),
            "queue": (("project", "penstock"), ("queue", 'strange "name"\\')),
        }
        for kind, values in {
            "subscription": {
                "backlog": 1,
                "backlog_bytes": 2,
                "acked_total": 1,
                "delivered_total": 1,
                "in_flight": 0,
                "oldest_age_seconds": 7,
            },
            "queue": {
                "depth": 0,
                "in_flight": 1,
                "bytes": 5,
                "published_total": 1,
                "delivered_total": 1,
                "oldest_age_seconds": 7,
            },
        }.items():
            for name, value in values.items():
                full = f"penstock_{kind}_{name}"
                assert families[full].samples == {(full, at[kind]): value}, full
        published = "penstock_topic_published_total"
        assert families[published].samples == {(published, (("project", "shop"), ("topic", "orders"))): 2}
        assert families["penstock_journal_healthy"].samples == {("penstock_journal_healthy", ()): 1}

    run(scenario())


def test_the_metrics_tell_of_the_process_and_of_the_port() -> None:
    async def scenario() -> None:
        with Broker() as broker:
            async with monitored(broker) as client:
                for path in ("/health", "/nowhere", "/health", "/who?am=I"):
                    await client.ask("GET", path)
                families = await scrape(client)

        requests, durations = families["penstock_http_requests_total"], families["penstock_http_request_duration_seconds"]
        name = "penstock_http_requests_total"
        assert requests.samples[name, (("method", "GET"), ("route", "/health"), ("status", "200"))] == 2
        assert requests.samples[name, (("method", ""), ("route", "unmatched"), ("status", "404"))] == 2
        assert durations.samples["penstock_http_request_duration_seconds_count", (("method", "GET"), ("route", "/health"))] == 2
        assert families["penstock_http_connections"].samples == {("penstock_http_connections", ()): 1}
        for name in (
            "process_resident_memory_bytes",
            "process_cpu_seconds_total",
            "process_open_fds",
            "process_start_time_seconds",
        ):
            assert families[name].samples[name, ()] > 0
        assert families["penstock_info"].samples == {("penstock_info", (("version", "1.2"),)): 1}

    run(scenario())


def test_a_token_sees_what_it_covers_and_needs_the_verb_read() -> None:
    async def scenario() -> None:
        with Broker() as broker:
            manager = QueueManager(broker=broker)
            for name in ("jobs", "mail", "shop/jobs"):
                manager.create(name)
            async with monitored(broker, gate=Doorman()) as client:
                seen, totals = {}, {}
                for token in ("all", "shop", "jobs"):
                    families = await scrape(client, X_API_Key=token)
                    assert "process_open_fds" in families
                    seen[token] = {
                        dict(labels)["project"] + "/" + dict(labels)["queue"]
                        for _, labels in families["penstock_queue_depth"].samples
                    }
                    counts = families["penstock_queues"].samples if "penstock_queues" in families else {}
                    totals[token] = {dict(labels)["project"]: count for (_, labels), count in counts.items()}
                for path in ("/metrics", "/health"):
                    assert (await client.ask("GET", path)).status == 401
                    assert (await client.ask("GET", path, X_API_Key="writer")).status == 403
                for path in ("/health/live", "/health/ready"):
                    assert (await client.ask("GET", path)).status == 200

        assert seen == {"all": {"penstock/jobs", "penstock/mail", "shop/jobs"}, "shop": {"shop/jobs"}, "jobs": {"penstock/jobs"}}
        assert totals == {"all": {"penstock": 2, "shop": 1}, "shop": {"shop": 1}, "jobs": {}}, "a sum tells of other names"

    run(scenario())


def test_queues_beyond_the_limit_are_counted_in_the_totals_alone() -> None:
    clock = ManualClock()
    with Broker(clock=clock) as broker:
        manager = QueueManager(broker=broker)
        for number in range(5):
            manager.create(f"queue-{number}")
            manager.publish(f"queue-{number}", b"x")
            clock.advance(10)
        for project in ("a", "b", "c"):
            manager.create(f"{project}/jobs")
        found = {(sample.metric.name, sample.values): sample.value for sample in broker_collector(broker, max_series=2)()}

    assert [values for name, values in found if name == "penstock_queue_depth"] == [
        ("penstock", "queue-0"),
        ("penstock", "queue-1"),
    ]
    assert found["penstock_queues", ("penstock",)] == 5
    assert found["penstock_queues_depth", ("penstock",)] == 5
    assert found["penstock_queues_published_total", ("penstock",)] == 5
    assert found["penstock_queues_oldest_age_seconds", ("penstock",)] == 50
    assert (found["penstock_queues", ("a",)], found["penstock_queues", ("",)]) == (1, 2), "projects beyond the limit have one sum"


def test_a_large_scrape_is_packed_for_who_can_unpack_it_and_the_loop_turns_meanwhile() -> None:
    async def scenario() -> None:
        turns = 0

        async def turn() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        with Broker() as broker:
            manager = QueueManager(broker=broker)
            for number in range(300):
                manager.create(f"queue-{number}")
            async with monitored(broker) as client:
                turning = asyncio.create_task(turn())
                packed = await client.ask("GET", "/metrics", Accept_Encoding="gzip, br")
                turning.cancel()

        assert packed.headers["content-encoding"] == "gzip"
        assert len(parse(gzip.decompress(packed.body).decode())["penstock_queue_depth"].samples) == 300
        assert turns > 10

    run(scenario())


def test_a_queue_that_is_deleted_during_a_scrape_is_left_out() -> None:
    with Broker() as broker:
        manager = QueueManager(broker=broker)
        for name in ("first", "second"):
            manager.create(name)
        samples = iter(broker_collector(broker)())
        next(samples)
        while next(samples).values != ("penstock", "first"):
            pass
        manager.delete("second")

        assert {sample.values for sample in samples} == {("penstock", "first"), ("penstock",)}


def test_a_loop_that_is_held_up_is_late() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        lag = LoopLag()
        lag.start()
        until = loop.time() + LoopLag.INTERVAL_SECONDS + 0.2
        while loop.time() < until:
            pass
        await asyncio.sleep(0.01)
        worst = lag.worst()
        lag.stop()
        assert 0.15 < worst < 10
        assert lag.worst() == 0

    run(scenario())
