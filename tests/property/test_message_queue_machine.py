"""Topics and subscriptions against the model: whatever is done in whatever order, `MessageQueue` and the model agree."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock import DeadLetterPolicy, Message, MessageQueue, ReceivedMessage, SubscriptionStats
from penstock.broker.catalog import Catalog
from penstock.broker.consumer import Consumer
from penstock.broker.core.queue import Queue
from penstock.broker.settlement import find, release
from penstock.errors import FailedPrecondition, InvalidAckId, SubscriptionFull
from penstock.ids import ack_id, message_id, parse_message_id
from penstock.testing import ManualClock
from tests.property.model import Draft, Entry, Full, Item, Log, ModelQueue
from tests.property.strategies import (
    GRAVE_SETTINGS,
    SECOND,
    STEPS,
    Setting,
    drafts,
    effort,
    instant,
    patience,
    settings_of_a_subscription,
)

TOPIC = "orders"
SUBSCRIPTIONS = ("s0", "s1")
GRAVES = ("g0", "g1")
CONSUMERS = ("c0", "c1")
MOST_MESSAGES = 60


@dataclass(frozen=True)
class Token:
    """A delivery, as a consumer remembers it."""

    queue: ModelQueue
    delivery: int
    ack_id: str


names = st.sampled_from([*SUBSCRIPTIONS, *SUBSCRIPTIONS, *SUBSCRIPTIONS, *GRAVES])
picks = st.integers(0, 1 << 16)


class SubscriptionMachine(RuleBasedStateMachine):
    """Two subscriptions of one topic; each has a dead-letter topic of its own, with or without a subscription."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.queue = self.open()
        self.logs: dict[str, Log] = {}
        self.models: dict[str, ModelQueue] = {}
        self.tokens: list[Token] = []
        self.snapshots: dict[str, tuple[Log, set[int], int]] = {}
        self.letters = 0
        self.steps = 0
        self.is_looking = self.was_looking = True

    def open(self) -> MessageQueue:
        return MessageQueue(clock=self.clock)

    def teardown(self) -> None:
        self.queue.close()

    @initialize(
        first=settings_of_a_subscription(),
        second=settings_of_a_subscription(),
        has_grave=st.booleans(),
        batches=st.lists(st.lists(drafts(), min_size=1, max_size=4), max_size=3),
    )
    def create(self, first: Setting, second: Setting, has_grave: bool, batches: list[list[Draft]]) -> None:
        for name in (TOPIC, "dead-s0", "dead-s1"):
            self.queue.register_topic(name)
            self.logs[name] = Log()
        self.subscribe("s0", first)
        self.subscribe("s1", second)
        if has_grave:
            self.dig("g0", GRAVE_SETTINGS[0])
        for batch in batches:
            self.publish(batch)

    # ── commands ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    @rule(batch=st.lists(drafts(), min_size=1, max_size=4))
    def publish(self, batch: list[Draft]) -> None:
        now = self.begin()
        log = self.logs[TOPIC]
        if len(log.items) >= MOST_MESSAGES:
            return
        for draft in batch:
            draft.deliver_at = None if draft.deliver_at is None else now + draft.deliver_at
        messages = [
            Message(
                data=draft.data,
                attributes=draft.attributes,
                ordering_key=draft.key,
                priority=draft.priority,
                ttl=None if draft.ttl is None else draft.ttl / SECOND,
                deliver_at=None if draft.deliver_at is None else instant(draft.deliver_at),
                producer_id=draft.producer[0] if draft.producer else None,
                sequence=draft.producer[1] if draft.producer else None,
            )
            for draft in batch
        ]
        try:
            expected = log.publish(batch, now)
        except Full:
            with pytest.raises(SubscriptionFull):
                self.queue.publish(TOPIC, messages)
            return
        for one, item in zip(self.queue.publish(TOPIC, messages), expected, strict=True):
            assert self.located(log, one) is item

    @rule(name=names, want=st.integers(1, 5))
    def pull(self, name: str, want: int) -> None:
        now = self.begin()
        model = self.models.get(name)
        if model is None:
            return
        if model.detached:
            with pytest.raises(FailedPrecondition):
                self.queue.pull(name, want)
            return
        expected = model.lease(now, want)
        received = self.queue.pull(name, want)
        assert [(self.located(model.log, one.id).offset, one.delivery_attempt) for one in received] == [
            (delivery.item.offset, delivery.attempt) for delivery in expected
        ]
        for one, delivery in zip(received, expected, strict=True):
            assert_same_content(one, delivery.item)
            assert one.ack_id not in [token.ack_id for token in self.tokens]
            self.tokens.append(Token(model, delivery.number, one.ack_id))

    @rule(name=names, want=st.integers(1, 5), consumer=st.sampled_from(CONSUMERS), key_window=st.sampled_from([1, 2, 3, 1_000]))
    def stream(self, name: str, want: int, consumer: str, key_window: int) -> None:
        """A stream takes what it may have, several messages of one key among them."""
        now = self.begin()
        model = self.models.get(name)
        if model is None or model.detached:
            return
        expected = model.lease(now, want, consumer=consumer, key_window=key_window)
        stream = Consumer(self.queue.broker, Catalog.subscription, name, identity=consumer, key_window=key_window)
        leases = stream.take(want)
        while (queue := self.queue.broker.catalog.subscription(name)).absent is not None:
            self.queue.broker.load(queue)
            leases += stream.take(want - len(leases))
        assert [(lease.offset, lease.attempt) for lease in leases] == [
            (delivery.item.offset, delivery.attempt) for delivery in expected
        ]
        for lease, delivery in zip(leases, expected, strict=True):
            text = ack_id(stream.number, lease.offset, lease.attempt, lease.epoch)
            assert text not in [token.ack_id for token in self.tokens]
            self.tokens.append(Token(model, delivery.number, text))

    @rule(name=names, consumer=st.sampled_from(CONSUMERS))
    def release(self, name: str, consumer: str) -> None:
        """A stream goes away, and what it holds goes back."""
        self.begin()
        model = self.models.get(name)
        if model is not None and not model.detached and consumer in model.consumers:
            broker = self.queue.broker
            with broker.present() as now:
                assert release(broker, broker.catalog.subscription(name), consumer, now) == model.release(consumer)

    @rule(name=names, want=st.integers(1, 5), is_ack=st.sampled_from([False, False, True]))
    def work(self, name: str, want: int, is_ack: bool) -> None:
        """Pull and settle all of it, or fail at all of it: the way to high attempts, to dead letters, to the end of a key."""
        before = len(self.tokens)
        self.pull(name, want)
        if len(self.tokens) > before:
            self.settle_many([*range(len(self.tokens) - before)], is_ack)

    @precondition(lambda self: self.tokens)
    @rule(pick=picks)
    def ack(self, pick: int) -> None:
        token, entry = self.taken(pick)
        if entry is None:
            with pytest.raises(InvalidAckId):
                self.queue.ack(token.ack_id)
        else:
            self.queue.ack(token.ack_id)
            token.queue.ack(entry)

    @precondition(lambda self: self.tokens)
    @rule(pick=picks)
    def nack(self, pick: int) -> None:
        token, entry = self.taken(pick)
        if entry is None:
            with pytest.raises(InvalidAckId):
                self.queue.nack(token.ack_id)
        else:
            self.queue.nack(token.ack_id)
            token.queue.nack([entry], self.clock.now())

    @precondition(lambda self: self.tokens)
    @rule(pick=picks)
    def give_back(self, pick: int) -> None:
        """A delivery turns out not to have reached its consumer."""
        token, entry = self.taken(pick)
        broker = self.queue.broker
        with broker.present() as now:
            found = find(broker, token.ack_id)
            assert (found is None) == (entry is None)
            if found is not None and entry is not None:
                broker.settle(found[0], [found[1]], now, Queue.give_back)
                token.queue.give_back(entry)

    @precondition(lambda self: self.tokens)
    @rule(chosen=st.lists(picks, min_size=1, max_size=5), is_ack=st.booleans())
    def settle_many(self, chosen: list[int], is_ack: bool) -> None:
        now = self.begin()
        tokens = [self.recent(pick) for pick in chosen]
        valid: dict[str, Token] = {}
        failed: list[str] = []
        for token in tokens:
            if token.queue.holding(token.delivery) is None or token.ack_id in valid:
                failed.append(token.ack_id)
            else:
                valid[token.ack_id] = token
        verb = self.queue.ack_many if is_ack else self.queue.nack_many
        assert verb([token.ack_id for token in tokens]) == failed
        for model in self.models.values():
            held = [entry for token in valid.values() if token.queue is model and (entry := model.holding(token.delivery))]
            if is_ack:
                for entry in held:
                    model.ack(entry)
            else:
                model.nack(held, now)

    @precondition(lambda self: self.tokens)
    @rule(pick=picks, seconds=st.sampled_from([0, 1, 10, 100]), is_added=st.booleans())
    def change_deadline(self, pick: int, seconds: int, is_added: bool) -> None:
        token, entry = self.taken(pick)
        verb = self.queue.modify_ack_deadline if is_added else self.queue.set_ack_deadline
        if entry is None:
            with pytest.raises(InvalidAckId):
                verb(token.ack_id, seconds)
            return
        verb(token.ack_id, seconds)
        now = self.clock.now()
        if is_added:
            assert entry.deadline is not None
            token.queue.extend(entry, entry.deadline + seconds * SECOND)
        elif seconds:
            token.queue.extend(entry, now + seconds * SECOND)
        else:
            token.queue.nack([entry], now)

    @rule(seconds=st.sampled_from(STEPS), is_looking=st.booleans())
    def advance(self, seconds: float, is_looking: bool) -> None:
        """Time passes. Without a look afterwards the next command is the first to notice."""
        self.clock.advance(seconds)
        self.is_looking = is_looking

    @rule(name=names, paused=st.booleans())
    def pause(self, name: str, paused: bool) -> None:
        self.begin()
        model = self.models.get(name)
        if model is not None:
            (self.queue.pause if paused else self.queue.resume)(name)
            model.paused = paused

    @rule(name=names, pick=picks, shift=st.sampled_from([None, None, 0, 1, -1]))
    def seek(self, name: str, pick: int, shift: int | None) -> None:
        """To an offset, or (with a shift in microseconds) to the time of a message."""
        now = self.begin()
        if (model := self.attached(name)) is None:
            return
        if shift is None:
            offset = pick % (len(model.log.items) + 1)
            self.queue.seek(name, offset=offset)
            model.seek(lambda item: item.offset >= offset, now)
        else:
            times = [now, *(item.at for item in model.log.items)]
            at = times[pick % len(times)] + shift
            self.queue.seek(name, time=instant(at))
            model.seek(lambda item: item.at >= at, now)

    @rule(name=names, snapshot=st.sampled_from(["x", "y"]))
    def take_snapshot(self, name: str, snapshot: str) -> None:
        self.begin()
        if (model := self.attached(name)) is not None:
            if snapshot in self.snapshots:
                self.queue.delete_snapshot(snapshot)
            self.queue.create_snapshot(snapshot, name)
            self.snapshots[snapshot] = (model.log, set(model.entries), len(model.log.items))

    @precondition(lambda self: self.snapshots)
    @rule(name=names, pick=picks)
    def seek_to_snapshot(self, name: str, pick: int) -> None:
        now = self.begin()
        if (model := self.attached(name)) is None:
            return
        snapshot = sorted(self.snapshots)[pick % len(self.snapshots)]
        log, unsettled, high = self.snapshots[snapshot]
        if log is not model.log:
            with pytest.raises(FailedPrecondition):
                self.queue.seek(name, snapshot=snapshot)
            return
        self.queue.seek(name, snapshot=snapshot)
        model.seek(lambda item: item.offset in unsettled or item.offset >= high, now, by_snapshot=True)

    @precondition(lambda self: self.steps > 12)
    @rule(name=st.sampled_from(SUBSCRIPTIONS), setting=settings_of_a_subscription())
    def subscribe_anew(self, name: str, setting: Setting) -> None:
        self.begin()
        self.unsubscribe(name)
        self.subscribe(name, setting)

    @rule(name=st.sampled_from(GRAVES), setting=st.sampled_from([None, *GRAVE_SETTINGS]))
    def change_outlet(self, name: str, setting: Setting | None) -> None:
        self.begin()
        self.unsubscribe(name)
        if setting is not None:
            self.dig(name, setting)

    @precondition(lambda self: self.steps > 12)
    @rule(setting=settings_of_a_subscription())
    def replace_topic(self, setting: Setting) -> None:
        """A new topic of the old name does not feed the old subscriptions; one of them is made anew."""
        self.begin()
        self.queue.unregister_topic(TOPIC)
        self.queue.register_topic(TOPIC)
        for model in [*self.logs[TOPIC].queues]:
            model.detach()
        self.logs[TOPIC] = Log()
        self.unsubscribe("s1")
        self.subscribe("s1", setting)

    # ── what must be true after every step ───────────────────────────────────────────────────────────────────────────────

    @invariant()
    def agrees_with_the_model(self) -> None:
        self.steps += 1
        self.was_looking, self.is_looking = self.is_looking, True
        if self.was_looking:
            now = self.begin()
            self.flush()
            self.compare(now)

    def compare(self, now: int) -> None:
        for name, model in self.models.items():
            stats = self.queue.stats(name)
            assert stats == expected_stats(model, now)
            assert stats.backlog == stats.ready + stats.delayed + stats.in_flight
            self.check_order_of_delivery(name, model, now)
            self.check_reasons(name, model, now)

    def check_order_of_delivery(self, name: str, model: ModelQueue, now: int) -> None:
        upcoming = self.queue.peek(name, 1_000)
        expected = model.upcoming(now)
        assert [(self.located(model.log, one.id).offset, one.delivery_attempt) for one in upcoming] == [
            (entry.item.offset, entry.attempts + 1) for entry in expected
        ]
        for one, entry in zip(upcoming, expected, strict=True):
            assert_same_content(one, entry.item)
            assert one.ack_id == ""

    def check_reasons(self, name: str, model: ModelQueue, now: int) -> None:
        waiting: set[str] = set()
        single: set[str] = set()
        holders: dict[str, str | None] = {}
        if model.log.stream is None:
            return  # nothing of it was ever seen
        for item in model.log.items:
            why = self.queue.explain(name, self.id_of(model.log, item))
            expected = model.explain(item.offset, now)
            assert (why is None) == (expected is None), item
            if why is None or expected is None:
                continue
            reason, until, by = expected
            assert why.reason == reason, item
            assert why.until == (None if until is None else instant(until))
            assert why.by == (None if by is None else self.id_of(model.log, model.log.items[by]))
            key = item.draft.key
            if model.rules.ordered and key:
                if why.reason == "leased":
                    assert key not in waiting, "a message overtook an older one of its key"
                    holder = self.holder(name, item.offset)
                    assert holders.setdefault(key, holder) == holder, "messages of one key are out at two consumers"
                    if holder is None:
                        assert key not in single, "two messages of one key are out at once, without a window"
                        single.add(key)
                else:
                    waiting.add(key)

    def holder(self, name: str, offset: int) -> str | None:
        """Who holds a message that is leased; None for one that was pulled."""
        lease = self.queue.broker.catalog.subscription(name).lease_of(offset)
        assert lease is not None
        return lease.consumer.consumer_id if lease.consumer is not None else None

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    def begin(self) -> int:
        """Start a step: in the model, too, whatever became due has happened."""
        now = self.clock.now()
        for model in self.models.values():
            model.tick(now)
        return now

    def flush(self) -> None:
        """Dead letters travel with the next commit; wait for it where that takes a while."""
        letters = sum(len(log.items) for name, log in self.logs.items() if name != TOPIC)
        if letters != self.letters:
            self.letters = letters
            self.queue.broker.sync()

    def subscribe(self, name: str, setting: Setting) -> None:
        policy = setting.options.dead_letter_policy
        if policy is not None:
            policy = DeadLetterPolicy(f"dead-{name}", policy.max_delivery_attempts)
        self.queue.register_subscription(name, TOPIC, replace(setting.options, dead_letter_policy=policy))
        self.models[name] = ModelQueue(name, setting.rules, self.logs[TOPIC], lambda: self.logs[f"dead-{name}"])

    def dig(self, name: str, setting: Setting) -> None:
        """Subscribe to the dead-letter topic of a subscription."""
        topic = f"dead-s{name[1:]}"
        self.queue.register_subscription(name, topic, setting.options)
        self.models[name] = ModelQueue(name, setting.rules, self.logs[topic])

    def unsubscribe(self, name: str) -> None:
        model = self.models.pop(name, None)
        if model is not None:
            self.queue.unregister_subscription(name)
            if not model.detached:
                model.detach()

    def attached(self, name: str) -> ModelQueue | None:
        model = self.models.get(name)
        if model is not None and model.detached:
            with pytest.raises(FailedPrecondition):
                self.queue.seek(name, offset=0)
            return None
        return model

    def recent(self, pick: int) -> Token:
        """One of the last deliveries: old ones are all stale and would only teach the same again and again."""
        return self.tokens[-1 - pick % min(len(self.tokens), 8)]

    def taken(self, pick: int) -> tuple[Token, Entry | None]:
        self.begin()
        token = self.recent(pick)
        return token, token.queue.holding(token.delivery)

    def located(self, log: Log, text: str) -> Item:
        """The item that a message id names; every log has a stream number of its own."""
        place = parse_message_id(text)
        assert place is not None
        at, stream, offset = place
        log.stream = stream if log.stream is None else log.stream
        assert log.stream == stream
        assert [other.stream for other in self.logs.values()].count(stream) <= 1
        assert log.items[offset].at == at
        return log.items[offset]

    def id_of(self, log: Log, item: Item) -> str:
        assert log.stream is not None, "every log that has items was seen"
        return message_id(item.at, log.stream, item.offset)


