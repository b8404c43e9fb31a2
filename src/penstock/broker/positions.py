"""The position of a subscription: creating one at an offset, and moving one to an offset, a time or a snapshot.

Messages before the new position are settled. Messages after it are available again if they were never settled, if the log has
them and the subscription has `retain_acked_messages`, if they are within the topic's own retention, or if they came after a
snapshot.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from penstock.broker.broker import Broker
from penstock.broker.catalog import Catalog
from penstock.broker.core.queue import Queue
from penstock.broker.core.stream import Stream
from penstock.broker.window import pieces, read
from penstock.durations import FOREVER
from penstock.errors import AlreadyExists, FailedPrecondition, OutOfRange
from penstock.journal.core import events
from penstock.journal.core.checkpoint import Fold, Position, QueueImage
from penstock.journal.core.ranges import Ranges, merge, subtract
from penstock.values.filter import Filter
from penstock.values.message import check_new_name
from penstock.values.policy import SubscriptionOptions, as_plain, subscription_policy
from penstock.values.subscription import SubscriptionSpec


def subscribe_from(broker: Broker, name: str, topic: str, options: SubscriptionOptions, start: int) -> None:
    """Create a subscription that receives all messages from an offset of its topic's log on. It is durable on return.

    It is one change: no message is published, expires or leaves the log between the creation and the seek.
    """
    options = as_plain(options)
    policy, spec = subscription_policy(options, durable=broker.is_durable), SubscriptionSpec(topic, options)

    def create(catalog: Catalog, now: int) -> events.QueueCreated:
        event = catalog.create_subscription(name, topic, policy, msgspec.msgpack.encode(spec), now, start=start)
        queue = catalog.queues[event.queue]
        try:
            image = queue.image()
            _restore(broker, queue, image, Fold(image), now)
        except BaseException:
            catalog.undo(event)
            raise
        return event

    broker.change(create)


def seek(
    broker: Broker, subscription: str, *, at: int | None = None, offset: int | None = None, snapshot: str | None = None
) -> None:
    """Move a subscription to an instant, an offset or a snapshot, and end all its leases. This is durable on return."""
    with broker.present() as now:
        broker.check_healthy()
        queue, unsettled, high = _sought(broker, subscription, now, at=at, offset=offset, snapshot=snapshot)
        _reposition(broker, queue, events.Seeked(queue.number, now, unsettled, high, queue.epoch + 1))
    broker.sync()


class SeekPreview(NamedTuple):
    """The effect of a seek: how many messages it would settle, and how many settled ones it would redeliver.

    With a filter, `redelivers` is an upper bound.
    """

    settles: int
    redelivers: int


def preview_seek(
    broker: Broker, subscription: str, *, at: int | None = None, offset: int | None = None, snapshot: str | None = None
) -> SeekPreview:
    """The effect that `seek` would have now. It changes nothing."""
    with broker.present() as now:
        queue, unsettled, high = _sought(broker, subscription, now, at=at, offset=offset, snapshot=snapshot)
        before, end = queue.unsettled(), broker.catalog.streams[queue.stream].next_offset
    after = merge([*unsettled, *([(high, end)] if high < end else [])])
    return SeekPreview(_count(subtract(before, after)), _count(subtract(after, before)))


def _count(ranges: Ranges) -> int:
    return sum(stop - start for start, stop in ranges)


def _sought(
    broker: Broker, subscription: str, now: int, *, at: int | None, offset: int | None, snapshot: str | None
) -> tuple[Queue, Ranges, int]:
    """(queue, unsettled offsets below, offset from which on all are unsettled) of a seek. Call it with the lock held."""
    queue, stream = attached(broker.catalog, subscription)
    if snapshot is not None:
        position = broker.catalog.snapshot(snapshot)
        if position.stream != stream.number:
            raise FailedPrecondition(f"snapshot {snapshot!r} belongs to another topic than {subscription!r}")
    else:
        target = offset if offset is not None else offset_at(broker, stream, at or 0)
        if target > stream.next_offset:
            raise OutOfRange(stream.name, target, stream.earliest, stream.next_offset)
        position = Position(queue.number, stream.number, now, [], target)
    if snapshot is not None:
        floor = 0
    elif stream.retention is not None:
        floor = offset_at(broker, stream, now - stream.retention)
    else:
        floor = stream.next_offset
    unsettled, high = _reachable(queue, stream, position, floor)
    if queue.policy.filter and (position.queue != queue.number or not queue.policy.retain_acked):
        unsettled = _matching(broker, queue, unsettled)
    return queue, unsettled, high


def take_snapshot(
    catalog: Catalog, name: str, subscription: str, now: int, *, spec: bytes = b"", expires_at: int | None = None
) -> events.SnapshotTaken:
    """Store a subscription's position under a name."""
    queue, stream = attached(catalog, subscription)
    if name in catalog.snapshots:
        raise AlreadyExists("Snapshot", name)
    check_new_name(name, "snapshot")
    position = Position(queue.number, stream.number, now, queue.unsettled(), queue.high, spec, expires_at)
    catalog.snapshots[name] = position
    return events.SnapshotTaken(queue.number, now, name, stream.number, position.unsettled, position.high, spec, expires_at)


