"""What leaves the process of a router: breakers behave elsewhere as they would have here, and shares never exceed the whole."""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from penstock.durations import SECOND
from penstock.router.core.circuit import Breaker
from penstock.router.core.config import PoolConfig
from penstock.router.core.outcome import Health
from penstock.router.core.pool import MINUTE, RateLimit
from penstock.router.core.shares import limit_of, share, shares, task_of, width_of
from tests.property.strategies import effort

STEPS = st.lists(st.tuples(st.sampled_from([*Health, "pause"]), st.sampled_from([0, 1, 4, 6, 30])), max_size=30)


def told(breaker: Breaker, step: tuple[object, int], now: int) -> tuple[int, str]:
    """A call, if one may be made, and what it comes to."""
    health, seconds = step
    wait = breaker.may(now)
    if health == "pause":
        breaker.pause(now + seconds * SECOND)
    elif not wait:
        breaker.record(Health(health), now, breaker.epoch)  # type: ignore[arg-type]
    return wait, breaker.state


@effort(4)
@given(before=STEPS, after=STEPS, offset=st.integers(0, 10**12))
def test_a_breaker_that_moves_to_another_process_decides_the_same(
    before: list[tuple[object, int]], after: list[tuple[object, int]], offset: int
) -> None:
    here, now = Breaker(), 1_000 * SECOND
    for step in before:
        told(here, step, now)
        now += step[1] * SECOND
    there = Breaker.restore(here.export(now), now + offset)
    here = Breaker.restore(here.export(now), now)
    for step in after:
        assert told(here, step, now) == told(there, step, now + offset)
        now += step[1] * SECOND


@effort(4)
@given(
    rate=st.integers(1, 40),
    concurrency=st.integers(1, 5),
    tasks=st.integers(1, 5),
    batches=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 70_000_000)), max_size=12),
)
def test_all_tasks_together_never_exceed_the_limits_of_a_pool(
    rate: int, concurrency: int, tasks: int, batches: list[tuple[int, int]]
) -> None:
    pool = PoolConfig("P", concurrency, rate, engine="spark")
    whole, now = RateLimit(rate), 1_000 * SECOND
    granted: deque[int] = deque()
    for asked, pause in batches:
        dealt = shares(pool, whole.export(now), tasks)
        assert len(dealt) == width_of(pool, tasks)
        assert sum(own.concurrency for own in dealt.values()) == concurrency
        assert all(own.concurrency >= 1 for own in dealt.values())
        begun = now
        limits = {task: limit_of(own, now) for task, own in dealt.items()}
        for number in range(asked):
            for limit in limits.values():
                assert limit is not None
                if not limit.take(now):
                    granted.append(now)
            now += number
        for limit in limits.values():
            assert limit is not None
            whole.add(limit.export(now, begun), now)
        while granted and granted[0] <= now - MINUTE:
            granted.popleft()
        assert len(granted) <= rate
        now += pause


@given(total=st.integers(0, 10_000), width=st.integers(1, 50))
def test_shares_of_a_number_add_up_to_it(total: int, width: int) -> None:
    parts = [share(total, width, place) for place in range(width)]
    assert sum(parts) == total
    assert max(parts) - min(parts) <= 1


@given(group=st.text(max_size=10), tasks=st.integers(1, 20), concurrency=st.integers(1, 30))
def test_a_group_belongs_to_a_task_that_has_a_share_of_its_pool(group: str, tasks: int, concurrency: int) -> None:
    pool = PoolConfig("P", concurrency, engine="spark")
    assert task_of("P", width_of(pool, tasks), group, tasks) in shares(pool, (), tasks)
