"""Specification 001, "Process Pools", "Per-Group Virtual Threads", "Rate Limiting", "FIFO Enforcement"; decisions 22, 23, 25, 26.

A pool here has lanes instead of threads: what the specification says of a group's thread holds of its lane.
"""

import pytest

from penstock.durations import FOREVER, SECOND
from penstock.errors import InvalidArgument
from penstock.router.core.group import key_of
from penstock.router.core.message import RoutedMessage
from penstock.router.core.pool import GRACE, IDLE_AFTER, MINUTE, Pool, RateLimit, RetryDecision, capacity_of
from tests.unit.router.doubles import item


def test_rate_limiter_the_permits_of_one_minute_may_be_used_at_once() -> None:
    limit = RateLimit(3)

    assert [limit.take(0) for _ in range(3)] == [0, 0, 0]
    assert limit.take(0) == MINUTE


def test_rate_limiter_who_is_refused_is_told_exactly_when_to_come_back() -> None:
    limit = RateLimit(1)

    assert limit.take(5) == 0
    assert limit.take(5) == MINUTE
    assert limit.take(5 + MINUTE - 1) == 1
    assert limit.take(5 + MINUTE) == 0


@pytest.mark.parametrize("rate", [1, 7, 60, 10_000])
def test_decision_70_at_most_that_many_in_any_60_seconds(rate: int) -> None:
    limit, permitted = RateLimit(rate), list[int]()
    for now in range(0, 3 * MINUTE, 100_003):
        while len(permitted) < 50_000 and limit.take(now) == 0:
            permitted.append(now)

    assert all(later - first >= MINUTE for first, later in zip(permitted, permitted[rate:], strict=False))
    assert len(permitted) > 2 * rate  # and not much fewer


def test_rate_limiter_a_permit_comes_back_a_minute_after_it_was_used_and_none_are_saved() -> None:
    limit = RateLimit(2)
    assert [limit.take(0), limit.take(20 * SECOND), limit.take(30 * SECOND)] == [0, 0, 30 * SECOND]
    assert [limit.take(MINUTE), limit.take(MINUTE)] == [0, 20 * SECOND]

    later = 3600 * SECOND
    assert sum(limit.take(later) == 0 for _ in range(100)) == 2


def test_rate_limiter_a_permit_that_was_not_used_can_be_given_back() -> None:
    limit = RateLimit(1)
    assert limit.take(0) == 0
    limit.give_back()
    assert [limit.take(1), limit.take(1)] == [0, MINUTE]


def test_rate_limiter_what_was_permitted_by_the_limit_before_counts() -> None:
    limit = RateLimit(2)
    assert [limit.take(0), limit.take(0)] == [0, 0]

    raised = RateLimit(3, limit)

    assert [raised.take(1), raised.take(1)] == [0, MINUTE - 1]


def test_rate_limiter_time_that_stands_still_or_begins_before_0_is_no_trouble() -> None:
    limit = RateLimit(2)

    assert [limit.take(-MINUTE), limit.take(-MINUTE)] == [0, 0]
    assert limit.take(-MINUTE) == MINUTE


@pytest.mark.parametrize("wrong", [0, -1])
def test_rate_limiter_no_limit_is_said_by_leaving_it_out(wrong: int) -> None:
    with pytest.raises(InvalidArgument, match="rate_per_minute"):
        RateLimit(wrong)


BOTH = pytest.mark.parametrize("is_strict", [True, False], ids=["strict", "batch"])
IN_BATCH_ORDER = False


def pool(concurrency: int = 10, rate: int | None = None, *, is_strict: bool = True, hold_limit: int = 60 * SECOND) -> Pool:
    return Pool("P", concurrency, rate, is_strict=is_strict, hold_limit=hold_limit)


def taken(made: Pool, now: int = 0) -> list[RoutedMessage]:
    """Everything that may begin now."""
    found: list[RoutedMessage] = []
    while (one := made.take(now)) is not None:
        found.append(one)
    return found


def submitted(made: Pool, *items: RoutedMessage) -> None:
    for one in items:
        assert made.submit(one)


def names(items: list[RoutedMessage]) -> str:
    return "".join(one.pointer.message_id for one in items)


def filled(made: Pool) -> list[RoutedMessage]:
    """A pool that is full, each message in a group of its own."""
    items = [item(f"f{number}", f"f{number}") for number in range(made.capacity)]
    submitted(made, *items)
    return items


