"""Archive, lifecycle and metrics in one Spark session: one Java, one set of workers, three jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.pipeline.jobs import archive, lifecycle, metrics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from penstock.pipeline.job import Plan, Start


def stages(plan: Plan) -> list[Start]:
    """What is started one after the other, each when the queries of the one before have ended: all at once, if they continue.

    Metrics are made of the lives that `lifecycle` writes, so that a run that ends lets them be written first.
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
        except BaseException:  # none is left running when one cannot start
            for query in queries:
                query.stop()
            raise
        return queries

    return start
