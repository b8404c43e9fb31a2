"""Who looks when something may be deliverable: the feeds of one queue, in turn.

However many wait, a ring of the queue's bell is one look, which ends as soon as there is nothing left to hand out. A hundred
idle consumers cost a publisher no more than one.
"""

from __future__ import annotations

from typing import Protocol

from penstock.broker.aio import Nudge
from penstock.broker.broker import Broker


class Looker(Protocol):
    """Who wants to hand something out."""

    def look(self) -> bool:
        """Hand out what there is; False when nothing is left for others either."""


class Rota:
    """The feeds of one queue. All methods belong to the event loop, but for `ring`."""

    def __init__(self, broker: Broker, number: int) -> None:
        self._broker = broker
        self._number = number
        self._lookers: dict[Looker, None] = {}
        """Longest without a delivery first."""
        self._nudge = Nudge(self._look)
        self.ring = self._nudge.ring
        """Have them look, soon."""

    def __len__(self) -> int:
        return len(self._lookers)

    def join(self, looker: Looker) -> None:
        """Look from now on."""
        if not self._lookers:
            with self._broker.lock:
                self._broker.bells.hang(self._number, self.ring)
        self._lookers[looker] = None

    def leave(self, looker: Looker) -> None:
        """Look no longer. Does nothing for one that did not."""
        if self._lookers.pop(looker, self) is None and not self._lookers:
            with self._broker.lock:
                self._broker.bells.take_down(self._number, self.ring)

    def served(self, looker: Looker) -> None:
        """It had its turn: others come first the next time."""
        del self._lookers[looker]
        self._lookers[looker] = None

    def _look(self) -> None:
        for looker in [*self._lookers]:
            if not looker.look():
                break