# ── capacity and concurrency ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("concurrency", "capacity"), [(1, 50), (2, 50), (3, 60), (20, 400), (256, 5120)])
def test_process_pools_queue_capacity_is_twenty_times_the_concurrency_and_50_at_least(concurrency: int, capacity: int) -> None:
    assert capacity_of(concurrency) == Pool("P", concurrency).capacity == capacity


@BOTH
def test_process_pools_submit_returns_false_when_it_is_full(is_strict: bool) -> None:
    made = pool(1, is_strict=is_strict)
    filled(made)

    assert not made.submit(item("x"))
    assert (made.room, made.queued) == (0, 50)
    assert made.take(0) is not None
    assert made.room == 1
    assert made.submit(item("x"))


@BOTH
def test_process_pools_submit_returns_false_when_it_is_draining(is_strict: bool) -> None:
    made = pool(is_strict=is_strict)
    made.drain()

    assert not made.submit(item("x"))
    assert made.room == 0


@BOTH
def test_process_pools_the_semaphore_no_more_than_the_concurrency_at_a_time(is_strict: bool) -> None:
    made = pool(2, is_strict=is_strict)
    submitted(made, *(item(name, name) for name in "abc"))

    first = taken(made)
    assert (names(first), made.active, made.queued) == ("ab", 2, 1)
    assert made.next_due == FOREVER
    made.finish(first[0], 0)
    assert names(taken(made)) == "c"


@pytest.mark.parametrize("wrong", [0, -1])
def test_process_pools_concurrency_is_at_least_1(wrong: int) -> None:
    with pytest.raises(InvalidArgument, match="concurrency"):
        pool(wrong)
    with pytest.raises(InvalidArgument, match="concurrency"):
        pool().update(wrong, None)


@BOTH
def test_process_pools_many_at_once_come_in_as_one_by_one(is_strict: bool) -> None:
    made = pool(3, is_strict=is_strict)
    batch = [item("a", "1"), item("b", "2", is_urgent=True), item("c", "1"), item("d", "2"), item("e", "3")]

    assert made.submit_all(batch) == 5
    assert made.queued == 5
    assert names(taken(made)) == "bae"


@BOTH
def test_process_pools_many_at_once_come_in_as_far_as_there_is_room(is_strict: bool) -> None:
    made = pool(1, is_strict=is_strict)

    assert made.submit_all([item(str(number)) for number in range(60)]) == 50
    assert made.queued == 50


# ── groups ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


@BOTH
def test_per_group_threads_a_group_works_on_one_message_at_a_time_and_in_order(is_strict: bool) -> None:
    made = pool(is_strict=is_strict)
    submitted(made, item("a", "g"), item("b", "g"), item("c", "g"), item("d", "h"))

    first = taken(made)
    assert names(first) == "ad"
    made.finish(first[0], 1)
    (second,) = taken(made)
    assert second.pointer.message_id == "b"
    submitted(made, item("e", "g"))
    made.finish(second, 2)
    assert names(taken(made)) == "c"


@BOTH
def test_per_group_threads_groups_take_turns(is_strict: bool) -> None:
    made = pool(1, is_strict=is_strict)
    submitted(made, *(item(name + group, group) for name in "ab" for group in "xyz"))
    order = ""
    while (one := made.take(0)) is not None:
        order += one.pointer.message_id + " "
        made.finish(one, 0)

    assert order == "ax ay az bx by bz "


@BOTH
def test_per_group_threads_step_3_a_group_is_forgotten_after_five_idle_minutes(is_strict: bool) -> None:
    made = pool(is_strict=is_strict)
    submitted(made, item("a", "idle"), item("b", "busy"), item("c", "waits"), item("d", "waits"))
    first, _, third = taken(made)
    made.finish(first, 7)
    made.finish(third, 7)

    assert made.sweep(7 + IDLE_AFTER - 1) == 0
    assert made.sweep(7 + IDLE_AFTER) == 1
    assert set(made.lanes) == {"busy", "waits"}


def test_per_group_threads_a_group_that_waits_for_a_message_is_kept_until_it_is_not_any_more() -> None:
    made = pool()
    made.sent_back(item("a", "g"), 600 * SECOND)

    assert made.sweep(600 * SECOND + GRACE - 1) == 0
    assert made.sweep(600 * SECOND + GRACE) == 1
    assert (made.away, made.lanes) == (0, {})


