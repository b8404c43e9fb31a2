"""The readers of the source, asked as Spark asks them, against a real server and a real data directory, without Spark."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import types
from pyspark.sql.datasource import (
    DataSourceReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from penstock import Message
from penstock.clock import monotonic
from penstock.durations import SECOND
from penstock.errors import DataLoss, FailedPrecondition, InvalidArgument, NotFound, ServerUnreachable
from penstock.log.http import HttpLog
from penstock.log.log import Spans
from penstock.pipeline import scan, stream_reader
from penstock.pipeline.core.options import VIEWS
from penstock.pipeline.reader import BatchReader
from penstock.pipeline.scan import CONTACT_SECONDS, Part
from penstock.pipeline.source import PenstockDataSource
from penstock.pipeline.stream_reader import StreamReader
from penstock.testing.proxy import Direction, FaultyProxy
from penstock.testing.server import LocalServer
from tests.integration.pipeline.world import Query, World, everything, places, rows, schema, values

# ── batch reads ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_batches_have_exactly_the_schema_for_every_column_and_for_nothing(way: World, subtests: pytest.Subtests) -> None:
    way.publish("orders", b"a", b"\xff\x00\xfe", key="k")
    way.queue.register_subscription("sub", "orders")
    way.publish("orders", b"c")
    way.queue.nack(way.queue.pull("sub")[0].ack_id)
    way.server.broker.sync()
    for view in VIEWS:
        with subtests.test(view=view):
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


def test_offsets_out_of_range_are_told_or_skipped(way: World, subtests: pytest.Subtests) -> None:
    way.count("orders", 5)
    way.retain()
    way.count("orders", 5)
    kept = [b"5", b"6", b"7", b"8", b"9"]
    cases = [
        ({"startingOffsets": '{"orders": 99}'}, "offset 99 of 'orders' is beyond its end, 10", []),
        ({"endingOffsets": '{"orders": 11}'}, "offset 11 of 'orders' is beyond its end, 10", kept),
        ({"startingOffsets": '{"orders": 1}'}, "offsets 1 to 4 of 'orders' (4 rows) are gone", kept),
    ]
    for options, told, found in cases:
        with subtests.test(options=options):
            with pytest.raises(DataLoss, match=re.escape(told)):
                way.batch(subscribe="orders", **options).partitions()
            assert values(everything(way.batch(subscribe="orders", failOnDataLoss="false", **options))) == found


def test_what_a_batch_read_cannot_find(way: World) -> None:
    way.count("orders", 5)

    with pytest.raises(NotFound, match="refunds"):
        way.batch(subscribe="orders,refunds").partitions()
    with pytest.raises(InvalidArgument, match="startingOffsets is 'odrers'"):
        way.batch(subscribe="orders", startingOffsets='{"odrers": 1}').partitions()
    with pytest.raises(InvalidArgument, match="not more than endingOffsets"):
        way.batch(subscribe="orders", startingOffsets='{"orders": 3}', endingOffsets='{"orders": 2}').partitions()
    assert way.batch(subscribePattern="nothing.*").partitions() == []


def test_only_messages_with_some_keys(way: World) -> None:
    way.publish("orders", b"a", b"b", key="k1")
    way.publish("orders", b"c", key="k,2")
    way.publish("orders", b"none")
    way.publish("refunds", b"d", key="k1")

    for keys, found in (("k1", [b"a", b"b", b"d"]), ('["k,2", "k1"]', [b"a", b"b", b"c", b"d"]), ("other", [])):
        assert values(everything(way.batch(subscribePattern=".*", keys=keys))) == found
    reader = way.stream(subscribePattern=".*", keys='["k,2"]')
    start = reader.initialOffset()
    parts = reader.partitions(start, reader.latestOffset(start, reader.getDefaultReadLimit()))
    assert values(rows(reader, parts)) == [b"c"]
    reader.stop()


@pytest.mark.parametrize("view", ["events", "deadletters"])
def test_events_of_some_streams(way: World, view: str) -> None:
    for stream in ("orders", "refunds"):
        way.count(stream, 2)
    way.server.broker.sync()
    offsets = [row["offset"] for row in everything(way.batch(view=view))]
    only = everything(way.batch(view=view, subscribe="orders"))

    assert {row["stream"] for row in only} <= {"orders"}
    if view == "events":
        assert offsets == list(range(len(offsets)))
        assert len(only) == 3


def test_a_user_may_name_columns_by_a_schema(world: World) -> None:
    world.count("orders", 2)
    asked = types.StructType().add("value", types.BinaryType()).add("offset", types.LongType())
    reader = world.source(subscribe="orders").reader(asked)
    assert isinstance(reader, BatchReader)

    assert everything(reader) == [{"value": b"0", "offset": 0}, {"value": b"1", "offset": 1}]
    with pytest.raises(InvalidArgument, match="schema is 'amount:double', expected columns of messages: stream, offset"):
        world.source(subscribe="orders").reader(types.StructType().add("amount", types.DoubleType()))


# ── streams ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_stream_goes_on_where_it_was_and_a_batch_can_be_repeated(way: World) -> None:
    way.count("orders", 5)
    reader = way.stream(subscribe="orders")
    query = Query(reader)
    number = way.server.broker.catalog.topic("orders").number

    assert query.at == {"orders": [number, 0]}
    assert values(query.batch()) == [b"0", b"1", b"2", b"3", b"4"]
    assert query.at == {"orders": [number, 5]}
    assert query.batch() == []
    way.count("orders", 2)
    assert values(query.batch()) == [b"5", b"6"]
    assert reader.reportLatestOffset() == {"orders": {"offset": 7, "rowsBehind": 0, "bytesBehind": 0}}
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
    number = world.server.broker.catalog.topic("orders").number
    begin = reader.initialOffset()
    world.count("orders", 2)

    assert reader.initialOffset() == begin
    placed = reader.latestOffset(begin, ReadAllAvailable())
    assert placed == {"orders": [number, 5]}
    assert reader.latestOffset(placed, ReadAllAvailable()) == {"orders": [number, 7]}
    reader.stop()


@pytest.mark.parametrize(
    "start", [{"startingOffsets": "latest"}, {"startingOffsets": "earliest"}, {"startingTimestamp": "2100-01-01T00:00:00Z"}]
)
def test_a_first_batch_that_was_killed_is_repeated_with_the_same_rows(way: World, start: dict[str, str]) -> None:
    """Spark keeps where a batch ends, not where the first one began: it asks again, of a log that has grown meanwhile."""
    way.count("orders", 3)
    killed = way.stream(subscribePattern="orders.*", **start)
    query = Query(killed)
    way.count("orders", 2)
    end = killed.latestOffset(query.at, ReadAllAvailable())
    before = values(rows(killed, killed.partitions(query.at, end)))
    killed.stop()
    way.count("orders", 2)
    way.count("orders-2", 1)
    again = Query(way.stream(subscribePattern="orders.*", **start))
    after = values(rows(again.reader, again.reader.partitions(again.at, end)))
    again.at = end
    rest = [value for batch in again.rest() for value in values(batch)]

    assert after == before
    wanted = [b"0", b"1", b"2"] * (start == {"startingOffsets": "earliest"}) + [b"3", b"4", b"5", b"6", b"0"]
    assert before + rest == wanted
    again.reader.stop()


def test_what_comes_between_the_ends_of_all_and_the_begin_is_not_lost(way: World) -> None:
    way.count("orders", 3)
    reader = way.stream(subscribe="orders", startingOffsets="latest")
    reader.prepareForTriggerAvailableNow()
    way.count("orders", 2)
    query = Query(reader)

    assert query.rest() == [[]]
    assert query.at == {"orders": [way.server.broker.catalog.topic("orders").number, 3]}
    reader.stop()


def test_new_streams_are_read_from_their_begin_and_named_ones_too(way: World) -> None:
    way.count("orders-1", 2)
    source = way.source(subscribePattern="orders-.*", startingOffsets="latest")
    reader = source.streamReader(schema(source))
    assert isinstance(reader, StreamReader)
    query = Query(reader)
    assert query.batch() == []
    way.count("orders-2", 3)
    assert query.batch() == [], "its begin is written down before it is read"
    assert places(query.batch()) == [("orders-2", 0), ("orders-2", 1), ("orders-2", 2)]
    reader.stop()
    way.count("orders-3", 1)
    more = Query(way.stream(subscribe="orders-1,orders-2,orders-3"))
    more.at = query.at
    assert [places(batch) for batch in more.rest()] == [[], [("orders-3", 0)]]
    more.reader.stop()


def test_a_new_stream_whose_begin_is_gone_already_is_no_loss_and_one_that_was_placed_is(way: World) -> None:
    way.count("orders", 3)
    query = Query(way.stream(subscribePattern="orders.*"))
    query.batch()
    way.count("orders-2", 3)
    way.retain()
    way.count("orders-2", 1)

    assert [values(batch) for batch in query.rest()] == [[], [b"3"]]
    way.count("orders-3", 1)
    assert query.batch() == []
    way.retain()
    way.count("orders-3", 1)
    with pytest.raises(DataLoss, match=r"offsets 0 to 0 of 'orders-3' \(1 rows\) are gone: retention removed them"):
        query.batch()
    query.reader.stop()


@pytest.mark.parametrize("is_planned", [False, True], ids=["before planning", "after planning"])
@pytest.mark.parametrize(
    ("what", "told", "after"),
    [
        ("retention", "offsets 3 to 5 of 'orders' (3 rows) are gone", [b"6"]),
        ("deleted", "stream 'orders' (number {number}) was deleted, and read up to offset 3", []),
        ("made again", "stream 'orders' (number {number}) was deleted and created again, read up to offset 3", [b"0", b"1"]),
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
    number = way.server.broker.catalog.topic("orders").number
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


def test_limits_are_kept_and_never_in_the_way(way: World, subtests: pytest.Subtests) -> None:
    for _ in range(4):
        way.count("large", 2)
    way.count("small", 2)
    cases: list[tuple[dict[str, str], Any, list[int] | None]] = [
        ({"maxOffsetsPerTrigger": "1"}, ReadMaxRows(1), [1] * 10),
        ({"maxOffsetsPerTrigger": "4"}, ReadMaxRows(4), [4, 4, 2]),
        ({"maxOffsetsPerTrigger": "100"}, ReadMaxRows(100), [10]),
        ({"maxBytesPerTrigger": "1"}, ReadMaxBytes(1), None),
        ({"maxBytesPerTrigger": "1g"}, ReadMaxBytes(1 << 30), [10]),
        ({"maxOffsetsPerTrigger": "3", "maxBytesPerTrigger": "1g"}, ReadMaxRows(3), [3, 3, 3, 1]),
        ({"maxOffsetsPerTrigger": "3", "maxBytesPerTrigger": "1"}, ReadMaxRows(3), None),
        ({}, ReadAllAvailable(), [10]),
    ]
    for options, limit, sizes in cases:
        with subtests.test(options=options):
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


def test_300_streams_are_few_tasks(way: World) -> None:
    for number in range(300):
        way.publish(f"s-{number:03}", *[b"x"] * 5)
    reader = way.stream(subscribePattern="s-.*")
    query = Query(reader)
    start = query.at
    parts = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))

    assert len(parts) == 1
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
    asked.clear()
    while len(asked) < 4:
        query.batch()

    assert all(after - before >= SECOND // 25 for before, after in itertools.pairwise(asked))
    query.reader.stop()


def test_a_checkpoint_of_another_view_is_refused(world: World) -> None:
    world.count("orders", 3)
    messages, events = Query(world.stream(subscribe="orders")), Query(world.stream(view="events"))
    messages.batch()
    events.batch()
    messages.at, events.at = events.at, messages.at

    with pytest.raises(FailedPrecondition, match="positions in the event log, but the query reads messages"):
        messages.batch()
    with pytest.raises(FailedPrecondition, match="positions in streams of messages, but the query reads the event log"):
        events.batch()
    messages.reader.stop()
    events.reader.stop()


def test_the_lag_of_a_batch_is_reported_in_rows_and_bytes(way: World) -> None:
    way.publish("orders", *[b"x" * 1_000] * 10)
    query = Query(way.stream(subscribe="orders", maxOffsetsPerTrigger="4"))
    query.batch()
    lag = query.reader.reportLatestOffset()

    assert lag is not None
    assert (lag["orders"]["offset"], lag["orders"]["rowsBehind"]) == (10, 6)
    assert 6_000 <= lag["orders"]["bytesBehind"] < 7_000
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


def test_rows_come_from_the_directory_of_the_server_if_both_are_named(world: World) -> None:
    world.count("orders", 3)
    reader = world.batch(subscribe="orders", path=world.ways["path"])
    query = Query(world.stream(subscribe="orders", path=world.ways["path"], cursor="both"))
    parts = reader.partitions()
    with HttpLog(world.server.url) as log:
        before = log.spans(["orders"])
        assert values(query.batch()) == [b"0", b"1", b"2"]
        assert before == log.spans(["orders"])
    query.reader.stop()
    world.server.stop()

    assert values(rows(reader, parts)) == [b"0", b"1", b"2"], "no server is needed for that"


def test_a_directory_beside_a_server_has_to_be_that_of_the_server(world: World, tmp_path: Path) -> None:
    world.count("orders", 3)
    with LocalServer(data_dir=tmp_path / "other"):
        pass
    with pytest.raises(InvalidArgument, match=r"path is .*, expected the data directory of <log at http"):
        world.batch(subscribe="orders", path=str(tmp_path / "other")).partitions()
    with pytest.raises(InvalidArgument, match="path is 'orders', expected the data directory of a broker, but it does not exist"):
        world.batch(subscribe="orders", path="orders").partitions()  # as .load("orders") says it


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
    heavy = "aiohttp grpc penstock.client penstock.server penstock.http penstock.google penstock.testing pandas apsw"
    code = f"import sys, pyspark_penstock; print([name for name in '{heavy}'.split() if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_a_reader_takes_no_filters(world: World) -> None:
    """Spark keeps a reader with its frame, and gives what filters have left to other queries of the frame."""
    reader = world.batch(subscribe="orders")

    assert getattr(reader.pushFilters, "__func__", None) is DataSourceReader.pushFilters


def test_a_server_that_is_not_there_is_told_in_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not after the minute that a task waits for one that restarts."""
    assert CONTACT_SECONDS == 5
    monkeypatch.setattr(scan, "CONTACT_SECONDS", 0.3)
    source = PenstockDataSource({"endpoint": "http://127.0.0.1:1", "subscribe": "orders"})
    for ask in (
        lambda: cast(BatchReader, source.reader(schema(source))).partitions(),
        lambda: source.streamReader(schema(source)).initialOffset(),
        lambda: PenstockDataSource({"endpoint": "http://127.0.0.1:1", "topic": "orders"}).writer(
            types.StructType().add("value", types.BinaryType()), overwrite=False
        ),
    ):
        with pytest.raises(ServerUnreachable, match="no connection to the server at"):
            ask()


def test_a_batch_waits_for_enough_rows_but_not_too_long(way: World, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0]
    monkeypatch.setattr(stream_reader, "monotonic", lambda: now[0])
    way.count("orders", 2)
    query = Query(way.stream(subscribe="orders", minOffsetsPerTrigger="3", maxTriggerDelay="1m"))

    assert query.batch() == []
    way.count("orders", 1)
    assert values(query.batch()) == [b"0", b"1", b"2"]
    way.count("orders", 1)
    now[0] += 59 * SECOND
    assert query.batch() == []
    now[0] += SECOND
    assert values(query.batch()) == [b"3"]
    way.count("orders", 1)
    query.reader.prepareForTriggerAvailableNow()
    assert values(query.batch()) == [b"4"], "what is there is taken when the query ends with it"
    query.reader.stop()
