"""Deliveries as they become possible: what stands behind a stream, in this process or at the other end of a connection.

A feed belongs to a consumer of one subscription or work queue, and hands out within the consumer's limits; several feeds may
share one. It looks for messages when its queue's bell rings (see `rota`), which is also when something was settled, and when its
sink has room again; it never polls. What a consumer holds outlives a lost connection for `GRACE_SECONDS`: one that comes back in
time settles what it has.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable, Coroutine, Iterable
from contextlib import ExitStack
from typing import Protocol

from penstock.api.frames import Limits, Nack, Opened, offset_of, receipt
from penstock.api.rota import Rota
from penstock.api.rules import DeliveryRules, PlainDelivery
from penstock.broker.aio import AsyncBroker, Nudge
from penstock.broker.catalog import Catalog
from penstock.broker.core.leases import Lease
from penstock.broker.core.message import check_name
from penstock.broker.core.policy import check_count
from penstock.broker.core.queue import Queue
from penstock.broker.settlement import Settlement, release
from penstock.durations import micros
from penstock.errors import PenstockError, QueueNotFound, SubscriptionNotFound, Unavailable

log = logging.getLogger("penstock.feed")

BATCH = 250
"""How many messages are handed out before others have their turn."""
BATCH_BYTES = 1024 * 1024
GRACE_SECONDS = 10.0
MAX_ERROR_CHARACTERS = 1_000
LOST = "its consumer was lost while working on it"
"""The error of a delivery that may have killed who worked on it."""

Find = Callable[[Catalog, str], Queue]

_PLAIN = PlainDelivery()


class Sink(Protocol):
    """Where a feed delivers to. Called on the event loop; returns at once."""

    @property
    def has_room(self) -> bool:
        """Whether it takes more; when that changes, call `Feed.wake`."""

    def deliver(self, queue: Queue, leases: list[Lease]) -> None:
        """Take deliveries."""

    def end(self, error: PenstockError | None) -> None:
        """The feed is over, by itself."""


class Feeds:
    """All open feeds of a broker."""

    def __init__(self, aio: AsyncBroker, rules: DeliveryRules) -> None:
        self.aio = aio
        self.broker = aio.broker
        self.rules = rules
        self._open: dict[tuple[int, str], list[Feed]] = {}
        self._leaving: dict[tuple[int, str], asyncio.TimerHandle] = {}
        """Consumers whose connection was lost a moment ago."""
        self.begun: dict[tuple[int, str], set[int]] = {}
        """Receipts of what consumers are working on."""
        self._rotas: dict[int, Rota] = {}
        """By the number of the queue."""

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

        `held` are the receipts that a returning consumer still has: what else it was sent has not arrived and goes back.
        """
        check_name(consumer, "consumer")
        rules = _PLAIN if find is Catalog.work_queue else self.rules
        now = self.aio.advance()
        with self.broker.lock:
            self.broker.check_open()
            queue = find(self.broker.catalog, name)
            rules.check_pulled(queue)
        rota = self._rotas.get(queue.number) or Rota(self.broker, queue.number)
        feed = Feed(self, find, name, consumer, limits, sink, owner, queue, rules, rota)
        key = (queue.number, consumer)
        for other in [one for one in self._open.get(key, ()) if one.owner is not owner]:
            other.leave()
        if key not in self._open and held is not None:
            self._give_back_lost(queue, consumer, set(held), now)
        if (leaving := self._leaving.pop(key, None)) is not None:
            leaving.cancel()
        self._open.setdefault(key, []).append(feed)
        self._rotas[queue.number] = rota
        feed.start()
        return feed

    def drop(self, feed: Feed, *, keep_seconds: float) -> None:
        """Forget a feed. With the last of its consumer, what that holds goes back, after so long."""
        if (rota := self._rotas.get(feed.number)) is not None and not len(rota):
            del self._rotas[feed.number]
        key = (feed.number, feed.consumer)
        feeds = self._open.get(key, [])
        if feed in feeds:
            feeds.remove(feed)
        if key in self._open and not feeds:
            del self._open[key]
            if keep_seconds > 0:
                loop = asyncio.get_running_loop()
                self._leaving[key] = loop.call_later(keep_seconds, self._bury, key)
            else:
                self._release(key)

    def stop(self) -> None:
        """End every feed. What consumers hold they keep: they come back to the next run."""
        for feed in [feed for feeds in self._open.values() for feed in feeds]:
            feed.fail(Unavailable("the server is stopping"))
        for leaving in self._leaving.values():
            leaving.cancel()
        self._leaving.clear()

    def _bury(self, key: tuple[int, str]) -> None:
        """A consumer did not come back. What it was working on may be what has killed it, so that counts as a try."""
        number, consumer = key
        with self.broker.lock:
            queue = self.broker.catalog.queues.get(number)
            if queue is not None and not queue.policy.exactly_once:
                begun = self.begun.get(key, set())
                suspects = [lease for lease in _held(queue, consumer) if receipt_of(lease) in begun]
                if suspects:
                    self.broker.settle(queue, suspects, self.broker.clock.now(), _nack(Nack(0, error=LOST)))
        self._release(key)

    def _release(self, key: tuple[int, str]) -> None:
        self._leaving.pop(key, None)
        self.begun.pop(key, None)
        number, consumer = key
        with self.broker.lock:
            queue = self.broker.catalog.queues.get(number)
            # Exactly once: a delivery that somebody may have worked on ends by its deadline alone.
            if queue is not None and not queue.policy.exactly_once:
                release(self.broker, queue, consumer, self.broker.clock.now())

    def _give_back_lost(self, queue: Queue, consumer: str, held: set[int], now: int) -> None:
        with self.broker.lock:
            lost = [lease for lease in _held(queue, consumer) if receipt_of(lease) not in held]
            if lost:
                self.broker.settle(queue, lost, now, Queue.give_back)


