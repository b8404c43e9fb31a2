"""A subscription that is created at an offset: one change, the same in memory, on disk and after a restart."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import Broker, Message, MessageQueue, SubscriptionOptions
from penstock.broker.log_view import BrokerLog
from penstock.broker.positions import subscribe_from
from penstock.errors import AlreadyExists, JournalUnavailable, TopicNotFound
from penstock.journal.core import events
from penstock.testing import ManualClock


@pytest.fixture(params=["memory", "disk"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    with Broker(data_dir=tmp_path if request.param == "disk" else None, clock=ManualClock()) as broker:
        yield broker


def topics_with(broker: Broker, count: int) -> MessageQueue:
    topics = MessageQueue(broker=broker)
    topics.register_topic("t")
    for number in range(count):
        topics.publish("t", [Message(b"%d" % number, {"odd": str(number % 2)})])
    return topics


def pulled(topics: MessageQueue, subscription: str = "s") -> list[bytes]:
    return [message.data for message in topics.pull(subscription, 100)]


@pytest.mark.parametrize(("start", "expected"), [(0, [b"0", b"1", b"2"]), (2, [b"2"]), (3, []), (9, [])])
def test_it_receives_everything_from_the_offset_on(broker: Broker, start: int, expected: list[bytes]) -> None:
    topics = topics_with(broker, 3)
    subscribe_from(broker, "s", "t", SubscriptionOptions(), start)
    topics.publish("t", [Message(b"later")])

    assert pulled(topics) == [*expected, b"later"]
    assert topics.stats("s").backlog == len(expected) + 1


def test_its_filter_applies_to_what_was_published_before(broker: Broker) -> None:
    topics = topics_with(broker, 6)
    subscribe_from(broker, "s", "t", SubscriptionOptions(filter='attributes.odd = "1"'), 2)

    assert pulled(topics) == [b"3", b"5"]


def test_it_is_one_event(broker: Broker) -> None:
    topics_with(broker, 3)
    broker.sync()
    before = BrokerLog(broker).event_range()[1]
    subscribe_from(broker, "s", "t", SubscriptionOptions(), 1)

    found = [event for _, event in broker.journal.read_events(before, BrokerLog(broker).event_range()[1])]
    assert [type(event) for event in found] == [events.QueueCreated]


def test_a_restart_finds_the_same(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path) as broker:
        topics = topics_with(broker, 4)
        subscribe_from(broker, "s", "t", SubscriptionOptions(filter='attributes.odd = "1"'), 1)
        (first,) = topics.pull("s", 1)
        topics.ack(first.ack_id)
    with Broker(data_dir=tmp_path) as broker:
        topics = MessageQueue(broker=broker)
        topics.publish("t", [Message(b"4", {"odd": "0"}), Message(b"5", {"odd": "1"})])

        assert pulled(topics) == [b"3", b"5"]


def test_it_starts_at_what_the_log_still_has(broker: Broker) -> None:
    topics = topics_with(broker, 3)
    with broker.lock:
        broker.catalog.topic("t").earliest = 2  # as retention leaves it
    subscribe_from(broker, "s", "t", SubscriptionOptions(), 0)

    assert pulled(topics) == [b"2"]


def test_nothing_is_left_of_one_that_could_not_be_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Broker(data_dir=tmp_path) as broker:
        topics = topics_with(broker, 3)
        with pytest.raises(TopicNotFound):
            subscribe_from(broker, "s", "missing", SubscriptionOptions(), 0)
        with monkeypatch.context() as patch:

            def broken(*_: object) -> None:
                raise JournalUnavailable(str(tmp_path), "cannot be read")

            patch.setattr(broker.journal, "summaries", broken)
            with pytest.raises(JournalUnavailable):
                subscribe_from(broker, "s", "t", SubscriptionOptions(), 0)
        assert not topics.subscription_exists("s")

        subscribe_from(broker, "s", "t", SubscriptionOptions(), 1)
        with pytest.raises(AlreadyExists):
            subscribe_from(broker, "s", "t", SubscriptionOptions(), 0)
        assert pulled(topics) == [b"1", b"2"]
