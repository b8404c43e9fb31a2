"""Warnings that would come with every message: the first at once, then one a second with how many there were."""

from __future__ import annotations

import logging

from penstock.clock import monotonic
from penstock.durations import SECOND

log = logging.getLogger("penstock.broker")


class DiscardWarnings:
    """Warns that messages were discarded for full queues."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[int, int]] = {}
        """By queue: when it was last warned of, and how many messages were discarded since."""

    def add(self, queue: str, count: int) -> None:
        """Messages were discarded for a queue."""
        warned_at, silent = self._since.get(queue, (-SECOND, 0))
        if monotonic() - warned_at < SECOND:
            self._since[queue] = (warned_at, silent + count)
            return
        self._since[queue] = (monotonic(), 0)
        log.warning("%r is full: %d new messages were discarded for it", queue, silent + count)
