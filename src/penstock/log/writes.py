"""Writes in one piece: rows are staged, a commit is decided, and from then on the broker finishes it by itself.

What makes it exactly once: the decision (which write stands for this batch of this query) is durable before the first row is
published, and every slice of rows goes into the journal in one commit with the mark that says how far it is. So whatever moment a
crash chooses, the rows that are in the log are just those that the mark counts.
"""

from __future__ import annotations

import logging
import secrets
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from penstock.broker.broker import Broker
from penstock.broker.catalog import Catalog
from penstock.broker.core import write_ledger
from penstock.broker.core.stream import Stream
from penstock.broker.core.write_ledger import PREFIX, Ledger, Verdict, verdict
from penstock.broker.writer import Ticket
from penstock.durations import SECOND
from penstock.errors import (
    BrokerClosed,
    CorruptLog,
    InvalidArgument,
    JournalUnavailable,
    PartNotFound,
    PenstockError,
    PermissionDenied,
    QueueFull,
    ResourceExhausted,
    SubscriptionFull,
    TopicNotFound,
)
from penstock.journal.core.events import DocumentKept
from penstock.log.staging import (
    Manifest,
    ManifestPart,
    PartInfo,
    StagedWrite,
    Staging,
    StagingLimits,
    Upload,
    names,
)
from penstock.values.policy import Overflow

if TYPE_CHECKING:
    from penstock.log.staged_part import Turn

log = logging.getLogger("penstock.broker")

RETRY_SECONDS = 1.0
TIDY_SECONDS = 60.0
TIDY_INTERVAL = 600 * SECOND
MAX_QUERIES = 100_000
MAX_PUBLISHED = 10_000
_LOCKS = 64


class Writer(NamedTuple):
    """Who commits."""

    token_id: str
    may_publish: Callable[[str], bool]


ANY_WRITER = Writer("", lambda _: True)
"""The caller where no tokens are asked for."""


class CommitResult(NamedTuple):
    """What a commit did."""

    rows: int
    is_repeat: bool


