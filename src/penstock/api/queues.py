"""The operations on work queues, for all APIs: in an event loop, for one project and one caller, with permission checks.

The rules are those of `QueueManager`. This adds what a server needs: the project in the broker's name, the permission check, and
that the event loop never blocks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from penstock.access import ANYONE, Action, Principal, Right, Verb
from penstock.api.queue_manager import ConsumeTerms, QueueManager, queue_settings
from penstock.broker import backlog, lookup, work_queues
from penstock.broker.aio import AsyncBroker, StopSignal, Waiter
from penstock.broker.async_consumer import AsyncConsumer
from penstock.broker.catalog import Catalog
from penstock.broker.descriptions import delivery
from penstock.broker.work_queues import Failures
from penstock.errors import AlreadyExists, InvalidArgument, QueueFull, QueueNotFound
from penstock.journal.core.events import Event
from penstock.values.message import check_name
from penstock.values.policy import QueueConfig, check_count
from penstock.values.projects import Projects, check_project
from penstock.values.queue import (
    DeadLetter,
    Delivery,
    NackResult,
    NewMessage,
    PublishResult,
    QueueConsumer,
    QueueMessage,
    QueueStats,
)

P = ParamSpec("P")
T = TypeVar("T")

MAX_ANSWER_BYTES = 16 * 1024 * 1024
"""Messages in one answer; further ones wait for the next."""
MAX_ANSWERED = 4 * 1024 * 1024
"""Bytes of payloads in one answer of the native protocol; a larger message is sent alone."""
MAX_NAME = 256
"""Characters of a name. The broker's own limit is in bytes, and includes the project."""


