"""How deliveries are settled: the verbs, and many deliveries at once by their ack ids."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock.broker.broker import Broker
from penstock.broker.core.outcome import Outcome
from penstock.broker.core.queue import Queue
from penstock.broker.writer import Placed
from penstock.ids import parse_ack_id
from penstock.journal.core.events import Event
from penstock.values.lease import Lease
from penstock.values.message import StoredMessage

Settlement = Callable[[Queue, list[Lease], int], Event | Outcome]
"""What becomes of live deliveries: one of the verbs below, which are all that other packages know of it."""

ACK: Settlement = Queue.ack
"""Settle for good."""
NACK: Settlement = Queue.nack
"""Requeue for another attempt, as the retry policy says; to the dead letters after the last."""
GIVE_BACK: Settlement = Queue.give_back
"""Requeue as if it had not been delivered."""


def new_deadline(span: int) -> Settlement:
    """Set the deadline to `span` microseconds from now; 0 is NACK."""
    if not span:
        return NACK
    return lambda queue, leases, now: queue.extend(leases, now + span, now)


def dead_letter(reason: str, error: str | None) -> Settlement:
    """Move to the dead letters without another attempt, for a reason that the consumer gives."""
    return lambda queue, leases, now: queue.condemn(leases, now, reason=reason, error=error)


_NOWHERE = (0, 0, 0, 0)


def find(broker: Broker, ack_id: object) -> tuple[Queue, Lease] | None:
    """The live delivery that an ack id names. Call it with the lock held."""
    number, offset, attempt, epoch = parse_ack_id(ack_id) or _NOWHERE
    queue = broker.catalog.queues.get(number)
    lease = queue.find(offset, attempt, epoch) if queue is not None else None
    return (queue, lease) if queue is not None and lease is not None else None


def settle_many(
    broker: Broker, ack_ids: Iterable[str], settle: Settlement, now: int, only: Queue | None = None
) -> tuple[list[str], bool]:
    """Settle the live ones, of the queue `only` where one is given. Call it with the lock held.

    Returns the ids that are not live, and whether dead letters are on their way.
    """
    failed: list[str] = []
    found: dict[int, dict[int, Lease]] = {}
    queues, number_of = broker.catalog.queues, only.number if only is not None else None
    for one in ack_ids:
        number, offset, attempt, epoch = parse_ack_id(one) or _NOWHERE
        queue = queues.get(number) if number_of is None or number == number_of else None
        lease = queue.find(offset, attempt, epoch) if queue is not None else None
        leases = found.get(number)
        if lease is None or (leases is not None and offset in leases):
            failed.append(one)
        elif leases is None:
            found[number] = {offset: lease}
        else:
            leases[offset] = lease
    has_forwards = False
    for number, leases in found.items():
        has_forwards |= broker.settle(queues[number], list(leases.values()), now, settle)
    return failed, has_forwards


def ack_late(broker: Broker, ack_ids: Iterable[str], queue: Queue, now: int) -> list[str]:
    """Acknowledge deliveries whose leases have expired and whose messages nobody has got since; returns the other ids.

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
            broker.bells.ring(queue.number)  # the next message of its ordering key may be deliverable
    return failed


def release(broker: Broker, queue: Queue, consumer: str, now: int) -> int:
    """Give back everything a consumer holds, without counting the attempts; returns how many. Call it with the lock held."""
    if not queue.knows(consumer):
        return 0
    held = queue.in_flight
    for event in queue.release(consumer, now):
        broker.emit(event)
    broker.reschedule(queue)
    broker.bells.ring(queue.number)
    return held - queue.in_flight


def bury(
    broker: Broker, name: str, placed: Placed, message: StoredMessage, *, reason: str, attempts: int, error: str | None
) -> None:
    """Move a message that was just published to a work queue to its dead letters, unless it is settled or the queue deleted."""
    with broker.lock:
        now, queue = broker.clock.now(), broker.catalog.work_queue(name)
        if queue.number == placed.stream and queue.is_unsettled(placed.first, message):
            outcome = queue.bury(placed.first, message, now, reason=reason, attempts=attempts, error=error)
            broker.absorb(queue, outcome, now)
