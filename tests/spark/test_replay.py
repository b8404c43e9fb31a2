"""The replay job: its frames by hand, and the whole of it against a real server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from penstock import Message, MessageQueue
from penstock.durations import SECOND, instant
from penstock.errors import InvalidArgument, NotFound
from penstock.pipeline.core.replay import Replay, ReplayExtent
from penstock.pipeline.failure import as_penstock_error
from penstock.pipeline.job import Target
from penstock.pipeline.jobs import replay as job
from penstock.pipeline.schemas import MESSAGES
from penstock.testing.server import LocalServer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

NOON = datetime(2026, 1, 31, 12, 0, 0, tzinfo=UTC)
ROWS = [
    ("orders", 7, "m7", "ann", b"\xff\x00", {"kind": "a"}, 5, NOON, None, 0),
    ("orders", 8, "m8", None, b"", None, 9, NOON + timedelta(seconds=10), NOON + timedelta(seconds=11), 0),
    (
        "orders",
        9,
        "m9",
        "bob",
        b"three",
        {"penstock.replayed_from": "m1", "penstock.replay": "old"},
        0,
        NOON + timedelta(seconds=25),
        None,
        0,
    ),
    ("orders", 10, "m10", "ann", b"four", {"kind": "b"}, 5, NOON - timedelta(microseconds=1), None, 0),
]


@pytest.fixture(scope="module")
def messages(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(ROWS, MESSAGES)


def offsets(frame: DataFrame) -> list[int]:
    return sorted(row["offset"] for row in frame.select("offset").collect())


def test_times_and_a_condition_choose_rows(messages: DataFrame, subtests: pytest.Subtests) -> None:
    noon = instant(NOON, "")
    cases: list[tuple[dict[str, Any], list[int]]] = [
        ({}, [7, 8, 9, 10]),
        ({"since": noon}, [7, 8, 9]),
        ({"until": noon}, [10]),
        ({"since": noon, "until": noon + 25 * SECOND}, [7, 8]),
        ({"where": "key = 'ann' AND attributes['kind'] = 'b'"}, [10]),
        ({"where": "cast(value AS string) LIKE '%r%' OR priority > 8"}, [8, 9, 10]),
        ({"where": "offset IN (7, 9)", "until": noon + SECOND}, [7]),
        ({"where": "false"}, []),
    ]
    for bounds, wanted in cases:
        with subtests.test(bounds=bounds):
            assert offsets(job.select(messages, Replay("orders", "copy", "r1", **bounds))) == wanted


def test_a_wrong_condition_is_told_with_the_columns(messages: DataFrame, subtests: pytest.Subtests) -> None:
    cases = {
        "nonsense = 1": "`nonsense`",
        "key = ": "end of input",
        "key": "not a boolean",  # a value, and no condition
        "count(*) > 1": "count(1)",
    }
    for where, said in cases.items():
        with subtests.test(where=where):
            with pytest.raises(InvalidArgument) as caught:
                job.select(messages, Replay("orders", "copy", "r1", where=where))
            assert str(caught.value).startswith(f"the condition {where!r} is wrong: ")
            assert said.lower() in str(caught.value).lower()
            assert "\n" not in str(caught.value)
            assert "attributes" in str(caught.value.hint)


def test_a_replayed_message_is_the_original_with_a_mark(messages: DataFrame) -> None:
    rows = job.transform(messages, "r1").collect()

    assert job.transform(messages, "r1").columns == ["value", "key", "attributes", "priority"]
    assert [(bytes(row["value"]), row["key"], row["priority"]) for row in rows] == [
        (b"\xff\x00", "ann", 5),
        (b"", None, 9),
        (b"three", "bob", 0),
        (b"four", "ann", 5),
    ]
    assert [row["attributes"] for row in rows] == [
        {"kind": "a", "penstock.replayed_from": "m7", "penstock.replay": "r1"},
        {"penstock.replayed_from": "m8", "penstock.replay": "r1"},
        {"penstock.replayed_from": "m9", "penstock.replay": "r1"},
        {"kind": "b", "penstock.replayed_from": "m10", "penstock.replay": "r1"},
    ]


def test_a_paced_replay_keeps_the_rhythm(messages: DataFrame) -> None:
    now = instant(datetime(2026, 11, 16, tzinfo=UTC), "")
    paces: dict[float, list[float]] = {1.0: [0, 10, 25, 0], 10.0: [0, 1, 2.5, 0], 0.5: [0, 20, 50, 0]}
    for speed, after in paces.items():
        rows = job.transform(messages, "r1", speed=speed, first=instant(NOON, ""), now=now)
        found = [row["at"] for row in rows.selectExpr("unix_micros(deliver_at) AS at").collect()]
        assert found == [now + round(seconds * SECOND) for seconds in after]


def test_counting_says_how_much_there_is(messages: DataFrame) -> None:
    assert job.extent(messages) == ReplayExtent(4, 11, 7, 10, instant(NOON, "") - 1, instant(NOON, "") + 25 * SECOND)
    assert job.extent(messages.where("false")) == ReplayExtent(0, 0)


@pytest.fixture
def server() -> Iterator[LocalServer]:
    with LocalServer() as started:
        yield started


def test_a_range_reaches_another_stream_once_in_order(spark: SparkSession, server: LocalServer) -> None:
    topics = MessageQueue(broker=server.broker)
    for name in ("orders", "copy"):
        topics.register_topic(name)
    topics.register_subscription("reader", "copy")
    topics.publish("orders", [Message(f"order {n}".encode(), attributes={"n": str(n)}, ordering_key="k") for n in range(20)])
    target, replay = (
        Target(endpoint=server.url),
        Replay("orders", "copy", "again", from_offset=5, to_offset=15, where="offset <> 7", storage="log"),
    )

    for is_repeat in (False, True, True):  # all but the first add nothing, and say so
        extent = job.run(spark, target, None, replay, now=0)
        assert (extent.rows, extent.is_repeat) == (9, is_repeat)
    with pytest.raises(InvalidArgument, match="to is 'orders' and was 'copy', where is 'missing' and was 'offset <> 7'"):
        job.run(spark, target, None, replace(replay, to="orders", where=None), now=0)
    received = topics.pull("reader", 100)

    assert [message.data for message in received] == [f"order {n}".encode() for n in range(5, 15) if n != 7]
    assert {message.attributes["penstock.replay"] for message in received} == {"again"}
    assert len({message.attributes["penstock.replayed_from"] for message in received}) == 9


def test_what_is_missing_is_told_as_what_it_is(spark: SparkSession, server: LocalServer) -> None:
    MessageQueue(broker=server.broker).register_topic("orders")
    with pytest.raises(NotFound), as_penstock_error():
        job.run(spark, Target(endpoint=server.url), None, Replay("gone", "orders", "r1", storage="log"), now=0)


def test_a_directory_cannot_be_written(spark: SparkSession) -> None:
    with pytest.raises(InvalidArgument, match="a data directory can be read only"):
        job.run(spark, Target(path="data"), None, Replay("orders", "copy", "r1"), now=0)
