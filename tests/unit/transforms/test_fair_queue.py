"""The fair queue of scripts, without threads: who goes next."""

from penstock.transforms.fair_queue import MAX_LANES, FairQueue


def served(turns: FairQueue[str], rounds: int, cost: dict[str, int]) -> list[str]:
    """Lanes that always want more, in the order in which they are served one at a time."""
    order = []
    for lane in cost:
        turns.wait(lane, lane)
    for _ in range(rounds):
        lane = turns.next()
        order.append(lane)
        turns.add_use(lane, cost[lane])
        turns.wait(lane, lane)
    return order


def test_lanes_get_the_same_time_and_not_the_same_number_of_turns() -> None:
    order = served(FairQueue(), 110, {"slow": 100, "quick": 10})
    assert (order.count("slow"), order.count("quick")) == (10, 100)


def test_a_lane_that_used_nothing_goes_before_all_that_have() -> None:
    turns: FairQueue[str] = FairQueue()
    served(turns, 100, {"slow": 500, "slower": 2000})
    turns.wait("new", "new")
    assert turns.next() == "new"


def test_a_pause_earns_nothing() -> None:
    turns: FairQueue[str] = FairQueue()
    served(turns, 10, {"early": 10})
    turns.next()
    served(turns, 1_000, {"late": 10})
    turns.next()
    assert served(turns, 10, {"early": 10, "late": 10}).count("early") in range(4, 7)


def test_those_who_wait_in_one_lane_keep_their_order() -> None:
    turns: FairQueue[int] = FairQueue()
    for number in range(10):
        turns.wait("lane", number)
    assert [turns.next() for _ in range(len(turns))] == [*range(10)]


def test_lanes_that_used_no_more_than_others_are_forgotten() -> None:
    turns: FairQueue[int] = FairQueue()
    for lane in range(10 * MAX_LANES):
        turns.wait(lane, lane)
        turns.add_use(turns.next(), 1)
        turns.wait("busy", lane)
        turns.next()
        turns.add_use("busy", 1)
    assert len(turns._used) <= MAX_LANES + 1
