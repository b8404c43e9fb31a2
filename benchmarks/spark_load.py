"""A Spark session under load, in a process of its own: `python -m benchmarks.spark_load KIND …`; the last line is JSON."""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from benchmarks.load import STREAM
from benchmarks.row import PAYLOAD, alternate, payloads
from penstock import Message, MessageQueue
from penstock.clock import SystemClock
from penstock.log.arrow import MESSAGES as ARROW_MESSAGES
from penstock.pipeline.job import Target
from penstock.pipeline.jobs import triage as triage_job
from penstock.pipeline.schemas import MESSAGES
from penstock.pipeline.session import session

Figures = dict[str, list[float]]


def started(cores: int = 2) -> SparkSession:
    return session("penstock-benchmark", master=f"local[{cores}]", conf={"spark.ui.enabled": "false"})


class Nothing(DataSource):
    """What a Python data source costs that has its batches at hand: the same columns and rows, from nothing."""

    @classmethod
    def name(cls) -> str:
        return "nothing"

    def schema(self) -> str:
        return MESSAGES

    def reader(self, schema: object) -> DataSourceReader:
        return FromNothing(int(self.options["rows"]), int(self.options["partitions"]))


class FromNothing(DataSourceReader):
    def __init__(self, rows: int, partitions: int) -> None:
        self.rows, self.count = rows, partitions

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(self.rows // self.count) for _ in range(self.count)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        rows = 65_536
        columns: list[Any] = [
            [STREAM] * rows,
            range(rows),
            [f"{number:030x}" for number in range(rows)],
            [None] * rows,
            [b"%0*d" % (PAYLOAD, number) for number in range(rows)],
            [None] * rows,
            [5] * rows,
            [1_700_000_000_000_000] * rows,
            [None] * rows,
            [0] * rows,
        ]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, ARROW_MESSAGES, strict=True)]
        batch = pa.record_batch(arrays, schema=ARROW_MESSAGES)
        left = partition.value
        while left > 0:
            yield batch.slice(0, min(left, rows))
            left -= rows


def source(spark: SparkSession, **options: object) -> DataFrame:
    reader = spark.read.format("penstock").option("subscribe", STREAM)
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load()


def timed(rows: int, work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return rows / (time.perf_counter() - start)


def to_parquet(frame: DataFrame, where: Path) -> Callable[[], object]:
    return lambda: frame.write.mode("overwrite").parquet(str(where))


def read(url: str, data_dir: str, count: int, turns: int, where: Path) -> Figures:
    """A whole stream into Parquet: through a server, from its data directory, from nothing, and Parquet into Parquet."""
    spark = started()
    spark.dataSource.register(Nothing)
    made = spark.read.format("nothing").option("rows", count).option("partitions", 2).load()
    to_parquet(made, where / "copied")()
    frames = {
        "nothing": made,
        "endpoint": source(spark, endpoint=url),
        "path": source(spark, path=data_dir),
        "copy": spark.read.parquet(str(where / "copied")),
    }
    works = {name: to_parquet(frame, where / name) for name, frame in frames.items()}
    for name in ("endpoint", "path"):
        works[name]()
        found = spark.read.parquet(str(where / name)).count()
        assert found == count, f"{name}: {found} rows, expected {count}"
    return alternate(turns, {name: lambda work=work: timed(count, work) for name, work in works.items()})  # type: ignore[misc]  # a default cannot be typed


def write(url: str, count: int, turns: int, where: Path) -> Figures:
    """Rows into a durable topic by the sink, beside the broker's own durable publish."""
    spark = started()
    rows = spark.range(count).selectExpr(f"lpad(cast(id as string), {PAYLOAD}, '0') as value").repartition(2).cache()
    rows.count()
    writer = rows.write.format("penstock").mode("append").option("endpoint", url).option("topic", STREAM)
    batch = [Message(data=each) for each in payloads(1_000)]
    with MessageQueue(data_dir=where / "own") as queue:
        queue.register_topic(STREAM)

        def own() -> None:
            for _ in range(count // len(batch)):
                queue.publish(STREAM, batch)

        writer.save()
        return alternate(turns, {"sink": lambda: timed(count, writer.save), "own": lambda: timed(count, own)})


def sizes(url: str, counts: list[int]) -> Figures:
    """Rows a second of ever larger ranges of one stream, without what an empty job takes."""
    spark = started()

    def seconds(rows: int) -> float:
        frame = source(spark, endpoint=url, endingOffsets=json.dumps({STREAM: rows}))
        start = time.perf_counter()
        frame.write.format("noop").mode("overwrite").save()
        return time.perf_counter() - start

    seconds(counts[0])
    empty = statistics.median(seconds(1) for _ in range(3))
    return {str(rows): [(seconds(rows) - empty) / rows * 1e6 for _ in range(3)] for rows in counts}


def plan(url: str, batches: int, where: Path) -> Figures:
    """What a micro-batch over every stream of a server costs before it reads anything, in milliseconds."""
    spark = started()
    frame = (
        spark.readStream.format("penstock")
        .option("endpoint", url)
        .option("subscribePattern", ".*")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 300)
        .load()
    )
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(where / "plan"))
    query = writer.trigger(processingTime="0 seconds").start()
    until = time.monotonic() + 120
    while time.monotonic() < until and len(query.recentProgress) < batches + 5:
        time.sleep(0.2)
    progress = [each for each in query.recentProgress if each["numInputRows"] > 0][5:]
    query.stop()
    names = ("latestOffset", "getBatch", "queryPlanning")
    return {
        "planning": [sum(float(each["durationMs"].get(name, 0)) for name in names) for each in progress],
        "batch": [float(each["durationMs"]["triggerExecution"]) for each in progress],
    }


def triage(url: str, turns: int) -> Figures:
    """Seconds of a triage of all dead letters, with nothing of Spark's start, and how many groups it finds."""
    spark, seconds, groups = started(), list[float](), list[float]()
    for _ in range(turns):
        start = time.perf_counter()
        found = triage_job.run(spark, Target(endpoint=url), triage_job.Triage(), SystemClock().now())
        seconds.append(time.perf_counter() - start)
        groups.append(len(found.groups))
    return {"seconds": seconds, "groups": groups}


def forever(spark: SparkSession, url: str) -> None:
    """Read a stream at full speed again and again, until the process is ended."""
    frame = source(spark, endpoint=url)
    frame.write.format("noop").mode("overwrite").save()
    gateway = spark.sparkContext._gateway
    assert gateway is not None, "it has started"
    print("reading in", gateway.proc.pid, flush=True)
    while True:
        frame.write.format("noop").mode("overwrite").save()


def main(kind: str, *arguments: str) -> None:
    where = Path(tempfile.mkdtemp())
    try:
        match kind:
            case "read":
                url, data_dir, count, turns = arguments
                found = read(url, data_dir, int(count), int(turns), where)
            case "write":
                url, count, turns = arguments
                found = write(url, int(count), int(turns), where)
            case "sizes":
                found = sizes(arguments[0], [int(each) for each in arguments[1:]])
            case "plan":
                found = plan(arguments[0], int(arguments[1]), where)
            case "triage":
                found = triage(arguments[0], int(arguments[1]))
            case "background":
                forever(session("penstock-benchmark", conf={"spark.ui.enabled": "false"}, background=True), arguments[0])
                return
            case _:
                forever(started(), arguments[0])
                return
        print(json.dumps(found))
    finally:
        shutil.rmtree(where)


if __name__ == "__main__":
    main(*sys.argv[1:])
