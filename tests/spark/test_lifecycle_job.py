"""Lifecycle and metrics as jobs: from a real server into a lake and back into a stream, each row once."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from penstock import Message, MessageQueue, QueueManager
from penstock.log.arrow import read_stream
from penstock.pipeline.job import Plan, Target
from penstock.pipeline.jobs import lifecycle, metrics
from penstock.pipeline.lake.table import Lake
from penstock.pipeline.recent_metrics import LEVELS, recent
from penstock.pipeline.schemas import METRICS_STREAM
from penstock.testing import ManualClock
from penstock.testing.server import LocalServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def rows_of(lake: str, table: str) -> list[dict[str, Any]]:
    """All rows of a table of the lake, as any reader of Delta tables finds them."""
    return [*DeltaTable(f"{lake}/{table}").to_pyarrow_dataset().to_table().to_pylist()]


def run(spark: SparkSession, plan: Plan, job: ModuleType) -> dict[str, Any]:
    """Run a job until it has caught up; returns what its query has observed."""
    (query,) = job.start(spark, plan)
    assert query.awaitTermination(200)
    observed: Counter[str] = Counter()
    for progress in query.recentProgress:
        for row in progress.observedMetrics.values():
            observed.update(row.asDict())
    return dict(observed)


def traffic(server: LocalServer, clock: ManualClock, seconds: int) -> None:
    """In every second five messages, delivered half a second and acked three quarters of a second after their publishing."""
    shop = MessageQueue(broker=server.broker)
    for _ in range(seconds):
        shop.publish("orders", [Message(data=b"x")] * 5)
        clock.advance(0.5)
        received = shop.pull("billing", 5)
        clock.advance(0.25)
        shop.ack_many([message.ack_id for message in received])
        clock.advance(0.25)
    server.broker.sync()


def told(server: LocalServer) -> list[dict[str, Any]]:
    """What was published to the stream of the metrics."""
    batches = read_stream(server.broker, METRICS_STREAM)
    return [json.loads(value.as_py()) for batch in batches for value in batch.column("value")]


def test_lives_and_metrics_reach_the_lake_and_the_stream_once_over_several_runs(spark: SparkSession, tmp_path: Path) -> None:
    clock = ManualClock(datetime(2026, 9, 1, 12, tzinfo=UTC))
    with LocalServer(clock=clock) as server:
        shop = MessageQueue(broker=server.broker)
        shop.register_topic("orders")
        shop.register_subscription("billing", "orders")
        lake = str(tmp_path / "lake")
        target = Target(endpoint=server.url)
        plan = Plan(target, lake, str(tmp_path / "checkpoints"), is_once=True, window="1 second", watermark="1 second")

        traffic(server, clock, 4)
        observed = run(spark, plan, lifecycle)
        run(spark, plan, metrics)
        first = rows_of(lake, "metrics")
        traffic(server, clock, 4)
        run(spark, plan, lifecycle)
        run(spark, plan, metrics)

        assert observed == {"rows": 20, "late": 0}
        lives = rows_of(lake, "lifecycle")
        assert sorted(life["message_offset"] for life in lives) == list(range(40))
        assert {(life["outcome"], life["wait_ms"], life["processing_ms"]) for life in lives} == {("acked", 500.0, 250.0)}

        rows = rows_of(lake, "metrics")
        windows = Counter((row["window_start"], row["stream"], row["subscription"]) for row in rows)
        assert 4 <= len(first) < len(rows)
        assert set(windows.values()) == {1}
        assert {(row["published"], row["delivered"], row["acked"]) for row in rows} == {(5, 0, 0), (0, 5, 5)}
        published = told(server)
        assert len(published) == len(rows)
        assert Counter(row["subscription"] for row in published) == Counter(row["subscription"] for row in rows)
        assert published[0]["window_start"].startswith("2026-09-01T12:00:0")
        assert {cursor.name for cursor in server.broker.cursors.all()} >= {"lifecycle", "metrics"}


def test_what_waits_is_measured_also_when_nothing_is_settled(spark: SparkSession, tmp_path: Path) -> None:
    with LocalServer() as server:
        queues = QueueManager(broker=server.broker)
        queues.create("jobs")
        for priority in (1, 1, 9):
            queues.publish("jobs", "x", priority=priority)
        lake = str(tmp_path / "lake")
        plan = Plan(
            Target(endpoint=server.url),
            lake,
            str(tmp_path / "checkpoints"),
            streams="queue:jobs",
            window="1000 milliseconds",
            watermark="1 second",
        )
        queries = [*lifecycle.start(spark, plan), *metrics.start(spark, plan)]
        try:
            deadline = time.monotonic() + 200
            while not Lake(lake).table("metrics").files() and all(query.isActive for query in queries):
                assert time.monotonic() < deadline, "no window has closed"
                threading.Event().wait(0.2)
        finally:
            for query in queries:
                query.stop()

        (row,) = rows_of(lake, "metrics")
        assert (row["stream"], row["published"], row["delivered"]) == ("queue:jobs", 3, 0)
        levels = [level for level in recent(lake, 10, LEVELS) if level["kind"] == "queue"]
        found = {level["priority"]: (level["ready"], level["oldest_age_ms"]) for level in levels}
        assert {priority: ready for priority, (ready, _) in found.items()} == {None: 3, 1: 2, 9: 1}
        assert found[None][1] > 0
        with urllib.request.urlopen(f"{server.url}/console/api/levels/history") as answer:
            assert json.load(answer)["windows"][0][0]["name"] == "jobs"
