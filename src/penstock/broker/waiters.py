"""Notifies waiters for a queue, and readers of a topic's log, of possible new messages.

A callback returns at once: it notifies a thread or schedules work in an event loop. It belongs to one queue or topic, so a
publish wakes only waiters that can use it. Queues and topics have distinct numbers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

Notify = Callable[[], None]


class Notifier:
    """The callbacks of all waiters. Call every method with the broker's lock held."""

    __slots__ = ("callbacks",)

    def __init__(self) -> None:
        self.callbacks: dict[int, OrderedDict[Notify, None]] = {}
        """By number of the queue or topic; empty if there are no waiters, so that a publisher can check it without a call."""

    def add(self, queue: int, notify: Notify) -> None:
        """Call `notify` when messages of a queue may be deliverable."""
        self.callbacks.setdefault(queue, OrderedDict())[notify] = None

    def remove(self, queue: int, notify: Notify) -> None:
        """Stop calling `notify`."""
        callbacks = self.callbacks.get(queue)
        if callbacks is not None:
            callbacks.pop(notify, None)
            if not callbacks:
                del self.callbacks[queue]

    def notify(self, queue: int) -> None:
        """Notify the waiters that messages may be deliverable, another one first each time."""
        callbacks = self.callbacks.get(queue)
        if callbacks:
            if len(callbacks) > 1:
                callbacks.move_to_end(next(iter(callbacks)))
            for notify in callbacks:
                notify()

    def notify_all(self) -> None:
        """Notify all waiters that topics or queues have changed."""
        for queue in list(self.callbacks):
            self.notify(queue)
