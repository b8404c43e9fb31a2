"""Ranges out of the lake's files, and files merged, without Spark: the rows of the same offsets are always the same."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.durations import instant
from penstock.errors import DataLoss, InvalidArgument, OutOfRange
from penstock.log.log import EVENTS, StreamSpan
from penstock.pipeline.core.offsets import Position
from penstock.pipeline.core.planning import OffsetRange
from penstock.pipeline.lake import compaction
from penstock.pipeline.lake.compaction import CompactReport, compact_table
from penstock.pipeline.lake.reading import archived, offsets_at, read
from penstock.pipeline.lake.table import Lake, Staged, Table

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
COLUMNS = ["stream", "offset", "key", "value", "attributes", "publish_time"]


def at(offset: int) -> datetime:
    """Two hours between two messages: a day has twelve."""
    return NOON + timedelta(hours=2 * offset)


def rows(stream: str, offsets: Iterable[int]) -> list[dict[str, object]]:
    return [
        {
            "stream": stream,
            "offset": offset,
            "key": f"k{offset % 3}" if offset % 4 else None,
            "value": b"\xff%d" % offset,
            "attributes": [("a", str(offset))],
            "publish_time": at(offset),
        }
        for offset in offsets
    ]


SCHEMA = pa.schema(
    [
        ("offset", pa.int64()),
        ("key", pa.string()),
        ("value", pa.binary()),
        ("attributes", pa.map_(pa.string(), pa.string())),
        ("publish_time", pa.timestamp("us", tz="UTC")),
    ]
)


def store(table: Table, stream: str, start: int, stop: int, *, number: int = 7, suffix: str = ".zstd.parquet") -> None:
    """Archive a range as the archive does: a file for each day."""
    base, folder = table.watermark(), table.stage()
    days: dict[str, list[int]] = {}
    for offset in range(start, stop):
        days.setdefault(at(offset).date().isoformat(), []).append(offset)
    add = []
    for day, offsets in days.items():
        path = folder / f"{day}{suffix}"
        pq.write_table(pa.Table.from_pylist(rows(stream, offsets), SCHEMA), path, row_group_size=3)
        add.append(Staged(path, len(offsets), day, stream, number, offsets[0], offsets[-1]))
    table.commit(add, watermark={stream: Position(number, stop)}, base=base)


def found(lake: Path, piece: OffsetRange, **filters: list[str]) -> list[dict[str, object]]:
    return [row for batch in read(str(lake), "messages", piece, columns=COLUMNS, **filters) for row in batch.to_pylist()]


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    with Lake(tmp_path).table("messages") as table:
        store(table, "orders", 0, 20)
        store(table, "orders", 20, 21)
        store(table, "orders", 21, 40)
        store(table, "a/b", 0, 5, number=3)
    return tmp_path


@pytest.mark.parametrize(("start", "stop"), [(0, 40), (0, 1), (39, 40), (19, 22), (5, 5), (7, 33), (2, 4)])
def test_a_range_gives_its_rows_in_order(lake: Path, start: int, stop: int) -> None:
    assert found(lake, OffsetRange("orders", 7, start, stop)) == rows("orders", range(start, stop))


def test_rows_of_some_keys(lake: Path) -> None:
    wanted = [row for row in rows("orders", range(3, 33)) if row["key"] in {"k1", "k2"}]

    assert found(lake, OffsetRange("orders", 7, 3, 33), keys=["k2", "k1"]) == wanted


def test_some_columns(lake: Path) -> None:
    batches = list(read(str(lake), "messages", OffsetRange("a/b", 3, 1, 3), columns=["value", "stream"]))

    assert [row for batch in batches for row in batch.to_pylist()] == [
        {"value": b"\xff1", "stream": "a/b"},
        {"value": b"\xff2", "stream": "a/b"},
    ]


def test_what_is_archived_ends_at_the_watermark(lake: Path) -> None:
    assert archived(str(lake), "messages") == [StreamSpan("a/b", 3, 0, 5, 0), StreamSpan("orders", 7, 0, 40, 0)]
    assert archived(str(lake), "events") == []


def test_only_the_newest_incarnation_counts(lake: Path) -> None:
    with Lake(lake).table("messages") as table:
        store(table, "orders", 0, 6, number=9)

    assert archived(str(lake), "messages")[1] == StreamSpan("orders", 9, 0, 6, 0)
    assert found(lake, OffsetRange("orders", 9, 2, 4)) == rows("orders", range(2, 4))
    assert found(lake, OffsetRange("orders", 7, 38, 40)) == rows("orders", range(38, 40)), "the old rows stay"


def test_what_comes_before_a_hole_is_not_offered(tmp_path: Path) -> None:
    with Lake(tmp_path).table("messages") as table:
        store(table, "orders", 0, 10)
        store(table, "orders", 15, 20)
        store(table, "empty", 0, 0)

    assert archived(str(tmp_path), "messages") == [StreamSpan("empty", 7, 0, 0, 0), StreamSpan("orders", 7, 15, 20, 0)]
    assert found(tmp_path, OffsetRange("orders", 7, 15, 20)) == rows("orders", range(15, 20))
    for start, stop in ((5, 12), (9, 16), (12, 14), (19, 21), (30, 31)):
        with pytest.raises(OutOfRange):
            found(tmp_path, OffsetRange("orders", 7, start, stop))
    with pytest.raises(OutOfRange):
        found(tmp_path, OffsetRange("nobody", 7, 0, 1))


@pytest.mark.parametrize(
    ("offset", "late", "wanted"),
    [(0, 0, 0), (0, -99, 0), (7, 0, 7), (7, 1, 8), (20, 0, 20), (39, 0, 39), (39, 1, 40), (400, 0, 40)],
)
def test_the_first_offset_at_a_time(lake: Path, offset: int, late: int, wanted: int) -> None:
    time = int(at(offset).timestamp() * 1_000_000) + late

    assert offsets_at(str(lake), "messages", {"orders": time}) == {"orders": wanted}


def test_no_offset_is_at_the_end_of_all_times(lake: Path) -> None:
    last = instant(datetime.max.replace(tzinfo=UTC), "time")

    assert offsets_at(str(lake), "messages", {"orders": last}) == {"orders": 40}


def test_events_are_read_and_filtered_by_their_stream(tmp_path: Path) -> None:
    schema = pa.schema([("offset", pa.int64()), ("at", pa.timestamp("us", tz="UTC")), ("stream", pa.string())])
    lines = [{"offset": offset, "at": at(offset), "stream": ["orders", "bills", None][offset % 3]} for offset in range(6)]
    with Lake(tmp_path).table("events") as table:
        path = table.stage() / "events.zstd.parquet"
        pq.write_table(pa.Table.from_pylist(lines, schema), path)
        table.commit([Staged(path, 6, "2026-01-31", first=0, last=5)], watermark={EVENTS: Position(0, 6)}, base={})

    def events(**filters: list[str]) -> list[dict[str, object]]:
        piece = OffsetRange(EVENTS, 0, 1, 5)
        return [
            row for batch in read(str(tmp_path), "events", piece, columns=schema.names, **filters) for row in batch.to_pylist()
        ]

    assert archived(str(tmp_path), "events") == [StreamSpan(EVENTS, 0, 0, 6, 0)]
    assert events() == lines[1:5]
    assert events(streams=["bills"]) == [lines[1], lines[4]]
    assert offsets_at(str(tmp_path), "events", {EVENTS: int(at(4).timestamp() * 1_000_000)}) == {EVENTS: 4}


def test_what_is_not_archived_or_not_parquet_is_refused(tmp_path: Path) -> None:
    with Lake(tmp_path).table("messages") as table:
        store(table, "orders", 0, 3, suffix=".orc")

    with pytest.raises(InvalidArgument, match="Parquet"):
        found(tmp_path, OffsetRange("orders", 7, 0, 3))
    with pytest.raises(InvalidArgument, match="view"):
        archived(str(tmp_path), "deadletters")


# Merging


def test_small_files_become_one_for_each_day(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "GROUP_BYTES", 200)
    before = found(lake, OffsetRange("orders", 7, 0, 40))
    with Lake(lake).table("messages") as table:
        count, state = len(table.files()), table.watermark()
        report = compact_table(table)
        files = table.files("orders")

        assert table.watermark() == state
        assert [file.date for file in files] == sorted({file.date for file in files}), "one a day"
        assert report.files_before - report.files_after == count - len(table.files())
        assert report.rows < 45, "what stood alone was left alone"
        assert compact_table(table) == CompactReport(), "nothing is left to do"
    assert found(lake, OffsetRange("orders", 7, 0, 40)) == before
    for path in (lake / "messages").rglob("*.parquet"):
        offsets = pq.ParquetFile(path).read(columns=["offset"])["offset"].to_pylist()
        assert offsets == sorted(offsets)


def test_a_merger_that_loses_rows_changes_nothing(lake: Path) -> None:
    with Lake(lake).table("messages") as table:
        files = table.files()
        with pytest.raises(DataLoss, match="nothing was changed"):
            compact_table(table, merger=lambda merges: (compaction.merge_files(merge) - 1 for merge in merges))
        assert table.files() == files


def test_two_compactions_at_once_merge_once(lake: Path) -> None:
    def slow(merges: Iterable[compaction.FileMerge]) -> Iterable[int]:
        done = [compaction.merge_files(merge) for merge in merges]
        with Lake(lake).table("messages") as other:
            compact_table(other)
        return iter(done)

    before = found(lake, OffsetRange("orders", 7, 0, 40))
    with Lake(lake).table("messages") as table:
        assert compact_table(table, merger=slow) == CompactReport()  # type: ignore[arg-type]  # an iterable is enough here
    assert found(lake, OffsetRange("orders", 7, 0, 40)) == before


def test_rows_planned_before_a_compaction_are_found_after_it(lake: Path) -> None:
    reading = read(str(lake), "messages", OffsetRange("orders", 7, 0, 40), columns=["offset"])
    first = next(reading).column("offset").to_pylist()
    with Lake(lake).table("messages") as table:
        compact_table(table)

    rest = [offset for batch in reading for offset in batch.column("offset").to_pylist()]
    assert first + rest == list(range(40))
