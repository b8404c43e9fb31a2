"""Messages that were acked, but whose queue may not have heard of it: when one comes again, it is acked again, not delivered."""

from __future__ import annotations

from penstock.durations import DAY

KEPT_FOR = DAY // 2
"""No queue hides a message for longer."""
MOST = 100_000


class Settled:
    """The ids of messages whose ack failed. The oldest are forgotten when there are too many."""

    def __init__(self, most: int = MOST) -> None:
        self._ids: dict[str, int] = {}
        self._most = most

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, broker_id: str, now: int) -> None:
        """The ack of this message failed."""
        self._ids.pop(broker_id, None)
        self._ids[broker_id] = now
        while len(self._ids) > self._most or next(iter(self._ids.values())) <= now - KEPT_FOR:
            del self._ids[next(iter(self._ids))]

    def take(self, broker_id: str) -> bool:
        """Whether this message only has to be acked again; from now on it is not remembered."""
        return bool(self._ids) and self._ids.pop(broker_id, None) is not None
