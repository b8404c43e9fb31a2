"""The same machines over a data directory: closing and opening again, at any step, changes nothing that can be observed.

The models know nothing of a restart. They go on, and after it the broker must still agree with them in everything: stats,
deliveries, ack ids from before, reasons, dead letters, delays, snapshots, pauses.
"""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

from hypothesis import strategies as st
from hypothesis.stateful import rule

from penstock import Broker, Message, MessageQueue, QueueManager
from penstock.broker import window
from penstock.broker.broker import WINDOW_BYTES
from penstock.broker.core import pages
from penstock.broker.core.queue import Queue
from penstock.broker.settlement import find
from penstock.testing import ManualClock
from tests.property.strategies import effort, patience
from tests.property.test_message_queue_machine import SubscriptionMachine
from tests.property.test_queue_manager_machine import QueueMachine

# How much of the backlog is in memory must not matter: nothing, a message or two, everything.
windows = st.sampled_from([0, 50, WINDOW_BYTES])


def tiny_pages() -> ExitStack:
    """Pages of four messages until it is closed, so that a short life has many of them."""
    stack = ExitStack()
    for module, name, value in (
        (pages, "PAGE", 4),
        (pages, "_SHIFT", 2),
        (pages, "_MASK", 3),
        (window, "PAGE", 4),
        (window, "READ_AHEAD", 8),
    ):
        stack.enter_context(mock.patch.object(module, name, value))
    return stack


class DataDirectory:
    """Where a broker lives, and where its copy goes when it crashes."""

    def __init__(self) -> None:
        self._root = TemporaryDirectory(prefix="penstock-restart-")
        self._crashes = 0
        self.path = Path(self._root.name) / "0"

    def copy(self, broker: Broker) -> None:
        """Take over what is on disk at this moment, as if the power had gone; the old broker must write no more to be of use."""
        # The second one returns when the work that follows the first one's commit is over, too: nothing writes during the copy.
        broker.sync()
        broker.sync()
        self._crashes += 1
        target = Path(self._root.name) / str(self._crashes)
        target.mkdir()
        for name in ("penstock.db", "penstock.db-wal", "FORMAT", "high-water"):
            shutil.copyfile(self.path / name, target / name)
        self.path = target

    def remove(self) -> None:
        self._root.cleanup()


class DurableSubscriptionMachine(SubscriptionMachine):
    """Subscriptions that live on disk."""

    def __init__(self) -> None:
        self.patches = tiny_pages()
        super().__init__()

    def open(self, held: int = WINDOW_BYTES) -> MessageQueue:
        if not hasattr(self, "directory"):
            self.directory = DataDirectory()
        return MessageQueue(broker=Broker(data_dir=self.directory.path, clock=self.clock, window_bytes=held))

    def teardown(self) -> None:
        self.queue.broker.close()
        self.patches.close()
        self.directory.remove()

    @rule(held=windows)
    def restart(self, held: int) -> None:
        self.queue.broker.close()
        self.queue = self.open(held)

    @rule(held=windows)
    def crash(self, held: int) -> None:
        abandoned = self.queue.broker
        self.directory.copy(abandoned)
        self.queue = self.open(held)
        abandoned.close()


def test_a_delivery_after_crashes_within_one_second_has_an_ack_id_of_its_own() -> None:
    clock, directory = ManualClock(), DataDirectory()

    def reopened() -> MessageQueue:
        return MessageQueue(broker=Broker(data_dir=directory.path, clock=clock))

    def crashed(queue: MessageQueue) -> MessageQueue:
        directory.copy(queue.broker)
        queue.broker.close()
        return reopened()

    queue = reopened()
    queue.register_topic("t")
    queue.register_subscription("s", "t")
    queue.publish("t", [Message(b"x")])
    queue = crashed(queue)
    [first] = queue.pull("s")
    queue = crashed(queue)
    with queue.broker.present() as now:
        found = find(queue.broker, first.ack_id)
        assert found is not None
        queue.broker.settle(found[0], [found[1]], now, Queue.give_back)  # not counted: the next one is attempt 1, too
    queue = crashed(queue)
    [second] = queue.pull("s")
    assert (second.id, second.delivery_attempt) == (first.id, 1)
    assert second.ack_id != first.ack_id
    queue.broker.close()
    directory.remove()


class DurableQueueMachine(QueueMachine):
    """A work queue that lives on disk."""

    def __init__(self) -> None:
        self.patches = tiny_pages()
        super().__init__()

    def open(self, held: int = WINDOW_BYTES) -> QueueManager:
        if not hasattr(self, "directory"):
            self.directory = DataDirectory()
        return QueueManager(broker=Broker(data_dir=self.directory.path, clock=self.clock, window_bytes=held))

    def teardown(self) -> None:
        self.manager.broker.close()
        self.patches.close()
        self.directory.remove()

    @rule(held=windows)
    def restart(self, held: int) -> None:
        self.manager.broker.close()
        self.manager = self.open(held)

    @rule(held=windows)
    def crash(self, held: int) -> None:
        abandoned = self.manager.broker
        self.directory.copy(abandoned)
        self.manager = self.open(held)
        abandoned.close()


# Every step writes to a disk and every restart opens a database, so fewer lives are tried.
TestSubscriptionsAcrossRestarts = patience(DurableSubscriptionMachine.TestCase)
TestSubscriptionsAcrossRestarts.settings = effort(1)
TestQueuesAcrossRestarts = patience(DurableQueueMachine.TestCase)
TestQueuesAcrossRestarts.settings = effort(1)