@BOTH
def test_process_pools_every_attempt_is_counted_and_its_beginning_known(is_strict: bool) -> None:
    made, one = pool(is_strict=is_strict), item("a")
    submitted(made, one)

    made.take(5)
    assert (one.attempts, one.started_at) == (1, 5)
    made.finish(one, 9)
    assert one.started_at == 0


# ── priority ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@BOTH
def test_decision_23_priority_chooses_between_groups(is_strict: bool) -> None:
    made = pool(1, is_strict=is_strict)
    submitted(made, item("a", "x"), item("b", "y"), item("c", "z", is_urgent=True))

    assert names(taken(made)) == "c"


def test_decision_23_inside_a_group_the_order_counts_more_when_it_is_strict() -> None:
    made = pool(1)
    submitted(made, item("a", "x"), item("b", "y"), item("c", "y", is_urgent=True), item("d", "x"))
    order = ""
    while (one := made.take(0)) is not None:
        order += one.pointer.message_id
        made.finish(one, 0)

    assert order == "bcad"  # for the sake of c its whole group goes first, but b stays before it


def test_decision_23_inside_a_group_the_upper_tier_comes_first_in_batch_order() -> None:
    made = pool(1, is_strict=IN_BATCH_ORDER)
    submitted(made, item("a", "x"), item("b", "x"), item("c", "x", is_urgent=True), item("d", "x", is_urgent=True))
    order = ""
    while (one := made.take(0)) is not None:
        order += one.pointer.message_id
        made.finish(one, 0)

    assert order == "cdab"


def test_decision_23_a_held_group_with_an_urgent_message_goes_first_when_its_time_has_come() -> None:
    made, first = pool(1), item("a", "x")
    submitted(made, first, item("u", "x", is_urgent=True), item("b", "y"), item("c", "y"))
    made.take(0)
    made.retry(first, SECOND, 0)
    (other,) = taken(made)
    made.finish(other, SECOND)

    assert names(taken(made, SECOND)) == "a"


def test_decision_23_an_urgent_message_that_is_held_stays_urgent() -> None:
    made, first = pool(1), item("u", "x", is_urgent=True)
    submitted(made, first, item("b", "y"))
    made.take(0)
    made.retry(first, SECOND, 0)

    assert taken(made, SECOND) == [first]
    made.finish(first, SECOND)
    assert names(taken(made, SECOND)) == "b"


def test_decision_23_a_group_that_stood_in_both_rows_is_worked_on_once() -> None:
    made = pool(2)
    submitted(made, item("a", "x"), item("b", "x", is_urgent=True), item("c", "y"))

    assert names(taken(made)) == "ac"  # the regular row still names x; it is busy


@BOTH
def test_decision_23_an_urgent_message_for_a_group_that_is_worked_on_waits_for_its_turn(is_strict: bool) -> None:
    made = pool(is_strict=is_strict)
    submitted(made, item("a", "x"))
    (running,) = taken(made)

    assert made.submit_all([item("b", "x", is_urgent=True)]) == 1

    assert taken(made) == []
    made.finish(running, 0)
    assert names(taken(made)) == "b"


# ── rate ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────


@BOTH
def test_wait_for_rate_limit_permit_messages_stay_here_and_the_pool_says_when(is_strict: bool) -> None:
    made = pool(rate=2, is_strict=is_strict)
    submitted(made, *(item(name, name) for name in "abc"))

    assert names(taken(made)) == "ab"
    assert (made.queued, made.next_due, made.limited) == (1, MINUTE, 1)
    assert made.take(MINUTE - 1) is None
    assert names(taken(made, MINUTE)) == "c"
    assert (made.next_due, made.limited) == (FOREVER, 1)  # a wait is counted once, however often it is asked about


def test_wait_for_rate_limit_permit_no_permit_is_used_without_a_free_worker() -> None:
    made = pool(1, rate=2)
    submitted(made, *(item(name, name) for name in "abc"))
    (first,) = taken(made)
    for now in range(5):
        assert made.take(now) is None
    made.finish(first, 5)

    assert names(taken(made, 5)) == "b"


def test_update_rate_limit_removed_whoever_waits_goes_on() -> None:
    made = pool(rate=1)
    submitted(made, *(item(name, name) for name in "abc"))
    taken(made)

    made.update(10, None)

    assert made.next_due == FOREVER
    assert names(taken(made)) == "bc"


def test_update_rate_limit_raised_the_new_one_counts_at_once() -> None:
    made = pool(rate=1)
    submitted(made, *(item(name, name) for name in "abcd"))
    taken(made)

    made.update(10, 3)

    assert names(taken(made)) == "bc"  # a counts: no more than three in any minute
    assert made.next_due == MINUTE


