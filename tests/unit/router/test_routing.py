"""Specification 001, "Routing Algorithm": the three phases; decision 22."""

import pytest

from penstock.durations import SECOND
from penstock.router.core.message import DEFAULT_POOL, RoutedMessage
from penstock.router.core.pool import Pool
from penstock.router.core.routing import Routing, route
from penstock.router.core.tracker import Tracker
from tests.unit.router.doubles import item

BOTH = pytest.mark.parametrize("is_strict", [True, False], ids=["strict", "batch"])


class World:
    """Pools and a tracker."""

    def __init__(self, *codes: str, is_strict: bool = True, concurrency: int = 1) -> None:
        self.tracker = Tracker()
        self.pools = {code: Pool(code, concurrency, is_strict=is_strict) for code in codes}
        self.is_strict = is_strict

    def default(self) -> Pool:
        return self.pools.setdefault(DEFAULT_POOL, Pool(DEFAULT_POOL, is_strict=self.is_strict))

    def route(self, *items: RoutedMessage, now: int = 0) -> Routing:
        return route(items, self.tracker, self.pools, self.default, now)

    def refuse(self, routing: Routing, until: int = 30 * SECOND) -> str:
        """Send back what could not go in, as a router does."""
        for pool, one in routing.refused:
            pool.sent_back(one, until)
        return names([one for _, one in routing.refused])

    def work(self, code: str = "P", now: int = 0) -> str:
        """Work everything off; the order in which it was."""
        order, pool = "", self.pools[code]
        while (one := pool.take(now)) is not None:
            order += one.pointer.message_id
            pool.finish(one, now)
            self.tracker.remove(one)
        return order


def names(items: list[RoutedMessage]) -> str:
    return "".join(one.pointer.message_id for one in items)


def fill(world: World, count: int, code: str = "P") -> None:
    assert world.route(*(item(f"f{number}", f"f{number}", pool=code) for number in range(count))).accepted == count


# ── phase 1 ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@BOTH
def test_routing_phase_1_new_messages_go_in(is_strict: bool) -> None:
    world = World("P", is_strict=is_strict)

    routing = world.route(item("a"), item("b"))

    assert (routing.accepted, list(routing.pools), len(world.tracker)) == (2, ["P"], 2)
    assert not any([routing.redelivered, routing.requeued, routing.repeated, routing.refused, routing.full, routing.unknown])


@BOTH
def test_routing_phase_1_physical_redelivery_updates_the_receipt_and_is_not_processed_again(is_strict: bool) -> None:
    world, first, again = World("P", is_strict=is_strict), item("a"), item("a")
    world.route(first)

    routing = world.route(again, item("b"))

    assert routing.redelivered == [first]
    assert first.received is again.received
    assert (routing.accepted, world.work()) == (1, "ab")


@BOTH
def test_routing_phase_1_logical_requeue_is_to_be_acked(is_strict: bool) -> None:
    world, again = World("P", is_strict=is_strict), item("a", broker_id="another")
    first = item("a")
    world.route(first)

    routing = world.route(again)

    assert (routing.requeued, routing.accepted) == ([again], 0)
    assert first.received is not again.received


@BOTH
def test_routing_phase_1_edge_case_without_a_broker_id_it_is_a_redelivery(is_strict: bool) -> None:
    world, first, again = World("P", is_strict=is_strict), item("a"), item("a", broker_id="")
    world.route(first)

    assert world.route(again).redelivered == [first]
    assert world.work() == "a"
    assert len(world.tracker) == 0


@BOTH
def test_routing_phase_1_the_same_message_from_another_queue_is_a_requeue(is_strict: bool) -> None:
    world, again = World("P", is_strict=is_strict), item("a", broker_id="x", queue="R")
    world.route(item("a"))

    assert world.route(again).requeued == [again]


# ── phase 2 ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@BOTH
def test_routing_phase_2_pool_not_found_goes_to_the_default_pool_made_on_demand(is_strict: bool) -> None:
    world = World("P", is_strict=is_strict)

    routing = world.route(item("a", pool="X"), item("b"), item("c", pool="X"), item("d", pool="Y"))

    assert routing.unknown == {"X": 2, "Y": 1}
    assert (world.pools[DEFAULT_POOL].queued, world.pools[DEFAULT_POOL].concurrency, world.pools["P"].queued) == (3, 20, 1)
    assert world.work(DEFAULT_POOL) == "acd"


@BOTH
def test_routing_phase_2_a_pool_that_cannot_take_all_takes_none(is_strict: bool) -> None:
    world = World("P", "R", is_strict=is_strict)
    fill(world, 48)

    routing = world.route(item("a"), item("b", "h"), item("c"), item("x", pool="R"))

    assert (routing.full, world.refuse(routing)) == ({"P": 3}, "abc")
    assert (routing.accepted, list(routing.pools)) == (1, ["R"])
    assert (world.pools["P"].queued, len(world.tracker)) == (48, 49)


@BOTH
def test_routing_phase_2_a_pool_with_just_enough_room_takes_all(is_strict: bool) -> None:
    world = World("P", is_strict=is_strict)
    fill(world, 48)

    assert world.route(item("a"), item("b")).accepted == 2


@BOTH
def test_routing_phase_2_a_batch_larger_than_the_pool_is_taken_as_far_as_it_goes(is_strict: bool) -> None:
    """The specification would send all of it back, again and again."""
    world = World("P", is_strict=is_strict)

    routing = world.route(*(item(f"{number}") for number in range(60)))

    assert (routing.accepted, routing.full, len(routing.refused)) == (50, {"P": 10}, 10)
    assert len(world.tracker) == 50


