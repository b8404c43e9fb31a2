"""The same machines over a data directory: closing and opening again, at any step, changes nothing that can be observed.

The models know nothing of a restart. They go on, and after it the broker must still agree with them in everything: stats,
deliveries, ack ids from before, reasons, dead letters, delays, snapshots, pauses.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import settings
from hypothesis.stateful import rule

from penstock import Broker, MessageQueue, QueueManager
from tests.property.test_message_queue_machine import SubscriptionMachine
from tests.property.test_queue_manager_machine import QueueMachine


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

    def open(self) -> MessageQueue:
        if not hasattr(self, "directory"):
            self.directory = DataDirectory()
        return MessageQueue(clock=self.clock, data_dir=self.directory.path)

    def teardown(self) -> None:
        super().teardown()
        self.directory.remove()

    @rule()
    def restart(self) -> None:
        self.queue.close()
        self.queue = self.open()

    @rule()
    def crash(self) -> None:
        abandoned = self.queue
        self.directory.copy(abandoned.broker)
        self.queue = self.open()
        abandoned.close()


class DurableQueueMachine(QueueMachine):
    """A work queue that lives on disk."""

    def open(self) -> QueueManager:
        if not hasattr(self, "directory"):
            self.directory = DataDirectory()
        return QueueManager(clock=self.clock, data_dir=self.directory.path)

    def teardown(self) -> None:
        super().teardown()
        self.directory.remove()

    @rule()
    def restart(self) -> None:
        self.manager.close()
        self.manager = self.open()

    @rule()
    def crash(self) -> None:
        abandoned = self.manager
        self.directory.copy(abandoned.broker)
        self.manager = self.open()
        abandoned.close()


# Every step writes to a disk and every crash opens a database, so a default run tries fewer lives.
_fewer = settings(max_examples=max(settings.default.max_examples // 2, 1)) if settings.default else settings()

TestSubscriptionsAcrossRestarts = DurableSubscriptionMachine.TestCase
TestSubscriptionsAcrossRestarts.settings = _fewer
TestQueuesAcrossRestarts = DurableQueueMachine.TestCase
TestQueuesAcrossRestarts.settings = _fewer