def test_update_rate_limit_the_same_one_keeps_what_is_used_up() -> None:
    made = pool(rate=1)
    submitted(made, *(item(name, name) for name in "ab"))
    taken(made)

    made.update(5, 1)

    assert taken(made) == []
    assert made.next_due == MINUTE


def test_wait_for_rate_limit_permit_when_those_that_waited_are_gone_nothing_is_due() -> None:
    made = pool(rate=1)
    submitted(made, *(item(name, name) for name in "ab"))
    taken(made)
    made.drain()

    assert made.take(MINUTE) is None
    assert made.next_due == FOREVER  # else its timer would ring for ever


# ── updates ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@BOTH
def test_update_concurrency_increase_is_immediate(is_strict: bool) -> None:
    made = pool(1, is_strict=is_strict)
    submitted(made, *(item(name, name) for name in "abc"))
    taken(made)

    made.update(3, None)

    assert names(taken(made)) == "bc"
    assert made.capacity == 60


@BOTH
def test_update_concurrency_decrease_what_runs_is_finished_and_nothing_new_is_begun(is_strict: bool) -> None:
    made = pool(3, is_strict=is_strict)
    submitted(made, *(item(name, name) for name in "abcde"))
    running = taken(made)

    made.update(1, None)

    for one in running[:2]:
        made.finish(one, 0)
        assert taken(made) == []
    made.finish(running[2], 0)
    assert names(taken(made)) == "d"


def test_update_concurrency_decrease_below_what_waits_there_is_no_room_rather_than_less_than_none() -> None:
    made = pool(10)
    filled(made)

    made.update(1, None)

    assert (made.queued, made.room) == (200, 0)


# ── failures, in strict order ────────────────────────────────────────────────────────────────────────────────────────────


def test_decision_22_a_failed_head_is_held_and_nothing_of_its_group_overtakes_it() -> None:
    made, head = pool(), item("a", "g")
    submitted(made, head, item("b", "g"))
    made.take(0)

    assert made.retry(head, 30 * SECOND, 5) == (RetryDecision.HELD, [])
    assert (made.held, made.queued, made.active, made.next_due) == (2, 2, 0, 30 * SECOND + 5)
    submitted(made, item("c", "g", batch=2), item("u", "g", batch=2, is_urgent=True), item("d", "h"))
    assert names(taken(made, 30 * SECOND + 4)) == "d"
    assert taken(made, 30 * SECOND + 5) == [head]
    assert (made.held, head.due, head.attempts) == (0, 0, 2)


def test_decision_22_a_long_delay_sends_the_group_back_and_waits_for_it() -> None:
    made, head, second = pool(hold_limit=60 * SECOND), item("a", "g"), item("b", "g")
    submitted(made, head, second)
    made.take(0)

    assert made.retry(head, 60 * SECOND + 1, 0) == (RetryDecision.SENT_BACK, [head, second])
    assert (made.queued, made.active, made.away) == (0, 0, 1)
    coming: set[str] = set()
    assert not made.is_in_turn(item("c", "g"), 0, coming)
    assert not made.is_in_turn(item("b", "g"), 0, coming)
    assert made.is_in_turn(item("x", "other"), 0, coming)
    assert made.is_in_turn(item("a", "g"), 0, coming)
    submitted(made, item("a", "g"))
    assert made.away == 1
    submitted(made, item("b", "g"))
    assert made.away == 0


def test_decision_22_those_that_were_here_are_waited_for_before_those_that_never_came_in() -> None:
    made, head = pool(), item("a", "g")
    submitted(made, head, item("b", "g"))
    made.take(0)
    made.sent_back(item("c", "g"), 10)

    made.retry(head, 61 * SECOND, 0)

    assert [made.is_in_turn(item(name, "g"), 0, set()) for name in "abc"] == [True, False, False]


@pytest.mark.parametrize("has_messages", [True, False])
def test_decision_22_those_ahead_of_all_others_are_waited_for_first(has_messages: bool) -> None:
    made = pool()
    if has_messages:
        submitted(made, item("x", "g"))
        made.sent_back(item("c", "g"), 10)

    made.wait_for("g", {key_of(item("a", "g")): GRACE, key_of(item("b", "g")): GRACE})

    assert made.away == 1
    assert [made.is_in_turn(item(name, "g"), 0, set()) for name in "abc"] == [True, False, False]


