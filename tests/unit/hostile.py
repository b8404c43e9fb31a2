"""The stage on which hostile inputs are tried: a broker with one of everything, and what must hold after a refused call."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from penstock import Broker, Message, MessageQueue, QueueConfig, QueueManager, SubscriptionOptions
from penstock.errors import InvalidAckId, InvalidArgument, InvalidFilter, PenstockError
from penstock.testing import ManualClock

MIB10 = 10 * 1024 * 1024
NAIVE = datetime(2026, 1, 1)  # noqa: DTZ001  # that is what is wrong with it


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError("not even this works")


def deep(depth: int) -> list[Any]:
    nested: list[Any] = []
    for _ in range(depth):
        nested = [nested]
    return nested


class World:
    """Both faces of one broker, with every kind of message that a call could name."""

    def __init__(self, data_dir: Path | None) -> None:
        self.clock = ManualClock()
        self.broker = Broker(clock=self.clock, data_dir=data_dir)
        # Any: the rows below hand over what the types forbid.
        self.mq: Any = MessageQueue(broker=self.broker)
        self.qm: Any = QueueManager(broker=self.broker)
        self._fill_topics()
        self._fill_queues()

    def _fill_topics(self) -> None:
        mq = self.mq
        patient = SubscriptionOptions(ack_deadline_seconds=600, message_ordering=True)
        for topic, subscription, options in (
            ("orders", "billing", patient),
            ("other", "audit", patient),
            ("narrow", "tight", SubscriptionOptions(max_messages=1, overflow="reject")),
            ("gone", "orphan", None),
            ("scratch", "scratch", None),
        ):
            mq.register_topic(topic)
            mq.register_subscription(subscription, topic, options)
        mq.unregister_topic("gone")
        mq.publish("narrow", [Message(b"the only one")])
        self.ids = mq.publish("orders", [Message(b"%d" % number) for number in range(4)])
        self.other_ids = mq.publish("other", [Message(b"of another topic")])
        settled, expired = mq.pull("billing", 2)
        mq.ack(settled.ack_id)
        mq.set_ack_deadline(expired.ack_id, 1)
        self.clock.advance(1)
        self.settled_ack_id, self.expired_ack_id = settled.ack_id, expired.ack_id
        self.leased = mq.pull("billing")[0]
        mq.create_snapshot("mark", "billing")
        mq.create_snapshot("elsewhere", "audit")

    def _fill_queues(self) -> None:
        qm = self.qm
        qm.create("tasks", QueueConfig(max_prefetch=5, default_prefetch=5))
        qm.create("other-tasks")
        qm.create("tiny", QueueConfig(max_depth=1))
        qm.create("scratch")
        qm.publish("tiny", b"the only one")
        self.foreign = self._taken("other-tasks", "w9", 86_400)
        self.done = self._taken("tasks", "w1", 60)
        qm.ack("tasks", self.done)
        self.dead = self._taken("tasks", "w1", 60)
        qm.nack("tasks", self.dead, requeue=False)
        self.held = self._taken("tasks", "w1", 86_400)
        self.late = self._taken("tasks", "w1", 1)
        self.clock.advance(1)
        self.waiting = qm.publish("tasks", b"waiting").message_id

    def _taken(self, queue: str, consumer_id: str, ack_deadline: float) -> str:
        published = self.qm.publish(queue, b"taken").message_id
        consumed: str = self.qm.consume(queue, consumer_id, ack_deadline=ack_deadline).message_id
        assert consumed == published
        return consumed

    def photograph(self) -> object:
        """Everything that can be seen from outside. The number of events says most: nothing happens without one."""
        self.broker.sync()
        return {
            "events": self.broker.journal.event_range(),
            "topics": self.mq.get_all_topics(),
            "subscriptions": self.mq.get_all_subscriptions(),
            "stats": [self.mq.stats(sub.name) for sub in self.mq.get_all_subscriptions() if not sub.detached],
            "queues": [(self.qm.stats(name), self.qm.config(name), self.qm.dead_letters(name)) for name in self.qm.list()],
            "health": self.broker.health,
        }

    def works(self) -> None:
        """Carry one message through each face."""
        ids = self.mq.publish("scratch", [Message(b"still", {"k": "v"})])
        (message,) = self.mq.pull("scratch")
        assert ([message.id], message.data, message.attributes) == (ids, b"still", {"k": "v"})
        self.mq.ack(message.ack_id)
        published = self.qm.publish("scratch", {"still": "here"})
        task = self.qm.consume("scratch")
        assert (task.message_id, task.payload) == (published.message_id, {"still": "here"})
        self.qm.ack("scratch", task.message_id)


@dataclass(frozen=True)
class Hostile:
    """One row: a call, the error it deserves, and what its text must say."""

    what: str
    call: Callable[..., object]
    error: type[PenstockError]
    fragment: str

    def __str__(self) -> str:
        return self.what


def refused(what: str, call: Callable[..., object], fragment: str, error: type[PenstockError] = InvalidArgument) -> Hostile:
    return Hostile(what, call, error, fragment)


def expect_refusals(table: Iterable[Hostile], subtests: pytest.Subtests, folder: Path | None) -> None:
    """Try every row on one world, since each row proves that it left no trace; after a failure there is a new one."""
    world: World | None = None
    for number, row in enumerate(table):
        with subtests.test(row.what):
            world = world or World(folder / str(number) if folder else None)
            try:
                expect_refusal(row, world)
            except BaseException:
                world.broker.close()
                world = None
                raise
    if world:
        world.broker.close()


def expect_refusal(row: Hostile, world: World) -> None:
    """The call is refused with the right words, nothing has changed, and everything goes on."""
    before = world.photograph()

    with pytest.raises(PenstockError) as caught:
        row.call(world)

    error = caught.value
    check_words(error, row)
    check_copies(error)
    assert world.photograph() == before
    world.works()


def check_words(error: PenstockError, row: Hostile) -> None:
    text = str(error)
    assert type(error) is row.error
    assert row.fragment in text
    assert error.message == text
    assert len(text) < 900, "an error shows a line of the value, not all of it"
    if isinstance(error, InvalidArgument) and not isinstance(error, InvalidAckId | InvalidFilter):
        assert "expected" in text or "needs" in text, "what would have been right"


def check_copies(error: PenstockError) -> None:
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(twin) is type(error)
        assert str(twin) == str(error)
        assert (twin.code, twin.reason, twin.transient, twin.hint) == (error.code, error.reason, error.transient, error.hint)
        assert getattr(twin, "__notes__", []) == getattr(error, "__notes__", [])
