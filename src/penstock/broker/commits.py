"""How changes reach the journal: staged under the lock, written without it, applied under it again.

Offsets are assigned while staging, by one thread at a time, so that a failed commit leaves no gap. Pending events and forwarded
dead letters are written with the next commit; a dead letter and the event of its death are in the same commit, so it is always in
exactly one of the two places.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from penstock.broker.core.outcome import PendingDeadLetter
from penstock.broker.core.queue import Queue
from penstock.broker.core.stream import Place, Stream
from penstock.broker.retention import Retention
from penstock.broker.writer import Placement, Ticket, Writer
from penstock.clock import monotonic
from penstock.durations import SECOND, to_datetime
from penstock.errors import (
    CorruptLog,
    JournalUnavailable,
    JournalUncertain,
    LogLost,
    PenstockError,
    QueueFull,
    QueueNotFound,
    SubscriptionFull,
    TopicNotFound,
    Unavailable,
)
from penstock.ids import message_id
from penstock.journal.core import events
from penstock.journal.core.checkpoint import QUEUE, TOPIC
from penstock.journal.core.chunk import size_of
from penstock.journal.core.events import DocumentKept, Event
from penstock.journal.journal import Append, Commit, ImmediateJournal, RemoteJournal
from penstock.values.message import Batch, StoredMessage, joined, summarize

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

log = logging.getLogger("penstock.broker")

Forward = tuple[str, Queue, PendingDeadLetter, StoredMessage]
"""A dead letter on its way: the topic, the queue that it comes from, its death, and the message for the topic."""

CHECKPOINT_EVENTS = 200_000
"""A start replays about this many events at most."""


class Commits:
    """Writes the changes of a broker to its journal."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._journal = broker.journal
        self._pending: list[Event] = []
        self.forwards: list[Forward] = []
        """Dead letters to be written with the next commit."""
        self._traveling: dict[str, int] = {}
        """Dead letters that are being forwarded, by topic: room in the topic is reserved for them."""
        self._since_checkpoint = 0
        self.trouble: str | None = None
        self._retention = Retention(broker, self._write_pending)
        self._staged = _Staged(0)
        self._unknown: _Unknown | None = None
        """The last commit, while it is unknown whether it is stored. Nothing else is staged until that is known."""
        self._discards = DiscardWarnings()
        self._immediate: ImmediateJournal | None = self._journal if isinstance(self._journal, ImmediateJournal) else None
        self.add: Callable[[Event], None] = self._immediate.note if self._immediate is not None else self._add
        """Write an event: at once in memory, with the next commit otherwise."""
        self._writer = Writer(self._commit, self._maintain, "penstock-writer") if broker.is_durable else None

    def _add(self, event: Event) -> None:
        self._pending.append(event)
        if self._writer is not None:
            self._writer.wake()

    def forward(self, queue: Queue, pending_dead_letters: list[PendingDeadLetter], now: int) -> None:
        """Publish dead letters with the next commit, which contains the event of their death."""
        topic = queue.policy.dead_letter_topic
        assert topic is not None, "only a queue with a dead-letter topic forwards"
        self._traveling[topic] = self._traveling.get(topic, 0) + len(pending_dead_letters)
        self.forwards += [
            (topic, queue, pending_letter, _dead_letter(queue, pending_letter, now)) for pending_letter in pending_dead_letters
        ]
        if self._writer is not None:
            self._writer.wake()
        else:
            self.commit_now([], now)

    def publish_now(self, stream: Stream, batch: Batch, now: int) -> Placement:
        """Publish in this thread, under the lock. Only for a broker in memory."""
        immediate = self._immediate
        if immediate is None or batch.producers is not None:
            ticket = Ticket(stream, batch)
            self.commit_now([ticket], now)
            return ticket.placed()
        if stream.may_refuse:
            refusal = self._refusal(stream, batch, 0, 0)
            if refusal is not None:
                raise refusal
        at = now if now > stream.published_at else stream.published_at  # noqa: FURB136  # a call of max() is expensive here
        number, first, messages = stream.number, stream.next_offset, batch.messages
        if messages[0].publish_at != at:
            for message in messages:
                message.publish_at = at
        position = _position(stream, messages[-1], at) if stream.kind == QUEUE else 0
        immediate.keep(number, first, batch)
        immediate.note(events.Published(number, at, first, len(messages)))
        self._take_in(stream, first, at, batch)
        if now >= self._retention.due_at:
            self._retention.run(now)
        return Placement(number, first, at, len(messages), None, position)

    def submit(self, ticket: Ticket) -> None:
        """Hand a publish to the writer."""
        assert self._writer is not None, "a broker in memory commits at once"
        self._writer.submit(ticket)

    def sync(self) -> None:
        """Return when everything so far is written, and durable where the journal is. Call it without the lock."""
        if self._writer is not None:
            self._writer.sync()
        elif self._pending:
            with self._broker.lock:
                self.commit_now([], self._broker.clock.now())

    def withdraw(self, event: Event) -> bool:
        """Remove the pending event of a creation that could not be written; False if it must stay."""
        if not self._broker.catalog.can_undo(event) or any(_depends(other, event) for other in self._pending):
            return False
        kept = [other for other in self._pending if other is not event]
        is_withdrawn = len(kept) < len(self._pending)
        self._pending = kept
        return is_withdrawn

    def commit_now(self, tickets: list[Ticket], now: int) -> None:
        """Commit in this thread, under the lock."""
        while True:
            commit = self._stage(tickets, now)
            self._journal.append(commit)
            self._arrive(self._staged.forwards)
            self._find_positions(tickets)
            self._apply(commit)
            self._store_documents([ticket.mark for ticket in tickets if ticket.mark is not None and ticket.error is None])
            for ticket in tickets:
                ticket.finish()
            tickets = []
            if not self._pending and not self.forwards:
                break
        self._retention.run(now)

    def shed(self, now: int) -> None:
        """In memory: drop settled messages of streams that grew too large. Call it with the lock held."""
        self._retention.trim_large(now)

    def close(self) -> None:
        """Write everything, with a checkpoint, and end the writer."""
        if self._writer is not None:
            self._writer.stop()
            with self._writer.pen:
                try:
                    self._checkpoint()
                finally:
                    self._journal.close()

    def update_dead_letter_room(self, queue: Queue) -> None:
        """Set how many dead letters of a queue would be received by subscriptions of its dead-letter topic."""
        topic = queue.policy.dead_letter_topic
        if topic is not None:
            stream = self._broker.catalog.topics.get(topic)
            queue.dead_letter_room = stream.room() - self._traveling.get(topic, 0) if stream is not None else 0

    def lost(self, stream: Stream, offset: int) -> CorruptLog:
        """The error for a message that should be in the log and is not."""
        path = getattr(self._journal, "path", "memory")
        return CorruptLog(path, f"offset {offset} of {stream.kind} {stream.name!r}", "the message is not in the log")

    def _commit(self, tickets: list[Ticket]) -> bool:
        """Commit tickets and everything pending, with the write lock held. False if it could not be written."""
        lock = self._broker.lock
        if not self._has_found_out(tickets):
            return False
        with lock:
            now = self._broker.clock.now()
            if now >= self._broker.next_due:
                self._broker.is_retention_held()  # a jump of the clock is stored before any event with the time after it
            commit = self._stage(tickets, now)
        try:
            if commit.appends or commit.events or self.trouble is not None:
                self._journal.append(commit)
        except JournalUncertain as error:
            marks = [ticket.mark for ticket in tickets if ticket.mark is not None and ticket.error is None]
            with lock:
                self._suspend(_Unknown(commit, self._staged.kept, self._staged.forwards, marks), error)
                _fail(tickets, error)
            return False
        except Exception as error:  # noqa: BLE001  # the top of the writer: after any error publishers are notified and the writer continues
            with lock:
                self._undo(
                    commit, tickets, error if isinstance(error, PenstockError) else Unavailable(f"the journal failed: {error!r}")
                )
            return False
        with lock:
            self._arrive(self._staged.forwards)
            self._find_positions(tickets)
            self._apply(commit)
            self._store_documents([ticket.mark for ticket in tickets if ticket.mark is not None and ticket.error is None])
            if self.trouble is not None:
                log.warning("the journal can write again")
                self.trouble = None
        self._since_checkpoint += sum(event.count for event in commit.events)
        if self._writer is not None and self._needs_maintenance():
            self._writer.wake()
        return True

    def _stage(self, tickets: list[Ticket], now: int) -> Commit:
        """Assign an offset to every message. A ticket that cannot be accepted gets its error and is left out."""
        self._staged = staged = _Staged(now)
        if len(tickets) == 1 and not self.forwards and tickets[0].batch is not None and tickets[0].batch.producers is None:
            return self._stage_one(tickets[0], tickets[0].batch, now)
        forwards, self.forwards = self.forwards, []
        for forward in forwards:
            topic, queue, pending_letter, letter = forward
            stream = self._broker.catalog.topics.get(topic)
            if stream is not None:
                staged.add(stream, summarize([letter]))
                staged.forwards.append(forward)
                continue
            self._arrived(topic)
            if not queue.detached:
                # The topic was deleted after the message died: the message is requeued rather than lost.
                self._pending.append(queue.redrive([(pending_letter.offset, pending_letter.message)], now))
        for ticket in tickets:
            if ticket.stream is not None and ticket.batch is not None:
                fresh = staged.split(ticket, ticket.stream, ticket.batch)
                ticket.error = self._refusal(ticket.stream, fresh, *staged.waiting(ticket.stream))
                if ticket.error is None:
                    staged.add(ticket.stream, fresh)
        pending, self._pending = self._pending, []
        staged.kept = len(pending)
        commit = Commit(now, staged.appends(), pending)
        commit.events += [ticket.mark for ticket in tickets if ticket.mark is not None and ticket.error is None]
        commit.events += [
            events.Published(append.stream, append.at, append.first, len(append.batch.messages), append.batch.producers)
            for append in commit.appends
        ]
        return commit

    def _stage_one(self, ticket: Ticket, batch: Batch, now: int) -> Commit:
        """The same for a single publish, which is the usual case."""
        pending, self._pending = self._pending, []
        self._staged.kept = len(pending)
        stream = ticket.stream
        assert stream is not None, "a publish has a stream"
        ticket.error = self._refusal(stream, batch, 0, 0)
        if ticket.error is not None:
            return Commit(now, [], pending)
        ticket.first, ticket.at = stream.next_offset, max(now, stream.published_at)
        for message in batch.messages:
            message.publish_at = ticket.at
        if ticket.mark is not None:
            pending.append(ticket.mark)
        pending.append(events.Published(stream.number, ticket.at, ticket.first, len(batch.messages)))
        return Commit(now, [Append(stream.number, ticket.first, ticket.at, batch)], pending)

    def _refusal(self, stream: Stream, batch: Batch, count: int, size: int) -> PenstockError | None:
        """The reason to refuse a publish, with `count` messages of `size` bytes already staged; None if there is none."""
        if self._broker.catalog.streams.get(stream.number) is not stream:
            return (TopicNotFound if stream.kind == TOPIC else QueueNotFound)(stream.name)
        for queue in stream.queues:
            if not queue.has_room(batch, count, size):
                is_work_queue = queue.number == stream.number
                return QueueFull(queue.name) if is_work_queue else SubscriptionFull(queue.name, stream.name)
        return None

    def _apply(self, commit: Commit) -> None:
        """Make the written messages visible."""
        for append in commit.appends:
            stream = self._broker.catalog.streams.get(append.stream)
            if stream is not None:
                self._take_in(stream, append.first, append.at, append.batch)

    def _store_documents(self, marks: list[DocumentKept]) -> None:
        """Store the documents that were published together with messages."""
        for mark in marks:
            self._broker.catalog.documents[mark.name] = mark.body

    def _take_in(self, stream: Stream, first: int, at: int, batch: Batch) -> None:
        stream.next_offset = first + len(batch.messages)
        stream.published_at = at
        if batch.producers:
            stream.producers.learn(batch.producers, first, at)
        if self._writer is None:
            stream.pages.put(first, batch.messages, batch.size)
        else:
            self._broker.window.admit(stream, first, batch)
        broker = self._broker
        for queue in stream.queues:
            dropped = queue.offer(first, batch, at)
            if dropped is not None:
                self.add(dropped)
                self._discards.add(queue.name, dropped.count)
            if queue.soonest < queue.scheduled:
                broker.reschedule(queue)
        if stream.pages.size >= stream.shed_at and self._writer is None:
            self._retention.shed(stream)
        notifier = broker.notifier
        if notifier.callbacks:
            if stream.kind == TOPIC:  # a work queue has its stream's number
                notifier.notify(stream.number)
            for queue in stream.queues:
                notifier.notify(queue.number)

    def _find_positions(self, tickets: list[Ticket]) -> None:
        """The position of each message in its work queue when it is enqueued, without later messages of the same commit."""
        coming: dict[int, list[int]] = {}
        for ticket in tickets:
            stream, batch = ticket.stream, ticket.batch
            if ticket.error is None and stream is not None and batch is not None and stream.kind == QUEUE:
                ahead = coming.setdefault(stream.number, [0] * 10)
                places = ticket.places or [None] * len(batch.messages)
                for message, place in zip(batch.messages, places, strict=True):
                    position = _position(stream, message, ticket.at)
                    ticket.position = None if position is None else position + sum(ahead[message.priority :])
                    if place is None and position is not None:
                        ahead[message.priority] += 1

    def _arrive(self, forwards: list[Forward]) -> None:
        """Note that dead letters are in their topics."""
        for topic, _, _, _ in forwards:
            self._arrived(topic)

    def _arrived(self, topic: str) -> None:
        self._traveling[topic] -= 1
        if not self._traveling[topic]:
            del self._traveling[topic]

    def _undo(self, commit: Commit, tickets: list[Ticket], error: PenstockError) -> None:
        """After a failed write: fail the publishes with their marks, keep other events and dead letters for the next attempt."""
        self._pending[:0] = commit.events[: self._staged.kept]
        self.forwards[:0] = self._staged.forwards
        _fail(tickets, error)
        self._note_trouble(error)

    def _suspend(self, unknown: _Unknown, error: JournalUncertain) -> None:
        """After a write with an unknown outcome: keep the commit until the outcome is known."""
        self._unknown = unknown
        self._note_trouble(error)

    def _note_trouble(self, error: PenstockError) -> None:
        if self.trouble is None:
            log.error("the journal cannot write; publishing fails until it can: %s", error)
        self.trouble = error.problem if isinstance(error, JournalUnavailable | JournalUncertain) else str(error)

    def _has_found_out(self, tickets: list[Ticket]) -> bool:
        """Whether the outcome of the last commit is known: then it is applied or rolled back. Otherwise the tickets fail."""
        unknown = self._unknown
        if unknown is None:
            return True
        assert isinstance(self._journal, RemoteJournal), "only such a journal has unknown outcomes"
        try:
            is_stored = self._journal.is_stored()
        except PenstockError as error:
            path = getattr(self._journal, "path", "")
            problem = f"the outcome of the commit before is not known: {getattr(error, 'problem', error)}"
            _fail(tickets, error if isinstance(error, LogLost) else JournalUnavailable(path, problem))
            with self._broker.lock:
                self._note_trouble(error)
            return False
        with self._broker.lock:
            self._unknown = None
            if is_stored:
                self._arrive(unknown.forwards)
                self._apply(unknown.commit)
                self._store_documents(unknown.marks)
                self._since_checkpoint += sum(event.count for event in unknown.commit.events)
            else:
                self._pending[:0] = unknown.commit.events[: unknown.kept]
                self.forwards[:0] = unknown.forwards
        log.warning("the commit with the unknown outcome is %s", "stored" if is_stored else "not stored")
        return True

    def _maintain(self) -> None:
        """Maintain the journal between commits, in the writer's thread."""
        if self.trouble is None and self._needs_maintenance():
            try:
                if self._since_checkpoint >= CHECKPOINT_EVENTS:
                    self._checkpoint()
                self._retention.run(self._broker.clock.now())
            except PenstockError as error:
                log.error("maintenance of the journal failed, will retry: %s", error)

    def _needs_maintenance(self) -> bool:
        return self._since_checkpoint >= CHECKPOINT_EVENTS or self._retention.is_due(self._broker.clock.now())

    def _checkpoint(self) -> None:
        """Store the state as of the last event, so that a start need not replay earlier events."""
        with self._broker.lock:
            if self.forwards or self.trouble is not None:
                return
            pending, self._pending = self._pending, []
            state = self._broker.catalog.state()
        self._write(pending)
        self._journal.checkpoint(state)
        self._since_checkpoint = 0

    def _write_pending(self) -> bool:
        """Write the pending events; False if they have to wait for the next commit."""
        with self._broker.lock:
            if self.forwards or self.trouble is not None:
                return False
            pending, self._pending = self._pending, []
        self._write(pending)
        return True

    def _write(self, pending: list[Event]) -> None:
        if pending:
            commit = Commit(pending[-1].at, [], pending)
            try:
                self._journal.append(commit)
            except JournalUncertain as error:
                with self._broker.lock:
                    self._suspend(_Unknown(commit, len(pending), [], []), error)
                raise
            except PenstockError:
                with self._broker.lock:
                    self._pending[:0] = pending
                raise


