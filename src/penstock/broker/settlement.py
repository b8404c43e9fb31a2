"""How deliveries are settled: the verbs, and deliveries by their ack ids.

Functions for other packages take the lock themselves; the last four are for the broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from penstock.broker.broker import Broker
from penstock.broker.core.outcome import Outcome
from penstock.broker.core.queue import Queue
from penstock.broker.writer import Placement
from penstock.errors import BrokerClosed, InvalidAckId
from penstock.ids import parse_ack_id
from penstock.journal.core.events import Event
from penstock.values.descriptions import QueueDescription
from penstock.values.lease import Lease
from penstock.values.message import StoredMessage

Settlement = Callable[[Queue, list[Lease], int], Event | Outcome]
"""How live deliveries are settled. Other packages use only the verbs below."""

Refuse = Callable[[list[str], list[str], Settlement], None]

ACK: Settlement = Queue.ack
"""Acknowledge."""
NACK: Settlement = Queue.nack
"""Requeue for another attempt, according to the retry policy; dead-letter after the last attempt."""
GIVE_BACK: Settlement = Queue.give_back
"""Requeue as if it had not been delivered."""


def nack(*, requeue: bool = True, error: str | None = None, delay: int | None = None) -> Settlement:
    """NACK with a reason, with a delay (microseconds) in place of the retry policy's, or directly to the dead letters."""
    return lambda queue, leases, now: queue.nack(leases, now, requeue=requeue, error=error, delay=delay)


def give_back(delay: int) -> Settlement:
    """Requeue as if it had not been delivered; it is delivered again when `delay` microseconds are over."""
    return lambda queue, leases, now: queue.give_back(leases, now, delay=delay)


def new_deadline(span: int) -> Settlement:
    """Set the deadline to `span` microseconds from now; 0 is NACK."""
    if not span:
        return NACK
    return lambda queue, leases, now: queue.extend(leases, now + span, now)


def dead_letter(reason: str, error: str | None, attempts: int | None = None) -> Settlement:
    """Move to the dead letters without another attempt, for a reason that the consumer gives.

    `attempts`: how many times the consumer tried the message, if that is not the number of deliveries.
    """
    return lambda queue, leases, now: queue.dead_letter_leased(leases, now, reason=reason, error=error, attempts=attempts)


def extension(span: int) -> Settlement:
    """Move the deadline of one delivery by `span` microseconds."""
    return lambda queue, leases, now: queue.extend(leases, leases[0].deadline + span, now)


_NOWHERE = (0, 0, 0, 0)


class Settled(msgspec.Struct, frozen=True, gc=False):
    """The result of a request to settle deliveries of a subscription."""

    failed: list[str]
    """The ack ids whose deliveries were not live any more."""
    queue: QueueDescription
    has_forwards: bool
    """Whether dead letters are being forwarded: they have arrived when the current events are durable."""


def settle_one(broker: Broker, ack_id: str, verb: Settlement) -> None:
    """Settle a delivery of any subscription; InvalidAckId if it is not live any more."""
    now = broker.clock.now()
    if now >= broker.next_due:
        broker.catch_up()
    number, offset, attempt, epoch = parse_ack_id(ack_id) or _NOWHERE
    lock = broker.lock
    lock.acquire()
    try:
        if broker.is_closed:
            raise BrokerClosed
        queue = broker.catalog.queues.get(number)
        lease = queue.live.get(offset) if queue is not None else None
        if queue is None or lease is None or lease.attempt != attempt or lease.epoch != epoch:
            raise InvalidAckId(ack_id)
        has_forwards = broker.settle(queue, [lease], now, verb)
    finally:
        lock.release()
    if has_forwards:
        broker.deliver_forwards()


def settle_any(broker: Broker, ack_ids: Iterable[str], verb: Settlement) -> list[str]:
    """Settle deliveries of any subscriptions; returns the ids of those that were not live any more."""
    now = broker.catch_up()
    with broker.lock:
        broker.check_open()
        failed, has_forwards = settle_many(broker, ack_ids, verb, now)
    if has_forwards:
        broker.deliver_forwards()
    return failed


def settle_of(
    broker: Broker,
    subscription: str,
    ack_ids: list[str],
    verb: Settlement,
    now: int,
    *,
    honours_late: bool = False,
    refuse: Refuse | None = None,
) -> Settled:
    """Settle deliveries of one subscription, after processing what is due at `now`. Never waits.

    `honours_late`: an ack whose lease has expired counts if the message was not delivered again, unless exactly-once is on.
    `refuse` is called with the ids that an exactly-once subscription cannot settle, all ids and the verb, before anything is
    settled; it raises to settle none.
    """
    with broker.lock:
        broker.check_open()
        queue = broker.catalog.subscription(subscription)
        if refuse is not None and queue.policy.exactly_once:
            # Under the same lock: a delivery that is found live must be the one that is settled.
            stale = [ack_id for ack_id in ack_ids if (found := find(broker, ack_id)) is None or found[0] is not queue]
            if stale:
                refuse(stale, ack_ids, verb)
        failed, has_forwards = settle_many(broker, ack_ids, verb, now, only=queue)
        if failed and honours_late and verb is ACK and not queue.policy.exactly_once:
            failed = ack_late(broker, failed, queue, now)
        return Settled(failed, queue.description, has_forwards)


