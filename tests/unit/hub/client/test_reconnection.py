"""When a client reconnects, which closes are final, and how fast it sends after a refusal for its rate."""

from __future__ import annotations

import pytest

from penstock.durations import SECOND
from penstock.errors import FailedPrecondition, PenstockError, Unauthenticated
from penstock.hub.client.core.reconnection import (
    FORGOTTEN,
    MAXIMUM,
    SETTLED,
    ReconnectDelays,
    RequestPacing,
    close_of,
    final_error,
)
from penstock.hub.core import close_codes
from penstock.hub.core.close_codes import CLOSES, Close


def test_the_first_try_is_at_once_and_each_later_one_waits_twice_as_long_up_to_half_a_minute() -> None:
    returning = ReconnectDelays()

    waits = [returning.wait(0, 0.0) for _ in range(8)]

    assert waits == [0, *(seconds * SECOND for seconds in (1, 2, 4, 8, 16, 30, 30))]


def test_chance_takes_off_up_to_a_half() -> None:
    returning = ReconnectDelays()
    returning.wait(0, 0.0)

    assert returning.wait(0, 1.0) == SECOND // 2
    assert returning.wait(0, 0.5) == 2 * SECOND - SECOND // 2


def test_a_connection_that_lasted_makes_the_next_failure_a_first_one() -> None:
    returning = ReconnectDelays()
    for _ in range(6):
        returning.wait(0, 0.0)

    assert returning.wait(SETTLED, 0.0) == 0
    assert returning.wait(SETTLED - 1, 0.0) == SECOND


def test_a_thousand_failures_wait_no_longer_than_the_longest() -> None:
    returning = ReconnectDelays()

    assert max(returning.wait(0, 0.0) for _ in range(1_000)) == MAXIMUM


def test_every_close_of_the_hub_is_known_by_code_and_reason(subtests: pytest.Subtests) -> None:
    for close in CLOSES:
        with subtests.test(close=close.reason):
            assert close_of(close.code, close.reason) is close


def test_a_strange_close_is_worth_another_try(subtests: pytest.Subtests) -> None:
    rows: list[tuple[int | None, str]] = [(None, ""), (1006, ""), (1000, "something else"), (4999, "unauthorized")]
    for code, reason in rows:
        with subtests.test(code=code, reason=reason):
            assert close_of(code, reason) is None
            assert final_error(None, "@(a/b)") is None


def test_only_a_close_that_says_so_is_final(subtests: pytest.Subtests) -> None:
    for close in CLOSES:
        with subtests.test(close=close.reason):
            assert (final_error(close, "@(a/b)") is None) is close.may_reconnect


def test_what_is_final_is_said_in_words(subtests: pytest.Subtests) -> None:
    rows: list[tuple[Close, type[PenstockError], str]] = [
        (close_codes.UNAUTHORIZED, Unauthenticated, "token"),
        (close_codes.REPLACED, FailedPrecondition, "@(browser/ui)"),
        (close_codes.WRONG_VERSION, FailedPrecondition, "another major version"),
    ]
    for close, kind, text in rows:
        with subtests.test(close=close, kind=kind):
            error = final_error(close, "@(browser/ui)")

            assert isinstance(error, kind)
            assert text in str(error)


def test_what_is_final_says_what_to_do(subtests: pytest.Subtests) -> None:
    for close in [one for one in CLOSES if not one.may_reconnect]:
        with subtests.test(close=close.reason):
            error = final_error(close, "@(browser/ui)")

            assert error is not None
            assert error.hint
            assert "Authorization" not in error.hint


MILLISECOND = SECOND // 1_000


def test_nobody_waits_before_anybody_was_refused() -> None:
    pace = RequestPacing()

    assert [pace.turn(0) for _ in range(1_000)] == [0] * 1_000


def test_those_that_were_refused_together_come_back_one_after_another() -> None:
    pace = RequestPacing()
    for _ in range(3):
        pace.refused(now=0, retry_after=5 * MILLISECOND, gap=MILLISECOND)

    assert [pace.turn(0) for _ in range(3)] == [5 * MILLISECOND, 6 * MILLISECOND, 7 * MILLISECOND]


def test_a_refusal_on_the_way_moves_nobody_forward() -> None:
    pace = RequestPacing()
    pace.refused(now=0, retry_after=0, gap=10 * MILLISECOND)
    pace.turn(0)
    pace.turn(0)

    pace.refused(now=MILLISECOND, retry_after=MILLISECOND, gap=10 * MILLISECOND)

    assert pace.turn(MILLISECOND) == 19 * MILLISECOND


def test_a_client_that_had_nothing_to_say_for_a_while_is_free_again() -> None:
    pace = RequestPacing()
    pace.refused(now=0, retry_after=0, gap=MILLISECOND)
    pace.turn(0)

    assert [pace.turn(MILLISECOND + FORGOTTEN + 1) for _ in range(2)] == [0, 0]
