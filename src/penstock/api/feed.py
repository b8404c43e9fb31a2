"""Deliveries as they become possible: the broker's side of a stream, in this process or over a connection.

A feed belongs to a consumer of one subscription or work queue, and delivers within the consumer's limits; several feeds may share
a consumer. After a lost connection, a consumer keeps its messages for `GRACE_SECONDS`: if it reconnects in time, it can settle
them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from penstock.broker.aio import AsyncBroker
from penstock.broker.async_consumer import BATCH, BATCH_BYTES, Sink, StreamConsumer
from penstock.broker.catalog import Catalog
from penstock.broker.consumer import PLAIN, DeliveryRules, Find
from penstock.broker.settlement import ACK, GIVE_BACK, Settlement, nack, new_deadline
from penstock.durations import micros
from penstock.errors import PenstockError, Unavailable
from penstock.values.descriptions import QueueDescription
from penstock.values.lease import Lease
from penstock.values.message import check_name
from penstock.values.policy import MAX_ORDERING_WINDOW, check_count
from penstock.wire.frames import MAX_ERROR_CHARACTERS, Limits, Nack, Opened, offset_of, receipt

GRACE_SECONDS = 10.0
LOST = "its consumer was lost while working on it"
"""The error of a delivery that may have killed its consumer."""


class Feeds:
    """All open feeds of a broker."""

    def __init__(self, aio: AsyncBroker, rules: DeliveryRules) -> None:
        self.aio = aio
        self.rules = rules
        self._open: dict[tuple[int, str], list[Feed]] = {}
        self._leaving: dict[tuple[int, str], asyncio.TimerHandle] = {}
        """Consumers whose connection was lost less than `GRACE_SECONDS` ago."""
        self.begun: dict[tuple[int, str], set[int]] = {}
        """Receipts of the messages that consumers have started to handle."""

    def __len__(self) -> int:
        return sum(map(len, self._open.values()))

    def open(
        self,
        find: Find,
        name: str,
        consumer: str,
        limits: Limits,
        sink: Sink,
        *,
        owner: object,
        held: Iterable[int] | None = None,
    ) -> Feed:
        """Start delivering. `owner` is the connection of the feed: a consumer that reconnects under another one leaves the old.

        `held` are the receipts that a reconnecting consumer still holds: everything else that was sent to it did not arrive and
        is released.
        """
        check_name(consumer, "consumer")
        self.aio.advance()
        feed = Feed(self, find, name, consumer, limits, sink, owner)
        feed.start()
        key = (feed.number, consumer)
        for other in [one for one in self._open.get(key, ()) if one.owner is not owner]:
            other.leave()
        if key not in self._open and held is not None:
            arrived = set(held)
            feed.settle([lease for lease in feed.held() if receipt_of(lease) not in arrived], GIVE_BACK)
        if (leaving := self._leaving.pop(key, None)) is not None:
            leaving.cancel()
        self._open.setdefault(key, []).append(feed)
        return feed

    def sharing(self, feed: Feed) -> list[Feed]:
        """The open feeds of the same consumer."""
        return self._open.get((feed.number, feed.identity)) or [feed]

    def drop(self, feed: Feed, *, keep_seconds: float) -> None:
        """Remove a feed. If it was the last of its consumer, the consumer's messages are released after this time."""
        key = (feed.number, feed.identity)
        feeds = self._open.get(key, [])
        if feed in feeds:
            feeds.remove(feed)
        if key in self._open and not feeds:
            del self._open[key]
            if keep_seconds > 0:
                loop = asyncio.get_running_loop()
                self._leaving[key] = loop.call_later(keep_seconds, self._expire, feed)
            else:
                self._forget(key)
                feed.release()

    def stop(self) -> None:
        """End every feed. Consumers keep their messages: they can reconnect to the next process."""
        for feed in [feed for feeds in self._open.values() for feed in feeds]:
            feed.fail(Unavailable("the server is stopping"))
        for leaving in self._leaving.values():
            leaving.cancel()
        self._leaving.clear()

    def _expire(self, feed: Feed) -> None:
        """A consumer did not reconnect. The messages that it was handling may have killed it, so these attempts count."""
        begun = self._forget((feed.number, feed.identity))
        feed.release(lambda lease: receipt_of(lease) in begun, LOST)

    def _forget(self, key: tuple[int, str]) -> set[int]:
        """Remove a consumer; returns the receipts of the messages that it was handling."""
        self._leaving.pop(key, None)
        return self.begun.pop(key, set())


@runtime_checkable
class Addressed(Protocol):
    """An owner of feeds with an address."""

    address: str


