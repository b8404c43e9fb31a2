"""The rules of topics and subscriptions hold for everybody who reaches the broker, or what has them is refused."""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock import Broker, Message, SubscriptionOptions
from penstock.access import ANYONE
from penstock.api.operations import Operations
from penstock.api.service import Service, embedded_service
from penstock.broker.subscription_rules import SubscriptionRules
from penstock.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    SchemaNotFound,
    TopicNotFound,
)
from penstock.google import messages
from penstock.google.core.push_endpoints import Endpoints
from penstock.google.publisher import Publisher
from penstock.google.resources import Resources
from penstock.google.subscriber import Subscriber
from penstock.testing import ManualClock
from penstock.values.stored_forms import subscription_form
from penstock.values.subscription import SubscriptionSpec
from penstock.wire.frames import Limits
from tests.unit.api.feed_stand import Basket

AVRO = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]}'
WIDER = AVRO.replace("]}", ', {"name": "n", "type": "int", "default": 0}]}')
PROTO = 'syntax = "proto3"; message Order { string id = 1; }'
SHOUT = "function f(message, metadata) { message.data = message.data.toUpperCase(); return message; }"
DROP = 'function f(message, metadata) { return message.data == "drop" ? null : message; }'


SUB = "projects/penstock/subscriptions/sub"
PUSH = messages.PushConfig(push_endpoint="https://example.com/push")


class GoogleServices:
    """The services of the Google Pub/Sub API."""

    def __init__(self, service: Service) -> None:
        self.resources = resources = Resources(service.aio, service.projects)
        self._publisher = Publisher(resources)
        rules = SubscriptionRules(resources.broker, resources.in_use)
        self._subscriber = Subscriber(resources, rules, Endpoints(["example.com"], public_only=False))

    async def create_topic(self, **fields: Any) -> None:
        await self._publisher.create_topic(messages.Topic(name="projects/penstock/topics/orders", **fields), ANYONE)

    async def create_subscription(self, **fields: Any) -> None:
        form = messages.Subscription(name=SUB, topic="projects/penstock/topics/orders", **fields)
        await self._subscriber.create_subscription(form, ANYONE)

    async def push(self) -> None:
        request = messages.ModifyPushConfigRequest(subscription=SUB, push_config=PUSH)
        await self._subscriber.modify_push_config(request, ANYONE)


def scenario(play: Callable[[Operations, GoogleServices], Coroutine[Any, Any, None]], broker: Broker | None = None) -> None:
    """Run a test on an embedded broker: its operations, and what the Google Pub/Sub API would do beside them."""

    async def run() -> None:
        inner = broker or Broker(clock=ManualClock())
        service = embedded_service(inner)
        try:
            async with asyncio.timeout(20):
                await play(Operations(service, ANYONE, "penstock"), GoogleServices(service))
        finally:
            service.close()
            service.aio.close()
            inner.close()

    asyncio.run(run())


def javascript(code: str) -> list[Any]:
    return [messages.MessageTransform(javascript_udf=messages.JavaScriptUDF(function_name="f", code=code))]


# ── schemas ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_schema_is_made_looked_at_changed_and_deleted() -> None:
    async def play(operations: Operations, _: GoogleServices) -> None:
        made = await operations.create_schema("order", "AVRO", AVRO)
        assert (made.name, made.kind, made.definition) == ("order", "AVRO", AVRO)
        assert await operations.get_schema("order") == made
        assert await operations.get_schema("projects/penstock/schemas/order") == made
        assert await operations.list_schemas() == [made]
        wider = await operations.commit_schema("order", WIDER)
        assert [one.revision for one in await operations.list_schema_revisions("order")] == [wider.revision, made.revision]
        assert (await operations.get_schema("order", made.revision)).definition == AVRO
        with pytest.raises(AlreadyExists):
            await operations.create_schema("order", "AVRO", AVRO)
        await operations.delete_schema("order")
        with pytest.raises(SchemaNotFound):
            await operations.get_schema("order")
        assert await operations.list_schemas() == []

    scenario(play)


