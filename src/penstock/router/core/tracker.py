"""What the router remembers about messages.

- `Tracker`: which messages are in the router (specification 001, "In-Flight Message Tracking"). A message is identified by its
  queue's id for it (by its own id if the queue has none), and by its own id. The first shows a redelivery by the queue, the
  second a message that was published twice.
- `AttemptCounts`: how many attempts a message had before it was requeued, so that the count continues when it is redelivered.
- `LateAcks`: messages whose ack may not have reached their queue. A redelivered one is acked again, not delivered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum

from penstock.durations import DAY
from penstock.router.core.group import key_of
from penstock.router.core.message import RoutedMessage

MOST = 100_000
"""How many messages `AttemptCounts` and `LateAcks` remember."""
RETENTION = DAY // 2
"""How long `LateAcks` remembers a message: no queue hides a message for longer."""

_NONE: Mapping[str, RoutedMessage] = {}


class DuplicateKind(Enum):
    """How a message that arrives is already known."""

    REDELIVERED = "redelivered"
    """The same message of the queue: its lease expired while it was being processed."""
    REQUEUED = "requeued"
    """Another message of a queue with the same id: it was published twice."""


class Tracker:
    """The messages in the router, from routing until they are settled."""

    __slots__ = ("_by_message", "_by_queue")

    def __init__(self) -> None:
        self._by_queue: dict[str, dict[str, RoutedMessage]] = {}
        self._by_message: dict[str, RoutedMessage] = {}

    def __len__(self) -> int:
        return len(self._by_message)

    def __iter__(self) -> Iterator[RoutedMessage]:
        return iter(self._by_message.values())

    def seen(self, item: RoutedMessage) -> tuple[DuplicateKind, RoutedMessage] | None:
        """How a message that arrives is already known, with the one in the router; None for a new one."""
        same = self._by_queue.get(item.queue)
        if same is not None:
            found = same.get(item.received.broker_id or item.pointer.message_id)
            if found is not None:
                return DuplicateKind.REDELIVERED, found
        found = self._by_message.get(item.pointer.message_id)
        if found is None:
            return None
        first, second = found.received.broker_id, item.received.broker_id
        # A queue that was renamed delivers the same message; without ids to compare, the queues' names decide.
        is_same = first == second if first and second else found.queue == item.queue
        return (DuplicateKind.REDELIVERED if is_same else DuplicateKind.REQUEUED), found

    def fresh(self, items: Sequence[RoutedMessage]) -> tuple[Sequence[RoutedMessage], list[RoutedMessage]]:
        """The messages of a batch of one queue that are not in the router, and the others."""
        by_message, of_queue = self._by_message, self._by_queue.get(items[0].queue, _NONE)
        if not by_message:
            return items, []
        known = [
            item
            for item in items
            if item.pointer.message_id in by_message or (item.received.broker_id or item.pointer.message_id) in of_queue
        ]
        if not known:
            return items, known
        others = set(map(id, known))
        return [item for item in items if id(item) not in others], known

    def track(self, items: Sequence[RoutedMessage]) -> tuple[Sequence[RoutedMessage], list[RoutedMessage]]:
        """Remember messages of one queue; returns those that were added, and those that were already in the router."""
        by_message, queue = self._by_message, items[0].queue
        of_queue = self._by_queue.get(queue)
        if of_queue is None:
            of_queue = self._by_queue[queue] = {}
        repeated: list[RoutedMessage] = []
        for item in items:
            message_id = item.pointer.message_id
            key = item.received.broker_id or message_id
            if message_id in by_message or key in of_queue:
                repeated.append(item)
            else:
                of_queue[key] = by_message[message_id] = item
        if not repeated:
            return items, repeated
        return [item for item in items if by_message.get(item.pointer.message_id) is item], repeated

    def renew(self, item: RoutedMessage, again: RoutedMessage) -> None:
        """A message in the router was redelivered: the new delivery counts from now on, and its consumer settles it."""
        same = self._by_queue[item.queue]
        message_id = item.pointer.message_id
        key, new_key = item.received.broker_id or message_id, again.received.broker_id or message_id
        if key != new_key or item.queue != again.queue:
            if new_key in self._by_queue.get(again.queue, _NONE):
                return  # the queue has two messages with the same id: both must be remembered
            del same[key]
            self._by_queue.setdefault(again.queue, {})[new_key] = item
        item.received, item.queue, item.leased_at = again.received, again.queue, again.leased_at

    def remove(self, item: RoutedMessage) -> bool:
        """Forget a message; False if it is not in the router."""
        if self._by_message.get(item.pointer.message_id) is not item:  # as `holds`, which would cost a call for each message
            return False
        del self._by_message[item.pointer.message_id]
        del self._by_queue[item.queue][item.received.broker_id or item.pointer.message_id]
        return True

    def forget_empty(self) -> None:
        """Forget queues that have no message in the router."""
        for queue in [queue for queue, items in self._by_queue.items() if not items]:
            del self._by_queue[queue]

    def holds(self, item: RoutedMessage) -> bool:
        """Whether exactly this object is in the router."""
        return self._by_message.get(item.pointer.message_id) is item

    def find(self, message_id: str) -> RoutedMessage | None:
        """The message with this id, its own or its queue's, if it is in the router."""
        found = self._by_message.get(message_id)
        return found or next((same[message_id] for same in self._by_queue.values() if message_id in same), None)

    def of_queue(self, queue: str) -> list[RoutedMessage]:
        """The messages that came from a queue, oldest first."""
        return list(self._by_queue.get(queue, {}).values())


class AttemptCounts:
    """Attempts by message. The oldest are forgotten when there are too many; all are lost when the router stops."""

    def __init__(self, most: int = MOST) -> None:
        self._attempts: dict[str, tuple[int, int]] = {}
        """By key: attempts, and how many of them count."""
        self._most = most

    def __len__(self) -> int:
        return len(self._attempts)

    def keep(self, item: RoutedMessage) -> None:
        """Remember the attempts of a message that is requeued."""
        if item.attempts:
            self._attempts[key_of(item)] = item.attempts, item.failures
            if len(self._attempts) > self._most:
                del self._attempts[next(iter(self._attempts))]

    def recall(self, items: Iterable[RoutedMessage]) -> None:
        """Restore the attempts of messages that were here before."""
        if self._attempts:
            for item in items:
                item.attempts, item.failures = self._attempts.pop(key_of(item), (0, 0))


class LateAcks:
    """The ids of messages whose ack failed. The oldest are forgotten when there are too many."""

    def __init__(self, most: int = MOST) -> None:
        self._ids: dict[str, int] = {}
        self._most = most

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, broker_id: str, now: int) -> None:
        self._ids.pop(broker_id, None)
        self._ids[broker_id] = now
        while len(self._ids) > self._most or next(iter(self._ids.values())) <= now - RETENTION:
            del self._ids[next(iter(self._ids))]

    def take(self, broker_id: str) -> bool:
        """Whether this message only needs another ack; it is then forgotten."""
        return bool(self._ids) and self._ids.pop(broker_id, None) is not None
