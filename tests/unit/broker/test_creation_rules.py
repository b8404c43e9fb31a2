"""What cannot be created: names that cannot be read, and dead letters that would come back."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock import DeadLetterPolicy, MessageQueue, QueueManager, SubscriptionOptions
from penstock.broker.catalog import Catalog
from penstock.errors import DeadLetterCycle, InvalidArgument
from penstock.testing import ManualClock
from penstock.values.policy import subscription_policy


@pytest.fixture
def queue() -> MessageQueue:
    queue = MessageQueue(clock=ManualClock())
    for topic in "abc":
        queue.register_topic(topic)
    return queue


def letters(topic: str) -> SubscriptionOptions:
    return SubscriptionOptions(dead_letter_policy=DeadLetterPolicy(topic))


def test_dead_letters_do_not_return_to_their_own_topic(queue: MessageQueue) -> None:
    with pytest.raises(DeadLetterCycle, match="a -> a"):
        queue.register_subscription("s", "a", letters("a"))

    assert not queue.subscription_exists("s")


def test_nor_by_way_of_other_topics(queue: MessageQueue) -> None:
    queue.register_subscription("plain", "b")
    queue.register_subscription("s1", "a", letters("b"))
    queue.register_subscription("s2", "b", letters("c"))

    with pytest.raises(DeadLetterCycle, match="c -> a -> b -> c") as caught:
        queue.register_subscription("s3", "c", letters("a"))

    assert caught.value.topics == ["c", "a", "b", "c"]
    queue.register_subscription("s3", "c", letters("elsewhere"))
    queue.register_subscription("s4", "a", letters("c"))


def test_nor_by_an_update_but_other_settings_may_change(queue: MessageQueue) -> None:
    queue.register_subscription("s1", "a", letters("b"))
    queue.register_subscription("s2", "b", letters("c"))

    def update(name: str, target: str) -> Callable[[Catalog, int], object]:
        policy = subscription_policy(letters(target), durable=False)
        return lambda catalog, now: catalog.update_queue(catalog.subscription(name), policy, catalog.subscription(name).spec, now)

    with pytest.raises(DeadLetterCycle, match="b -> a -> b"):
        queue.broker.change(update("s2", "a"))  # type: ignore[arg-type]  # it returns the event
    queue.broker.change(update("s2", "c"))  # type: ignore[arg-type]  # likewise


@pytest.mark.parametrize("character", ["\x85", "\u2028", "\u202e", "\u200b", "\ufeff"], ids=ascii)
def test_a_new_name_has_no_characters_that_cannot_be_seen(queue: MessageQueue, character: str) -> None:
    name = f"orders{character}"
    manager = QueueManager(broker=queue.broker)
    queue.register_subscription("s", "a")
    creations: list[Callable[[], None]] = [
        lambda: queue.register_topic(name),
        lambda: queue.register_subscription(name, "a"),
        lambda: queue.create_snapshot(name, "s"),
        lambda: manager.create(name),
    ]
    for create in creations:
        with pytest.raises(InvalidArgument, match=rf"U\+{ord(character):04X}"):
            create()


def test_a_name_may_be_written_in_any_script(queue: MessageQueue) -> None:
    for name in ("заказы", "注文", "می‌خواهم", "👩‍🚀"):  # the joiners are part of the words
        queue.register_topic(name)
        assert queue.topic_exists(name)
