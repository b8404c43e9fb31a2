"""How many pushes at once, and how long an endpoint is left alone."""

import pytest

from penstock.google.core.push_window import PushWindow

MS = 1_000


def test_it_begins_with_one_and_doubles_with_every_round_of_successes() -> None:
    window, sizes = PushWindow(64), []
    for _ in range(8):
        sizes.append(window.size)
        for _ in range(window.size):
            window.succeeded(window.size)

    assert sizes == [1, 2, 4, 8, 16, 32, 64, 64]


def test_a_window_that_is_not_used_does_not_grow() -> None:
    window = PushWindow(64)
    for _ in range(1_000):
        window.succeeded(1)

    assert window.size == 3


def test_a_round_of_failures_halves_it_once_and_down_to_one() -> None:
    window = PushWindow(64)
    for _ in range(15):
        window.succeeded(100)
    begun = window.round
    for _ in range(16):
        window.failed(begun, 0, is_paced=False)
    assert window.size == 8

    for _ in range(10):
        window.failed(window.round, 0, is_paced=False)
    assert window.size == 1


def test_an_endpoint_rests_twice_as_long_after_each_round_that_failed_up_to_a_minute() -> None:
    window, rests, now = PushWindow(8), [], 0
    for _ in range(12):
        window.failed(window.round, now, is_paced=False)
        rests.append(window.rest(now) // MS)
        now += window.rest(now)
        assert window.rest(now) == 0

    assert rests == [100, 200, 400, 800, 1600, 3200, 6400, 12800, 25600, 51200, 60000, 60000]


def test_a_hundred_failures_of_one_round_are_one_failure() -> None:
    window = PushWindow(500)
    begun = window.round
    for _ in range(100):
        window.failed(begun, 0, is_paced=False)

    assert window.rest(0) == 100 * MS


def test_a_success_ends_the_rest() -> None:
    window = PushWindow(8)
    for _ in range(5):
        window.failed(window.round, 0, is_paced=False)
    window.succeeded(1)
    assert window.rest(0) == 0

    window.failed(window.round, 0, is_paced=False)
    assert window.rest(0) == 100 * MS


def test_with_a_retry_policy_one_failure_holds_up_nobody_and_many_in_a_row_only_a_little(subtests: pytest.Subtests) -> None:
    rows: list[tuple[int, int]] = [(1, 0), (2, 100 * MS), (9, 100 * MS)]
    for failures, rest in rows:
        with subtests.test(failures=failures, rest=rest):
            window = PushWindow(8)
            for _ in range(failures):
                window.failed(window.round, 0, is_paced=True)

            assert window.rest(0) == rest
