"""A work queue: its settings at the broker, publishing to it, and its tasks as they arrive."""

from __future__ import annotations

import secrets
import warnings
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, Unpack

import msgspec

from penstock.client.consumer import Consumer
from penstock.client.core.differences import given_options
from penstock.client.link import created, exists
from penstock.client.message import DeliverySettler, IncomingMessage
from penstock.client.options import StreamKeywords
from penstock.client.publishing import QueuePublisher, checked
from penstock.client.settlement import QueueSettler
from penstock.durations import micros
from penstock.errors import InvalidArgument
from penstock.ids import parse_message_id
from penstock.values.keywords import QueueSettings, with_specified_names
from penstock.values.policy import Duration, QueueConfig, by_name, check_count
from penstock.values.queue import BYTES, JSON, TEXT, DeadLetter, NewMessage, QueueConsumer, QueueMessage, QueueStats
from penstock.wire import frames
from penstock.wire.frames import MAX_ERROR_CHARACTERS, Body, Delivery, Nack, Opened
from penstock.wire.operations import Operations

if TYPE_CHECKING:
    from penstock.client.pubsub import PubSub

CONFIG_SETTINGS = frozenset(field.name for field in fields(QueueConfig))
MAX_DELAY_SECONDS = 366 * 86_400
LETTERS = 500
"""Dead letters in one request."""


class QueueTask(IncomingMessage):
    """One delivery of a work queue. Settle it with `ack` or `nack`; the first call counts, later ones do nothing."""

    __slots__ = ()

    @property
    def message_id(self) -> str:
        """The message's id; the same for every delivery."""
        return self.id

    @property
    def payload(self) -> Any:
        """The payload as it was published: bytes, str or a JSON value."""
        body = self._delivery.message
        if body.content == TEXT:
            return body.data.decode()
        return msgspec.json.decode(body.data) if body.content == JSON else body.data

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers, read-only."""
        return self.attributes

    @property
    def retry_count(self) -> int:
        """The number of earlier attempts: 0 for the first delivery."""
        return self._delivery.attempt - 1

    @property
    def max_retries(self) -> int:
        """How often it may be retried before it becomes a dead letter: its own number, or the queue's."""
        return (self._delivery.message.max_attempts or self._opened.max_attempts or 1) - 1

    def nack(self, requeue: bool = True, error: str | None = None, delay: Duration | None = None) -> None:
        """Requeue it, after `delay` if given; with requeue=False, or without retries left, it becomes a dead letter.

        The error is stored with it. Without a delay, the queue's retry policy decides when it is redelivered.
        """
        seconds = None if delay is None else micros(delay, "delay", maximum=MAX_DELAY_SECONDS) / 1e6
        if error is not None:
            if not isinstance(error, str):
                raise InvalidArgument.of("error", error, "a str or None")
            # The text of an exception may contain anything, also lone surrogates; it must not prevent the nack.
            error = error[:MAX_ERROR_CHARACTERS].encode("utf-8", "replace").decode()
        if not self._is_settled:
            self._is_settled = True
            self._settler.nack(self, Nack(self.receipt, requeue, error, seconds))

    def give_back(self) -> None:
        """Requeue it without counting the attempt. After `consume` the attempt counts."""
        if not self._is_settled:
            self._is_settled = True
            self._settler.nack(self, Nack(self.receipt, unseen=True))

    def __repr__(self) -> str:
        return f"<QueueTask {self.id} retry {self.retry_count} of {self.max_retries}, {self.length} bytes>"


