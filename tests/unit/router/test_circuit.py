"""Specification 001, "Circuit Breaker", and decision 18."""

import pytest

from penstock.durations import SECOND
from penstock.router.core.circuit import OPEN_FOR, PROBE_WAIT, SUCCESSES, WINDOW, Breaker, ExportedBreaker, State, merge
from penstock.router.core.outcome import Health

UP, DOWN, UNKNOWN = Health.UP, Health.DOWN, Health.UNKNOWN


def breaker(*calls: Health, now: int = 0) -> Breaker:
    made = Breaker()
    for health in calls:
        assert made.may(now) == 0
        said(made, health, now)
    return made


def said(made: Breaker, health: Health, now: int) -> bool:
    """A call that was made in the present state ends."""
    return made.record(health, now, made.epoch)


def opened(now: int = 0) -> Breaker:
    made = breaker(*[DOWN] * WINDOW, now=now)
    assert made.state is State.OPEN
    return made


def probing(now: int = 0) -> Breaker:
    """Half open, with its one call under way."""
    made = opened(now)
    assert made.may(now + OPEN_FOR) == 0
    assert made.state is State.HALF_OPEN
    return made


def test_circuit_breaker_the_specifications_numbers() -> None:
    assert (WINDOW, OPEN_FOR, SUCCESSES) == (10, 5 * SECOND, 3)


@pytest.mark.parametrize(
    ("calls", "state"),
    [
        ([DOWN] * 9, State.CLOSED),  # request volume threshold: not before the tenth call
        ([DOWN] * 10, State.OPEN),
        ([UP] * 5 + [DOWN] * 5, State.OPEN),  # failure ratio 0.5
        ([UP] * 6 + [DOWN] * 4, State.CLOSED),
        ([DOWN] * 4 + [UP] * 6 + [DOWN] * 4, State.CLOSED),  # the window rolls
        ([DOWN] * 4 + [UP] * 6 + [DOWN] * 5, State.OPEN),
        ([UP] * 100 + [DOWN] * 4, State.CLOSED),
        ([DOWN] * 9 + [UNKNOWN] * 10, State.CLOSED),  # neither for it nor against it
        ([DOWN, UP] * 4 + [UP, DOWN], State.OPEN),
    ],
)
def test_circuit_breaker_opens_when_half_of_the_last_ten_calls_failed(calls: list[Health], state: State) -> None:
    assert breaker(*calls).state is state


def test_circuit_breaker_the_call_that_opens_it_is_told_so() -> None:
    closed = breaker(*[DOWN] * 9)

    before = closed.epoch
    assert closed.record(DOWN, 0, before)
    assert not closed.record(DOWN, 0, before)  # was under way: it is open already
    assert closed.failed == 11


def test_circuit_breaker_open_lets_none_through_for_five_seconds_and_says_how_long() -> None:
    made = opened(now=7)

    assert made.may(7) == OPEN_FOR
    assert made.may(7 + OPEN_FOR - 1) == 1
    assert made.state is State.OPEN
    assert made.may(7 + OPEN_FOR) == 0
    assert made.rejected == 2


def test_circuit_breaker_half_open_admits_one_probe_at_a_time() -> None:
    made = probing()
    later = OPEN_FOR

    assert made.may(later) == OPEN_FOR
    assert not said(made, UP, later)
    assert made.may(later) == 0
    assert made.may(later) == OPEN_FOR


def test_circuit_breaker_half_open_three_successes_close_it() -> None:
    made = probing()

    assert [said(made, UP, OPEN_FOR), made.may(OPEN_FOR), said(made, UP, OPEN_FOR), made.may(OPEN_FOR)] == [False, 0, False, 0]
    assert said(made, UP, OPEN_FOR)
    assert made.state is State.CLOSED
    assert (made.buffered, made.failure_rate) == (0, 0.0)


def test_circuit_breaker_half_open_one_failure_opens_it_for_another_five_seconds() -> None:
    made = probing()
    said(made, UP, OPEN_FOR)
    made.may(OPEN_FOR)

    assert said(made, DOWN, OPEN_FOR + 1)
    assert made.state is State.OPEN
    assert made.may(OPEN_FOR + 2) == OPEN_FOR - 1
    assert made.may(OPEN_FOR + 1 + OPEN_FOR) == 0


def test_circuit_breaker_half_open_a_probe_that_says_nothing_lets_the_next_one_try() -> None:
    made = probing()

    assert not said(made, UNKNOWN, OPEN_FOR)
    assert made.state is State.HALF_OPEN
    assert made.may(OPEN_FOR) == 0


