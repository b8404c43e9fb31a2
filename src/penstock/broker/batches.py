"""Planned batches: the messages that one consumer holds of a queue until all of them are settled at once.

A batch may hold many messages of an ordering key, in order, and prefetch does not limit it. Its messages are those that its
identity holds: as durable as leases are, and the same after a restart. A document that belongs to the batch is stored in the
commit of the last change that it describes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from penstock.broker.broker import Broker
from penstock.broker.consumer import PLAIN, Consumer, DeliveryRules, Find, held_by
from penstock.broker.settlement import Settlement, new_deadline
from penstock.errors import FailedPrecondition
from penstock.journal.core import events
from penstock.journal.core.events import column, text_column
from penstock.values.lease import Lease
from penstock.values.policy import MAX_COUNT

SLICE = 1_000
"""How many messages are taken or settled before others get the broker's lock."""


class Attempt(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One attempt to deliver a message of a batch, for the event log."""

    offset: int
    message_id: str
    pool: str
    target: str
    number: int
    calls: int
    status: int
    duration: int
    outcome: str
    error: str = ""


Ending = tuple[Sequence[int], Settlement]
"""The offsets of messages, and how their deliveries end."""


class BatchConsumer(Consumer):
    """The holder of a query's batches. `hold_for`: microseconds until its messages are redelivered, unless that is extended."""

    identity: str

    def __init__(
        self, broker: Broker, find: Find, name: str, rules: DeliveryRules = PLAIN, *, identity: str, hold_for: int
    ) -> None:
        super().__init__(
            broker,
            find,
            name,
            rules,
            identity=identity,
            ack_deadline=hold_for,
            prefetch=MAX_COUNT,
            key_window=MAX_COUNT,
            follows=True,
        )

    def attach(self) -> None:
        """Find the queue. NotFound if there is none, FailedPrecondition if its messages cannot be taken in batches."""
        self.take(0)
        if self._rules.transforms(self.queue):
            raise FailedPrecondition(
                f"subscription {self.name!r} transforms its messages, which batches do not",
                hint="take them from a subscription without transforms",
            )

    def fill(self, rows: int, max_bytes: int) -> None:
        """Take more deliverable messages; this may read from the disk."""
        while rows > 0 and max_bytes > 0:
            leases = self.take(min(rows, SLICE), max_bytes)
            rows -= len(leases)
            max_bytes -= sum([lease.message.size for lease in leases])
            if self._queue.absent is not None:
                self._broker.load(self._queue)
            elif not leases:
                return

    def extend(self, hold_for: int) -> int:
        """Hold all messages for this many microseconds from now; returns how many there are.

        They get one deadline, in one commit: a batch expires as a whole, so its redelivered messages stay in order.
        """
        broker = self._broker
        with broker.lock:
            broker.check_open()
            queue = broker.catalog.queues.get(self.number)
            held = held_by(queue, self.identity) if queue is not None else []
            if queue is not None and held:
                broker.settle(queue, held, broker.clock.now(), new_deadline(hold_for))
        return len(held)

    def end(
        self,
        endings: Iterable[Ending],
        attempts: Iterable[Attempt] = (),
        *,
        source: str = "",
        document: tuple[str, bytes] | None = None,
    ) -> int:
        """End deliveries that it still holds; returns how many. Attempts are recorded for messages that were held until now.

        All of this, and the document, are one commit.
        """
        broker, ended = self._broker, 0
        now = broker.clock.now()
        with broker.lock:
            broker.check_open()
            queue = broker.catalog.queues.get(self.number)
            held = {} if queue is None else {offset: queue.lease_of(offset) for offset in queue.holding(self.identity).held}
            tried = [(one, lease) for one in attempts if (lease := held.get(one.offset)) is not None]
            if queue is not None and tried:
                broker.emit(_attempted(queue.number, source, now, tried))
            for offsets, verb in endings:
                # Looked up again: earlier endings may have released other messages of the same key.
                holding = queue.holding(self.identity).held if queue is not None else set[int]()
                leases = [lease for offset in offsets if offset in holding and (lease := held.get(offset)) is not None]
                if queue is not None and leases:
                    broker.settle(queue, leases, now, verb)
                    ended += len(leases)
            if document is not None:
                broker.emit(broker.catalog.keep_document(*document, now))
        return ended

    def durable(self) -> None:
        """Return when everything so far is on disk, and dead letters have arrived."""
        self._broker.sync()
        self._broker.deliver_forwards()


def _attempted(queue: int, source: str, now: int, tried: Sequence[tuple[Attempt, Lease]]) -> events.Attempted:
    attempts = [one for one, _ in tried]
    return events.Attempted(
        queue,
        now,
        [one.offset for one in attempts],
        column([lease.message.publish_at for _, lease in tried]),
        [one.message_id for one in attempts],
        source,
        text_column([one.pool for one in attempts]),
        text_column([one.target for one in attempts]),
        column([one.number for one in attempts]),
        column([one.calls for one in attempts]),
        column([one.status for one in attempts]),
        column([one.duration for one in attempts]),
        text_column([one.outcome for one in attempts]),
        text_column([one.error for one in attempts]),
    )
