"""Streaming writes: each batch once, whatever is repeated."""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.errors import InvalidArgument
from penstock.pipeline import publish_batches
from penstock.pipeline.failure import failure_of
from tests.spark.sink_place import Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

pytestmark = pytest.mark.spark

_numbers = count()


class Flow:
    """Files of lines that become messages, a file a batch."""

    def __init__(self, spark: SparkSession, place: Place, directory: Path) -> None:
        self.place = place
        self.topic = f"flow-{next(_numbers)}"
        self.checkpoint = directory / "checkpoint"
        self._lines = directory / "lines"
        self._lines.mkdir()
        self._spark = spark
        place.topic(self.topic)

    def add(self, *lines: str) -> None:
        """A file more."""
        number = len(list(self._lines.iterdir()))
        file = self._lines / f"{number:04}.txt"
        file.write_text("\n".join(lines))
        os.utime(file, (number, number))  # Spark takes the oldest first, and two of a moment in any order

    def table(self) -> DataFrame:
        return self._spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(self._lines))

    def writer(self, table: DataFrame | None = None, **options: str) -> DataStreamWriter:
        """A query to be started."""
        told = self.place.options(topic=self.topic, checkpointLocation=self.checkpoint, **options)
        source = self.table() if table is None else table
        return source.writeStream.format("penstock").options(**told).trigger(availableNow=True)

    def run(self, table: DataFrame | None = None, **options: str) -> None:
        """All that there is, then an end."""
        query = self.writer(table, **options).start()
        query.awaitTermination()

    def forget_last_commit(self) -> None:
        """As if the driver had been killed after the sink's commit and before it was written down: the batch comes again."""
        commits = self.checkpoint / "commits"
        last = max((file for file in commits.iterdir() if file.name.isdigit()), key=lambda file: int(file.name))
        last.unlink()
        (commits / f".{last.name}.crc").unlink(missing_ok=True)

    def values(self) -> list[bytes]:
        return self.place.values(self.topic)


@pytest.fixture
def flow(spark: SparkSession, place: Place, tmp_path: Path) -> Flow:
    return Flow(spark, place, tmp_path)


def test_each_batch_is_written_once_also_when_it_is_repeated_and_the_next_run_goes_on(flow: Flow) -> None:
    flow.add("a", "b")
    flow.add("-")
    flow.add("c")
    flow.run(flow.table().where("value <> '-'"))
    flow.forget_last_commit()
    flow.add("d")
    flow.run(flow.table().where("value <> '-'"))

    assert flow.values() == [b"a", b"b", b"c", b"d"]


def test_what_a_query_updates_is_published_once_for_each_batch(flow: Flow) -> None:
    """The sink itself knows no update mode; foreachBatch does."""
    flow.add("a", "b", "a")
    flow.add("a")
    publish = publish_batches(endpoint=flow.place.server.url, topic=flow.topic)
    for _ in range(2):
        counts = flow.table().groupBy("value").count().selectExpr("concat(value, ' ', count) as value")
        query = counts.writeStream.outputMode("update").foreachBatch(publish).option("checkpointLocation", str(flow.checkpoint))
        assert query.trigger(availableNow=True).start().awaitTermination(100)
        flow.forget_last_commit()

    assert sorted(flow.values()) == [b"a 2", b"a 3", b"b 1"]
    with pytest.raises(InvalidArgument, match="Spark numbers the batches"):
        publish_batches(batch=3)


@pytest.mark.long
def test_a_query_by_another_name_is_another(flow: Flow) -> None:
    flow.add("a")
    flow.run(query="one")
    flow.forget_last_commit()
    flow.run(query="one")
    flow.forget_last_commit()
    flow.run(query="two")

    assert flow.values() == [b"a", b"a"]


@pytest.mark.long
def test_two_queries_into_one_topic_do_not_meet(flow: Flow, tmp_path: Path) -> None:
    flow.add("a")
    flow.run()
    flow.checkpoint = tmp_path / "another"
    flow.run()

    assert flow.values() == [b"a", b"a"]


@pytest.mark.long
def test_foreach_batch_with_query_and_batch(flow: Flow) -> None:
    flow.add("a")
    flow.add("b")
    options = flow.place.options(topic=flow.topic, query="each")

    def publish(table: DataFrame, batch: int) -> None:
        for _ in range(2):
            table.write.format("penstock").options(**options).option("batch", str(batch)).mode("append").save()

    for _ in range(2):
        flow.table().writeStream.foreachBatch(publish).option("checkpointLocation", str(flow.checkpoint)).trigger(
            availableNow=True
        ).start().awaitTermination()
        flow.forget_last_commit()

    assert flow.values() == [b"a", b"b"]


@pytest.mark.long
def test_writes_of_foreach_batch_that_have_no_name_are_not_taken_for_one(flow: Flow) -> None:
    flow.add("a")
    flow.add("b")
    options = flow.place.options(topic=flow.topic)

    def publish(table: DataFrame, batch: int) -> None:
        table.write.format("penstock").options(**options).mode("append").save()
        table.write.format("penstock").options(**options).mode("append").save()

    flow.table().writeStream.foreachBatch(publish).option("checkpointLocation", str(flow.checkpoint)).trigger(
        availableNow=True
    ).start().awaitTermination()

    assert flow.values() == [b"a", b"a", b"b", b"b"]


@pytest.mark.long
def test_rows_as_json(flow: Flow) -> None:
    flow.add("a")
    flow.run(flow.table().selectExpr("value as word", "length(value) as size"), payload="json")

    assert flow.values() == [b'{"word":"a","size":1}']


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch": "1", "query": "q"}, "batch is 1, expected none in a stream"),
        ({"topics": "x"}, "did you mean topic?"),
    ],
)
@pytest.mark.long
def test_options_that_are_wrong(flow: Flow, options: dict[str, str], said: str) -> None:
    flow.add("a")

    with pytest.raises(Exception, match=r"penstock\.errors") as raised:
        flow.run(None, **options)

    assert said in str(failure_of(raised.value))
    assert flow.values() == []


@pytest.mark.long
def test_complete_mode_is_refused(flow: Flow) -> None:
    flow.add("a")
    counts = flow.table().groupBy("value").count().selectExpr("value")

    with pytest.raises(Exception, match="a log is only appended to"):
        flow.writer(counts).outputMode("complete").start().awaitTermination()


def test_an_error_in_a_row_says_which_and_the_stream_goes_on_when_it_is_mended(flow: Flow) -> None:
    flow.add("good", "", "last")
    with pytest.raises(Exception, match=r"penstock\.errors") as raised:
        flow.run()
    assert "row 1" in str(failure_of(raised.value)), str(failure_of(raised.value))
    assert flow.values() == []

    flow.run(flow.table().selectExpr("if(value = '', '-', value) as value"))

    assert flow.values() == [b"good", b"-", b"last"]
