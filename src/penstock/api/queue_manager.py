"""`QueueManager`: work queues in this process (specification 003)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Unpack

import msgspec

from penstock.api.in_process import InProcessApi
from penstock.broker import backlog, lookup, work_queues
from penstock.broker.broker import Broker
from penstock.broker.catalog import Catalog
from penstock.broker.consumer import take_blocking
from penstock.broker.descriptions import queue_message
from penstock.broker.settlement import ACK, Settlement, new_deadline
from penstock.broker.settlement import nack as nack_verb
from penstock.broker.work_queues import Failures
from penstock.clock import Clock
from penstock.durations import DAY, SECOND, micros
from penstock.errors import InvalidArgument
from penstock.journal.core.events import Event
from penstock.values.keywords import QueueSettings, with_specified_names
from penstock.values.message import Batch, check_name, check_string, check_text, plain_text
from penstock.values.policy import (
    MAX_COUNT,
    Duration,
    Policy,
    QueueConfig,
    as_plain,
    changed,
    check_ack_deadline,
    check_count,
    check_flag,
    queue_policy,
)
from penstock.values.queue import (
    DeadLetter,
    NackResult,
    NewMessage,
    PublishResult,
    QueueConsumer,
    QueueMessage,
    QueueStats,
    accept,
)

MAX_ERROR_BYTES = 64 * 1024
MAX_DELAY_SECONDS = 366 * 86_400
MAX_CONFIGS = 1_000
"""The number of decoded settings in the cache; those of deleted queues must not stay forever."""

REQUEUED = "requeued"
DEAD_LETTERED = "dead_lettered"


# Inside the class, `list` is the method of specification 003.
Messages = list[QueueMessage]
Consumers = list[QueueConsumer]
DeadLetters = list[DeadLetter]
Ids = list[str]


class ConsumeTerms(msgspec.Struct, frozen=True, gc=False):
    """The checked arguments of a consume: limits, lease, consumer and how long to wait (microseconds)."""

    want: int
    consumer: str | None
    wait: int
    ack_deadline: int | None
    prefetch: int | None


class QueueManager(InProcessApi):
    """Queues with priorities, acknowledgement, retries and dead letters, in this process.

    `QueueManager()` is in memory; `data_dir` makes it durable; `broker` shares one with a `MessageQueue`. All methods are
    thread-safe. `defaults` are the settings of queues that are created without settings.
    """

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        data_dir: str | os.PathLike[str] | None = None,
        broker: Broker | None = None,
        defaults: QueueConfig | None = None,
    ) -> None:
        if defaults is not None and not isinstance(defaults, QueueConfig):
            raise InvalidArgument.of("defaults", defaults, "a QueueConfig")
        super().__init__(clock=clock, data_dir=data_dir, broker=broker)
        self.defaults = QueueConfig() if defaults is None else defaults
        self._configs: dict[bytes, QueueConfig] = {}

    def create(self, queue: str, config: QueueConfig | None = None, **settings: Unpack[QueueSettings]) -> None:
        """Create a queue, with a QueueConfig or with settings by name: `create("tasks", max_retries=5)`.

        Other settings have the manager's `defaults`. AlreadyExists if the queue exists.
        """
        name = check_name(queue, "queue")
        policy, spec = queue_settings(self.defaults, config, with_specified_names(settings, "ack_deadline_secs"))
        self.broker.change(lambda catalog, now: catalog.create_work_queue(name, policy, spec, now))

    def update(self, queue: str, **changes: Unpack[QueueSettings]) -> QueueConfig:
        """Change settings of `QueueConfig` by name; others stay. Returns all settings.

        Leases keep their deadlines and delayed messages their delays.
        """

        def update(catalog: Catalog, now: int) -> Event:
            found = catalog.work_queue(queue)
            policy, spec = queue_settings(changed(self._config(found.spec), with_specified_names(changes, "ack_deadline_secs")))
            return catalog.update_queue(found, policy, spec, now)

        self.broker.change(update)
        return self.config(queue)

    def delete(self, queue: str) -> None:
        """Delete a queue with everything in it, its dead letters too."""
        self.broker.change(lambda catalog, now: catalog.delete_queue(catalog.work_queue(queue), now))

    def list(self) -> list[str]:
        """The names of all queues, in the order they were created."""
        return lookup.work_queues(self._current())

    def exists(self, queue: str) -> bool:
        """Whether there is a queue of that name."""
        return lookup.find_work_queue(self._current(), check_string(queue, "queue")) is not None

    def config(self, queue: str) -> QueueConfig:
        """The settings of a queue."""
        return self._config(lookup.work_queue(self._current(), queue).spec)

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
        """Publish a message. With a data directory it is on disk when this returns. QueueFull if there is no room.

        `delay` (or `deliver_at`) delays its delivery; `ttl` dead-letters it if it is not delivered in time; with `producer_id`
        and `sequence` a repeated publish returns the first id and stores nothing.
        """
        message = NewMessage(payload, priority, ttl, headers, max_retries, delay, deliver_at, producer_id, sequence)
        broker = self.broker
        now = broker.clock.now()
        batch = accept([message], self._config(lookup.work_queue_spec(broker, queue)), now)
        placed = broker.publish(Catalog.work_stream, queue, batch, now)
        return PublishResult(placed.message_ids()[0], placed.position)

    def publish_many(self, queue: str, messages: Sequence[NewMessage]) -> Ids:
        """Publish messages together: all or, if one is refused or there is no room, none. Returns their ids, in order."""
        now = self.broker.clock.now()
        return self.broker.publish(Catalog.work_stream, queue, self.batch(queue, messages, now), now).message_ids()

    def batch(self, queue: str, messages: Sequence[NewMessage], now: int) -> Batch:
        """The publish of these messages for the broker: for callers that publish without waiting in a thread."""
        if type(messages) is not list and not isinstance(messages, Sequence):
            raise InvalidArgument.of("messages", messages, "a list of NewMessage")
        if not messages:
            raise InvalidArgument("messages is empty, expected at least one message")
        for index, message in enumerate(messages):
            if not isinstance(message, NewMessage):
                raise InvalidArgument.of(f"messages[{index}]", message, "a NewMessage")
        return accept(messages, self._config(lookup.work_queue_spec(self.broker, queue)), now)

    def consume(
        self,
        queue: str,
        consumer_id: str = "default",
        timeout: Duration = 0,
        *,
        ack_deadline: Duration | None = None,
        prefetch: int | None = None,
    ) -> QueueMessage | None:
        """Lease the message with the highest priority, waiting up to `timeout` seconds; None if there is none.

        A consumer holds at most `prefetch` messages: at the limit it gets None until it settles one.
        """
        terms = self.terms(queue, consumer_id, 1, timeout, ack_deadline, prefetch)
        found, leases = take_blocking(
            self.broker, Catalog.work_queue, queue, 1, terms.wait, terms.consumer, terms.ack_deadline, prefetch
        )
        return queue_message(found, leases[0].offset, leases[0].message, leases[0].attempt - 1) if leases else None

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
        """Lease up to `max_messages`, never more than the prefetch allows; waits for the first like `consume`."""
        terms = self.terms(queue, consumer_id, max_messages, timeout, ack_deadline, prefetch)
        found, leases = take_blocking(
            self.broker, Catalog.work_queue, queue, terms.want, terms.wait, terms.consumer, terms.ack_deadline, prefetch
        )
        return [queue_message(found, lease.offset, lease.message, lease.attempt - 1) for lease in leases]

    def terms(  # noqa: PLR0917  # the arguments of `consume_many`, by position since a keyword costs time here
        self,
        queue: str,
        consumer_id: str | None,
        max_messages: int = 1,
        timeout: Duration = 0,
        ack_deadline: Duration | None = None,
        prefetch: int | None = None,
    ) -> ConsumeTerms:
        """Check the arguments of a consume: for callers that wait without a thread.

        Without an id, each call is its own consumer.
        """
        if consumer_id is not None:
            consumer_id = check_name(consumer_id, "consumer_id")
        if type(max_messages) is not int or not 1 <= max_messages <= MAX_COUNT:
            check_count(max_messages, "max_messages", 1)
        wait = micros(timeout, "timeout", maximum=DAY // SECOND) if timeout or type(timeout) is not int else 0
        deadline = None if ack_deadline is None else check_ack_deadline(ack_deadline, "ack_deadline")
        if prefetch is not None or consumer_id is None:
            config = self._config(lookup.work_queue(self.broker, queue).spec)
            if prefetch is not None:
                check_count(prefetch, "prefetch", 1, config.max_prefetch)
            if consumer_id is None:
                max_messages = min(max_messages, prefetch or config.default_prefetch)
        return ConsumeTerms(max_messages, consumer_id, wait, deadline, prefetch)

    def ack(self, queue: str, message_id: str, consumer_id: str | None = None) -> None:
        """Ack a message. AckDeadlineExceeded, MessageNotFound or ConsumerNotFound if it is not leased any more."""
        work_queues.settle(self.broker, queue, message_id, _consumer(consumer_id), ACK)

    def nack(
        self, queue: str, message_id: str, requeue: bool = True, *, consumer_id: str | None = None, error: str | None = None
    ) -> NackResult:
        """Nack a message: it is retried or, with requeue=False or after the last retry, dead-lettered."""
        is_waiting = work_queues.settle(self.broker, queue, message_id, _consumer(consumer_id), _nack(requeue, error))
        return NackResult(REQUEUED if is_waiting else DEAD_LETTERED)

    def ack_many(self, queue: str, message_ids: Iterable[str], consumer_id: str | None = None) -> Failures:
        """Ack those that are leased; returns, by id, why the others failed. A repeated id counts once."""
        return work_queues.settle_many(self.broker, queue, _ids(message_ids), _consumer(consumer_id), ACK)

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
        """Nack those that are leased; returns, by id, why the others failed.

        `delay` is the time to their next attempt, in place of the queue's retry policy.
        """
        verb = _nack(requeue, error, delay)
        return work_queues.settle_many(self.broker, queue, _ids(message_ids), _consumer(consumer_id), verb)

    def extend(self, queue: str, message_id: str, seconds: Duration, consumer_id: str | None = None) -> None:
        """Set the deadline of a leased message to now + seconds."""
        verb = new_deadline(check_ack_deadline(seconds, "seconds"))
        work_queues.settle(self.broker, queue, message_id, _consumer(consumer_id), verb)

    def release_consumer(self, queue: str, consumer_id: str) -> int:
        """Requeue everything that a consumer holds at once, without counting a retry; returns how many."""
        return work_queues.release_consumer(self.broker, queue, check_name(consumer_id, "consumer_id"))

    def peek(self, queue: str) -> QueueMessage | None:
        """The message that would be consumed next, without consuming it."""
        found, waiting = backlog.upcoming(self.broker, Catalog.work_queue, queue, 1)
        return queue_message(found, waiting[0].offset, waiting[0].message, waiting[0].attempts) if waiting else None

    def purge(self, queue: str) -> int:
        """Remove all messages that are not leased, delayed ones too; returns how many."""
        event = self.broker.change(lambda catalog, now: catalog.work_queue(queue).purge(now))
        return event.count if event is not None else 0

    def pause(self, queue: str) -> None:
        """Pause delivery until `resume`."""
        self.broker.change(lambda catalog, now: catalog.work_queue(queue).pause(True, now))

    def resume(self, queue: str) -> None:
        """Resume delivery."""
        self.broker.change(lambda catalog, now: catalog.work_queue(queue).pause(False, now))

    def stats(self, queue: str) -> QueueStats:
        """The state of a queue in numbers."""
        return backlog.queue_stats(self.broker, queue)

    def consumers(self, queue: str, max_messages: int = 100) -> Consumers:
        """The consumers of a queue, and what each holds since when: up to `max_messages` of each, oldest first."""
        check_count(max_messages, "max_messages", 0)
        return work_queues.consumers(self.broker, queue, {}, max_messages)

    def dead_letters(
        self,
        queue: str,
        limit: int | None = None,
        *,
        message_ids: Sequence[str] | None = None,
        max_bytes: int | None = None,
    ) -> DeadLetters:
        """The dead letters of a queue, oldest first; or those with these ids that exist, in the order of the ids.

        `max_bytes` limits the total size of the payloads; the first one is returned in any case.
        """
        if limit is not None:
            check_count(limit, "limit", 1)
        if max_bytes is not None:
            check_count(max_bytes, "max_bytes", 0)
        return work_queues.dead_letters(self.broker, queue, limit, _some_ids(message_ids), max_bytes)

    def dead_letter_ids(self, queue: str) -> Ids:
        """The ids of the dead letters of a queue, oldest first, for reading long lists."""
        return work_queues.dead_letter_ids(self.broker, queue)

    def retry_dead_letter(self, queue: str, message_id: str) -> None:
        """Put one dead letter back into its queue: with the same id, no retries counted, and no time to live."""
        work_queues.retry_dead_letter(self.broker, queue, message_id)

    def redrive(
        self,
        queue: str,
        where: Callable[[DeadLetter], bool] | None = None,
        limit: int | None = None,
        *,
        message_ids: Sequence[str] | None = None,
    ) -> int:
        """Put dead letters back, oldest first: all, these, or those that match `where`, `limit` at most; returns how many."""
        if where is not None and not callable(where):
            raise InvalidArgument.of("where", where, "a function of a DeadLetter, or None")
        if where is not None and message_ids is not None:
            raise InvalidArgument("where is given together with message_ids, expected one or the other")
        if limit is not None:
            check_count(limit, "limit", 1)
        if where is not None:
            message_ids = [letter.message.message_id for letter in self.dead_letters(queue) if where(letter)]
        return work_queues.redrive(self.broker, queue, limit, _some_ids(message_ids))

    def purge_dead_letters(self, queue: str, message_ids: Sequence[str] | None = None) -> int:
        """Remove all dead letters, or these, from the list; returns how many. They stay in the log until its retention."""
        return work_queues.purge_dead_letters(self.broker, queue, _some_ids(message_ids))

    def _config(self, spec: bytes) -> QueueConfig:
        config = self._configs.get(spec)
        if config is None:
            if len(self._configs) >= MAX_CONFIGS:
                self._configs.clear()
            config = self._configs[spec] = msgspec.msgpack.decode(spec, type=QueueConfig)
        return config


def queue_settings(
    defaults: QueueConfig, config: QueueConfig | None = None, by_name: Mapping[str, Any] | None = None
) -> tuple[Policy, bytes]:
    """The stored form of a work queue's settings: its policy, and all settings with defaults filled in."""
    if config is not None and by_name:
        raise InvalidArgument(f"config is given together with {min(by_name)}, expected one or the other")
    if config is None:
        config = changed(defaults, by_name) if by_name else defaults
    if not isinstance(config, QueueConfig):
        raise InvalidArgument.of("config", config, "a QueueConfig")
    config = as_plain(config)
    return queue_policy(config), msgspec.msgpack.encode(config)


def _consumer(consumer_id: str | None) -> str | None:
    return None if consumer_id is None else check_name(consumer_id, "consumer_id")


def _ids(message_ids: Iterable[str]) -> Ids:
    if isinstance(message_ids, str | bytes) or not isinstance(message_ids, Iterable):
        raise InvalidArgument.of("message_ids", message_ids, "a list of message ids")
    ids = [*message_ids]
    for index, one in enumerate(ids):
        if not isinstance(one, str):
            raise InvalidArgument.of(f"message_ids[{index}]", one, "a string")
    return ids


def _some_ids(message_ids: Iterable[str] | None) -> Ids | None:
    return None if message_ids is None else _ids(message_ids)


def _nack(requeue: bool, error: str | None, delay: Duration | None = None) -> Settlement:
    """The settlement of a nack: another attempt or the dead letters."""
    check_flag(requeue, "requeue")
    if error is not None:
        check_text(error, "error", MAX_ERROR_BYTES)
        error = plain_text(error)
    span = None if delay is None else micros(delay, "delay", maximum=MAX_DELAY_SECONDS)
    return nack_verb(requeue=requeue, error=error, delay=span)
