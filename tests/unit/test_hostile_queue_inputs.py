"""A table of hostile calls of `QueueManager`, and what both faces must take at the limits and in disguise."""

from __future__ import annotations

import math
from collections import UserDict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.errors import (
    AckDeadlineExceeded,
    AlreadyExists,
    ConsumerNotFound,
    InvalidPriority,
    MessageNotFound,
    QueueFull,
    QueueNotFound,
)
from tests.unit.hostile import MIB10, NAIVE, Hostile, Unshowable, World, deep, expect_refusals, refused

Message: Any = penstock.Message  # Any: the point of this file is to hand over what the types forbid


def _names() -> Iterator[Hostile]:
    bad: list[tuple[str, object, str]] = [
        ("None", None, "is None, expected a non-empty string"),
        ("a number", 7, "is 7, expected a non-empty string"),
        ("True", True, "is True, expected a non-empty string"),
        ("bytes", b"tasks", "is b'tasks', expected a non-empty string"),
        ("a list", ["tasks"], "is ['tasks'], expected a non-empty string"),
        ("nothing", "", "is '', expected a non-empty string"),
        ("a line break", "a\nb", "is 'a\\nb', expected a name without control characters"),
        ("a NUL", "\0", "is '\\x00', expected a name without control characters"),
        ("a lone surrogate", "\udc00", "is '\\udc00', expected text that UTF-8 can encode"),
        ("1025 bytes", "n" * 1025, "is 1025 bytes long, expected at most 1024"),
        ("1026 bytes in 342 letters", "€" * 342, "is 1026 bytes long, expected at most 1024"),
    ]
    makers: dict[str, tuple[str, Callable[..., object]]] = {
        "create": ("queue", lambda w, name: w.qm.create(name)),
        "consume as": ("consumer_id", lambda w, name: w.qm.consume("tasks", name)),
        "consume_many as": ("consumer_id", lambda w, name: w.qm.consume_many("tasks", name)),
        "release_consumer": ("consumer_id", lambda w, name: w.qm.release_consumer("tasks", name)),
    }
    for verb, (argument, call) in makers.items():
        for title, name, fragment in bad:
            if name is None and verb.startswith("consume"):
                continue  # each call without an id is a consumer of its own
            yield refused(f"{verb} {title}", lambda w, call=call, name=name: call(w, name), f"{argument} {fragment}")
    users: dict[str, Callable[..., object]] = {
        "delete": lambda w, name: w.qm.delete(name),
        "config of": lambda w, name: w.qm.config(name),
        "publish to": lambda w, name: w.qm.publish(name, b"x"),
        "consume from": lambda w, name: w.qm.consume(name),
        "consume_many from": lambda w, name: w.qm.consume_many(name, prefetch=1),
        "ack in": lambda w, name: w.qm.ack(name, w.held),
        "nack in": lambda w, name: w.qm.nack(name, w.held),
        "extend in": lambda w, name: w.qm.extend(name, w.held, 60),
        "release_consumer in": lambda w, name: w.qm.release_consumer(name, "w1"),
        "peek": lambda w, name: w.qm.peek(name),
        "purge": lambda w, name: w.qm.purge(name),
        "pause": lambda w, name: w.qm.pause(name),
        "resume": lambda w, name: w.qm.resume(name),
        "stats of": lambda w, name: w.qm.stats(name),
        "dead_letters of": lambda w, name: w.qm.dead_letters(name),
        "retry_dead_letter in": lambda w, name: w.qm.retry_dead_letter(name, w.dead),
        "redrive": lambda w, name: w.qm.redrive(name),
        "purge_dead_letters of": lambda w, name: w.qm.purge_dead_letters(name),
    }
    for verb, call in users.items():
        yield refused(f"{verb} an unknown queue", lambda w, call=call: call(w, "Tasks"), "Queue not found: Tasks", QueueNotFound)
        for name in (["tasks"], b"tasks", None):
            yield refused(
                f"{verb} {name!r}",
                lambda w, call=call, name=name: call(w, name),
                f"queue is {name!r}, expected a non-empty string",
            )
    yield refused("exists of a dict", lambda w: w.qm.exists({}), "queue is {}, expected a string")
    yield refused("a topic as a queue", lambda w: w.qm.publish("orders", b"x"), "Queue not found: orders", QueueNotFound)
    yield refused("a queue twice", lambda w: w.qm.create("tasks"), "Queue already exists: tasks", AlreadyExists)
    yield refused("publish to a full queue", lambda w: w.qm.publish("tiny", b"x"), "Queue is full: tiny", QueueFull)


