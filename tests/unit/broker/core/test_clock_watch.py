"""Whether the clock can be trusted."""

from __future__ import annotations

from penstock.broker.core.clock_watch import ClockJump, ClockWatch
from penstock.durations import DAY, SECOND

NOW = 1_000 * DAY
HOUR = 3_600 * SECOND


def test_time_that_passes_is_no_jump_nor_is_a_step_of_a_day() -> None:
    watch = ClockWatch(NOW, 0, NOW, None)
    assert not watch.look(NOW + 30 * DAY, 30 * DAY)
    assert not watch.look(NOW + 31 * DAY, 30 * DAY)
    assert not watch.look(NOW + 32 * DAY, 30 * DAY)
    assert watch.look(NOW + 33 * DAY + 1, 30 * DAY)
    assert watch.jump == ClockJump(NOW + 32 * DAY, NOW + 33 * DAY + 1 + HOUR)


def test_a_jump_lasts_for_an_hour_of_the_steady_clock() -> None:
    watch = ClockWatch(NOW, 0, NOW, None)
    assert watch.look(NOW + 2 * DAY, 0)
    assert watch.look_at() == NOW + 2 * DAY + HOUR
    assert not watch.look(NOW + 2 * DAY + HOUR - 1, HOUR - 1)
    assert watch.look(NOW + 2 * DAY + HOUR, HOUR)
    assert watch.jump is None


def test_a_second_jump_starts_the_hour_again_and_keeps_the_last_plausible_time() -> None:
    watch = ClockWatch(NOW, 0, NOW, None)
    watch.look(NOW + 2 * DAY, 0)
    assert watch.look(NOW + 9 * DAY, HOUR // 2)
    assert watch.jump == ClockJump(NOW, NOW + 9 * DAY + HOUR)
    assert not watch.look(NOW + 9 * DAY + HOUR // 2, HOUR)


def test_a_clock_that_is_corrected_while_the_broker_runs_ends_the_hour() -> None:
    watch = ClockWatch(NOW, 0, NOW, None)
    watch.look(NOW + 400 * DAY, 0)
    assert watch.look(NOW + 60 * SECOND, 60 * SECOND)
    assert watch.jump is None


def test_any_jump_goes_beyond_the_next_look() -> None:
    watch = ClockWatch(NOW, 0, NOW, None)
    assert watch.look_at() == NOW + DAY
    watch.look(NOW - 400 * DAY, SECOND)
    assert watch.look_at() == NOW - 399 * DAY
