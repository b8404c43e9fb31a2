"""Who waits for a queue or reads a topic's log, and how they are told that there may be something new.

A ring is a function that returns at once: it notifies a thread or schedules work in an event loop. One that waits hangs its ring
on one queue or topic, so a publish wakes those who can use it and nobody else. No two of these have the same number.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

Ring = Callable[[], None]


class Bells:
    """The rings of all who wait. Every method is called with the broker's lock held."""

    __slots__ = ("rings",)

    def __init__(self) -> None:
        self.rings: dict[int, OrderedDict[Ring, None]] = {}
        """By the number of the queue or topic; empty when nobody waits, so that a publisher can look without a call."""

    def hang(self, queue: int, ring: Ring) -> None:
        """Ring when something may be deliverable in a queue."""
        self.rings.setdefault(queue, OrderedDict())[ring] = None

    def take_down(self, queue: int, ring: Ring) -> None:
        """Ring no longer."""
        rings = self.rings.get(queue)
        if rings is not None:
            rings.pop(ring, None)
            if not rings:
                del self.rings[queue]

    def ring(self, queue: int) -> None:
        """Something may be deliverable: let those who wait look, another one first each time."""
        rings = self.rings.get(queue)
        if rings:
            if len(rings) > 1:
                rings.move_to_end(next(iter(rings)))
            for ring in rings:
                ring()

    def ring_all(self) -> None:
        """What exists has changed: let everybody look."""
        for queue in list(self.rings):
            self.ring(queue)
