"""Message groups: how the messages of a group stay in order.

`GroupLane` holds the messages of one group in one pool; one at a time is processed.

    idle ──submit──> ready ──take──> busy ──finish──┬──> ready, or idle if the lane is empty
                       ^                            └──> held: the first one waits for its next attempt, the others behind it
                       └──────the time has come─────────────┘

`away` are messages that were requeued because there was no room, or with a long delay: later messages of the group must not
overtake them, so they are requeued as well until the first one is here again.

`BatchGroups` knows which groups of a batch have failed (specification 001, "FIFO Enforcement"). `GroupMoves` knows the groups
that moved to another pool, because a pool was added or removed, while some of their messages are still in the old one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from penstock.router.core.message import RoutedMessage


class GroupLane:
    """A group of a pool. Only the pool changes its state."""

    __slots__ = ("away", "group", "idle_at", "is_busy", "is_held", "is_ready", "is_strict", "regular", "urgent", "urgents")

    def __init__(self, group: str, *, is_strict: bool = True) -> None:
        self.group = group
        self.is_strict = is_strict
        """Whether a failed message holds back the others."""
        self.regular: deque[RoutedMessage] = deque()
        self.urgent: deque[RoutedMessage] | None = None
        """Urgent messages; only if priority counts inside a group."""
        self.urgents = 0
        """How many urgent messages wait, if priority does not count inside a group: they make the whole group go first."""
        self.is_ready = False
        self.is_busy = False
        self.is_held = False
        self.idle_at = 0
        self.away: dict[str, int] | None = None
        """The messages that returned to their queue, by key and in order: until when each is waited for."""

    @property
    def is_empty(self) -> bool:
        return not self.regular and not self.urgent

    @property
    def first(self) -> RoutedMessage:
        """The next message, without taking it; only if a message waits."""
        return (self.urgent or self.regular)[0]

    def pop(self) -> RoutedMessage:
        return self.urgent.popleft() if self.urgent else self.regular.popleft()

    def remove(self, item: RoutedMessage) -> bool:
        """Remove a message, at any position; False if it does not wait here."""
        for row in (self.regular, self.urgent):
            if row and item in row:
                row.remove(item)
                return True
        return False

    def clear(self) -> list[RoutedMessage]:
        """Remove all waiting messages; returns them in order."""
        found = [*(self.urgent or ()), *self.regular]
        self.regular.clear()
        self.urgents = 0
        if self.urgent:
            self.urgent.clear()
        return found

    def cut(self, keep: int) -> list[RoutedMessage]:
        """Remove all but the first `keep` waiting messages; returns them in order. Not if priority counts inside a group."""
        rest = [self.regular.pop() for _ in range(len(self.regular) - keep)]
        rest.reverse()
        self.urgents -= sum(item.pointer.is_urgent for item in rest)
        return rest

    def is_awaited(self, item: RoutedMessage) -> bool:
        """Whether a message is one that returned to its queue."""
        return self.away is not None and key_of(item) in self.away

    def is_in_turn(self, item: RoutedMessage, now: int, coming: set[str]) -> bool:
        """Whether an arriving message may enter now.

        `coming` are the keys of the messages that arrived with it and enter before it; if it may enter, its key is added.
        """
        key = key_of(item)
        away = self.away or {}
        for first, until in list(away.items()):
            if first == key:
                break
            if first in coming:
                continue
            if until > now:
                return False
            del away[first]  # it will not return: its queue deleted or dead-lettered it
        coming.add(key)
        return True

    def came_back(self, item: RoutedMessage) -> None:
        if self.away:
            self.away.pop(key_of(item), None)

    def sent_back(self, item: RoutedMessage, until: int) -> None:
        """A message returns to its queue, and is waited for until then. One that returned before keeps its place."""
        if self.away is None:
            self.away = {}
        self.away[key_of(item)] = until

    def sent_back_first(self, items: Sequence[RoutedMessage], until: int) -> None:
        """Messages from here return to their queue: they are waited for before those that never entered."""
        self.away = {**dict.fromkeys(map(key_of, items), until), **(self.away or {})}


def key_of(item: RoutedMessage) -> str:
    """What identifies a message in its group, also after a redelivery or a renaming of its queue."""
    return f"{item.pointer.message_id}\n{item.received.broker_id}"


class BatchGroups:
    """For each batch and group: how many messages are left, and whether one has failed.

    After a failure the later messages of that batch and group are not attempted.
    """

    __slots__ = ("_failed", "_left")

    def __init__(self) -> None:
        self._left: dict[tuple[int, str], int] = {}
        self._failed: set[tuple[int, str]] = set()

    def __len__(self) -> int:
        return len(self._left)

    def add(self, batch: int, group: str) -> None:
        key = batch, group
        self._left[key] = self._left.get(key, 0) + 1

    def fail(self, batch: int, group: str) -> None:
        if (batch, group) in self._left:
            self._failed.add((batch, group))

    def has_failed(self, batch: int, group: str) -> bool:
        """Whether an earlier one has failed."""
        return bool(self._failed) and (batch, group) in self._failed

    def done(self, batch: int, group: str) -> None:
        """A message of the group is settled, delivered or not. After the last one the group is forgotten."""
        key = batch, group
        left = self._left.get(key, 0) - 1
        if left > 0:
            self._left[key] = left
        else:
            self._left.pop(key, None)
            self._failed.discard(key)


Holds = Callable[[RoutedMessage], bool]


class GroupMoves:
    """By pool code of the messages, and group: the messages that are still in the old pool, in order.

    Later messages of these groups must not overtake them: they are requeued until the earlier ones have left the router.
    """

    __slots__ = ("_ahead", "_back")

    def __init__(self) -> None:
        self._ahead: dict[tuple[str, str], list[RoutedMessage]] = {}
        self._back: dict[tuple[str, str], dict[str, int]] = {}
        """Those of them that returned to their queue: they enter before the messages that wait for them."""

    def __len__(self) -> int:
        return len(self._ahead)

    def add(self, items: Iterable[RoutedMessage]) -> None:
        """These messages stay where they are; later messages of their groups go to another pool."""
        for item in items:
            self._ahead.setdefault(_key(item), []).append(item)

    def is_behind(self, item: RoutedMessage, holds: Holds) -> bool:
        """Whether an arriving message has to wait for others; `holds` returns whether a message is in the router."""
        return any(map(holds, self._ahead.get(_key(item), ())))

    def sent_back(self, item: RoutedMessage, until: int) -> dict[str, int]:
        """A message returns to its queue: all earlier messages of its group that did so, and until when each is waited for.

        Empty if it is not one of them.
        """
        key = _key(item)
        if not any(one is item for one in self._ahead.get(key, ())):
            return {}
        self._back.setdefault(key, {})[key_of(item)] = until
        return self._back[key]

    def forget(self, holds: Holds) -> None:
        """Forget the groups that have no earlier messages left."""
        for key in [key for key, ahead in self._ahead.items() if not any(map(holds, ahead))]:
            del self._ahead[key]
            self._back.pop(key, None)


def _key(item: RoutedMessage) -> tuple[str, str]:
    return item.pointer.pool, item.pointer.group