class Writes:
    """All writes of a broker. Names of writes and queries are `NAME`, or `PROJECT/NAME`. Close it before the broker.

    Without a data directory what is staged lives in a temporary one, as long as this does.
    """

    def __init__(self, broker: Broker, *, limits: StagingLimits | None = None) -> None:
        self._broker = broker
        path: str | None = getattr(broker.journal, "path", None) if broker.is_durable else None
        self._temporary = Path(tempfile.gettempdir(), f"penstock-{secrets.token_hex(8)}") if path is None else None
        self.staging = Staging(self._temporary or Path(path or "") / "staged", limits)
        # One query has one of them, so that its commits come one after the other; that others wait too now and then is no harm.
        self._locks = [threading.Lock() for _ in range(_LOCKS)]
        self._lock = threading.Lock()
        self._unfinished: set[str] = set()
        """Queries with a batch that was decided and is not published as a whole."""
        self._decided: dict[str, str] = {}
        """The writes of those batches, by query."""
        self._queries: set[str] = set()
        """All queries that are known."""
        self._published: dict[str, Ledger] = {}
        """Writes without a query that were published last, oldest first."""
        self._tidy_at = 0
        self._bell = threading.Event()
        self._is_closing = False
        self._recover()
        self._thread = threading.Thread(target=self._run, name="penstock-writes", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Leave what is unfinished to the next start. Returns when no commit runs any more. Safe to call twice."""
        self._is_closing = True
        self._bell.set()
        self._thread.join()
        for lock in self._locks:
            with lock:
                pass  # a commit that ran has seen it, and ended with its slice
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def settle(self, upload: Upload, find: Callable[[str], Stream], *, stream: str | None = None) -> PartInfo:
        """Check a part that has come in as a publish is checked, and keep it until its commit."""
        from penstock.log.arrow_rows import Target, target  # noqa: PLC0415  # pyarrow is an extra

        def seen(found: Stream) -> Target:
            with self._broker.lock:
                return target(found, self._broker.catalog.queues)

        if stream is not None:
            find(stream)
        with self._broker.lock:
            rules = self._broker.rules
        return upload.settle(find, seen, self._broker.clock.now(), stream=stream, rules=rules)

    def commit(
        self,
        write: str,
        parts: Sequence[str],
        *,
        query: str | None = None,
        batch: int = 0,
        find: Callable[[str], Stream],
        writer: Writer = ANY_WRITER,
    ) -> CommitResult:
        """Publish the parts of a write, once for each (query, batch). `find` gives the stream of a name, or says why not.

        Without a query the write is known by its own name, and only until something is staged under that name again: nothing of
        it stays on disk.
        """
        key = write_ledger.key_of(query, write)
        with self._lock_of(key):
            if self._is_closing:
                raise BrokerClosed
            _check_writer(self._ledger(key), writer, query or write)
            while (what := self._verdict(key, write, batch)) is Verdict.FINISH_FIRST:
                self._finish(key)
            if what is Verdict.REPEAT:
                last = self._ledger(key) or self._published.get(key)
                _check_writer(last, writer, query or write)
                self.abort(write)
                return CommitResult(last.rows if last is not None and last.batch == batch else 0, is_repeat=True)
            decided = self._decide(write, parts, key, batch, find=find, owner=writer.token_id)
            if decided.rows:
                self._finish(key)
            else:
                self._ended(key)
            return CommitResult(decided.rows, is_repeat=False)

    def abort(self, write: str) -> None:
        """Forget what was staged, unless it is being published. Safe to call twice."""
        self.staging.abort(write)

    def listed(self) -> list[tuple[StagedWrite, bool]]:
        """All writes, each with whether it is being published."""
        return [(write, self.staging.is_claimed(write.write)) for write in self.staging.listed()]

    def tidy(self) -> None:
        """Forget writes that nobody commits, and queries that have been silent for very long."""
        now = self._broker.clock.now()
        for write in self.staging.expired(now):
            log.info("the staged write %r was not committed in time, and is removed", write)
            self.abort(write)
        for query in [*self._queries]:
            lock = self._lock_of(query)
            # Who commits now is not silent; whoever else holds the lock is gone the next time.
            if lock.acquire(blocking=False):
                try:
                    known = self._ledger(query)
                    if known is not None and write_ledger.is_forgotten(query, known, now):
                        self._drop(query)
                finally:
                    lock.release()

    # ── deciding ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _decide(
        self, write: str, parts: Sequence[str], query: str, batch: int, *, find: Callable[[str], Stream], owner: str
    ) -> Ledger:
        """Make durable that this write stands for this batch. Until here nothing has happened, after it there is no way back."""
        if not write_ledger.is_unnamed(query) and query not in self._queries and len(self._queries) >= MAX_QUERIES:
            raise ResourceExhausted(f"{len(self._queries)} queries write here, as many as may be", hint="use names that stay")
        # From here on no part enters the write and nobody aborts it: what is checked is what will be published.
        self.staging.claim(write)
        with self._lock:
            self._decided[query] = write
        try:
            rows, streams = self._plan(write, parts, find)
        except BaseException:
            self._ended(query, keep=True)
            raise
        with self._lock:
            self._unfinished.add(query)
            self._queries.add(query)
        decided = Ledger(write_ledger.VERSION, batch, self._broker.clock.now(), write, rows, owner=owner, streams=streams)
        try:
            self._keep(PREFIX + query, write_ledger.encode(decided))
        except PenstockError:
            if self._ledger(query) != decided:
                self._ended(query, keep=True)
            raise  # and when it is known but not on disk yet, it is finished as soon as the disk takes it
        return decided

    def _plan(self, write: str, parts: Sequence[str], find: Callable[[str], Stream]) -> tuple[int, tuple[str, ...]]:
        """Check what a commit asks for, and write down where its rows are and go; returns how many they are, and some streams."""
        staged = self.staging.parts(write)
        for part in parts:
            if part not in staged or not self.staging.is_whole(write, part):
                raise PartNotFound(f"{part} of write {write}")
        if len(set(parts)) != len(parts):
            raise InvalidArgument.of("parts", [*parts], "each part once")
        chosen = {part: staged[part] for part in parts}
        streams = {name: find(name) for name in names(chosen)}
        self._check_room(chosen, streams)
        rows = sum(info.rows for info in chosen.values())
        if rows:
            # Where pyarrow is missing nothing could be published, so nothing may be decided.
            import penstock.log.staged_part  # noqa: F401, PLC0415  # pyarrow is an extra

            order = [ManifestPart(part, info.rows, info.stream) for part, info in chosen.items()]
            self.staging.decide(write, Manifest(order, {name: stream.number for name, stream in streams.items()}))
        return rows, tuple(sorted(streams)[: write_ledger.MAX_STREAMS])

    def _check_room(self, parts: dict[str, PartInfo], streams: dict[str, Stream]) -> None:
        """Refuse what would be stuck half-way: a queue that refuses messages must have room for all of them."""
        with self._broker.lock:
            for name, stream in streams.items():
                count = sum(info.streams.get(name, 0) for info in parts.values())
                for queue in stream.queues if stream.may_refuse else ():
                    if queue.policy.overflow == Overflow.REJECT and not queue.detached and queue.room() < count:
                        is_work_queue = queue.number == stream.number
                        raise QueueFull(queue.name) if is_work_queue else SubscriptionFull(queue.name, stream.name)

    # ── publishing ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _finish(self, query: str) -> None:
        """Publish what is left of a batch that was decided. Call it with the query's lock held."""
        while True:
            try:
                self._publish_rest(query)
            except TopicNotFound:
                continue  # it was deleted just now: the next try does without
            self._ended(query)
            return

    def _publish_rest(self, query: str) -> None:
        from penstock.log import staged_part  # noqa: PLC0415  # pyarrow is an extra
        from penstock.log.arrow_rows import target  # noqa: PLC0415

        state = self._ledger(query)
        assert state is not None, "it was decided"
        write, clock = state.directory, self._broker.clock
        manifest = self.staging.manifest(write)
        with self._broker.lock:
            streams, queues = self._broker.catalog.streams, self._broker.catalog.queues
            targets = {
                name: target(streams[number], queues) if number in streams else None for name, number in manifest.streams.items()
            }
        parts = [(self.staging.path(write, part.part), part.rows, part.stream) for part in manifest.parts]
        coming: _Publish | None = None
        skipped = state.turns
        try:
            # While one slice is on its way to the disk, the next one is made.
            for until, turns in staged_part.slices(parts, targets, state.done, state.until, clock.now):
                if self._is_closing:
                    raise BrokerClosed
                for number, turn in enumerate(turns, 1):
                    if number > skipped:
                        _wait(coming)
                        state = state.passed(until, 0 if number == len(turns) else number, clock.now())
                        coming = self._publish(turn, DocumentKept(PREFIX + query, state.at, write_ledger.encode(state)))
                skipped = 0
        finally:
            # Whatever went wrong: until this one is on disk or refused, its mark does not say whether its rows are published.
            _wait(coming)
        if not state.is_finished:
            raise CorruptLog(str(self.staging.root), f"the staged write {write!r}", f"{state.rows - state.done} rows are missing")

    def _publish(self, turn: Turn | None, mark: DocumentKept) -> _Publish | None:
        """Publish what goes to one stream, with the mark; returns at once where the disk is waited for."""
        broker = self._broker
        if turn is None:
            log.warning("rows of a staged write are left out: their stream was deleted after the commit was decided")
            self._keep(mark.name, mark.body)
            return None
        target, batch = turn

        def find(catalog: Catalog, _: str) -> Stream:
            if catalog.streams.get(target.stream.number) is not target.stream:
                raise TopicNotFound(target.stream.name)
            return target.stream

        if broker.is_durable:
            publish = _Publish()
            broker.hand_in(find, "", batch, publish.done, mark)
            return publish
        broker.publish(find, "", batch, broker.clock.now())
        self._keep(mark.name, mark.body)
        return None

    def _keep(self, name: str, body: bytes) -> None:
        self._broker.change(lambda catalog, now: catalog.keep_document(name, body, now))

    def _drop(self, query: str) -> None:
        self._broker.change(lambda catalog, now: catalog.drop_document(PREFIX + query, now))
        self._queries.discard(query)

    def _verdict(self, key: str, write: str, batch: int) -> Verdict:
        """What to do about a commit."""
        known = self._ledger(key)
        if not write_ledger.is_unnamed(key):
            return verdict(known, batch)
        is_staged = bool(self.staging.parts(write))
        return write_ledger.verdict_of_write(known, is_staged=is_staged, is_published=key in self._published)

    def _ended(self, query: str, *, keep: bool = False) -> None:
        """A batch is published as a whole, or was not decided after all."""
        with self._lock:
            self._unfinished.discard(query)
            write = self._decided.pop(query, None)
        if write is not None:
            (self.staging.release if keep else self.staging.forget)(write)
        if write_ledger.is_unnamed(query) and not keep and (known := self._ledger(query)) is not None:
            self._remember(query, known)
            with suppress(JournalUnavailable):  # it is published whatever the disk says now; `tidy` tries again
                self._drop(query)

    def _remember(self, key: str, known: Ledger) -> None:
        """Keep in memory that a write without a query was published: its caller may not have heard, and ask again."""
        with self._lock:
            # Thousands of writes may go to the same streams: their names are kept once.
            self._published[key] = msgspec.structs.replace(known, streams=tuple(map(sys.intern, known.streams)))
            while len(self._published) > MAX_PUBLISHED:
                del self._published[next(iter(self._published))]

    # ── by itself ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _recover(self) -> None:
        """Find what was decided before, and remove what was published."""
        with self._broker.lock:
            documents = dict(self._broker.catalog.documents)
        for name, body in documents.items():
            if name.startswith(PREFIX):
                query, known = name.removeprefix(PREFIX), write_ledger.decode(name, body)
                self._queries.add(query)
                if known.is_finished:
                    self.staging.forget(known.directory)
                    if write_ledger.is_unnamed(query):
                        self._remember(query, known)
                else:
                    self.staging.claim(known.directory)
                    self._unfinished.add(query)
                    self._decided[query] = known.directory

    def _run(self) -> None:
        """Finish what a crash or a full disk left, and tidy up, until it is closed."""
        told: dict[str, str] = {}
        while not self._is_closing:
            self._bell.clear()
            self._tidy_in_time()
            with self._lock:
                waiting = [*self._unfinished]
            for query in waiting:
                try:
                    with self._lock_of(query):
                        state = self._ledger(query)
                        if state is not None and not state.is_finished and not self._is_closing:
                            self._finish(query)
                except BrokerClosed:
                    return
                except Exception as error:  # noqa: BLE001  # the top of the thread, which has other queries to finish
                    if told.get(query) != str(error):
                        told[query] = str(error)
                        log.error("the batch of query %r that was decided waits: %s", query, error)
                else:
                    told.pop(query, None)
            self._bell.wait(RETRY_SECONDS if waiting else TIDY_SECONDS)

    def _tidy_in_time(self) -> None:
        now = self._broker.clock.now()
        if now >= self._tidy_at:
            self._tidy_at = now + TIDY_INTERVAL
            try:
                self.tidy()
            except (PenstockError, OSError) as error:
                log.error("staged writes could not be tidied up, will try again: %s", error)

    def _ledger(self, query: str) -> Ledger | None:
        with self._broker.lock:
            body = self._broker.catalog.documents.get(PREFIX + query)
        return None if body is None else write_ledger.decode(PREFIX + query, body)

    def _lock_of(self, query: str) -> threading.Lock:
        return self._locks[hash(query) % _LOCKS]


class _Publish:
    """A publish on its way to the disk."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._error: PenstockError | None = None

    def done(self, ticket: Ticket) -> None:
        """Called by the writer."""
        self._error = ticket.error
        self._event.set()

    def wait(self) -> None:
        """Return when it is on disk, or raise why not."""
        self._event.wait()
        if self._error is not None:
            raise self._error


def _wait(coming: _Publish | None) -> None:
    if coming is not None:
        coming.wait()


def _check_writer(known: Ledger | None, writer: Writer, name: str) -> None:
    """Refuse those who may neither continue nor repeat what is known."""
    if known is not None and not write_ledger.may_continue(known, writer.token_id, writer.may_publish):
        raise PermissionDenied("publish", f"the streams of query {name.rpartition('/')[2]}")
