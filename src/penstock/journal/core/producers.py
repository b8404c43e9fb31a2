"""Idempotent publishing: the last (producer, sequence) pairs of a stream, with the offsets of their messages.

The window has the last `SEQUENCES` sequence numbers of each of the last `PRODUCERS` producers. A repeat inside it returns the
first message; an older pair is forgotten, and would be published again.
"""

from __future__ import annotations

import msgspec

SEQUENCES = 1_000
PRODUCERS = 1_000


class Producers(msgspec.Struct, array_like=True):
    """The window of one stream. Both levels are in order of use, oldest first."""

    known: dict[str, dict[int, tuple[int, int]]] = {}

    def find(self, producer_id: str, sequence: int) -> tuple[int, int] | None:
        """(offset, publish_at) of the message that was published with this pair."""
        taken = self.known.get(producer_id)
        return taken.get(sequence) if taken else None

    def learn(self, producers: list[tuple[str, int] | None], first: int, at: int) -> None:
        """Remember the pairs of messages that were published from offset `first` on."""
        for index, pair in enumerate(producers):
            if pair is None:
                continue
            producer_id, sequence = pair
            taken = self.known.pop(producer_id, None) or {}
            self.known[producer_id] = taken
            taken[sequence] = (first + index, at)
            if len(taken) > SEQUENCES:
                del taken[next(iter(taken))]
            if len(self.known) > PRODUCERS:
                del self.known[next(iter(self.known))]
