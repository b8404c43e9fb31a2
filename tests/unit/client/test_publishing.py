"""A message is checked where it is published, and made of plain values; so are the options of publishing."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import Any

import msgspec
import pytest

from penstock import Message, PubSub
from penstock.client.core.batching import BatchLimits
from penstock.client.options import OnLimit, PublisherFlowControl, PublishOptions
from penstock.client.publishing import json_bytes, outgoing
from penstock.errors import InvalidArgument, InvalidPriority
from penstock.testing import ManualClock
from penstock.values.message import Batch, accept, summarize

LARGEST = 10 * 1024 * 1024


class Word(StrEnum):
    KEY = "k"


class Number(IntEnum):
    NINE = 9


def test_what_no_broker_would_take_is_refused(subtests: pytest.Subtests) -> None:
    rows: list[tuple[dict[str, Any], str]] = [
        ({"data": "text"}, "Message data must be bytes, not str"),
        ({"data": None}, "Message data must be bytes"),
        ({"data": 7}, "Message data must be bytes"),
        ({"data": {"a": 1}}, "Message data must be bytes"),
        ({"data": b""}, "is empty"),
        ({"data": b"", "attributes": {}}, "is empty"),
        ({"data": b"x" * (LARGEST + 1)}, "exceeds maximum of 10 MiB"),
        ({"data": b"x" * LARGEST, "ordering_key": "k"}, "exceeds maximum of 10 MiB"),
        ({"attributes": ["a"]}, "mapping"),
        ({"attributes": "a"}, "mapping"),
        ({"attributes": 0}, "mapping"),
        ({"attributes": {"a": 1}}, "a string"),
        ({"attributes": {1: "a"}}, "non-empty string"),
        ({"attributes": {"": "a"}}, "non-empty string"),
        ({"attributes": {"googclient": "a"}}, "reserved"),
        ({"attributes": {"k" * 257: "a"}}, "at most 256"),
        ({"attributes": {"k": "é" * 513}}, "at most 1024"),
        ({"attributes": {"k": "\ud800"}}, "UTF-8"),
        ({"ordering_key": "k" * 1025}, "at most 1024"),
        ({"ordering_key": "é" * 513}, "at most 1024"),
        ({"ordering_key": b"k"}, "a string"),
        ({"ordering_key": None}, "a string"),
        ({"ordering_key": "\ud800"}, "UTF-8"),
        ({"ttl": -1}, "ttl"),
        ({"ttl": 0}, "ttl"),
        ({"ttl": "1"}, "ttl"),
        ({"ttl": float("nan")}, "ttl"),
        ({"deliver_at": datetime(2026, 1, 1)}, "time zone"),  # noqa: DTZ001  # that it has none is the point
        ({"deliver_at": "tomorrow"}, "deliver_at"),
        ({"producer_id": "p"}, "sequence"),
        ({"sequence": 1}, "producer_id"),
        ({"producer_id": "", "sequence": 1}, "producer_id"),
        ({"producer_id": "p", "sequence": -1}, "sequence"),
        ({"producer_id": "p", "sequence": True}, "sequence"),
    ]
    for arguments, problem in rows:
        with subtests.test(arguments=arguments, problem=problem), pytest.raises(InvalidArgument, match=problem):
            outgoing(**{"data": b"x", **arguments})


def test_a_priority_is_a_whole_number_from_0_to_9(subtests: pytest.Subtests) -> None:
    rows: list[Any] = [-1, 10, "5", True, 5.0, None]
    for priority in rows:
        with subtests.test(priority=priority), pytest.raises(InvalidPriority):
            outgoing(b"x", priority=priority)


def test_a_refusal_says_what_to_do() -> None:
    with pytest.raises(InvalidArgument) as text:
        outgoing("text")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument) as value:
        outgoing({"a": 1})  # type: ignore[arg-type]

    assert "encode" in (text.value.hint or "")
    assert "publish_json" in (value.value.hint or "")


def test_what_a_broker_takes_it_takes_from_the_wire_as_well(subtests: pytest.Subtests) -> None:
    rows: list[dict[str, Any]] = [
        {"data": b"x" * LARGEST},
        {"data": b"", "attributes": {"a": ""}},
        {"data": bytearray(b"x"), "attributes": MappingProxyType({"a": "b"})},
        {"data": memoryview(b"x"), "attributes": OrderedDict(a="b"), "ordering_key": Word.KEY},
        {"data": b"x", "ttl": timedelta(milliseconds=1500), "deliver_at": datetime(2030, 1, 1, 0, 0, 0, 123457, tzinfo=UTC)},
        {"data": b"x", "ttl": 7, "deliver_at": 1_900_000_000, "priority": Number.NINE},
        {"data": b"x", "producer_id": Word.KEY, "sequence": Number.NINE},
    ]
    for arguments in rows:
        with subtests.test(arguments=arguments):
            message, size = outgoing(**arguments)
            carried = msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=Message)

            before = accept([Message(**{**arguments, "attributes": arguments.get("attributes") or {}})], now=0)
            after = accept([carried], now=0)
            assert after == before
            assert size == before.size


def test_for_a_broker_of_this_process_a_message_is_made_as_that_broker_would_accept_it(subtests: pytest.Subtests) -> None:
    clock = ManualClock()
    rows: list[dict[str, Any]] = [
        {"data": b"x"},
        {"data": bytearray(b"x"), "attributes": MappingProxyType({"a": "b"}), "ordering_key": Word.KEY, "priority": Number.NINE},
        {"data": b"x", "ttl": timedelta(milliseconds=1500)},
        {"data": b"x", "deliver_at": datetime(2030, 1, 1, tzinfo=UTC)},
        {"data": b"x", "ttl": 7, "producer_id": Word.KEY, "sequence": Number.NINE},
    ]
    for arguments in rows:
        with subtests.test(arguments=arguments):
            made, size = outgoing(**arguments, clock=clock)
            accepted = accept([Message(**arguments)], now=clock.now())
            for message in accepted.messages:
                message.publish_at = 0  # the commit sets it

            assert (made if isinstance(made, Batch) else summarize([made])) == accepted  # type: ignore[list-item]
            assert size == accepted.size


def test_an_embedded_broker_does_not_check_again_what_its_client_has_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Batch:
        raise AssertionError("the message was checked twice")

    async def main() -> None:
        async with PubSub() as pubsub:
            topic = await pubsub.topic("orders").create()
            subscription = await topic.subscription("billing").create()
            monkeypatch.setattr("penstock.broker.publish.accept", refuse)
            await topic.publish_message(b"one", {"a": "b"}, "key")
            await topic.publish_message(b"two", producer_id="p", sequence=1)
            await topic.publish_many([Message(b"three"), Message(b"four", producer_id="p", sequence=2)])
            with pytest.raises(InvalidArgument, match=r"^attributes is 7, "):
                _ = topic.publish_message(b"x", 7)  # type: ignore[arg-type]  # at once: nothing is awaited
            assert [one.data for one in await subscription.pull(10, wait=5)] == [b"one", b"two", b"three", b"four"]

    asyncio.run(main())


def test_attributes_are_copied() -> None:
    attributes = {"a": "b"}
    message, _ = outgoing(b"x", attributes)
    attributes["a"] = "c"

    assert isinstance(message, Message)
    assert message.attributes == {"a": "b"}


@dataclass
class Order:
    number: int
    at: datetime


def test_json(subtests: pytest.Subtests) -> None:
    rows: list[tuple[object, str]] = [
        (None, "null"),
        ({"a": [1, 2.5, "ü", True]}, '{"a":[1,2.5,"ü",true]}'),
        (Order(7, datetime(2026, 1, 1, tzinfo=UTC)), '{"number":7,"at":"2026-01-01T00:00:00Z"}'),
    ]
    for value, text in rows:
        with subtests.test(value=value, text=text):
            assert json_bytes(value) == text.encode()


def recursive() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def test_what_json_cannot_hold_is_refused(subtests: pytest.Subtests) -> None:
    rows: list[object] = [float("nan"), float("inf"), object(), {"a": object()}, {(1, 2): 3}, "\ud800", recursive()]
    for value in rows:
        with subtests.test(value=value), pytest.raises(InvalidArgument, match="JSON"):
            json_bytes(value)


def test_json_is_read_by_everybody() -> None:
    assert json.loads(json_bytes({"a": {"b": [None, -1]}})) == {"a": {"b": [None, -1]}}


# ── options ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_bad_options_are_refused(subtests: pytest.Subtests) -> None:
    rows: list[dict[str, Any]] = [
        {"max_messages": 0},
        {"max_messages": 1_001},
        {"max_messages": 1.5},
        {"max_messages": True},
        {"max_bytes": 0},
        {"max_bytes": LARGEST + 1},
        {"max_seconds": -1},
        {"max_seconds": 61},
        {"max_seconds": "1"},
        {"give_up_seconds": 0},
        {"give_up_seconds": float("inf")},
        {"flow_control": {"max_outstanding_messages": 1}},
        {"flow_control": None},
    ]
    for options in rows:
        with subtests.test(options=options), pytest.raises(InvalidArgument, match=next(iter(options))):
            PublishOptions(**options)


def test_bad_flow_control_is_refused(subtests: pytest.Subtests) -> None:
    rows: list[dict[str, Any]] = [
        {"max_outstanding_messages": 0},
        {"max_outstanding_bytes": 0},
        {"max_outstanding_bytes": "1"},
        {"on_limit": "drop"},
    ]
    for limits in rows:
        with subtests.test(limits=limits), pytest.raises(InvalidArgument, match=next(iter(limits))):
            PublisherFlowControl(**limits)


def test_options_may_be_given_as_a_timedelta() -> None:
    options = PublishOptions(max_seconds=timedelta(seconds=1), give_up_seconds=timedelta(minutes=1))  # type: ignore[arg-type]

    assert (options.max_seconds, options.give_up_seconds) == (1.0, 60.0)


def test_options_become_the_limits_of_batches(subtests: pytest.Subtests) -> None:
    rows: list[tuple[PublisherFlowControl, BatchLimits]] = [
        (PublisherFlowControl(), BatchLimits(100, 1 << 20, 10_000, 10_000, 100 << 20)),
        (PublisherFlowControl(on_limit=OnLimit.IGNORE, max_outstanding_messages=1), BatchLimits(100, 1 << 20, 10_000)),
        (
            PublisherFlowControl(max_outstanding_messages=5, max_outstanding_bytes=6, on_limit=OnLimit.ERROR),
            BatchLimits(5, 6, 10_000, 5, 6, True),
        ),
    ]
    for flow_control, limits in rows:
        with subtests.test(flow_control=flow_control, limits=limits):
            assert PublishOptions(flow_control=flow_control).limits == limits
