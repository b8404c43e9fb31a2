"""Specification 001, "Rate Limiting": how long to wait."""

import pytest

from penstock.durations import SECOND
from penstock.errors import InvalidArgument
from penstock.router.core.rate_limit import MINUTE, RateLimit


def test_rate_limiter_the_permits_of_one_minute_may_be_used_at_once() -> None:
    limit = RateLimit(3)

    assert [limit.take(0) for _ in range(3)] == [0, 0, 0]
    assert limit.take(0) == 20 * SECOND


def test_rate_limiter_who_is_refused_is_told_exactly_when_to_come_back() -> None:
    limit = RateLimit(1)

    assert limit.take(5) == 0
    assert limit.take(5) == MINUTE
    assert limit.take(5 + MINUTE - 1) == 1
    assert limit.take(5 + MINUTE) == 0


def test_rate_limiter_permits_come_back_evenly_and_no_more_are_saved_than_those_of_a_minute() -> None:
    limit = RateLimit(60)
    for _ in range(60):
        assert limit.take(0) == 0

    assert limit.take(SECOND - 1) == 1
    assert [limit.take(2 * SECOND) for _ in range(3)] == [0, 0, SECOND]
    later = 3600 * SECOND
    assert sum(limit.take(later) == 0 for _ in range(100)) == 60


def test_rate_limiter_time_that_stands_still_or_begins_before_0_is_no_trouble() -> None:
    limit = RateLimit(2)

    assert [limit.take(-MINUTE), limit.take(-MINUTE)] == [0, 0]
    assert limit.take(-MINUTE) == 30 * SECOND


@pytest.mark.parametrize("wrong", [0, -1])
def test_rate_limiter_no_limit_is_said_by_leaving_it_out(wrong: int) -> None:
    with pytest.raises(InvalidArgument, match="rate_per_minute"):
        RateLimit(wrong)
