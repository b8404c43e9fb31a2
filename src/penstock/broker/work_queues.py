"""Messages of a work queue by their ids: settling leased messages, and the list of dead letters.

Every function takes the lock itself, and processes due work first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import nsmallest
from typing import TYPE_CHECKING, NamedTuple

from penstock.broker.broker import Broker
from penstock.broker.catalog import Catalog
from penstock.broker.core.queue import Queue
from penstock.broker.descriptions import queue_message
from penstock.broker.settlement import Settlement, release
from penstock.durations import to_datetime
from penstock.errors import AckDeadlineExceeded, BrokerClosed, ConsumerNotFound, MessageNotFound, PenstockError
from penstock.ids import message_id, parse_message_id
from penstock.journal.core.checkpoint import DeadLetterEntry
from penstock.journal.core.events import DeadRemoved
from penstock.journal.core.ranges import holds
from penstock.values.lease import Lease
from penstock.values.message import StoredMessage
from penstock.values.queue import DeadLetter, HeldMessage, QueueConsumer

if TYPE_CHECKING:
    from penstock.broker.aio import Waiter  # a program without an event loop does not load it

MAX_LISTED = 10_000
"""How many leased messages one response lists at most."""

_NOWHERE = (0, 0, 0)

Failures = dict[str, PenstockError]
"""Why messages could not be settled, by their ids."""


def settle(broker: Broker, name: str, message_id: str, consumer: str | None, verb: Settlement) -> bool:
    """Settle a leased message; returns whether it was requeued.

    AckDeadlineExceeded, MessageNotFound or ConsumerNotFound if it is not leased, or not to the given consumer.
    """
    now = broker.clock.now()
    if now >= broker.next_due:
        now = broker.catch_up()
    lock = broker.lock
    lock.acquire()
    try:
        if broker.is_closed:
            raise BrokerClosed
        queue = broker.catalog.work_queue(name)
        lease = _held(queue, message_id, consumer)
        broker.settle(queue, [lease], now, verb)
        return queue.is_waiting(lease.offset)
    finally:
        lock.release()


def settle_many(broker: Broker, name: str, message_ids: Iterable[str], consumer: str | None, verb: Settlement) -> Failures:
    """Settle those that are leased; returns, by id, why the others were not. A repeated id counts once."""
    leases: dict[str, Lease] = {}
    failures: Failures = {}
    with broker.present() as now:
        queue = broker.catalog.work_queue(name)
        for one in message_ids:
            try:
                leases[one] = _held(queue, one, consumer)
            except (MessageNotFound, AckDeadlineExceeded, ConsumerNotFound) as error:
                failures[one] = error
        if leases:
            broker.settle(queue, [*leases.values()], now, verb)
    return failures


def release_consumer(broker: Broker, name: str, consumer: str) -> int:
    """Requeue all messages of a consumer, without counting an attempt; returns how many. ConsumerNotFound if it is unknown."""
    with broker.present() as now:
        queue = broker.catalog.work_queue(name)
        if not queue.knows(consumer):
            raise ConsumerNotFound(consumer)
        return release(broker, queue, consumer, now)


def consumers(broker: Broker, name: str, connected: Mapping[str, Waiter], max_messages: int) -> list[QueueConsumer]:
    """The consumers with deliveries that were not released, and those that are `connected`, with the messages that they hold.

    Lists up to `max_messages` of each, oldest messages first, and up to `MAX_LISTED` of all.
    """
    found: list[QueueConsumer] = []
    left = MAX_LISTED
    with broker.present():
        queue = broker.catalog.work_queue(name)
        for consumer in dict.fromkeys([*queue.consumers(), *connected]):
            holding, waiter = queue.holding(consumer), connected.get(consumer)
            leases = [queue.lease_of(offset) for offset in nsmallest(min(max_messages, left), holding.held)]
            messages = [_held_message(queue, lease) for lease in leases if lease is not None]
            left -= len(messages)
            prefetch = (waiter.prefetch_limit if waiter is not None else holding.prefetch) or queue.policy.prefetch
            connection = waiter.connection if waiter is not None else None
            found.append(QueueConsumer(consumer, connection, prefetch, len(holding.held), messages))
    return found


def dead_letters(
    broker: Broker, name: str, limit: int | None, message_ids: Sequence[str] | None, max_bytes: int | None
) -> list[DeadLetter]:
    """The dead letters of a queue, oldest first; or those with these ids, in the order of the ids."""
    found: list[DeadLetter] = []
    with broker.present():
        queue = broker.catalog.work_queue(name)
        stream = broker.catalog.streams[queue.stream]
        for offset in _listed(queue, message_ids)[:limit]:
            letter = queue.dead[offset]
            message = broker.message(stream, offset)
            if message is None:
                raise MessageNotFound(message_id(letter.publish_at, stream.number, offset))
            if max_bytes is not None:
                max_bytes -= message.size
                if max_bytes < 0 and found:
                    break
            found.append(_dead_letter(queue, letter, message))
    return found


def dead_letter_ids(broker: Broker, name: str) -> list[str]:
    """The ids of the dead letters of a queue, oldest first."""
    with broker.present():
        queue = broker.catalog.work_queue(name)
        return [message_id(letter.publish_at, queue.stream, letter.offset) for letter in queue.dead.values()]


class Fates(NamedTuple):
    """The states of some messages: how many wait, are leased, are dead letters, and are settled."""

    waiting: int
    leased: int
    dead: int
    settled: int


def dead_letter_entries(broker: Broker, number: int) -> list[DeadLetterEntry]:
    """The dead letters of a queue, oldest first, without their messages; none if the queue was deleted."""
    with broker.lock:
        queue = broker.catalog.queues.get(number)
        return [] if queue is None else [*queue.dead.values()]


def fates(broker: Broker, number: int, offsets: Iterable[int]) -> Fates:
    waiting = leased = dead = settled = 0
    with broker.present():
        queue = broker.catalog.queues.get(number)
        ranges = queue.waiting() if queue is not None else []
        for offset in offsets:
            if queue is None:
                settled += 1
            elif offset in queue.dead:
                dead += 1
            elif queue.lease_of(offset) is not None:
                leased += 1
            elif holds(ranges, offset):
                waiting += 1
            else:
                settled += 1
    return Fates(waiting, leased, dead, settled)


def waiting_after(broker: Broker, number: int, offset: int) -> int:
    """How many waiting messages of a queue are younger than the one at an offset."""
    with broker.lock:
        queue = broker.catalog.queues.get(number)
        ranges = queue.waiting() if queue is not None else []
    return sum(stop - max(start, offset + 1) for start, stop in ranges if stop > offset + 1)


def take_back(broker: Broker, name: str, letters: Iterable[DeadLetterEntry]) -> list[int]:
    """Make dead letters of redriven messages that were not leased since, with their old reasons.

    Returns their offsets once this is durable.
    """
    taken: list[int] = []
    with broker.present() as now:
        queue = broker.catalog.work_queue(name)
        stream, ranges = broker.catalog.streams[queue.stream], queue.waiting()
        for letter in letters:
            message = broker.message(stream, letter.offset)
            # Messages with a failed delivery since then are left out.
            if message is None or queue.attempts(letter.offset) or not holds(ranges, letter.offset):
                continue
            outcome = queue.dead_letter_waiting(
                letter.offset, message, now, reason=letter.reason, attempts=letter.attempts, error=letter.error
            )
            broker.absorb(queue, outcome, now)
            taken.append(letter.offset)
        broker.reschedule(queue)
    broker.sync()
    return taken


def retry_dead_letter(broker: Broker, name: str, message_id: str) -> None:
    """Redrive one dead letter, also one that was removed from the list. This is durable on return."""
    place = parse_message_id(message_id)
    with broker.present():
        queue = broker.catalog.work_queue(name)
        if place is None or place[1] != queue.stream:
            raise MessageNotFound(message_id)
        is_listed = place[2] in queue.dead
        message = broker.message(broker.catalog.streams[queue.stream], place[2])
        if message is None or message.publish_at != place[0]:
            raise MessageNotFound(message_id)
    # A dead letter that was removed from the list is still in the log, which is read without the lock.
    if not is_listed and broker.last_event_kind(queue, place[2]) not in {"dead_lettered", "evicted", "purged"}:
        raise MessageNotFound(message_id)
    with broker.lock:
        if (is_listed and place[2] not in queue.dead) or queue.is_unsettled(place[2], message):
            raise MessageNotFound(message_id)
        _redrive(broker, queue, [place[2]])
    broker.sync()


def redrive(broker: Broker, name: str, limit: int | None, message_ids: Sequence[str] | None) -> int:
    """Redrive dead letters, all or these, oldest first; returns how many, once this is durable."""
    with broker.present():
        queue = broker.catalog.work_queue(name)
        picked = _listed(queue, message_ids)[:limit]
        if picked:
            _redrive(broker, queue, picked)
    broker.sync()
    return len(picked)


def purge_dead_letters(broker: Broker, name: str, message_ids: Sequence[str] | None) -> int:
    """Empty the list of dead letters, or remove these; returns how many. They stay in the log until its retention."""

    def purge(catalog: Catalog, now: int) -> DeadRemoved | None:
        queue = catalog.work_queue(name)
        return queue.purge_dead(now, None if message_ids is None else frozenset(_offsets(queue, message_ids)))

    event = broker.change(purge)
    return event.count if event is not None else 0


def _held(queue: Queue, message_id: str, consumer: str | None) -> Lease:
    published_at, stream, offset = parse_message_id(message_id) or _NOWHERE
    if stream != queue.stream:
        raise MessageNotFound(message_id)
    lease = queue.live.get(offset)
    if lease is None:
        raise AckDeadlineExceeded(message_id) if queue.has_expired(offset) else MessageNotFound(message_id)
    if lease.message.publish_at != published_at:
        raise MessageNotFound(message_id)
    if consumer is not None and (lease.consumer is None or lease.consumer.consumer_id != consumer):
        raise ConsumerNotFound(consumer)
    return lease


def _held_message(queue: Queue, lease: Lease) -> HeldMessage:
    return HeldMessage(
        message_id(lease.message.publish_at, queue.stream, lease.offset),
        lease.attempt - 1,
        to_datetime(lease.leased_at) if lease.leased_at else None,
        to_datetime(lease.deadline),
    )


def _redrive(broker: Broker, queue: Queue, offsets: list[int]) -> None:
    stream = broker.catalog.streams[queue.stream]
    letters = [(offset, message) for offset in offsets if (message := broker.message(stream, offset)) is not None]
    broker.emit(queue.redrive(letters, broker.clock.now()))
    broker.reschedule(queue)
    broker.notifier.notify(queue.number)


def _listed(queue: Queue, message_ids: Sequence[str] | None) -> list[int]:
    """The offsets of all dead letters, or of those with these ids."""
    return [*queue.dead] if message_ids is None else [one for one in _offsets(queue, message_ids) if one in queue.dead]


def _offsets(queue: Queue, message_ids: Sequence[str]) -> list[int]:
    """The offsets of the messages with these ids that belong to the queue."""
    places = map(parse_message_id, message_ids)
    return [place[2] for place in places if place is not None and place[1] == queue.stream]


def _dead_letter(queue: Queue, letter: DeadLetterEntry, message: StoredMessage) -> DeadLetter:
    return DeadLetter(
        queue_message(queue.description, letter.offset, message, max(letter.attempts - 1, 0)),
        letter.reason,
        queue.name,
        to_datetime(letter.at),
        letter.attempts,
        letter.error,
    )
