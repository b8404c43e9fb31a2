"""Values that look hostile and are not: at a limit, in disguise, or changed behind the broker's back."""

from __future__ import annotations

import enum
import sys
from collections import OrderedDict, UserDict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

import penstock
from penstock import Broker, MessageQueue, QueueManager
from penstock.testing import ManualClock
from tests.unit.hostile import MIB10, World, deep

# Any: some of what is handed over here is more, or less, than the types say.
Message: Any = penstock.Message
Options: Any = penstock.SubscriptionOptions
Config: Any = penstock.QueueConfig


class Text(str):
    """A str as a library may hand it over."""

    __slots__ = ()


class Number(int):
    """An int as a library may hand it over."""


class Real(float):
    """A float as a library may hand it over."""


class Blob(bytes):
    """Bytes as a library may hand them over."""


class Colour(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 8


class Shifting(OrderedDict[str, str]):
    """A mapping that says something else each time it is asked."""

    def items(self) -> Any:  # Any: a list is not an ItemsView, and works as one
        self["seen"] = str(len(self))
        return list(super().items())


@pytest.fixture(params=["durable", pytest.param("memory", marks=pytest.mark.long)])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path / "data" if request.param == "durable" else None)
    yield world
    world.broker.close()


def reopened(world: World) -> World:
    """The same world after a restart, where that means something."""
    if world.broker.is_durable:
        path = getattr(world.broker.journal, "path")  # noqa: B009  # the port does not promise one
        world.broker.close()
        world.broker = Broker(clock=world.clock, data_dir=path)
        world.mq, world.qm = MessageQueue(broker=world.broker), QueueManager(broker=world.broker)
    return world


MESSAGES = [
    Message(b"\0"),
    Message(b"", {"k": ""}),
    Message(b"x", {"k" * 256: "v" * 1024}),
    Message(b"x", {"é" * 128: "é" * 512}),
    Message(b"x", {"go": "v", "Goog": "v", "ogoog": "v", "\n\0": "\x7f"}),
    Message(b"x", {str(number): "v" for number in range(1_000)}),
    Message(b"x", ordering_key="k" * 1024),
    Message(b"x", ordering_key="\0\n\U0010ffff"),
    Message(b"x", priority=0),
    Message(b"x", priority=9),
    Message(b"x", ttl=86_400 * 365),
    Message(b"x", ttl=timedelta(microseconds=1)),
    Message(b"x", deliver_at=0),
    Message(b"x", deliver_at=datetime(1, 1, 1, tzinfo=UTC)),
    Message(b"x", deliver_at=datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=14)))),
    Message(b"x", producer_id="p" * 256, sequence=(1 << 63) - 1),
    Message(b"x", producer_id="p", sequence=0),
    Message(bytearray(b"x")),
    Message(memoryview(b"x")),
    Message(memoryview(b"x.y.")[::2]),
    Message(bytes(MIB10)),
    Message(bytes(MIB10 - 3), {"k": "v"}, "k"),
]


def test_a_message_at_the_limit_arrives_as_it_was(world: World, subtests: pytest.Subtests) -> None:
    ids = [world.mq.publish("scratch", [message])[0] for message in MESSAGES]

    arrived = {received.id: received for received in reopened(world).mq.pull("scratch", len(MESSAGES))}
    for message_id, message in zip(ids, MESSAGES, strict=True):
        with subtests.test(message=repr(message)[:60]):
            received = arrived[message_id]
            assert (received.data, received.attributes) == (bytes(message.data), dict(message.attributes))
            assert (received.ordering_key or "", received.priority) == (message.ordering_key, message.priority)


