"""Groups that have moved to another pool, because a pool came or went, while messages of them are in the old one.

What comes after those must not overtake them: it goes back to its queue until they have left the router.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock.router.core.group import key_of
from penstock.router.core.message import Item

Holds = Callable[[Item], bool]


class Moved:
    """By pool, as the messages name it, and group: the messages that are ahead, in order."""

    __slots__ = ("_ahead", "_back")

    def __init__(self) -> None:
        self._ahead: dict[tuple[str, str], list[Item]] = {}
        self._back: dict[tuple[str, str], dict[str, int]] = {}
        """Those of them that went back to their queue: they come in before what waits for them."""

    def __len__(self) -> int:
        return len(self._ahead)

    def add(self, items: Iterable[Item]) -> None:
        """These stay where they are, and others of their groups go elsewhere from now on."""
        for item in items:
            self._ahead.setdefault(_key(item), []).append(item)

    def is_behind(self, item: Item, holds: Holds) -> bool:
        """Whether a message that arrives has to wait for others; `holds` tells what is in the router."""
        return any(map(holds, self._ahead.get(_key(item), ())))

    def sent_back(self, item: Item, until: int) -> dict[str, int]:
        """A message goes back to its queue: all of its group that were ahead and did so, and until when each is waited for.

        Nothing when it is not one of them.
        """
        key = _key(item)
        if not any(one is item for one in self._ahead.get(key, ())):
            return {}
        self._back.setdefault(key, {})[key_of(item)] = until
        return self._back[key]

    def forget(self, holds: Holds) -> None:
        """Forget the groups that nothing is ahead of any more."""
        for key in [key for key, ahead in self._ahead.items() if not any(map(holds, ahead))]:
            del self._ahead[key]
            self._back.pop(key, None)


def _key(item: Item) -> tuple[str, str]:
    return item.pointer.pool, item.pointer.group