class Queues:
    """All work queues of a broker. `of` returns those of one project for one caller."""

    def __init__(self, broker: AsyncBroker, projects: Projects | None = None, *, defaults: QueueConfig | None = None) -> None:
        self.broker = broker
        self.projects = projects or Projects()
        self.manager = QueueManager(broker=broker.broker, defaults=defaults)
        self.scoped = lru_cache(maxsize=4096)(self._scoped)
        """The broker's name for a name of a project; InvalidArgument for an impossible one."""

    def close(self) -> None:
        """End every wait for messages; the waits return nothing."""
        self.broker.stopping.set()

    def of(
        self,
        principal: Principal | None = None,
        project: str | None = None,
        stopping: StopSignal | None = None,
        still: Callable[[], object] | None = None,
    ) -> ProjectQueues:
        """The queues of a project for one caller.

        `stopping` ends its waits, like `close`; so does an error of `still`, which is called while they wait.

        Without a project, it is that of the token, or the default one for a token of all projects. Without a principal everything
        is allowed: the server has no authentication.
        """
        principal = principal or ANYONE
        return ProjectQueues(self, principal, project or principal.project or self.projects.default, stopping, still)

    async def blocking(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a call that may wait for the disk: in a thread, or directly if there is no disk."""
        if self.broker.broker.is_durable:
            return await self.broker.call(function, *args, **kwargs)
        return function(*args, **kwargs)

    def _scoped(self, project: str, name: str, kind: str) -> str:
        check_name(name, kind)
        if "/" in name or len(name) > MAX_NAME:
            # In the default project, whose names are stored alone, `a/b` would be the b of project a.
            raise InvalidArgument.of(kind, name, f"at most {MAX_NAME} characters and no '/'")
        return self.projects.scoped(check_project(project), name)


class QueueOperations:
    """The operations of one caller on the work queues of one project. Errors and results name queues without the project.

    Every public coroutine is an operation, which a client of the native protocol may call by its name (see `registry`). The other
    methods are for APIs in this process. All raise PermissionDenied if the caller may not call them, whether the queue exists or
    not.
    """

    def __init__(
        self,
        queues: Queues,
        principal: Principal,
        project: str,
        stopping: StopSignal | None = None,
        still: Callable[[], object] | None = None,
    ) -> None:
        self.queues = queues
        self.principal = principal
        self.project = project
        self._broker = queues.broker
        self._manager = queues.manager
        self._stopping, self._still = stopping, still
        self.connection: str | None = None
        """The address of the caller, if it stays connected while it consumes."""

    # ── operations ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def create_queue(self, queue: str, config: QueueConfig | None = None, settings: dict[str, Any] | None = None) -> None:
        name = self._queue_name(Verb.MANAGE, queue)
        policy, spec = queue_settings(self._manager.defaults, config, settings)

        def create(catalog: Catalog, now: int) -> Event:
            self.queues.projects.check_room("queues", name, catalog.work_queues)
            return catalog.create_work_queue(name, policy, spec, now)

        with _CallerNames(queue):
            await self.queues.blocking(self._broker.broker.change, create)

    async def update_queue(self, queue: str, changes: dict[str, Any]) -> QueueConfig:
        return await self._call_blocking(self._manager.update, Verb.MANAGE, queue, **changes)

    async def delete_queue(self, queue: str) -> None:
        await self._call_blocking(self._manager.delete, Verb.MANAGE, queue)

    async def list_queues(self) -> list[str]:
        self.principal.check(Verb.READ, self.project)
        self._broker.advance()
        mine = (self.queues.projects.split(scoped) for scoped in self._manager.list())
        return [name for project, name in mine if project == self.project and self.principal.may(Verb.READ, self.project, name)]

    async def get_queue(self, queue: str) -> QueueConfig:
        return self._call(self._manager.config, Verb.READ, queue)

    async def queue_stats(self, queue: str) -> QueueStats:
        connected = self._connected(self._queue_name(Verb.READ, queue))
        read = partial(backlog.queue_stats, self._broker.broker, connected=connected)
        return replace(await self._call_blocking(read, Verb.READ, queue), queue=queue)

    async def queue_consumers(self, queue: str, max_messages: int = 100) -> list[QueueConsumer]:
        check_count(max_messages, "max_messages", 0)
        connected = self._connected(self._queue_name(Verb.READ, queue))
        return self._call(partial(self._consumers, connected, max_messages), Verb.READ, queue)

    async def consume(  # noqa: PLR0917  # the arguments of an operation have names on the wire
        self,
        queue: str,
        consumer: str,
        max_messages: int = 1,
        wait: float = 0,
        ack_deadline: float | None = None,
        prefetch: int | None = None,
    ) -> list[QueueMessage]:
        found = await self.lease(
            queue, consumer, max_messages=max_messages, wait=wait, ack_deadline=ack_deadline, prefetch=prefetch
        )
        return [one.opened() for one in found]

    async def ack_messages(self, queue: str, message_ids: list[str], consumer: str | None = None) -> dict[str, str]:
        return _reasons(self.ack_many(queue, message_ids, consumer))

    async def nack_messages(  # noqa: PLR0917  # the arguments of an operation have names on the wire
        self,
        queue: str,
        message_ids: list[str],
        requeue: bool = True,
        error: str | None = None,
        consumer: str | None = None,
        delay: float | None = None,
    ) -> dict[str, str]:
        """Nack messages, for another try or to the dead letters; returns, by id, why some could not be.

        `delay` (seconds) replaces the retry policy's.
        """
        return _reasons(self.nack_many(queue, message_ids, requeue, consumer=consumer, error=error, delay=delay))

    async def extend_message(self, queue: str, message_id: str, seconds: float, consumer: str | None = None) -> None:
        self._call(self._manager.extend, Verb.CONSUME, queue, message_id, seconds, consumer)

    async def peek_queue(self, queue: str) -> QueueMessage | None:
        return await self._call_blocking(self._manager.peek, Right.SEE, queue)

    async def purge_queue(self, queue: str) -> int:
        return await self._call_blocking(self._manager.purge, Verb.MANAGE, queue)

    async def pause_queue(self, queue: str) -> None:
        await self._call_blocking(self._manager.pause, Verb.MANAGE, queue)

    async def resume_queue(self, queue: str) -> None:
        await self._call_blocking(self._manager.resume, Verb.MANAGE, queue)

    async def dead_letter_ids(self, queue: str) -> list[str]:
        return await self._call_blocking(self._manager.dead_letter_ids, Verb.READ, queue)

    async def dead_letters(self, queue: str, message_ids: list[str]) -> list[DeadLetter]:
        return await self.list_dead_letters(queue, message_ids=message_ids, max_bytes=MAX_ANSWERED)

    async def retry_dead_letter(self, queue: str, message_id: str) -> None:
        await self._call_blocking(self._manager.retry_dead_letter, Verb.MANAGE, queue, message_id)

    async def redrive_dead_letters(self, queue: str, limit: int | None = None, message_ids: list[str] | None = None) -> int:
        return await self._call_blocking(self._manager.redrive, Verb.MANAGE, queue, limit=limit, message_ids=message_ids)

    async def purge_dead_letters(self, queue: str, message_ids: list[str] | None = None) -> int:
        return await self._call_blocking(self._manager.purge_dead_letters, Verb.MANAGE, queue, message_ids)

    # ── for APIs in this process: typed errors, and messages as they are stored ──────────────────────────────────────────────

    @property
    def is_stopping(self) -> bool:
        """Whether waits end at once."""
        return (self._stopping or self._broker.stopping).is_set

    def exists(self, queue: str) -> bool:
        """Whether there is a queue of that name."""
        self.principal.check(Verb.READ, self.project, queue, kind="queue")
        try:
            return self._call(self._manager.exists, Verb.READ, queue)
        except InvalidArgument:  # no queue can have this name
            return False

    def lease(
        self,
        queue: str,
        consumer: str | None = None,
        *,
        max_messages: int = 1,
        wait: float = 0,
        ack_deadline: float | None = None,
        prefetch: int | None = None,
    ) -> Awaitable[list[Delivery]]:
        """Lease up to `max_messages`, waiting up to `wait` seconds for the first.

        There is no polling: a new message ends the wait.

        Without a `consumer`, each call is limited only by its own prefetch, and the messages have no named holder.
        """
        name = self._queue_name(Verb.CONSUME, queue)
        with _CallerNames(queue):
            terms = self._manager.terms(
                name,
                consumer,
                max_messages=max_messages,
                timeout=wait,
                ack_deadline=ack_deadline,
                prefetch=prefetch,
            )
        return self._lease(queue, name, terms)

    def admit(self, queue: str, consumer: str, prefetch: int | None = None) -> int:
        """Raise what `lease` would raise for such a consumer; returns its limit of messages."""
        name = self._queue_name(Verb.CONSUME, queue)
        with _CallerNames(queue):
            self._manager.terms(name, consumer, prefetch=prefetch)
            return prefetch or self._manager.config(name).default_prefetch

    def ack(self, queue: str, message_id: str, consumer: str | None = None) -> None:
        """Ack a message."""
        self._call(self._manager.ack, Verb.CONSUME, queue, message_id, consumer)

    def ack_many(self, queue: str, message_ids: Sequence[str], consumer: str | None = None) -> Failures:
        """Ack those that are leased; returns, by id, why the others failed."""
        return self._call(self._manager.ack_many, Verb.CONSUME, queue, message_ids, consumer)

    def nack(
        self, queue: str, message_id: str, requeue: bool = True, *, consumer: str | None = None, error: str | None = None
    ) -> NackResult:
        """Nack a message: it is retried, or dead-lettered."""
        return self._call(self._manager.nack, Verb.CONSUME, queue, message_id, requeue, consumer_id=consumer, error=error)

    def nack_many(
        self,
        queue: str,
        message_ids: Sequence[str],
        requeue: bool = True,
        *,
        consumer: str | None = None,
        error: str | None = None,
        delay: float | None = None,
    ) -> Failures:
        """Nack those that are leased; returns, by id, why the others failed."""
        nack = partial(self._manager.nack_many, consumer_id=consumer, error=error, delay=delay)
        return self._call(nack, Verb.CONSUME, queue, message_ids, requeue)

    def release_consumer(self, queue: str, consumer: str) -> int:
        """Requeue everything that a consumer holds, without counting a retry; returns how many."""
        return self._call(self._manager.release_consumer, Verb.CONSUME, queue, consumer)

    def list_dead_letters(
        self, queue: str, limit: int | None = None, message_ids: Sequence[str] | None = None, max_bytes: int | None = None
    ) -> Awaitable[list[DeadLetter]]:
        """The dead letters of a queue, oldest first; or those with these ids, within `max_bytes`."""
        read = partial(self._manager.dead_letters, limit=limit, message_ids=message_ids, max_bytes=max_bytes)
        return self._dead_letters(queue, read)

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _dead_letters(self, queue: str, read: Callable[[str], list[DeadLetter]]) -> list[DeadLetter]:
        letters = await self._call_blocking(read, Right.SEE, queue)
        return [replace(letter, original_queue=queue) for letter in letters]

    async def _lease(self, queue: str, name: str, terms: ConsumeTerms) -> list[Delivery]:
        consumer = AsyncConsumer(
            self._broker,
            Catalog.work_queue,
            name,
            identity=terms.consumer,
            ack_deadline=terms.ack_deadline,
            prefetch=terms.prefetch,
            stopping=self._stopping,
            still=self._still,
            connection=self.connection,
        )
        with _CallerNames(queue):
            leases = await consumer.next(terms.want, terms.wait, MAX_ANSWER_BYTES)
        found = consumer.queue
        return [delivery(found, lease.offset, lease.message, lease.attempt - 1) for lease in leases]

    def _connected(self, name: str) -> dict[str, Waiter]:
        found = lookup.find_work_queue(self._broker.broker, name)
        return {} if found is None else self._broker.connected(found.number)

    def _consumers(self, connected: dict[str, Waiter], max_messages: int, name: str) -> list[QueueConsumer]:
        return work_queues.consumers(self._broker.broker, name, connected, max_messages)

    def _queue_name(self, verb: Action, queue: str) -> str:
        self.principal.check(verb, self.project, queue, kind="queue")
        return self.queues.scoped(self.project, queue, "queue")

    def _call(self, function: Callable[..., T], verb: Action, queue: str, *args: object, **kwargs: object) -> T:
        name = self._queue_name(verb, queue)
        self._broker.advance()  # so that the call has no due work to wait for
        with _CallerNames(queue):
            return function(name, *args, **kwargs)

    async def _call_blocking(self, function: Callable[..., T], verb: Action, queue: str, *args: object, **kwargs: object) -> T:
        """Run a call that may read or write the disk."""
        name = self._queue_name(verb, queue)
        with _CallerNames(queue):
            return await self.queues.blocking(function, name, *args, **kwargs)


class ProjectQueues(QueueOperations):
    """The same, with the variants that the queue API needs."""

    async def create(self, queue: str, settings: dict[str, Any] | None = None) -> bool:
        """Create a queue with settings by name; False if it exists, whatever its settings."""
        try:
            await self.create_queue(queue, settings=settings)
        except AlreadyExists:
            return False
        return True

    async def delete(self, queue: str) -> bool:
        """Delete a queue with everything in it; False if there is none."""
        try:
            await self.delete_queue(queue)
        except QueueNotFound:
            return False
        return True

    async def publish(self, queue: str, message: NewMessage) -> PublishResult:
        name = self._queue_name(Verb.PUBLISH, queue)
        with _CallerNames(queue):
            batch = self._manager.batch(name, [message], self._broker.broker.clock.now())
            placed = await self._broker.publish(Catalog.work_stream, name, batch)
        return PublishResult(placed.message_ids()[0], placed.position)

    async def publish_many(self, queue: str, messages: Sequence[NewMessage]) -> list[str]:
        """Publish messages together, all or none; returns their ids."""
        name = self._queue_name(Verb.PUBLISH, queue)
        with _CallerNames(queue):
            batch = self._manager.batch(name, messages, self._broker.broker.clock.now())
            placed = await self._broker.publish(Catalog.work_stream, name, batch)
        return placed.message_ids()


class _CallerNames:
    """Translates errors that name a queue to the caller's name for it."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            return
        if isinstance(error, QueueNotFound):
            raise QueueNotFound(self._name) from None
        if isinstance(error, QueueFull):
            raise QueueFull(self._name) from None
        if isinstance(error, AlreadyExists):
            raise AlreadyExists(error.kind, self._name) from None


def _reasons(failures: Failures) -> dict[str, str]:
    return {message_id: str(error) for message_id, error in failures.items()}
