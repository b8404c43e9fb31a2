"""Publishing to a topic or a work queue: messages are checked, gathered into requests, and sent again if that is safe.

The rules of batching are in `core/batching.py`. A message costs one future, a batch one task. A message is checked where it is
published, so that a mistake is shown where it was made.
"""

from __future__ import annotations

import asyncio
import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from threading import get_ident
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import msgspec

from penstock.client.core.batching import Batch, Batching, RetryWindow
from penstock.client.options import PublishOptions
from penstock.clock import Clock, monotonic
from penstock.durations import SECOND, instant, micros
from penstock.errors import InvalidArgument, PenstockError, PublishingPaused, QueueFull, Unavailable
from penstock.values.message import (
    DEFAULT_PRIORITY,
    MAX_MESSAGE_BYTES,
    MAX_ORDERING_KEY_BYTES,
    Message,
    StoredMessage,
    check_attributes,
    check_priority,
    check_producer,
    check_text,
    plain_text,
    summarize,
)
from penstock.values.message import Batch as Accepted
from penstock.values.policy import Duration, QueueConfig
from penstock.values.queue import NewMessage, accept
from penstock.wire import frames

if TYPE_CHECKING:
    from penstock.client.pubsub import PubSub

log = logging.getLogger("penstock.client")

MANY_MESSAGES = 1_000
MANY_BYTES = 8 * 1024 * 1024
"""The size of one request of an explicit batch."""

M = TypeVar("M")
Ticket: TypeAlias = "asyncio.Future[Any]"  # an id; for an explicit batch a list of ids

Outgoing: TypeAlias = "Message | StoredMessage | Accepted"
"""A checked message; for a broker in this process in the form of its log, and with a producer id in a batch of its own."""

_NOTHING: dict[str, str] = {}
_ANY_QUEUE = QueueConfig()


def outgoing(  # noqa: PLR0917  # once for each message: names would cost as much as the checks
    data: bytes = b"",
    attributes: Mapping[str, str] | None = None,
    ordering_key: str = "",
    priority: int = DEFAULT_PRIORITY,
    ttl: Duration | None = None,
    deliver_at: datetime | float | None = None,
    producer_id: str | None = None,
    sequence: int | None = None,
    clock: Clock | None = None,
) -> tuple[Outgoing, int]:
    """The message with plain values only, and its size in bytes; InvalidArgument if no broker would accept it.

    `clock` is that of a broker in this process: the message then has the form of its log, and the broker does not check it again.
    """
    if type(data) is not bytes:
        data = _bytes(data)
    size = len(data)
    plain = _NOTHING
    if attributes:
        plain, extra = check_attributes(attributes, "attributes")
        size += extra
    elif attributes is not None and not isinstance(attributes, Mapping):
        raise InvalidArgument.of("attributes", attributes, "a mapping of str to str")
    elif not size:
        raise InvalidArgument("the message is empty, expected data or at least one attribute")
    if ordering_key != "":
        size += check_text(ordering_key, "ordering_key", MAX_ORDERING_KEY_BYTES)
        ordering_key = plain_text(ordering_key)
    if size > MAX_MESSAGE_BYTES:
        raise InvalidArgument(
            f"Message size exceeds maximum of 10 MiB: it is {size} bytes with attributes and ordering key",
            hint="store large bodies elsewhere and send a reference",
        )
    if priority != DEFAULT_PRIORITY or type(priority) is not int:
        priority = check_priority(priority)
    if ttl is None and deliver_at is None and producer_id is None and sequence is None:
        if clock is not None:
            return StoredMessage(0, data, plain or None, ordering_key, priority, size), size
        return Message(data, plain, ordering_key, priority), size
    producer = None if producer_id is None and sequence is None else check_producer(producer_id, sequence, "message")
    life = None if ttl is None else micros(ttl, "ttl", minimum=1e-6)
    at = None if deliver_at is None else instant(deliver_at, "deliver_at")
    if clock is None:
        seconds = None if life is None else life / SECOND
        return Message(data, plain, ordering_key, priority, seconds, None if at is None else at / SECOND, *producer or ()), size
    expires_at = None if life is None else clock.now() + life
    stored = StoredMessage(0, data, plain or None, ordering_key, priority, size, expires_at, at)
    if producer is None:
        return stored, size
    alone = summarize([stored])
    alone.producers = [producer]
    return alone, size


