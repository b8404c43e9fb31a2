"""Reading with Spark: `format("penstock")` as users write it, from a real server and from its data directory."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException

from penstock import Message, MessageQueue
from penstock.log.http import HttpLog
from penstock.pipeline import Lag, lag
from penstock.pipeline.core.options import VIEWS
from penstock.pipeline.session import session
from penstock.testing.server import LocalServer
from tests.docs.pages import ROOT, blocks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

_numbers = itertools.count()


class Place:
    """A server on disk that the tests share; every test has streams of its own."""

    def __init__(self, server: LocalServer, data: Path) -> None:
        self.server = server
        self.queue = MessageQueue(broker=server.broker)
        self.ways = {"endpoint": server.url, "path": str(data)}

    def topic(self, rows: int = 0, prefix: str = "orders") -> str:
        """A new topic with so many messages, each with its offset as text."""
        name = f"{prefix}-{next(_numbers):03}"
        self.queue.register_topic(name)
        self.publish(name, *(b"%d" % offset for offset in range(rows)))
        return name

    def publish(self, topic: str, *payloads: bytes, key: str = "") -> list[str]:
        messages = [Message(data=payload, ordering_key=key, attributes={"n": str(n)}) for n, payload in enumerate(payloads)]
        return self.queue.publish(topic, messages) if messages else []

    def way(self, name: str = "endpoint") -> dict[str, str]:
        return {name: self.ways[name]}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    data = tmp_path_factory.mktemp("data")
    with LocalServer(data_dir=data) as server:
        yield Place(server, data)


def read(spark: SparkSession, **options: str) -> DataFrame:
    return spark.read.format("penstock").options(**options).load()


def collected(spark: SparkSession, checkpoint: Path, **options: str) -> tuple[list[list[tuple[str, int]]], StreamingQuery]:
    """The (stream, offset) of every batch of a query that takes what there is."""
    batches: list[list[tuple[str, int]]] = []

    def keep(frame: DataFrame, _: int) -> None:
        batches.append(sorted((row.stream, row.offset) for row in frame.select("stream", "offset").collect()))

    query = (
        spark.readStream.format("penstock")
        .options(**{"startingOffsets": "earliest", **options})
        .load()
        .writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return batches, query


def places(topic: str, *offsets: int) -> list[tuple[str, int]]:
    return [(topic, offset) for offset in offsets]


@pytest.mark.parametrize("way", ["endpoint", pytest.param("path", marks=pytest.mark.long)])
def test_every_view_has_its_columns_and_gives_its_rows(spark: SparkSession, place: Place, way: str) -> None:
    topic = place.topic(3)
    for view, columns in VIEWS.items():
        frame = read(spark, **place.way(way), subscribe=topic, view=view)
        wanted = [column.split(" ", 2) for column in columns.split(", ")]
        assert [(field.name, field.dataType.simpleString()) for field in frame.schema] == [
            (name, kind) for name, kind, *_ in wanted
        ]
        assert len(frame.collect()) == {"messages": 3, "events": 4, "deadletters": 0}[view]
        assert [column for column, _ in read(spark, **place.way(way), subscribe=topic, view=view, columns="offset").dtypes] == [
            "offset"
        ]
    (row, *_) = read(spark, **place.way(way), subscribe=topic).collect()
    assert (row.stream, row.offset, row.key, bytes(row.value), row.attributes) == (topic, 0, None, b"0", {"n": "0"})
    assert (row.priority, row.expires_at, row.partition) == (5, None, 0)
    assert abs((datetime.now(UTC) - row.publish_time.replace(tzinfo=UTC)).total_seconds()) < 3_600
    assert read(spark, **place.way(way), subscribe=place.topic()).collect() == []


def test_large_binary_and_chosen_columns(spark: SparkSession, place: Place) -> None:
    topic = place.topic()
    large = bytes(range(256)) * (10 * 1024 * 4 - 1)
    place.publish(topic, large, b"\xff\xfe\x00", key="ключ")

    rows = read(spark, **place.way(), subscribe=topic, columns="value,key").collect()
    assert [(bytes(row.value), row.key) for row in rows] == [(large, "ключ"), (b"\xff\xfe\x00", "ключ")]
    assert read(spark, **place.way(), subscribe=topic, includeHeaders="false").columns.count("attributes") == 0
    asked = spark.read.format("penstock").schema("offset bigint, key string").options(**place.way(), subscribe=topic).load()
    assert [tuple(row) for row in asked.collect()] == [(0, "ключ"), (1, "ключ")]


def test_a_frame_can_be_used_again_with_other_filters(spark: SparkSession, place: Place, subtests: pytest.Subtests) -> None:
    topic = place.topic(10)
    for pushdown in ("true", "false"):  # Spark's own setting for all sources
        spark.conf.set("spark.sql.python.filterPushdown.enabled", pushdown)
        try:
            with subtests.test(pushdown=pushdown):
                frame = read(spark, **place.way(), subscribe=topic, columns="offset")
                assert frame.where("offset < 2").count() == 2
                assert frame.count() == 10
                both = frame.where("offset < 2").union(frame.where("offset >= 7"))
                assert sorted(row.offset for row in both.collect()) == [0, 1, 7, 8, 9]
                assert frame.where("offset = 3").crossJoin(frame.where("offset < 5")).count() == 5
        finally:
            spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_pushed_filters_are_refused_with_what_to_write(spark: SparkSession, place: Place) -> None:
    with pytest.raises(
        PySparkException, match=r"pushFilters is 'true', and there is no such option any more(.|\n)*startingOffsets"
    ):
        read(spark, **place.way(), subscribe=place.topic(1), pushFilters="true").collect()


def test_a_query_goes_on_from_its_checkpoint_and_finds_new_streams(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    first = place.topic(5, prefix="goes")
    options = {**place.way("path"), "subscribePattern": "goes-.*"}

    assert collected(spark, tmp_path, **options)[0] == [places(first, 0, 1, 2, 3, 4)]
    place.publish(first, b"5", b"6")
    second = place.topic(2, prefix="goes")
    batches, query = collected(spark, tmp_path, **options, maxOffsetsPerTrigger="3")
    assert sorted(itertools.chain(*batches)) == places(first, 5, 6) + places(second, 0, 1)
    assert [len(batch) for batch in batches] == [2, 2], "a new stream is placed by one batch and read by the next"
    progress = query.lastProgress
    assert progress is not None
    ends = {stream: end["offset"] for stream, end in json.loads(progress["sources"][0]["latestOffset"]).items()}
    assert ends == {stream: end for stream, (_, end) in json.loads(progress["sources"][0]["endOffset"]).items()}
    assert collected(spark, tmp_path, **options)[0] == []


def test_a_batch_that_was_not_finished_is_read_again_as_it_was(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    topic = place.topic(6)
    options = {**place.way(), "subscribe": topic, "maxOffsetsPerTrigger": "2"}
    before, _ = collected(spark, tmp_path, **options)
    (tmp_path / "commits" / "2").unlink()
    (tmp_path / "commits" / ".2.crc").unlink(missing_ok=True)
    place.publish(topic, b"6")
    after, _ = collected(spark, tmp_path, **options)

    assert before == [places(topic, 0, 1), places(topic, 2, 3), places(topic, 4, 5)]
    assert after == [places(topic, 4, 5), places(topic, 6)]


@pytest.mark.long
def test_a_first_batch_that_was_not_finished_loses_nothing_of_what_came_since(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    topic = place.topic(3)
    options = {**place.way(), "subscribe": topic, "startingOffsets": "latest"}
    before, _ = collected(spark, tmp_path, **options)
    (tmp_path / "commits" / "0").unlink()
    (tmp_path / "commits" / ".0.crc").unlink(missing_ok=True)
    place.publish(topic, b"3", b"4")
    after, _ = collected(spark, tmp_path, **options)

    assert before == [[]]
    assert after == [[], places(topic, 3, 4)]


@pytest.mark.long
def test_a_stream_deleted_under_a_query(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    topic = place.topic(3)
    options = {**place.way(), "subscribe": topic}
    collected(spark, tmp_path, **options)
    place.queue.unregister_topic(topic)
    place.queue.register_topic(topic)
    place.publish(topic, b"new")

    with pytest.raises(
        StreamingQueryException, match=rf"stream '{topic}' \(number \d+\) was deleted and created again"
    ) as caught:
        collected(spark, tmp_path, **options)
    assert "failOnDataLoss" in str(caught.value)
    assert collected(spark, tmp_path, **options, failOnDataLoss="false")[0] == [[], places(topic, 0)]


def test_one_row_a_batch_and_a_cursor_with_lag(spark: SparkSession, place: Place, tmp_path: Path) -> None:
    topic = place.topic(3)
    name = f"cursor-of-{topic}"
    batches, query = collected(spark, tmp_path, **place.way(), subscribe=topic, maxOffsetsPerTrigger="1", cursor=name)
    first, *_, last = query.recentProgress
    assert (lag(first)[topic].rows, lag(last)) == (2, {topic: Lag(0, 0)})
    assert 2 <= (lag(first)[topic].bytes or 0) < 1_000
    place.publish(topic, b"3", b"4")
    log = HttpLog(place.server.url)
    (cursor,) = [cursor for cursor in log.cursors() if cursor.name == name]
    log.close()

    assert batches == [places(topic, 0), places(topic, 1), places(topic, 2)]
    assert (cursor.offsets, cursor.lag) == ({topic: 3}, {topic: 2})


def test_errors_reach_the_user_in_our_words(spark: SparkSession, place: Place, subtests: pytest.Subtests) -> None:
    cases = {
        "no-such-stream": {"subscribe": "no-such-stream"},
        "startingoffset is no option; did you mean startingOffsets": {"subscribe": "a", "startingOffset": "earliest"},
        "subscribe and subscribePattern are given, expected one of them": {"subscribe": "a", "subscribePattern": "x"},
        "minPartitions is 'none', expected a whole number": {"subscribe": "a", "token": "hush-hush", "minPartitions": "none"},
    }
    for told, options in cases.items():
        with subtests.test(told=told):
            with pytest.raises(PySparkException, match=told) as caught:
                read(spark, **place.way(), **options).collect()
            assert "hush" not in str(caught.value)


def test_the_server_may_be_a_setting_of_the_session(spark: SparkSession, place: Place) -> None:
    topic = place.topic(3)
    session("again", conf={"spark.penstock.endpoint": place.server.url})
    try:
        assert read(spark, subscribe=topic).count() == 3
    finally:
        session("again")
    with pytest.raises(PySparkException, match="endpoint and path are missing"):
        read(spark, subscribe=topic)


def test_plans_do_not_show_the_token(
    spark: SparkSession, place: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {**place.way(), "subscribe": place.topic(1), "token": "hush-hush"}
    read(spark, **options).explain("extended")
    shown = capsys.readouterr().out
    query = spark.readStream.format("penstock").options(**options).load().writeStream.format("noop")
    running = query.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    running.awaitTermination()
    running.explain(extended=True)
    shown += capsys.readouterr().out + str(running.lastProgress)

    assert "penstock" in shown
    assert "hush" not in shown


@pytest.mark.long
def test_the_page_of_options_runs(spark: SparkSession, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "spark-options.md").read_text(encoding="utf-8")
    with LocalServer() as server:
        queue = MessageQueue(broker=server.broker)
        for topic in ("orders", "copies", "counts"):
            queue.register_topic(topic)
        queue.publish("orders", [Message(data=b"%d" % number) for number in range(7)])
        names: dict[str, Any] = {"spark": spark}
        for block in blocks(page):
            code = block.text.replace("http://127.0.0.1:8085", server.url)
            for directory in (
                "checkpoint",
                "copy",
                "counts-checkpoint",
            ):  # Java stays where it was started, whatever directory Python is in
                code = code.replace(f'"{directory}")', f'"{tmp_path / directory}")')
            if block.language == "sql":
                for statement in filter(str.strip, code.split(";")):
                    spark.sql(statement).collect()
            else:
                exec(compile(code, f"line {block.line} of the page", "exec"), names)
        for query in spark.streams.active:
            query.processAllAvailable()
            query.stop()
        assert spark.read.parquet(f"{tmp_path}/copy").count() == 7
        assert read(spark, endpoint=server.url, subscribe="copies").count() == 7
        assert [json.loads(row.value) for row in read(spark, endpoint=server.url, subscribe="counts").collect()] == [{"count": 7}]
