"""The keywords that editors complete are the options that there are."""

import asyncio
import warnings
from dataclasses import fields
from typing import Any, get_type_hints

import pytest

from penstock import MessageQueue, PubSub, QueueConfig, QueueManager, SubscriberOptions, SubscriptionOptions, Worker
from penstock.client.options import StreamKeywords, SubscriptionKeywords
from penstock.errors import InvalidArgument
from penstock.values.keywords import QueueSettings, SubscriptionChanges


def names(cls: type) -> set[str]:
    return {field.name for field in fields(cls)}


def test_the_keywords_of_a_subscription_are_its_options() -> None:
    assert set(get_type_hints(StreamKeywords)) == names(SubscriberOptions)
    assert set(get_type_hints(SubscriptionKeywords)) == names(SubscriberOptions) | names(SubscriptionOptions)
    unchanging = {"filter", "message_ordering"}
    assert set(get_type_hints(SubscriptionChanges)) == names(SubscriptionOptions) - unchanging | {"ack_deadline"}


def test_the_keywords_of_a_queue_are_its_settings() -> None:
    assert set(get_type_hints(QueueSettings)) == names(QueueConfig) | {"ack_deadline"}


def test_the_keywords_have_the_types_of_the_options() -> None:
    for keywords, options in ((SubscriptionChanges, SubscriptionOptions), (QueueSettings, QueueConfig)):
        hints, types = get_type_hints(keywords), get_type_hints(options)
        assert {name: hints[name] for name in hints.keys() & types.keys()} == {
            name: types[name] for name in hints.keys() & types.keys()
        }


def test_ack_deadline_is_the_lease_of_a_queue_and_of_a_subscription() -> None:
    with QueueManager() as queues:
        queues.create("a", ack_deadline=45)
        queues.create("b", ack_deadline_secs=46)
        assert (queues.config("a").ack_deadline_secs, queues.config("b").ack_deadline_secs) == (45, 46)
        assert queues.update("a", ack_deadline=60).ack_deadline_secs == 60
        with pytest.raises(InvalidArgument, match="ack_deadline_secs is given together with ack_deadline"):
            queues.create("c", ack_deadline=1, ack_deadline_secs=1)
    with MessageQueue() as topics:
        topics.register_topic("orders")
        topics.register_subscription("billing", "orders")
        topics.update_subscription("billing", ack_deadline=90)
        topics.update_subscription("billing", ack_deadline_seconds=91)


async def of_the_client() -> list[Any]:
    async with PubSub() as pubsub:
        topic = await pubsub.topic("orders").create()
        billing = await topic.subscription("billing", ack_deadline=30).create()
        found = [(await billing.metadata()).options.ack_deadline_seconds]
        found.append((await billing.update(ack_deadline=40)).options.ack_deadline_seconds)
        queue = await pubsub.queue("mail").create(ack_deadline=50, exist_ok=True)
        await pubsub.queue("mail").create(ack_deadline=50, exist_ok=True)  # what is given is what is there
        found.append((await queue.config()).ack_deadline_secs)
        found.append((await queue.update(ack_deadline=55)).ack_deadline_secs)
        for held in (billing, queue):
            with pytest.warns(DeprecationWarning, match="use pause_delivery"):
                await held.hold()
            found.append((await held.stats()).paused)
            with pytest.warns(DeprecationWarning, match="use resume_delivery"):
                await held.release()
            found.append((await held.stats()).paused)
        return found


def test_the_client_takes_the_same_names_and_the_old_ones() -> None:
    assert asyncio.run(of_the_client()) == [30, 40, 50, 55, True, False, True, False]


def test_retries_of_a_task_is_deprecated() -> None:
    worker = Worker("http://127.0.0.1:1")
    with pytest.warns(DeprecationWarning, match="use max_retries"):
        old = worker.task("q", name="old", retries=4)(lambda: None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        new = worker.task("q", name="new", max_retries=4)(lambda: None)
    assert old.options.max_retries == new.options.max_retries == 4
    with pytest.raises(InvalidArgument, match="retries is given together with max_retries"):
        worker.task("q", name="both", max_retries=4, retries=4)
