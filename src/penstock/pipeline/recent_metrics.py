"""The newest metrics of a lake, read without Spark: a table in a terminal is not worth the seconds that Spark takes to start."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from penstock.errors import FailedPrecondition
from penstock.pipeline.lake.reading import open_file
from penstock.pipeline.lake.table import Lake, Table

METRICS = "metrics"
HINT = "`penstock pipeline run` makes them; a window is there when its end and the watermark have passed"


def recent(lake: str, minutes: float) -> list[dict[str, Any]]:
    """The rows of the windows that ended in the last this many minutes before the end of the newest, oldest first.

    Not before now: a window is there when the watermark has passed it.
    """
    table = Lake(lake).table(METRICS)
    if not table.files():
        raise FailedPrecondition(f"there are no metrics in the lake {lake}", hint=HINT)
    ends: list[datetime] = []
    rows: list[dict[str, Any]] = []
    for day in _days(table):
        rows += day
        ends.append(max(row["window_end"] for row in day))
        if min(row["window_end"] for row in day) <= ends[0] - timedelta(minutes=minutes):
            break  # days come newest first: those before have nothing to add
    after = max(ends) - timedelta(minutes=minutes)
    wanted = [row for row in rows if row["window_end"] > after]
    return sorted(wanted, key=lambda row: (row["window_start"], row["stream"], row["subscription"] or "", row["consumer"] or ""))


def _days(table: Table) -> Iterator[list[dict[str, Any]]]:
    """All rows of a day, for each day that has some, the newest first."""
    files = sorted(table.files(), key=lambda file: file.date)
    for day in sorted({file.date for file in files}, reverse=True):
        rows: list[dict[str, Any]] = []
        for file in files:
            if file.date == day:
                with open_file(table, file) as opened:
                    rows += opened.read().to_pylist()
        if rows:
            yield rows
