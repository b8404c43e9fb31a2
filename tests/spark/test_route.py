"""`penstock pipeline route`: the router's deliveries on Spark, from queues of a real server to a real target."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock import Message, NewMessage, SubscriptionOptions
from penstock.errors import InvalidArgument
from penstock.pipeline.job import Target as Log
from penstock.pipeline.jobs.route import Batch, Route, RouteJob, sources
from penstock.router.core.config import PoolConfig, QueueConfig, RouterConfig
from penstock.router.options import RouterOptions
from penstock.testing.target import Behaviour, Request, Target, respond
from penstock.values.policy import ROUTER_QUEUE
from tests.acceptance.command import Penstock
from tests.spark.settings import PYTHONPATH
from tests.spark.sink_place import Place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

OPTIONS = RouterOptions(allow_targets=("127.0.0.0/8",), retry_pause=0.01)


def body(name: str, url: str, group: str | None = None, pool: str = "P") -> bytes:
    named = {} if group is None else {"messageGroupId": group}
    return json.dumps({"id": name, "poolCode": pool, "mediationTarget": url, **named}).encode()


def config(uri: str, *pools: PoolConfig) -> RouterConfig:
    return RouterConfig((QueueConfig("orders", uri, engine="spark"),), pools or (PoolConfig("P", 8, engine="spark"),))


def once(
    spark: SparkSession, place: Place, found: RouterConfig, options: RouterOptions = OPTIONS, budget: float = 60
) -> list[Batch]:
    """Route what there is; the batches."""
    told: list[Batch] = []
    route = Route(Log(place.server.url), found, options, budget=budget, is_once=True)
    RouteJob(spark, route).run(threading.Event(), told.append)
    return told


def by_message(**answers: Callable[[int], Behaviour]) -> Callable[[Request], Behaviour]:
    """Answers a message by its name and how often it came."""
    seen: dict[str, int] = {}

    def answer(request: Request) -> Behaviour:
        name = request.message_id
        seen[name] = seen.get(name, 0) + 1
        return answers[name](seen[name]) if name in answers else respond(200)

    return answer


def test_messages_of_a_queue_are_delivered_in_order_and_traced(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    place.queues.create("orders", ROUTER_QUEUE)
    numbers = range(60)
    with Target(by_message(m7=lambda count: respond(500 if count == 1 else 200), m9=lambda _: respond(404))) as target:
        place.queues.publish_many("orders", [NewMessage(body(f"m{number}", target.url, f"g{number % 5}")) for number in numbers])
        place.queues.publish_many("orders", [NewMessage(b"no pointer")])
        pools = [{"code": "P", "concurrency": 4, "engine": "spark"}]
        written = {"queues": [{"queueName": "orders", "queueUri": "penstock:///queues/orders"}], "processingPools": pools}
        (tmp_path / "router.json").write_text(json.dumps(written))
        penstock = Penstock(tmp_path, {"PENSTOCK_SERVER": place.server.url, "PYTHONPATH": PYTHONPATH})

        done = penstock("pipeline", "route", "--config", "router.json", "--once", "--allow", "127.0.0.0/8", "--json")

        assert done.code == 0, done.err
        assert done.json_lines[-1]["done"]["route"]["rows"] == 61
        called = [request.message_id for request in target.requests]
        for group in range(5):
            mine = list(dict.fromkeys(name for name in called if int(name[1:]) % 5 == group))
            assert mine == [f"m{number}" for number in numbers if number % 5 == group]
        assert called.count("m7") == 2
    assert place.queues.stats("orders").depth == 0
    letters = {letter.message.payload: (letter.reason, letter.attempts) for letter in place.queues.dead_letters("orders")}
    assert letters == {body("m9", target.url, "g4"): ("undeliverable", 1), b"no pointer": ("malformed", 1)}
    traced = penstock("trace", "m7", "--json")
    assert traced.code == 0, traced.err
    assert [row["event"] for row in traced.json["events"]] == ["published", "leased", "extended", "attempted", "acked"]
    assert "outcome: SUCCESS" in penstock("trace", "m7").out


def test_what_waits_leads_later_batches_and_no_answer_in_time_is_no_attempt(spark: SparkSession, place: Place) -> None:
    place.topics.register_topic("t")
    place.topics.register_subscription("s", "t", SubscriptionOptions(message_ordering=True))
    slow = threading.Event()

    def hang(count: int) -> Behaviour:
        return respond(200, after=0 if slow.is_set() else 60)

    def defer(count: int) -> Behaviour:
        return respond(200, {"ack": count > 1, "delaySeconds": 1})

    with Target(by_message(a1=defer, c1=hang, d1=lambda _: respond(410))) as target:
        names = ["a1", "a2", "b1", "c1", "c2", "d1"]
        place.topics.publish("t", [Message(body(name, target.url, name[0]), ordering_key=name[0]) for name in names])
        (first, *_) = once(spark, place, config("penstock:///subscriptions/s"), budget=2)
        assert (first.settled, first.carried, first.cut) == (2, 4, 1)  # b1 and d1
        slow.set()
        told = once(spark, place, config("penstock:///subscriptions/s"))
        assert sum(batch.settled for batch in told) == 4
        assert [batch.cut for batch in told] == [0] * len(told)
        called = [request.message_id for request in target.requests]
    assert called.index("a2") > max(place for place, name in enumerate(called) if name == "a1")
    assert called.index("c2") > max(place for place, name in enumerate(called) if name == "c1")
    (letter,) = place.queues.dead_letters("router.s")  # the subscription keeps none
    assert (letter.reason, letter.message.payload) == ("undeliverable", body("d1", target.url, "d"))


def test_all_tasks_together_stay_within_the_concurrency_and_the_rate_of_a_pool(spark: SparkSession, place: Place) -> None:
    place.queues.create("limited", ROUTER_QUEUE)
    open_now, most, lock = 0, 0, threading.Lock()
    pools = PoolConfig("P", 3, engine="spark"), PoolConfig("R", 3, 5, engine="spark")
    with Target(lambda _: respond(200, after=0.02)) as target:
        bodies = [body(f"{pool}{number}", target.url, f"g{number}", pool) for number in range(30) for pool in "PR"]
        place.queues.publish_many("limited", [NewMessage(one) for one in bodies])
        told = once(spark, place, config("penstock:///queues/limited", *pools), budget=2)
        marks = sorted(
            mark
            for request in target.requests
            for mark in ((request.started_at, 1), (request.ended_at, -1))
            if request.message_id[0] == "P"
        )
        for _, step in marks:
            with lock:
                open_now += step
                most = max(most, open_now)
        assert most <= 3
        assert sum(request.message_id[0] == "R" for request in target.requests) == 5
    assert sum(batch.settled for batch in told) == 35
    stats = place.queues.stats("limited")
    assert stats.depth == 25  # released, for a later run
    message = place.queues.consume("limited")
    assert message is not None
    assert message.retry_count == 0


def test_a_breaker_that_opened_in_a_task_stays_open_in_the_next_batch(spark: SparkSession, place: Place) -> None:
    place.queues.create("down", ROUTER_QUEUE)
    with Target(lambda _: respond(503)) as target:
        bodies = [body(f"down{number}", target.url, f"g{number}") for number in range(100)]  # `m7` is traced by its name alone
        place.queues.publish_many("down", [NewMessage(one) for one in bodies])
        once(spark, place, config("penstock:///queues/down"))
        # Two tasks with four calls at a time: each opens its breaker after ten, and finishes what runs.
        assert len(target.requests) < 50


def test_queues_of_other_kinds_and_servers_are_refused() -> None:
    for uri, said in [
        ("sqs://eu-west-1/1/orders", "expected penstock:///queues/NAME"),
        ("penstock://elsewhere:8087/queues/orders", "expected that of --endpoint"),
    ]:
        with pytest.raises(InvalidArgument, match=said):
            sources(config(uri), "http://127.0.0.1:8085")
    with pytest.raises(InvalidArgument, match="no queue of the configuration has the engine spark"):
        sources(RouterConfig(), "http://127.0.0.1:8085")
    found = sources(config("penstock://127.0.0.1:8087/subscriptions/a%2Bb"), "http://127.0.0.1:8085")
    assert [(one.name, one.address) for one in found] == [
        ("orders", "subscription:a+b"),
        ("router.a+b", "queue:router.a+b"),
    ]
