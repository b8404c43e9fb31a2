"""The broker: applies the core, writes the journal, wakes waiting callers.

One lock guards all state. Nothing is written while it is held. A timer, a seek or a query about one message may read pages under
it; a pull reads without it. A publish in a durable broker becomes visible when its commit is on disk (see `commits`); every other
command changes the state at once and its events follow in order, within `FLUSH_INTERVAL`. A crash can therefore undo the last
acks and leases, which at-least-once allows, never a confirmed publish.

    Lock order: the writer's write lock (`Writer.pen`), then the broker's lock, which a writer takes to stage and to apply, not
    while it writes.
"""

from __future__ import annotations

import atexit
import heapq
import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

from penstock import forks
from penstock.broker.catalog import Catalog
from penstock.broker.commits import Commits
from penstock.broker.core import clock_watch
from penstock.broker.core.clock_watch import ClockWatch
from penstock.broker.core.outcome import Outcome
from penstock.broker.core.queue import Queue
from penstock.broker.core.stream import Stream
from penstock.broker.cursors import Cursors
from penstock.broker.history import EventRow, life, life_of
from penstock.broker.timer import Timer
from penstock.broker.topic_rules import TopicRules
from penstock.broker.waiters import Notifier
from penstock.broker.window import Window, pieces
from penstock.broker.writer import Placement, Ticket
from penstock.clock import Clock, SystemClock, monotonic, steady
from penstock.durations import DAY, FOREVER, SECOND, to_datetime
from penstock.errors import BrokerClosed, InvalidArgument, JournalUnavailable, PenstockError, Unavailable
from penstock.journal.core import events
from penstock.journal.core.events import Event
from penstock.journal.journal import Journal, RemoteJournal
from penstock.journal.memory import MemoryJournal
from penstock.values.lease import Lease
from penstock.values.message import Batch, StoredMessage
from penstock.values.policy import check_count

log = logging.getLogger("penstock.broker")

SILENT = 4 * SECOND
"""A second less than the time after which another node may own the log."""
WINDOW_BYTES = 256 * 1024 * 1024

_open_brokers: weakref.WeakSet[Broker] = weakref.WeakSet()