def test_routing_phase_2_a_batch_larger_than_a_pool_that_holds_more_than_it_should_is_refused() -> None:
    world = World("P")
    head = item("head", "head")
    world.route(head)
    pool = world.pools["P"]
    pool.take(0)
    fill(world, 50)
    pool.retry(head, SECOND, 0)
    assert pool.queued == 51

    routing = world.route(*(item(f"{number}") for number in range(60)))

    assert (routing.accepted, len(routing.refused), routing.full) == (0, 60, {"P": 60})
    assert len(world.tracker) == 51  # nothing is tracked that is in no pool


@BOTH
def test_routing_phase_2_a_pool_that_drains_takes_none(is_strict: bool) -> None:
    world = World("P", is_strict=is_strict)
    world.pools["P"].drain()

    assert world.route(item("a")).full == {"P": 1}
    assert len(world.tracker) == 0


@BOTH
def test_routing_phase_2_the_rate_limit_is_not_asked_here(is_strict: bool) -> None:
    world = World("P", is_strict=is_strict)
    world.pools["P"].update(10, 1)

    assert world.route(item("a", "1"), item("b", "2"), item("c", "3")).accepted == 3


# ── phase 3 ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@BOTH
def test_routing_phase_3_groups_keep_the_order_of_arrival(is_strict: bool) -> None:
    world = World("P", is_strict=is_strict)

    world.route(item("a", "g"), item("x", "h"), item("b", "g"), item("y", "h"), item("c", "g"))

    order = world.work()
    assert [name for name in order if name in "abc"] == [*"abc"]
    assert [name for name in order if name in "xy"] == [*"xy"]


@BOTH
def test_routing_phase_3_a_message_that_is_twice_in_a_batch_goes_in_once(is_strict: bool) -> None:
    world, again, requeued = World("P", is_strict=is_strict), item("a"), item("a", broker_id="x")

    routing = world.route(item("a"), again, requeued, item("b"))

    assert (routing.repeated, routing.accepted, world.work()) == ([again, requeued], 2, "ab")


@BOTH
def test_routing_phase_3_after_one_that_did_not_go_in_the_rest_of_its_group_does_not(is_strict: bool) -> None:
    """Sequential nacking: here the room of a pool is known beforehand, so what does not fit is the end of the batch."""
    world = World("P", is_strict=is_strict)
    fill(world, 10)

    routing = world.route(*(item(f"g{number}", "g") for number in range(60)))

    assert [one.pointer.message_id for _, one in routing.refused] == [f"g{number}" for number in range(40, 60)]


# ── decision 22: across batches ──────────────────────────────────────────────────────────────────────────────────────────


def refused(world: World) -> Pool:
    """A pool that has sent back a, b and c of group g, and has room again."""
    pool = world.pools["P"]
    fill(world, 49)
    assert world.refuse(world.route(item("a", "g"), item("b", "g"), item("c", "g"))) == "abc"
    world.work()
    return pool


def test_decision_22_what_comes_after_those_that_went_back_goes_back_as_well() -> None:
    world = World("P")
    refused(world)

    routing = world.route(item("d", "g"), item("x", "h"))

    assert (world.refuse(routing), world.work(), routing.full) == ("d", "x", {})


def test_decision_22_those_that_went_back_come_in_together_when_they_come_together() -> None:
    world = World("P")
    pool = refused(world)

    routing = world.route(item("a", "g"), item("b", "g"), item("c", "g"), item("d", "g"))

    assert (routing.accepted, world.work(), pool.away) == (4, "abcd", 0)


def test_decision_22_those_that_went_back_come_in_one_after_the_other_when_they_come_so() -> None:
    world = World("P")
    pool = refused(world)

    assert world.refuse(world.route(item("b", "g"), item("c", "g"))) == "bc"
    assert world.refuse(world.route(item("a", "g"), item("c", "g"))) == "c"
    assert world.refuse(world.route(item("b", "g"))) == ""
    assert world.refuse(world.route(item("c", "g"))) == ""
    assert (world.work(), pool.away) == ("abc", 0)


def test_decision_22_the_first_one_comes_in_though_it_comes_after_the_others() -> None:
    """Else messages that always come in the wrong order would go round for ever."""
    world = World("P")
    refused(world)

    assert world.refuse(world.route(item("c", "g"), item("b", "g"), item("a", "g"))) == "cb"
    assert world.refuse(world.route(item("c", "g"), item("b", "g"))) == "c"
    assert world.refuse(world.route(item("c", "g"))) == ""
    assert world.work() == "abc"


def test_decision_22_a_new_one_does_not_pass_those_before_it_that_are_refused() -> None:
    world = World("P")
    refused(world)

    routing = world.route(item("d", "g"), item("a", "g"), item("b", "g"), item("c", "g"), item("e", "g"))

    assert (world.refuse(routing), world.work()) == ("de", "abc")
    assert world.refuse(world.route(item("e", "g"), item("d", "g"))) == "e"


def test_decision_22_those_that_come_back_to_a_full_pool_keep_their_place() -> None:
    world = World("P")
    refused(world)
    fill(world, 49)

    assert world.refuse(world.route(item("d", "g"))) == "d"
    assert world.refuse(world.route(item("a", "g"), item("b", "g"))) == "ab"
    world.work()
    assert world.refuse(world.route(item("b", "g"), item("d", "g"))) == "bd"
    assert world.route(item("a", "g"), item("b", "g"), item("c", "g"), item("d", "g")).accepted == 4
    assert world.work() == "abcd"


def test_fifo_batch_order_what_comes_in_a_later_batch_may_overtake() -> None:
    world = World("P", is_strict=False)
    refused(world)

    assert world.route(item("d", "g")).accepted == 1