@pytest.mark.parametrize("health", [UP, DOWN, UNKNOWN])
def test_circuit_breaker_half_open_a_call_from_before_is_no_probe(health: Health) -> None:
    made = Breaker()
    before = made.epoch
    for _ in range(WINDOW):
        said(made, DOWN, 0)
    assert made.may(OPEN_FOR) == 0

    assert not made.record(health, OPEN_FOR, before)

    assert made.state is State.HALF_OPEN
    assert made.may(OPEN_FOR) == OPEN_FOR  # the probe is still under way


@pytest.mark.parametrize(
    ("calls", "is_clean"),
    [
        ([UP] * 9, False),
        ([UP] * 10, True),
        ([UP] * 10 + [UNKNOWN], True),
        ([UP] * 10 + [DOWN], False),
        ([UP] * 10 + [DOWN] + [UP] * 9, False),
        ([UP] * 10 + [DOWN] + [UP] * 10, True),
        ([DOWN] * 10, False),
    ],
)
def test_circuit_breaker_clean_is_one_whose_last_ten_calls_all_succeeded(calls: list[Health], is_clean: bool) -> None:
    made = breaker(*calls)

    assert made.is_clean is is_clean
    made.reset()
    assert not made.is_clean  # its window is empty: the next calls have to be counted


def test_decision_18_a_refusal_is_a_target_that_is_up() -> None:
    made = breaker(*[UP] * 20)

    assert (made.state, made.succeeded, made.failed) == (State.CLOSED, 20, 0)


def test_circuit_breaker_reset_closes_it_and_keeps_the_totals() -> None:
    made = probing()

    made.reset()

    assert (made.state, made.failed, made.buffered, made.failure_rate) == (State.CLOSED, 10, 0, 0.0)
    assert made.may(0) == 0


def test_circuit_breaker_failure_rate_is_from_0_to_1_and_of_the_window() -> None:
    made = breaker(UP, UP, UP, DOWN)
    assert (made.buffered, made.failure_rate) == (4, 0.25)

    for _ in range(20):
        said(made, UP, 0)
    assert (made.buffered, made.failure_rate) == (10, 0.0)


def test_circuit_breaker_knows_when_it_was_last_used() -> None:
    made = Breaker()
    made.may(5)
    assert made.used_at == 5
    said(made, UP, 9)
    assert made.used_at == 9


# ── pauses ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_decision_21_a_pause_lets_no_call_through_then_one_and_after_its_answer_all() -> None:
    made = Breaker()
    made.pause(30 * SECOND)

    assert (made.may(0), made.may(29 * SECOND)) == (30 * SECOND, SECOND)
    assert (made.may(30 * SECOND), made.may(30 * SECOND)) == (0, PROBE_WAIT)
    made.record(UP, 31 * SECOND, made.epoch)
    assert [made.may(31 * SECOND) for _ in range(3)] == [0, 0, 0]
    assert made.state is State.CLOSED


def test_decision_21_what_was_called_before_the_pause_does_not_end_it() -> None:
    made = Breaker()
    epoch = made.epoch
    made.pause(30 * SECOND)
    made.record(UP, SECOND, epoch)

    assert made.may(2 * SECOND) == 28 * SECOND


def test_decision_21_a_later_pause_counts_and_an_earlier_one_does_not_shorten_it() -> None:
    made = Breaker()
    made.pause(30 * SECOND)
    made.pause(10 * SECOND)
    assert made.may(0) == 30 * SECOND
    made.pause(50 * SECOND)
    assert made.may(0) == 50 * SECOND


def test_decision_21_a_breaker_that_is_open_waits_for_the_pause_and_a_reset_ends_both() -> None:
    made = opened()
    made.pause(100 * SECOND)

    assert made.may(OPEN_FOR) == 100 * SECOND - OPEN_FOR
    made.reset()
    assert made.may(0) == 0


def test_of_several_states_the_one_counts_that_trusts_the_target_least() -> None:
    closed, failing = breaker(UP).export(0), breaker(DOWN, DOWN).export(0)
    half, opening, paused = probing().export(OPEN_FOR), opened(now=5).export(5), Breaker()
    paused.pause(60 * SECOND)
    assert merge([closed, failing]) == failing
    assert merge([failing, half, closed]) == half
    assert merge([half, opening, closed]) == opening
    assert merge([closed, paused.export(0)]) == paused.export(0)
    assert Breaker.restore(merge([ExportedBreaker(), opening]), 100).may(100) == OPEN_FOR


def test_a_pause_lasts_in_another_process_as_long_as_it_would_have_here() -> None:
    made = Breaker()
    made.pause(60 * SECOND)
    other = Breaker.restore(made.export(20 * SECOND), 1_000 * SECOND)
    assert other.may(1_000 * SECOND) == 40 * SECOND
    assert other.may(1_040 * SECOND) == 0
    assert other.may(1_040 * SECOND) == PROBE_WAIT