def test_more_schemas_than_a_page_are_listed() -> None:
    async def play(operations: Operations, _: GoogleServices) -> None:
        for number in range(105):
            await operations.create_schema(f"order-{number:03}", "AVRO", AVRO)
        assert [one.name for one in await operations.list_schemas()] == [f"order-{number:03}" for number in range(105)]

    scenario(play)


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("create_schema", {"schema": "order", "kind": "XML", "definition": AVRO}),
    ("create_schema", {"schema": "order", "kind": "TYPE_UNSPECIFIED", "definition": AVRO}),
    ("create_schema", {"schema": "order", "kind": "AVRO", "definition": PROTO}),
    ("create_schema", {"schema": "order", "kind": "AVRO", "definition": ""}),
    ("create_schema", {"schema": "order", "kind": "AVRO", "definition": "\ud800"}),
    ("create_schema", {"schema": "order", "kind": "AVRO", "definition": " " * 400_000}),
    ("create_schema", {"schema": "o", "kind": "AVRO", "definition": AVRO}),
    ("create_schema", {"schema": "order@12345678", "kind": "AVRO", "definition": AVRO}),
    ("create_schema", {"schema": "a/b", "kind": "AVRO", "definition": AVRO}),
    ("create_schema", {"schema": "projects/p/topics/order", "kind": "AVRO", "definition": AVRO}),
    ("get_schema", {"schema": "known", "revision": "latest"}),
    ("get_schema", {"schema": "known@12345678"}),
    ("list_schema_revisions", {"schema": "known@12345678"}),
    ("commit_schema", {"schema": "known", "definition": '{"type": "record"'}),
    ("commit_schema", {"schema": "known", "definition": "\ud800"}),
    ("delete_schema", {"schema": "known@12345678"}),
    ("validate_schema", {"kind": "AVRO", "definition": "{"}),
    ("validate_schema", {"kind": "PROTOCOL_BUFFER", "definition": "message {"}),
    ("validate_message", {"schema": "known", "data": b"{}", "encoding": "JSON"}),
    ("validate_message", {"schema": "known", "data": b'{"id": "x"}', "encoding": "XML"}),
    ("validate_message", {"schema": "known", "data": b"\xff" * 20, "encoding": "BINARY"}),
    ("create_topic", {"topic": "orders", "schema": "known", "encoding": "YAML"}),
    ("create_topic", {"topic": "orders", "schema": "known", "retention": 1}),
    ("create_topic", {"topic": "o", "schema": "known"}),
    ("create_topic", {"topic": "orders", "schema": "known@12345678"}),
]


def test_what_is_wrong_about_schemas_is_refused(subtests: pytest.Subtests) -> None:
    async def play(operations: Operations, _: GoogleServices) -> None:
        await operations.create_schema("known", "AVRO", AVRO)
        for name, arguments in WRONG:
            with subtests.test(name, **arguments):
                with pytest.raises(InvalidArgument):
                    await getattr(operations, name)(**arguments)
                assert [one.name for one in await operations.list_schemas()] == ["known"]
                assert await operations.list_topics() == []

    scenario(play)


def test_what_a_schema_accepts_is_said_nothing_about() -> None:
    async def play(operations: Operations, _: GoogleServices) -> None:
        await operations.validate_schema("PROTOCOL_BUFFER", PROTO)
        await operations.create_schema("order", "PROTOCOL_BUFFER", PROTO)
        await operations.validate_message("order", b"\x0a\x01x", "BINARY")
        await operations.validate_message("order", b'{"id": "x"}', "JSON")

    scenario(play)


