"""Redrive on Spark: a condition in SQL selects dead letters of a real server, and the command moves each once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock import QueueManager
from penstock.clock import SystemClock
from penstock.durations import to_datetime
from penstock.errors import InvalidArgument
from penstock.pipeline.core.redrive import Redrive
from penstock.pipeline.core.triage import report
from penstock.pipeline.job import Target
from penstock.pipeline.jobs import dead_letters, redrive, triage
from penstock.pipeline.redriving import begin
from penstock.testing.server import LocalServer
from tests.acceptance.command import Penstock
from tests.spark.settings import PYTHONPATH

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def queues() -> Iterator[tuple[str, QueueManager]]:
    """A server with a queue of six dead letters of two causes, and its address."""
    with LocalServer() as server:
        queues = QueueManager(broker=server.broker)
        queues.create("orders")
        for number in range(6):
            queues.publish("orders", json.dumps({"amount": 50 * number}), headers={"tenant": "eu" if number % 2 else "us"})
        queues.publish("orders", b"\xff")
        kill(queues, lambda number: "status 503" if number % 2 else f"no customer {number}")
        yield server.url, queues


def kill(queues: QueueManager, error: object) -> list[int]:
    """Make dead letters of all that waits; the amounts, in the order in which they came."""
    amounts = []
    while (message := queues.consume("orders")) is not None:
        text = message.payload if isinstance(message.payload, str) else ""
        number = json.loads(text)["amount"] // 50 if text else 6
        amounts.append(number)
        queues.nack("orders", message.message_id, requeue=False, error=error(number) if callable(error) else str(error))
    return amounts


def selected(spark: SparkSession, url: str, sql: str) -> list[int]:
    """The offsets of the letters that a condition selects."""
    target, wish = Target(endpoint=url), Redrive("r", sql=sql)
    plan = redrive.plan(spark, target, wish, redrive.note_of(target, wish), SystemClock().now())
    return [letter.offset for letter in plan.letters]


def test_conditions_reach_payload_attributes_error_and_time(
    spark: SparkSession, queues: tuple[str, QueueManager], subtests: pytest.Subtests
) -> None:
    url, _ = queues
    cases = {
        "status = 503": [1, 3, 5],
        "payload:amount::int > 100": [3, 4, 5],
        "attributes['tenant'] = 'us' AND payload:amount::int < 150": [0, 2],
        "error LIKE 'no customer 2%'": [2],
        "error_pattern = 'no customer …' AND payload IS NULL": [6],
        "at > now() - INTERVAL 1 HOUR AND reason = 'explicit_nack'": [0, 1, 2, 3, 4, 5, 6],
        "at < now() - INTERVAL 1 HOUR": [],
    }
    for sql, offsets in cases.items():
        with subtests.test(sql=sql):
            assert selected(spark, url, sql) == offsets
    for sql in ("nonsense = 1", "status ="):
        with subtests.test(sql=sql), pytest.raises(InvalidArgument, match="the condition"):
            selected(spark, url, sql)


def test_the_condition_of_a_group_selects_its_letters(spark: SparkSession, queues: tuple[str, QueueManager]) -> None:
    url, _ = queues
    target = Target(endpoint=url)
    letters = dead_letters.read(spark, target, (), dead_letters.end_of_events(target))
    groups = report(triage.groups(letters), to_datetime(0)).groups
    assert sum(len(selected(spark, url, group.condition)) for group in groups if group.status) == 3
    assert all(len(selected(spark, url, group.condition)) >= group.count for group in groups)


def test_the_command_shows_the_plan_moves_each_letter_once_and_continues(
    spark: SparkSession, queues: tuple[str, QueueManager], tmp_path: Path
) -> None:
    url, queue = queues
    penstock = Penstock(tmp_path, {"PENSTOCK_SERVER": url, "PYTHONPATH": PYTHONPATH})
    wish = ("pipeline", "redrive", "queue:orders", "--sql", "status = 503")

    planned = penstock(*wish, "--dry-run")
    assert planned.code == 0, planned.err
    assert "3 dead letters" in planned.out
    assert "queue:orders still fails" in planned.out
    refused = penstock(*wish)
    assert refused.code != 0
    assert "although queue:orders still fails without --yes" in refused.err
    assert len(queue.dead_letters("orders")) == 7

    # The first slice moved when the command was cut off, and its letters died again.
    target = Target(endpoint=url)
    limited = Redrive("incident-7", streams=("queue:orders",), sql="status = 503", limit=2)
    begin(target, limited, redrive.note_of(target, limited))
    done = penstock(*wish, "--yes", "--json", "--rate", "50", "--limit", "2", "--redrive-id", "incident-7")
    assert done.code == 0, done.err
    assert (done.json["redriven"], done.json["letters"]) == ({"queue:orders": 2}, 2)
    assert kill(queue, "status 503") == [1, 3], "in order"
    again = penstock(*wish, "--yes", "--limit", "2", "--redrive-id", "incident-7")
    assert again.code == 0, again.err
    assert "no dead letters are left" in again.err
    assert kill(queue, "x") == []

    other = penstock(*wish, "--yes", "--redrive-id", "incident-7")
    assert other.code != 0
    assert "limit is 'missing' and was '2'" in other.err