class _Unknown(NamedTuple):
    """A commit whose outcome is unknown."""

    commit: Commit
    kept: int
    """How many of its first events are kept for the next attempt if it is not stored."""
    forwards: list[Forward]
    marks: list[DocumentKept]


class _Staged:
    """The appends of a commit, by stream, while it is staged."""

    def __init__(self, now: int) -> None:
        self._now = now
        self._batches: dict[int, tuple[Stream, list[Batch]]] = {}
        self._waiting: dict[int, tuple[int, int]] = {}
        self._pairs: dict[int, dict[tuple[str, int], Place]] = {}
        self.kept = 0
        """How many of the first events of the commit are kept for the next attempt if this one fails."""
        self.forwards: list[Forward] = []

    def waiting(self, stream: Stream) -> tuple[int, int]:
        """The number and bytes of the messages staged for a stream."""
        return self._waiting.get(stream.number, (0, 0))

    def add(self, stream: Stream, batch: Batch) -> None:
        """Append a batch that is new as a whole."""
        if batch.producers is not None:
            first, at = stream.next_offset + self.waiting(stream)[0], max(self._now, stream.published_at)
            pairs = batch.producers[:1] if batch.is_whole else batch.producers
            places = ((pair, (first + index, at)) for index, pair in enumerate(pairs))
            self._pairs.setdefault(stream.number, {}).update((pair, place) for pair, place in places if pair is not None)
        if batch.messages:
            count, size = self.waiting(stream)
            self._batches.setdefault(stream.number, (stream, []))[1].append(batch)
            self._waiting[stream.number] = count + len(batch.messages), size + batch.size

    def split(self, ticket: Ticket, stream: Stream, batch: Batch) -> Batch:
        """Assign offsets to a publish, without the messages that an idempotent producer repeats."""
        ticket.at = max(self._now, stream.published_at)
        ticket.first = stream.next_offset + self.waiting(stream)[0]
        if batch.producers is None:
            return batch
        pairs = self._pairs.setdefault(stream.number, {})
        fresh, ticket.places = stream.known(batch, ticket.first, ticket.at, pairs)
        return fresh

    def appends(self) -> list[Append]:
        """One append for each stream, with one publish time."""
        result = []
        for stream, batches in self._batches.values():
            batch = joined(batches)
            at = max(self._now, stream.published_at)
            for message in batch.messages:
                message.publish_at = at
            result.append(Append(stream.number, stream.next_offset, at, batch))
        return result


