"""Runs archive, lifecycle and metrics in one Spark session, with one Java process and one set of workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.pipeline.jobs import archive, lifecycle, metrics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from penstock.pipeline.job import Plan, Start


def stages(plan: Plan) -> list[Start]:
    """The stages of a run; each starts when the queries of the previous one have ended. Continuous jobs are one stage.

    Metrics are computed from the lives that `lifecycle` writes, so with `is_once` those are written first.
    """
    if plan.is_once:
        return [_together(archive.start, lifecycle.start), metrics.start]
    return [_together(archive.start, lifecycle.start, metrics.start)]


def _together(*starts: Start) -> Start:
    def start(spark: SparkSession, plan: Plan) -> list[StreamingQuery]:
        queries: list[StreamingQuery] = []
        try:
            for begin in starts:
                queries += begin(spark, plan)
        except BaseException:  # if one cannot start, stop the others
            for query in queries:
                query.stop()
            raise
        return queries

    return start