def test_a_topic_with_a_schema_takes_what_fits_and_refuses_the_rest() -> None:
    async def play(operations: Operations, api: GoogleServices) -> None:
        await operations.create_schema("order", "AVRO", AVRO)
        await operations.create_topic("orders", schema="order", retention=3_600)
        await operations.create_subscription("sub", "orders", SubscriptionOptions())
        with pytest.raises(InvalidArgument, match="schema"):
            await operations.publish("orders", [Message(b'{"id": "x"}'), Message(b"{}")])
        assert len(await operations.publish("orders", [Message(b'{"id": "x"}')])) == 1
        pulled = await operations.pull("sub", 10)
        [delivery] = pulled.deliveries
        assert delivery.message.attributes is not None
        assert delivery.message.attributes["googclient_schemaname"] == "projects/penstock/schemas/order"
        shown = api.resources.topic(api.resources.broker.catalog.topic("orders"))
        assert (shown.schema_settings.schema, shown.message_retention_duration.seconds) == (
            "projects/penstock/schemas/order",
            3_600,
        )
        await operations.delete_schema("order")
        with pytest.raises(FailedPrecondition, match="deleted"):
            await operations.publish("orders", [Message(b'{"id": "x"}')])

    scenario(play)


def test_a_topic_needs_a_schema_that_exists() -> None:
    async def play(operations: Operations, _: GoogleServices) -> None:
        with pytest.raises(SchemaNotFound):
            await operations.create_topic("orders", schema="order")
        with pytest.raises(TopicNotFound):
            await operations.get_topic("orders")

    scenario(play)


def test_a_publish_to_a_topic_with_a_schema_is_repeated_without_effect() -> None:
    async def play(operations: Operations, _: GoogleServices) -> None:
        await operations.create_schema("order", "AVRO", AVRO)
        await operations.create_topic("orders", schema="order")
        await operations.create_subscription("sub", "orders", SubscriptionOptions())
        batch = [Message(b'{"id": "%d"}' % number) for number in range(3)]
        first = await operations.publish("orders", batch, ("me", 1))
        assert await operations.publish("orders", batch, ("me", 1)) == first
        assert (await operations.subscription_stats("sub")).backlog == 3
        marked = [Message(b'{"id": "x"}', producer_id="me", sequence=number) for number in (7, 8)]
        once = await operations.publish("orders", marked)
        assert await operations.publish("orders", marked) == once
        assert (await operations.subscription_stats("sub")).backlog == 5

    scenario(play)


# ── transforms and push ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_transforms_of_a_topic_are_applied_and_what_they_drop_has_an_id_that_nothing_has() -> None:
    async def play(operations: Operations, api: GoogleServices) -> None:
        await api.create_topic(message_transforms=javascript(DROP))
        await operations.create_subscription("sub", "orders", SubscriptionOptions())
        batch = [Message(b"drop"), Message(b"keep"), Message(b"drop"), Message(b"too")]
        ids = await operations.publish("orders", batch, ("me", 1))
        assert [int(one, 16) == 0 for one in ids] == [True, False, True, False]
        assert await operations.publish("orders", batch, ("me", 1)) == ids
        assert [one.message.data for one in (await operations.pull("sub", 10)).deliveries] == [b"keep", b"too"]
        assert await operations.publish("orders", [Message(b"drop")]) == [f"{0:030x}"]

    scenario(play)


def test_the_transforms_of_a_subscription_are_applied_to_pulls_and_feeds() -> None:
    async def play(operations: Operations, api: GoogleServices) -> None:
        await api.create_topic()
        await api.create_subscription(message_transforms=javascript(SHOUT))
        await operations.publish("orders", [Message(b"a")])
        assert [one.message.data for one in (await operations.pull("sub", 10)).deliveries] == [b"A"]
        await operations.publish("orders", [Message(b"b")])
        basket = Basket()
        operations.open("sub", "me", Limits(10, 1_000, 60.0), basket, owner="one")
        await basket.filled.wait()
        assert basket.data == [b"B"]

    scenario(play)