class WorkQueue(Consumer[QueueTask]):
    """A work queue by its name. Creating the object creates nothing at the broker: `create` does.

    Consume it with `on("message", handler)` and `open()`, with `async for task in queue`, or a few at a time with `consume`. A
    task whose handler raised is requeued with the text of the error, and listeners of 'error' are called.
    """

    kind = frames.QUEUE
    noun = "queue"
    message_type = QueueTask

    def __init__(self, pubsub: PubSub, name: str, **options: Unpack[StreamKeywords]) -> None:
        super().__init__(pubsub, name)
        self.publisher = QueuePublisher(pubsub, name)
        """Batches messages into requests."""
        self._consumer_id = f"client-{secrets.token_hex(8)}"
        self.set_options(**options)

    # ── publishing ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def publish(
        self,
        payload: Any,
        *,
        priority: int | None = None,
        ttl: Duration | None = None,
        headers: Mapping[str, str] | None = None,
        max_retries: int | None = None,
        delay: Duration | None = None,
        deliver_at: datetime | float | None = None,
    ) -> str:
        """Publish a message (bytes, str or a JSON value); returns its id once it is durable.

        `priority`: 9 is consumed first, 0 last. `ttl`, `delay`: seconds. `deliver_at`: an aware datetime, or seconds since 1970.
        None means the setting of the queue.
        """
        if isinstance(headers, Mapping):
            headers = {**headers}
        return await self.publish_message(NewMessage(payload, priority, ttl, headers, max_retries, delay, deliver_at))

    async def publish_message(self, message: NewMessage) -> str:
        """Publish a message; returns its id once it is durable. Messages that are published at the same time share a request."""
        return await self.publisher.publish("", message, checked(message), message.producer_id is not None)

    async def publish_many(self, messages: Sequence[NewMessage]) -> list[str]:
        """Publish messages together, all or none; returns their ids."""
        return await self.publisher.publish_many(messages)

    # ── consuming ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def consume(
        self,
        max_messages: int = 1,
        *,
        wait: float = 0,
        ack_deadline: float | None = None,
        prefetch: int | None = None,
        consumer: str | None = None,
    ) -> list[QueueTask]:
        """Lease up to `max_messages` tasks, waiting up to `wait` seconds for the first. Their leases are not extended.

        A consumer holds at most `prefetch` unsettled tasks (None: the queue's setting). `consumer` names the consumer; without it
        each `WorkQueue` object is one.
        """
        settler = consumer or self._consumer_id
        found = await self.link.call(Operations.consume, self.name, settler, max_messages, wait, ack_deadline, prefetch)
        if settler not in self._holders:
            self._holders[settler] = QueueSettler(self.link, self.name, settler)
        now = self.link.clock.now()
        return [_task(self._holders[settler], one, now) for one in found]

    async def peek(self) -> QueueMessage | None:
        """The message that would be consumed next; None if none is ready."""
        return await self.link.call(Operations.peek_queue, self.name)

    # ── at the broker ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def create(
        self, config: QueueConfig | None = None, *, exist_ok: bool = False, **settings: Unpack[QueueSettings]
    ) -> WorkQueue:
        """Create it, with a QueueConfig or with its settings by name: `create(max_retries=5, ack_deadline=60)`.

        Settings that are not given by name have the server's defaults. With `exist_ok` an existing queue stays as it is;
        AlreadyExists if a given setting differs there. Settings of a QueueConfig at their defaults do not count as given.
        """
        specified = with_specified_names(settings, "ack_deadline_secs")
        self._check_known(specified, CONFIG_SETTINGS)
        if config is not None and settings:
            raise InvalidArgument(f"config is given together with {min(settings)}, expected one or the other")
        given = specified if config is None else given_options(config, "config", QueueConfig)
        creation = self.link.call(Operations.create_queue, self.name, config, specified or None)
        await created(creation, exist_ok=exist_ok, given=given, found=self._settings)
        return self

    async def update(self, **changes: Unpack[QueueSettings]) -> QueueConfig:
        """Change settings by name; others stay. Returns all settings."""
        specified = with_specified_names(changes, "ack_deadline_secs")
        self._check_known(specified, CONFIG_SETTINGS)
        return await self.link.call(Operations.update_queue, self.name, specified)

    async def _settings(self) -> dict[str, object]:
        return by_name(await self.config())

    async def exists(self) -> bool:
        """Whether the queue exists."""
        return await exists(self.config())

    async def config(self) -> QueueConfig:
        """Its settings; QueueNotFound if it does not exist."""
        return await self.link.call(Operations.get_queue, self.name)

    async def delete(self) -> None:
        """Delete it with its messages and dead letters."""
        await self.link.call(Operations.delete_queue, self.name)

    async def stats(self) -> QueueStats:
        """Its counters."""
        return await self.link.call(Operations.queue_stats, self.name)

    async def consumers(self, max_messages: int = 100) -> list[QueueConsumer]:
        """Its consumers, and what each holds since when: up to `max_messages` of each, oldest first."""
        return await self.link.call(Operations.queue_consumers, self.name, max_messages)

    async def purge(self) -> int:
        """Remove all messages that are not leased; returns how many."""
        return await self.link.call(Operations.purge_queue, self.name)

    async def pause_delivery(self) -> None:
        """Pause delivery to all consumers, until `resume_delivery`. `pause` affects only this object."""
        await self.link.call(Operations.pause_queue, self.name)

    async def resume_delivery(self) -> None:
        """Resume delivery."""
        await self.link.call(Operations.resume_queue, self.name)

    async def hold(self) -> None:
        """Deprecated: use `pause_delivery`."""
        warnings.warn("hold() is deprecated, use pause_delivery()", DeprecationWarning, stacklevel=2)
        await self.pause_delivery()

    async def release(self) -> None:
        """Deprecated: use `resume_delivery`."""
        warnings.warn("release() is deprecated, use resume_delivery()", DeprecationWarning, stacklevel=2)
        await self.resume_delivery()

    # ── dead letters ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def dead_letters(self, limit: int | None = None) -> list[DeadLetter]:
        """The messages that could not be processed, with the reasons, oldest first."""
        if limit is not None:
            check_count(limit, "limit", 1)
        return [letter async for letter in self._letters(limit)]

    async def retry_dead_letter(self, message_id: str) -> None:
        """Put one dead letter back into the queue, as new."""
        await self.link.call(Operations.retry_dead_letter, self.name, message_id)

    async def redrive(self, where: Callable[[DeadLetter], bool] | None = None, *, limit: int | None = None) -> int:
        """Put dead letters back, oldest first: all or those that match `where`, at most `limit`; returns how many."""
        if where is None:
            return await self.link.call(Operations.redrive_dead_letters, self.name, limit)
        if not callable(where):
            raise InvalidArgument.of("where", where, "a function of a DeadLetter, or None")
        if limit is not None:
            check_count(limit, "limit", 1)
        chosen = [letter.message.message_id async for letter in self._letters() if where(letter)]
        return await self.link.call(Operations.redrive_dead_letters, self.name, None, chosen[:limit])

    async def purge_dead_letters(self) -> int:
        """Remove all dead letters; returns how many."""
        return await self.link.call(Operations.purge_dead_letters, self.name)

    async def _letters(self, limit: int | None = None) -> AsyncIterator[DeadLetter]:
        """The dead letters of one moment, read in pieces: there may be many, and large ones."""
        rest = (await self.link.call(Operations.dead_letter_ids, self.name))[:limit]
        while rest:
            asked, rest = rest[:LETTERS], rest[LETTERS:]
            letters = await self.link.call(Operations.dead_letters, self.name, asked)
            if letters and letters[-1].message.message_id != asked[-1]:
                # The answer was full, or the last ones were removed.
                rest = asked[asked.index(letters[-1].message.message_id) + 1 :] + rest
            for letter in letters:
                yield letter

    def _give_back(self, message: IncomingMessage, error: Exception) -> None:
        assert isinstance(message, QueueTask), "a queue brings nothing else"
        message.nack(error=f"{type(error).__name__}: {error}")


def _task(settler: DeliverySettler, message: QueueMessage, now: int) -> QueueTask:
    """A message that was consumed, in the form of one from a stream."""
    payload = message.payload
    if isinstance(payload, bytes):
        data, content = payload, BYTES
    elif isinstance(payload, str):
        data, content = payload.encode(), TEXT
    else:
        data, content = msgspec.json.encode(payload), JSON
    place = parse_message_id(message.message_id)
    assert place is not None, "the broker makes no other ids"
    publish_at, stream, offset = place
    body = Body(publish_at, data, message.headers or None, "", message.priority, content, None, message.max_retries + 1)
    delivery = Delivery(offset, message.retry_count + 1, 0, body)
    opened = Opened(queue=0, stream=stream, max_attempts=None, exactly_once=False, ordered=False)
    return QueueTask(settler, opened, delivery, frames.receipt(offset, delivery.attempt, 0), now, now)