class Feed(StreamConsumer):
    """One stream of deliveries, within the limits that its client sets."""

    identity: str

    @property
    def connection(self) -> str | None:
        return self.owner.address if isinstance(self.owner, Addressed) else None

    @property
    def prefetch_limit(self) -> int:
        """The limit of messages that its consumer holds."""
        return self._limits.max_messages

    def __init__(  # noqa: PLR0917  # the parts of one feed
        self, feeds: Feeds, find: Find, name: str, consumer: str, limits: Limits, sink: Sink, owner: object
    ) -> None:
        rules = PLAIN if find is Catalog.work_queue else feeds.rules
        super().__init__(feeds.aio, find, name, sink, rules=rules, identity=consumer)
        self._feeds, self.owner = feeds, owner
        self._live_by(limits)

    def start(self) -> None:
        super().start()
        self.opened = opened(self.queue)

    def adjust(self, limits: Limits) -> None:
        """Change the limits; messages in flight keep their deadlines."""
        self._live_by(limits)
        self.wake()

    def close(self, *, keep: bool = False) -> None:
        """End it. With the last feed of a consumer its messages are released, unless they are to be kept."""
        if not self.is_over:
            self.stop()
            self._feeds.drop(self, keep_seconds=GRACE_SECONDS if keep else 0)

    def leave(self) -> None:
        """End it because its consumer has reconnected elsewhere, and keeps its messages there."""
        self.close(keep=True)
        self._sink.end(None)

    def fail(self, error: PenstockError) -> None:
        if not self.is_over:
            self.stop()
            self._feeds.drop(self, keep_seconds=GRACE_SECONDS)
            self._sink.end(error)

    def settle_receipts(
        self,
        acks: list[int],
        nacks: list[Nack] | None = None,
        deadlines: list[tuple[list[int], float]] | None = None,
        begun: list[int] | None = None,
    ) -> list[int]:
        """Settle deliveries or change their deadlines; returns the receipts that were not leased any more.

        Either all are processed or, if an argument is invalid, none. `begun` are deliveries that the consumer has started to
        handle.
        """
        verbs: list[tuple[list[int], Settlement]] = [(acks, ACK)] if acks else []
        verbs += [(receipts, _nack(nacked)) for nacked, receipts in _alike(nacks or [])]
        verbs += [(receipts, _deadline(seconds)) for receipts, seconds in deadlines or ()]
        self._aio.advance()
        failed = self.settle_by_key(verbs, offset_of, receipt_of)
        self._note(acks, nacks or [], begun or [])
        return failed

    def _note(self, acks: list[int], nacks: list[Nack], begun: list[int]) -> None:
        """Note the messages that the consumer is handling."""
        key = (self.number, self.identity)
        known = self._feeds.begun.get(key)
        if (known is None and not begun) or (holding := self.holding()) is None:
            return
        if known is None:
            known = self._feeds.begun[key] = set()
        known.update(begun)
        known.difference_update(acks)
        known.difference_update(nacked.receipt for nacked in nacks)
        if len(known) > 2 * holding[0] + BATCH:
            # Expired leases are never settled, and a client may claim anything.
            known &= {receipt_of(lease) for lease in self.held()}

    async def confirmed(self) -> None:
        """Return once a crash cannot undo the settlements so far, if the subscription promises that."""
        if self.opened.exactly_once:
            await self._aio.durable()

    def _pass_on(self, queue: QueueDescription, leases: list[Lease]) -> None:
        """Deliver a batch through all feeds of the consumer, in equal parts."""
        feeds = self._feeds.sharing(self)
        if len(feeds) == 1 or len(leases) == 1:
            super()._pass_on(queue, leases)
            return
        first = feeds.index(self)
        feeds = [*feeds[first:], *feeds[:first]]
        share, more = divmod(len(leases), len(feeds))
        start = 0
        for index, feed in enumerate(feeds):
            stop = start + share + (index < more)
            if start == stop:
                break
            if feed.is_over:  # closed by the receiver of an earlier part
                self.settle(leases[start:stop], GIVE_BACK)
            else:
                self._aio.served(self.number, feed)
                super(Feed, feed)._pass_on(queue, leases[start:stop])
            start = stop

    def _live_by(self, limits: Limits) -> None:
        self.ack_deadline = checked(limits)
        self.prefetch, self.prefetch_bytes = limits.max_messages, limits.max_bytes
        self.key_window = limits.ordering_window
        self._limits = limits

    def _room(self) -> int:
        room, limits = self._sink.room, self._limits
        if room <= 0:
            return -1
        holding = self.holding()
        if holding is None or limits.is_paused:
            return 0  # no messages are taken, but waiting calls end
        held, size = holding
        if held >= limits.max_messages or size >= limits.max_bytes:
            return -1  # of several feeds with a backlog, most are full
        if limits.allow_excess:
            self.prefetch, self.prefetch_bytes = held + BATCH, size + BATCH_BYTES
        return room


def receipt_of(lease: Lease) -> int:
    return receipt(lease.offset, lease.attempt, lease.epoch)


def checked(limits: Limits) -> int:
    """The ack deadline of valid limits, in microseconds."""
    check_count(limits.max_messages, "max_messages", 1)
    check_count(limits.max_bytes, "max_bytes", 1)
    check_count(limits.ordering_window, "ordering_window", 1, MAX_ORDERING_WINDOW)
    return micros(limits.ack_deadline, "ack_deadline", minimum=1e-3, maximum=86_400)


def opened(queue: QueueDescription) -> Opened:
    """The answer to opening a stream."""
    policy = queue.policy
    return Opened(queue.number, queue.stream, policy.max_attempts, policy.exactly_once, policy.ordered)


def _alike(nacks: list[Nack]) -> Iterable[tuple[Nack, list[int]]]:
    """Nacks with equal options, and their receipts: a stream that closes releases a thousand at once."""
    found: dict[tuple[object, ...], tuple[Nack, list[int]]] = {}
    for one in nacks:
        found.setdefault((one.requeue, one.error, one.delay, one.unseen), (one, []))[1].append(one.receipt)
    return found.values()


def _nack(given: Nack) -> Settlement:
    if given.unseen:
        return GIVE_BACK
    # The text of an exception may contain half a character (from a file name, say); its message must still be released.
    error = given.error[:MAX_ERROR_CHARACTERS].encode(errors="replace").decode() if given.error else None
    delay = None if given.delay is None else micros(given.delay, "delay", maximum=366 * 86_400)
    return nack(requeue=given.requeue, error=error, delay=delay)


def _deadline(seconds: float) -> Settlement:
    return new_deadline(micros(seconds, "seconds", maximum=86_400))