def _fail(tickets: list[Ticket], error: PenstockError) -> None:
    for ticket in tickets:
        ticket.error = ticket.error or error


def _position(stream: Stream, message: StoredMessage, at: int) -> int | None:
    """The 1-based position among the ready messages of one that is enqueued now; None if it is delayed."""
    if message.deliver_at is not None and message.deliver_at > at:
        return None
    return stream.queues[0].position(message.priority) + 1 if stream.queues else 1


def _depends(other: Event, made: Event) -> bool:
    """Whether another event mentions what an event created."""
    number = getattr(made, "queue", None) or getattr(made, "stream", None)
    return other is not made and number in {getattr(other, "queue", None), getattr(other, "stream", None)}


def _dead_letter(queue: Queue, pending_letter: PendingDeadLetter, now: int) -> StoredMessage:
    """The message as it is published to its dead-letter topic, with the reason in its attributes."""
    message = pending_letter.message
    origin = message.origin_at or message.publish_at
    attributes = dict(message.attributes or {})
    attributes |= {
        "penstock.reason": pending_letter.reason,
        "penstock.attempts": str(pending_letter.attempts),
        "penstock.source": queue.name,
        "penstock.source_message_id": message_id(message.publish_at, queue.stream, pending_letter.offset),
        "penstock.publish_time": to_datetime(origin).isoformat(),
    }
    if queue.policy.letter is not None:
        subscription, project = queue.policy.letter
        attributes |= {
            "CloudPubSubDeadLetterSourceSubscription": subscription,
            "CloudPubSubDeadLetterSourceSubscriptionProject": project,
            "CloudPubSubDeadLetterSourceDeliveryCount": str(pending_letter.attempts),
            "CloudPubSubDeadLetterSourceTopicPublishTime": to_datetime(origin).isoformat().replace("+00:00", "Z"),
            "CloudPubSubDeadLetterSourceDeliveryErrorMessage": pending_letter.error or pending_letter.reason,
        }
    if pending_letter.error:
        attributes["penstock.last_error"] = pending_letter.error.encode()[:1000].decode(errors="ignore")
    letter = StoredMessage(now, message.data, attributes, message.key, message.priority, 0, origin_at=origin)
    letter.size = size_of(letter)
    return letter


class DiscardWarnings:
    """Warns that messages were discarded for full queues."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[int, int]] = {}
        """By queue: the time of the last warning, and how many messages were discarded since."""

    def add(self, queue: str, count: int) -> None:
        """Count messages that were discarded for a queue, and warn from time to time."""
        warned_at, silent = self._since.get(queue, (-SECOND, 0))
        if monotonic() - warned_at < SECOND:
            self._since[queue] = (warned_at, silent + count)
            return
        self._since[queue] = (monotonic(), 0)
        log.warning("%r is full: %d new messages were discarded for it", queue, silent + count)
