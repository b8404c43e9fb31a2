"""What people look at: a message's life in steps, a stream in bounded steps, raw counters, fates, and what a seek would do."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import Broker, Message, MessageQueue, QueueManager
from penstock.broker import backlog, counters, work_queues
from penstock.broker.browse import browse
from penstock.broker.history import LifeReader, first_event
from penstock.broker.positions import preview_seek
from penstock.durations import SECOND
from penstock.ids import parse_message_id
from penstock.testing import ManualClock


class ClockThatIsSet(ManualClock):
    """A clock that somebody may set back."""

    back = 0

    def now(self) -> int:
        return super().now() - self.back


@pytest.fixture(params=["memory", "disk"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    with Broker(data_dir=tmp_path / "data" if request.param == "disk" else None, clock=ClockThatIsSet()) as made:
        yield made


def stream_of(broker: Broker) -> dict[int, int]:
    return {one.number: one.stream for one in counters.queues(broker, counters.queue_numbers(broker))}


def test_a_life_is_read_from_its_publish_time_in_steps_that_lose_nothing(broker: Broker) -> None:
    clock, queues = broker.clock, QueueManager(broker=broker)
    assert isinstance(clock, ManualClock)
    queues.create("mail")
    for number in range(50):
        queues.publish("mail", number)
        clock.advance(60)
    name = queues.publish("mail", "this", priority=9).message_id
    queues.consume("mail", "w1")
    broker.sync()
    place = parse_message_id(name)
    assert place is not None
    assert first_event(broker.journal, place[0]) >= 50
    life = LifeReader(broker.journal, name)
    while not life.is_complete:
        life.step(stream_of(broker), 1)
    assert [row.kind for row in life.rows] == ["published", "leased"]
    queues.ack("mail", name)
    broker.sync()
    life.step(stream_of(broker), 1000)
    assert ([row.kind for row in life.rows], life.progress) == (["published", "leased", "acked"], 1.0)
    assert [row.kind for row in broker.history(name)] == [row.kind for row in life.rows]


def test_a_life_is_found_also_after_the_clock_was_set_back(broker: Broker) -> None:
    clock: Any = broker.clock
    queues = QueueManager(broker=broker)
    queues.create("mail")
    clock.advance(10_000)
    name = queues.publish("mail", "this").message_id
    clock.back = 9_000 * SECOND
    for number in range(20):
        queues.publish("mail", number)
    broker.sync()
    life = LifeReader(broker.journal, name)
    while not life.is_complete:
        life.step(stream_of(broker), 5)
    assert [row.kind for row in life.rows] == ["published"]
    assert [row.kind for row in broker.history(name)] == ["published"]


def test_a_stream_is_browsed_in_both_directions_and_in_bounded_steps(broker: Broker) -> None:
    topics = MessageQueue(broker=broker)
    topics.register_topic("t")
    topics.register_subscription("s", "t")
    for start in range(0, 1200, 100):
        topics.publish("t", [Message(str(number).encode() * 100) for number in range(start, start + 100)])
    [topic] = counters.topics(broker, counters.topic_numbers(broker))
    assert (topic.name, topic.published, topic.subscriptions) == ("t", 1200, 1)
    step = browse(broker.journal, topic.number, 0, 1200, newest_first=True, most=3, max_bytes=10**9)
    assert ([offset for offset, _ in step.found], step.is_end, step.to) == ([1199, 1198, 1197], False, 1197)
    step = browse(broker.journal, topic.number, 0, 1200, newest_first=False, most=2, max_bytes=10**9)
    assert [offset for offset, _ in step.found] == [0, 1]
    seen, stop = [], 1200
    while True:
        step = browse(
            broker.journal,
            topic.number,
            0,
            stop,
            newest_first=True,
            most=9,
            max_bytes=9_999,
            matches=lambda one: one.data[0] == 55,
        )
        seen += [offset for offset, _ in step.found]
        if step.is_end:
            break
        assert step.to is not None
        assert step.size <= 9_999 + 400
        stop = step.to
    assert seen == [number for number in range(1199, -1, -1) if str(number)[0] == "7"]
    assert browse(broker.journal, topic.number, 5, 5, newest_first=True, most=9, max_bytes=9).is_end


def test_counters_and_the_oldest_messages_of_many_queues(broker: Broker) -> None:
    clock, queues = broker.clock, QueueManager(broker=broker)
    assert isinstance(clock, ManualClock)
    for name in ("a", "b"):
        queues.create(name)
    first = queues.publish("a", "x", priority=2)
    clock.advance(5)
    queues.publish("a", "y", priority=7)
    numbers = counters.queue_numbers(broker)
    a, b = counters.queues(broker, [*numbers, 999])
    assert (a.name, a.ready, a.priorities, a.published, a.is_work_queue) == ("a", 2, ((7, 1), (2, 1)), 2, True)
    assert (b.backlog, b.priorities, b.consumers) == (0, (), 0)
    assert backlog.oldest_times(broker, numbers) == {a.number: clock.now() - 5_000_000}
    assert {number: one.message_id for number, one in backlog.oldest(broker, numbers).items()} == {a.number: first.message_id}
    queues.consume("a", "w1")
    [held] = backlog.held(broker, a.number, 10)
    assert (held.consumer, held.attempt) == ("w1", 1)
    assert backlog.held(broker, 999, 10) == []


def test_what_was_redriven_has_a_fate_and_can_be_taken_back(broker: Broker) -> None:
    queues = QueueManager(broker=broker)
    queues.create("mail")
    for number in range(4):
        queues.publish("mail", number)
        message = queues.consume("mail", "w1")
        assert message is not None
        queues.nack("mail", message.message_id, False, error=f"e{number}")
    [number] = counters.queue_numbers(broker)
    letters = work_queues.dead_letter_entries(broker, number)
    assert [letter.error for letter in letters] == ["e0", "e1", "e2", "e3"]
    queues.publish("mail", "newer")
    assert work_queues.waiting_after(broker, number, letters[-1].offset) == 1
    queues.redrive("mail", limit=3)
    taken = queues.consume("mail", "w1")
    failed = queues.consume("mail", "w1")
    assert taken is not None
    assert failed is not None
    queues.ack("mail", taken.message_id)
    queues.nack("mail", failed.message_id)
    offsets = [letter.offset for letter in letters]
    assert work_queues.fates(broker, number, offsets) == work_queues.Fates(2, 0, 1, 1)
    # One was acked, one was delivered and failed, one waits as it was redriven, and one never left.
    assert work_queues.take_back(broker, "mail", letters) == [letters[2].offset]
    assert {letter.last_error for letter in queues.dead_letters("mail")} == {"e2", "e3"}
    assert work_queues.fates(broker, 999, [0, 1]) == work_queues.Fates(0, 0, 0, 2)


def test_a_seek_is_previewed_without_moving_anything(broker: Broker) -> None:
    topics = MessageQueue(broker=broker)
    topics.register_topic("t")
    topics.register_subscription("s", "t")
    topics.publish("t", [Message(b"x")] * 10)
    for one in topics.pull("s", 4):
        topics.ack(one.ack_id)
    assert preview_seek(broker, "s", offset=0) == (0, 4)
    assert preview_seek(broker, "s", offset=10) == (6, 0)
    assert preview_seek(broker, "s", offset=6) == (2, 0)
    assert topics.stats("s").backlog == 6
    topics.seek("s", offset=0)
    assert topics.stats("s").backlog == 10
