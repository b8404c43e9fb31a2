"""Triage on Spark: dead letters of queues, subscriptions and router pools of a real server, in groups by their cause."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from deltalake import DeltaTable

from penstock import Message, MessageQueue, QueueManager, SubscriptionOptions
from penstock.log.http import HttpLog
from penstock.pipeline.core.triage import Report
from penstock.pipeline.schemas import TRIAGE_STREAM
from penstock.testing.server import LocalServer
from penstock.values.policy import DeadLetterPolicy
from tests.acceptance.command import Penstock
from tests.spark.settings import PYTHONPATH
from tests.spark.sink_place import rows
from tests.unit.pipeline.causes import letters

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

MADE = letters(400, seed=7)


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    """A server with the dead letters of ten causes in three queues, and of an eleventh in a subscription."""
    with LocalServer() as started:
        queues, topics = QueueManager(broker=started.broker), MessageQueue(broker=started.broker)
        for name in ("orders", "hooks", "mail"):
            queues.create(name)
        for one in MADE:
            queues.publish(one.queue, one.payload, headers=one.attributes)
            message = queues.consume(one.queue)
            assert message is not None
            queues.nack(one.queue, message.message_id, requeue=False, error=one.error)
        for name in ("again", "purged"):  # what was redriven or removed is not counted
            queues.create(name)
            queues.publish(name, b"x")
            message = queues.consume(name)
            assert message is not None
            queues.nack(name, message.message_id, requeue=False, error="it failed")
        assert queues.redrive("again") == 1
        assert queues.purge_dead_letters("purged") == 1
        for name in ("payments", "dead-payments"):
            topics.register_topic(name)
        topics.register_subscription("late", "dead-payments")
        policy = DeadLetterPolicy("dead-payments", 1)
        topics.register_subscription("billing", "payments", SubscriptionOptions(dead_letter_policy=policy))
        topics.publish("payments", [Message(b'{"amount": 1}')])
        (received,) = topics.pull("billing", 1)
        topics.nack(received.ack_id)
        yield started


def test_each_cause_is_a_group_at_the_terminal_in_the_lake_and_in_the_console(
    spark: SparkSession, server: LocalServer, tmp_path: Path
) -> None:
    penstock = Penstock(tmp_path, {"PENSTOCK_SERVER": server.url, "PYTHONPATH": PYTHONPATH})

    done = penstock("pipeline", "triage", "--json", "--lake", "lake", "--top", "100", "--since", "1h")

    assert done.code == 0, done.err
    assert done.json["total"] == len(MADE) + 1
    groups = done.json["groups"]
    assert 11 <= len(groups) <= 21
    assert {group["stream"] for group in groups} == {"queue:orders", "queue:hooks", "queue:mail", "payments"}
    (subscription,) = (group for group in groups if group["stream"] == "payments")
    assert (subscription["subscription"], subscription["count"], len(subscription["samples"])) == ("billing", 1, 1)
    not_found = [group for group in groups if group["status"] == 404]
    assert sum(group["count"] for group in not_found) == sum(one.cause == 3 for one in MADE)
    assert {group["target"] for group in not_found} == {"https://shop.example/hook"}
    assert DeltaTable(str(tmp_path / "lake" / "triage")).count() == len(groups)
    with HttpLog(server.url) as log:
        shown = msgspec.json.decode(rows(log, TRIAGE_STREAM)[-1]["value"], type=Report)
    assert [group.id for group in shown.groups] == [group["id"] for group in groups]
