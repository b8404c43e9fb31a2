"""Notifies those who wait for a queue or read a topic's log that there may be something new.

A callback returns at once: it notifies a thread or schedules work in an event loop. It belongs to one queue or topic, so a
publish wakes only those who can use it. Queues and topics have distinct numbers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

Notify = Callable[[], None]


class Notifier:
    """The callbacks of all who wait. Every method is called with the broker's lock held."""

    __slots__ = ("callbacks",)

    def __init__(self) -> None:
        self.callbacks: dict[int, OrderedDict[Notify, None]] = {}
        """By the number of the queue or topic; empty when nobody waits, so that a publisher can look without a call."""

    def add(self, queue: int, notify: Notify) -> None:
        """Call `notify` when something may be deliverable in a queue."""
        self.callbacks.setdefault(queue, OrderedDict())[notify] = None

    def remove(self, queue: int, notify: Notify) -> None:
        """Stop calling `notify`."""
        callbacks = self.callbacks.get(queue)
        if callbacks is not None:
            callbacks.pop(notify, None)
            if not callbacks:
                del self.callbacks[queue]

    def notify(self, queue: int) -> None:
        """Something may be deliverable: let those who wait look, another one first each time."""
        callbacks = self.callbacks.get(queue)
        if callbacks:
            if len(callbacks) > 1:
                callbacks.move_to_end(next(iter(callbacks)))
            for notify in callbacks:
                notify()

    def notify_all(self) -> None:
        """What exists has changed: let everybody look."""
        for queue in list(self.callbacks):
            self.notify(queue)
