"""The thread that writes: many publishes, one sync.

Each publisher hands in a ticket and waits. The writer takes all tickets, commits them together with the pending events, and wakes
the publishers. If the last commit served several publishers, the next one waits a moment for as many tickets.

A single publisher waits only for the disk: while the writer is idle and the last commit served one, it takes the write lock
(`pen`) and commits in its own thread, which saves two thread switches. The holder of the write lock may stage, append, apply and
maintain.
"""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue

import msgspec

from penstock.broker.core.stream import Place, Stream
from penstock.clock import monotonic
from penstock.errors import BrokerClosed, PenstockError, Unavailable
from penstock.ids import message_id, message_ids
from penstock.journal.core.events import DocumentKept
from penstock.values.message import Batch

log = logging.getLogger("penstock.broker")

FLUSH_INTERVAL = 50_000
"""How long pending events may stay in memory, in microseconds."""
RETRY_INTERVAL = 250_000
MAX_WINDOW = 2_000
MIN_GROUP_MESSAGES = 250
"""With this many messages the writer commits without waiting for more: that would only keep the disk idle."""
MAX_GROUP_BYTES = 32 * 1024 * 1024
DROPPED = f"{0:030x}"
"""The id of a message that a transform dropped."""


class Placement(msgspec.Struct, gc=False):
    """The places of published messages: from offset `first` on, published at `at`; repeats have an earlier place."""

    stream: int
    first: int
    at: int
    count: int
    places: list[Place | None] | None = None
    position: int | None = 0
    """In a work queue: the 1-based position of the last message among the ready ones; None if it is delayed."""
    dropped: list[int] | None = None
    """The messages of the request that a transform dropped; they are not counted in `count`."""

    def message_ids(self) -> list[str]:
        """The ids of all messages, in order. A dropped message gets an id too, as in Google's API, which no message has."""
        if self.dropped is not None:
            ids = msgspec.structs.replace(self, dropped=None).message_ids() if self.count else []
            for index in self.dropped:
                ids.insert(index, DROPPED)
            return ids
        if self.places is None:
            if self.count == 1:
                return [message_id(self.at, self.stream, self.first)]
            return message_ids(self.at, self.stream, range(self.first, self.first + self.count))
        fresh = iter(range(self.first, self.first + self.count))
        places = [place if place is not None else (next(fresh), self.at) for place in self.places]
        return [message_id(at, self.stream, offset) for offset, at in places]


class Ticket:
    """A publish, or, without a batch, a request to write everything so far to disk.

    Its creator waits for it, or passes `done`, which the writer calls: it must return at once and must not fail. A `mark` is a
    document that is stored in the same commit as the messages: the publisher's progress.
    """

    __slots__ = ("_done", "_lock", "at", "batch", "dropped", "error", "first", "mark", "places", "position", "stream")

    def __init__(
        self,
        stream: Stream | None,
        batch: Batch | None,
        done: Callable[[Ticket], None] | None = None,
        mark: DocumentKept | None = None,
    ) -> None:
        self.stream = stream
        self.batch = batch
        self.mark = mark
        self.first = 0
        self.at = 0
        self.places: list[Place | None] | None = None
        """The earlier places of repeated messages of an idempotent producer, None for new ones."""
        self.position: int | None = 0
        self.dropped: list[int] | None = None
        self.error: PenstockError | None = None
        self._done = done
        self._lock = threading.Lock()
        if done is None:
            self._lock.acquire()

    @property
    def is_awaited(self) -> bool:
        """Whether a thread waits for it, which may then commit by itself."""
        return self._done is None

    def finish(self) -> None:
        """Called once, when the outcome is known."""
        if self._done is None:
            self._lock.release()
        else:
            self._done(self)

    def is_finished_within(self, seconds: float) -> bool:
        """Wait at most this time; returns whether the outcome is known. Only for a ticket that a thread waits for."""
        if not self._lock.acquire(timeout=seconds):
            return False
        self._lock.release()
        return True

    def wait(self) -> None:
        """Return when it is durable, or raise the error."""
        with self._lock:
            if self.error is not None:
                raise self.error

    def placed(self) -> Placement:
        """Wait, and return the places of the messages."""
        self.wait()
        assert self.batch is not None, "only a publish has places"
        assert self.stream is not None, "only a publish has places"
        count = len(self.batch.messages)
        return Placement(self.stream.number, self.first, self.at, count, self.places, self.position, self.dropped)