class Broker:
    """Topics, subscriptions and work queues over one log. `MessageQueue` and `QueueManager` are APIs over it; both may share one.

    With `data_dir` it is durable: a publish returns once it is on disk. Without, it is in memory. It is thread-safe. Close it, or
    use it as a context manager.
    """

    def __init__(
        self,
        *,
        data_dir: str | os.PathLike[str] | None = None,
        clock: Clock | None = None,
        journal: Journal | None = None,
        window_bytes: int = WINDOW_BYTES,
    ) -> None:
        if data_dir is not None and journal is not None:
            raise InvalidArgument("data_dir and journal are both given, expected at most one of them")
        if clock is not None and not callable(getattr(clock, "now", None)):
            raise InvalidArgument.of("clock", clock, "a Clock, such as SystemClock() or ManualClock()")
        if journal is not None and not callable(getattr(journal, "append", None)):
            raise InvalidArgument.of("journal", journal, "a Journal")
        check_count(window_bytes, "window_bytes", 0)
        if data_dir is not None:
            from penstock.journal.sqlite import SqliteJournal  # noqa: PLC0415  # a broker in memory needs no SQLite

            journal = SqliteJournal(data_dir)
        self.clock: Clock = clock or SystemClock()
        self.journal: Journal = journal or MemoryJournal()
        self.is_durable = self.journal.is_durable
        self.remote = self.journal if isinstance(self.journal, RemoteJournal) else None
        """The journal, if the connection to its database can be lost."""
        self._was_silent = False
        self.lock = threading.RLock()
        """Hot paths call `acquire` and `release`: a `with` statement costs twice as much."""
        self.notifier = Notifier()
        """The callers that wait for deliverable messages."""
        self.is_closed = False
        """Set with the lock held; every call that finds it set raises BrokerClosed."""
        self._present = _Present(self)
        self._steady = steady(self.clock)
        self._schedule: list[tuple[int, int]] = []
        self._look_at = 0
        """The latest time of the next check of the clock and, in memory, of streams that grew too large."""
        self.next_due = FOREVER
        """Nothing happens by itself before this instant; after it, `catch_up` first."""
        self.window = Window(self.journal, window_bytes if self.is_durable else None)
        try:
            self.catalog = self._recover()
            self.cursors = Cursors(self)
        except BaseException:
            self.journal.close()
            raise
        self._commits = Commits(self)
        self.publish_now = self._commits.publish_now
        """Publish to a stream of a broker in memory. Call it with the lock held."""
        self.emit = self._commits.add
        """Write an event to the log, soon and in order. Call it with the lock held."""
        self.rules = TopicRules(self)
        """The schemas and transforms of topics."""
        if self._watch.jump is not None or clock_watch.DOCUMENT in self.catalog.documents:
            self._handle_clock_jump(self.clock.now())
        self._timer = Timer(self) if self.clock.runs else None
        _open_brokers.add(self)
        forks.own(self, "broker")

    # ── publishing ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def publish(self, find: Callable[[Catalog, str], Stream], name: str, batch: Batch, now: int) -> Placement:
        """Append messages to the stream that `find` finds by name; returns where they are when they are safe."""
        if now >= self.next_due:
            self.catch_up()
        lock = self.lock
        lock.acquire()
        try:
            if self.is_closed:
                raise BrokerClosed
            stream = find(self.catalog, name)
            if not self.is_durable:
                return self.publish_now(stream, batch, now)
        finally:
            lock.release()
        ticket = Ticket(stream, batch)
        self._commits.submit(ticket)
        return ticket.placed()

    def submit(
        self,
        find: Callable[[Catalog, str], Stream],
        name: str,
        batch: Batch,
        done: Callable[[Ticket], None],
        mark: events.DocumentKept | None = None,
    ) -> None:
        """Publish without waiting: the writer calls `done` with the ticket. Only for a durable broker."""
        with self.lock:
            if self.is_closed:
                raise BrokerClosed
            stream = find(self.catalog, name)
        self._commits.submit(Ticket(stream, batch, done, mark))

    def append(self, ticket: Ticket) -> None:
        """Commit a publish: in the writer, or at once in memory. Call it without the lock."""
        if self.is_durable:
            self._commits.submit(ticket)
            return
        with self.lock:
            self.check_open()
            self._commits.commit_now([ticket], self.clock.now())

    def when_durable(self, done: Callable[[Ticket], None]) -> None:
        """Have the writer call `done` when everything so far is durable. Only for a durable broker."""
        self._commits.submit(Ticket(None, None, done))

    # ── delivery ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def load(self, queue: Queue) -> None:
        """Read the message at which a queue stopped into memory. Call it without the lock: it reads the disk."""
        with self.lock:
            absent, stream = queue.absent, self.catalog.streams.get(queue.stream)
        if absent is not None and stream is not None:
            self._load(stream, absent)

    def settle(
        self, queue: Queue, leases: list[Lease], now: int, settle: Callable[[Queue, list[Lease], int], Event | Outcome]
    ) -> bool:
        """Settle live leases by a verb of the core, with the lock held. If it returns True, call `deliver_forwards` after it."""
        if queue.policy.dead_letter_topic is not None:
            self._commits.update_dead_letter_room(queue)
        outcome = settle(queue, leases, now)
        if isinstance(outcome, Outcome):
            self.absorb(queue, outcome, now)
        else:
            self._commits.add(outcome)
        if queue.soonest < queue.scheduled:
            self.reschedule(queue)
        if self.notifier.callbacks and queue.has_waiting:  # later messages notify by themselves
            self.notifier.notify(queue.number)
        return bool(self._commits.forwards)

    # ── the shell's own tools, also for the APIs and the commits ─────────────────────────────────────────────────────────

    def present(self) -> AbstractContextManager[int]:
        """Hold the lock of an open broker after everything due is done; returns the current time."""
        return self._present

    def check_open(self) -> None:
        """Raise BrokerClosed if it is closed."""
        if self.is_closed:
            raise BrokerClosed

    def record(self, happened: Iterable[Event]) -> None:
        """Write an event from outside of the broker to the log, soon and in order."""
        with self.lock:
            self.check_open()
            for event in happened:
                self._commits.add(event)

    def absorb(self, queue: Queue, outcome: Outcome, now: int) -> None:
        """Write an outcome to the log and forward its dead letters. Call it with the lock held."""
        for event in outcome.events:
            self._commits.add(event)
            if isinstance(event, events.DeadLetterFailed):
                log.warning("a dead letter of %r is kept: its topic %r does not exist or is full", queue.name, event.target)
            elif isinstance(event, events.DeadRemoved) and queue.policy.dead_letter_size:
                log.warning("the dead-letter list of %r is full: its oldest entry was removed (it stays in the log)", queue.name)
        if outcome.pending_dead_letters:
            self._commits.forward(queue, outcome.pending_dead_letters, now)

    def sync(self) -> None:
        """Return when everything so far is durable. Call it without the lock."""
        self._commits.sync()

    def deliver_forwards(self) -> None:
        """Return when dead letters have arrived, or have to wait until the journal can write. Call it without the lock."""
        try:
            self._commits.sync()
        except Unavailable:
            log.debug("dead letters wait for the journal")

    def reschedule(self, queue: Queue) -> None:
        """Schedule the next tick of a queue. Call it with the lock held."""
        due = queue.soonest
        if due < queue.scheduled:
            queue.scheduled = due
            heapq.heappush(self._schedule, (due, queue.number))
            if len(self._schedule) > 2 * len(self.catalog.queues) + 1_000:
                self._schedule = [(other.scheduled, other.number) for other in self.catalog.queues.values()]
                self._schedule.append((self._look_at, 0))
                heapq.heapify(self._schedule)
            if due < self.next_due:
                self._expect(due)

    def catch_up(self) -> int:
        """Do everything that is due; returns the current time."""
        now = self.clock.now()
        if now >= self.next_due and self.advance(now):
            self.deliver_forwards()
        return now

    def advance(self, now: int) -> bool:
        """Do everything that is due at an instant; True if dead letters are being forwarded."""
        with self.lock:
            return self._tick(now)

    def message(self, stream: Stream, offset: int) -> StoredMessage | None:
        """A message, from memory or the log; None if the log does not have it."""
        if not 0 <= offset < stream.next_offset:
            return None
        found = stream.pages.get(offset)
        return found if found is not None else self._read(stream, offset)

    def change(self, change: Callable[[Catalog, int], Event | None]) -> Event | None:
        """Change what exists. The change is visible at once, and durable on return."""
        now = self.catch_up()
        with self.lock:
            self.check_open()
            self.check_healthy()
            event = change(self.catalog, now)
            if event is not None:
                self.emit(event)
                for number in self.catalog.concerned(event):
                    self.notifier.notify(number)
            if isinstance(event, events.QueueUpdated):
                self.reschedule(self.catalog.queues[event.queue])
            if isinstance(event, events.TopicDeleted | events.QueueDeleted):
                self.window.forget_deleted(self.catalog.streams)
        if event is not None:
            try:
                self._commits.sync()
            except PenstockError:
                with self.lock:
                    if self._commits.withdraw(event):
                        self.catalog.undo(event)
                raise
        return event

    def oldest_age(self, queue: Queue, now: int) -> float:
        """The age in seconds of the oldest unsettled message; 0 if there is none. Call it with the lock held."""
        offset, stream = queue.oldest(), self.catalog.streams.get(queue.stream)
        at = self.window.published_at(stream, offset) if offset is not None and stream is not None else None
        return max(now - at, 0) / SECOND if at is not None else 0.0

    def history(self, message_id: str) -> list[EventRow]:
        """The events of a message, oldest first, as far back as the event log reaches."""
        self.catch_up()
        self.check_open()
        self.sync()
        with self.lock:
            stream_of = {queue.number: queue.stream for queue in self.catalog.queues.values()}
        return life_of(self.journal, message_id, stream_of)

    def last_event_kind(self, queue: Queue, offset: int) -> str | None:
        """The kind of the last event of a message in a queue, as the log records it. Call it without the lock."""
        self.sync()
        rows = life(self.journal, queue.stream, offset, {queue.number: queue.stream})
        # A router's attempts do not settle a message, and may be logged after its last event.
        fates = [row.kind for row in rows if row.kind != "attempted"]
        return fates[-1] if fates else None

    @property
    def health(self) -> str | None:
        """The problem of the journal; None if it works."""
        return self._commits.trouble or (self.remote.trouble if self.remote is not None else None)

    @property
    def is_silent(self) -> bool:
        """Whether the database has not answered for so long that another node may own the log: then nothing is delivered.

        Call it with the lock held; consumers that got nothing are notified every second until it answers.
        """
        if self.remote is None or monotonic() - self.remote.alive_at < SILENT:
            return False
        self._was_silent = True
        if (due := self.clock.now() + SECOND) < self.next_due:
            self._expect(due)
        return True

    def check_healthy(self) -> None:
        """Refuse a change while the journal cannot write."""
        if self._commits.trouble is not None:
            raise JournalUnavailable(getattr(self.journal, "path", "memory"), self._commits.trouble)

    def close(self) -> None:
        """Write everything to disk and close. Safe to call twice; waiting calls end with BrokerClosed."""
        with self.lock:
            if self.is_closed:
                return
            self.is_closed = True
            self.notifier.notify_all()
        _open_brokers.discard(self)
        forks.disown(self)
        if self._timer is not None:
            self._timer.stop()
        self.rules.close()
        try:
            self._commits.close()
        finally:
            self.journal.close()

    def __enter__(self) -> Broker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _recover(self) -> Catalog:
        state, happened = self.journal.load()
        state.replay(happened)
        catalog = Catalog(state)
        now = self.clock.now()
        self._watch = self._watch_clock(now, catalog.documents.get(clock_watch.DOCUMENT))
        for stream in catalog.streams.values():
            earliest = self.journal.earliest(stream.number)
            stream.earliest = earliest if earliest is not None else stream.next_offset
        for image in state.queues.values():
            queue = catalog.queues[image.number]
            queue.restore(image, pieces(self.journal, image), now)
            # A lease whose event was lost in the crash must not share its ack id with a new one.
            queue.epoch = max(queue.epoch + 1, now // SECOND)
            if not queue.detached:
                queue.high = catalog.streams[queue.stream].next_offset
        self.catalog = catalog
        self._timer = None
        for queue in catalog.queues.values():
            self.reschedule(queue)
        self._look_again(now)
        return catalog

    def _watch_clock(self, now: int, stored: bytes | None) -> ClockWatch:
        latest = self.journal.event_range()[1]
        wrote_at = max((event.at for _, event in self.journal.read_events(latest - 1, latest)), default=now) if latest else now
        return ClockWatch(now, self._steady(), wrote_at, None if stored is None else clock_watch.decode(stored))

    def is_retention_held(self) -> bool:
        """Whether retention is paused, because the clock may be wrong."""
        with self.lock:
            now = self.clock.now()
            if self._watch.look(now, self._steady()):
                self._handle_clock_jump(now)
            self._look_again(now)
            return self._watch.jump is not None

    def _handle_clock_jump(self, now: int) -> None:
        """Pause retention after a jump of the clock, so that it can be corrected first. Call it with the lock held."""
        self._store_clock_jump(now)
        jump = self._watch.jump
        if jump is None:
            for queue in self.catalog.queues.values():
                queue.soonest = 0
                self.reschedule(queue)
            return
        log.warning(
            "the clock shows %s, %d days after the last plausible time (%s): retention is paused for the next %d"
            " minutes. Correct the clock if it is wrong",
            to_datetime(now).isoformat(timespec="seconds"),
            (now - jump.since) // DAY,
            to_datetime(jump.since).isoformat(timespec="seconds"),
            -(-(jump.until - now) // (60 * SECOND)),
        )

    def _store_clock_jump(self, now: int) -> None:
        """Store that the clock has jumped, or that this is over. Call it with the lock held."""
        jump, stored = self._watch.jump, self.catalog.documents.get(clock_watch.DOCUMENT)
        if jump is None:
            event: Event | None = self.catalog.drop_document(clock_watch.DOCUMENT, now)
        else:
            body = clock_watch.encode(jump)
            event = self.catalog.keep_document(clock_watch.DOCUMENT, body, now) if body != stored else None
        if event is not None:
            self.emit(event)

    def _look_again(self, now: int) -> None:
        """Have the clock checked before anything else is done after a jump. Call it with the lock held."""
        self.look_at(now, self._watch.look_at())

    def look_at(self, now: int, due: int) -> None:
        """Have `_tick` called at about this time at the latest, even if no queue has anything due. Call it with the lock held."""
        if not now < self._look_at <= due + SECOND:
            self._look_at = due
            heapq.heappush(self._schedule, (due, 0))  # of no queue
            if due < self.next_due:
                self._expect(due)

    def _expect(self, due: int) -> None:
        """Note that something is due earlier than before."""
        self.next_due = due
        if self._timer is not None:
            self._timer.wake()

    def _tick(self, now: int) -> bool:
        """Tick every queue that is due; True if dead letters are being forwarded."""
        if now >= self._look_at:
            self._commits.shed(now)
        self.is_retention_held()
        while self._schedule and self._schedule[0][0] <= now:
            due, number = heapq.heappop(self._schedule)
            queue = self.catalog.queues.get(number)
            if queue is None or queue.scheduled != due:
                continue
            queue.scheduled = FOREVER
            try:
                self._tick_queue(queue, now)
            except PenstockError as error:
                # A queue whose log cannot be read must not stop the others.
                log.error("could not process due work of %r, will retry: %s", queue.name, error)
                queue.soonest = now + SECOND
            self.reschedule(queue)
            self.notifier.notify(number)
        self.next_due = self._schedule[0][0] if self._schedule else FOREVER
        if self._was_silent:
            self._was_silent = False
            self.notifier.notify_all()
        return bool(self._commits.forwards)

    def _tick_queue(self, queue: Queue, now: int) -> None:
        self._commits.update_dead_letter_room(queue)
        published: dict[int, int] = {}
        retires = self._watch.jump is None
        while True:
            self.absorb(queue, queue.tick(now, published, retires=retires), now)
            absent = queue.absent
            if absent is None:
                return
            stream = self.catalog.streams[queue.stream]
            at = self.window.published_at(stream, absent) if absent not in published else None
            if at is not None:
                published[absent] = at
            else:
                self._load(stream, absent)

    def _load(self, stream: Stream, offset: int) -> None:
        """Read a message that a queue has still to deliver, and its neighbours, into memory."""
        if self._read(stream, offset) is None and self.catalog.streams.get(stream.number) is stream:
            raise self._commits.lost(stream, offset)

    def _read(self, stream: Stream, offset: int) -> StoredMessage | None:
        """Read a message and its neighbours from the log into memory; None if the log does not have it."""
        runs = self.window.fetch(stream, offset)
        with self.lock:
            self.window.hold(stream, runs)
        # Not looked up in memory: another thread may have dropped it again.
        return next((messages[offset - first] for first, messages in runs if first <= offset < first + len(messages)), None)


class _Present:
    """See `Broker.present`. A class, and one object for all calls: a generator costs four times as much."""

    __slots__ = ("_broker",)

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def __enter__(self) -> int:
        broker = self._broker
        now = broker.catch_up()
        broker.lock.acquire()
        if broker.is_closed:
            broker.lock.release()
            raise BrokerClosed
        return now

    def __exit__(self, *_: object) -> None:
        self._broker.lock.release()


def close_all(brokers: Iterable[Broker]) -> None:
    """At exit, write the last events of brokers that were not closed."""
    for broker in list(brokers):
        broker.close()


atexit.register(close_all, _open_brokers)
