"""Log and lake as one: every row once, from the lake as far as it goes, from the log beyond, and what is in neither is told."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.errors import DataLoss, InvalidArgument, NotFound
from penstock.pipeline.core.offsets import Position
from penstock.pipeline.lake.table import Lake, Staged
from penstock.pipeline.reader import BatchReader
from penstock.pipeline.scan import Part
from tests.integration.pipeline.world import World, everything, places, values


def archive(world: World, lake: Path, stream: str, start: int, stop: int) -> None:
    """Put a range into the lake as it is in the log."""
    ends = {"startingOffsets": f'{{"{stream}": {start}}}', "endingOffsets": f'{{"{stream}": {stop}}}'}
    reader = world.batch(subscribe=stream, **ends)
    found = pa.Table.from_batches([batch for part in reader.partitions() for batch in reader.read(part)])
    number = world.server.broker.catalog.topic(stream).number
    with Lake(lake).table("messages") as table:
        base, path = table.watermark(), table.stage() / "rows.parquet"
        pq.write_table(found.drop_columns(["stream"]), path)
        day = world.clock.time.date().isoformat()
        table.commit(
            [Staged(path, stop - start, day, stream, number, start, stop - 1)],
            watermark={stream: Position(number, stop)},
            base=base,
        )


def of_the_lake(reader: BatchReader) -> int:
    return sum(piece.rows for part in reader.partitions() if isinstance(part, Part) for piece in part.archived)


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
    assert places(everything(way.batch(subscribePattern="new|orders", storage="auto", lake=str(lake))))[6:8] == [
        ("new", 0),
        ("new", 1),
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
        way.batch(**auto).partitions()
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
