"""Deliveries as they become possible: what stands behind a stream, in this process or at the other end of a connection.

A feed belongs to a consumer of one subscription or work queue, and delivers within the consumer's limits; several feeds may
share one. What a consumer holds outlives a lost connection for `GRACE_SECONDS`: one that comes back in time settles what it has.
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
"""The error of a delivery that may have killed who worked on it."""


class Feeds:
    """All open feeds of a broker."""

    def __init__(self, aio: AsyncBroker, rules: DeliveryRules) -> None:
        self.aio = aio
        self.rules = rules
        self._open: dict[tuple[int, str], list[Feed]] = {}
        self._leaving: dict[tuple[int, str], asyncio.TimerHandle] = {}
        """Consumers whose connection was lost a moment ago."""
        self.begun: dict[tuple[int, str], set[int]] = {}
        """Receipts of what consumers are working on."""

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
        """Begin to deliver. `owner` is who the feed lives with: a consumer that comes back under another leaves the old one.

        `held` are the receipts that a returning consumer still has: what else it was sent has not arrived and returns.
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
        """The open feeds of a feed's consumer."""
        return self._open.get((feed.number, feed.identity)) or [feed]

    def drop(self, feed: Feed, *, keep_seconds: float) -> None:
        """Forget a feed. With the last of its consumer, what that holds returns, after this long."""
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
        """End every feed. What consumers hold they keep: they come back to the next run."""
        for feed in [feed for feeds in self._open.values() for feed in feeds]:
            feed.fail(Unavailable("the server is stopping"))
        for leaving in self._leaving.values():
            leaving.cancel()
        self._leaving.clear()

    def _expire(self, feed: Feed) -> None:
        """A consumer did not come back. What it was working on may be what has killed it, so that counts as a try."""
        begun = self._forget((feed.number, feed.identity))
        feed.release(lambda lease: receipt_of(lease) in begun, LOST)

    def _forget(self, key: tuple[int, str]) -> set[int]:
        """Forget a consumer; returns the receipts of what it was working on."""
        self._leaving.pop(key, None)
        return self.begun.pop(key, set())


@runtime_checkable
class Addressed(Protocol):
    """An owner of feeds that knows where it is."""

    address: str


class Feed(StreamConsumer):
    """One stream of deliveries, within the limits that its client sets."""

    identity: str

    @property
    def connection(self) -> str | None:
        return self.owner.address if isinstance(self.owner, Addressed) else None

    @property
    def prefetch_limit(self) -> int:
        """How many messages its consumer may hold."""
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
        """Live by other limits from now on; what is out keeps its deadline."""
        self._live_by(limits)
        self.wake()

    def close(self, *, keep: bool = False) -> None:
        """End it. What the consumer holds returns with its last feed, unless it is to be kept."""
        if not self.is_over:
            self.stop()
            self._feeds.drop(self, keep_seconds=GRACE_SECONDS if keep else 0)

    def leave(self) -> None:
        """End it because its consumer is elsewhere now, and has taken along what it holds."""
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
        """End deliveries or move their deadlines; returns the receipts that were not live any more.

        Settled is all or, when an argument is wrong, nothing. `begun` are deliveries that the consumer works on from now on.
        """
        verbs: list[tuple[list[int], Settlement]] = [(acks, ACK)] if acks else []
        verbs += [(receipts, _nack(nacked)) for nacked, receipts in _alike(nacks or [])]
        verbs += [(receipts, _deadline(seconds)) for receipts, seconds in deadlines or ()]
        self._aio.advance()
        failed = self.settle_by_key(verbs, offset_of, receipt_of)
        self._note(acks, nacks or [], begun or [])
        return failed

    def _note(self, acks: list[int], nacks: list[Nack], begun: list[int]) -> None:
        """Remember what the consumer works on."""
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
            # Leases that ran out are never settled, and a client may say what it likes.
            known &= {receipt_of(lease) for lease in self.held()}

    async def confirmed(self) -> None:
        """Return when what was settled so far cannot be undone by a crash, where that was promised."""
        if self.opened.exactly_once:
            await self._aio.durable()

    def _pass_on(self, queue: QueueDescription, leases: list[Lease]) -> None:
        """Deliver a batch, through all feeds of the consumer in equal parts."""
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
            if feed.is_over:  # by what the receiver of a part before did
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
            return 0  # nothing is taken, but waiting calls learn that there is nothing to wait for any more
        held, size = holding
        if held >= limits.max_messages or size >= limits.max_bytes:
            return -1  # of many feeds with a backlog, most that look are full
        if limits.allow_excess:
            self.prefetch, self.prefetch_bytes = held + BATCH, size + BATCH_BYTES
        return room


def receipt_of(lease: Lease) -> int:
    return receipt(lease.offset, lease.attempt, lease.epoch)


def checked(limits: Limits) -> int:
    """The ack deadline of limits that make sense, in microseconds."""
    check_count(limits.max_messages, "max_messages", 1)
    check_count(limits.max_bytes, "max_bytes", 1)
    check_count(limits.ordering_window, "ordering_window", 1, MAX_ORDERING_WINDOW)
    return micros(limits.ack_deadline, "ack_deadline", minimum=1e-3, maximum=86_400)


def opened(queue: QueueDescription) -> Opened:
    """What a consumer must know of what it consumes."""
    policy = queue.policy
    return Opened(queue.number, queue.stream, policy.max_attempts, policy.exactly_once, policy.ordered)


def _alike(nacks: list[Nack]) -> Iterable[tuple[Nack, list[int]]]:
    """Nacks that say the same, and their receipts: a stream that closes releases a thousand at once."""
    found: dict[tuple[object, ...], tuple[Nack, list[int]]] = {}
    for one in nacks:
        found.setdefault((one.requeue, one.error, one.delay, one.unseen), (one, []))[1].append(one.receipt)
    return found.values()


def _nack(given: Nack) -> Settlement:
    if given.unseen:
        return GIVE_BACK
    # The text of an exception may hold half a character (the name of a file can); its message must still return.
    error = given.error[:MAX_ERROR_CHARACTERS].encode(errors="replace").decode() if given.error else None
    delay = None if given.delay is None else micros(given.delay, "delay", maximum=366 * 86_400)
    return nack(requeue=given.requeue, error=error, delay=delay)


def _deadline(seconds: float) -> Settlement:
    return new_deadline(micros(seconds, "seconds", maximum=86_400))