def json_bytes(value: object) -> bytes:
    """A value as JSON: JSON types, and dataclasses, dates and the like in their usual form."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=msgspec.to_builtins)
        return text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument.of("value", value, f"a value that JSON can hold ({error})") from None


def _bytes(data: object) -> bytes:
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    hint = "encode text first: text.encode()" if isinstance(data, str) else "topic.publish_json(value) publishes other values"
    raise InvalidArgument(f"Message data must be bytes, not {type(data).__name__}", hint=hint)


class Sender(ABC, Generic[M]):
    """The publishing side of a topic or of a work queue. Belongs to the event loop of its client."""

    noun: str
    """The kind of its destination, for log messages."""
    divisible: tuple[type[PenstockError], ...] = (InvalidArgument,)
    """Errors that may concern a single message: the others of its batch are sent without it."""

    def __init__(self, pubsub: PubSub, name: str) -> None:
        self._pubsub = pubsub
        self._name = name
        self._options = PublishOptions()
        self._batching: Batching[M, Ticket] = Batching(self._options.limits)
        self._sending: dict[Batch[M, Ticket], asyncio.Task[None]] = {}
        self._is_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0
        self._flushes: list[tuple[set[Batch[M, Ticket]], asyncio.Future[None]]] = []
        self._in_line: list[asyncio.Future[None]] = []
        """Callers that wait for room."""

    @property
    def options(self) -> PublishOptions:
        return self._options

    def set_options(self, options: PublishOptions) -> None:
        if not isinstance(options, PublishOptions):
            raise InvalidArgument.of("options", options, "a PublishOptions")
        self._options = options
        self._batching.limits = options.limits
        self._wake_line()

    # ── publishing ───────────────────────────────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    async def _store(self, messages: list[M]) -> list[str]:
        """Send messages, all or none; returns their ids once they are durable."""

    def publish(self, key: str, message: M, size: int, is_marked: bool) -> asyncio.Future[str]:
        """Queue a checked message; the future returns its id. Raises if publishing is impossible."""
        pubsub = self._pubsub
        loop = pubsub.loop
        # Like `check_open`, without asking for the running loop: that costs as much as the rest of publishing a message.
        if loop is None or get_ident() != pubsub.thread or not loop.is_running():
            loop = pubsub.check_open()
        future: asyncio.Future[str] = loop.create_future()
        try:
            is_due = self._batching.add(key, message, future, size, monotonic(), is_marked)
        except PublishingPaused as error:
            fail(future, error)  # like those that waited when it was paused
            return future
        if is_due and not self._is_due:
            self._is_due = True
            loop.call_soon(self._pump)
        return future

    async def flow_controlled(self) -> None:
        """Return when flow control leaves room for a message."""
        self._pubsub.check_open()
        while self._batching.lacking() is not None:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._in_line.append(turn)
            await turn

    async def flush(self) -> None:
        """Send everything now, and return once all of it is confirmed or has failed."""
        self._pubsub.check_open()
        self._batching.flush()
        if not self._batching.unsettled:
            return
        self._pump()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._flushes.append((set(self._batching.unsettled), done))
        await done

    async def close(self) -> None:
        """Flush, and give up what is not confirmed in time. Can be called twice."""
        seconds = self._options.give_up_seconds
        try:
            async with asyncio.timeout(seconds):
                await self.flush()
        except TimeoutError:
            error = Unavailable(f"the client was closed, and could not publish it in {seconds:g} s; it may or may not be stored")
            sending = [*self._sending.values()]
            for batch in [*self._batching.abandon(), *self._sending]:
                self._give_up(batch, error)
            for task in sending:
                task.cancel()
            await asyncio.gather(*sending, return_exceptions=True)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._is_due = False

    # ── sending ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _soon(self) -> None:
        """Pump at the end of the next turn: a caller that just got an id may publish again before, into the same batch."""
        loop = self._pubsub.loop
        if not self._is_due and loop is not None:
            self._is_due = True
            loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Send what is due, and schedule a call for the next batch."""
        self._is_due = False
        loop, now = self._pubsub.loop, monotonic()
        if loop is None:
            return  # closed in the meantime
        while (batch := self._batching.take(now)) is not None:
            self._sending[batch] = loop.create_task(self._send(batch))
        due = self._batching.next_due()
        if due is not None and (self._timer is None or due < self._timer_at):
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = due
            # Rounded up: a timer that fires too early would find nothing to do.
            self._timer = loop.call_later((due - now + 1) / SECOND, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._pump()

    async def _send(self, batch: Batch[M, Ticket]) -> None:
        """Send a batch until it succeeds or fails; then each of its tickets is done."""
        seconds = self._options.give_up_seconds
        patience = RetryWindow(monotonic() + round(seconds * SECOND))
        try:
            async with asyncio.timeout(seconds):
                results = await self._published(batch, batch.messages, patience)
        except TimeoutError:
            unknown = Unavailable(f"no answer came in {seconds:g} s; it may or may not be stored")
            self._failed(batch, patience.refusal or unknown)
        except PenstockError as error:
            self._failed(batch, error)
        except asyncio.CancelledError:  # the loop ends
            for ticket in batch.tickets:
                ticket.cancel()
            raise
        except Exception as error:  # noqa: BLE001  # the top of a service: callers that wait for the ids must get every error
            self._failed(batch, error)
        else:
            self._succeeded(batch, results)
        finally:
            del self._sending[batch]
            self._batching.settle(batch)
            self._settled(batch)

    async def _published(self, batch: Batch[M, Ticket], messages: list[M], patience: RetryWindow) -> list[str | PenstockError]:
        """The id of each message, or its error. Raises an error that concerns all of them."""
        while True:
            patience.refusal = None
            try:
                return [*await self._store(messages)]
            except self.divisible as error:
                if batch.is_explicit or batch.keys:
                    raise
                if len(messages) == 1:
                    return [error]
                break
            except PenstockError as error:
                pause = patience.pause(error, monotonic())
                if pause is None:
                    raise
                await asyncio.sleep(pause / SECOND)
        # One of them is invalid, the others are not affected: halves are sent until it is alone.
        middle = len(messages) // 2
        results: list[str | PenstockError] = []
        for half in (messages[:middle], messages[middle:]):
            try:
                results += await self._published(batch, half, patience)
            except PenstockError as error:
                results += [error] * len(half)
        return results

    # ── what became of it ────────────────────────────────────────────────────────────────────────────────────────────────

    def _succeeded(self, batch: Batch[M, Ticket], results: list[str | PenstockError]) -> None:
        if batch.is_explicit:
            if not batch.tickets[0].done():
                batch.tickets[0].set_result(results)
            return
        unseen: list[PenstockError] = []
        for ticket, result in zip(batch.tickets, results, strict=True):
            if isinstance(result, PenstockError):
                if fail(ticket, result):
                    unseen.append(result)
            elif not ticket.done():
                ticket.set_result(result)
        if unseen:
            log.warning("%d messages for %s %s were refused: %s", len(unseen), self.noun, self._name, unseen[0])

    def _failed(self, batch: Batch[M, Ticket], error: Exception) -> None:
        """Fail the tickets, and log it once for those that nothing awaits."""
        keys = batch.keys
        if unseen := sum(fail(ticket, error) for ticket in batch.tickets):
            log.warning(
                "%d messages for %s %s could not be published: %s",
                unseen,
                self.noun,
                self._name,
                error,
                exc_info=None if isinstance(error, PenstockError) else error,
            )
        for stopped, key in self._batching.pause(keys):
            self._give_up(stopped, PublishingPaused(key))
        if keys:
            shown = ", ".join(map(repr, keys[:3])) + (", …" if len(keys) > 3 else "")
            log.warning("publishing to %s %s is paused for ordering key %s", self.noun, self._name, shown)

    def _give_up(self, batch: Batch[M, Ticket], error: PenstockError) -> None:
        for ticket in batch.tickets:
            fail(ticket, error)
        self._settled(batch)

    def _settled(self, batch: Batch[M, Ticket]) -> None:
        for waiting, done in self._flushes:
            waiting.discard(batch)
            if not waiting and not done.done():
                done.set_result(None)
        if self._flushes:
            self._flushes = [(waiting, done) for waiting, done in self._flushes if waiting and not done.done()]
        if self._in_line:
            self._wake_line()
        if self._batching.unsettled:
            self._soon()

    def _wake_line(self) -> None:
        """Wake callers that wait for room; each sees what the earlier ones have taken."""
        if self._batching.lacking() is None:
            in_line, self._in_line = self._in_line, []
            for turn in in_line:
                if not turn.done():
                    turn.set_result(None)


def fail(ticket: Ticket, error: Exception) -> bool:
    """Set the error of a pending ticket; returns whether nothing awaits it, so that it must be logged."""
    if ticket.done():
        return False
    # There is no public way to learn whether a future is awaited. Without the attribute, raised failures are logged too.
    is_awaited = bool(getattr(ticket, "_callbacks", None))
    ticket.set_exception(error)
    ticket.exception()  # mark as retrieved: a line for each message would add nothing to the common one
    return not is_awaited


class Publisher(Sender[Outgoing]):
    """The publishing side of a topic."""

    noun = "topic"

    def __init__(self, pubsub: PubSub, name: str) -> None:
        super().__init__(pubsub, name)
        self.clock = pubsub.link.clock if pubsub.link.is_embedded else None
        """For `outgoing`."""

    async def publish_many(self, messages: Iterable[Message]) -> list[str]:
        """Send messages in as few requests as possible; returns their ids in order."""
        loop = self._pubsub.check_open()
        chunks = self._checked(messages)
        total = sum(len(chunk.messages) for chunk in chunks)
        keys = {key for chunk in chunks for key in chunk.keys}
        self._batching.check_batch(keys, messages=total, size=sum(chunk.size for chunk in chunks))
        tickets: list[asyncio.Future[list[str]]] = []
        for chunk in chunks:
            ticket: asyncio.Future[list[str]] = loop.create_future()
            tickets.append(ticket)
            self._batching.add_batch(chunk.keys, chunk.messages, ticket, size=chunk.size, is_marked=chunk.is_marked)
        self._soon()
        return [message_id for ids in await asyncio.gather(*tickets) for message_id in ids]

    def resume(self, key: str) -> None:
        """Publish messages of a paused ordering key again."""
        check_text(key, "ordering_key", MAX_ORDERING_KEY_BYTES)
        self._batching.resume(key)

    async def _store(self, messages: list[Outgoing]) -> list[str]:
        return await self._pubsub.link.publish(self._name, messages)

    def _checked(self, messages: Iterable[Message]) -> list[_Chunk]:
        """Messages with plain values, in the form of requests; all are valid, or none is accepted."""
        if isinstance(messages, Message | str | bytes) or not isinstance(messages, Iterable):
            raise InvalidArgument.of("messages", messages, "a list of Message")
        chunks: list[_Chunk] = []
        chunk: _Chunk | None = None
        for index, one in enumerate(messages):
            if type(one) is not Message:
                raise InvalidArgument.of(f"messages[{index}]", one, "a penstock.Message")
            key, is_marked = one.ordering_key, one.producer_id is not None
            try:
                message, size = outgoing(
                    one.data,
                    one.attributes,
                    key,
                    one.priority,
                    one.ttl,  # type: ignore[arg-type]  # a Message takes anything, and is checked here
                    one.deliver_at,  # type: ignore[arg-type]  # likewise
                    one.producer_id,
                    one.sequence,
                    self.clock,
                )
            except InvalidArgument as error:
                error.add_note(f"it is messages[{index}]")
                raise
            if chunk is None or not chunk.has_room(size, is_marked=is_marked):
                chunk = _Chunk(is_marked)
                chunks.append(chunk)
            chunk.messages.append(message)
            chunk.size += size
            if key:
                chunk.keys.add(key)
        if not chunks:
            raise InvalidArgument("messages is empty, expected at least one message")
        return chunks


@dataclass(slots=True)
class _Chunk:
    """The content of one request. Messages with and without a producer id never share one."""

    is_marked: bool
    messages: list[Outgoing] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)
    size: int = 0

    def has_room(self, size: int, *, is_marked: bool) -> bool:
        return len(self.messages) < MANY_MESSAGES and self.size + size <= MANY_BYTES and is_marked == self.is_marked


