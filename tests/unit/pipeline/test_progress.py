"""Spark's reports, added up."""

from typing import Any

import pytest

from penstock.durations import SECOND
from penstock.pipeline.progress import FETCHED, Lag, QueryProgress, Report, report_of


def progress(batch: int = 0, rows: int = 0, **others: Any) -> dict[str, Any]:
    return {"batchId": batch, "timestamp": f"2026-01-01T00:00:{batch:02d}.000Z", "numInputRows": rows, **others}


def behind(rows: int, size: int | None) -> dict[str, object]:
    """A stream, as the source reports it."""
    return {"offset": 500, "rowsBehind": rows, "bytesBehind": size}


def test_a_report_has_what_is_shown() -> None:
    report = report_of(
        progress(
            7,
            1_000,
            durationMs={"triggerExecution": 250, "addBatch": 200},
            sources=[{"latestOffset": {"orders": behind(30, 3_000), "mail": behind(0, 0)}}],
            stateOperators=[{"numRowsTotal": 40}, {"numRowsTotal": 2}],
        )
    )

    assert report == Report(batch=7, at="2026-01-01T00:00:07.000Z", rows=1_000, seconds=0.25, lag=Lag(30, 3_000), state=42)


def test_lag_is_what_penstock_sources_say(subtests: pytest.Subtests) -> None:
    cases: list[tuple[list[object], Lag | None]] = [
        ([{"orders": behind(5, 700), "mail": behind(0, 0)}], Lag(5, 700)),
        ([{"orders": behind(5, None), "mail": behind(2, 10)}], Lag(7, None)),  # the log could not say how large one is
        ([{"a": behind(2, 30)}, None, {"_penstock.events": behind(8, 800)}], Lag(10, 830)),
        ([{"a": behind(2, 30)}, {"a": behind(9, 90)}], Lag(9, 90)),  # read twice: the slower one
        ([None], None),
        (["7", {"0": 12}, {"orders": [3, 120]}], None),  # sources of other kinds
        ([], None),
    ]
    for latest, lag in cases:
        with subtests.test(latest=latest):
            assert report_of(progress(sources=[{"latestOffset": one} for one in latest])).lag == lag


def test_rows_that_a_job_fetched_past_spark_are_counted_by_their_offsets() -> None:
    moved = {"startOffset": {"orders": [3, 100]}, "endOffset": {"orders": [3, 120], "found": [4, 7]}}

    assert report_of(progress(sources=[moved | {"latestOffset": None}])).rows == 20
    assert report_of(progress(rows=5, sources=[moved])).rows == 5
    assert report_of(progress(sources=[{"startOffset": None, "endOffset": {"orders": [3, 120]}}])).rows == 0
    FETCHED["archive"] = {3: 7}
    assert report_of(progress(3, name="archive", sources=[moved])).rows == 7


def test_a_report_of_nothing_is_nothing() -> None:
    assert report_of(progress(numInputRows=None, durationMs=None)) == Report(0, "2026-01-01T00:00:00.000Z", 0, 0.0, None, 0)


def test_a_meter_counts_each_report_once() -> None:
    meter = QueryProgress("archive", 0)
    assert meter.add(report_of(progress(0, 10)), SECOND)
    assert not meter.add(report_of(progress(0, 10)), 2 * SECOND)
    assert meter.add(report_of(progress(1, 5)), 2 * SECOND)
    assert meter.add(report_of(progress(2, 0)), 3 * SECOND)

    assert (meter.rows, meter.batches) == (15, 2)
    assert meter.last is not None
    assert meter.last.batch == 2
    assert meter.seconds(3 * SECOND) == 3.0


def test_a_rate_is_that_of_the_last_ten_seconds() -> None:
    meter = QueryProgress("archive", 0)
    meter.add(report_of(progress(0, 100)), SECOND // 10)
    assert meter.rate(SECOND // 10) == 100, "a first batch is not said to be of a tenth of a second"
    assert meter.rate(5 * SECOND) == 20
    meter.add(report_of(progress(1, 50)), 9 * SECOND)
    assert meter.rate(10 * SECOND) == 15
    assert meter.rate(11 * SECOND) == 5, "the first batch is too long ago"
    assert meter.rate(60 * SECOND) == 0
