"""The router's rules against plain lists: nothing lost, nothing doubled, no group overtaken; and its limits, each by itself."""

from __future__ import annotations

from collections import Counter, deque
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.durations import FOREVER, SECOND
from penstock.router.core.circuit import FAILURES, OPEN_FOR, SUCCESSES, WINDOW, Breaker, State
from penstock.router.core.message import DEFAULT_GROUP, Pointer, RoutedMessage, SourceMessage
from penstock.router.core.outcome import FAST_DELAY, Health
from penstock.router.core.pool import GRACE, MINUTE, Pool, RateLimit, RetryDecision
from penstock.router.core.routing import route
from penstock.router.core.tracker import DuplicateKind, Tracker
from tests.property.strategies import effort, patience

pytestmark = patience

GROUPS = ("a", "b", "c", DEFAULT_GROUP)
REFUSAL = 5 * SECOND


class Sent:
    """A message as the model knows it."""

    def __init__(self, name: str, group: str, is_urgent: bool) -> None:
        self.name = name
        self.group = group
        self.is_urgent = is_urgent
        self.visible_at = 0
        self.is_back = False
        """Whether the router had it and gave it back."""
        self.receipt = 0
        self.batch = 0
        self.settled = ""


class RouterRules(RuleBasedStateMachine):
    """One queue, one pool, and a model that only has lists of messages for each group."""

    is_strict = True

    @initialize(
        concurrency=st.integers(1, 3),
        rate=st.sampled_from([None, None, 1, 5, 60]),
        hold_limit=st.sampled_from([0, 10, 60]),
    )
    def begin(self, concurrency: int, rate: int | None, hold_limit: int) -> None:
        self.now = 1_000 * SECOND
        self.pool = Pool("P", concurrency, rate, is_strict=self.is_strict, hold_limit=hold_limit * SECOND)
        self.tracker = Tracker()
        self.sent: dict[str, list[Sent]] = {group: [] for group in GROUPS}
        self.queue: list[Sent] = []
        """What the queue could hand out, or will."""
        self.inside: dict[str, tuple[Sent, RoutedMessage]] = {}
        self.running: dict[str, tuple[Sent, RoutedMessage]] = {}
        """By group."""
        self.started: list[int] = []
        """When something began, under the present limit."""
        self.failed: set[tuple[int, str]] = set()
        self.begun: dict[tuple[int, str, bool], list[str]] = {}
        self.batch = 0
        self.number = 0

    # ── what happens ─────────────────────────────────────────────────────────────────────────────────────────────────────

    @rule(group=st.sampled_from(GROUPS), count=st.sampled_from([1, 2, 5, 30, 70]), is_urgent=st.booleans())
    def put(self, group: str, count: int, is_urgent: bool) -> None:
        for _ in range(count):
            self.number += 1
            made = Sent(f"{group}{self.number}", group, is_urgent)
            self.sent[group].append(made)
            self.queue.append(made)

    @rule(data=st.data(), want=st.sampled_from([1, 3, 10, 200]))
    def poll(self, data: st.DataObject, want: int) -> None:
        """The queue hands out in order what it never did, and in any order what came back; what is inside it may repeat."""
        back = [one for one in self.queue if one.is_back and one.visible_at <= self.now]
        new = [one for one in self.queue if not one.is_back]
        if len(back) > 1:
            places = data.draw(st.lists(st.integers(0, 99), min_size=min(len(back), 4), max_size=4), label="order")
            back.sort(key=lambda one: places[hash(one.name) % len(places)])
        chosen = (new + back if data.draw(st.booleans(), label="new ones first") else back + new)[:want]
        repeated = [sent for sent, _ in self.inside.values()][: data.draw(st.sampled_from([0, 0, 1, 3]), label="repeated")]
        self.hand_out([*repeated, *chosen])

    @rule()
    def requeue(self) -> None:
        """Somebody puts a message into the queue once more that is in the router."""
        for sent, item in list(self.inside.values())[:1]:
            again = RoutedMessage(item.pointer, "Q", SourceMessage(f"again-{sent.name}", b""), None, 0)
            routing = route([again], self.tracker, {"P": self.pool}, self.no_default, self.now)
            assert routing.requeued == [again]
            assert routing.accepted == 0

    @rule(most=st.integers(1, 5))
    def work(self, most: int) -> None:
        for _ in range(most):
            item = self.pool.take(self.now)
            for passed in self.pool.passed_over:
                self.check_passed_over(passed)
                self.give_back(passed, FAST_DELAY * SECOND)
            self.pool.passed_over.clear()
            if item is None:
                break
            self.check_begin(item)

    @precondition(lambda self: self.running)
    @rule(
        data=st.data(),
        outcome=st.sampled_from(["delivered", "delivered", "dead", "again"]),
        delay=st.sampled_from([1, 5, 30, 120]),
    )
    def end(self, data: st.DataObject, outcome: str, delay: int) -> None:
        group = data.draw(st.sampled_from(sorted(self.running)), label="group")
        self.finish(group, outcome, delay)

    @rule(concurrency=st.integers(1, 4), rate=st.sampled_from([None, 1, 30]))
    def update(self, concurrency: int, rate: int | None) -> None:
        old = self.pool.limit
        self.pool.update(concurrency, rate)
        if old is None or self.pool.limit is None:
            self.started.clear()

    @rule(seconds=st.sampled_from([1, 5, 31, 61, 200]))
    def advance(self, seconds: int) -> None:
        self.now = min(self.now + seconds * SECOND, self.latest())

    @rule()
    def sweep(self) -> None:
        self.pool.sweep(self.now)

    def is_strict_in(self, group: str) -> bool:
        """Messages without a group are in batch order also in a strict pool."""
        return self.is_strict and group != DEFAULT_GROUP

    # ── the same in plain lists ──────────────────────────────────────────────────────────────────────────────────────────

    def latest(self) -> int:
        """Until when everything that went back can be waited for: a queue that loses messages is not the router's doing."""
        return max(min([one.visible_at for one in self.queue if one.is_back], default=FOREVER) + GRACE - 1, self.now)

    def no_default(self) -> Pool:
        raise AssertionError("there is a pool of this name")

    def hand_out(self, chosen: list[Sent]) -> None:
        self.batch += 1
        items: list[RoutedMessage] = []
        for one in chosen:
            one.receipt += 1
            received = SourceMessage(one.name, b"", one.receipt)
            pointer = Pointer(one.name, "P", "https://t/", one.group, one.is_urgent)
            items.append(RoutedMessage(pointer, "Q", received, None, self.batch, self.now, self.now))
        if not items:
            return
        room = self.pool.room
        routing = route(items, self.tracker, {"P": self.pool}, self.no_default, self.now)
        by_name = {item.pointer.message_id: item for item in items}
        again = {item.pointer.message_id for item in routing.redelivered}
        assert again == {one.name for one in chosen if one.name in self.inside}
        for name in again:  # the new receipt counts, the message goes on
            assert self.inside[name][1].received is by_name[name].received
        assert not routing.requeued
        assert not routing.repeated
        went_back = [*routing.refused, *routing.waiting]
        assert self.is_strict or not routing.waiting
        refused = [item.pointer.message_id for _, item in went_back]
        assert len(refused) == len(set(refused))
        for sent in chosen:
            if sent.name not in again and sent.name not in refused:
                self.queue.remove(sent)
                sent.batch = self.batch
                self.inside[sent.name] = sent, by_name[sent.name]
        for pool, item in went_back:
            pool.sent_back(item, self.now + REFUSAL)
            sent = next(one for one in chosen if one.name == item.pointer.message_id)
            sent.is_back, sent.visible_at = True, self.now + REFUSAL
        assert routing.accepted == len(chosen) - len(again) - len(refused) <= room

    def check_begin(self, item: RoutedMessage) -> None:
        sent, tracked = self.inside[item.pointer.message_id]
        assert tracked is item
        assert sent.group not in self.running  # never two of a group at the same time
        assert self.pool.active <= self.pool.concurrency
        if self.is_strict_in(sent.group):
            earlier = self.sent[sent.group][: self.sent[sent.group].index(sent)]
            assert all(one.settled for one in earlier), "an earlier message of its group is neither delivered nor dead"
        else:
            assert (sent.batch, sent.group) not in self.failed
            self.check_order_of_batch(sent)
        if self.pool.limit is not None:
            self.started.append(self.now)
            recent = [at for at in self.started if at > self.now - MINUTE]
            assert len(recent) <= self.pool.limit.per_minute
        self.running[sent.group] = sent, item

    def check_order_of_batch(self, sent: Sent) -> None:
        before = self.begun.setdefault((sent.batch, sent.group, sent.is_urgent), [])
        waiting = [
            name
            for name, (other, _) in self.inside.items()
            if (other.batch, other.group, other.is_urgent) == (sent.batch, sent.group, sent.is_urgent) and name not in before
        ]
        assert waiting[0] == sent.name
        before.append(sent.name)

    def check_passed_over(self, item: RoutedMessage) -> None:
        assert (item.batch, item.pointer.group) in self.failed

    def finish(self, group: str, outcome: str, delay: int) -> None:
        sent, item = self.running.pop(group)
        if outcome != "again":
            self.pool.finish(item, self.now)
            self.settle(sent, item, outcome)
            return
        was_called = delay != 5
        if was_called or group != DEFAULT_GROUP:
            self.failed.add((sent.batch, group))
        if not was_called and self.pool.limit is not None and self.started:
            self.started.pop()
        fate, back = self.pool.retry(item, delay * SECOND, self.now, was_called=was_called)
        assert (item in back) is (fate is RetryDecision.SENT_BACK)
        assert self.is_strict_in(group) or back == [item]
        assert self.pool.held <= max(self.pool.capacity // 2, 1) or not back
        for one in back:
            self.give_back(one, delay * SECOND)

    def settle(self, sent: Sent, item: RoutedMessage, outcome: str) -> None:
        assert not sent.settled  # nothing doubled
        sent.settled = outcome
        del self.inside[sent.name]
        assert self.tracker.remove(item)
        assert item.received.receipt == sent.receipt  # settled with the latest receipt

    def give_back(self, item: RoutedMessage, delay: int) -> None:
        sent, tracked = self.inside.pop(item.pointer.message_id)
        assert tracked is item
        assert self.tracker.remove(item)
        sent.is_back, sent.visible_at = True, self.now + delay
        self.queue.append(sent)

    # ── what must never be false ─────────────────────────────────────────────────────────────────────────────────────────

    @invariant()
    def every_message_is_somewhere_once(self) -> None:
        names = [one.name for one in self.queue] + list(self.inside)
        settled = [one.name for group in self.sent.values() for one in group if one.settled]
        assert sorted(names + settled) == sorted(one.name for group in self.sent.values() for one in group)
        assert {item.pointer.message_id for item in self.tracker} == set(self.inside)
        assert self.pool.active == len(self.running)
        assert self.pool.queued + self.pool.active == len(self.inside)

    @invariant()
    def the_pools_numbers_are_those_of_its_lanes(self) -> None:
        lanes = self.pool.lanes.values()
        assert self.pool.queued == sum(len(lane.regular) + len(lane.urgent or ()) for lane in lanes)
        assert self.pool.held == sum(len(lane.regular) for lane in lanes if lane.is_held)
        assert self.pool.away == sum(bool(lane.away) for lane in lanes)
        by_batch = [sent for sent, _ in self.inside.values() if not self.is_strict_in(sent.group)]
        assert sum(self.pool.batches._left.values()) == len(by_batch)

    @invariant()
    def what_waits_by_itself_is_due_some_time(self) -> None:
        """Nothing stands still: with a free worker there is an end to be expected, or a time, or nothing that could run."""
        ready = [lane for lane in self.pool.lanes.values() if not lane.is_empty and not lane.is_busy and not lane.is_held]
        assert all(lane.is_ready for lane in ready)

    def teardown(self) -> None:
        if not hasattr(self, "pool"):
            return
        self.update(4, None)
        for _ in range(3 * self.number + 50):
            self.work(self.number + 1)
            for group in list(self.running):
                self.finish(group, "delivered", 0)
            visible = [one for one in self.queue if one.is_back and one.visible_at <= self.now]
            self.hand_out([*reversed(visible), *[one for one in self.queue if not one.is_back]][:100])  # in the wrong order
            if not self.queue and not self.inside:
                break
            due = [self.pool.next_due, *(one.visible_at for one in self.queue if one.is_back)]
            if not self.running and (later := min(due)) > self.now and later != FOREVER:
                self.now = later
            self.every_message_is_somewhere_once()
        assert all(one.settled for group in self.sent.values() for one in group)
        assert (len(self.tracker), self.pool.queued, self.pool.active, self.pool.held) == (0, 0, 0, 0)
        assert len(self.pool.batches) == 0
        self.pool.sweep(FOREVER)
        assert (self.pool.lanes, self.pool.away) == ({}, 0)
        self.check_drain()

    def check_drain(self) -> None:
        """After a drain nothing is left, wherever it was."""
        for number in range(6):
            self.put(GROUPS[number % 4], 2, number % 2 == 0)
        self.now += 2 * MINUTE
        self.hand_out([*self.queue])
        self.work(1)
        waiting = self.pool.drain()
        assert sorted(item.pointer.message_id for item in (*waiting, *(item for _, item in self.running.values()))) == sorted(
            self.inside
        )
        for item in waiting:
            self.give_back(item, 0)
        for group in list(self.running):
            self.finish(group, "again", 1)
        assert (len(self.tracker), self.pool.queued, self.pool.active, self.pool.take(self.now + 2 * MINUTE)) == (0, 0, 0, None)
        assert (self.pool.is_drained, self.pool.next_due) == (True, FOREVER)


class BatchRouterRules(RouterRules):
    """The same with the specification's own order."""

    is_strict = False


TestStrictOrder = RouterRules.TestCase
TestStrictOrder.settings = effort(2)
TestBatchOrder = BatchRouterRules.TestCase
TestBatchOrder.settings = effort(1)


# ── rate limit ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@given(per_minute=st.integers(1, 600), gaps=st.lists(st.integers(0, 90 * SECOND), max_size=200))
def test_rate_limit_waiting_as_told_is_always_enough_and_never_too_long(per_minute: int, gaps: list[int]) -> None:
    limit, now, given_at = RateLimit(per_minute), 0, list[int]()
    for gap in gaps:
        now += gap
        wait = limit.take(now)
        if wait:
            assert limit.take(now + wait - 1) == 1
            now += wait
            assert limit.take(now) == 0
        given_at.append(now)
    for end in given_at:
        assert sum(end - MINUTE < at <= end for at in given_at) <= per_minute


@given(per_minute=st.integers(1, 100), minutes=st.integers(1, 5))
def test_rate_limit_over_many_minutes_the_rate_is_that_asked_for(per_minute: int, minutes: int) -> None:
    limit, now, count = RateLimit(per_minute), 0, 0
    while now < minutes * MINUTE:
        wait = limit.take(now)
        count += not wait
        now += wait
    assert per_minute * minutes <= count <= per_minute * (minutes + 1)


# ── breaker ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


class BreakerRules(RuleBasedStateMachine):
    """A breaker against a list of the last calls. Calls overlap, end in any order, and may have begun long before."""

    def __init__(self) -> None:
        super().__init__()
        self.breaker = Breaker()
        self.now = 0
        self.state = State.CLOSED
        self.open_until = 0
        self.lifecycle = 0
        self.window: deque[bool] = deque(maxlen=WINDOW)
        self.passed = 0
        self.probe: int | None = None
        self.calls: dict[int, tuple[int, int]] = {}
        """Under way: the breaker's epoch and the model's."""
        self.number = 0
        self.totals: Counter[Health] = Counter()

    @rule()
    def call(self) -> None:
        wait = self.breaker.may(self.now)
        if self.state is State.OPEN and self.now >= self.open_until:
            self.enter(State.HALF_OPEN)
        is_allowed = self.state is State.CLOSED or (self.state is State.HALF_OPEN and self.probe is None)
        assert (wait == 0) is is_allowed
        if not is_allowed:
            assert wait == (self.open_until - self.now if self.state is State.OPEN else OPEN_FOR)
            return
        self.number += 1
        if self.state is State.HALF_OPEN:
            self.probe = self.number
        self.calls[self.number] = self.breaker.epoch, self.lifecycle

    @precondition(lambda self: self.calls)
    @rule(data=st.data(), health=st.sampled_from(Health))
    def end(self, data: Any, health: Health) -> None:
        number = data.draw(st.sampled_from(sorted(self.calls)), label="call")
        epoch, lifecycle = self.calls.pop(number)
        before = self.state
        self.totals[health] += 1
        is_changed = self.breaker.record(health, self.now, epoch)
        if lifecycle == self.lifecycle and self.state is State.CLOSED and health is not Health.UNKNOWN:
            self.window.append(health is Health.DOWN)
            if len(self.window) == WINDOW and sum(self.window) >= FAILURES:
                self.enter(State.OPEN)
        elif lifecycle == self.lifecycle and self.state is State.HALF_OPEN:
            assert number == self.probe
            self.probe = None
            self.passed += health is Health.UP
            if health is Health.DOWN:
                self.enter(State.OPEN)
            elif self.passed >= SUCCESSES:
                self.enter(State.CLOSED)
        assert is_changed is (self.state is not before)

    @rule(health=st.sampled_from([Health.UP, Health.DOWN]), count=st.integers(1, 12))
    def calls_in_a_row(self, health: Health, count: int) -> None:
        for _ in range(count):
            before = set(self.calls)
            self.call()
            for number in set(self.calls) - before:
                self.end(_Chosen(number), health)

    @rule()
    def reset(self) -> None:
        self.breaker.reset()
        self.enter(State.CLOSED)

    @rule(seconds=st.sampled_from([1, 4, 5, 20]))
    def advance(self, seconds: int) -> None:
        self.now += seconds * SECOND

    def enter(self, state: State) -> None:
        self.state, self.probe, self.passed = state, None, 0
        self.lifecycle += 1
        if state is State.OPEN:
            self.open_until = self.now + OPEN_FOR
        if state is State.CLOSED:
            self.window.clear()

    @invariant()
    def the_state_is_that_of_the_model(self) -> None:
        assert self.breaker.state is self.state
        assert (self.breaker.succeeded, self.breaker.failed) == (self.totals[Health.UP], self.totals[Health.DOWN])
        assert not self.breaker.is_clean or (self.state is State.CLOSED and not any(self.window) and len(self.window) == WINDOW)


class _Chosen:
    """Draws what was chosen before."""

    def __init__(self, number: int) -> None:
        self.number = number

    def draw(self, _strategy: object, label: str) -> int:
        return self.number


TestBreaker = BreakerRules.TestCase
TestBreaker.settings = effort(2)


# ── tracker ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


class TrackerRules(RuleBasedStateMachine):
    """A tracker against a list of what is in the router."""

    def __init__(self) -> None:
        super().__init__()
        self.tracker = Tracker()
        self.inside: list[RoutedMessage] = []

    messages = st.builds(
        lambda message_id, broker_id, queue: RoutedMessage(Pointer(message_id, "P", "t"), queue, SourceMessage(broker_id, b"")),
        st.sampled_from(["m", "n", "o"]),
        st.sampled_from(["", "1", "2", "3"]),
        st.sampled_from(["Q", "R"]),
    )

    @rule(items=st.lists(messages, min_size=1, max_size=5))
    def track(self, items: list[RoutedMessage]) -> None:
        batch = [item for item in items if item.queue == items[0].queue]
        tracked, repeated = self.tracker.track(batch)
        expected: list[RoutedMessage] = []
        for item in batch:
            if not any(self.same_key(item, one) or self.same_id(item, one) for one in self.inside):
                self.inside.append(item)
                expected.append(item)
        assert list(tracked) == expected
        assert repeated == [item for item in batch if item not in expected]

    @rule(items=st.lists(messages, min_size=1, max_size=5))
    def arrive(self, items: list[RoutedMessage]) -> None:
        batch = [item for item in items if item.queue == items[0].queue]
        fresh, known = self.tracker.fresh(batch)
        assert list(fresh) == [item for item in batch if self.tracker.seen(item) is None]
        assert known == [item for item in batch if self.tracker.seen(item) is not None]
        found = [(item, self.tracker.seen(item)) for item in known]
        for item, seen in found:
            assert seen is not None
            assert seen[1] in self.inside
            if any(self.same_key(item, one) for one in self.inside):
                assert seen[0] is DuplicateKind.REDELIVERED
                assert self.same_key(item, seen[1])
            else:
                assert self.same_id(item, seen[1])
        for item, seen in found:
            if seen is not None and seen[0] is DuplicateKind.REDELIVERED:
                is_taken = any(self.same_key(item, one) for one in self.inside if one is not seen[1])
                self.tracker.renew(seen[1], item)
                assert is_taken or (seen[1].received, seen[1].queue) == (item.received, item.queue)

    @precondition(lambda self: self.inside)
    @rule(place=st.integers(0, 20))
    def remove(self, place: int) -> None:
        item = self.inside.pop(place % len(self.inside))
        assert self.tracker.remove(item)
        assert not self.tracker.remove(item)

    @rule(item=messages)
    def remove_a_stranger(self, item: RoutedMessage) -> None:
        assert not self.tracker.remove(item)

    @staticmethod
    def same_id(item: RoutedMessage, other: RoutedMessage) -> bool:
        return item.pointer.message_id == other.pointer.message_id

    @staticmethod
    def same_key(item: RoutedMessage, other: RoutedMessage) -> bool:
        keys = [one.received.broker_id or one.pointer.message_id for one in (item, other)]
        return item.queue == other.queue and keys[0] == keys[1]

    @invariant()
    def both_indexes_hold_the_same(self) -> None:
        assert list(self.tracker) == self.inside
        assert len(self.tracker) == len(self.inside)
        by_queue = [item for queue in "QR" for item in self.tracker.of_queue(queue)]
        assert {id(item) for item in by_queue} == {id(item) for item in self.inside}
        assert len(by_queue) == len(self.inside)
        for item in self.inside:
            assert self.tracker.find(item.pointer.message_id) is item


TestTracker = TrackerRules.TestCase
TestTracker.settings = effort(2)
