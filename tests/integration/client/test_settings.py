"""Settings of topics and subscriptions: compared when they exist already, and changed by `update`."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Coroutine
from typing import Any

import pytest

from penstock import DeadLetterPolicy, PubSub, RetryPolicy, SubscriptionOptions
from penstock.errors import AlreadyExists, DeadLetterCycle, FailedPrecondition, InvalidArgument, SubscriptionNotFound
from penstock.testing.server import LocalServer
from tests.conformance.stream_drivers import Place, in_loop

AVRO = '{"type":"record","name":"R","fields":[{"name":"n","type":"int"}]}'


@in_loop
async def test_a_topic_that_exists_is_compared_by_the_options_that_are_given(place: Place) -> None:
    async with place:
        topic = await place.pubsub.topic("orders").create(retention=3_600)
        await topic.create(exist_ok=True)
        await topic.create(retention=3_600, exist_ok=True)

        with pytest.raises(AlreadyExists, match=r"retention is 3600\.0, not 60") as caught:
            await topic.create(retention=60, exist_ok=True)

        assert "update" in str(caught.value.hint)
        assert (await topic.settings()).retention == 3_600


@in_loop
async def test_a_topic_gets_another_retention_and_schema(place: Place) -> None:
    async with place:
        pubsub = place.pubsub
        topic = await pubsub.topic("orders").create()
        await pubsub.schema("numbers").create("AVRO", AVRO)
        await pubsub.schema("numbers").create("AVRO", AVRO, exist_ok=True)
        with pytest.raises(AlreadyExists, match="definition is"):
            await pubsub.schema("numbers").create("AVRO", '{"type":"record","name":"S","fields":[]}', exist_ok=True)

        assert (await topic.update(retention=7_200)).retention == 7_200
        found = await topic.update(schema="numbers")
        assert (found.schema, found.encoding, found.retention) == ("numbers", "JSON", 7_200)
        await topic.create(schema="numbers", exist_ok=True)
        with pytest.raises(AlreadyExists, match="encoding is 'JSON', not 'BINARY'"):
            await topic.create(schema="numbers", encoding="BINARY", exist_ok=True)
        with pytest.raises(InvalidArgument):
            await topic.publish_message(b"no number")

        await topic.update(schema=None, retention=None)
        assert await topic.publish_message(b"no number")
        assert (await topic.settings()).retention is None
        refused: list[dict[str, Any]] = [{}, {"labels": {}}, {"encoding": "JSON"}, {"retention": 0}]
        for wrong in refused:
            with pytest.raises(InvalidArgument):
                await topic.update(**wrong)


@in_loop
async def test_a_subscription_that_exists_is_compared_and_changed(place: Place) -> None:
    async with place:
        pubsub = place.pubsub
        topic, other = await pubsub.topic("orders").create(), await pubsub.topic("letters").create()
        subscription = await topic.subscription("billing", retry_policy=RetryPolicy(1, 60), ack_deadline=5).create()
        await subscription.create(exist_ok=True)
        await subscription.create(SubscriptionOptions(), exist_ok=True)
        with pytest.raises(AlreadyExists, match="message_ordering is False, not True"):
            await subscription.create(SubscriptionOptions(message_ordering=True), exist_ok=True)
        with pytest.raises(AlreadyExists, match="topic is 'orders', not 'letters'"):
            await other.subscription("billing").create(exist_ok=True)

        found = await subscription.update(ack_deadline_seconds=30, dead_letter_policy=DeadLetterPolicy("letters", 7))

        assert found.options.ack_deadline_seconds == 30
        assert found.options.dead_letter_policy == DeadLetterPolicy("letters", 7)
        assert found.options.retry_policy == RetryPolicy(1, 60)
        for wrong in ({"filter": "attributes:x"}, {"message_ordering": True}, {"ack_deadline_seconds": 5}):
            with pytest.raises(InvalidArgument):
                await subscription.update(**wrong)
        with pytest.raises(DeadLetterCycle, match="orders -> orders"):
            await subscription.update(dead_letter_policy=DeadLetterPolicy("orders"))
        with pytest.raises(SubscriptionNotFound):
            await pubsub.subscription("missing").update(exactly_once=True)
        assert (await subscription.metadata()).options == found.options


@in_loop
async def test_nothing_has_an_impossible_name(place: Place, subtests: pytest.Subtests) -> None:
    async with place:
        pubsub = place.pubsub
        for name in ("", "a\x00b", "line\nbreak", "x" * 5_000, "\ud800"):
            with subtests.test(name=ascii(name)[:20]):
                assert not await pubsub.topic(name).exists()
                assert not await pubsub.subscription(name).exists()
                assert not await pubsub.queue(name).exists()
                assert not await pubsub.schema(name).exists()
        for wrong in (None, 7, b"orders", ["orders"]):
            for make in (pubsub.topic, pubsub.subscription, pubsub.queue, pubsub.schema):
                with (
                    subtests.test(name=repr(wrong), make=make.__name__),
                    pytest.raises(InvalidArgument, match="expected a string"),
                ):
                    make(wrong)  # type: ignore[arg-type]


@in_loop
async def test_arguments_of_a_wrong_type_are_refused_by_name(place: Place, subtests: pytest.Subtests) -> None:
    async with place:
        wrong: Any = 5
        topic = place.pubsub.topic("orders")
        subscription, queue = topic.subscription("billing"), place.pubsub.queue("tasks")
        calls: tuple[Coroutine[Any, Any, object], ...] = (
            topic.create(schema=wrong),
            subscription.create(wrong),
            subscription.create_snapshot(wrong),
            subscription.seek(snapshot=wrong),
            queue.create(wrong),
            queue.publish_many(wrong),
            place.pubsub.delete_snapshot(wrong),
            place.pubsub.schema("numbers").get(wrong),
        )
        for number, call in enumerate(calls):
            with subtests.test(number=number), pytest.raises(InvalidArgument, match=r"is 5, expected|got `int`"):
                await call


@in_loop
async def test_what_has_settings_of_the_google_api_is_changed_there(shared_server: LocalServer, project: str) -> None:
    place = f"{shared_server.url}/v1/projects/{project}"
    _put(f"{place}/topics/orders", {"labels": {"team": "a"}})
    _put(f"{place}/subscriptions/billing", {"topic": f"projects/{project}/topics/orders"})
    async with PubSub(shared_server.url, project=project) as pubsub:
        with pytest.raises(FailedPrecondition, match="settings of the Google"):
            await pubsub.topic("orders").update(retention=3_600)
        with pytest.raises(FailedPrecondition, match="settings of the Google"):
            await pubsub.subscription("billing").update(ack_deadline_seconds=30)


def _put(url: str, body: object) -> None:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"}, method="PUT")
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 200
