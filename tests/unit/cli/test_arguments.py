"""What arguments of commands may be, and what is said of those that may not."""

import argparse
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone

import pytest

from penstock import RetryPolicy
from penstock.cli.arguments import duration, instant, pair, retry_policy, size, whole


@pytest.mark.parametrize(
    ("read", "text", "value"),
    [
        (whole(0), "0", 0),
        (whole(1, 9), "9", 9),
        (duration, "1.5m", 90),
        (duration, "500ms", 0.5),
        (size, "64KiB", 65_536),
        (instant, "2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        (instant, "2026-01-31 12:00", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        (instant, "2026-01-31", datetime(2026, 1, 31, tzinfo=UTC)),
        (instant, "2026-01-31T12:00+02:00", datetime(2026, 1, 31, 12, tzinfo=timezone(timedelta(hours=2)))),
        (pair, "a=b", ("a", "b")),
        (pair, "a=b=c", ("a", "b=c")),
        (pair, "a=", ("a", "")),
    ],
)
def test_it_is_read(read: Callable[[str], object], text: str, value: object) -> None:
    assert read(text) == value


@pytest.mark.parametrize(
    ("read", "text", "said"),
    [
        (whole(1), "0", "'0' is not a whole number, 1 or more"),
        (whole(1, 9), "10", "'10' is not a whole number from 1 to 9"),
        (whole(0), "-1", "is not a whole number"),
        (whole(0), "٣", "is not a whole number"),
        (whole(0), "9" * 5_000, "is not a whole number"),
        (whole(0), "", "is not a whole number"),
        (duration, "soon", "'soon' is not a duration"),
        (duration, "-1s", "is not a duration"),
        (size, "1.5", "is not a size"),
        (instant, "noon", "'noon' is not a time"),
        (pair, "a", "'a' is not name=value"),
        (pair, "=b", "is not name=value"),
    ],
)
def test_it_is_refused(read: Callable[[str], object], text: str, said: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=said):
        read(text)


@pytest.mark.parametrize(
    ("low", "high", "policy"),
    [
        (None, None, None),
        (1, 5, RetryPolicy(1, 5)),
        (1, None, RetryPolicy(1, 600)),
        (900, None, RetryPolicy(900, 900)),
        (None, 5, RetryPolicy(5, 5)),
        (None, 900, RetryPolicy(10, 900)),
    ],
)
def test_one_backoff_alone_moves_the_default_of_the_other(
    low: float | None, high: float | None, policy: RetryPolicy | None
) -> None:
    assert retry_policy(argparse.Namespace(min_backoff=low, max_backoff=high)) == policy
