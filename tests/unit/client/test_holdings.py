"""Which leases are extended, which are lost, and when to look again; each boundary."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from penstock.client.core.stream import MIN_INTERVAL, HeldDeliveries
from penstock.durations import SECOND

DEADLINE = 60 * SECOND
LIMIT = 3_600 * SECOND


@dataclass
class Delivery:
    receipt: int = 1
    deadline: int = DEADLINE
    is_worked_on: bool = True
    end_at: int = LIMIT
    span: int = DEADLINE


def held(*deliveries: Delivery, ack_deadline: int = DEADLINE) -> HeldDeliveries[Delivery]:
    holdings: HeldDeliveries[Delivery] = HeldDeliveries(ack_deadline)
    for delivery in deliveries:
        holdings.by_receipt[delivery.receipt] = delivery
    return holdings


def test_a_lease_is_lost_when_its_deadline_has_come(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, int, bool]] = [
        ("before", DEADLINE - 1, False),
        ("at", DEADLINE, True),
        ("after", DEADLINE + 1, True),
    ]
    for title, now, is_lost in rows:
        with subtests.test(title):
            delivery = Delivery(is_worked_on=False)
            holdings = held(delivery)
            plan = holdings.plan(now)
            assert plan.lost == ([delivery] if is_lost else [])
            assert len(holdings) == (0 if is_lost else 1)
            assert plan.extend == {}


def test_a_lease_that_is_worked_on_is_extended_when_half_of_it_is_over(subtests: pytest.Subtests) -> None:
    rows: list[tuple[int, bool]] = [
        (DEADLINE // 2 - 1, False),
        (DEADLINE // 2, True),
        (DEADLINE // 2 + 1, True),
        (DEADLINE - 1, True),
        (DEADLINE, False),
    ]
    for now, is_extended in rows:
        with subtests.test(now=now, is_extended=is_extended):
            delivery = Delivery()
            plan = held(delivery).plan(now)
            assert plan.extend == ({DEADLINE: [1]} if is_extended else {})
            assert delivery.deadline == (now + DEADLINE if is_extended else DEADLINE)


def test_a_lease_that_nobody_works_on_is_left_alone() -> None:
    delivery = Delivery(is_worked_on=False)
    assert held(delivery).plan(DEADLINE - 1).extend == {}
    assert delivery.deadline == DEADLINE


def test_without_a_way_to_the_broker_nothing_is_extended_and_leases_run_out() -> None:
    delivery = Delivery()
    holdings = held(delivery)
    assert holdings.plan(DEADLINE - 1, may_extend=False).extend == {}
    assert holdings.plan(DEADLINE, may_extend=False).lost == [delivery]


def test_who_comes_back_renews_what_is_worked_on_however_long_it_is_believed_to_last() -> None:
    worked, idle, gone = Delivery(1), Delivery(2, is_worked_on=False), Delivery(3, deadline=5)
    holdings = held(worked, idle, gone)
    plan = holdings.plan(10, renew=True)
    assert plan.extend == {DEADLINE: [1]}
    assert plan.lost == [gone]
    assert (worked.deadline, idle.deadline) == (10 + DEADLINE, DEADLINE)
    again = holdings.plan(10, renew=True)  # it may have been lost on its way
    assert again.extend == {DEADLINE: [1]}


@pytest.mark.parametrize("renew", [False, True])
def test_a_lease_ends_at_the_limit_however_long_it_is_worked_on(renew: bool) -> None:
    delivery = Delivery(deadline=LIMIT - 10 * SECOND)
    holdings = held(delivery)
    now = LIMIT - 20 * SECOND
    assert holdings.plan(now, renew=renew).extend == {20 * SECOND: [1]}
    assert delivery.deadline == LIMIT
    assert holdings.plan(LIMIT - 1).extend == {}
    assert holdings.plan(LIMIT).lost == [delivery]


def test_a_limit_shorter_than_the_lease_extends_nothing() -> None:
    delivery = Delivery(end_at=SECOND)
    assert held(delivery).plan(DEADLINE - 1).extend == {}
    assert delivery.deadline == DEADLINE


def test_renewing_never_shortens_a_lease() -> None:
    delivery = Delivery(deadline=600 * SECOND)  # somebody asked for ten minutes
    plan = held(delivery).plan(10, renew=True)
    assert delivery.deadline == 600 * SECOND
    assert plan.extend == {600 * SECOND - 10: [1]}


def test_leases_that_are_extended_alike_go_together() -> None:
    deliveries = [Delivery(number) for number in range(1, 4)]
    old = Delivery(9, deadline=40 * SECOND, end_at=45 * SECOND)
    plan = held(*deliveries, old).plan(DEADLINE // 2)
    assert plan.extend == {DEADLINE: [1, 2, 3], 15 * SECOND: [9]}


def test_it_wants_to_be_asked_four_times_in_the_life_of_a_lease_and_not_all_the_time() -> None:
    assert held().interval == DEADLINE // 4
    assert held(ack_deadline=1_000).interval == MIN_INTERVAL
    assert held().plan(0).wait == DEADLINE // 4


def test_it_says_when_something_is_due_before_that(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, Delivery, int, int]] = [
        ("runs out soon", Delivery(is_worked_on=False), 55 * SECOND, 5 * SECOND),
        ("at once", Delivery(is_worked_on=False), DEADLINE - 1, MIN_INTERVAL),
        ("to be extended soon", Delivery(), 25 * SECOND, 5 * SECOND),
        ("just extended", Delivery(), 30 * SECOND, 15 * SECOND),
        ("at its limit", Delivery(deadline=LIMIT), LIMIT - SECOND, SECOND),
        ("long", Delivery(is_worked_on=False, deadline=600 * SECOND), 0, 15 * SECOND),
    ]
    for title, delivery, now, wait in rows:
        with subtests.test(title):
            assert held(delivery).plan(now).wait == wait


def test_a_lease_of_another_length_is_extended_in_the_middle_of_its_own_life() -> None:
    delivery = Delivery(deadline=1_000_000, span=1_000_000)
    holdings = held(delivery)
    plan = holdings.plan(499_999)
    assert (plan.extend, plan.wait) == ({}, MIN_INTERVAL)
    assert holdings.plan(500_000).extend == {DEADLINE: [1]}
    assert (delivery.deadline, delivery.span) == (500_000 + DEADLINE, DEADLINE)
