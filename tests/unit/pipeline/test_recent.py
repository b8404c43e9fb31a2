"""The newest metrics of a lake, and their table in the terminal."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.errors import FailedPrecondition
from penstock.pipeline.arrow_types import arrow_schema
from penstock.pipeline.lake.table import SHAPES, Lake
from penstock.pipeline.lake.writing import with_day, write_files
from penstock.pipeline.recent_metrics import recent
from penstock.pipeline.schemas import METRICS
from tests.acceptance.command import Penstock

pytestmark = pytest.mark.alone

MIDNIGHT = datetime(2026, 2, 1, tzinfo=UTC)
NONE: dict[str, Any] = dict.fromkeys(
    ("subscription", "consumer", "wait_p50_ms", "wait_p99_ms", "processing_p50_ms", "processing_p99_ms")
)
ZERO = dict.fromkeys((field.name for field in arrow_schema(METRICS) if not field.nullable), 0)


def window(minute: int, **others: object) -> dict[str, object]:
    """A row of the minute that begins so many minutes after midnight."""
    start = MIDNIGHT + timedelta(minutes=minute)
    return {**NONE, **ZERO, "window_start": start, "window_end": start + timedelta(minutes=1), "stream": "orders", **others}


def write(lake: Path, *batches: list[dict[str, object]]) -> None:
    table, shape = Lake(lake).table("metrics"), SHAPES["metrics"]
    table.create(shape)
    for number, rows in enumerate(batches):
        batch = with_day(pa.RecordBatch.from_pylist(rows, arrow_schema(METRICS)), "window_start")
        assert table.commit(list(write_files([batch], table, shape)), "query", number)


def minutes(rows: list[dict[str, Any]]) -> list[int]:
    return [(row["window_start"] - MIDNIGHT) // timedelta(minutes=1) for row in rows]


def test_minutes_are_counted_from_the_newest_window_over_midnight_too(tmp_path: Path) -> None:
    write(tmp_path, [window(-3), window(-2)], [window(-1)], [window(0), window(2)], [window(1)])

    assert minutes(recent(str(tmp_path), 1)) == [2]
    assert minutes(recent(str(tmp_path), 3)) == [0, 1, 2]
    assert minutes(recent(str(tmp_path), 4)) == [-1, 0, 1, 2]
    assert minutes(recent(str(tmp_path), 1_000)) == [-3, -2, -1, 0, 1, 2]


def test_a_lake_without_metrics_is_told_with_what_makes_them(tmp_path: Path) -> None:
    with pytest.raises(FailedPrecondition) as caught:
        recent(str(tmp_path), 5)
    assert "penstock pipeline run" in str(caught.value.hint)


def test_the_command_shows_a_table_or_a_document(tmp_path: Path) -> None:
    write(
        tmp_path / "lake",
        [
            window(0, published=1_200),
            window(0, subscription="billing", consumer="c1", acked=1_100, wait_p50_ms=1.5, wait_p99_ms=2_500.0, redelivered=3),
        ],
    )
    penstock = Penstock(tmp_path)

    heading, first, second = penstock.good("pipeline show").out.splitlines()
    assert heading.split()[:4] == ["WINDOW", "STREAM", "SUBSCRIPTION", "CONSUMER"]
    assert first.split() == ["00:00:00", "orders", "-", "-", "1,200", "0", "0", "0", "-", "-", "-", "-"]
    assert second.split() == ["00:00:00", "orders", "billing", "c1", "0", "1,100", "3", "0", "1.5", "ms", "2.5", "s", "-", "-"]
    assert [row["acked"] for row in penstock.good("pipeline show --json").json] == [0, 1_100]
