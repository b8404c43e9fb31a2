"""What the hub makes of messages in a log, whoever wrote them."""

from __future__ import annotations

import base64

import pytest

from penstock.hub.broker.stored_message import LogReader, data_of, to_publish
from penstock.hub.core.messages import Message, Position
from penstock.hub.core.names import EVERYONE, HUB
from penstock.hub.core.rules import Binding
from penstock.values.message import StoredMessage, accept

ALICE = "@(browser/alice)"
SERVICE = "@(penstock/orders)"


def found(*, pattern: str = "orders/#", stream: str = "orders", **attributes: str) -> Message | None:
    given = {name.replace("_", "."): value for name, value in attributes.items()}
    stored = StoredMessage(7, b"1", given or None, "", 5, 1)
    return LogReader(Binding(pattern, stream, epoch="e"), 1024).message(stored, 3, 9)


def test_a_message_of_the_hub_comes_back_as_it_was() -> None:
    message = Message(
        type="note", sender=ALICE, data=b'{"a": [1]}', message_id="id", published_at=7, expires_at=5_000, topic="orders/eu"
    )
    (stored,) = accept([to_publish(message)], 7).messages

    back = LogReader(Binding("orders/#", "orders", epoch="e"), 1024).message(stored, 3, 9)

    assert back is not None
    assert back.position == Position("e", 9)
    fields = ("type", "sender", "data", "message_id", "published_at", "expires_at", "topic")
    assert [getattr(back, name) for name in fields] == [getattr(message, name) for name in fields]


def test_a_message_of_a_service_that_says_nothing_gets_what_is_usual() -> None:
    assert found() == Message(
        type="message",
        sender=SERVICE,
        data=b"1",
        message_id="00000000000007" + "000003" + "0000000009",
        published_at=7,
        topic="orders",
        position=Position("e", 9),
    )


def test_attributes_say_what_a_message_is(subtests: pytest.Subtests) -> None:
    rows: list[tuple[dict[str, str], str, object]] = [
        ({"hub_type": "order:new", "type": "other"}, "type", "order:new"),
        ({"type": "order:new"}, "type", "order:new"),
        ({"hub_type": "", "type": "order:new"}, "type", "order:new"),
        ({"hub_type": "x" * 257}, "type", "message"),
        ({"hub_type": "hub:unregistered", "type": "order:new"}, "type", "order:new"),
        ({"type": "hub:error"}, "type", "message"),
        ({"hub_from": ALICE}, "sender", ALICE),
        ({"hub_from": "alice"}, "sender", SERVICE),
        ({"hub_from": HUB}, "sender", SERVICE),
        ({"hub_from": EVERYONE}, "sender", SERVICE),
        ({"hub_from": '@(a/b)","to":"x'}, "sender", SERVICE),
        ({"hub_topic": "orders/eu"}, "topic", "orders/eu"),
        ({"hub_id": "mine"}, "message_id", "mine"),
        ({"hub_expires": "1767225600000"}, "expires_at", 1_767_225_600_000_000),
        ({"hub_expires": "soon"}, "expires_at", None),
        ({"hub_expires": "-1"}, "expires_at", None),
        ({"hub_expires": "²"}, "expires_at", None),
        ({"hub_expires": "9" * 5_000}, "expires_at", None),
    ]
    for attributes, field, wanted in rows:
        with subtests.test(attributes=attributes):
            message = found(**attributes)
            assert message is not None
            assert getattr(message, field) == wanted


def test_a_topic_that_the_binding_does_not_cover_is_passed_over(subtests: pytest.Subtests) -> None:
    rows: list[str] = ["elsewhere", "orders#", "orders/#", "orders/+", "", 'orders/"', "orders/" + "x" * 256, "ordersx"]
    for topic in rows:
        with subtests.test(topic=topic):
            assert found(hub_topic=topic) is None


def test_a_pattern_without_a_beginning_takes_only_what_says_its_topic() -> None:
    assert found(pattern="orders/+/new") is None
    message = found(pattern="orders/+/new", hub_topic="orders/eu/new")
    assert message is not None
    assert message.topic == "orders/eu/new"


def test_a_service_is_named_after_its_topic(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, str]] = [
        ("orders", SERVICE),
        ("My.Orders_EU%", "@(penstock/my-orders-eu)"),
        ("...", "@(penstock/topic)"),
        ("x" * 255, f"@(penstock/{'x' * 128})"),
    ]
    for stream, sender in rows:
        with subtests.test(stream=stream):
            message = found(stream=stream)
            assert message is not None
            assert message.sender == sender


def test_json_stays_as_it_is(subtests: pytest.Subtests) -> None:
    rows: list[bytes] = [b"1", b'"a"', b"null", b'{"a":{"b":[1,2]}}', '"\N{SNOWMAN}"'.encode(), b"[" * 64 + b"]" * 64]
    for data in rows:
        with subtests.test(data=data):
            assert data_of(data) == data


def test_space_round_json_goes() -> None:
    assert data_of(b'\n {"a": 1}\t') == b'{"a": 1}'


def test_what_is_no_json_or_too_deep_comes_as_base64(subtests: pytest.Subtests) -> None:
    rows: list[bytes] = [
        b"",
        b"plain text",
        b"\x00\xff",
        b'"\xff"',
        b'{"\xed\xa0\x80": 1}',
        b"{} {}",
        b"NaN",
        b'{"a":1',
        b"[" * 65 + b"]" * 65,
        b"[" * 100_000,
        b'"\x01"',
        b"'a'",
    ]
    for data in rows:
        with subtests.test(data=data):
            assert data_of(data) == b'{"base64":"%b"}' % base64.b64encode(data)