def test_decision_22_the_same_by_many_at_once() -> None:
    made, head, second = pool(), item("a", "g"), item("b", "g")
    submitted(made, head, second)
    made.take(0)
    made.retry(head, 61 * SECOND, 0)

    made.submit_all([item("a", "g"), item("b", "g", is_urgent=True)])

    assert made.away == 0
    assert names(taken(made)) == "a"


def test_decision_22_who_does_not_come_back_is_not_waited_for_for_ever() -> None:
    made = pool()
    made.sent_back(item("a", "g"), 10)

    assert not made.is_in_turn(item("b", "g"), 10 + GRACE - 1, set())
    assert made.is_in_turn(item("b", "g"), 10 + GRACE, set())
    assert made.away == 0


def test_decision_22_no_more_than_half_of_a_pool_is_held() -> None:
    made = pool(1)
    for number in range(25):
        one = item(str(number), str(number))
        submitted(made, one)
        assert made.take(0) is one
        assert made.retry(one, SECOND, 0) == (RetryDecision.HELD, [])
    last = item("last", "last")
    submitted(made, last)
    made.take(0)

    assert made.retry(last, SECOND, 0) == (RetryDecision.SENT_BACK, [last])


def test_decision_22_of_a_long_group_that_is_held_only_half_a_pool_stays_and_the_rest_goes_back_in_order() -> None:
    made = pool(concurrency=1)
    group = [item(f"m{number}", "g", is_urgent=number == 40) for number in range(49)]
    submitted(made, *group)
    made.take(0)

    fate, back = made.retry(group[0], 30 * SECOND, 0)
    assert (fate, back) == (RetryDecision.HELD, group[25:])
    assert (made.held, made.queued, made.away, made.is_hold_limit_reached) == (25, 25, 1, True)
    assert made.must_wait(group[25])
    assert taken(made, 30 * SECOND) == [group[0]]
    assert (made.held, made.is_hold_limit_reached, made.must_wait(group[25])) == (0, False, False)


def test_decision_22_what_comes_for_a_held_group_counts_as_held() -> None:
    made, head = pool(concurrency=1), item("a", "g")
    submitted(made, head)
    made.take(0)
    made.retry(head, 30 * SECOND, 0)
    submitted(made, item("b", "g"))
    made.submit(item("c", "g"))
    submitted(made, item("d", "other"))

    assert (made.held, made.queued) == (3, 4)


def test_decision_22_what_is_held_beside_a_full_pool_makes_no_room() -> None:
    made, head = pool(1), item("head", "head")
    submitted(made, head)
    made.take(0)
    filled(made)

    made.retry(head, SECOND, 0)

    assert (made.queued, made.room) == (51, 0)


def test_decision_22_a_group_with_messages_here_waits_for_those_that_went_back_as_well() -> None:
    made = pool()
    submitted(made, item("a", "g"))

    made.sent_back(item("b", "g"), 10)

    assert made.away == 1
    assert not made.is_in_turn(item("c", "g"), 0, set())
    assert names(taken(made)) == "a"


def test_decision_22_an_awaited_message_is_known() -> None:
    made = pool()
    made.sent_back(item("a", "g"), 10)

    assert made.is_awaited(item("a", "g"))
    assert not made.is_awaited(item("b", "g"))
    assert not made.is_awaited(item("a", "h"))


# ── failures, in batch order ─────────────────────────────────────────────────────────────────────────────────────────────


def test_fifo_enforcement_level_2_the_rest_of_the_batch_and_group_is_passed_over() -> None:
    made = pool(is_strict=IN_BATCH_ORDER)
    head = item("a", "g", batch=1)
    submitted(made, head, item("b", "g", batch=1), item("c", "g", batch=1), item("d", "h", batch=1), item("e", "g", batch=2))
    assert names(taken(made)) == "ad"

    assert made.retry(head, 30 * SECOND, 0) == (RetryDecision.SENT_BACK, [head])

    assert names(taken(made)) == "e"  # another batch is not concerned
    assert names(made.passed_over) == "bc"
    assert (made.queued, len(made.batches or ())) == (0, 2)


def test_fifo_enforcement_level_2_a_group_of_which_nothing_is_left_is_idle() -> None:
    made = pool(is_strict=IN_BATCH_ORDER)
    head = item("a", "g")
    submitted(made, head, item("b", "g"))
    made.take(0)
    made.retry(head, SECOND, 0)

    assert taken(made) == []
    assert names(made.passed_over) == "b"
    assert len(made.batches or ()) == 0
    submitted(made, item("b", "g", batch=2))
    assert names(taken(made)) == "b"


