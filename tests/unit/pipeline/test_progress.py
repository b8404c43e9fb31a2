"""Spark's reports, added up."""

from typing import Any

import pytest

from penstock.durations import SECOND
from penstock.pipeline.progress import FETCHED, QueryProgress, Report, report_of


def progress(batch: int = 0, rows: int = 0, **others: Any) -> dict[str, Any]:
    return {"batchId": batch, "timestamp": f"2026-01-01T00:00:{batch:02d}.000Z", "numInputRows": rows, **others}


def source(end: object, latest: object) -> dict[str, object]:
    return {"description": "penstock", "endOffset": end, "latestOffset": latest}


def test_a_report_has_what_is_shown() -> None:
    report = report_of(
        progress(
            7,
            1_000,
            durationMs={"triggerExecution": 250, "addBatch": 200},
            sources=[source({"orders": [3, 120], "mail": [4, 5]}, {"orders": [3, 150], "mail": [4, 5]})],
            stateOperators=[{"numRowsTotal": 40}, {"numRowsTotal": 2}],
        )
    )

    assert report == Report(batch=7, at="2026-01-01T00:00:07.000Z", rows=1_000, seconds=0.25, lag=30, state=42)


def test_lag_is_what_lies_between_the_end_of_the_batch_and_the_newest(subtests: pytest.Subtests) -> None:
    cases: list[tuple[object, object, int | None]] = [
        ({"orders": [3, 120]}, {"orders": [3, 120]}, 0),
        ({"orders": 120}, {"orders": 125}, 5),
        ({}, {"orders": [3, 10]}, 10),  # a stream that is new
        ({"orders": [3, 120]}, {"orders": [4, 7]}, 0),  # made again: what is ahead is not known, and not below nothing
        (None, {"orders": [3, 10]}, None),
        ({"orders": [3, 10]}, None, None),
        ("5", "7", None),  # a source of another kind
        ({"orders": "x"}, {"orders": []}, 0),
    ]
    for end, latest, lag in cases:
        with subtests.test(end=end, latest=latest, lag=lag):
            assert report_of(progress(sources=[source(end, latest)])).lag == lag


def test_rows_that_a_job_fetched_past_spark_are_counted_by_their_offsets() -> None:
    moved = {"startOffset": {"orders": [3, 100]}, "endOffset": {"orders": [3, 120], "found": [4, 7]}}

    assert report_of(progress(sources=[moved | {"latestOffset": None}])).rows == 20
    assert report_of(progress(rows=5, sources=[moved])).rows == 5
    assert report_of(progress(sources=[{"startOffset": None, "endOffset": {"orders": [3, 120]}}])).rows == 0
    FETCHED["archive"] = {3: 7}
    assert report_of(progress(3, name="archive", sources=[moved])).rows == 7


def test_the_lag_of_several_sources_is_their_sum() -> None:
    sources = [
        source({"a": [1, 1]}, {"a": [1, 3]}),
        source(None, None),
        source({"_penstock.events": [0, 1]}, {"_penstock.events": [0, 9]}),
    ]

    assert report_of(progress(sources=sources)).lag == 10


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
