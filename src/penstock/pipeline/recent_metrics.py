"""The newest metrics of a lake, read without Spark, which would take seconds to start for a table in a terminal."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pyarrow.dataset as ds

from penstock.errors import FailedPrecondition
from penstock.pipeline.lake.table import Lake

METRICS, LEVELS = "metrics", "levels"
_ORDERS = {METRICS: ("window_start", "stream", "subscription", "consumer"), LEVELS: ("window_start", "kind", "name", "priority")}
HINT = "`penstock pipeline run` makes them; a window is there when its end and the watermark have passed"


def recent(lake: str, minutes: float, name: str = METRICS) -> list[dict[str, Any]]:
    """The rows of the windows that ended in the last `minutes` before the end of the newest window, oldest first.

    The newest window is the reference, not the current time: a window is written when the watermark has passed it.
    """
    table = Lake(lake).table(name)
    days = sorted({file["partition.date"] for file in table.files()}, reverse=True)
    if not days:
        raise FailedPrecondition(f"there are no {name} in the lake {lake}", hint=HINT)
    dataset = table.delta.to_pyarrow_dataset(filesystem=table.storage())
    ends: list[datetime] = []
    rows: list[dict[str, Any]] = []
    for day in days:
        found = dataset.to_table(filter=ds.field("date") == day).drop_columns(["date"]).to_pylist()
        rows += found
        ends.append(max(row["window_end"] for row in found))
        if min(row["window_end"] for row in found) <= ends[0] - timedelta(minutes=minutes):
            break  # newest day first: earlier days have no rows in the range
    after = max(ends) - timedelta(minutes=minutes)
    wanted = [row for row in rows if row["window_end"] > after]
    # Nulls first: a total before its parts.
    return sorted(wanted, key=lambda row: [(row[column] is not None, row[column]) for column in _ORDERS[name]])
