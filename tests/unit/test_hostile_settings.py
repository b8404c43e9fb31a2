"""A table of hostile settings: options, policies, configurations, clocks, data directories; and every call of a closed broker."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Broker, MessageQueue, QueueManager
from penstock.errors import BrokerClosed, InvalidFilter, InvalidPriority
from penstock.testing import ManualClock
from tests.unit.hostile import NAIVE, Hostile, World, check_copies, check_words, expect_refusals, refused

# Any: the point of this file is to hand over what the types forbid.
Message: Any = penstock.Message
Options: Any = penstock.SubscriptionOptions
Config: Any = penstock.QueueConfig
Retry: Any = penstock.RetryPolicy
DeadLetters: Any = penstock.DeadLetterPolicy
Flow: Any = penstock.FlowControl


def _options() -> Iterator[Hostile]:
    for title, options in (
        ("a dict", {"ack_deadline_seconds": 10}),
        ("a QueueConfig", Config()),
        ("the class", Options),
        ("0", 0),
        ("a str", "x"),
    ):
        yield refused(
            f"options that are {title}",
            lambda w, o=options: w.mq.register_subscription("new", "orders", o),
            "expected a SubscriptionOptions",
        )
    numbers: dict[str, list[object]] = {
        "ack_deadline_seconds": [
            0,
            9,
            9.999999,
            600.000001,
            601,
            -10,
            math.nan,
            math.inf,
            True,
            "10",
            None,
            b"10",
            timedelta(seconds=9),
        ],
        "message_retention_duration": [0, 0.5, -1, math.nan, math.inf, 366 * 86_400 + 1, True, "7d", None],
        "max_messages": [0, -1, True, 1.0, math.nan, "10", None, 2**41],
        "max_bytes": [0, -1, False, 1e6, math.inf, "10", None, 2**41],
        "message_ordering": [0, 1, "true", "", None, []],
        "retain_acked_messages": [0, 1, "false", None],
        "retry_policy": [{}, 5, (1, 2), True, "exponential"],
        "dead_letter_policy": [{}, "dead", 5, True],
        "flow_control": [{}, 100, True, "none"],
        "filter": [None, 5, b"attributes:k", True, ["attributes:k"]],
        "overflow": ["", "drop", "REJECT", "spill ", 1, True, ["spill"], b"spill"],
    }
    for name, values in numbers.items():
        for value in values:
            yield refused(f"{name}={value!r}", lambda w, n=name, v=value: Options(**{n: v}), f"{name} is {value!r}, expected ")
    yield refused("a filter of 257 bytes", lambda w: Options(filter="attributes:" + "k" * 246), "257 bytes", InvalidFilter)
    for text, position in (
        ("attributes", 10),
        ('attributes.k = v"', 15),
        ("attributes.k = 'v'", 15),
        ('attributes.k == "v"', 13),
        ("attributes:a AND attributes:b OR attributes:c", 30),
        ("(attributes:a", 0),
        ("attributes:a)", 12),
        ("hasPrefix(attributes.k)", 22),
        ("NOT", 3),
        ('attributes.k = "\\n"', 16),
        ("(" * 33 + "attributes:k" + ")" * 33, 32),
    ):
        yield refused(
            f"filter {text[:30]!r}",
            lambda w, t=text: Options(filter=t),
            f"Invalid filter at position {position}: ",
            InvalidFilter,
        )
    for name in ("minimum_backoff", "maximum_backoff"):
        for value in (-1, math.nan, math.inf, 7 * 86_400 + 1, True, "10", None, timedelta(seconds=-1)):
            yield refused(
                f"{name}={value!r}",
                lambda w, n=name, v=value: Retry(**{n: v}),
                f"retry_policy.{name} is {value!r}, expected seconds",
            )
    yield refused(
        "backoff upside down", lambda w: Retry(minimum_backoff=601), "retry_policy.minimum_backoff is 601, expected at most"
    )
    yield refused(
        "backoff barely upside down",
        lambda w: Retry(10.000001, 10),
        "minimum_backoff is 10.000001, expected at most maximum_backoff (10)",
    )
    for value in (0, -1, 101, True, 5.0, "5", None, 2**70):
        yield refused(
            f"attempts={value!r}",
            lambda w, v=value: DeadLetters("dead", v),
            f"max_delivery_attempts is {value!r}, expected an integer from 1 to 100",
        )
    for name in ("max_messages", "max_bytes"):
        for value in (0, -1, True, 1.0, math.nan, "1", 2**41):
            yield refused(
                f"flow {name}={value!r}",
                lambda w, n=name, v=value: Flow(**{n: v}),
                f"flow_control.{name} is {value!r}, expected an integer",
            )
    yield refused(
        "excess by a str", lambda w: Flow(allow_excess_messages="no"), "allow_excess_messages is 'no', expected True or False"
    )


def _construction() -> Iterator[Hostile]:
    new: Any = MessageQueue
    broker: Any = Broker
    yield refused("a broker and a clock", lambda w: new(broker=w.broker, clock=w.clock), "broker is given together with clock")
    yield refused("a broker and a directory", lambda w: new(broker=w.broker, data_dir="d"), "broker is given together with")
    yield refused(
        "a directory and a journal",
        lambda w: broker(data_dir="d", journal=w.broker.journal),
        "data_dir and journal are both given",
    )
    yield refused("a broker that is a number", lambda w: new(broker=5), "broker is 5, expected ")
    yield refused("a clock that is a number", lambda w: new(clock=5), "clock is 5, expected ")
    yield refused("a journal that is a number", lambda w: broker(journal=5), "journal is 5, expected ")
    for value in (-1, True, 1.5, "256M", None):
        yield refused(
            f"a window of {value!r}", lambda w, v=value: broker(window_bytes=v), f"window_bytes is {value!r}, expected an integer"
        )
    for path in (5, "", b"data", True, ["data"]):
        yield refused(f"a directory named {path!r}", lambda w, p=path: new(data_dir=p), f"data_dir is {path!r}, expected ")
    yield refused("a directory with a NUL", lambda w: new(data_dir="a\0b"), "data_dir is 'a\\x00b', expected ")
    yield refused("a directory with a lone surrogate", lambda w: new(data_dir="a\ud800"), "data_dir is 'a\\ud800', expected ")
    yield refused("a directory that is a file", lambda w: new(data_dir=__file__), "expected a directory, but this is a file")
    for start in (NAIVE, math.nan, -1, "now", True):
        yield refused(f"a clock from {start!r}", lambda w, s=start: ManualClock(s), f"start is {start!r}, expected")
    for step in (-1, math.nan, math.inf, True, None, "1"):
        yield refused(f"an advance of {step!r}", lambda w, s=step: w.clock.advance(s), f"seconds is {step!r}, expected seconds")


def _configs() -> Iterator[Hostile]:
    for title, config in (("a dict", {"max_depth": 5}), ("SubscriptionOptions", Options()), ("the class", Config), ("0", 0)):
        yield refused(f"a config that is {title}", lambda w, c=config: w.qm.create("new", c), "expected a QueueConfig")
    settings: dict[str, list[object]] = {
        "max_depth": [0, -1, True, 1.0, math.nan, math.inf, "10", None, 2**41],
        "ack_deadline_secs": [0, 0.0009, -1, 86_400.1, math.nan, math.inf, True, "30", None, timedelta(days=2)],
        "max_retries": [-1, 1_000_001, True, 3.0, "3", None, math.nan],
        "default_prefetch": [0, -1, True, 1.0, "10", None, 1_001],
        "max_prefetch": [0, -1, True, 1_000_001, 2.0, "10", None],
        "message_ttl": [0, -1, math.nan, math.inf, 1e300, True, "60", b"60", timedelta(0)],
        "dead_letter_enabled": [0, 1, "true", None, []],
        "dead_letter_max_size": [-1, True, 1.0, "10", None, 2**41],
        "retry_policy": [{}, 5, (1, 2), True],
        "overflow": [None, "", "drop", "Reject", 1, True, ["spill"], b"reject"],
    }
    for name, values in settings.items():
        for value in values:
            yield refused(
                f"config {name}={value!r}", lambda w, n=name, v=value: Config(**{n: v}), f"{name} is {value!r}, expected "
            )
    for value in (-1, 10, True, 5.0, "5", None, math.nan):
        yield refused(
            f"config default_priority={value!r}",
            lambda w, v=value: Config(default_priority=v),
            f"Invalid priority: {value!r}, expected",
            InvalidPriority,
        )
    yield refused(
        "config default_prefetch over max_prefetch",
        lambda w: Config(default_prefetch=6, max_prefetch=5),
        "default_prefetch is 6, expected an integer from 1 to 5",
    )
    yield refused(
        "a manager with a broker and a clock", lambda w: QueueManager(broker=w.broker, clock=w.clock), "broker is given together"
    )
    yield refused("a manager with a broker that is a str", lambda w: QueueManager(broker="b"), "broker is 'b', expected ")  # type: ignore[arg-type]  # on purpose


TABLE = [*_options(), *_configs(), *_construction()]


# What is refused before it reaches a broker needs no broker on disk to prove it.
def test_a_hostile_setting_is_refused_with_the_right_words_and_leaves_no_trace(subtests: pytest.Subtests) -> None:
    expect_refusals(TABLE, subtests, None)


AT_THE_LIMIT: list[Callable[[], object]] = [
    lambda: Options(ack_deadline_seconds=10),
    lambda: Options(ack_deadline_seconds=600),
    lambda: Options(ack_deadline_seconds=timedelta(minutes=10)),
    lambda: Options(message_retention_duration=1),
    lambda: Options(message_retention_duration=timedelta(days=366)),
    lambda: Options(max_messages=1, max_bytes=1),
    lambda: Options(max_messages=2**40, max_bytes=2**40),
    lambda: Options(filter="attributes:" + "k" * 245),
    lambda: Options(filter="(" * 32 + "attributes:k" + ")" * 32),
    lambda: Options(filter="   "),
    lambda: Retry(0, 0),
    lambda: Retry(7 * 86_400, timedelta(days=7)),
    lambda: DeadLetters("d", 1),
    lambda: DeadLetters("d" * 1024, 100),
    lambda: Flow(1, 1),
    lambda: Flow(None, None),
    lambda: Config(max_depth=1, max_retries=0, default_priority=0, default_prefetch=1, max_prefetch=1, dead_letter_max_size=0),
    lambda: Config(max_retries=1_000_000, default_priority=9, max_prefetch=1_000_000, default_prefetch=1_000_000),
    lambda: Config(ack_deadline_secs=0.001, message_ttl=0.000001),
    lambda: Config(ack_deadline_secs=86_400, message_ttl=timedelta(days=365)),
]


def test_a_setting_at_its_limit_is_accepted() -> None:
    for build in AT_THE_LIMIT:
        assert build() == build()


CLOSED: dict[str, Callable[..., object]] = {
    "register_topic": lambda w: w.mq.register_topic("new"),
    "unregister_topic": lambda w: w.mq.unregister_topic("orders"),
    "register_subscription": lambda w: w.mq.register_subscription("new", "orders"),
    "unregister_subscription": lambda w: w.mq.unregister_subscription("billing"),
    "publish": lambda w: w.mq.publish("orders", [Message(b"x")]),
    "pull": lambda w: w.mq.pull("billing"),
    "ack": lambda w: w.mq.ack(w.leased.ack_id),
    "nack": lambda w: w.mq.nack(w.leased.ack_id),
    "ack_many": lambda w: w.mq.ack_many([w.leased.ack_id]),
    "modify_ack_deadline": lambda w: w.mq.modify_ack_deadline(w.leased.ack_id, 1),
    "seek": lambda w: w.mq.seek("billing", offset=0),
    "create_snapshot": lambda w: w.mq.create_snapshot("new", "billing"),
    "delete_snapshot": lambda w: w.mq.delete_snapshot("mark"),
    "pause": lambda w: w.mq.pause("billing"),
    "peek": lambda w: w.mq.peek("billing"),
    "stats": lambda w: w.mq.stats("billing"),
    "explain": lambda w: w.mq.explain("billing", w.ids[3]),
    "history": lambda w: w.broker.history(w.ids[0]),
    "create": lambda w: w.qm.create("new"),
    "delete": lambda w: w.qm.delete("tasks"),
    "publish to a queue": lambda w: w.qm.publish("tasks", b"x"),
    "consume": lambda w: w.qm.consume("tasks"),
    "ack in a queue": lambda w: w.qm.ack("tasks", w.held),
    "nack in a queue": lambda w: w.qm.nack("tasks", w.held),
    "extend": lambda w: w.qm.extend("tasks", w.held, 60),
    "release_consumer": lambda w: w.qm.release_consumer("tasks", "w1"),
    "peek in a queue": lambda w: w.qm.peek("tasks"),
    "purge": lambda w: w.qm.purge("tasks"),
    "pause a queue": lambda w: w.qm.pause("tasks"),
    "stats of a queue": lambda w: w.qm.stats("tasks"),
    "dead_letters": lambda w: w.qm.dead_letters("tasks"),
    "retry_dead_letter": lambda w: w.qm.retry_dead_letter("tasks", w.dead),
    "redrive": lambda w: w.qm.redrive("tasks"),
    "purge_dead_letters": lambda w: w.qm.purge_dead_letters("tasks"),
}


def test_every_call_of_a_closed_broker_says_that_it_is_closed(tmp_path: Path) -> None:
    world = World(tmp_path / "data")
    world.broker.close()
    world.broker.close()

    for verb, call in CLOSED.items():
        with pytest.raises(BrokerClosed) as caught:
            call(world)
        check_words(caught.value, Hostile(verb, call, BrokerClosed, "the broker is closed"))
        check_copies(caught.value)
