"""When a stream tries again, and when it gives up."""

from __future__ import annotations

import pytest

from penstock.client.core.stream import MAXIMUM, MINIMUM, ReconnectBackoff
from penstock.durations import SECOND
from penstock.errors import (
    FailedPrecondition,
    PenstockError,
    PermissionDenied,
    RateLimited,
    ServerUnreachable,
    SubscriptionNotFound,
    Unavailable,
)

AWAY = Unavailable("away")


def test_each_wait_is_twice_the_one_before_up_to_a_limit() -> None:
    recovery = ReconnectBackoff()
    waits = [recovery.failed(AWAY) for _ in range(12)]
    assert waits == [min(MINIMUM * 2**number, MAXIMUM) for number in range(12)]
    assert waits[-1] == MAXIMUM == 30 * SECOND


def test_a_success_makes_the_next_failure_a_first_one() -> None:
    recovery = ReconnectBackoff()
    recovery.failed(AWAY)
    recovery.failed(AWAY)
    recovery.worked()
    assert recovery.failed(AWAY) == MINIMUM


def test_a_stream_that_was_open_for_long_fails_anew(subtests: pytest.Subtests) -> None:
    rows: list[tuple[int, int]] = [(MAXIMUM - 1, 4 * MINIMUM), (MAXIMUM, MINIMUM), (MAXIMUM + 1, MINIMUM)]
    for lasted, wait in rows:
        with subtests.test(lasted=lasted, wait=wait):
            recovery = ReconnectBackoff()
            recovery.failed(AWAY)
            recovery.failed(AWAY)
            assert recovery.failed(AWAY, lasted) == wait


def test_who_is_told_when_to_come_back_does_not_come_before() -> None:
    recovery = ReconnectBackoff()
    assert recovery.failed(RateLimited(7.5)) == 7_500_000
    assert recovery.failed(RateLimited(0.001)) == 2 * MINIMUM


def test_what_does_not_pass_is_not_tried_again(subtests: pytest.Subtests) -> None:
    rows: list[PenstockError] = [
        SubscriptionNotFound("s"),
        FailedPrecondition("detached"),
        PermissionDenied("consume", "s"),
        PenstockError("?"),
    ]
    for error in rows:
        with subtests.test(error=error):
            assert ReconnectBackoff().failed(error) is None


@pytest.mark.parametrize("error", [AWAY, ServerUnreachable("http://nowhere", "refused")])
def test_what_may_pass_is_tried_again(error: PenstockError) -> None:
    assert ReconnectBackoff().failed(error) == MINIMUM