PAYLOADS: list[object] = [
    b"",
    "",
    None,
    True,
    False,
    0,
    -1,
    2**63,
    2**64,
    -(2**63),
    0.1,
    -0.0,
    1e308,
    [],
    {},
    {"": ""},
    "1",
    "null",
    b"\x00\xff",
    10**18,
    {"k": {"k": [1, 2.5, None, True, "é\U0001f600\0"]}},
    "é\U0001f600\0\u2028",
    deep(100),
    bytes(MIB10),
    "é" * (MIB10 // 2),
    bytearray(b"x"),
    memoryview(b"x"),
]


def test_decision_51_a_payload_comes_back_as_it_was_given(world: World, subtests: pytest.Subtests) -> None:
    for payload in PAYLOADS:
        world.qm.publish("scratch", payload)

    world = reopened(world)
    for payload in PAYLOADS:
        with subtests.test(payload=repr(payload)[:40]):
            task = world.qm.consume("scratch")
            world.qm.ack("scratch", task.message_id)
            expected = bytes(payload) if isinstance(payload, bytearray | memoryview) else payload
            assert (task.payload, type(task.payload)) == (expected, type(expected))


NAMES = ["n", "n" * 1024, "é" * 512, " ", "a/b:c*", "Ω\U0001f600", "goog", "penstock.x", "__class__"]


def test_a_strange_name_is_a_name(world: World, subtests: pytest.Subtests) -> None:
    for name in NAMES:
        world.mq.register_topic(name)
        world.mq.register_subscription(name, name)
        world.mq.create_snapshot(name, name)
        world.qm.create(name)
        world.mq.publish(name, [Message(b"x")])
        world.qm.publish(name, b"x")

    world = reopened(world)
    for name in NAMES:
        with subtests.test(name=name):
            assert world.mq.get_subscription(name).topic == name
            assert world.mq.pull(name)[0].data == b"x"
            assert world.qm.consume(name, name).payload == b"x"
            world.mq.seek(name, snapshot=name)
            assert world.mq.stats(name).ready == 1


DISGUISED: dict[str, Callable[..., object]] = {
    "a topic name": lambda w: w.mq.register_topic(Text("new")),
    "a topic name of an enum": lambda w: w.mq.register_topic(Colour.RED),
    "a subscription name": lambda w: w.mq.register_subscription(Text("new"), Text("orders")),
    "a queue name": lambda w: w.qm.create(Text("new")),
    "a snapshot name": lambda w: w.mq.create_snapshot(Text("new"), "billing"),
    "a filter": lambda w: w.mq.register_subscription("new", "orders", Options(filter=Text("attributes:k"))),
    "an overflow": lambda w: w.mq.register_subscription("new", "orders", Options(overflow=Text("reject"))),
    "a count": lambda w: w.mq.register_subscription("new", "orders", Options(max_messages=Number(5))),
    "a duration": lambda w: w.mq.register_subscription("new", "orders", Options(ack_deadline_seconds=Real(15))),
    "a depth": lambda w: w.qm.create("new", Config(max_depth=Number(5), default_priority=Level.HIGH)),
    "data": lambda w: w.mq.publish("scratch", [Message(Blob(b"x"))]),
    "an attribute": lambda w: w.mq.publish("scratch", [Message(b"x", {Text("k"): Text("v")})]),
    "an attribute of an enum": lambda w: w.mq.publish("scratch", [Message(b"x", {"k": Colour.RED})]),
    "an ordering key": lambda w: w.mq.publish("scratch", [Message(b"x", ordering_key=Text("k"))]),
    "a priority": lambda w: w.mq.publish("scratch", [Message(b"x", priority=Number(3))]),
    "a priority of an enum": lambda w: w.mq.publish("scratch", [Message(b"x", priority=Level.HIGH)]),
    "a producer": lambda w: w.mq.publish("scratch", [Message(b"x", producer_id=Text("p"), sequence=Number(1))]),
    "a ttl": lambda w: w.mq.publish("scratch", [Message(b"x", ttl=Real(5))]),
    "a mapping proxy": lambda w: w.mq.publish("scratch", [Message(b"x", MappingProxyType({"k": "v"}))]),
    "a user's dict": lambda w: w.mq.publish("scratch", [Message(b"x", UserDict({"k": "v"}))]),
    "a mapping that shifts": lambda w: w.mq.publish("scratch", [Message(b"x", Shifting(k="v"))]),
    "a tuple of messages": lambda w: w.mq.publish("scratch", (Message(b"x"),)),
    "a payload": lambda w: w.qm.publish("scratch", Text("x")),
    "a payload inside": lambda w: w.qm.publish("scratch", {"k": OrderedDict(k=Level.HIGH)}),
    "headers": lambda w: w.qm.publish("scratch", b"x", headers=OrderedDict({Text("k"): Text("v")})),
    "a priority of a queue": lambda w: w.qm.publish("scratch", b"x", priority=Level.HIGH, max_retries=Number(2)),
    "a consumer": lambda w: w.qm.consume("tasks", Text("w3"), ack_deadline=Real(5), prefetch=Number(2)),
    "a consumer that settles": lambda w: w.qm.ack("tasks", Text(w.held), Text("w1")),
    "an error": lambda w: w.qm.nack("tasks", w.held, error=Text("boom")),
    "an ack id": lambda w: w.mq.ack(Text(w.leased.ack_id)),
    "an offset": lambda w: w.mq.seek("billing", offset=Number(1)),
    "an extension": lambda w: w.mq.modify_ack_deadline(w.leased.ack_id, Real(5)),
}


def test_a_subclass_of_a_plain_type_is_taken_for_what_it_is(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for number, (what, call) in enumerate(DISGUISED.items()):
        with subtests.test(what):
            world = World(tmp_path / str(number))
            call(world)
            before = world.photograph()

            world = reopened(world)
            assert world.photograph() == before
            world.mq.seek("scratch", time=world.clock.time + timedelta(days=1))
            world.qm.purge("scratch")
            world.works()
            world.broker.close()


def test_what_is_changed_after_publish_or_after_delivery_changes_nothing_in_the_broker(world: World) -> None:
    data, attributes = bytearray(b"data"), {"k": "v"}
    message = Message(data, attributes)
    batch = [message]
    world.mq.publish("scratch", batch)
    payload, headers = {"k": ["v"]}, {"h": "v"}
    world.qm.publish("scratch", payload, headers=headers)
    data[:] = b"evil"
    attributes["k"] = attributes["new"] = "evil"
    batch.clear()
    payload["k"].append("evil")
    headers.clear()

    peeked = world.mq.peek("scratch")[0]
    peeked.attributes["k"] = "evil"
    next_task = world.qm.peek("scratch")
    next_task.payload.clear()
    next_task.headers["h"] = "evil"

    received, task = world.mq.pull("scratch")[0], world.qm.consume("scratch")
    assert (received.data, received.attributes) == (b"data", {"k": "v"})
    assert (task.payload, task.headers) == ({"k": ["v"]}, {"h": "v"})


def test_what_was_checked_when_it_was_built_cannot_be_changed_afterwards() -> None:
    for thing in (Message(b"x"), Options(), Config(), penstock.RetryPolicy(), penstock.FlowControl()):
        name = next(iter(getattr(thing, "__struct_fields__", None) or thing.__dataclass_fields__))

        with pytest.raises(AttributeError):
            setattr(thing, name, -1)


def test_ack_many_settles_what_is_valid_among_whatever_else_is_in_the_list(world: World) -> None:
    live = world.leased.ack_id
    hostile = [None, 7, b"x", "", live[::-1], world.settled_ack_id, world.expired_ack_id, "f" * 32, world.leased.id]

    failed = world.mq.ack_many([*hostile, live, live])

    assert failed == [*hostile, live]
    assert world.mq.stats("billing").in_flight == 0


def test_explain_knows_nothing_of_what_is_not_in_the_subscription(world: World) -> None:
    for unknown in (None, 7, "", "f" * 30, world.other_ids[0], world.ids[0], world.leased.ack_id, world.ids[3].upper() + "A"):
        assert world.mq.explain("billing", unknown) is None


def test_a_pull_for_more_than_there_is_gives_what_there_is(world: World) -> None:
    assert len(world.mq.pull("billing", 2**40)) == 2
    assert len(world.mq.peek("audit", sys.maxsize >> 24)) == 1


def test_time_far_away_is_time() -> None:
    for start in (0, datetime(2199, 1, 1, tzinfo=UTC)):
        with MessageQueue(clock=ManualClock(start)) as queue:
            queue.register_topic("t")
            queue.register_subscription("s", "t")
            queue.publish("t", [Message(b"now"), Message(b"later", deliver_at=datetime(9999, 12, 31, tzinfo=UTC))])

            assert [message.data for message in queue.pull("s", 10)] == [b"now"]
            assert queue.stats("s").delayed == 1
