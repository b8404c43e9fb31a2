"""The logs of a hub as topics of the broker in this process (`penstock.hub.ports.Feed`)."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from weakref import WeakValueDictionary

import msgspec

from penstock.broker.aio import AsyncBroker
from penstock.broker.catalog import Catalog
from penstock.broker.follower import read_part
from penstock.broker.lookup import find_topic
from penstock.errors import PenstockError
from penstock.hub.broker.durable import Delivery, DeliveryBudget, DurableSubscriptions, RetainedSubscription, StoredSubscription
from penstock.hub.broker.stored_message import LogReader, epoch_of
from penstock.hub.broker.topic_log import PART, TopicAppender, TopicTail, why
from penstock.hub.core.messages import Message
from penstock.hub.core.rules import Binding, HubRules
from penstock.hub.ports import Appended, Deliver, Expired, Forward, Skipped
from penstock.journal.core import events
from penstock.values.descriptions import StreamDescription

log = logging.getLogger("penstock.hub")

OWN = "hub"
"""The topic of everything that has no log of its own; topics of histories are named `hub.NAME`."""
TIDY_SECONDS = 60.0
TURN = 256
"""How many durable subscriptions are maintained in a row before other tasks get a turn."""


def is_own(topic: str) -> bool:
    """Whether the hub owns a topic of the broker: it creates the topic, sets its retention, and recreates it if it is deleted."""
    return topic == OWN or topic.startswith(f"{OWN}.")


class BrokerTopicLogs:
    """The logs behind a hub. Create it inside the running loop. Topics are those of the default project.

    `retention` is how long the hub's own topics keep messages, `expiry` how long a durable subscription waits for its actor, both
    in microseconds.
    """

    def __init__(self, aio: AsyncBroker, *, limits: HubRules, retention: int, expiry: int) -> None:
        self._aio, self._broker = aio, aio.broker
        self._limits, self._retention = limits, retention
        # A broker in memory starts empty with each run, and its topic numbers start again.
        self._run = "" if self._broker.is_durable else f"-{secrets.token_hex(4)}"
        self._appends = TopicAppender(aio, run=self._run, make=self._make_own)
        self._durable = DurableSubscriptions(self._broker, expiry)
        self._readers: dict[Binding, LogReader] = {}
        self._tails: list[TopicTail] = []
        self._open: dict[tuple[str, str], RetainedSubscription] = {}
        """The active deliveries by address and pattern."""
        self._shares: WeakValueDictionary[str, DeliveryBudget] = WeakValueDictionary()
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Locks by actor: its durable subscriptions are changed one at a time, in the order of the calls."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_over = False

    # ── the logs ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def make_topics(self, bindings: Sequence[Binding]) -> None:
        """Create the topics of bindings if they do not exist. Blocks while it creates one: call it in a thread before `start`."""
        for topic in dict.fromkeys(binding.stream for binding in bindings):
            if not self._is_right(find_topic(self._broker, topic)):
                self._broker.change(partial(self._make, topic))

    def start(
        self, bindings: Sequence[Binding], everything: Binding, *, forward: Forward, skipped: Skipped, expired: Expired
    ) -> Sequence[tuple[str, str]]:
        """Find the current end of each log, and forward from there on; returns address and pattern of the durable subscriptions.

        The log of everything is created when it is first needed: most brokers never have one.
        """
        self._expired = expired
        self.make_topics(bindings)
        for number, binding in enumerate((*bindings, everything)):
            reader = self._readers[binding] = LogReader(binding, self._limits.max_message_bytes, bindings[:number])
            tail = TopicTail(self._aio, reader, forward, skipped, run=self._run, replaced=self._replaced)
            tail.start()
            self._tails.append(tail)
        self._spawn(self._run_maintenance())
        return [*dict.fromkeys((kept.address, kept.pattern) for kept in self._durable.all())]

    def append(self, binding: Binding, message: Message, done: Appended) -> None:
        """Write a message; `done` is called with its position once it is stored, or with the error."""
        self._appends.append(binding.stream, message, done)

    async def read(self, binding: Binding, start: int, stop: int) -> tuple[list[Message], int] | None:
        """Messages from `start` on, and the offset to continue from; None if some are no longer stored."""
        if start >= stop:
            return [], stop
        stream = find_topic(self._broker, binding.stream)
        if stream is None or epoch_of(stream, self._run) != binding.epoch:
            return None
        try:
            messages = await read_part(self._aio, stream.number, start, stop, PART)
        except PenstockError as error:
            log.error("the log of topic %r cannot be read: %s", binding.stream, error)
            return None
        if not messages:
            return None
        read = self._readers[binding].message
        found = [read(stored, stream.number, offset) for offset, stored in enumerate(messages, start)]
        return [message for message in found if message is not None], start + len(messages)

    def stop(self) -> None:
        """Stop forwarding and delivery. Safe to call twice, and before `start`."""
        self._is_over = True
        for tail in self._tails:
            tail.stop()
        for retained in [*self._open.values()]:
            retained.close()
        for task in self._tasks:
            task.cancel()

    @property
    def oversized(self) -> int:
        """The number of messages of services that were too large to be forwarded."""
        return sum(reader.oversized for reader in self._readers.values())

    @property
    def missed(self) -> int:
        """The number of messages that were removed from their log before they were forwarded."""
        return sum(tail.missed for tail in self._tails)

    # ── durable subscriptions ────────────────────────────────────────────────────────────────────────────────────────────

    async def retain(self, address: str, pattern: str, bindings: Sequence[Binding], deliver: Deliver) -> RetainedSubscription:
        """Start or resume a durable subscription. A delivery to an earlier connection stops: the later connection takes over."""
        # Read the offsets before anything is awaited: publishers count this subscriber already.
        starts = {binding: self._forwarded(binding) for binding in bindings}
        async with self._turns.setdefault(address, asyncio.Lock()):
            now = self._broker.clock.now()
            logs = [
                (StoredSubscription(address, pattern, binding.stream, binding.pattern, now), binding) for binding in self._readers
            ]
            wanted = [(kept, binding) for kept, binding in logs if binding in bindings]
            # If topics were bound differently before, messages may still wait in another log.
            earlier = [(kept, binding) for kept, binding in logs if binding not in bindings and self._durable.is_attached(kept)]
            await self._make_all(wanted, starts)
            self._end(address, pattern)
            share = self._shares.get(address)
            if share is None:
                share = DeliveryBudget(self._limits.max_unacked, max(self._limits.max_outbox_bytes // 2, 1))
                self._shares[address] = share
            retained = RetainedSubscription(
                [
                    Delivery(self._aio, kept.name, pattern=pattern, reader=self._readers[binding], share=share, deliver=deliver)
                    for kept, binding in (*earlier, *wanted)
                ],
                closed=partial(self._forget, (address, pattern)),
            )
            self._open[address, pattern] = retained
            try:
                retained.start()
            except PenstockError:
                self._end(address, pattern)
                raise
            return retained

    async def _make_all(self, wanted: Sequence[tuple[StoredSubscription, Binding]], starts: Mapping[Binding, int]) -> None:
        """Create all broker subscriptions that a durable one needs. If one fails, delete those that this call created."""
        made: list[StoredSubscription] = []
        try:
            for kept, binding in wanted:
                await self._make_own(kept.topic)
                if not self._durable.is_there(kept):
                    is_new = self._durable.find(kept.name) is None
                    start = min(starts[binding], self._forwarded(binding))  # its topic may have been created again meanwhile
                    await self._aio.call(self._durable.make, kept, binding, start)
                    if is_new:
                        made.append(kept)
        except PenstockError:
            for kept in made:
                await self._aio.call(self._durable.delete, kept)
            raise

    async def release(self, address: str, patterns: Sequence[str]) -> None:
        """Delete durable subscriptions; those that do not exist are ignored."""
        async with self._turns.setdefault(address, asyncio.Lock()):
            for pattern in patterns:
                self._end(address, pattern)
            for kept in await self._aio.call(self._durable.of, address):
                if kept.pattern in patterns:
                    await self._aio.call(self._durable.delete, kept)

    async def tidy(self) -> None:
        """Delete expired durable subscriptions, store which are in use, recreate those that were deleted or lost their topic."""
        failed: list[PenstockError] = []
        for number, found in enumerate(await self._aio.call(self._durable.all), 1):
            async with self._turns.setdefault(found.address, asyncio.Lock()):
                kept = self._durable.find(found.name)  # it may have changed while waiting for the lock
                try:
                    if kept is not None:
                        await self._look_after(kept)
                except PenstockError as error:  # one failed: the others need maintenance as well
                    failed.append(error)
            if number % TURN == 0:
                await asyncio.sleep(0)
        if failed:
            log.warning("%d durable subscriptions could not be looked after, will try again: %s", len(failed), why(failed[-1]))

    async def _look_after(self, kept: StoredSubscription) -> None:
        now = self._broker.clock.now()
        retained, binding = self._open.get((kept.address, kept.pattern)), self._binding(kept)
        if retained is not None and binding is not None and retained.is_delivering(kept.name):
            used = msgspec.structs.replace(kept, used_at=now)
            if not self._durable.is_there(used):
                await self._aio.call(self._durable.make, used, binding, self._forwarded(binding))
                retained.wake()
        elif self._durable.is_over(kept, now):
            log.info("the durable subscription %r was not used for its whole expiry and is deleted", kept.name)
            await self._aio.call(self._durable.delete, kept)
            others = await self._aio.call(self._durable.of, kept.address)
            if all(other.pattern != kept.pattern for other in others):  # else it still has another log
                self._expired(kept.address, kept.pattern)
        elif binding is not None and self._durable.is_left_behind(kept):
            # Its topic was created again while the hub did not follow it, or recreating the subscription failed at that time.
            await self._aio.call(self._durable.make, kept, binding, 0)

    def _end(self, address: str, pattern: str) -> None:
        retained = self._open.get((address, pattern))
        if retained is not None:
            retained.close()

    def _forget(self, key: tuple[str, str], retained: RetainedSubscription) -> None:
        if self._open.get(key) is retained:
            del self._open[key]

    # ── helpers ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _is_right(self, stream: StreamDescription | None) -> bool:
        """Whether a topic exists with the right retention; options set through the Pub/Sub API take precedence over settings."""
        return stream is not None and (not is_own(stream.name) or stream.retention == self._retention or bool(stream.spec))

    def _make(self, topic: str, catalog: Catalog, now: int) -> events.TopicCreated | events.TopicUpdated | None:
        stream = catalog.topics.get(topic)
        if stream is None:
            return catalog.create_topic(topic, now, retention=self._retention if is_own(topic) else None)
        return None if self._is_right(stream.describe()) else catalog.update_topic(topic, stream.spec, self._retention, now)

    def _binding(self, kept: StoredSubscription) -> Binding | None:
        """The binding of a durable subscription; None if the configuration of the hub has changed since."""
        wanted = kept.topic, kept.bound
        return next((binding for binding in self._readers if (binding.stream, binding.pattern) == wanted), None)

    def _forwarded(self, binding: Binding) -> int:
        """The offset up to which the log was forwarded, where a new durable subscription starts.

        If it started later, a live subscriber that becomes durable would miss messages that are not forwarded yet.
        """
        stream = find_topic(self._broker, binding.stream)
        return binding.next_offset if stream is not None and epoch_of(stream, self._run) == binding.epoch else 0

    def _replaced(self, binding: Binding, exists: bool) -> None:
        """A topic was deleted, or created again: restart everything that depends on it."""
        topic = binding.stream
        if exists:
            log.warning("topic %r was deleted and created again: its history starts again", topic)
            self._spawn(self._renew(binding))
        elif is_own(topic):
            self._spawn(self._make_own(topic))
        else:
            log.warning("topic %r was deleted: nothing can be published to %r until it is there again", topic, binding.pattern)

    async def _make_own(self, topic: str) -> None:
        """Create a missing topic that the hub owns; topics of others are not created."""
        is_missing = is_own(topic) and find_topic(self._broker, topic) is None
        if is_missing:
            await self._aio.call(self._broker.change, partial(self._make, topic))
        for tail in self._tails if is_missing else ():
            if tail.topic == topic:
                tail.look()

    async def _renew(self, binding: Binding) -> None:
        """Recreate the durable subscriptions of a topic that was created again; the old ones would stay empty forever."""
        for kept in await self._aio.call(self._durable.all):
            if self._binding(kept) is binding:
                async with self._turns.setdefault(kept.address, asyncio.Lock()):
                    await self._aio.call(self._durable.make, kept, binding, 0)
                    retained = self._open.get((kept.address, kept.pattern))
                    if retained is not None:
                        retained.wake()

    async def _run_maintenance(self) -> None:
        while True:
            try:
                await self.tidy()
            except Exception as error:  # noqa: BLE001  # it is retried after any error
                log.warning("durable subscriptions could not be tidied up, will try again: %s", why(error))
            await asyncio.sleep(TIDY_SECONDS)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        if self._is_over:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("a topic of the hub could not be created again: %s", why(error))
