"""What may be asked about work queues. Part of `Operations`: every public method is one operation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ParamSpec, TypeVar

from penstock.access import Action, Principal, Verb
from penstock.api.feed import Feed
from penstock.api.service import Service
from penstock.broker.catalog import Catalog
from penstock.broker.consumer import Sink
from penstock.errors import (
    AlreadyExists,
    InvalidArgument,
    NotFound,
    OutOfRange,
    PenstockError,
    QueueFull,
    QueueNotFound,
    SubscriptionFull,
)
from penstock.journal.core.events import Event
from penstock.values.policy import QueueConfig
from penstock.values.queue import DeadLetter, QueueMessage, QueueStats
from penstock.wire.frames import Limits

P = ParamSpec("P")
T = TypeVar("T")

MAX_ANSWERED = 4 * 1024 * 1024
"""How many bytes of payloads one answer holds; a larger message comes alone."""


class QueueOperations:
    """What one caller may ask of the work queues of one project."""

    def __init__(self, service: Service, principal: Principal, project: str) -> None:
        self._service = service
        self._aio = service.aio
        self._principal = principal
        self._project = project
        self._queues = service.queues.of(principal, project)

    async def create_queue(self, queue: str, config: QueueConfig) -> None:
        """Create a work queue."""
        if not await self._queues.create(queue, config):
            raise AlreadyExists("Queue", queue)

    async def delete_queue(self, queue: str) -> None:
        """Delete a work queue with everything in it, its dead letters too."""
        if not await self._queues.delete(queue):
            raise QueueNotFound(queue)

    async def list_queues(self) -> list[str]:
        """The names of the project's work queues."""
        return self._queues.list()

    async def get_queue(self, queue: str) -> QueueConfig:
        """The settings of a work queue."""
        return self._queues.config(queue)

    async def queue_stats(self, queue: str) -> QueueStats:
        """The state of a work queue in numbers."""
        return await self._queues.stats(queue)

    async def consume(  # noqa: PLR0917  # the arguments of an operation have names on the wire
        self,
        queue: str,
        consumer: str,
        max_messages: int = 1,
        wait: float = 0,
        ack_deadline: float | None = None,
        prefetch: int | None = None,
    ) -> list[QueueMessage]:
        """Lease messages, waiting up to `wait` seconds for the first."""
        found = await self._queues.consume(
            queue, consumer, max_messages=max_messages, timeout=wait, ack_deadline=ack_deadline, prefetch=prefetch
        )
        return [one.opened() for one in found]

    async def ack_messages(self, queue: str, message_ids: list[str], consumer: str | None = None) -> dict[str, str]:
        """Settle messages for good; returns, by id, why some could not be."""
        return _reasons(self._queues.ack_many(queue, message_ids, consumer))

    async def nack_messages(  # noqa: PLR0917  # the arguments of an operation have names on the wire
        self,
        queue: str,
        message_ids: list[str],
        requeue: bool = True,
        error: str | None = None,
        consumer: str | None = None,
        delay: float | None = None,
    ) -> dict[str, str]:
        """Give messages back, for another try or to the dead letters; returns, by id, why some could not be.

        `delay` (seconds) replaces the retry policy's.
        """
        return _reasons(self._queues.nack_many(queue, message_ids, requeue, consumer_id=consumer, error=error, delay=delay))

    async def extend_message(self, queue: str, message_id: str, seconds: float, consumer: str | None = None) -> None:
        """Set the deadline of a message that is held to so many seconds from now."""
        self._queues.extend(queue, message_id, seconds, consumer)

    async def peek_queue(self, queue: str) -> QueueMessage | None:
        """The message that would be consumed next."""
        return await self._queues.peek(queue)

    async def purge_queue(self, queue: str) -> int:
        """Remove everything that waits; returns how many."""
        return await self._queues.purge(queue)

    async def pause_queue(self, queue: str) -> None:
        """Hand out nothing until it is resumed."""
        await self._queues.pause(queue)

    async def resume_queue(self, queue: str) -> None:
        """Hand out again."""
        await self._queues.resume(queue)

    async def dead_letter_ids(self, queue: str) -> list[str]:
        """The ids of the dead letters of a queue, oldest first."""
        return await self._queues.dead_letter_ids(queue)

    async def dead_letters(self, queue: str, message_ids: list[str]) -> list[DeadLetter]:
        """The dead letters of these ids that are there, in their order, as many as an answer holds: ask again for the rest."""
        return await self._queues.dead_letters(queue, message_ids=message_ids, max_bytes=MAX_ANSWERED)

    async def retry_dead_letter(self, queue: str, message_id: str) -> None:
        """Put one dead letter back into its queue."""
        await self._queues.retry_dead_letter(queue, message_id)

    async def redrive_dead_letters(self, queue: str, limit: int | None = None, message_ids: list[str] | None = None) -> int:
        """Put dead letters back, all or these, oldest first; returns how many."""
        return await self._queues.redrive(queue, limit, message_ids)

    async def purge_dead_letters(self, queue: str, message_ids: list[str] | None = None) -> int:
        """Empty the list of dead letters, or take these from it; returns how many."""
        return await self._queues.purge_dead_letters(queue, message_ids)

    def open_queue(
        self, queue: str, consumer: str, limits: Limits, sink: Sink, *, owner: object, held: Sequence[int] | None = None
    ) -> Feed:
        """Begin a stream of a work queue's deliveries."""
        name = self._name(Verb.CONSUME, queue, "queue")
        return self._service.feeds.open(Catalog.work_queue, name, consumer, limits, sink, owner=owner, held=held)

    # ── for all operations ───────────────────────────────────────────────────────────────────────────────────────────────

    def _name(self, verb: Action, name: str, kind: str) -> str:
        """The broker's name of something the caller may do this to."""
        project = self._project
        if name.startswith("projects/"):
            parts = name.split("/")
            if len(parts) != 4 or parts[2] != f"{kind}s" or not parts[1] or not parts[3]:
                raise InvalidArgument.of(kind, name, f"a plain name, or projects/PROJECT/{kind}s/NAME")
            project, name = parts[1], parts[3]
        self._principal.check(verb, project, name, kind=kind)
        return self._service.queues.scoped(project, name, kind)

    def _plain(self, scoped: str) -> str:
        """A broker's name as the caller knows it."""
        project, name = self._service.projects.split(scoped)
        return name if project == self._project else scoped

    def told(self, error: PenstockError) -> PenstockError:
        """An error as the caller must hear it: things by the names they know, without the project."""
        match error:
            case NotFound() if isinstance(error.name, str):
                return type(error)(self._plain(error.name))
            case AlreadyExists():
                return AlreadyExists(error.kind, self._plain(error.name))
            case SubscriptionFull():
                return SubscriptionFull(self._plain(error.subscription), self._plain(error.topic))
            case QueueFull():
                return QueueFull(self._plain(error.queue))
            case OutOfRange():
                return OutOfRange(self._plain(error.stream), error.offset, error.earliest, error.latest)
            case _:
                return error

    async def _change(self, change: Callable[[Catalog, int], Event | None]) -> None:
        """Change what exists, durably."""
        await self._soon(self._aio.broker.change, change)

    async def _soon(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call what may wait for the disk."""
        return await self._service.queues.blocking(function, *args, **kwargs)


def _reasons(failures: Mapping[str, Exception]) -> dict[str, str]:
    return {message_id: str(error) for message_id, error in failures.items()}
