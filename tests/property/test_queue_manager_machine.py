"""Work queues against the model: whatever is done in whatever order, `QueueManager` and the model agree."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock import QueueManager, QueueMessage, QueueStats
from penstock.errors import AckDeadlineExceeded, ConsumerNotFound, MessageNotFound, PenstockError, QueueFull
from penstock.ids import message_id, parse_message_id
from penstock.testing import ManualClock
from tests.property.model import Draft, Entry, Full, Item, Log, ModelQueue, Rules
from tests.property.strategies import SECOND, STEPS, QueueSetting, effort, instant, patience, settings_of_a_queue, work

NAME = "tasks"
CONSUMERS = ["w1", "w2"]
MOST_MESSAGES = 60
picks = st.integers(0, 1 << 16)


class QueueMachine(RuleBasedStateMachine):
    """One work queue and two consumers."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.manager = self.open()
        self.model = ModelQueue(NAME, Rules(30 * SECOND), Log())
        self.steps = 0
        self.is_looking = self.was_looking = True

    def open(self) -> QueueManager:
        return QueueManager(clock=self.clock)

    def teardown(self) -> None:
        self.manager.close()

    @initialize(setting=settings_of_a_queue(), drafts=st.lists(work(), max_size=6))
    def create(self, setting: QueueSetting, drafts: list[Draft]) -> None:
        self.manager.create(NAME, setting.config)
        self.setting = setting
        self.model = ModelQueue(NAME, setting.rules, Log())
        for draft in drafts:
            self.publish(draft)

    # ── commands ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    @rule(draft=work())
    def publish(self, draft: Draft) -> None:
        now = self.begin()
        model = self.model
        if len(model.log.items) >= MOST_MESSAGES:
            return
        options: dict[str, object] = {"priority": draft.priority, "headers": draft.attributes}
        if draft.ttl is not None:
            options["ttl"] = draft.ttl / SECOND
        else:
            draft.ttl = self.setting.ttl
        if draft.deliver_at is not None:
            draft.deliver_at += now
            options["deliver_at"] = instant(draft.deliver_at)
        if draft.max_attempts is not None:
            options["max_retries"] = draft.max_attempts - 1
        if draft.producer is not None:
            options["producer_id"], options["sequence"] = draft.producer
        is_repeat = draft.producer in model.log.producers
        discarded = model.discarded
        try:
            item = model.log.publish([draft], now)[0]
        except Full:
            with pytest.raises(QueueFull):
                self.manager.publish(NAME, draft.data, **options)  # type: ignore[arg-type]  # drawn as one dict
            return
        result = self.manager.publish(NAME, draft.data, **options)  # type: ignore[arg-type]  # drawn as one dict
        assert self.located(result.message_id) is item
        if not is_repeat and model.discarded == discarded and not model.is_delayed(model.entries[item.offset], now):
            assert result.position == 1 + model.upcoming(now).index(model.entries[item.offset])

    @rule(
        consumer=st.sampled_from(CONSUMERS),
        want=st.integers(1, 4),
        ack_deadline=st.sampled_from([None, 1, 50]),
        prefetch=st.sampled_from([None, None, 1, 3]),
    )
    def consume(self, consumer: str, want: int, ack_deadline: int | None, prefetch: int | None) -> None:
        now = self.begin()
        span = None if ack_deadline is None else ack_deadline * SECOND
        expected = self.model.lease(now, want, ack_deadline=span, consumer=consumer, prefetch=prefetch)
        received = self.manager.consume_many(NAME, consumer, max_messages=want, ack_deadline=ack_deadline, prefetch=prefetch)
        assert [(self.located(one.message_id).offset, one.retry_count) for one in received] == [
            (delivery.item.offset, delivery.attempt - 1) for delivery in expected
        ]
        for one, delivery in zip(received, expected, strict=True):
            self.check_content(one, delivery.item)

    @rule(consumer=st.sampled_from(CONSUMERS), want=st.integers(1, 4))
    def fail(self, consumer: str, want: int) -> None:
        """Consume and fail at all of it: the way to many retries and to dead letters."""
        self.consume(consumer, want, None, None)
        for item in [entry.item for entry in self.model.leased() if entry.consumer == consumer]:
            entry, _ = self.held(item, consumer)
            assert entry is not None
            self.manager.nack(NAME, self.id_of(item), consumer_id=consumer)
            self.model.nack([entry], self.clock.now())

    @precondition(lambda self: self.model.log.items)
    @rule(pick=picks, consumer=st.sampled_from([None, None, *CONSUMERS]))
    def ack(self, pick: int, consumer: str | None) -> None:
        self.begin()
        item = self.chosen(pick)
        entry, error = self.held(item, consumer)
        if entry is None:
            with pytest.raises(error):
                self.manager.ack(NAME, self.id_of(item), consumer)
        else:
            self.manager.ack(NAME, self.id_of(item), consumer)
            self.model.ack(entry)

    @precondition(lambda self: self.model.log.items)
    @rule(
        pick=picks,
        consumer=st.sampled_from([None, None, None, *CONSUMERS]),
        requeue=st.sampled_from([True, True, False]),
        error=st.sampled_from([None, "bang", "out of cheese"]),
    )
    def nack(self, pick: int, consumer: str | None, requeue: bool, error: str | None) -> None:
        now = self.begin()
        item = self.chosen(pick)
        entry, refusal = self.held(item, consumer)
        if entry is None:
            with pytest.raises(refusal):
                self.manager.nack(NAME, self.id_of(item), requeue, consumer_id=consumer, error=error)
            return
        result = self.manager.nack(NAME, self.id_of(item), requeue, consumer_id=consumer, error=error)
        self.model.nack([entry], now, requeue=requeue, error=error)
        assert result.success
        assert result.action == ("requeued" if item.offset in self.model.entries else "dead_lettered")

    @precondition(lambda self: self.model.log.items)
    @rule(pick=picks, seconds=st.sampled_from([1, 10, 100]))
    def extend(self, pick: int, seconds: int) -> None:
        now = self.begin()
        item = self.chosen(pick)
        entry, refusal = self.held(item, None)
        if entry is None:
            with pytest.raises(refusal):
                self.manager.extend(NAME, self.id_of(item), seconds)
        else:
            self.manager.extend(NAME, self.id_of(item), seconds)
            self.model.extend(entry, now + seconds * SECOND)

    @rule(consumer=st.sampled_from(CONSUMERS))
    def release_consumer(self, consumer: str) -> None:
        self.begin()
        if consumer in self.model.consumers:
            assert self.manager.release_consumer(NAME, consumer) == self.model.release(consumer)
        else:
            with pytest.raises(ConsumerNotFound):
                self.manager.release_consumer(NAME, consumer)

    @rule(seconds=st.sampled_from(STEPS), is_looking=st.booleans())
    def advance(self, seconds: float, is_looking: bool) -> None:
        """Time passes. Without a look afterwards the next command is the first to notice."""
        self.clock.advance(seconds)
        self.is_looking = is_looking

    @rule(paused=st.booleans())
    def pause(self, paused: bool) -> None:
        self.begin()
        (self.manager.pause if paused else self.manager.resume)(NAME)
        self.model.paused = paused

    @rule()
    def purge(self) -> None:
        self.begin()
        assert self.manager.purge(NAME) == self.model.purge()

    @rule(limit=st.sampled_from([None, 1, 2]), reason=st.sampled_from([None, "ttl_expired", "max_retries_exceeded"]))
    def redrive(self, limit: int | None, reason: str | None) -> None:
        self.begin()
        letters = [letter.item for letter in self.model.dead if reason is None or letter.reason == reason][:limit]
        where = None if reason is None else lambda letter: letter.reason == reason
        assert self.manager.redrive(NAME, where, limit) == len(letters)
        for item in letters:
            self.model.redrive(item)

    @precondition(lambda self: self.model.log.items)
    @rule(pick=picks)
    def retry_dead_letter(self, pick: int) -> None:
        self.begin()
        dead = [letter.item for letter in self.model.dead] + [*self.model.unlisted.values()]
        item = dead[pick % len(dead)] if dead and pick % 4 else self.chosen(pick)
        if item in dead:
            self.manager.retry_dead_letter(NAME, self.id_of(item))
            self.model.redrive(item)
        else:
            with pytest.raises(MessageNotFound):
                self.manager.retry_dead_letter(NAME, self.id_of(item))

    @rule()
    def purge_dead_letters(self) -> None:
        self.begin()
        assert self.manager.purge_dead_letters(NAME) == self.model.purge_dead()

    @precondition(lambda self: self.steps > 15)
    @rule(setting=settings_of_a_queue())
    def create_anew(self, setting: QueueSetting) -> None:
        self.begin()
        self.manager.delete(NAME)
        assert self.manager.list() == []
        self.create(setting, [])
        assert self.manager.list() == [NAME]

    # ── what must be true after every step ───────────────────────────────────────────────────────────────────────────────

    @invariant()
    def agrees_with_the_model(self) -> None:
        self.steps += 1
        self.was_looking, self.is_looking = self.is_looking, True
        if self.was_looking and self.manager.exists(NAME):
            self.compare(self.begin())

    def compare(self, now: int) -> None:
        self.check_stats(now)
        upcoming, first = self.model.upcoming(now), self.manager.peek(NAME)
        assert (first is None) == (not upcoming)
        if first is not None:
            assert self.located(first.message_id) is upcoming[0].item
            assert first.retry_count == upcoming[0].attempts
            self.check_content(first, upcoming[0].item)
        letters = self.manager.dead_letters(NAME)
        assert [
            (self.located(one.message.message_id).offset, one.reason, one.original_queue, one.dead_lettered_at, one.attempts)
            for one in letters
        ] == [(dead.item.offset, dead.reason, NAME, instant(dead.at), dead.attempts) for dead in self.model.dead]
        for one, dead in zip(letters, self.model.dead, strict=True):
            assert one.last_error == dead.error
            assert one.message.retry_count == max(dead.attempts - 1, 0)
            self.check_content(one.message, dead.item)

    def check_stats(self, now: int) -> None:
        model = self.model
        stats = self.manager.stats(NAME)
        assert stats == QueueStats(
            queue=NAME,
            depth=model.ready(now),
            consumers=len(model.consumers),
            published_total=len(model.log.items),
            consumed_total=model.delivered,
            acked_total=model.acked,
            nacked_total=model.nacked,
            dead_lettered_total=model.dead_lettered,
            avg_wait_time_ms=sum(model.waits) / len(model.waits) / 1000 if model.waits else 0.0,
            oldest_message_age_secs=model.oldest_age(now),
            delayed=model.delayed(now),
            in_flight=len(model.leased()),
            in_flight_bytes=model.in_flight_bytes,
            backlog_bytes=model.size,
            expired_total=model.expired,
            dead_letters=len(model.dead),
            dead_letters_evicted_total=model.evicted,
            ttl_expired_total=model.ttl_expired,
            discarded_total=model.discarded,
            paused=model.paused,
        )

    def check_content(self, message: QueueMessage, item: Item) -> None:
        draft = item.draft
        limit = draft.max_attempts or self.model.rules.max_attempts or 1
        assert (message.payload, message.headers, message.priority, message.max_retries, message.created_at) == (
            draft.data,
            draft.attributes,
            draft.priority,
            limit - 1,
            instant(item.at),
        )

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    def begin(self) -> int:
        """Start a step: in the model, too, whatever became due has happened."""
        now = self.clock.now()
        self.model.tick(now)
        return now

    def chosen(self, pick: int) -> Item:
        """Mostly a message that is held, sometimes any."""
        held = [entry.item for entry in self.model.leased()]
        items = held if held and pick % 4 else self.model.log.items
        return items[pick // 4 % len(items)]

    def held(self, item: Item, consumer: str | None) -> tuple[Entry | None, type[PenstockError]]:
        """The entry that a consumer may settle, or the error that says why not."""
        entry = self.model.entries.get(item.offset)
        if entry is not None and entry.deadline is not None:
            return (entry, PenstockError) if consumer in {None, entry.consumer} else (None, ConsumerNotFound)
        dead = next((letter for letter in self.model.dead if letter.item is item), None)
        cause = entry.cause if entry is not None else dead.cause if dead is not None else None
        return None, AckDeadlineExceeded if cause == "expired" else MessageNotFound

    def located(self, text: str) -> Item:
        """The item that a message id names."""
        place = parse_message_id(text)
        assert place is not None
        at, stream, offset = place
        log = self.model.log
        log.stream = stream if log.stream is None else log.stream
        assert (log.stream, log.items[offset].at) == (stream, at)
        return log.items[offset]

    def id_of(self, item: Item) -> str:
        assert self.model.log.stream is not None, "every published message was seen"
        return message_id(item.at, self.model.log.stream, item.offset)


TestQueuesInMemory = patience(QueueMachine.TestCase)
TestQueuesInMemory.settings = effort(3)
