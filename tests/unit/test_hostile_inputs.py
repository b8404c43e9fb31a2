"""A table of hostile calls of `MessageQueue`. Each is refused with the right words and leaves no trace.

The tables of `QueueManager` and of all settings are in `test_hostile_queue_inputs.py` and `test_hostile_settings.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidAckId,
    InvalidPriority,
    OutOfRange,
    PenstockError,
    SnapshotNotFound,
    SubscriptionFull,
    SubscriptionNotFound,
    TopicNotFound,
)
from tests.unit.hostile import MIB10, NAIVE, Hostile, Unshowable, World, deep, expect_refusals, refused

# Any: the point of this file is to hand over what the types forbid.
Message: Any = penstock.Message
DeadLetters: Any = penstock.DeadLetterPolicy

ARABIC_ZERO = "\u0660"  # which int() takes for a 0


class Longer(penstock.Message, frozen=True):
    extra: int = 0


def publish(*messages: object) -> Callable[[World], object]:
    return lambda world: world.mq.publish("orders", list(messages))


def _names() -> Iterator[Hostile]:
    """Names for new things, and names that must be those of existing ones."""
    makers: dict[str, tuple[str, Callable[..., object]]] = {
        "register_topic": ("topic_name", lambda w, name: w.mq.register_topic(name)),
        "register_subscription": ("subscription_name", lambda w, name: w.mq.register_subscription(name, "orders")),
        "register_subscription on": ("topic_name", lambda w, name: w.mq.register_subscription("new", name)),
        "create_snapshot": ("name", lambda w, name: w.mq.create_snapshot(name, "billing")),
        "dead letters to": ("dead_letter_policy.dead_letter_topic", lambda w, name: DeadLetters(name)),
    }
    bad: list[tuple[str, object, str]] = [
        ("None", None, "is None, expected a non-empty string"),
        ("a number", 7, "is 7, expected a non-empty string"),
        ("bytes", b"orders", "is b'orders', expected a non-empty string"),
        ("a list", ["orders"], "is ['orders'], expected a non-empty string"),
        ("nothing", "", "is '', expected a non-empty string"),
        ("a line break", "a\nb", "is 'a\\nb', expected a name without control characters"),
        ("a NUL", "a\0", "is 'a\\x00', expected a name without control characters"),
        ("a DEL", "a\x7f", "is 'a\\x7f', expected a name without control characters"),
        ("a lone surrogate", "a\ud800", "is 'a\\ud800', expected text that UTF-8 can encode"),
        ("1025 bytes", "n" * 1025, "is 1025 bytes long, expected at most 1024"),
        ("1026 bytes in 513 letters", "é" * 513, "is 1026 bytes long, expected at most 1024"),
        ("10 MiB", "n" * MIB10, f"is {MIB10} bytes long, expected at most 1024"),
    ]
    for verb, (argument, call) in makers.items():
        for title, name, fragment in bad:
            yield refused(f"{verb} {title}", lambda w, call=call, name=name: call(w, name), f"{argument} {fragment}")
    users: dict[str, tuple[Callable[..., object], type[PenstockError]]] = {
        "unregister_topic": (lambda w, name: w.mq.unregister_topic(name), TopicNotFound),
        "publish to": (lambda w, name: w.mq.publish(name, [Message(b"x")]), TopicNotFound),
        "unregister_subscription": (lambda w, name: w.mq.unregister_subscription(name), SubscriptionNotFound),
        "pull": (lambda w, name: w.mq.pull(name), SubscriptionNotFound),
        "peek": (lambda w, name: w.mq.peek(name), SubscriptionNotFound),
        "stats of": (lambda w, name: w.mq.stats(name), SubscriptionNotFound),
        "explain in": (lambda w, name: w.mq.explain(name, w.ids[0]), SubscriptionNotFound),
        "pause": (lambda w, name: w.mq.pause(name), SubscriptionNotFound),
        "resume": (lambda w, name: w.mq.resume(name), SubscriptionNotFound),
        "seek": (lambda w, name: w.mq.seek(name, offset=0), SubscriptionNotFound),
        "create_snapshot of": (lambda w, name: w.mq.create_snapshot("new", name), SubscriptionNotFound),
        "delete_snapshot": (lambda w, name: w.mq.delete_snapshot(name), SnapshotNotFound),
        "seek to snapshot": (lambda w, name: w.mq.seek("billing", snapshot=name), SnapshotNotFound),
    }
    for verb, (call, missing) in users.items():
        yield refused(f"{verb} unknown", lambda w, call=call: call(w, "Orders"), "not found: Orders", missing)
        for name in (["orders"], b"orders", 7):
            yield refused(
                f"{verb} {name!r}", lambda w, call=call, name=name: call(w, name), f"is {name!r}, expected a non-empty string"
            )
    asked: dict[str, Callable[..., object]] = {
        "topic_exists": lambda w, name: w.mq.topic_exists(name),
        "get_topic": lambda w, name: w.mq.get_topic(name),
        "subscription_exists": lambda w, name: w.mq.subscription_exists(name),
        "get_subscription": lambda w, name: w.mq.get_subscription(name),
        "get_subscriptions_for_topic": lambda w, name: w.mq.get_subscriptions_for_topic(name),
    }
    for verb, call in asked.items():
        yield refused(f"{verb} of a list", lambda w, call=call: call(w, ["orders"]), "is ['orders'], expected a string")
    yield refused("a topic twice", lambda w: w.mq.register_topic("orders"), "Topic already exists: orders", AlreadyExists)
    yield refused("a subscription twice", lambda w: w.mq.register_subscription("billing", "other"), "billing", AlreadyExists)
    yield refused(
        "a snapshot twice", lambda w: w.mq.create_snapshot("mark", "audit"), "Snapshot already exists: mark", AlreadyExists
    )
    yield refused(
        "a subscription to nothing", lambda w: w.mq.register_subscription("new", "nil"), "Topic not found: nil", TopicNotFound
    )
    yield refused("a pull of the detached", lambda w: w.mq.pull("orphan"), "'orphan' is detached", FailedPrecondition)
    yield refused("a seek of the detached", lambda w: w.mq.seek("orphan", offset=0), "'orphan' is detached", FailedPrecondition)
    yield refused("a snapshot of the detached", lambda w: w.mq.create_snapshot("new", "orphan"), "'orphan'", FailedPrecondition)
    yield refused("a publish to the deleted", lambda w: w.mq.publish("gone", [Message(b"x")]), "not found: gone", TopicNotFound)


def _messages() -> Iterator[Hostile]:
    for title, value in (
        ("None", None),
        ("one Message", penstock.Message(b"x")),
        ("a str", "orders"),
        ("bytes", b"orders"),
        ("a dict", {"data": b"x"}),
        ("a set", {1}),
        ("a generator", (penstock.Message(b"x") for _ in range(2))),
        ("a number", 5),
        ("an object that cannot be shown", Unshowable()),
    ):
        yield refused(f"publish of {title}", lambda w, value=value: w.mq.publish("orders", value), "expected a list of Message")
    yield refused("publish of nothing", lambda w: w.mq.publish("orders", []), "messages is empty, expected at least one")
    yield refused("publish of an empty tuple", lambda w: w.mq.publish("orders", ()), "messages is empty")
    good = penstock.Message(b"good")
    for title, message in (
        ("None", None),
        ("bytes", b"x"),
        ("a dict", {"data": b"x"}),
        ("a subclass of Message", Longer(b"x")),
        ("the class Message", penstock.Message),
        ("a list that contains lists a hundred thousand deep", deep(100_000)),
    ):
        yield refused(f"a message that is {title}, after a good one", publish(good, message), "messages[1] is ")
    for title, data in (
        ("str", "text"),
        ("None", None),
        ("a number", 3),
        ("a list of numbers", [1, 2]),
        ("nothing of use", Unshowable()),
    ):
        yield refused(f"data that is {title}", publish(Message(data)), "messages[0].data is")
    yield refused("an empty message", publish(Message()), "messages[0] is empty, expected data or at least one attribute")
    yield refused("an empty message with a key", publish(Message(ordering_key="k")), "messages[0] is empty")
    yield refused("an empty message after a good one", publish(good, Message()), "messages[1] is empty")
    yield refused("10 MiB and a byte", publish(Message(bytes(MIB10 + 1))), f"messages[0] is {MIB10 + 1} bytes")
    yield refused("10 MiB and an attribute", publish(Message(bytes(MIB10 - 1), {"k": "v"})), f"messages[0] is {MIB10 + 1} bytes")
    yield refused("10 MiB and a key", publish(Message(bytes(MIB10), ordering_key="k")), f"is {MIB10 + 1} bytes")
    yield refused("10 MiB and a byte, second", publish(good, Message(bytes(MIB10 + 1))), f"messages[1] is {MIB10 + 1} bytes")
    for title, attributes in (
        ("None", None),
        ("a list", []),
        ("a list of pairs", [("k", "v")]),
        ("a str", "k=v"),
        ("a number", 0),
        ("False", False),
    ):
        yield refused(f"attributes that are {title}", publish(Message(b"x", attributes)), "messages[0].attributes is ")
    for title, key, fragment in (
        ("empty", "", "is '', expected a non-empty string"),
        ("a number", 1, "is 1, expected a non-empty string"),
        ("bytes", b"k", "is b'k', expected a non-empty string"),
        ("None", None, "is None, expected a non-empty string"),
        ("reserved", "googclient", "is 'googclient', expected a key that does not start with 'goog'"),
        ("only the reserved prefix", "goog", "is 'goog', expected a key that does not start with 'goog'"),
        ("257 bytes", "k" * 257, "is 257 bytes long, expected at most 256"),
        ("258 bytes in 129 letters", "é" * 129, "is 258 bytes long, expected at most 256"),
        ("a lone surrogate", "\udfff", "is '\\udfff', expected text that UTF-8 can encode"),
    ):
        yield refused(
            f"an attribute key that is {title}", publish(Message(b"x", {key: "v"})), f"messages[0].attributes {fragment}"
        )
    for title, attribute, fragment in (
        ("None", None, "is None, expected a string"),
        ("a number", 1, "is 1, expected a string"),
        ("a bool", True, "is True, expected a string"),
        ("bytes", b"v", "is b'v', expected a string"),
        ("a list", ["v"], "is ['v'], expected a string"),
        ("1025 bytes", "v" * 1025, "is 1025 bytes long, expected at most 1024"),
        ("1026 bytes in 342 letters", "€" * 342, "is 1026 bytes long, expected at most 1024"),
        ("a lone surrogate", "\ud800", "is '\\ud800', expected text that UTF-8 can encode"),
    ):
        yield refused(
            f"an attribute value that is {title}",
            publish(Message(b"x", {"k": attribute})),
            f"messages[0].attributes['k'] {fragment}",
        )
    for title, key, fragment in (
        ("None", None, "is None, expected a string"),
        ("a number", 0, "is 0, expected a string"),
        ("bytes", b"", "is b'', expected a string"),
        ("1025 bytes", "k" * 1025, "is 1025 bytes long, expected at most 1024"),
        ("a lone surrogate", "\ud800", "is '\\ud800', expected text that UTF-8 can encode"),
    ):
        yield refused(
            f"an ordering key that is {title}", publish(Message(b"x", ordering_key=key)), f"messages[0].ordering_key {fragment}"
        )
    for priority in (-1, 10, 2**70, 5.0, True, False, "5", None, math.nan, [5]):
        yield refused(
            f"a priority of {priority!r}",
            publish(Message(b"x", priority=priority)),
            f"priority: {priority!r}, expected",
            InvalidPriority,
        )
    yield refused("a priority of 5,000 digits", publish(Message(b"x", priority=10**5000)), "expected an integer", InvalidPriority)
    yield refused(
        "a priority that is a function", publish(Message(b"x", priority=lambda: 5)), "expected an integer", InvalidPriority
    )
    for ttl in (
        0,
        -1,
        math.nan,
        math.inf,
        -math.inf,
        1e300,
        10**40,
        True,
        "60",
        b"60",
        timedelta(0),
        timedelta(seconds=-1),
        timedelta.max,
    ):
        yield refused(f"a ttl of {ttl!r}", publish(Message(b"x", ttl=ttl)), f"messages[0].ttl is {ttl!r}, expected seconds")
    for at in (NAIVE, math.nan, math.inf, -1, True, "2026-01-01", 1e300, timedelta(days=-1)):
        yield refused(
            f"a deliver_at of {at!r}", publish(Message(b"x", deliver_at=at)), f"messages[0].deliver_at is {at!r}, expected"
        )
    for producer, sequence, fragment in (
        ("p", None, "messages[0].sequence is None"),
        (None, 1, "messages[0].producer_id is None"),
        ("", 1, "messages[0].producer_id is ''"),
        (7, 1, "messages[0].producer_id is 7"),
        ("p", -1, "messages[0].sequence is -1"),
        ("p", True, "messages[0].sequence is True"),
        ("p", 1.0, "messages[0].sequence is 1.0"),
        ("p", "1", "messages[0].sequence is '1'"),
        ("p", 1 << 63, "messages[0].sequence is 9223372036854775808"),
        ("p" * 257, 1, "messages[0].producer_id is 257 bytes long, expected at most 256"),
        ("\ud800", 1, "messages[0].producer_id is '\\ud800', expected text"),
    ):
        shown = repr(producer)[:20]
        message = Message(b"x", producer_id=producer, sequence=sequence)
        yield refused(f"producer {shown}, sequence {sequence!r}", publish(message), fragment)
    yield refused(
        "a publish to a full subscription", lambda w: w.mq.publish("narrow", [Message(b"x")]), "full: tight", SubscriptionFull
    )


def _deliveries() -> Iterator[Hostile]:
    for count in (0, -1, True, False, 1.0, math.nan, "1", None, 2**70, [1]):
        yield refused(
            f"pull {count!r}",
            lambda w, count=count: w.mq.pull("billing", count),
            f"max_messages is {count!r}, expected an integer",
        )
    for count in (0, -1, True, 1.5, "1"):
        yield refused(
            f"peek {count!r}",
            lambda w, count=count: w.mq.peek("billing", count),
            f"max_messages is {count!r}, expected an integer",
        )
    verbs: dict[str, Callable[..., object]] = {
        "ack": lambda w, ack_id: w.mq.ack(ack_id),
        "nack": lambda w, ack_id: w.mq.nack(ack_id),
        "modify_ack_deadline": lambda w, ack_id: w.mq.modify_ack_deadline(ack_id, 30),
        "set_ack_deadline": lambda w, ack_id: w.mq.set_ack_deadline(ack_id, 30),
    }
    forged: dict[str, Callable[..., object]] = {
        "None": lambda w: None,
        "nothing": lambda w: "",
        "a number": lambda w: 7,
        "bytes": lambda w: w.leased.ack_id.encode(),
        "a list": lambda w: [w.leased.ack_id],
        "a function": lambda w: lambda: w.leased.ack_id,
        "an object that cannot be shown": lambda w: Unshowable(),
        "a message id": lambda w: w.leased.id,
        "a word": lambda w: "not-an-ack-id",
        "upper case": lambda w: w.leased.ack_id[:-1] + "A",
        "cut short": lambda w: w.leased.ack_id[:-1],
        "one letter more": lambda w: w.leased.ack_id + "0",
        "underscores": lambda w: w.leased.ack_id[:4] + "_" + w.leased.ack_id[5:],
        "a sign": lambda w: "+" + w.leased.ack_id[1:],
        "a space": lambda w: " " + w.leased.ack_id[1:],
        "a prefix 0x": lambda w: "0x" + w.leased.ack_id[2:],
        "Arabic digits": lambda w: ARABIC_ZERO + w.leased.ack_id[1:],
        "fullwidth digits": lambda w: w.leased.ack_id[:-1] + "\uff11",
        "another queue": lambda w: "7fffff" + w.leased.ack_id[6:],
        "another offset": lambda w: w.leased.ack_id[:6] + "00000000ff" + w.leased.ack_id[16:],
        "another attempt": lambda w: w.leased.ack_id[:16] + "00000063" + w.leased.ack_id[24:],
        "another epoch": lambda w: w.leased.ack_id[:24] + "00000063",
        "all ones": lambda w: "f" * 32,
        "settled": lambda w: w.settled_ack_id,
        "expired": lambda w: w.expired_ack_id,
        "10 MiB": lambda w: "0" * MIB10,
    }
    for verb, call in verbs.items():
        for title, forge in forged.items():
            yield refused(
                f"{verb} of {title}", lambda w, call=call, forge=forge: call(w, forge(w)), "Invalid ack ID: ", InvalidAckId
            )
    for seconds in (-1, -0.001, 86_401, math.nan, math.inf, True, "30", None, timedelta(days=2), 10**5000):
        for verb in ("modify_ack_deadline", "set_ack_deadline"):
            shown = repr(seconds) if seconds != 10**5000 else "a number of 5,000 digits"
            fragment = (
                f"seconds is {shown}, expected seconds from 0 to 86400"
                if seconds != 10**5000
                else "expected seconds from 0 to 86400"
            )
            yield refused(f"{verb} by {shown}", lambda w, v=verb, s=seconds: getattr(w.mq, v)(w.leased.ack_id, s), fragment)
    for verb in ("ack_many", "nack_many"):
        for ids in (None, 7, "abc", b"abc"):
            yield refused(
                f"{verb} of {ids!r}", lambda w, v=verb, ids=ids: getattr(w.mq, v)(ids), f"ack_ids is {ids!r}, expected a list"
            )
    both = {"time": 0, "offset": 0}
    for targets in ({}, both, {**both, "snapshot": "mark"}, {"offset": 0, "snapshot": "mark"}):
        title = " and ".join(targets) or "nowhere"
        yield refused(
            f"seek to {title}",
            lambda w, targets=targets: w.mq.seek("billing", **targets),
            "exactly one of time, offset and snapshot",
        )
    for offset in (-1, True, 1.0, "0", math.nan, 2**70):
        yield refused(
            f"seek to offset {offset!r}",
            lambda w, o=offset: w.mq.seek("billing", offset=o),
            f"offset is {offset!r}, expected an integer",
        )
    for offset in (5, 2**40):
        yield refused(
            f"seek to the future offset {offset}",
            lambda w, o=offset: w.mq.seek("billing", offset=o),
            f"offset {offset} of 'orders'",
            OutOfRange,
        )
    for time in (NAIVE, -1, math.nan, math.inf, True, "2026-01-01", b""):
        yield refused(f"seek to time {time!r}", lambda w, t=time: w.mq.seek("billing", time=t), f"time is {time!r}, expected")
    yield refused(
        "seek to a snapshot of another topic",
        lambda w: w.mq.seek("billing", snapshot="elsewhere"),
        "'elsewhere'",
        FailedPrecondition,
    )


TABLE = [*_names(), *_messages(), *_deliveries()]


@pytest.mark.parametrize("kind", ["memory", pytest.param("durable", marks=pytest.mark.long)])
def test_a_hostile_call_is_refused_with_the_right_words_and_leaves_no_trace(
    kind: str, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    expect_refusals(TABLE, subtests, tmp_path if kind == "durable" else None)