def _publishes() -> Iterator[Hostile]:
    for title, payload in (
        ("a set", {1, 2}),
        ("a tuple", (1, 2)),
        ("a tuple inside", {"k": (1, 2)}),
        ("bytes inside", {"k": b"v"}),
        ("int keys", {1: "one"}),
        ("keys that become the same", {"1": 1, 1: 2}),
        ("None as a key", {None: 1}),
        ("NaN", math.nan),
        ("NaN inside", {"k": [math.nan]}),
        ("infinity", math.inf),
        ("an object", object()),
        ("a class", dict),
        ("a function", lambda: 0),
        ("a generator", (n for n in range(3))),
        ("a datetime", datetime(2026, 1, 1, tzinfo=UTC)),
        ("a Decimal", Decimal("1.5")),
        ("a complex number", 1j),
        ("a Message", penstock.Message(b"x")),
        ("a lone surrogate", "a\ud800"),
        ("a lone surrogate inside", ["a\ud800"]),
        ("a lone surrogate as a key", {"\ud800": 1}),
        ("lists a hundred thousand deep", deep(100_000)),
        ("an object that cannot be shown", Unshowable()),
        ("a UserDict", UserDict({"k": "v"})),
    ):
        yield refused(f"payload: {title}", lambda w, p=payload: w.qm.publish("tasks", p), "payload is ")
    loop: list[Any] = []
    loop.append(loop)
    yield refused("payload: a list in itself", lambda w: w.qm.publish("tasks", loop), "payload is [[...]]")
    yield refused(
        "payload: 10 MiB and a byte", lambda w: w.qm.publish("tasks", bytes(MIB10 + 1)), f"payload is {MIB10 + 1} bytes"
    )
    yield refused(
        "payload: 10 MiB and a letter", lambda w: w.qm.publish("tasks", "é" * (MIB10 // 2) + "."), f"payload is {MIB10 + 1} bytes"
    )
    yield refused("payload: 10 MiB of JSON", lambda w: w.qm.publish("tasks", ["x" * MIB10]), f"payload is {MIB10 + 4} bytes")
    yield refused(
        "payload: 10 MiB with a header",
        lambda w: w.qm.publish("tasks", bytes(MIB10 - 1), headers={"k": "v"}),
        f"{MIB10 + 1} bytes",
    )
    for priority in (-1, 10, 2**70, 5.0, True, "5", math.nan, [5], b"5"):
        yield refused(
            f"priority={priority!r}",
            lambda w, p=priority: w.qm.publish("tasks", b"x", priority=p),
            f"Invalid priority: {priority!r}, expected an integer from 0 to 9",
            InvalidPriority,
        )
    yield refused(
        "priority of 5,000 digits", lambda w: w.qm.publish("tasks", b"x", priority=10**5000), "from 0 to 9", InvalidPriority
    )
    durations: dict[str, list[object]] = {
        "ttl": [0, -1, 1e-9, math.nan, math.inf, 1e300, True, "60", b"60", timedelta(0), [60]],
        "delay": [-1, math.nan, math.inf, 1e300, True, "60", timedelta(seconds=-1), {}],
        "deliver_at": [NAIVE, -1, math.nan, math.inf, True, "tomorrow", 1e300],
        "max_retries": [-1, True, 1.0, "3", 1_000_001, math.nan],
    }
    for name, values in durations.items():
        for value in values:
            yield refused(
                f"{name}={value!r}",
                lambda w, n=name, v=value: w.qm.publish("tasks", b"x", **{n: v}),
                f"{name} is {value!r}, expected ",
            )
    yield refused(
        "delay and deliver_at",
        lambda w: w.qm.publish("tasks", b"x", delay=0, deliver_at=0),
        "delay and deliver_at are both given",
    )
    for title, headers, fragment in (
        ("a list", [("k", "v")], "headers is [('k', 'v')], expected a mapping"),
        ("a str", "k=v", "headers is 'k=v', expected a mapping"),
        ("a number", 0, "headers is 0, expected a mapping"),
        ("an int key", {1: "v"}, "headers is 1, expected a non-empty string"),
        ("an empty key", {"": "v"}, "headers is '', expected a non-empty string"),
        ("a name of 64 KiB and a byte", {"k" * 65_537: "v"}, "headers is 65537 bytes long, expected at most 65536"),
        ("64 KiB and a byte together", {"k": "v" * 32_768, "l": "v" * 32_767}, "headers are 65537 bytes with their names"),
        ("an int value", {"k": 1}, "headers['k'] is 1, expected a string"),
        ("a None value", {"k": None}, "headers['k'] is None, expected a string"),
        ("a bytes value", {"k": b"v"}, "headers['k'] is b'v', expected a string"),
        ("a value of 64 KiB and a byte", {"k": "v" * 65_537}, "headers['k'] is 65537 bytes long, expected at most 65536"),
        ("a lone surrogate", {"k": "\ud800"}, "headers['k'] is '\\ud800', expected text that UTF-8 can encode"),
    ):
        yield refused(f"headers: {title}", lambda w, h=headers: w.qm.publish("tasks", b"x", headers=h), fragment)
    for producer, sequence, fragment in (
        ("p", None, "sequence is None"),
        (None, 1, "producer_id is None"),
        ("", 1, "producer_id is ''"),
        (b"p", 1, "producer_id is b'p'"),
        ("p", -1, "sequence is -1"),
        ("p", True, "sequence is True"),
        ("p", 1.0, "sequence is 1.0"),
        ("p", 1 << 63, "sequence is 9223372036854775808"),
    ):
        yield refused(
            f"producer {producer!r}, sequence {sequence!r}",
            lambda w, p=producer, s=sequence: w.qm.publish("tasks", b"x", producer_id=p, sequence=s),
            fragment,
        )


def _deliveries() -> Iterator[Hostile]:
    limits: dict[str, list[object]] = {
        "timeout": [-1, math.nan, math.inf, 86_401, True, "1", None],
        "ack_deadline": [0, -1, 0.0001, 86_401, math.nan, math.inf, True, "30", timedelta(days=2)],
        "prefetch": [0, -1, 6, True, 1.0, "5", math.nan],
    }
    for name, values in limits.items():
        for value in values:
            yield refused(
                f"consume {name}={value!r}",
                lambda w, n=name, v=value: w.qm.consume("tasks", **{n: v}),
                f"{name} is {value!r}, expected ",
            )
    for value in (0, -1, True, 1.0, "1", None, 2**41):
        yield refused(
            f"consume_many max_messages={value!r}",
            lambda w, v=value: w.qm.consume_many("tasks", max_messages=v),
            f"max_messages is {value!r}, expected an integer",
        )
    verbs: dict[str, Callable[..., object]] = {
        "ack": lambda w, message_id: w.qm.ack("tasks", message_id),
        "nack": lambda w, message_id: w.qm.nack("tasks", message_id),
        "extend": lambda w, message_id: w.qm.extend("tasks", message_id, 60),
        "retry_dead_letter": lambda w, message_id: w.qm.retry_dead_letter("tasks", message_id),
    }
    forged: dict[str, Callable[..., object]] = {
        "None": lambda w: None,
        "nothing": lambda w: "",
        "a number": lambda w: 7,
        "bytes": lambda w: w.held.encode(),
        "a list": lambda w: [w.held],
        "a function": lambda w: lambda: w.held,
        "an object that cannot be shown": lambda w: Unshowable(),
        "an ack id": lambda w: w.leased.ack_id,
        "upper case": lambda w: w.held[:-1] + "A",
        "cut short": lambda w: w.held[:-1],
        "one letter more": lambda w: "0" + w.held,
        "underscores": lambda w: w.held[:-2] + "_" + w.held[-1],
        "a prefix 0x": lambda w: w.held[:20] + "0x" + w.held[22:],
        "Arabic digits": lambda w: "\u0660" + w.held[1:],
        "another queue": lambda w: w.foreign,
        "a topic": lambda w: w.ids[0],
        "an offset to come": lambda w: w.held[:20] + "00000000ff",
        "another publish time": lambda w: "0" * 14 + w.held[14:],
        "all ones": lambda w: "f" * 30,
        "10 MiB": lambda w: "0" * MIB10,
        "settled": lambda w: w.done,
    }
    for verb, call in verbs.items():
        for title, forge in forged.items():
            yield refused(
                f"{verb} of {title}", lambda w, call=call, forge=forge: call(w, forge(w)), "Message not found: ", MessageNotFound
            )
        if verb != "retry_dead_letter":
            yield refused(f"{verb} of the dead", lambda w, call=call: call(w, w.dead), "Message not found: ", MessageNotFound)
            yield refused(
                f"{verb} of the late", lambda w, call=call: call(w, w.late), "Ack deadline exceeded: ", AckDeadlineExceeded
            )
        else:
            yield refused(
                "retry_dead_letter of the held", lambda w: w.qm.retry_dead_letter("tasks", w.held), "not found", MessageNotFound
            )
        yield refused(f"{verb} of the waiting", lambda w, call=call: call(w, w.waiting), "Message not found: ", MessageNotFound)
    for title, call in {
        "ack": lambda w: w.qm.ack("tasks", w.held, "w2"),
        "nack": lambda w: w.qm.nack("tasks", w.held, consumer_id="w2"),
        "extend": lambda w: w.qm.extend("tasks", w.held, 60, "w2"),
        "release_consumer": lambda w: w.qm.release_consumer("tasks", "w2"),
    }.items():
        yield refused(f"{title} by another consumer", call, "Consumer not found: w2", ConsumerNotFound)
    for consumer in (7, b"w1", ["w1"]):
        yield refused(
            f"ack by {consumer!r}", lambda w, c=consumer: w.qm.ack("tasks", w.held, c), f"consumer_id is {consumer!r}, expected"
        )
    for seconds in (0, -1, math.nan, math.inf, 86_401, True, "60", None):
        yield refused(
            f"extend by {seconds!r}",
            lambda w, s=seconds: w.qm.extend("tasks", w.held, s),
            f"seconds is {seconds!r}, expected seconds",
        )
    for requeue in (0, 1, "false", None, ["no"]):
        yield refused(
            f"nack requeue={requeue!r}",
            lambda w, r=requeue: w.qm.nack("tasks", w.held, r),
            f"requeue is {requeue!r}, expected True or False",
        )
    for error in (5, b"boom", ValueError("boom"), ["boom"]):
        yield refused(
            f"nack error={error!r}",
            lambda w, e=error: w.qm.nack("tasks", w.held, error=e),
            f"error is {error!r}, expected a string",
        )
    yield refused(
        "nack error with a lone surrogate",
        lambda w: w.qm.nack("tasks", w.held, error="\ud800"),
        "error is '\\ud800', expected text",
    )
    for limit in (0, -1, True, 1.0, "1", math.nan):
        yield refused(
            f"dead_letters limit={limit!r}",
            lambda w, v=limit: w.qm.dead_letters("tasks", v),
            f"limit is {limit!r}, expected an integer",
        )
        yield refused(
            f"redrive limit={limit!r}",
            lambda w, v=limit: w.qm.redrive("tasks", limit=v),
            f"limit is {limit!r}, expected an integer",
        )
    for where in (5, "reason", True, {"reason": "ttl"}):
        yield refused(
            f"redrive where={where!r}", lambda w, v=where: w.qm.redrive("tasks", v), f"where is {where!r}, expected a function"
        )
    for ids in (5, "0" * 30, b"id", True):
        expected = f"message_ids is {ids!r}, expected a list of message ids"
        yield refused(f"dead_letters message_ids={ids!r}", lambda w, v=ids: w.qm.dead_letters("tasks", message_ids=v), expected)
        yield refused(f"redrive message_ids={ids!r}", lambda w, v=ids: w.qm.redrive("tasks", message_ids=v), expected)
        yield refused(f"purge message_ids={ids!r}", lambda w, v=ids: w.qm.purge_dead_letters("tasks", v), expected)
    yield refused(
        "dead_letters max_bytes", lambda w: w.qm.dead_letters("tasks", max_bytes="1"), "max_bytes is '1', expected an integer"
    )


TABLE = [*_names(), *_publishes(), *_deliveries()]


@pytest.mark.parametrize("kind", ["memory", pytest.param("durable", marks=pytest.mark.long)])
def test_a_hostile_call_is_refused_with_the_right_words_and_leaves_no_trace(
    kind: str, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    expect_refusals(TABLE, subtests, tmp_path if kind == "durable" else None)


def test_a_predicate_that_raises_is_the_callers_error_and_redrives_nothing() -> None:
    world = World(None)
    before = world.photograph()

    with pytest.raises(ZeroDivisionError):
        world.qm.redrive("tasks", lambda letter: 1 / 0)

    assert world.photograph() == before
    world.works()
