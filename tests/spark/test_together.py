"""Three jobs in one session: what starts when, and what happens when one cannot."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.errors import InvalidArgument
from penstock.pipeline.job import Plan, Target
from penstock.pipeline.jobs import archive, lifecycle, metrics
from penstock.pipeline.jobs import run_all as together

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.spark


def plan(*, is_once: bool = False) -> Plan:
    return Plan(Target(path="data"), lake="lake", checkpoints="checkpoints", is_once=is_once)


def test_all_start_at_once_and_none_is_left_when_one_cannot(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[StreamingQuery] = []

    def start(session: SparkSession, _: Plan) -> list[StreamingQuery]:
        rows = session.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
        begun.append(rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / str(len(begun)))).start())
        return begun[-1:]

    def fail(session: SparkSession, _: Plan) -> list[StreamingQuery]:
        raise InvalidArgument("no")

    monkeypatch.setattr(archive, "start", start)
    monkeypatch.setattr(lifecycle, "start", start)
    monkeypatch.setattr(metrics, "start", fail)
    [stage] = together.stages(plan())
    with pytest.raises(InvalidArgument):
        stage(spark, plan())

    assert [query.isActive for query in begun] == [False, False]


def test_run_once_metrics_wait_for_the_lives_that_they_are_made_of() -> None:
    first, second = together.stages(plan(is_once=True))

    assert first is not second
    assert second is metrics.start