def attached(catalog: Catalog, subscription: str) -> tuple[Queue, Stream]:
    """A subscription and the stream of its topic."""
    queue = catalog.subscription(subscription)
    if queue.detached:
        raise FailedPrecondition(f"Subscription {subscription!r} is detached: its topic was deleted, or it was detached from it")
    return queue, catalog.streams[queue.stream]


def offset_at(broker: Broker, stream: Stream, at: int) -> int:
    """The first offset published at or after an instant."""
    low, high = stream.earliest, stream.next_offset
    while low < high:
        middle = (low + high) // 2
        published_at = broker.window.published_at(stream, middle)
        if published_at is not None and published_at < at:
            low = middle + 1
        else:
            high = middle
    return low


def _reachable(queue: Queue, stream: Stream, position: Position, floor: int) -> tuple[Ranges, int]:
    """The offsets that a seek may make unsettled: settled ones from `floor` on, and before it with `retain_acked_messages`."""
    held = queue.unsettled()
    wanted = merge([*position.unsettled, (position.high, max(position.high, stream.next_offset))])
    # Below `earliest` the log has only what some queue holds; this queue can rely only on its own messages.
    lost = subtract([(0, stream.earliest)], held)
    if not queue.policy.retain_acked:
        reachable = merge([*held, *([(floor, stream.next_offset)] if floor < stream.next_offset else [])])
        beyond = subtract([(0, stream.next_offset)], reachable)
        return subtract(subtract(wanted, beyond), lost), stream.next_offset
    high = max(position.high, stream.earliest)
    return subtract(subtract(wanted, [(high, stream.next_offset)]), lost), high


def _matching(broker: Broker, queue: Queue, ranges: Ranges) -> Ranges:
    """The offsets whose messages pass a queue's filter. Call it with the lock held."""
    wanted = Filter.parse(queue.policy.filter)
    matched = []
    for start, stop in ranges:
        for first, messages in read(broker.journal, queue.stream, start, stop):
            offsets = (offset for offset, message in enumerate(messages, first) if wanted.matches(message.attributes or {}))
            matched += [(offset, offset + 1) for offset in offsets]
    return merge(matched)


def _reposition(broker: Broker, queue: Queue, event: events.Seeked) -> None:
    """Move a queue to another position, in the same way as a restart. Call it with the lock held."""
    image = queue.image()
    fold = Fold(image)
    fold.apply(event, {})
    _restore(broker, queue, image, fold, event.at)
    broker.emit(event)
    broker.notifier.notify(queue.number)


def _restore(broker: Broker, queue: Queue, image: QueueImage, fold: Fold, now: int) -> None:
    """Fill a queue from the log, as a restart does. Call it with the lock held."""
    stream = broker.catalog.streams[queue.stream]
    fold.finish({stream.number: stream.image()})
    queue.restore(image, list(pieces(broker.journal, image)), now)
    queue.high = stream.next_offset
    queue.scheduled = FOREVER
    broker.reschedule(queue)