class Feed:
    """One stream of deliveries. All methods belong to the event loop."""

    def __init__(  # noqa: PLR0917  # the parts of one feed
        self,
        feeds: Feeds,
        find: Find,
        name: str,
        consumer: str,
        limits: Limits,
        sink: Sink,
        owner: object,
        queue: Queue,
        rules: DeliveryRules,
        rota: Rota,
    ) -> None:
        self._feeds, self._aio, self._broker, self._rules = feeds, feeds.aio, feeds.broker, rules
        self._find, self._name = find, name
        self.consumer, self.owner = consumer, owner
        self.number = queue.number
        self.opened = opened(queue)
        self._sink = sink
        self._rota, self._nudge = rota, Nudge(self.look)
        self._rest = ExitStack()
        self._task: asyncio.Task[None] | None = None
        self._is_over = False
        self._is_busy = False
        self._ack_deadline = checked(limits)
        self._limits = limits

    def start(self) -> None:
        """Look for the first time, and whenever the bell rings."""
        self._rota.join(self)
        self._rest.enter_context(self._rules.in_use(self.number))
        self.wake()

    def wake(self) -> None:
        """Look, soon: the sink may have room again."""
        self._nudge.ring()

    def adjust(self, limits: Limits) -> None:
        """Live by other limits from now on; what is out keeps its deadline."""
        self._ack_deadline = checked(limits)
        self._limits = limits
        self.wake()

    def close(self, *, keep: bool = False) -> None:
        """End it. What the consumer holds goes back with its last feed, unless it is to be kept."""
        if not self._is_over:
            self._finish()
            self._feeds.drop(self, keep_seconds=GRACE_SECONDS if keep else 0)

    def leave(self) -> None:
        """End it because its consumer is elsewhere now, and has taken along what it holds."""
        self.close(keep=True)
        self._sink.end(None)

    def fail(self, error: PenstockError) -> None:
        """End it with an error."""
        if not self._is_over:
            self._finish()
            self._feeds.drop(self, keep_seconds=GRACE_SECONDS)
            self._sink.end(error)

    def settle(
        self,
        acks: list[int],
        nacks: list[Nack] | None = None,
        deadlines: list[tuple[list[int], float]] | None = None,
        begun: list[int] | None = None,
    ) -> list[int]:
        """End deliveries or move their deadlines; returns the receipts that were not live any more.

        Settled is all or, when an argument is wrong, nothing. `begun` are deliveries that the consumer works on from now on.
        """
        verbs: list[tuple[list[int], Settlement]] = [(acks, Queue.ack)] if acks else []
        verbs += [(receipts, _nack(nack)) for nack, receipts in _alike(nacks or [])]
        verbs += [(receipts, _deadline(seconds)) for receipts, seconds in deadlines or ()]
        now = self._aio.advance()
        failed: list[int] = []
        with self._broker.lock:
            self._broker.check_open()
            queue = self._broker.catalog.queues.get(self.number)
            if queue is None:
                return [one for receipts, _ in verbs for one in receipts]
            for receipts, verb in verbs:
                self._settle(queue, receipts, verb, now, failed)
            self._note(queue, acks, nacks or [], begun or [])
        return failed

    def _note(self, queue: Queue, acks: list[int], nacks: list[Nack], begun: list[int]) -> None:
        """Remember what the consumer works on."""
        key = (self.number, self.consumer)
        known = self._feeds.begun.get(key)
        if known is None:
            if not begun:
                return
            known = self._feeds.begun[key] = set()
        known.update(begun)
        known.difference_update(acks)
        known.difference_update(nack.receipt for nack in nacks)
        if len(known) > 2 * len(queue.holding(self.consumer).held) + BATCH:
            # Leases that ran out are never settled, and a client may say what it likes.
            known &= {receipt_of(lease) for lease in _held(queue, self.consumer)}

    async def confirmed(self) -> None:
        """Return when what was settled so far cannot be undone by a crash, where that was promised."""
        if self.opened.exactly_once:
            await self._aio.durable()

    def _settle(self, queue: Queue, receipts: list[int], verb: Settlement, now: int, failed: list[int]) -> None:
        live: dict[int, Lease] = {}
        for one in receipts:
            lease = queue.lease_of(offset_of(one))
            if lease is None or receipt_of(lease) != one or lease.offset in live:
                failed.append(one)
            else:
                live[lease.offset] = lease
        if live:
            self._broker.settle(queue, list(live.values()), now, verb)

    def look(self) -> bool:
        """Hand out one batch of what there is, and come again when there was something; False when nothing is left for others."""
        if self._is_over or self._is_busy or not self._sink.has_room or self._is_full():
            return True
        try:
            queue, leases = self._grant()
        except PenstockError as error:
            self.fail(error)
            return True
        if leases:
            self._rota.served(self)
            if self._rules.transforms(queue):
                self._later(self._inspect(queue, leases))
            else:
                self._sink.deliver(queue, leases)
                self._nudge.ring()
        elif queue.absent is not None:
            self._later(self._load(queue))
            return False
        return queue.is_deliverable

    def _is_full(self) -> bool:
        """Whether its consumer may have no more now. Of many feeds with a backlog, most that look are."""
        queue = self._broker.catalog.queues.get(self.number)
        if queue is None:
            return False  # which is an error, to be told
        holding = queue.holding(self.consumer)
        return len(holding.held) >= self._limits.max_messages or holding.size >= self._limits.max_bytes

    def _grant(self) -> tuple[Queue, list[Lease]]:
        now, limits = self._aio.advance(), self._limits
        with self._broker.lock:
            queue = self._find(self._broker.catalog, self._name)
            if queue.number != self.number:
                # It was deleted and made again: this feed was opened on the one that is gone.
                raise (QueueNotFound if self._find is Catalog.work_queue else SubscriptionNotFound)(self._name)
            self._rules.check_pulled(queue)
            prefetch, prefetch_bytes, want = limits.max_messages, limits.max_bytes, BATCH
            if limits.is_paused:
                want = 0  # but who waits wants to hear that there is nothing to wait for any more
            elif limits.allow_excess:
                holding = queue.holding(self.consumer)
                prefetch, prefetch_bytes = len(holding.held) + BATCH, holding.size + BATCH_BYTES
            return self._broker.grant(
                self._find,
                self._name,
                want,
                now,
                ack_deadline=self._ack_deadline,
                consumer=self.consumer,
                prefetch=prefetch,
                prefetch_bytes=prefetch_bytes,
                max_bytes=BATCH_BYTES,
            )

    def _later(self, work: Coroutine[None, None, None]) -> None:
        self._is_busy = True
        self._task = asyncio.ensure_future(work)
        self._task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._is_busy, self._task = False, None
        self._rota.ring()  # not only for this one: when something had to be loaded, the others have left that to it
        error = None if task.cancelled() else task.exception()
        if error is None:
            return
        if isinstance(error, PenstockError):
            self.fail(error)
        else:
            # Not its text, which may hold a payload.
            place = traceback.extract_tb(error.__traceback__)[-1]
            log.error("a feed failed with %s at %s:%s", type(error).__name__, place.filename, place.lineno)
            self.fail(PenstockError("an error inside the broker"))

    async def _load(self, queue: Queue) -> None:
        await self._aio.call(self._broker.load, queue)

    async def _inspect(self, queue: Queue, leases: list[Lease]) -> None:
        ready = await self._rules.ready(queue, leases, BATCH_BYTES)
        if ready and not self._is_over:
            self._sink.deliver(queue, ready)

    def _finish(self) -> None:
        self._is_over = True
        if self._task is not None:
            self._task.cancel()
        self._rota.leave(self)
        self._rest.close()


