"""Specification 001, "Deferred deletes": what was acked in vain is acked again, not delivered again."""

from penstock.durations import DAY
from penstock.router.core.late_acks import KEPT_FOR, MOST, Settled


def test_sqs_consumer_deferred_delete_is_taken_once() -> None:
    settled = Settled()

    settled.add("a", 0)

    assert len(settled) == 1
    assert not settled.take("b")
    assert settled.take("a")
    assert not settled.take("a")
    assert len(settled) == 0


def test_sqs_consumer_deferred_deletes_are_forgotten_when_no_queue_can_hide_them_any_longer() -> None:
    settled = Settled()
    settled.add("a", 0)
    settled.add("b", 1)

    settled.add("c", KEPT_FOR)

    assert KEPT_FOR == DAY // 2
    assert [settled.take(name) for name in "abc"] == [False, True, True]


def test_sqs_consumer_deferred_deletes_are_bounded_and_the_oldest_go_first() -> None:
    settled = Settled(most=2)
    for now, name in enumerate("abac"):  # the second `a` is younger than `b`
        settled.add(name, now)

    assert MOST == 100_000
    assert [settled.take(name) for name in "abc"] == [True, False, True]
