"""Ranges out of the lake's files, without Spark and without a log: the rows of the same offsets are always the same."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from penstock.durations import instant
from penstock.errors import DataLoss, InvalidArgument, NotFound, OutOfRange
from penstock.log.log import EVENTS, EventSpan, StreamSpan
from penstock.pipeline.core.options import source_options
from penstock.pipeline.lake.reading import LakeLog
from penstock.pipeline.lake.table import Lake
from tests.unit.pipeline.lakes import at, messages, store, store_events

pytestmark = pytest.mark.alone


def log_of(lake: Path, **options: str) -> LakeLog:
    subscribe = {} if "view" in options else {"subscribePattern": ".*"}
    return LakeLog(source_options({"storage": "lake", "lake": str(lake)} | subscribe | options), None)


def found(lake: Path, stream: str, start: int, stop: int, *, number: int = 7, **filters: Any) -> list[dict[str, Any]]:
    span = StreamSpan(stream, number, start, stop, 0)
    rows = [row for batch in log_of(lake).messages(span, start, stop, **filters) for row in batch.to_pylist()]
    return [{name: value for name, value in row.items() if name not in {"date", "stream_number"}} for row in rows]


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    store(tmp_path, "orders", 0, 20)
    store(tmp_path, "orders", 20, 21)
    store(tmp_path, "orders", 21, 40)
    store(tmp_path, "a/b", 0, 5, number=3)
    return tmp_path


def test_a_range_gives_its_rows_in_order(lake: Path, subtests: pytest.Subtests) -> None:
    for start, stop in [(0, 40), (0, 1), (39, 40), (19, 22), (5, 5), (7, 33), (2, 4)]:
        with subtests.test(start=start, stop=stop):
            assert found(lake, "orders", start, stop) == messages("orders", range(start, stop))


def test_rows_of_some_keys(lake: Path) -> None:
    wanted = [row for row in messages("orders", range(3, 33)) if row["key"] in {"k1", "k2"}]

    assert found(lake, "orders", 3, 33, keys=["k2", "k1"]) == wanted


def test_some_columns(lake: Path) -> None:
    assert found(lake, "a/b", 1, 3, number=3, columns=["value", "stream"]) == [
        {"value": b"\xff1", "stream": "a/b"},
        {"value": b"\xff2", "stream": "a/b"},
    ]


def test_what_is_archived_ends_at_the_watermark(lake: Path) -> None:
    spans = log_of(lake).spans()

    assert spans.streams == [StreamSpan("a/b", 3, 0, 5, 0), StreamSpan("orders", 7, 0, 40, 0)]
    assert [span.stream for span in log_of(lake).spans(pattern="o.*").streams] == ["orders"]
    assert [span.stream for span in log_of(lake).spans(["a/b"]).streams] == ["a/b"]
    with pytest.raises(NotFound, match="b in the lake"):
        log_of(lake).spans(["b"])
    assert log_of(lake, view="events").spans([]).events == EventSpan(0, 0)


def test_only_the_newest_incarnation_counts(lake: Path) -> None:
    store(lake, "orders", 0, 6, number=9)

    assert log_of(lake).spans(["orders"]).streams == [StreamSpan("orders", 9, 0, 6, 0)]
    assert found(lake, "orders", 2, 4, number=9) == messages("orders", range(2, 4), 9)
    Lake(lake).table("messages").compact(1 << 20)
    assert sorted(found(lake, "orders", 0, 6, number=9), key=lambda row: row["offset"]) == messages("orders", range(6), 9)


def test_what_comes_before_a_hole_is_not_offered(tmp_path: Path) -> None:
    store(tmp_path, "orders", 0, 10)
    store(tmp_path, "orders", 15, 20, first=15)
    store(tmp_path, "empty", 0, 0)

    assert log_of(tmp_path).spans().streams == [StreamSpan("empty", 7, 0, 0, 0), StreamSpan("orders", 7, 15, 20, 0)]
    assert found(tmp_path, "orders", 15, 20) == messages("orders", range(15, 20))
    for start, stop in ((5, 12), (9, 16), (12, 14), (19, 21), (30, 31)):
        with pytest.raises(OutOfRange):
            found(tmp_path, "orders", start, stop)
    with pytest.raises(OutOfRange):
        found(tmp_path, "nobody", 0, 1)


def test_rows_that_somebody_deleted_are_told_or_skipped(lake: Path, caplog: pytest.LogCaptureFixture) -> None:
    DeltaTable(str(lake / "messages")).delete("stream = 'orders' and key = 'k2'")
    span = StreamSpan("orders", 7, 0, 40, 0)

    with pytest.raises(DataLoss, match="10 offsets of 'orders' between 0 and 39 have left the lake"):
        list(log_of(lake).messages(span, 0, 40))
    with caplog.at_level(logging.WARNING):
        rows = [batch.num_rows for batch in log_of(lake, failOnDataLoss="false").messages(span, 0, 40)]
    assert sum(rows) == 30
    assert "10 offsets of 'orders'" in caplog.text


def test_the_first_offset_at_a_time(lake: Path, subtests: pytest.Subtests) -> None:
    for offset, late, wanted in [
        (0, 0, 0),
        (0, -99, 0),
        (7, 0, 7),
        (7, 1, 8),
        (20, 0, 20),
        (39, 0, 39),
        (39, 1, 40),
        (400, 0, 40),
    ]:
        with subtests.test(offset=offset, late=late):
            time = int(at(offset).timestamp() * 1_000_000) + late
            assert log_of(lake).offsets_at({"orders": time}) == {"orders": wanted}
    last = instant(datetime.max.replace(tzinfo=UTC), "time")
    assert log_of(lake).offsets_at({"orders": last}) == {"orders": 40}


def test_how_far_some_bytes_go(lake: Path) -> None:
    sizes = [len(row["value"]) for row in messages("orders", range(40))]

    assert log_of(lake).offsets_for({"orders": 3}, sum(sizes[3:11])) == {"orders": 11}
    assert log_of(lake).offsets_for({"orders": 3}, 1) == {"orders": 4}, "at least one"
    assert log_of(lake).offsets_for({"orders": 3}, 1 << 20) == {"orders": 40}


def test_how_large_the_rest_is(lake: Path) -> None:
    sizes = [log_of(lake).sizes_after({"orders": offset})["orders"] for offset in (0, 3, 39, 40)]

    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[1] > 0
    assert sizes[-1] == 0


def test_events_are_read_and_filtered_by_their_stream(tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = [
        {"offset": offset, "at": at(offset), "kind": "acked", "stream": ["orders", "bills", None][offset % 3]}
        for offset in range(6)
    ]
    store_events(tmp_path, lines)
    log = log_of(tmp_path, view="events")

    def events(**filters: list[str]) -> list[int]:
        return [offset for batch in log.events(1, 5, **filters) for offset in batch.column("offset").to_pylist()]

    assert log.spans([]).events == EventSpan(0, 6)
    assert events() == [1, 2, 3, 4]
    assert events(streams=["bills"]) == [1, 4]
    assert log.offsets_at({EVENTS: int(at(4).timestamp() * 1_000_000)}) == {EVENTS: 4}
    with pytest.raises(InvalidArgument, match="view"):
        log_of(tmp_path, view="deadletters")


def test_rows_planned_before_a_compaction_are_found_after_it(lake: Path) -> None:
    reading = log_of(lake).messages(StreamSpan("orders", 7, 0, 40, 0), 0, 40, columns=["offset"])
    first = next(reading).column("offset").to_pylist()
    assert Lake(lake).table("messages").compact(1 << 20).files_after

    assert first + [offset for batch in reading for offset in batch.column("offset").to_pylist()] == list(range(40))


# Plain readers of Delta tables


WANTED = {("orders", offset, b"\xff%d" % offset) for offset in range(40)} | {
    ("a/b", offset, b"\xff%d" % offset) for offset in range(5)
}


@pytest.fixture(params=["as written", "merged"])
def table(lake: Path, request: pytest.FixtureRequest) -> DeltaTable:
    if request.param == "merged":
        Lake(lake).table("messages").compact(1 << 20)
    return DeltaTable(str(lake / "messages"))


@pytest.mark.long
def test_polars_reads_it(table: DeltaTable) -> None:
    import polars as pl  # other tests of this process do without this engine

    rows = pl.scan_delta(table.table_uri).filter(pl.col("stream") == "orders", pl.col("offset") < 3).collect()
    assert sorted(rows["offset"].to_list()) == [0, 1, 2]
    assert {(row["stream"], row["offset"], row["value"]) for row in pl.read_delta(table.table_uri).to_dicts()} == WANTED


@pytest.mark.long
def test_polars_finds_streams_whatever_their_names(tmp_path: Path) -> None:
    import polars as pl  # other tests of this process do without this engine

    names = ["007", "a'b/%=", "größe", "a b=c{d}", "null", "queue:orders", "..", ".hidden", "2026-01-01", "x" * 250, "é" * 100]
    for name in names:
        store(tmp_path, name, 0, 3)
        store(tmp_path, name, 3, 5)
    for _ in range(2):
        for name in names[:-2]:
            rows = pl.scan_delta(str(tmp_path / "messages")).filter(pl.col("stream") == name, pl.col("offset") > 1).collect()
            assert sorted(rows["offset"].to_list()) == [2, 3, 4]
        found = set(pl.read_delta(str(tmp_path / "messages"))["stream"])
        assert found >= set(names[:-2]), "a name that is longer than a directory's is cut there, and Polars sees it so"
        assert len(found) == len(names)
        Lake(tmp_path).table("messages").compact(1 << 20)


def test_pyarrow_reads_it(table: DeltaTable) -> None:
    rows: pa.Table = table.to_pyarrow_dataset().to_table()
    assert {(row["stream"], row["offset"], row["value"]) for row in rows.to_pylist()} == WANTED
    assert str(rows.schema.field("publish_time").type) == "timestamp[us, tz=UTC]"


def test_pandas_reads_it(table: DeltaTable) -> None:
    rows: pd.DataFrame = table.to_pandas()
    assert set(zip(rows["stream"], rows["offset"], rows["value"], strict=True)) == WANTED
    assert rows.groupby("stream").size().to_dict() == {"a/b": 5, "orders": 40}


@pytest.mark.long
def test_duckdb_reads_it(table: DeltaTable) -> None:
    import duckdb  # other tests of this process do without this engine

    connection = duckdb.connect()
    connection.register("messages", table.to_pyarrow_dataset())
    assert set(connection.sql('select stream, "offset", value from messages').fetchall()) == WANTED
    days = connection.sql("select count(*) from messages where stream = 'orders' and date = '2026-02-01'").fetchall()
    assert days == [(12,)]
    files = connection.read_parquet([uri.removeprefix("file://") for uri in table.file_uris()], hive_partitioning=False)
    assert files.aggregate("count(*)").fetchall() == [(45,)]