def receipt_of(lease: Lease) -> int:
    """The receipt of a live delivery."""
    return receipt(lease.offset, lease.attempt, lease.epoch)


def _held(queue: Queue, consumer: str) -> list[Lease]:
    """What a consumer holds, in order. Call it with the lock held."""
    return [lease for offset in sorted(queue.holding(consumer).held) if (lease := queue.lease_of(offset)) is not None]


def checked(limits: Limits) -> int:
    """The ack deadline of limits that make sense, in microseconds."""
    check_count(limits.max_messages, "max_messages", 1)
    check_count(limits.max_bytes, "max_bytes", 1)
    return micros(limits.ack_deadline, "ack_deadline", minimum=1e-3, maximum=86_400)


def opened(queue: Queue) -> Opened:
    """What a consumer must know of what it consumes."""
    policy = queue.policy
    return Opened(queue.number, queue.stream, policy.max_attempts, policy.exactly_once, policy.ordered)


def _alike(nacks: list[Nack]) -> Iterable[tuple[Nack, list[int]]]:
    """Nacks that say the same, and their receipts: a stream that closes gives back a thousand at once."""
    found: dict[tuple[object, ...], tuple[Nack, list[int]]] = {}
    for nack in nacks:
        found.setdefault((nack.requeue, nack.error, nack.delay, nack.unseen), (nack, []))[1].append(nack.receipt)
    return found.values()


def _nack(nack: Nack) -> Settlement:
    if nack.unseen:
        return Queue.give_back
    # The text of an exception may hold half a character (the name of a file can); its message must still go back.
    error = nack.error[:MAX_ERROR_CHARACTERS].encode(errors="replace").decode() if nack.error else None
    delay = None if nack.delay is None else micros(nack.delay, "delay", maximum=366 * 86_400)
    return lambda queue, leases, now: queue.nack(leases, now, requeue=nack.requeue, error=error, delay=delay)


def _deadline(seconds: float) -> Settlement:
    span = micros(seconds, "seconds", maximum=86_400)
    if not span:
        return Queue.nack
    return lambda queue, leases, now: queue.extend(leases, now + span, now)
