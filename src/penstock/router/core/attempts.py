"""How often messages were tried that went back to their queue: when they come again, they do not begin anew."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.router.core.group import key_of
from penstock.router.core.message import Item

MOST = 100_000


class Tried:
    """Attempts by message. The oldest are forgotten when there are too many; all of them when the router ends."""

    def __init__(self, most: int = MOST) -> None:
        self._attempts: dict[str, int] = {}
        self._most = most

    def __len__(self) -> int:
        return len(self._attempts)

    def keep(self, item: Item) -> None:
        """A message goes back to its queue."""
        if item.attempts:
            self._attempts[key_of(item)] = item.attempts
            if len(self._attempts) > self._most:
                del self._attempts[next(iter(self._attempts))]

    def recall(self, items: Iterable[Item]) -> None:
        """Messages come from a queue: those that were here before go on counting."""
        if self._attempts:
            for item in items:
                item.attempts = self._attempts.pop(key_of(item), 0)
