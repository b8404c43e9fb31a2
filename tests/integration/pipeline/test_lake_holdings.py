"""Log and lake as one: every row once, from the lake as far as it goes, from the log beyond, and what is in neither is told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxBytes, ReadMaxRows

from penstock.errors import DataLoss, InvalidArgument, NotFound
from penstock.pipeline.lake.reading import LakeLog
from penstock.pipeline.lake.table import ARCHIVE, ArchivedSpan, Lake
from penstock.pipeline.reader import BatchReader
from tests.integration.pipeline.world import Query, World, everything, places, values
from tests.unit.pipeline.lakes import write

pytestmark = pytest.mark.alone


def archive(world: World, lake: Path, stream: str, start: int, stop: int) -> None:
    """Put a range into the lake as it is in the log."""
    ends = {"startingOffsets": f'{{"{stream}": {start}}}', "endingOffsets": f'{{"{stream}": {stop}}}'}
    found = everything(world.batch(subscribe=stream, **ends))
    number = world.server.broker.catalog.topic(stream).number
    files = write(lake, "messages", found, number)
    table = Lake(lake).table("messages")
    commits, streams = table.watermark()
    first = streams[stream].first if stream in streams else start
    assert table.commit(files, ARCHIVE, commits + 1, archived=streams | {stream: ArchivedSpan(number, first, stop)})


class Asked:
    """Remembers what was read from the lake."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows = 0
        read = LakeLog._rows

        def rows(*given: Any) -> Iterator[Any]:
            for batch in read(*given):
                self.rows += batch.num_rows
                yield batch

        monkeypatch.setattr(LakeLog, "_rows", rows)


def of_the_lake(reader: BatchReader) -> int:
    """How many rows of a read come from the lake."""
    with pytest.MonkeyPatch.context() as patch:
        asked = Asked(patch)
        everything(reader)
        return asked.rows


def test_each_row_comes_once_from_where_it_is(way: World, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    way.count("orders", 6)
    archive(way, lake, "orders", 0, 6)
    way.retain()
    noon = way.clock.time.isoformat()
    way.count("orders", 4)
    way.count("new", 2)
    auto = {"subscribe": "orders", "storage": "auto", "lake": str(lake)}
    all_values = [b"%d" % offset for offset in range(10)]

    assert values(everything(way.batch(**auto))) == all_values
    assert of_the_lake(way.batch(**auto)) == 6
    assert values(everything(way.batch(**auto | {"storage": "lake"}))) == all_values[:6]
    assert (
        values(everything(way.batch(**auto, startingOffsets='{"orders": 4}', endingOffsets='{"orders": 8}'))) == all_values[4:8]
    )
    assert values(everything(way.batch(**auto, startingTimestamp=noon))) == all_values[6:]
    assert values(everything(way.batch(**auto, endingTimestamp=noon))) == all_values[:6]
    assert values(everything(way.batch(**auto, startingTimestamp="2020-01-01"))) == all_values
    assert places(everything(way.batch(subscribePattern="new|orders", storage="auto", lake=str(lake))))[:3] == [
        ("new", 0),
        ("new", 1),
        ("orders", 0),
    ]
    assert values(everything(way.batch(**auto, columns="value,offset,stream"))) == all_values
    assert len(everything(way.batch(view="events", storage="auto", lake=str(lake)))) == len(everything(way.batch(view="events")))
    with pytest.raises(DataLoss, match="offsets 0 to 5 of 'orders'"):
        way.batch(subscribe="orders", startingOffsets='{"orders": 0}').partitions()
    with pytest.raises(NotFound, match="new in the lake"):
        way.batch(subscribe="new", storage="lake", lake=str(lake)).partitions()
    with pytest.raises(InvalidArgument, match="view is 'deadletters'"):
        way.batch(view="deadletters", storage="auto", lake=str(lake)).partitions()


def test_what_is_in_neither_is_told_or_skipped(way: World, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    way.count("orders", 3)
    archive(way, lake, "orders", 0, 3)
    way.count("orders", 3)
    way.retain()
    way.count("orders", 2)
    auto = {"subscribe": "orders", "storage": "auto", "lake": str(lake)}

    with pytest.raises(DataLoss, match=r"offsets 3 to 5 of 'orders' \(3 rows\) are gone"):
        everything(way.batch(**auto))
    assert values(everything(way.batch(**auto, failOnDataLoss="false"))) == [b"0", b"1", b"2", b"6", b"7"]


def test_an_archive_that_began_later_leaves_the_begin_to_the_log(way: World, tmp_path: Path) -> None:
    way.count("orders", 6)
    archive(way, tmp_path / "lake", "orders", 2, 4)
    auto = way.batch(subscribe="orders", storage="auto", lake=str(tmp_path / "lake"))

    assert sorted(values(everything(auto))) == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert of_the_lake(auto) == 2


def test_the_archive_of_a_stream_that_was_made_again_is_of_another_one(way: World, tmp_path: Path) -> None:
    way.count("orders", 5)
    archive(way, tmp_path / "lake", "orders", 0, 5)
    way.queue.unregister_topic("orders")
    way.publish("orders", b"new")
    way.server.broker.sync()
    options = {"subscribe": "orders", "lake": str(tmp_path / "lake")}

    assert values(everything(way.batch(**options, storage="auto"))) == [b"new"]
    assert len(everything(way.batch(**options, storage="lake"))) == 5


def test_a_stream_starts_in_the_lake_and_continues_in_the_log(way: World, tmp_path: Path) -> None:
    """Without a gap and without a repetition, with limits, over a retention, and when the archive gets ahead of the query."""
    lake = tmp_path / "lake"
    way.count("orders", 6)
    archive(way, lake, "orders", 0, 6)
    way.retain()
    way.count("orders", 4)
    query = Query(way.stream(subscribe="orders", storage="auto", lake=str(lake)))

    assert values(query.batch(ReadMaxRows(4))) == [b"0", b"1", b"2", b"3"]
    assert values(query.batch(ReadMaxBytes(1))) == [b"4"], "the log itself knows its size no more"
    assert values(query.batch(ReadMaxRows(3))) == [b"5", b"6", b"7"], "over the watermark"
    archive(way, lake, "orders", 6, 10)
    way.count("orders", 2)
    assert [values(batch) for batch in query.rest()] == [[b"8", b"9", b"10", b"11"]]
    query.reader.stop()


def test_a_batch_of_a_stream_is_the_same_wherever_it_is_read(way: World, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    way.count("orders", 8)
    archive(way, lake, "orders", 0, 3)
    reader = way.stream(subscribe="orders", storage="auto", lake=str(lake))
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    parts = [reader.partitions(start, end)]
    archive(way, lake, "orders", 3, 8)
    parts.append(reader.partitions(start, end))

    reader.stop()
    first, second = ([row for part in found for batch in reader.read(part) for row in batch.to_pylist()] for found in parts)
    assert first == second
    assert values(first) == [b"%d" % offset for offset in range(8)]


def test_a_stream_of_the_lake_alone_follows_the_archive(way: World, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    way.count("orders", 8)
    archive(way, lake, "orders", 0, 3)
    query = Query(way.stream(subscribe="orders", storage="lake", lake=str(lake)))

    assert [values(batch) for batch in query.rest()] == [[b"0", b"1", b"2"]]
    archive(way, lake, "orders", 3, 8)
    assert [values(batch) for batch in query.rest()] == [[b"3", b"4", b"5", b"6", b"7"]]