def test_a_subscription_that_pushes_is_neither_pulled_nor_fed() -> None:
    async def play(operations: Operations, api: GoogleServices) -> None:
        await api.create_topic()
        await api.create_subscription(push_config=PUSH)
        with pytest.raises(FailedPrecondition, match="pushes"):
            await operations.pull("sub")
        with pytest.raises(FailedPrecondition, match="pushes"):
            operations.open("sub", "me", Limits(10, 1_000, 60.0), Basket(), owner="one")

    scenario(play)


def test_a_feed_ends_when_its_subscription_begins_to_push() -> None:
    async def play(operations: Operations, api: GoogleServices) -> None:
        await api.create_topic()
        await api.create_subscription()
        basket = Basket()
        operations.open("sub", "me", Limits(10, 1_000, 60.0), basket, owner="one")
        await api.push()
        await operations.publish("orders", [Message(b"a")])
        for _ in range(20):
            await asyncio.sleep(0)
        assert basket.data == []
        assert [type(error) for error in basket.ends] == [FailedPrecondition]

    scenario(play)


# ── where they cannot be loaded ──────────────────────────────────────────────────────────────────────────────────────────


def test_nothing_is_loaded_where_nothing_has_rules() -> None:
    program = """
import asyncio, sys
from penstock import Message, SubscriptionOptions
from penstock.client import PubSub

async def main():
    async with PubSub() as pubsub:
        await pubsub.topic("orders").create()
        await pubsub.topic("orders").subscription("sub").create()
        await pubsub.topic("orders").publish_message(b"x")
        assert len(await pubsub.subscription("sub").pull()) == 1

asyncio.run(main())
assert not {"google.protobuf", "grpc", "aiohttp", "penstock.google"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_without_protobuf_transforms_work_and_what_needs_a_schema_is_refused(tmp_path: Path) -> None:
    async def play(operations: Operations, api: GoogleServices) -> None:
        await api.create_topic(message_transforms=javascript(SHOUT))
        await api.create_subscription(push_config=PUSH)
        await operations.create_subscription("pulled", "orders", SubscriptionOptions())
        await operations.create_schema("order", "AVRO", AVRO)
        await operations.create_topic("checked", schema="order")

    scenario(play, Broker(data_dir=tmp_path))
    program = f"""
import asyncio, sys
sys.modules["google.protobuf"] = None
from penstock.client import PubSub
from penstock.errors import FailedPrecondition
from penstock.extras import how_to_install

async def refused(work):
    try:
        await work
    except FailedPrecondition as error:
        assert "protobuf" in str(error), error
        assert error.hint == how_to_install("server"), error.hint
    else:
        raise AssertionError("it was not refused")

async def main():
    async with PubSub(data_dir={str(tmp_path)!r}) as pubsub:
        await pubsub.topic("orders").publish_message(b"x")
        [message] = await pubsub.subscription("pulled").pull()
        assert message.data == b"X", message.data
        try:
            await pubsub.subscription("sub").pull()
        except FailedPrecondition as error:
            assert "pushes" in str(error), error
        else:
            raise AssertionError("it was not refused")
        assert [one.name for one in await pubsub.schemas()] == ["order"]
        await refused(pubsub.topic("checked").publish_message(b"x"))
        await refused(pubsub.schema("more").create("AVRO", "{{}}"))

asyncio.run(main())
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_subscription_says_what_it_asks_of_deliveries() -> None:
    spec = SubscriptionSpec("orders", SubscriptionOptions())
    plain = subscription_form(msgspec.msgpack.encode(spec))
    assert (plain.push_endpoint, plain.scripts) == ("", ())
    off = messages.MessageTransform(disabled=True, javascript_udf=messages.JavaScriptUDF(function_name="f", code=SHOUT))
    spec.form = messages.Subscription(push_config=PUSH, message_transforms=[off, *javascript(DROP)]).SerializeToString()
    form = subscription_form(msgspec.msgpack.encode(spec))
    assert form.push_endpoint == PUSH.push_endpoint
    assert [one.code for one in form.scripts] == [DROP]
