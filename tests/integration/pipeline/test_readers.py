"""The readers of the source, asked as Spark asks them, against a real server and a real data directory, without Spark."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, InputPartition, LessThan, Not
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from penstock import Message, MessageQueue
from penstock.clock import monotonic
from penstock.durations import SECOND, to_datetime
from penstock.errors import DataLoss, InvalidArgument, NotFound
from penstock.log.http import HttpLog
from penstock.log.log import Spans
from penstock.pipeline.core.options import VIEWS, schema_of, source_options
from penstock.pipeline.reader import BatchReader
from penstock.pipeline.scan import Part
from penstock.pipeline.source import PenstockDataSource
from penstock.pipeline.stream_reader import StreamReader
from penstock.testing import ManualClock
from penstock.testing.proxy import Direction, FaultyProxy
from penstock.testing.server import LocalServer

DAYS = 86_400
KINDS: dict[str, types.DataType] = {
    "string": types.StringType(),
    "binary": types.BinaryType(),
    "tinyint": types.ByteType(),
    "int": types.IntegerType(),
    "bigint": types.LongType(),
    "timestamp": types.TimestampType(),
    "map<string,string>": types.MapType(types.StringType(), types.StringType()),
}


class World:
    """A server on disk, and both ways to its log."""

    def __init__(self, server: LocalServer, clock: ManualClock, data: Path) -> None:
        self.server = server
        self.clock = clock
        self.queue = MessageQueue(broker=server.broker)
        self.ways = {"endpoint": server.url, "path": str(data)}
        self.way = "endpoint"

    def publish(self, stream: str, *payloads: bytes, key: str = "") -> list[str]:
        if not self.queue.topic_exists(stream):
            self.queue.register_topic(stream)
        return self.queue.publish(stream, [Message(data=payload, ordering_key=key) for payload in payloads])

    def count(self, stream: str, rows: int) -> None:
        """So many more messages, each with its offset as text."""
        first = self.server.broker.stream(stream).next_offset if self.queue.topic_exists(stream) else 0
        self.publish(stream, *(b"%d" % offset for offset in range(first, first + rows)))

    def retain(self) -> None:
        """Let retention remove all that was published until now; something new is what makes it look."""
        self.clock.advance(8 * DAYS)
        self.publish("other", b"x")
        self.server.broker.sync()

    def source(self, **options: str) -> PenstockDataSource:
        return PenstockDataSource({self.way: self.ways[self.way], **options})

    def batch(self, **options: str) -> BatchReader:
        source = self.source(**options)
        reader = source.reader(schema(source))
        assert isinstance(reader, BatchReader)
        return reader

    def stream(self, **options: str) -> StreamReader:
        source = self.source(startingOffsets="earliest", **options)
        reader = source.streamReader(schema(source))
        assert isinstance(reader, StreamReader)
        return reader


def schema(source: PenstockDataSource) -> types.StructType:
    """What Spark makes of the text: without Java, by hand."""
    fields = types.StructType()
    for column in schema_of(source_options(source.options)).split(", "):
        name, kind, *rest = column.split(" ")
        fields = fields.add(name, KINDS[kind], not rest)
    return fields


def rows(reader: BatchReader | StreamReader, parts: Any) -> list[dict[str, Any]]:
    """What the tasks of these partitions give, after the way there."""
    there: BatchReader | StreamReader = pickle.loads(pickle.dumps(reader)) if isinstance(reader, BatchReader) else reader
    return [row for part in parts for batch in there.read(pickle.loads(pickle.dumps(part))) for row in batch.to_pylist()]


def everything(reader: BatchReader, *filters: Filter) -> list[dict[str, Any]]:
    if filters:
        assert list(reader.pushFilters(list(filters))) == list(filters), "Spark checks all of them again"
    return rows(reader, reader.partitions())


def places(found: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return [(row["stream"], row["offset"]) for row in found]


def values(found: list[dict[str, Any]]) -> list[bytes]:
    return [row["value"] for row in found]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    clock = ManualClock()
    with LocalServer(clock=clock, data_dir=tmp_path / "data") as server:
        yield World(server, clock, tmp_path / "data")


@pytest.fixture(params=["endpoint", "path"])
def way(world: World, request: pytest.FixtureRequest) -> World:
    world.way = request.param
    return world


# ── batch reads ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("view", VIEWS)
def test_batches_have_exactly_the_schema_for_every_column_and_for_nothing(way: World, view: str) -> None:
    way.publish("orders", b"a", b"\xff\x00\xfe", key="k")
    way.queue.register_subscription("sub", "orders")
    way.publish("orders", b"c")
    way.queue.nack(way.queue.pull("sub")[0].ack_id)
    way.server.broker.sync()
    names = way.batch(view=view, subscribe="orders")._schema.names
    for columns in [*names, ",".join(reversed(names)), ",".join(names)]:
        reader = way.batch(view=view, subscribe="orders", columns=columns)
        for part in reader.partitions():
            for batch in reader.read(part):
                assert batch.schema.equals(reader._schema)
                batch.validate(full=True)
                assert all(field.nullable or not batch.column(field.name).null_count for field in batch.schema)
    assert list(way.batch(view=view, subscribe="orders").read(InputPartition(None))) == []
    assert bool(everything(way.batch(view=view, subscribe="orders"))) == (view != "deadletters")


def test_ranges_of_a_batch_read(way: World) -> None:
    way.count("orders", 10)
    way.clock.advance(10)
    noon = way.clock.time.isoformat()
    way.count("orders", 5)
    way.count("refunds", 3)
    both = {"subscribe": "orders,refunds"}

    def read(**options: str) -> list[tuple[str, int]]:
        return places(everything(way.batch(**(both | options))))

    orders, refunds = [("orders", at) for at in range(15)], [("refunds", at) for at in range(3)]
    assert read() == orders + refunds
    assert read(subscribe="refunds") == refunds
    assert places(everything(way.batch(subscribePattern="o.*"))) == orders
    assert read(startingOffsets='{"orders": 12}') == orders[12:] + refunds
    assert read(startingOffsets='{"orders": 12, "refunds": -2}', endingOffsets='{"orders": 14, "refunds": 0}') == orders[12:14]
    assert read(startingTimestamp=noon) == orders[10:] + refunds
    assert read(endingTimestamp=noon) == orders[:10]
    assert read(endingTimestamp=f'{{"orders": "{noon}"}}') == orders[:10] + refunds
    assert read(startingTimestamp="2099-01-01") == []
    assert [len(part.pieces) for part in way.batch(minPartitions="6", **both).partitions() if isinstance(part, Part)] == [
        1
    ] * 5 + [1]
    assert len(way.batch(maxRecordsPerPartition="4", **both).partitions()) == 5


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"startingOffsets": '{"orders": 99}'}, "offset 99 of 'orders' is beyond its end, 10"),
        ({"endingOffsets": '{"orders": 11}'}, "offset 11 of 'orders' is beyond its end, 10"),
        ({"startingOffsets": '{"orders": 1}'}, "offsets 1 to 4 of 'orders' (4 rows) are gone"),
    ],
)
def test_offsets_out_of_range_are_told_or_skipped(way: World, options: dict[str, str], told: str) -> None:
    way.count("orders", 5)
    way.retain()
    way.count("orders", 5)

    with pytest.raises(DataLoss, match=re.escape(told)):
        way.batch(subscribe="orders", **options).partitions()
    kept = values(everything(way.batch(subscribe="orders", failOnDataLoss="false", **options)))
    assert kept == ([] if "99" in told else [b"5", b"6", b"7", b"8", b"9"])


def test_what_a_batch_read_cannot_find(way: World) -> None:
    way.count("orders", 5)

    with pytest.raises(NotFound, match="refunds"):
        way.batch(subscribe="orders,refunds").partitions()
    with pytest.raises(InvalidArgument, match="startingOffsets is 'odrers'"):
        way.batch(subscribe="orders", startingOffsets='{"odrers": 1}').partitions()
    with pytest.raises(InvalidArgument, match="not more than endingOffsets"):
        way.batch(subscribe="orders", startingOffsets='{"orders": 3}', endingOffsets='{"orders": 2}').partitions()
    assert way.batch(subscribePattern="nothing.*").partitions() == []


def test_filters_decide_what_is_read(way: World) -> None:
    way.publish("orders", b"a", b"b", key="k1")
    way.clock.advance(5)
    ids = way.publish("orders", b"c", key="k2")
    noon = to_datetime(way.clock.now())
    way.publish("refunds", b"d", key="k1")

    def read(*filters: Filter) -> list[bytes]:
        return values(everything(way.batch(subscribePattern=".*"), *filters))

    assert read(EqualTo(("stream",), "refunds")) == [b"d"]
    assert read(In(("stream",), ("refunds", "other"))) == [b"d"]
    assert read(GreaterThan(("offset",), 0), LessThan(("offset",), 2)) == [b"b"]
    assert read(EqualTo(("key",), "k1")) == [b"a", b"b", b"d"]
    assert read(EqualTo(("message_id",), ids[0])) == [b"c"]
    assert read(GreaterThanOrEqual(("publish_time",), noon)) == [b"c", b"d"]
    assert read(LessThan(("publish_time",), noon)) == [b"a", b"b"]
    assert read(Not(EqualTo(("offset",), 1)), EqualTo(("attributes", "x"), "y")) == [b"a", b"b", b"c", b"d"]
    contradiction = way.batch(subscribePattern=".*")
    contradiction.pushFilters([EqualTo(("stream",), "refunds"), EqualTo(("stream",), "orders")])
    assert contradiction.partitions() == []


@pytest.mark.parametrize("view", ["events", "deadletters"])
def test_events_of_some_streams(way: World, view: str) -> None:
    for stream in ("orders", "refunds"):
        way.count(stream, 2)
    way.server.broker.sync()
    offsets = [row["offset"] for row in everything(way.batch(view=view))]
    only = everything(way.batch(view=view, subscribe="orders"))
    pushed = everything(way.batch(view=view), EqualTo(("stream",), "orders"), GreaterThan(("offset",), 1))

    assert {row["stream"] for row in only} <= {"orders"}
    if view == "events":
        assert offsets == list(range(len(offsets)))
        assert len(only) == 3
        assert [row["offset"] for row in pushed] == [row["offset"] for row in only if row["offset"] > 1]
    neither = way.batch(view=view, subscribe="orders")
    neither.pushFilters([EqualTo(("stream",), "refunds")])
    assert neither.partitions() == []


def test_a_user_may_name_columns_by_a_schema(world: World) -> None:
    world.count("orders", 2)
    asked = types.StructType().add("value", types.BinaryType()).add("offset", types.LongType())
    reader = world.source(subscribe="orders").reader(asked)
    assert isinstance(reader, BatchReader)

    assert everything(reader) == [{"value": b"0", "offset": 0}, {"value": b"1", "offset": 1}]
    with pytest.raises(InvalidArgument, match="schema is 'amount:double', wanted columns of messages: stream, offset"):
        world.source(subscribe="orders").reader(types.StructType().add("amount", types.DoubleType()))


# ── streams ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Query:
    """Asks a reader as a streaming query does, and remembers what a checkpoint would."""

    def __init__(self, reader: StreamReader) -> None:
        self.reader = reader
        self.at = reader.initialOffset()

    def batch(self, limit: Any = None) -> list[dict[str, Any]]:
        end = self.reader.latestOffset(self.at, limit or self.reader.getDefaultReadLimit())
        found = rows(self.reader, self.reader.partitions(self.at, end))
        self.reader.commit(end)
        self.at = end
        return found

    def rest(self) -> list[list[dict[str, Any]]]:
        """Batches until there are no more."""
        batches: list[list[dict[str, Any]]] = []
        while True:
            before = self.at
            found = self.batch()
            if self.at == before:
                return batches
            batches.append(found)


def test_a_stream_goes_on_where_it_was_and_a_batch_can_be_repeated(way: World) -> None:
    way.count("orders", 5)
    reader = way.stream(subscribe="orders")
    query = Query(reader)
    number = way.server.broker.stream("orders").number

    assert query.at == {"orders": [number, 0]}
    assert values(query.batch()) == [b"0", b"1", b"2", b"3", b"4"]
    assert query.at == {"orders": [number, 5]}
    assert query.batch() == []
    way.count("orders", 2)
    assert values(query.batch()) == [b"5", b"6"]
    assert reader.reportLatestOffset() == {"orders": [number, 7]}
    reader.stop()
    again = way.stream(subscribe="orders")
    parts = again.partitions({"orders": [number, 2]}, {"orders": [number, 6]})
    assert values(rows(again, parts)) == values(rows(again, parts)) == [b"2", b"3", b"4", b"5"]
    again.stop()
    again.stop()


def test_a_stream_begins_at_latest_by_default_and_the_answer_stays(world: World) -> None:
    world.count("orders", 5)
    source = world.source(subscribe="orders")
    reader = source.streamReader(schema(source))
    begin = reader.initialOffset()
    world.count("orders", 2)

    assert reader.initialOffset() == begin
    assert reader.latestOffset(begin, ReadAllAvailable()) == {"orders": [begin["orders"][0], 7]}
    reader.stop()


def test_new_streams_are_read_from_their_begin_and_named_ones_too(way: World) -> None:
    way.count("orders-1", 2)
    source = way.source(subscribePattern="orders-.*", startingOffsets="latest")
    reader = source.streamReader(schema(source))
    assert isinstance(reader, StreamReader)
    query = Query(reader)
    way.queue.register_topic("orders-2")

    before = query.at
    assert query.batch() == []
    assert query.at == before, "an empty stream is no news"
    way.count("orders-2", 3)
    assert places(query.batch()) == [("orders-2", 0), ("orders-2", 1), ("orders-2", 2)]
    reader.stop()
    more = way.stream(subscribe="orders-1,orders-2,orders-3")
    way.count("orders-3", 1)
    end = more.latestOffset(query.at, ReadAllAvailable())
    assert places(rows(more, more.partitions(query.at, end))) == [("orders-3", 0)]
    more.stop()


def test_a_new_stream_whose_begin_is_gone_already_is_no_loss(way: World) -> None:
    way.count("orders", 3)
    query = Query(way.stream(subscribePattern="orders.*"))
    query.batch()
    way.count("orders-2", 3)
    way.retain()
    way.count("orders-2", 1)

    strict = way.stream(subscribe="orders-2")
    assert values(rows(strict, strict.partitions({}, {"orders-2": strict.latestOffset({}, ReadAllAvailable())["orders-2"]}))) == [
        b"3"
    ]
    strict.stop()
    query.reader.stop()


@pytest.mark.parametrize("is_planned", [False, True], ids=["before planning", "after planning"])
@pytest.mark.parametrize(
    ("what", "told", "after"),
    [
        ("retention", "offsets 3 to 5 of 'orders' (3 rows) are gone", [b"6"]),
        ("deleted", "stream 'orders' (number {number}) was deleted, and read up to offset 3", []),
        ("made again", "stream 'orders' (number {number}) was deleted and made again, read up to offset 3", [b"0", b"1"]),
    ],
)
def test_what_is_gone_is_an_error_or_is_skipped(
    way: World, caplog: pytest.LogCaptureFixture, what: str, told: str, after: list[bytes], *, is_planned: bool
) -> None:
    way.count("orders", 3)
    strict, lenient = Query(way.stream(subscribe="orders")), Query(way.stream(subscribe="orders", failOnDataLoss="false"))
    for query in (strict, lenient):
        query.batch()
    way.count("orders", 3)
    number = way.server.broker.stream("orders").number
    ends = [query.reader.latestOffset(query.at, ReadAllAvailable()) if is_planned else {} for query in (strict, lenient)]
    match what:
        case "retention":
            way.retain()
            way.count("orders", 1)
        case "deleted":
            way.queue.unregister_topic("orders")
        case "made again":
            way.queue.unregister_topic("orders")
            way.count("orders", 2)
    way.server.broker.sync()

    def task(query: Query, end: dict[str, Any]) -> list[bytes]:
        """The task of a batch that was planned before, or is planned now."""
        return values(rows(query.reader, query.reader.partitions(query.at, end)) if end else query.batch())

    with pytest.raises(DataLoss, match=re.escape(told.format(number=number))) as caught:
        task(strict, ends[0])
    assert "failOnDataLoss" in (caught.value.hint or "")
    found = task(lenient, ends[1])
    lenient.at = ends[1] or lenient.at
    assert found + [value for batch in lenient.rest() for value in values(batch)] == after
    lenient.batch()
    log = [record.getMessage() for record in caplog.records if record.name == "penstock.pipeline"]
    assert f"skipped: {told.format(number=number)}" in "\n".join(log)
    assert len(log) <= 3, "once by a task, and by the driver once for each position; not every time"
    for query in (strict, lenient):
        query.reader.stop()


def test_streams_that_are_not_asked_for_any_more_are_no_loss(way: World) -> None:
    for stream in ("orders", "refunds"):
        way.count(stream, 2)
    both = Query(way.stream(subscribe="orders,refunds"))
    both.batch()
    both.reader.stop()
    way.queue.unregister_topic("refunds")
    way.count("orders", 1)
    one = way.stream(subscribe="orders")
    end = one.latestOffset(both.at, ReadAllAvailable())

    assert end["refunds"] == both.at["refunds"]
    assert values(rows(one, one.partitions(both.at, end))) == [b"2"]
    one.stop()


@pytest.mark.parametrize(
    ("options", "limit", "sizes"),
    [
        ({"maxOffsetsPerTrigger": "1"}, ReadMaxRows(1), [1] * 10),
        ({"maxOffsetsPerTrigger": "4"}, ReadMaxRows(4), [4, 4, 2]),
        ({"maxOffsetsPerTrigger": "100"}, ReadMaxRows(100), [10]),
        ({"maxBytesPerTrigger": "1"}, ReadMaxBytes(1), None),
        ({"maxBytesPerTrigger": "1g"}, ReadMaxBytes(1 << 30), [10]),
        ({"maxOffsetsPerTrigger": "3", "maxBytesPerTrigger": "1g"}, ReadMaxRows(3), [3, 3, 3, 1]),
        ({"maxOffsetsPerTrigger": "3", "maxBytesPerTrigger": "1"}, ReadMaxRows(3), None),
        ({}, ReadAllAvailable(), [10]),
    ],
)
def test_limits_are_kept_and_never_in_the_way(way: World, options: dict[str, str], limit: Any, sizes: list[int] | None) -> None:
    for _ in range(4):
        way.count("large", 2)
    way.count("small", 2)
    query = Query(way.stream(subscribe="large,small", **options))

    assert query.reader.getDefaultReadLimit() == limit
    batches = query.rest()
    assert sorted(row for batch in batches for row in places(batch)) == [("large", at) for at in range(8)] + [
        ("small", at) for at in range(2)
    ]
    assert all(batches)
    if sizes is not None:
        assert [len(batch) for batch in batches] == sizes
    else:
        assert len(batches) > 1
    start = {name: [number, 0] for name, (number, _) in query.at.items()}
    assert query.reader.latestOffset(start, ReadAllAvailable()) == query.at, "Spark may ask for all"
    query.reader.stop()


@pytest.mark.parametrize("limit", [{}, {"maxOffsetsPerTrigger": "2"}, {"maxBytesPerTrigger": "1"}])
def test_available_now_ends_exactly_where_it_began(way: World, limit: dict[str, str]) -> None:
    for stream in ("a", "b", "c"):
        way.count(stream, 3)
    query = Query(way.stream(subscribePattern="[a-z]", failOnDataLoss="false", **limit))
    query.reader.prepareForTriggerAvailableNow()
    way.count("a", 5)
    way.count("d", 5)
    way.queue.unregister_topic("b")
    way.queue.unregister_topic("c")
    way.count("c", 1)
    way.server.broker.sync()

    found = [place for batch in query.rest() for place in places(batch)]
    assert found == [("a", 0), ("a", 1), ("a", 2)]
    assert {name: at[1] for name, at in query.at.items()} == {"a": 3, "b": 3, "c": 3}
    query.reader.stop()


def test_300_streams_are_few_tasks_and_planned_fast(way: World) -> None:
    for number in range(300):
        way.publish(f"s-{number:03}", *[b"x"] * 5)
    reader = way.stream(subscribePattern="s-.*")
    query = Query(reader)
    start = query.at
    began = monotonic()
    end = reader.latestOffset(start, ReadAllAvailable())
    parts = reader.partitions(start, end)
    took = monotonic() - began

    assert len(parts) == 1
    assert took < SECOND // 10 * 5, "a tenth of a second, and room for a busy machine"
    assert len(rows(reader, parts)) == 1_500
    assert sorted(place[1] for place in places(rows(reader, parts))) == sorted(list(range(5)) * 300)
    reader.stop()


def test_an_idle_stream_is_asked_at_most_twenty_times_a_second(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    real = HttpLog.spans

    def spans(log: HttpLog, *given: Any, **named: Any) -> Spans:
        asked.append(monotonic())
        return real(log, *given, **named)

    monkeypatch.setattr(HttpLog, "spans", spans)
    world.count("orders", 1)
    query = Query(world.stream(subscribe="orders"))
    query.batch()
    query.batch()
    began = monotonic()
    asked.clear()
    while monotonic() - began < SECOND // 4:
        query.batch()

    assert 1 <= len(asked) <= 6
    query.reader.stop()


def test_the_event_log_as_a_stream(way: World) -> None:
    way.count("orders", 2)
    way.server.broker.sync()
    query = Query(way.stream(view="events"))
    first = query.batch()
    way.count("refunds", 1)
    way.server.broker.sync()
    second = query.batch()

    assert [row["offset"] for row in first + second] == list(range(len(first + second)))
    assert {row["stream"] for row in second} == {"refunds"}
    assert query.at == {"_penstock.events": [0, len(first + second)]}
    query.reader.stop()


def test_a_message_of_ten_megabytes_and_one_of_none(way: World) -> None:
    large = bytes(range(256)) * (10 * 1024 * 4)
    way.publish("orders", large, b"\xff\xfe")
    way.queue.publish("orders", [Message(attributes={"only": "this"})])

    assert values(everything(way.batch(subscribe="orders"))) == [large, b"\xff\xfe", b""]
    query = Query(way.stream(subscribe="orders", includeHeaders="false"))
    assert values(query.batch()) == [large, b"\xff\xfe", b""]
    query.reader.stop()


def test_a_cut_connection_is_no_lost_row(world: World) -> None:
    for _ in range(20):
        world.publish("orders", *[b"x" * 1000] * 200)
    with FaultyProxy("127.0.0.1", world.server.server.port) as proxy:
        world.ways["endpoint"] = f"http://{proxy.address}"
        reader = world.batch(subscribe="orders", columns="offset,value")
        parts = reader.partitions()
        proxy.truncate(1_500_000, Direction.DOWN)
        assert [row["offset"] for row in rows(reader, parts)] == list(range(4_000))
        assert proxy.accepted >= 2


def test_a_cursor_shows_how_far_a_query_got_and_a_server_that_is_away_does_not_matter(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.count("orders", 5)
    with FaultyProxy("127.0.0.1", world.server.server.port) as proxy, pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.pipeline.scan.CURSOR_SECONDS", 0.1)
        world.ways["endpoint"] = f"http://{proxy.address}"
        query = Query(world.stream(subscribe="orders", cursor="billing", maxOffsetsPerTrigger="2"))
        query.batch()
        log = HttpLog(world.server.url)
        assert [(cursor.name, cursor.offsets, cursor.lag) for cursor in log.cursors()] == [
            ("billing", {"orders": 2}, {"orders": 3})
        ]
        proxy.refuse()
        proxy.cut()
        query.reader.commit({"orders": [query.at["orders"][0], 4]})
        assert "cursor billing was not advanced" in caplog.text
        proxy.accept()
        query.at = {"orders": [query.at["orders"][0], 4]}
        query.batch()
        assert [cursor.lag for cursor in log.cursors()] == [{"orders": 0}]
        log.close()
        query.reader.stop()


def test_the_token_is_nowhere_to_be_seen(world: World) -> None:
    world.count("orders", 1)
    reader = world.batch(subscribe="orders", token="hush-hush")

    assert "hush" not in repr(reader)
    assert "hush" not in repr(reader.partitions())
    assert "hush" not in repr(reader._options)


def test_a_worker_imports_little() -> None:
    heavy = "aiohttp grpc penstock.client penstock.server penstock.doors penstock.testing pandas apsw"
    code = f"import sys, pyspark_penstock; print([name for name in '{heavy}'.split() if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_spark_takes_the_reader_with_and_without_filters_pushed_down(world: World) -> None:
    from pyspark.sql.datasource import DataSourceReader

    reader = world.batch(subscribe="orders")
    there = pickle.loads(pickle.dumps(reader))
    for one in (reader, there):
        assert getattr(one.pushFilters, "__func__", None) is DataSourceReader.pushFilters
    assert isinstance(there._schema, pa.Schema)