def assert_same_content(received: ReceivedMessage, item: Item) -> None:
    draft = item.draft
    attributes = received.attributes
    if "penstock.source_message_id" in draft.attributes:
        source = parse_message_id(attributes["penstock.source_message_id"])
        assert source is not None
        attributes["penstock.source_message_id"] = f"{source[2]:030d}"
    assert (received.data, attributes, received.ordering_key or "", received.priority, received.length) == (
        draft.data,
        draft.attributes,
        draft.key,
        draft.priority,
        len(draft.data),
    )
    assert received.publish_time == instant(item.origin_at)


def expected_stats(model: ModelQueue, now: int) -> SubscriptionStats:
    return SubscriptionStats(
        ready=model.ready(now),
        delayed=model.delayed(now),
        in_flight=len(model.leased()),
        in_flight_bytes=model.in_flight_bytes,
        backlog=len(model.entries),
        backlog_bytes=model.size,
        oldest_age_seconds=model.oldest_age(now),
        delivered_total=model.delivered,
        acked_total=model.acked,
        nacked_total=model.nacked,
        expired_total=model.expired,
        dead_lettered_total=model.dead_lettered,
        discarded_total=model.discarded,
        dead_letter_failures_total=model.dead_letter_failures,
        ttl_expired_total=model.ttl_expired,
        retired_total=model.retired,
        paused=model.paused,
    )


TestSubscriptionsInMemory = patience(SubscriptionMachine.TestCase)
TestSubscriptionsInMemory.settings = effort(2.5)
