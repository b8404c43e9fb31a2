"""Which groups of a batch have failed (specification 001, "FIFO Enforcement"): what comes after is not tried any more."""

from __future__ import annotations


class BatchGroups:
    """For each batch and group: how many of its messages are left, and whether one has failed."""

    __slots__ = ("_failed", "_left")

    def __init__(self) -> None:
        self._left: dict[tuple[int, str], int] = {}
        self._failed: set[tuple[int, str]] = set()

    def __len__(self) -> int:
        return len(self._left)

    def add(self, batch: int, group: str) -> None:
        """A message of this batch and group has come."""
        key = batch, group
        self._left[key] = self._left.get(key, 0) + 1

    def fail(self, batch: int, group: str) -> None:
        """A message of them failed."""
        if (batch, group) in self._left:
            self._failed.add((batch, group))

    def has_failed(self, batch: int, group: str) -> bool:
        """Whether one before has failed."""
        return bool(self._failed) and (batch, group) in self._failed

    def done(self, batch: int, group: str) -> None:
        """A message of them is settled, whatever came of it. With the last one they are forgotten."""
        key = batch, group
        left = self._left.get(key, 0) - 1
        if left > 0:
            self._left[key] = left
        else:
            self._left.pop(key, None)
            self._failed.discard(key)