class QueuePublisher(Sender[NewMessage]):
    """The publishing side of a work queue. A full queue raises at once: the producer decides whether to wait."""

    noun = "queue"
    divisible = (InvalidArgument, QueueFull)

    async def publish_many(self, messages: Iterable[NewMessage]) -> list[str]:
        """Publish messages together, all or none; returns their ids."""
        self._pubsub.check_open()
        if not isinstance(messages, Iterable):
            raise InvalidArgument.of("messages", messages, "a list of NewMessage")
        several = [*messages]
        for index, message in enumerate(several):
            try:
                checked(message)
            except InvalidArgument as error:
                error.add_note(f"it is messages[{index}]")
                raise
        return await self._store(several)

    async def _store(self, messages: list[NewMessage]) -> list[str]:
        return await self._pubsub.link.enqueue(self._name, messages)


def checked(message: NewMessage) -> int:
    """The size of a message on the wire; InvalidArgument if no queue would accept it.

    It is checked before it shares a request with others: an unencodable message would fail them too.
    """
    if not isinstance(message, NewMessage):
        raise InvalidArgument.of("message", message, "a NewMessage")
    accept([message], _ANY_QUEUE, 0)
    try:
        return len(frames.encode(message))
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise InvalidArgument(f"the message cannot be sent: {error}") from None
