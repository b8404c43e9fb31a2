"""Batch writes: every column and type, the JSON payload, where rows go, and what is said when something is wrong."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.access import Keyring, Verb
from penstock.clock import SystemClock
from penstock.errors import PenstockError
from penstock.log.http import HttpLog
from penstock.pipeline.failure import failure_of
from penstock.testing.server import LocalServer
from tests.spark.sink_place import Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

_numbers = count()


@pytest.fixture
def topic(place: Place) -> str:
    """A topic of its own for each test."""
    name = f"sink-{next(_numbers)}"
    place.topic(name)
    return name


def write(table: DataFrame, place: Place, **options: object) -> None:
    table.write.format("penstock").options(**place.options(**options)).mode("append").save()


def refusal(table: DataFrame, place: Place, **options: object) -> PenstockError:
    """How a write that must fail failed, as a person reads it."""
    with pytest.raises(Exception, match=r"penstock\.errors") as raised:
        write(table, place, **options)
    return failure_of(raised.value)


def is_life(row: dict[str, Any], life: timedelta) -> bool:
    """Whether a message lives so long; it is counted from a moment before it is in the log."""
    found: timedelta = row["expires_at"] - row["publish_time"]
    return life - timedelta(seconds=1) < found <= life


def test_rows_arrive_in_the_order_of_partitions_and_rows(spark: SparkSession, place: Place, topic: str) -> None:
    write(spark.range(0, 1000, 1, 4).selectExpr("cast(id as string) as value"), place, topic=topic)

    assert place.values(topic) == [str(number).encode() for number in range(1000)]


def test_every_column(spark: SparkSession, place: Place, topic: str) -> None:
    later = datetime.now(UTC).replace(microsecond=123_456) + timedelta(hours=1)
    table = spark.createDataFrame(
        [(b"\xff\x00", "k", {"a": "b", "ü": ""}, 9, 60.5, later), (b"plain", None, None, None, None, None)],
        "value binary, key string, attributes map<string,string>, priority int, ttl double, deliver_at timestamp",
    )

    write(table.coalesce(1), place, topic=topic)

    first, second = place.rows(topic)
    assert (first["value"], first["key"], dict(first["attributes"]), first["priority"]) == (
        b"\xff\x00",
        "k",
        {"a": "b", "ü": ""},
        9,
    )
    assert is_life(first, timedelta(seconds=60.5))
    assert (second["value"], second["key"], second["attributes"], second["priority"]) == (b"plain", None, None, 5)
    assert second["expires_at"] is None
    write(spark.sql("select 'x' as value, interval '1 00:00:02.5' day to second as ttl"), place, topic=topic)
    assert is_life(place.rows(topic)[-1], timedelta(days=1, seconds=2.5))


def test_a_row_that_is_delivered_later(spark: SparkSession, place: Place, topic: str) -> None:
    place.topics.register_subscription(f"{topic}-s", topic)
    write(
        spark.sql("select 'later' as value, timestamp'2100-01-01 00:00:00' as deliver_at union all select 'now', null"),
        place,
        topic=topic,
    )

    assert [message.data for message in place.topics.pull(f"{topic}-s", 10)] == [b"now"]


def test_a_queue(spark: SparkSession, place: Place) -> None:
    place.queues.create("jobs")

    write(spark.sql("select 'work' as value, 8 as priority"), place, queue="jobs")

    message = place.queues.consume("jobs", "me")
    assert message is not None
    assert (message.payload, message.priority) == (b"work", 8)


def test_each_row_may_say_its_stream(spark: SparkSession, place: Place) -> None:
    place.topic("left", "right", "rest")
    place.queues.create("some")
    table = spark.createDataFrame(
        [("l", "left"), ("r", "right"), ("q", "queue:some"), ("none", None), ("l2", "left")], "value string, stream string"
    ).coalesce(1)

    write(table, place, topic="rest")

    found = [place.values(name) for name in ("left", "right", "queue:some", "rest")]
    assert found == [[b"l", b"l2"], [b"r"], [b"q"], [b"none"]]


def test_a_table_as_json(spark: SparkSession, place: Place, topic: str) -> None:
    table = spark.sql(
        """
        select 7L as id, 'Zoë' as name, cast(null as int) as nothing, cast(12.50 as decimal(10,2)) as amount, true as ok,
               date'2024-02-29' as day, timestamp'2024-02-29 12:00:00.25' as at, timestamp_ntz'2024-02-29 12:00:00' as wall,
               cast('hi' as binary) as raw, array(1, null) as list, map('k', named_struct('x', 1.5D)) as nested,
               'the key' as key, map('a', 'b') as attributes
        """
    )

    write(table, place, topic=topic, payload="json")

    (row,) = place.rows(topic)
    assert (row["key"], dict(row["attributes"])) == ("the key", {"a": "b"})
    assert json.loads(row["value"]) == {
        "id": 7,
        "name": "Zoë",
        "nothing": None,
        "amount": 12.5,
        "ok": True,
        "day": "2024-02-29",
        "at": "2024-02-29T12:00:00.250000Z",
        "wall": "2024-02-29T12:00:00.000000",
        "raw": "aGk=",
        "list": [1, None],
        "nested": {"k": {"x": 1.5}},
    }
    assert b'"amount":12.50,' in row["value"]


def test_partitions_without_rows_no_rows_and_no_partitions(spark: SparkSession, place: Place, topic: str) -> None:
    write(spark.range(0, 4, 1, 4).where("id in (1, 3)").selectExpr("cast(id as string) as value"), place, topic=topic)
    write(spark.range(0).selectExpr("cast(id as string) as value"), place, topic=topic)
    write(spark.createDataFrame(spark.sparkContext.emptyRDD(), "value string"), place, topic=topic)

    assert place.values(topic) == [b"1", b"3"]


def test_a_named_write_that_is_repeated_adds_nothing(spark: SparkSession, place: Place, topic: str) -> None:
    table = spark.sql("select 'once' as value")

    for batch in (0, 0, 1, 1):
        write(table, place, topic=topic, query="nightly", batch=batch)
    write(table, place, topic=topic)
    write(table, place, topic=topic)

    assert len(place.values(topic)) == 4


def test_many_parts_of_one_task(spark: SparkSession, place: Place, topic: str) -> None:
    size, rows = 1_000_000, 20
    table = spark.range(0, rows, 1, 1).selectExpr(f"rpad(cast(id as string), {size}, ' ') as value")

    write(table, place, topic=topic)

    found = place.values(topic)
    assert [int(value) for value in found] == list(range(rows))
    assert {len(value) for value in found} == {size}


def test_a_message_of_ten_megabytes_and_one_that_is_larger(spark: SparkSession, place: Place, topic: str) -> None:
    most = 10 * 1024 * 1024
    write(spark.sql(f"select repeat('x', {most}) as value"), place, topic=topic)

    error = refusal(spark.sql(f"select repeat('x', {most + 1}) as value"), place, topic=topic)

    assert [len(value) for value in place.values(topic)] == [most]
    assert re.search(rf"is {most + 1} bytes.*at most {most}", str(error)), str(error)


def test_a_table_that_cannot_be_written_is_refused_before_a_task_runs(
    spark: SparkSession, place: Place, topic: str, subtests: pytest.Subtests
) -> None:
    cases: list[tuple[str, dict[str, str], str]] = [
        ("select 1 as value", {}, "the type of column 'value' is 'int', expected string or binary"),
        ("select parse_json('1') as v", {"payload": "json"}, "column 'v' as JSON: its type is 'variant'"),
        ("select 'x' as value", {"topics": "orders"}, "did you mean topic?"),
        ("select 'x' as value", {"endpoint": "somewhere"}, "endpoint is 'somewhere', expected the address of a server"),
    ]
    for sql, options, said in cases:
        with subtests.test(said=said):
            assert said in str(refusal(spark.sql(sql), place, **{"topic": topic, **options}))


def test_a_path_and_overwrite_are_refused(spark: SparkSession, place: Place, topic: str, tmp_path: Path) -> None:
    writer = spark.sql("select 'x' as value").write.format("penstock").options(**place.options(topic=topic))
    with pytest.raises(Exception, match="a log is only appended to"):
        writer.mode("overwrite").save()
    with pytest.raises(Exception, match="a log is written to through its server"):
        writer.mode("append").save(str(tmp_path))


def test_a_row_that_is_no_message_refuses_all_of_them(
    spark: SparkSession, place: Place, topic: str, subtests: pytest.Subtests
) -> None:
    cases = {
        "row 7": "select if(id = 7, null, 'x') as value from range(0, 10, 1, 1)",
        "row 10": "select 'x' as value, cast(id as int) as priority from range(0, 20, 1, 1)",
        "Topic not found: no-such-topic": "select 'x' as value, 'no-such-topic' as stream",
    }
    for said, sql in cases.items():
        with subtests.test(said=said):
            assert said in str(refusal(spark.sql(sql), place, topic=topic))
            assert place.values(topic) == []


def test_a_write_that_fails_leaves_nothing_staged(spark: SparkSession, place: Place, topic: str) -> None:
    # By the time of the last row, which is too large, parts of the rows before have been staged. The task itself fails over it:
    # were it Spark that fails, the task might still be staging when the write is given up.
    value = "rpad(cast(id as string), if(id = 19, 11000000, 1000000), ' ') as value"
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "2")
    try:
        with pytest.raises(Exception, match="11000000 bytes"):
            write(spark.range(0, 20, 1, 1).selectExpr(value), place, topic=topic)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")

    assert place.values(topic) == []
    assert place.staged() == []


def test_tokens(spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    with LocalServer(auth="token", token_file=file) as server:
        keyring = Keyring(file)
        writes = keyring.create("writer", SystemClock().now(), verbs=[Verb.PUBLISH])
        reads = keyring.create("reader", SystemClock().now(), verbs=[Verb.READ])
        place = Place(server)
        place.topic("guarded")
        table = spark.sql("select 'x' as value")

        write(table, place, topic="guarded", token=writes)

        assert "PermissionDenied" in type(refusal(table, place, topic="guarded", token=reads)).__name__
        assert "Unauthenticated" in type(refusal(table, place, topic="guarded")).__name__
        log = HttpLog(server.url, token=reads)
        assert log.spans(["guarded"]).streams[0].latest == 1
        log.close()
