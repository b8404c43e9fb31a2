"""The limit says how long to wait, for each client by itself, in bounded memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.access import ClientRates
from penstock.durations import SECOND
from penstock.errors import InvalidArgument
from penstock.rate_limit import RateLimit

NOW = 1_700_000_000 * SECOND


def test_a_burst_goes_at_once_and_the_next_is_told_exactly_when_to_come_back() -> None:
    rates = ClientRates(RateLimit(4, burst=3))

    assert [rates.take("a", NOW) for _ in range(4)] == [0, 0, 0, SECOND // 4]
    assert rates.take("a", NOW + SECOND // 4 - 1) == 1
    assert rates.take("a", NOW + SECOND // 4) == 0
    assert rates.take("a", NOW + SECOND // 4) == SECOND // 4


def test_a_call_that_costs_more_takes_the_place_of_several() -> None:
    limit = RateLimit(4, burst=3)

    assert limit.take(0, NOW, 2) == (0, NOW + SECOND // 2)
    assert limit.take(NOW + SECOND // 2, NOW, 2) == (SECOND // 4, NOW + SECOND // 2)
    assert limit.take(NOW + SECOND // 2, NOW)[0] == 0


def test_what_was_done_already_is_paid_for_by_waiting() -> None:
    limit = RateLimit(4, burst=3)

    assert limit.spend(0, NOW, 3) == (0, NOW + 3 * SECOND // 4)
    assert limit.spend(NOW + 3 * SECOND // 4, NOW, 2) == (SECOND // 2, NOW + 5 * SECOND // 4)
    assert limit.spend(NOW, NOW + SECOND, 1) == (0, NOW + 5 * SECOND // 4)


def test_a_call_that_costs_more_than_a_burst_goes_when_a_whole_burst_may() -> None:
    limit = RateLimit(4, burst=3)

    wait, full_at = limit.take(0, NOW, 1_000)

    assert (wait, full_at) == (0, NOW + 3 * SECOND // 4)
    assert limit.take(full_at, NOW, 1_000) == (3 * SECOND // 4, full_at)
    assert limit.take(full_at, full_at, 1_000)[0] == 0


def test_a_refused_call_costs_nothing() -> None:
    rates = ClientRates(RateLimit(1))
    rates.take("a", NOW)

    assert {rates.take("a", NOW) for _ in range(100)} == {SECOND}
    assert rates.take("a", NOW + SECOND) == 0


def test_clients_do_not_share_their_allowance() -> None:
    rates = ClientRates(RateLimit(1))

    assert [rates.take(client, NOW) for client in ("a", "b", "a", "b")] == [0, 0, SECOND, SECOND]


def test_a_million_addresses_take_the_room_of_the_last_few_and_the_busy_one_stays() -> None:
    rates = ClientRates(RateLimit(1), max_clients=10)
    rates.take("busy", NOW)
    for number in range(1_000):
        rates.take(f"address {number}", NOW)
        assert rates.take("busy", NOW) > 0

    assert len(rates) == 10
    assert rates.take("address 999", NOW) > 0  # still known
    assert rates.take("address 0", NOW) == 0  # forgotten


def test_a_clock_that_is_set_back_locks_nobody_out() -> None:
    rates = ClientRates(RateLimit(1, burst=5))
    rates.take("a", NOW)

    assert rates.take("a", NOW - 3_600 * SECOND) <= SECOND


@given(per_second=st.floats(0.01, 1000), burst=st.integers(1, 50), gaps=st.lists(st.integers(0, 10 * SECOND), max_size=50))
def test_waiting_as_told_is_always_enough_and_the_rate_is_kept(per_second: float, burst: int, gaps: list[int]) -> None:
    rates, now = ClientRates(RateLimit(per_second, burst)), NOW
    for passed, gap in enumerate(gaps, 1):
        now += gap
        if wait := rates.take("a", now):
            now += wait
            assert rates.take("a", now) == 0
        assert passed <= burst + (now - NOW) * per_second / SECOND + 1e-6


def test_impossible_limits_are_refused(subtests: pytest.Subtests) -> None:
    rows: list[tuple[float, int]] = [(0, 1), (-1, 1), (float("nan"), 1), (float("inf"), 1), (True, 1), (1, 0), (1, True)]
    for per_second, burst in rows:
        with subtests.test(per_second=per_second, burst=burst), pytest.raises(InvalidArgument):
            RateLimit(per_second, burst)
