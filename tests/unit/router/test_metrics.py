"""What pools and queues count, over windows of five minutes, half an hour and for ever."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.durations import SECOND
from penstock.router.core.metrics import (
    BACKLOG,
    BOUNDS,
    FIVE_MINUTES,
    GROWTH,
    GROWTH_PERIOD,
    STEP,
    THIRTY_MINUTES,
    PoolCounts,
    PoolMetrics,
    QueueMetrics,
)
from penstock.router.core.outcome import Metric
from penstock.router.core.warnings import Category

NOW = 1_700_000_000 * SECOND
MINUTE = 60 * SECOND


def test_a_pool_in_which_nothing_happened_succeeds_always() -> None:
    numbers = PoolMetrics().numbers(None, NOW)

    assert numbers == PoolCounts(0, 0, 0, 0, 0, 0)
    assert (numbers.success_rate, numbers.average_time, numbers.processed) == (1.0, 0.0, 0)


def test_each_outcome_is_counted_as_what_it_is() -> None:
    pool = PoolMetrics()
    for metric, times in ((Metric.SUCCEEDED, 6), (Metric.FAILED, 2), (Metric.TRANSIENT, 3), (Metric.THROTTLED, 1)):
        for _ in range(times):
            pool.finished(metric, 1_000, NOW)
    pool.limited(4, NOW)

    for span in (None, FIVE_MINUTES, THIRTY_MINUTES):
        numbers = pool.numbers(span, NOW)
        assert numbers == PoolCounts(6, 2, 3, 1, 4, 12_000)
        assert (numbers.processed, numbers.success_rate, numbers.attempts, numbers.average_time) == (8, 0.75, 12, 1_000)


def test_what_made_no_call_is_not_counted() -> None:
    pool = PoolMetrics()
    pool.finished(Metric.NONE, 5, NOW)

    assert pool.numbers(None, NOW).attempts == 0
    assert sum(pool.durations) == 0


@pytest.mark.parametrize(
    ("duration", "bucket"),
    [(0, 0), (5_000, 0), (5_001, 1), (10_000, 1), (1_000_000, 7), (10_000_000, 10), (10_000_001, 11), (900_000_000, 11)],
)
def test_a_duration_falls_into_the_bucket_whose_bound_it_does_not_exceed(duration: int, bucket: int) -> None:
    pool = PoolMetrics()
    pool.finished(Metric.SUCCEEDED, duration, NOW)

    assert pool.durations.index(1) == bucket
    assert len(pool.durations) == len(BOUNDS) + 1 == 12


def test_errors_are_counted_by_what_they_came_to() -> None:
    pool = PoolMetrics()
    for kind in ("ERROR_PROCESS", "ERROR_CONFIG", "ERROR_PROCESS"):
        pool.errored(kind)

    assert pool.errors == {"ERROR_PROCESS": 2, "ERROR_CONFIG": 1}


def test_what_is_old_leaves_the_windows_one_after_the_other() -> None:
    pool = PoolMetrics()
    pool.finished(Metric.FAILED, 10, NOW)
    pool.finished(Metric.SUCCEEDED, 20, NOW + 4 * MINUTE)

    def seen(now: int) -> list[tuple[int, int]]:
        return [
            (numbers.succeeded, numbers.failed)
            for numbers in (pool.numbers(FIVE_MINUTES, now), pool.numbers(THIRTY_MINUTES, now), pool.numbers(None, now))
        ]

    assert seen(NOW + 4 * MINUTE) == [(1, 1), (1, 1), (1, 1)]
    assert seen(NOW + 6 * MINUTE) == [(1, 0), (1, 1), (1, 1)]
    assert seen(NOW + 10 * MINUTE) == [(0, 0), (1, 1), (1, 1)]
    assert seen(NOW + 32 * MINUTE) == [(0, 0), (1, 0), (1, 1)]
    assert seen(NOW + 60 * MINUTE) == [(0, 0), (0, 0), (1, 1)]


def attempts(happened: list[int], span: int, now: int) -> int:
    pool = PoolMetrics()
    for at in happened:
        pool.finished(Metric.SUCCEEDED, 1, at)
    return pool.numbers(span, now).attempts


spans = pytest.mark.parametrize("span", [FIVE_MINUTES, THIRTY_MINUTES])


@spans
@pytest.mark.parametrize("offset", [0, 1, 4_999_999, 9_999_999])
def test_a_window_begins_at_most_ten_seconds_too_early_and_never_too_late(span: int, offset: int) -> None:
    at = NOW + offset
    assert attempts([at], span, at + span - 1) == 1
    assert attempts([at], span, at + span + STEP) == 0


@spans
@given(gaps=st.lists(st.integers(0, 60 * SECOND), max_size=60), wait=st.integers(0, 60 * SECOND))
def test_a_window_holds_what_happened_in_it_to_ten_seconds(span: int, gaps: list[int], wait: int) -> None:
    happened = [NOW + sum(gaps[: index + 1]) for index in range(len(gaps))]
    now = max(happened, default=NOW) + wait

    counted = attempts(happened, span, now)
    assert sum(at > now - span for at in happened) <= counted <= sum(at > now - span - STEP for at in happened)


def test_the_history_of_a_busy_pool_is_bounded() -> None:
    pool = PoolMetrics()
    for number in range(10_000):
        pool.finished(Metric.SUCCEEDED, 1, NOW + number * 3 * SECOND)

    assert len(pool._history._times) <= THIRTY_MINUTES // STEP + 3
    assert 600 <= pool.numbers(THIRTY_MINUTES, NOW + 29_997 * SECOND).succeeded <= 604


def test_a_clock_that_is_set_back_loses_no_count() -> None:
    pool = PoolMetrics()
    pool.finished(Metric.SUCCEEDED, 1, NOW)
    pool.finished(Metric.SUCCEEDED, 1, NOW - 60 * MINUTE)
    pool.finished(Metric.SUCCEEDED, 1, NOW + MINUTE)

    assert pool.numbers(None, NOW).succeeded == 3
    assert pool.numbers(THIRTY_MINUTES, NOW + MINUTE).succeeded == 3


def test_another_thread_may_read_while_it_counts() -> None:
    pool, stop, wrong = PoolMetrics(), threading.Event(), []

    def read() -> None:
        while not stop.is_set():
            numbers = pool.numbers(FIVE_MINUTES, NOW + 200_000 * SECOND)
            if numbers.succeeded < 0 or numbers.attempts > 400_000:
                wrong.append(numbers)

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(200_000):
        pool.finished(Metric.SUCCEEDED, 1, NOW + number * SECOND)
    stop.set()
    reader.join()

    assert wrong == []


def test_a_queue_counts_what_comes_and_what_becomes_of_it() -> None:
    queue = QueueMetrics(NOW)
    queue.received(10, NOW)
    for _ in range(6):
        queue.consumed(NOW + 1)
    for _ in range(2):
        queue.failed(NOW + 2)
    queue.deferred(2, NOW + 3)

    for span in (None, FIVE_MINUTES, THIRTY_MINUTES):
        numbers = queue.numbers(span, NOW + 10 * SECOND)
        assert (numbers.received, numbers.consumed, numbers.failed, numbers.deferred) == (10, 6, 2, 2)
        assert (numbers.success_rate, numbers.per_second) == (0.75, 0.6)
    late = queue.numbers(FIVE_MINUTES, NOW + 20 * MINUTE)
    assert (late.received, late.success_rate, late.per_second) == (0, 1.0, 0.0)
    assert QueueMetrics(NOW).numbers(None, NOW).per_second == 0


def found(queue: QueueMetrics, pending: int, now: int) -> set[Category]:
    return {each.category for each in queue.depth(pending, 3, now)}


@pytest.mark.parametrize(("pending", "warns"), [(0, False), (BACKLOG, False), (BACKLOG + 1, True)])
def test_more_than_a_thousand_waiting_messages_are_a_backlog(pending: int, warns: bool) -> None:
    queue = QueueMetrics(NOW)

    assert found(queue, pending, NOW) == ({Category.QUEUE_BACKLOG} if warns else set())
    assert (queue.pending, queue.not_visible) == (pending, 3)


def depths(growth: list[int], period: int = GROWTH_PERIOD) -> list[bool]:
    """Whether each look at a queue that changes like this says that it grows."""
    queue, pending, said = QueueMetrics(NOW), 0, []
    for number, more in enumerate(growth):
        pending += more
        said.append(Category.QUEUE_GROWING in found(queue, pending, NOW + number * period))
    return said


@pytest.mark.parametrize(
    ("growth", "grows"),
    [
        ([500, GROWTH, GROWTH, GROWTH], [False, False, False, True]),
        ([0, GROWTH, GROWTH, GROWTH - 1], [False] * 4),
        ([0, GROWTH, GROWTH, 0, GROWTH, GROWTH, GROWTH], [False] * 6 + [True]),
        ([0, GROWTH, GROWTH, GROWTH, GROWTH, -1], [False, False, False, True, True, False]),
    ],
)
def test_a_queue_grows_when_it_did_in_three_periods_in_a_row(growth: list[int], grows: list[bool]) -> None:
    assert depths(growth) == grows


def test_looking_more_often_makes_no_more_periods() -> None:
    assert not any(depths([0, *[GROWTH] * 8], GROWTH_PERIOD // 3))
    assert any(depths([0, *[GROWTH] * 9], GROWTH_PERIOD // 3))


def test_the_warnings_of_one_trouble_are_equal() -> None:
    queue = QueueMetrics(NOW)

    assert queue.depth(2_000, 0, NOW) == queue.depth(3_000, 0, NOW + 1)
