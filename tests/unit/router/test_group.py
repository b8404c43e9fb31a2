"""Lanes: a group's messages in order, and those of it that are away (decision 22). Batches and groups that have failed.

Specification 001, "FIFO Enforcement (Batch+Group)", its second level and its clean-up.
"""

from collections import deque

import pytest

from penstock.router.core.group import BatchGroups, GroupLane, key_of
from tests.unit.router.doubles import item

A, B, C, D = (item(name, "g") for name in "abcd")


def test_lane_the_upper_tier_comes_first() -> None:
    lane = GroupLane("g")
    lane.regular.extend([A, B])
    assert not lane.is_empty
    assert lane.pop() is A

    lane.urgent = deque([C])
    assert [lane.pop(), lane.pop()] == [C, B]
    assert lane.is_empty


@pytest.mark.parametrize("has_tier", [False, True])
def test_lane_clear_gives_everything_in_order(has_tier: bool) -> None:
    lane = GroupLane("g")
    lane.regular.extend([A, B])
    lane.urgents = 2
    lane.urgent = deque([C]) if has_tier else None

    assert lane.clear() == ([C, A, B] if has_tier else [A, B])
    assert (lane.is_empty, lane.urgents) == (True, 0)


def test_lane_without_anyone_away_everybody_is_in_turn() -> None:
    lane = GroupLane("g")
    assert lane.is_in_turn(A, 0, set())

    lane.came_back(A)
    lane.sent_back(A, 10)
    lane.came_back(A)
    assert lane.is_in_turn(B, 0, set())


def test_lane_who_is_away_is_waited_for_in_order() -> None:
    lane = GroupLane("g")
    for one in (A, B):
        lane.sent_back(one, 100)

    assert lane.is_in_turn(A, 0, set())
    assert not lane.is_in_turn(B, 0, set())
    assert not lane.is_in_turn(C, 0, set())
    lane.came_back(A)
    assert lane.is_in_turn(B, 0, set())
    assert not lane.is_in_turn(C, 0, set())


def test_lane_those_that_come_together_come_in_together() -> None:
    lane = GroupLane("g")
    for one in (A, B, C):
        lane.sent_back(one, 100)

    assert lane.is_in_turn(B, 0, {key_of(A)})
    assert not lane.is_in_turn(C, 0, {key_of(A)})
    assert lane.is_in_turn(D, 0, {key_of(A), key_of(B), key_of(C)})


def test_lane_one_that_goes_back_again_keeps_its_place() -> None:
    lane = GroupLane("g")
    for one in (A, B, A):
        lane.sent_back(one, 100)

    assert not lane.is_in_turn(B, 0, set())


@pytest.mark.parametrize(("now", "is_in_turn"), [(99, False), (100, True)])
def test_lane_one_that_does_not_come_any_more_is_not_waited_for_longer(now: int, is_in_turn: bool) -> None:
    lane = GroupLane("g")
    lane.sent_back(A, 100)

    assert lane.is_in_turn(B, now, set()) is is_in_turn
    assert bool(lane.away) is not is_in_turn


def test_lane_messages_are_known_by_their_own_id_and_that_of_their_queue_whatever_its_name() -> None:
    assert key_of(item("a", broker_id="1")) == key_of(item("a", broker_id="1", queue="R"))
    assert key_of(item("a", broker_id="1")) != key_of(item("a", broker_id="2"))
    assert key_of(item("a", broker_id="1")) != key_of(item("b", broker_id="1"))
    assert key_of(item("a", broker_id="")) != key_of(item("b", broker_id=""))


def test_fifo_enforcement_level_2_a_failure_marks_its_batch_and_group_alone() -> None:
    groups = BatchGroups()
    for batch, group in ((1, "a"), (1, "a"), (1, "b"), (2, "a")):
        groups.add(batch, group)

    groups.fail(1, "a")

    assert groups.has_failed(1, "a")
    assert not groups.has_failed(1, "b")
    assert not groups.has_failed(2, "a")


def test_fifo_enforcement_cleanup_with_the_last_message_the_batch_and_group_is_forgotten() -> None:
    groups = BatchGroups()
    groups.add(1, "a")
    groups.add(1, "a")
    groups.fail(1, "a")

    groups.done(1, "a")
    assert (len(groups), groups.has_failed(1, "a")) == (1, True)

    groups.done(1, "a")
    assert (len(groups), groups.has_failed(1, "a")) == (0, False)


def test_fifo_enforcement_cleanup_what_is_not_known_leaves_nothing_behind() -> None:
    groups = BatchGroups()

    groups.fail(1, "a")
    groups.done(1, "a")

    assert (len(groups), groups.has_failed(1, "a")) == (0, False)