def settle_leases(broker: Broker, number: int, leases: list[Lease], verb: Settlement) -> None:
    """Settle those leases of a queue, by its number, that are live."""
    with broker.lock:
        queue = broker.catalog.queues.get(number)
        if queue is None:
            return
        live = [lease for lease in leases if queue.find(lease.offset, lease.attempt, lease.epoch) is lease]
        if live:
            broker.settle(queue, live, broker.clock.now(), verb)


def live_leases(broker: Broker, number: int, leases: list[Lease]) -> list[Lease]:
    """The live ones of these leases of a queue, by its number."""
    with broker.lock:
        queue = broker.catalog.queues.get(number)
        return [] if queue is None else [one for one in leases if queue.find(one.offset, one.attempt, one.epoch) is not None]


def find(broker: Broker, ack_id: object) -> tuple[Queue, Lease] | None:
    """The live delivery that an ack id names. Call it with the lock held."""
    number, offset, attempt, epoch = parse_ack_id(ack_id) or _NOWHERE
    queue = broker.catalog.queues.get(number)
    lease = queue.find(offset, attempt, epoch) if queue is not None else None
    return (queue, lease) if queue is not None and lease is not None else None


def settle_many(
    broker: Broker, ack_ids: Iterable[str], settle: Settlement, now: int, only: Queue | None = None
) -> tuple[list[str], bool]:
    """Settle the live deliveries, only of the queue `only` if given. Call it with the lock held.

    Returns the ids that are not live, and whether dead letters are being forwarded.
    """
    failed: list[str] = []
    found: dict[int, dict[int, Lease]] = {}
    queues, current = broker.catalog.queues, 0
    live: Mapping[int, Lease] = {}
    leases: dict[int, Lease] = {}
    for one in ack_ids:
        number, offset, attempt, epoch = parse_ack_id(one) or _NOWHERE
        if number != current:  # most are of one queue
            current, queue = number, queues.get(number) if only is None or number == only.number else None
            live, leases = (queue.live, found.setdefault(number, {})) if queue is not None else ({}, {})
        lease = live.get(offset)
        if lease is None or lease.attempt != attempt or lease.epoch != epoch or offset in leases:
            failed.append(one)
        else:
            leases[offset] = lease
    has_forwards = False
    for number, leases in found.items():
        if leases:
            has_forwards |= broker.settle(queues[number], list(leases.values()), now, settle)
    return failed, has_forwards


def ack_late(broker: Broker, ack_ids: Iterable[str], queue: Queue, now: int) -> list[str]:
    """Acknowledge deliveries with expired leases whose messages were not redelivered since; returns the other ids.

    Call it with the lock held. A message that is not in memory is read from the disk.
    """
    failed: list[str] = []
    stream = broker.catalog.streams.get(queue.stream)
    for one in ack_ids:
        number, offset, attempt, epoch = parse_ack_id(one) or _NOWHERE
        event = None
        if number == queue.number and stream is not None and queue.has_expired(offset) and queue.is_waiting(offset):
            message = broker.message(stream, offset)
            if message is not None:
                event = queue.ack_expired(offset, attempt, epoch, message, now)
        if event is None:
            failed.append(one)
        else:
            broker.emit(event)
            broker.notifier.notify(queue.number)  # the next message of its ordering key may be deliverable
    return failed


def release(broker: Broker, queue: Queue, consumer: str, now: int) -> int:
    """Release all leases of a consumer, without counting attempts; returns how many. Call it with the lock held."""
    if not queue.knows(consumer):
        return 0
    held = queue.in_flight
    for event in queue.release(consumer, now):
        broker.emit(event)
    broker.reschedule(queue)
    broker.notifier.notify(queue.number)
    return held - queue.in_flight


def add_dead_letter(
    broker: Broker, name: str, placed: Placement, message: StoredMessage, *, reason: str, attempts: int, error: str | None
) -> None:
    """Dead-letter a message just published to a work queue, unless it is settled or the queue was deleted."""
    with broker.lock:
        now, queue = broker.clock.now(), broker.catalog.work_queue(name)
        if queue.number == placed.stream and queue.is_unsettled(placed.first, message):
            outcome = queue.dead_letter_waiting(placed.first, message, now, reason=reason, attempts=attempts, error=error)
            broker.absorb(queue, outcome, now)