class Writer:
    """Runs `commit(tickets)` for incoming tickets, and `idle()` in between."""

    def __init__(self, commit: Callable[[list[Ticket]], bool], idle: Callable[[], None], name: str) -> None:
        self._commit = commit
        self._idle = idle
        self._inbox: SimpleQueue[Ticket | None] = SimpleQueue()
        self.pen = threading.Lock()
        """The write lock of the journal. Taken before the broker's lock, never under it."""
        self._company = 1
        """How many publishes the last commit served."""
        self._is_nudged = False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, ticket: Ticket) -> None:
        """Commit a ticket: in this thread if no other thread writes, soon otherwise."""
        if self._stopped.is_set():
            raise BrokerClosed
        if self._company > 1 or ticket.batch is None or not ticket.is_awaited or not self.pen.acquire(blocking=False):
            self._inbox.put(ticket)
            if self._stopped.is_set():
                self._refuse_rest()
            return
        try:
            if self._stopped.is_set():
                raise BrokerClosed
            self._is_nudged = False
            is_written = self._commit([ticket])
        finally:
            self.pen.release()
        if not is_written:
            self.wake()
        ticket.finish()

    def sync(self) -> None:
        """Return when every event so far is durable."""
        ticket = Ticket(None, None)
        self.submit(ticket)
        ticket.wait()

    def wake(self) -> None:
        """Note that there are events to write within `FLUSH_INTERVAL`."""
        if not self._is_nudged:
            self._is_nudged = True
            self._inbox.put(None)

    def stop(self) -> None:
        """Write everything, then stop. Returns when the thread has ended."""
        if not self._stopped.is_set():
            self._stopped.set()
            self._inbox.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _refuse_rest(self) -> None:
        """Fail the tickets that came after the thread had ended."""
        self._thread.join()
        while not self._inbox.empty():
            with suppress(Empty):
                ticket = self._inbox.get_nowait()
                if ticket is not None:
                    ticket.error = BrokerClosed()
                    ticket.finish()

    def _run(self) -> None:
        flush_at: int | None = None
        spent = 0
        while True:
            tickets = self._gather(flush_at, spent)
            is_due = flush_at is not None and monotonic() >= flush_at
            if tickets or is_due or self._stopped.is_set():
                self._is_nudged = False
                started = monotonic()
                is_written = self._write(tickets)
                spent = monotonic() - started
                flush_at = None if is_written else monotonic() + RETRY_INTERVAL
            elif self._is_nudged and flush_at is None:
                flush_at = monotonic() + FLUSH_INTERVAL
            if self._stopped.is_set() and self._inbox.empty():
                return

    def _write(self, tickets: list[Ticket]) -> bool:
        """Commit, notify the publishers, and clean up. After any error no publisher is left waiting and the thread continues."""
        try:
            with self.pen:
                return self._commit(tickets)
        except Exception as error:  # noqa: BLE001  # the top of the thread
            log.error("the writer failed with %s", _error_text(error))
            for ticket in tickets:
                ticket.error = ticket.error or Unavailable(f"the writer failed with {type(error).__name__}")
            return False
        finally:
            for ticket in tickets:
                ticket.finish()
            try:
                with self.pen:
                    self._idle()
            except Exception as error:  # noqa: BLE001  # the top of the thread
                log.error("the writer could not clean up: %s", _error_text(error))

    def _gather(self, flush_at: int | None, spent: int) -> list[Ticket]:
        """Wait for work; returns the incoming tickets."""
        tickets: list[Ticket] = []
        size, until, count = 0, 0, 0
        while size < MAX_GROUP_BYTES:
            try:
                if not tickets:
                    timeout = None if flush_at is None else max(flush_at - monotonic(), 0) / 1_000_000
                    ticket = self._inbox.get(timeout=timeout)
                elif len(tickets) < self._company and count < MIN_GROUP_MESSAGES:
                    ticket = self._inbox.get(timeout=max(until - monotonic(), 0) / 1_000_000)
                else:
                    ticket = self._inbox.get_nowait()
            except Empty:
                break
            if ticket is None:
                if not tickets:
                    break
                continue
            if not tickets:
                until = monotonic() + min(MAX_WINDOW, spent)
            tickets.append(ticket)
            if ticket.batch is not None:
                size += ticket.batch.size
                count += len(ticket.batch.messages)
        if tickets:
            self._company = sum(ticket.batch is not None for ticket in tickets) or 1
        return tickets


def _error_text(error: Exception) -> str:
    """An error for the log: its type and place, without its text, which may contain a payload."""
    return f"{type(error).__name__} at\n{''.join(traceback.format_tb(error.__traceback__))}"