def test_fifo_enforcement_cleanup_on_every_outcome() -> None:
    made = pool(is_strict=IN_BATCH_ORDER)
    submitted(made, item("a", "g"), item("b", "h"))
    for one in taken(made):
        made.finish(one, 0)

    assert len(made.batches or ()) == 0


def test_fifo_enforcement_in_batch_order_nobody_is_waited_for() -> None:
    made = pool(is_strict=IN_BATCH_ORDER)

    made.sent_back(item("a", "g"), FOREVER)

    assert made.away == 0
    assert made.is_in_turn(item("b", "g"), 0, set())


# ── taken out by an operator ─────────────────────────────────────────────────────────────────────────────────────────────


@BOTH
def test_force_ack_a_message_that_waits_is_taken_out(is_strict: bool) -> None:
    made = pool(1, is_strict=is_strict)
    items = [item("a", "g"), item("b", "g"), item("c", "g"), item("u", "h", is_urgent=True)]
    submitted(made, *items)

    assert made.drop(items[1], 0)
    assert not made.drop(items[1], 0)
    assert made.drop(items[3], 5)
    assert made.queued == 2
    assert (made.lanes["h"].is_empty, made.lanes["h"].idle_at) == (True, 5)
    order = ""
    while (one := made.take(0)) is not None:
        order += one.pointer.message_id
        made.finish(one, 0)
    assert order == "ac"
    assert made.batches is None or len(made.batches) == 0


def test_force_ack_a_head_that_is_held_lets_its_group_go_on() -> None:
    made, head, other = pool(), item("a", "g"), item("x", "h")
    submitted(made, head, item("b", "g", is_urgent=True), other)
    taken(made)
    made.retry(head, 30 * SECOND, 0)
    made.retry(other, 40 * SECOND, 0)

    assert made.drop(head, 1)

    assert (made.held, made.next_due) == (1, 40 * SECOND)
    assert names(taken(made, 1)) == "b"


def test_force_ack_one_behind_a_head_that_is_held_or_runs_changes_nothing_for_it() -> None:
    made, head, second, third = pool(), item("a", "g"), item("b", "g"), item("c", "g")
    submitted(made, head, second, third)
    assert taken(made) == [head]

    assert not made.drop(head, 0)
    assert made.drop(second, 0)
    made.retry(head, 30 * SECOND, 0)
    assert made.drop(third, 0)

    assert (taken(made), made.held) == ([], 1)
    assert taken(made, 30 * SECOND) == [head]


def test_force_ack_a_message_of_another_pool_is_not_here() -> None:
    assert not pool().drop(item("a"), 0)


# ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@BOTH
def test_pool_drain_gives_everything_that_waits_and_what_runs_is_finished(is_strict: bool) -> None:
    made = pool(1, is_strict=is_strict)
    submitted(made, item("a", "g"), item("b", "g"), item("c", "h"), item("u", "h", is_urgent=True))
    (running,) = taken(made)

    waiting = made.drain()

    assert running.pointer.message_id in {"c", "u"}
    assert len(waiting) == 3
    assert (made.queued, made.held, made.away, made.active, made.is_drained) == (0, 0, 0, 1, False)
    made.finish(running, 0)
    assert made.is_drained
    assert taken(made) == []


def test_pool_drain_gives_what_is_held_too_and_first_of_its_group() -> None:
    made, head = pool(), item("a", "g")
    submitted(made, head, item("b", "g"))
    made.take(0)
    made.retry(head, SECOND, 0)

    assert names(made.drain()) == "ab"
    assert made.next_due == FOREVER
    assert made.take(10 * SECOND) is None


@BOTH
def test_pool_drain_what_fails_after_it_goes_back(is_strict: bool) -> None:
    made, one = pool(is_strict=is_strict), item("a")
    submitted(made, one)
    made.take(0)
    made.drain()

    assert made.retry(one, SECOND, 0) == (RetryDecision.SENT_BACK, [one])
    assert made.is_drained


def test_pool_is_drained_is_false_of_a_pool_that_only_has_nothing_to_do() -> None:
    assert not pool().is_drained


def test_pool_what_ends_after_its_group_was_forgotten_frees_its_worker() -> None:
    made, one = pool(), item("a")
    submitted(made, one)
    made.take(0)
    made.lanes.clear()

    made.finish(one, 0)

    assert made.active == 0
