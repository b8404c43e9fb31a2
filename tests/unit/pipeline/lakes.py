"""Rows for lakes, and what plain readers of Delta tables find there."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from penstock.log.log import EVENTS
from penstock.pipeline.arrow_types import arrow_schema
from penstock.pipeline.core.options import VIEWS
from penstock.pipeline.lake.archiver import _numbered
from penstock.pipeline.lake.reading import TIMES
from penstock.pipeline.lake.table import ARCHIVE, SHAPES, ArchivedSpan, Lake, NewFile
from penstock.pipeline.lake.writing import with_day, write_files

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def at(offset: int) -> datetime:
    """Two hours between two messages: a day has twelve."""
    return NOON + timedelta(hours=2 * offset)


def messages(stream: str, offsets: Iterable[int], number: int = 7) -> list[dict[str, Any]]:
    """Rows of a stream as the log has them."""
    return [
        {
            "stream": stream,
            "offset": offset,
            "message_id": f"{number}-{offset}",
            "key": f"k{offset % 3}" if offset % 4 else None,
            "value": b"\xff%d" % offset,
            "attributes": [("a", str(offset))],
            "priority": 0,
            "publish_time": at(offset),
            "expires_at": None,
            "partition": 0,
        }
        for offset in offsets
    ]


def write(lake: str | Path, view: str, rows: list[dict[str, Any]], number: int = 7) -> list[NewFile]:
    """Files of rows, as the archive's tasks write them."""
    table, shape = Lake(lake).table(view), SHAPES[view]
    table.create(shape)
    batch = with_day(pa.RecordBatch.from_pylist(rows, arrow_schema(VIEWS[view])), TIMES[view])
    return list(write_files([_numbered(batch, number) if view == "messages" else batch], table, shape))


def store(lake: str | Path, stream: str, start: int, stop: int, *, number: int = 7, first: int | None = None) -> None:
    """Archive a range. `first`: where what is there without a hole begins, unless nothing was lost."""
    files = write(lake, "messages", messages(stream, range(start, stop), number), number) if start < stop else []
    table = Lake(lake).table("messages")
    table.create(SHAPES["messages"])
    commits, streams = table.watermark()
    before = streams.get(stream)
    begin = first if first is not None else before.first if before is not None and before.number == number else start
    assert table.commit(files, ARCHIVE, commits + 1, archived=streams | {stream: ArchivedSpan(number, begin, stop)})


def store_events(lake: Path, rows: list[dict[str, Any]]) -> None:
    """Archive events from offset 0 on."""
    files = write(lake, "events", rows)
    assert Lake(lake).table("events").commit(files, ARCHIVE, 1, archived={EVENTS: ArchivedSpan(0, 0, len(rows))})


def offsets(lake: str | Path, stream: str = "orders") -> list[int]:
    """The offsets of a stream in the lake, in order, as any reader of Delta tables finds them."""
    dataset = DeltaTable(f"{lake}/messages").to_pyarrow_dataset()
    found = dataset.to_table(columns=["offset", "stream"])
    return sorted(row["offset"] for row in found.to_pylist() if row["stream"] == stream)
