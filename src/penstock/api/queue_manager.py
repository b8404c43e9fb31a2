"""`QueueManager`: work queues in this process (specification 003)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from penstock.api.in_process import Face
from penstock.broker.broker import Broker
from penstock.broker.catalog import Catalog
from penstock.broker.consumer import Consumer
from penstock.broker.core.leases import Lease
from penstock.broker.core.queue import Queue
from penstock.broker.descriptions import queue_message
from penstock.broker.settlement import Settlement, release
from penstock.clock import Clock
from penstock.durations import DAY, SECOND, micros, to_datetime
from penstock.errors import AckDeadlineExceeded, ConsumerNotFound, InvalidArgument, MessageNotFound, PenstockError
from penstock.ids import message_id, parse_message_id
from penstock.journal.core.checkpoint import DeadLetterEntry
from penstock.journal.core.events import DeadRemoved
from penstock.values.message import Batch, StoredMessage, check_name, check_text, plain_text
from penstock.values.policy import Duration, QueueConfig, as_plain, check_ack_deadline, check_count, check_flag, queue_policy
from penstock.values.queue import DeadLetter, NackResult, NewMessage, PublishResult, QueueMessage, QueueStats, accept

MAX_ERROR_BYTES = 64 * 1024
MAX_DELAY_SECONDS = 366 * 86_400
MAX_CONFIGS = 1_000
"""So many settings are kept decoded; those of queues that are long gone must not stay for ever."""

REQUEUED = "requeued"
DEAD_LETTERED = "dead_lettered"


# Inside the class the name `list` is the method that specification 003 asks for.
Messages = list[QueueMessage]
DeadLetters = list[DeadLetter]
Offsets = list[int]
Ids = list[str]
Failures = dict[str, PenstockError]


class Terms(msgspec.Struct, frozen=True, gc=False):
    """What a consumer asks for, checked: how much, for how long, under which name, and how long it waits (microseconds)."""

    want: int
    consumer: str
    wait: int
    ack_deadline: int | None
    prefetch: int | None


class QueueManager(Face):
    """Queues with priorities, acknowledgement, retries and dead letters, in this process.

    `QueueManager()` lives in memory; `data_dir` makes it durable; `broker` shares one with a `MessageQueue`. All methods may be
    called from many threads.
    """

    def __init__(
        self, *, clock: Clock | None = None, data_dir: str | os.PathLike[str] | None = None, broker: Broker | None = None
    ) -> None:
        super().__init__(clock=clock, data_dir=data_dir, broker=broker)
        self._configs: dict[bytes, QueueConfig] = {}

    def create(self, queue: str, config: QueueConfig | None = None) -> None:
        """Create a queue. AlreadyExists when there is one."""
        name = check_name(queue, "queue")
        config = QueueConfig() if config is None else config
        if not isinstance(config, QueueConfig):
            raise InvalidArgument.of("config", config, "a QueueConfig")
        config = as_plain(config)
        policy, spec = queue_policy(config), msgspec.msgpack.encode(config)
        self.broker.change(lambda catalog, now: catalog.create_work_queue(name, policy, spec, now))

    def delete(self, queue: str) -> None:
        """Delete a queue with everything in it, its dead letters too."""
        self.broker.change(lambda catalog, now: catalog.delete_queue(catalog.work_queue(queue), now))

    def list(self) -> list[str]:
        """The names of all queues, in the order they were created."""
        with self.broker.present():
            return [*self.broker.catalog.work_queues]

    def exists(self, queue: str) -> bool:
        """Whether there is a queue of that name."""
        check_name(queue, "queue")
        with self.broker.present():
            return queue in self.broker.catalog.work_queues

    def config(self, queue: str) -> QueueConfig:
        """The settings of a queue."""
        with self.broker.present():
            return self._config(self.broker.catalog.work_queue(queue))

    def publish(
        self,
        queue: str,
        payload: Any,
        *,
        priority: int | None = None,
        ttl: Duration | None = None,
        headers: Mapping[str, str] | None = None,
        max_retries: int | None = None,
        delay: Duration | None = None,
        deliver_at: datetime | float | None = None,
        producer_id: str | None = None,
        sequence: int | None = None,
    ) -> PublishResult:
        """Add a message. With a data directory it is on disk when this returns. QueueFull when there is no room.

        `delay` (or `deliver_at`) keeps it back; `ttl` sends it to the dead letters when it was not delivered in time;
        `producer_id` with `sequence` makes a repeated publish return the first id and add nothing.
        """
        message = NewMessage(payload, priority, ttl, headers, max_retries, delay, deliver_at, producer_id, sequence)
        now = self.broker.clock.now()
        placed = self.broker.publish(Catalog.work_stream, queue, self.batch(queue, [message], now), now)
        return PublishResult(placed.message_ids()[0], placed.position)

    def publish_many(self, queue: str, messages: Sequence[NewMessage]) -> Ids:
        """Add messages together: all of them or, when one is refused or there is no room, none. Returns their ids, in order."""
        now = self.broker.clock.now()
        return self.broker.publish(Catalog.work_stream, queue, self.batch(queue, messages, now), now).message_ids()

    def batch(self, queue: str, messages: Sequence[NewMessage], now: int) -> Batch:
        """What a publish of these messages hands to the broker: for shells that publish without waiting in a thread."""
        if type(messages) is not list and not isinstance(messages, Sequence):
            raise InvalidArgument.of("messages", messages, "a list of NewMessage")
        if not messages:
            raise InvalidArgument("messages is empty, wanted at least one message")
        for index, message in enumerate(messages):
            if not isinstance(message, NewMessage):
                raise InvalidArgument.of(f"messages[{index}]", message, "a NewMessage")
        with self.broker.lock:
            config = self._config(self.broker.catalog.work_queue(queue))
        return accept(messages, config, now)

    def consume(
        self,
        queue: str,
        consumer_id: str = "default",
        timeout: Duration = 0,
        *,
        ack_deadline: Duration | None = None,
        prefetch: int | None = None,
    ) -> QueueMessage | None:
        """Lease the most urgent message, waiting up to `timeout` seconds for one; None when there is none.

        A consumer holds at most `prefetch` messages: at that number it gets None until it settles one.
        """
        messages = self.consume_many(
            queue, consumer_id, max_messages=1, timeout=timeout, ack_deadline=ack_deadline, prefetch=prefetch
        )
        return messages[0] if messages else None

    def consume_many(
        self,
        queue: str,
        consumer_id: str = "default",
        *,
        max_messages: int = 100,
        timeout: Duration = 0,
        ack_deadline: Duration | None = None,
        prefetch: int | None = None,
    ) -> Messages:
        """Lease up to `max_messages`, never more than the prefetch leaves room for; waits as `consume` does, for the first."""
        terms = self.terms(
            queue, consumer_id, max_messages=max_messages, timeout=timeout, ack_deadline=ack_deadline, prefetch=prefetch
        )
        consumer = Consumer(
            self.broker,
            Catalog.work_queue,
            queue,
            identity=terms.consumer,
            ack_deadline=terms.ack_deadline,
            prefetch=terms.prefetch,
        )
        leases = consumer.wait(terms.want, terms.wait)
        return [queue_message(consumer.queue, lease.offset, lease.message, lease.attempt - 1) for lease in leases]

    def terms(
        self,
        queue: str,
        consumer_id: str,
        *,
        max_messages: int = 1,
        timeout: Duration = 0,
        ack_deadline: Duration | None = None,
        prefetch: int | None = None,
    ) -> Terms:
        """Check what a consumer asks for: for shells that wait without a thread."""
        consumer_id = check_name(consumer_id, "consumer_id")
        check_count(max_messages, "max_messages", 1)
        wait = micros(timeout, "timeout", maximum=DAY // SECOND)
        deadline = None if ack_deadline is None else check_ack_deadline(ack_deadline, "ack_deadline")
        if prefetch is not None:
            with self.broker.lock:
                limit = self._config(self.broker.catalog.work_queue(queue)).max_prefetch
            check_count(prefetch, "prefetch", 1, limit)
        return Terms(max_messages, consumer_id, wait, deadline, prefetch)

    def ack(self, queue: str, message_id: str, consumer_id: str | None = None) -> None:
        """Settle a message for good. AckDeadlineExceeded, MessageNotFound or ConsumerNotFound when it is not held (any more)."""
        broker = self.broker
        with broker.present() as now:
            entry = broker.catalog.work_queue(queue)
            broker.settle(entry, [self._held(entry, message_id, consumer_id)], now, Queue.ack)

    def nack(
        self, queue: str, message_id: str, requeue: bool = True, *, consumer_id: str | None = None, error: str | None = None
    ) -> NackResult:
        """Give a message back for another try, or, with requeue=False or no tries left, to the dead letters."""
        settlement = _nack(requeue, error)
        broker = self.broker
        with broker.present() as now:
            entry = broker.catalog.work_queue(queue)
            lease = self._held(entry, message_id, consumer_id)
            broker.settle(entry, [lease], now, settlement)
            return NackResult(REQUEUED if entry.is_waiting(lease.offset) else DEAD_LETTERED)

    def ack_many(self, queue: str, message_ids: Iterable[str], consumer_id: str | None = None) -> Failures:
        """Settle those that are held; returns, by id, why the others could not be. An id that is given twice counts once."""
        return self._settle_many(queue, message_ids, consumer_id, Queue.ack)

    def nack_many(
        self,
        queue: str,
        message_ids: Iterable[str],
        requeue: bool = True,
        *,
        consumer_id: str | None = None,
        error: str | None = None,
        delay: Duration | None = None,
    ) -> Failures:
        """Give back those that are held, as `nack` does; returns, by id, why the others could not be.

        `delay` is how long they wait for their next try, in place of what the queue's retry policy says.
        """
        return self._settle_many(queue, message_ids, consumer_id, _nack(requeue, error, delay))

    def extend(self, queue: str, message_id: str, seconds: Duration, consumer_id: str | None = None) -> None:
        """Set the deadline of a message that is held to now + seconds."""
        span = check_ack_deadline(seconds, "seconds")
        broker = self.broker
        with broker.present() as now:
            entry = broker.catalog.work_queue(queue)
            lease = self._held(entry, message_id, consumer_id)
            broker.settle(entry, [lease], now, lambda queue, leases, now: queue.extend(leases, now + span, now))

    def release_consumer(self, queue: str, consumer_id: str) -> int:
        """Return everything a consumer holds at once, without counting a retry; returns how many."""
        check_name(consumer_id, "consumer_id")
        broker = self.broker
        with broker.present() as now:
            entry = broker.catalog.work_queue(queue)
            if not entry.knows(consumer_id):
                raise ConsumerNotFound(consumer_id)
            return release(broker, entry, consumer_id, now)

    def peek(self, queue: str) -> QueueMessage | None:
        """The message that would be consumed next, without consuming it."""
        broker = self.broker
        with broker.present():
            entry = broker.catalog.work_queue(queue)
            for offset, attempts, message in broker.upcoming(entry, 1):
                return queue_message(entry, offset, message, attempts)
        return None

    def purge(self, queue: str) -> int:
        """Remove everything that waits, delayed messages too, but nothing that is held; returns how many."""
        event = self.broker.change(lambda catalog, now: catalog.work_queue(queue).purge(now))
        return event.count if event is not None else 0

    def pause(self, queue: str) -> None:
        """Hand out nothing until `resume`."""
        self.broker.change(lambda catalog, now: catalog.work_queue(queue).pause(True, now))

    def resume(self, queue: str) -> None:
        """Hand out again."""
        self.broker.change(lambda catalog, now: catalog.work_queue(queue).pause(False, now))

    def stats(self, queue: str) -> QueueStats:
        """The state of a queue in numbers."""
        broker = self.broker
        with broker.present() as now:
            entry = broker.catalog.work_queue(queue)
            counters = entry.counters
            waits = counters.first_deliveries
            return QueueStats(
                queue=entry.name,
                depth=entry.ready,
                consumers=len(entry.consumers()),
                published_total=broker.catalog.streams[entry.stream].next_offset,
                consumed_total=counters.delivered,
                acked_total=counters.acked,
                nacked_total=counters.nacked,
                dead_lettered_total=counters.dead_lettered,
                avg_wait_time_ms=counters.waited / waits / 1000 if waits else 0.0,
                oldest_message_age_secs=broker.oldest_age(entry, now),
                delayed=entry.delayed,
                in_flight=entry.in_flight,
                in_flight_bytes=entry.in_flight_bytes,
                backlog_bytes=entry.size,
                expired_total=counters.expired,
                dead_letters=len(entry.dead),
                dead_letters_evicted_total=counters.evicted,
                ttl_expired_total=counters.ttl_expired,
                discarded_total=counters.discarded,
                paused=entry.paused,
            )

    def dead_letters(
        self,
        queue: str,
        limit: int | None = None,
        *,
        message_ids: Sequence[str] | None = None,
        max_bytes: int | None = None,
    ) -> DeadLetters:
        """The dead letters of a queue, oldest first; or those of these ids that are there, in the order of the ids.

        `max_bytes` ends the list before the payloads become more than that; a first one comes in any case.
        """
        if limit is not None:
            check_count(limit, "limit", 1)
        broker = self.broker
        found: DeadLetters = []
        with broker.present():
            entry = broker.catalog.work_queue(queue)
            stream = broker.catalog.streams[entry.stream]
            offsets = [*entry.dead] if message_ids is None else _offsets(entry, message_ids)
            for letter in [entry.dead[offset] for offset in offsets if offset in entry.dead][:limit]:
                message = broker.message(stream, letter.offset)
                if message is None:
                    raise MessageNotFound(message_id(letter.publish_at, stream.number, letter.offset))
                if max_bytes is not None:
                    max_bytes -= message.size
                    if max_bytes < 0 and found:
                        break
                found.append(_dead_letter(entry, letter, message))
        return found

    def dead_letter_ids(self, queue: str) -> Ids:
        """The ids of the dead letters of a queue, oldest first: for who reads many of them piece by piece."""
        with self.broker.present():
            entry = self.broker.catalog.work_queue(queue)
            return [message_id(letter.publish_at, entry.stream, letter.offset) for letter in entry.dead.values()]

    def retry_dead_letter(self, queue: str, message_id: str) -> None:
        """Put one dead letter back into its queue: same id, no retries counted, no time to live."""
        broker = self.broker
        place = parse_message_id(message_id)
        with broker.present():
            entry = broker.catalog.work_queue(queue)
            if place is None or place[1] != entry.stream:
                raise MessageNotFound(message_id)
            is_listed = place[2] in entry.dead
            message = broker.message(broker.catalog.streams[entry.stream], place[2])
            if message is None or message.publish_at != place[0]:
                raise MessageNotFound(message_id)
        # A letter that left the list is still in the log, which is read without the lock.
        if not is_listed and broker.last_fate(entry, place[2]) not in {"dead_lettered", "evicted", "purged"}:
            raise MessageNotFound(message_id)
        with broker.lock:
            if (is_listed and place[2] not in entry.dead) or entry.is_unsettled(place[2], message):
                raise MessageNotFound(message_id)
            self._redrive(entry, [place[2]])
        broker.sync()

    def redrive(
        self,
        queue: str,
        where: Callable[[DeadLetter], bool] | None = None,
        limit: int | None = None,
        *,
        message_ids: Sequence[str] | None = None,
    ) -> int:
        """Put dead letters back, oldest first: all, these, or those that `where` picks, `limit` at most; returns how many."""
        if where is not None and not callable(where):
            raise InvalidArgument.of("where", where, "a function of a DeadLetter, or None")
        if where is not None and message_ids is not None:
            raise InvalidArgument("where is given together with message_ids, wanted one or the other")
        if limit is not None:
            check_count(limit, "limit", 1)
        if where is not None:
            message_ids = [letter.message.message_id for letter in self.dead_letters(queue) if where(letter)]
        broker = self.broker
        with broker.present():
            entry = broker.catalog.work_queue(queue)
            wanted = [*entry.dead] if message_ids is None else _offsets(entry, message_ids)
            picked = [offset for offset in wanted if offset in entry.dead][:limit]
            if picked:
                self._redrive(entry, picked)
        broker.sync()
        return len(picked)

    def purge_dead_letters(self, queue: str, message_ids: Sequence[str] | None = None) -> int:
        """Empty the list of dead letters, or take these from it; returns how many. They stay in the log until its retention."""

        def purge(catalog: Catalog, now: int) -> DeadRemoved | None:
            entry = catalog.work_queue(queue)
            return entry.purge_dead(now, None if message_ids is None else frozenset(_offsets(entry, message_ids)))

        event = self.broker.change(purge)
        return event.count if event is not None else 0

    def _config(self, entry: Queue) -> QueueConfig:
        config = self._configs.get(entry.spec)
        if config is None:
            if len(self._configs) >= MAX_CONFIGS:
                self._configs.clear()
            config = self._configs[entry.spec] = msgspec.msgpack.decode(entry.spec, type=QueueConfig)
        return config

    def _held(self, entry: Queue, message_id: str, consumer_id: str | None) -> Lease:
        if consumer_id is not None:
            check_name(consumer_id, "consumer_id")
        place = parse_message_id(message_id)
        if place is None or place[1] != entry.stream:
            raise MessageNotFound(message_id)
        lease = entry.lease_of(place[2])
        if lease is not None and lease.message.publish_at != place[0]:
            raise MessageNotFound(message_id)
        if lease is None:
            raise AckDeadlineExceeded(message_id) if entry.has_expired(place[2]) else MessageNotFound(message_id)
        if consumer_id is not None and (lease.consumer is None or lease.consumer.consumer_id != consumer_id):
            raise ConsumerNotFound(consumer_id)
        return lease

    def _settle_many(self, queue: str, message_ids: Iterable[str], consumer_id: str | None, settlement: Settlement) -> Failures:
        if isinstance(message_ids, str | bytes) or not isinstance(message_ids, Iterable):
            raise InvalidArgument.of("message_ids", message_ids, "a list of message ids")
        ids = [*message_ids]
        for index, one in enumerate(ids):
            if not isinstance(one, str):
                raise InvalidArgument.of(f"message_ids[{index}]", one, "a string")
        leases: dict[str, Lease] = {}
        failures: Failures = {}
        broker = self.broker
        with broker.present() as now:
            entry = broker.catalog.work_queue(queue)
            for one in ids:
                try:
                    leases[one] = self._held(entry, one, consumer_id)
                except (MessageNotFound, AckDeadlineExceeded, ConsumerNotFound) as error:
                    failures[one] = error
            if leases:
                broker.settle(entry, [*leases.values()], now, settlement)
        return failures

    def _redrive(self, entry: Queue, offsets: Offsets) -> None:
        broker = self.broker
        stream = broker.catalog.streams[entry.stream]
        letters = [(offset, message) for offset in offsets if (message := broker.message(stream, offset)) is not None]
        broker.emit(entry.redrive(letters, broker.clock.now()))
        broker.reschedule(entry)
        broker.bells.ring(entry.number)


def _dead_letter(entry: Queue, letter: DeadLetterEntry, message: StoredMessage) -> DeadLetter:
    retries = max(letter.attempts - 1, 0)
    return DeadLetter(
        queue_message(entry, letter.offset, message, retries),
        letter.reason,
        entry.name,
        to_datetime(letter.at),
        letter.attempts,
        letter.error,
    )


def _offsets(entry: Queue, message_ids: Sequence[str]) -> Offsets:
    """Where the messages of these ids are, as far as they are the queue's."""
    places = map(parse_message_id, message_ids)
    return [place[2] for place in places if place is not None and place[1] == entry.stream]


def _nack(requeue: bool, error: str | None, delay: Duration | None = None) -> Settlement:
    """The settlement that gives deliveries back, for another try or to the dead letters."""
    check_flag(requeue, "requeue")
    if error is not None:
        check_text(error, "error", MAX_ERROR_BYTES)
        error = plain_text(error)
    span = None if delay is None else micros(delay, "delay", maximum=MAX_DELAY_SECONDS)
    return lambda queue, leases, now: queue.nack(leases, now, requeue=requeue, error=error, delay=span)
