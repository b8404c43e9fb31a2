"""What a user's program does on a cluster: read a topic, write to another, and live through tasks that fail. Prints what it saw.

`python job.py '{"endpoint": …, "source": …, "target": …}'`, or the same through spark-submit.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql import SparkSession

from penstock.pipeline.sink import BatchSink, StagedParts
from penstock.pipeline.source import PenstockDataSource

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class FlakySink(BatchSink):
    """Its tasks fail once each, after they have staged everything."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedParts:
        """Stage, and fail the first time."""
        staged = super().write(iterator)
        context = TaskContext.get()
        assert context is not None, "Spark calls it in a task"
        if context.attemptNumber() == 0:
            raise RuntimeError("this task fails once")
        return staged


class FlakyDataSource(PenstockDataSource):
    """Writes as ours does, but for its tasks."""

    @classmethod
    def name(cls) -> str:
        """What is written in `format`."""
        return "flaky"

    def writer(self, schema: StructType, overwrite: bool) -> FlakySink:
        """For `df.write`."""
        return FlakySink(self.options, schema, overwrite)


def where(_: Iterable[int]) -> Iterator[tuple[str, str]]:
    """In a task: which Python runs it, and where it has Penstock from."""
    import penstock  # the executor's, not the driver's

    yield sys.executable, str(penstock.__file__)


def main(given: dict[str, Any]) -> None:
    """Read, write, print."""
    spark = SparkSession.builder.appName("cluster job").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    if given.get("is_sent"):
        # A data source that Spark finds by itself is sent to executors without the files of --py-files.
        spark.dataSource.register(PenstockDataSource)
    spark.dataSource.register(FlakyDataSource)
    endpoint = given["endpoint"]
    table = (
        spark.read.format("penstock")
        .option("endpoint", endpoint)
        .option("subscribe", given["source"])
        .option("minPartitions", "4")
        .load()
    )
    for name in ("penstock", "flaky"):
        table.select("value", "key").write.format(name).option("endpoint", endpoint).option("topic", given["target"]).mode(
            "append"
        ).save()
    found = spark.sparkContext.parallelize(range(4), 4).mapPartitions(where).distinct().collect()
    seen = {"rows": table.count(), "master": spark.sparkContext.master, "where": sorted(found)}
    spark.stop()
    print("RESULT " + json.dumps(seen), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
