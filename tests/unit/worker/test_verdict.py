"""What becomes of a task that was run."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.durations import SECOND
from penstock.errors import InvalidArgument
from penstock.worker.core.verdict import Backoff, Outcome, Reject, Retry, TimeLimitExceeded, Verdict, judge, text_of

BACKOFF = Backoff.of((1, 300))


class _Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_a_run_is_judged(subtests: pytest.Subtests) -> None:
    rows: list[tuple[BaseException | None, int, int, Verdict]] = [
        (None, 1, 0, Verdict(Outcome.SUCCEEDED)),
        (None, 9, 3, Verdict(Outcome.SUCCEEDED)),
        (ValueError(), 1, 0, Verdict(Outcome.DEAD)),
        (ValueError(), 1, 1, Verdict(Outcome.RETRIED, delay=1 * SECOND)),
        (ValueError(), 2, 1, Verdict(Outcome.DEAD)),
        (ValueError(), 3, 3, Verdict(Outcome.RETRIED, delay=4 * SECOND)),
        (ValueError(), 4, 3, Verdict(Outcome.DEAD)),
        (ValueError(), 20, 99, Verdict(Outcome.RETRIED, delay=300 * SECOND)),
        (TimeLimitExceeded(30), 1, 3, Verdict(Outcome.RETRIED, delay=1 * SECOND)),
        (SystemExit(), 1, 3, Verdict(Outcome.RETRIED, delay=1 * SECOND)),
        (Retry(), 1, 3, Verdict(Outcome.RETRIED, delay=1 * SECOND)),
        (Retry(delay=7.5), 1, 3, Verdict(Outcome.RETRIED, delay=7_500_000)),
        (Retry(delay=0), 3, 3, Verdict(Outcome.RETRIED, delay=0)),
        (Retry(delay=7), 4, 3, Verdict(Outcome.DEAD)),
        (Reject(), 1, 3, Verdict(Outcome.DEAD, requeue=False)),
        (Reject(), 4, 3, Verdict(Outcome.DEAD, requeue=False)),
    ]
    for error, attempt, retries, wanted in rows:
        with subtests.test(error=error, attempt=attempt):
            assert judge(error, attempt, retries, BACKOFF) == wanted


@given(retries=st.integers(0, 100), low=st.integers(0, 1000), more=st.integers(0, 10_000))
def test_a_task_that_always_fails_is_run_once_more_than_it_is_retried(retries: int, low: int, more: int) -> None:
    backoff, delays = Backoff.of((low, low + more)), []
    attempt = 1
    while (verdict := judge(ValueError(), attempt, retries, backoff)).outcome is Outcome.RETRIED:
        assert verdict.delay is not None
        delays.append(verdict.delay)
        attempt += 1

    assert verdict.outcome is Outcome.DEAD
    assert attempt == retries + 1
    assert delays == sorted(delays)
    assert all(low * SECOND <= delay <= (low + more) * SECOND for delay in delays)


def test_a_backoff_that_makes_no_sense_is_refused(subtests: pytest.Subtests) -> None:
    rows: list[object] = [(5, 1), (1,), (1, 2, 3), (-1, 5), ("1", 5), None, "soon", (float("nan"), 5), (0, 10**9), ()]
    for value in rows:
        with subtests.test(value=value), pytest.raises(InvalidArgument, match="backoff"):
            Backoff.of(value)


def test_one_number_is_a_backoff_that_stays_the_same() -> None:
    assert [Backoff.of(5).after(attempt) for attempt in (1, 2, 9)] == [5 * SECOND] * 3


def test_a_retry_after_a_delay_that_makes_no_sense_is_refused(subtests: pytest.Subtests) -> None:
    rows: list[Any] = [-1, "1", float("inf"), 10**9]
    for delay in rows:
        with subtests.test(delay=delay), pytest.raises(InvalidArgument, match="delay"):
            Retry(delay=delay)


def test_a_retry_takes_its_delay_as_everything_else_does() -> None:
    for delay in (90, 90.0, timedelta(seconds=90)):
        assert judge(Retry(delay=delay), 1, 3, Backoff(0, 0)).delay == 90 * SECOND


def test_the_error_that_is_kept_says_what_happened(subtests: pytest.Subtests) -> None:
    rows: list[tuple[BaseException, str]] = [
        (ValueError("bad"), "ValueError: bad"),
        (KeyError(), "KeyError"),
        (Reject("no such user"), "no such user"),
        (Reject(), "rejected by the task"),
        (Retry("busy"), "busy"),
        (Retry(), "the task asked for a retry"),
        (TimeLimitExceeded(1.5), "TimeLimitExceeded: the time limit of 1.5 s is over"),
        (_Speechless(), "_Speechless"),
    ]
    for error, text in rows:
        with subtests.test(error=error, text=text):
            assert text_of(error) == text
