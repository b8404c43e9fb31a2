"""`penstock pipeline`, as far as it can go wrong without Spark: told in a line or two, at once, before Spark is started."""

from __future__ import annotations

import argparse
import signal
import threading
from contextlib import nullcontext
from typing import Any, cast

import pytest

from penstock.cli import pipeline_run
from penstock.cli.pipeline_run import Screen, document, line, sum_up, told_to_stop
from penstock.durations import SECOND
from penstock.errors import Aborted, DataLoss, PenstockError, Unavailable
from penstock.pipeline.progress import Lag, QueryProgress, Report
from tests.acceptance.command import Penstock


def test_a_stream_that_is_missing_is_told_before_spark_is_started(penstock: Penstock) -> None:
    penstock.good("topic create orders")
    for words in ("orders --to gone", "gone --to orders", "gone --dry-run", "orders --to queue:gone"):
        done = penstock("pipeline", "replay", *words.split())
        assert (done.code, done.out) == (3, "")
        assert "gone" in done.err
    wrong = penstock("pipeline", "archive", "--streams", "(")

    assert (wrong.code, wrong.out) == (2, "")
    assert "expected a regular expression" in wrong.err


def test_a_missing_java_is_told_with_what_to_install(penstock: Penstock) -> None:
    java = penstock.folder / "java"
    penstock.environment["JAVA_HOME"] = str(java)
    for words in ("archive", "replay a --to b"):
        done = penstock("pipeline", *words.split())
        assert (done.code, done.out) == (1, "")
        assert done.err.startswith(f"penstock: Spark needs Java, and JAVA_HOME is {java}, where there is no bin/java\n")
        assert "openjdk-17-jre-headless" in done.err


def meter(rows: int, lag: Lag | None = None) -> QueryProgress:
    found = QueryProgress("archive-messages", 0)
    found.add(Report(batch=3, at="2026-01-01T00:00:00Z", rows=rows, seconds=0.25, lag=lag, state=0), SECOND)
    return found


def test_a_line_says_how_far_a_query_is() -> None:
    assert line(QueryProgress("archive", 0), 0) == "archive               waits for its first batch"
    said = "archive-messages      1,500 rows  750/s  20 behind"
    assert line(meter(1_500, Lag(20, 2_048)), 2 * SECOND) == f"{said} (2.0 KiB)  batch 3 took 250 ms"
    assert line(meter(1_500, Lag(20, None)), 2 * SECOND) == f"{said}  batch 3 took 250 ms"
    assert line(meter(0), 2 * SECOND) == "archive-messages      0 rows  0/s"


def test_a_document_says_the_same() -> None:
    assert document(meter(1_500, Lag(20, 2_048)), 2 * SECOND) == {
        "query": "archive-messages",
        "rows": 1_500,
        "batches": 1,
        "rate": 750.0,
        "batch": 3,
        "batch_rows": 1_500,
        "batch_seconds": 0.25,
        "lag": 20,
        "lag_bytes": 2_048,
    }
    assert document(QueryProgress("archive", 0), 0)["batch"] is None


def test_elsewhere_than_on_a_terminal_a_line_comes_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0]
    monkeypatch.setattr(pipeline_run, "monotonic", lambda: now[0])
    with Screen(is_json=False) as screen:
        for now[0] in (SECOND, 6 * SECOND, 7 * SECOND, 12 * SECOND):
            screen.show([meter(10)])

    assert capsys.readouterr().err.splitlines() == ["archive-messages      10 rows  1.7/s  batch 3 took 250 ms"], (
        "no news, no line"
    )


def test_programs_get_a_document_for_each_batch_and_one_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    with Screen(is_json=True) as screen:
        for _ in range(3):
            screen.show([meter(10), QueryProgress("other", 0)])
    sum_up([meter(10)], 2 * SECOND, is_json=True)
    first, last = capsys.readouterr().out.splitlines()

    assert '"batch": 3' in first
    assert last == '{"done": {"archive-messages": {"rows": 10, "batches": 1}}, "seconds": 2.0}'


def test_the_first_signal_asks_to_stop_and_leaves_no_handler_behind() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with told_to_stop() as stop:
        assert not stop.is_set()
        signal.raise_signal(signal.SIGTERM)
        assert stop.is_set()

    assert signal.getsignal(signal.SIGTERM) is before
    assert isinstance(stop, threading.Event)


@pytest.mark.parametrize(
    ("failures", "restarts", "starts", "raised"),
    [
        ([Unavailable("the server restarts")] * 3, 3, 4, None),
        ([Unavailable("the server restarts")] * 4, 3, 4, Unavailable),
        ([Unavailable("the server restarts")], 0, 1, Unavailable),
        ([DataLoss("something is gone")], 3, 1, DataLoss),
        ([Aborted("another archive writes this lake")], 3, 1, Aborted),
    ],
)
def test_queries_start_again_after_what_may_pass(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    failures: list[PenstockError],
    restarts: int,
    starts: int,
    raised: type[PenstockError] | None,
) -> None:
    monkeypatch.setattr(pipeline_run, "SECOND", 1_000)  # a pause of a second takes a moment
    coming, started = iter(failures), []

    def start(_spark: Any, _plan: Any) -> list[Any]:
        started.append(True)
        if (failure := next(coming, None)) is not None:
            raise failure
        return []

    given = argparse.Namespace(json=False, restarts=restarts)
    with nullcontext() if raised is None else pytest.raises(raised):
        pipeline_run._run_stage(start, cast(Any, None), cast(Any, None), threading.Event(), given)
    assert len(started) == starts
    assert capsys.readouterr().err.count("starting again in") == starts - 1
