"""Which message of an ordering key is handled, which one waits, and which ones are returned."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.client.core.ordering import KeyLanes


@dataclass(eq=False)
class Delivery:
    offset: int
    receipt: int
    ordering_key: str = "k"


def first(offset: int, key: str = "k") -> Delivery:
    return Delivery(offset, offset, key)


def again(offset: int, time: int = 1) -> Delivery:
    """The delivery of a message after others."""
    return Delivery(offset, offset + 1_000 * time)


def filled(*offsets: int) -> tuple[KeyLanes[Delivery], list[Delivery]]:
    lanes: KeyLanes[Delivery] = KeyLanes(100)
    deliveries = [first(offset) for offset in offsets]
    assert [lanes.arrive(one) for one in deliveries] == [(one is deliveries[0], []) for one in deliveries]
    return lanes, deliveries


def test_the_first_is_handled_and_the_next_has_its_turn_when_it_is_settled() -> None:
    lanes, [one, two, three] = filled(1, 2, 3)
    assert lanes.take_ready() is None
    lanes.settle(one)
    assert (lanes.take_ready(), lanes.take_ready()) == (two, None)
    lanes.settle(one)  # once more
    assert lanes.take_ready() is None
    lanes.settle(two)
    assert lanes.take_ready() is three
    lanes.settle(three)
    assert lanes.arrive(first(4)) == (True, [])


def test_other_keys_do_not_wait() -> None:
    lanes, [one] = filled(1)
    assert lanes.arrive(first(2, "other")) == (True, [])
    lanes.fail(one)
    assert lanes.arrive(first(3, "other")) == (False, [])


def test_later_ones_are_returned_with_a_failed_message_and_until_it_comes_again() -> None:
    lanes, [one, two, three] = filled(1, 2, 3)
    assert lanes.fail(one) == [two, three]
    on_its_way = first(4)
    assert lanes.arrive(on_its_way) == (False, [on_its_way])
    assert lanes.arrive(again(1)) == (True, [])
    assert lanes.arrive(again(2)) == (False, [])
    assert lanes.arrive(again(4)) == (False, [])


def test_a_later_one_that_was_returned_and_comes_again_is_handled() -> None:
    """The failed message is a dead letter."""
    lanes, [one, _] = filled(1, 2)
    lanes.fail(one)
    assert lanes.arrive(again(2)) == (True, [])
    lanes, [one] = filled(1)
    lanes.fail(one)
    two, three = first(2), first(3)
    assert (lanes.arrive(two), lanes.arrive(three)) == ((False, [two]), (False, [three]))
    assert lanes.arrive(again(2)) == (True, [])
    assert lanes.arrive(again(3)) == (False, [])


def test_a_second_failure_counts_from_itself() -> None:
    lanes, [one, two, three] = filled(1, 2, 3)
    assert lanes.fail(three) == []  # its lease expired while it waited
    assert lanes.fail(one) == [two]
    on_its_way = again(3)  # sent before the broker knew of the second failure
    assert lanes.arrive(on_its_way) == (False, [on_its_way])
    assert lanes.arrive(again(1)) == (True, [])


def test_what_is_not_older_than_a_delivery_is_over() -> None:
    lanes, [one, two, three] = filled(1, 2, 3)
    lanes.settle(one)
    assert lanes.arrive(again(1)) == (True, [two, three])  # the ack was too late
    assert lanes.take_ready() is None
    lanes.settle(two)
    assert lanes.fail(three) == []
    assert lanes.arrive(again(2)) == (False, [])


def test_what_nobody_handles_can_be_taken_away() -> None:
    lanes, [one, *_] = filled(1, 2, 3)
    lanes.settle(one)
    assert sorted(each.offset for each in lanes.drain()) == [2, 3]
    assert lanes.take_ready() is None
    lanes, [one, *_] = filled(1, 2, 3)
    assert sorted(each.offset for each in lanes.drain()) == [2, 3]
    assert lanes.arrive(again(2)) == (False, [])
    lanes.settle(one)
    assert lanes.take_ready() is not None


def test_failures_that_nothing_follows_are_forgotten() -> None:
    lanes: KeyLanes[Delivery] = KeyLanes(2)
    for number, key in enumerate("abc"):
        lanes.arrive(first(number, key))
        lanes.fail(Delivery(number, number, key))  # another object: it was over before
    assert lanes._failures == {}
    for number, key in enumerate("xyz"):
        one = first(number, key)
        lanes.arrive(one)
        lanes.fail(one)
    assert [*lanes._failures] == ["y", "z"]
