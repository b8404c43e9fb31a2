"""ManualClock: time that moves only when it is told to."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta, timezone

import pytest

from penstock import Message, MessageQueue, QueueManager
from penstock.clock import SystemClock
from penstock.durations import SECOND
from penstock.errors import InvalidArgument
from penstock.testing import ManualClock


def test_time_stands_still_until_it_is_advanced() -> None:
    clock = ManualClock()
    before = clock.now()

    assert [clock.now() for _ in range(3)] == [before] * 3


@pytest.mark.parametrize(
    ("step", "micros"),
    [
        (1, SECOND),
        (0.25, SECOND // 4),
        (timedelta(minutes=1), 60 * SECOND),
        (0, 0),
        (0.000001, 1),
        (timedelta(microseconds=1), 1),
    ],
)
def test_advance_takes_seconds_or_a_timedelta_and_is_exact(step: float | timedelta, micros: int) -> None:
    clock = ManualClock()
    before = clock.now()

    clock.advance(step)

    assert clock.now() - before == micros


def test_many_small_steps_are_one_large_one() -> None:
    clock, other = ManualClock(), ManualClock()
    for _ in range(1_000):
        clock.advance(0.1)
    other.advance(100)

    assert clock.now() == other.now()


def test_every_clock_starts_at_the_same_instant_so_that_tests_repeat() -> None:
    assert ManualClock().now() == ManualClock().now()
    assert ManualClock().time == datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("start", "time"),
    [
        (0, datetime(1970, 1, 1, tzinfo=UTC)),
        (1.5, datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)),
        (datetime(2030, 5, 6, 7, 8, 9, 10, tzinfo=UTC), datetime(2030, 5, 6, 7, 8, 9, 10, tzinfo=UTC)),
        (datetime(2030, 1, 1, 1, tzinfo=timezone(timedelta(hours=2))), datetime(2029, 12, 31, 23, tzinfo=UTC)),
    ],
)
def test_decision_35_a_clock_may_start_anywhere_and_tells_aware_utc(start: datetime | float, time: datetime) -> None:
    clock = ManualClock(start)

    assert clock.time == time
    assert clock.time.tzinfo is UTC


def test_a_refused_step_moves_nothing() -> None:
    clock = ManualClock()
    before = clock.now()

    with pytest.raises(InvalidArgument, match="seconds is -1, expected seconds, 0 or more"):
        clock.advance(-1)

    assert clock.now() == before


def test_decision_34_the_effects_of_an_advance_are_visible_to_the_next_call_of_any_kind() -> None:
    clock = ManualClock()
    with MessageQueue(clock=clock) as queue:
        queue.register_topic("t")
        queue.register_subscription("s", "t")
        queue.publish("t", [Message(b"x"), Message(b"y", deliver_at=clock.time + timedelta(seconds=10))])
        queue.pull("s")

        clock.advance(9.999999)
        assert (queue.stats("s").in_flight, queue.stats("s").delayed) == (1, 1)

        clock.advance(0.000001)
        assert (queue.stats("s").in_flight, queue.stats("s").delayed, queue.stats("s").ready) == (0, 0, 2)


class Watched(ManualClock):
    """Tells when a call has begun to wait, so that a test need not guess."""

    def __init__(self) -> None:
        super().__init__()
        self.is_waiting = threading.Event()

    def wait(self, condition: threading.Condition, timeout: int | None) -> bool:
        self.is_waiting.set()
        return super().wait(condition, timeout)


def consuming(manager: QueueManager, timeout: float, found: list[object]) -> threading.Thread:
    thread = threading.Thread(target=lambda: found.append(manager.consume("q", timeout=timeout)))
    thread.start()
    return thread


def test_a_waiting_call_ends_when_the_clock_has_advanced_by_its_timeout() -> None:
    clock, found = Watched(), list[object]()
    with QueueManager(clock=clock) as manager:
        manager.create("q")
        thread = consuming(manager, 3_600, found)
        assert clock.is_waiting.wait(10)

        clock.advance(3_600)

        thread.join(10)
        assert found == [None]


def test_a_waiting_call_goes_on_waiting_when_the_clock_advances_by_less() -> None:
    clock, found = Watched(), list[object]()
    with QueueManager(clock=clock) as manager:
        manager.create("q")
        thread = consuming(manager, 3_600, found)
        assert clock.is_waiting.wait(10)
        clock.is_waiting.clear()

        clock.advance(3_599)

        assert clock.is_waiting.wait(10), "it waits again for what is left"
        assert found == []
        manager.publish("q", "here")
        thread.join(10)
        assert len(found) == 1
        assert found != [None]


def test_a_waiting_call_ends_when_a_delay_is_over() -> None:
    clock, found = Watched(), list[object]()
    with QueueManager(clock=clock) as manager:
        manager.create("q")
        manager.publish("q", "later", delay=60)
        thread = consuming(manager, 3_600, found)
        assert clock.is_waiting.wait(10)

        clock.advance(60)

        thread.join(10)
        assert len(found) == 1
        assert found != [None]


def test_a_wait_ends_by_real_time_too_so_that_a_test_that_forgets_to_advance_is_never_stuck() -> None:
    condition = threading.Condition()

    with condition:
        assert ManualClock().wait(condition, 1_000) is False


def test_many_threads_may_advance_one_clock() -> None:
    clock = ManualClock()
    before = clock.now()

    def tick() -> None:
        for _ in range(500):
            clock.advance(0.001)

    threads = [threading.Thread(target=tick) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert clock.now() - before == 2 * SECOND


def test_who_listens_hears_of_every_jump_until_they_stop() -> None:
    clock, heard = ManualClock(), list[int]()
    stop = clock.listen(lambda: heard.append(clock.now()))

    clock.advance(1)
    clock.advance(2)
    stop()
    stop()
    clock.advance(3)

    assert [later - heard[0] for later in heard] == [0, 2_000_000]


def test_a_clock_that_runs_never_jumps() -> None:
    SystemClock().listen(lambda: pytest.fail("it does not jump"))()
