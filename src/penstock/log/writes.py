"""Atomic writes: rows are staged, a commit is decided, and from then on the broker finishes it by itself.

Why it is exactly once: the decision (which write is this batch of this query) is durable before the first row is published, and
every slice of rows is stored in one journal commit with the ledger that records the progress. So at whatever moment it crashes,
the rows in the log are exactly those that the ledger counts.
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
from penstock.broker.documents import Documents, PendingPublish
from penstock.broker.lookup import check_room, find_stream
from penstock.durations import SECOND
from penstock.errors import (
    BrokerClosed,
    CorruptLog,
    InvalidArgument,
    JournalUnavailable,
    PartNotFound,
    PenstockError,
    PermissionDenied,
    QueueNotFound,
    ResourceExhausted,
    TopicNotFound,
)
from penstock.journal.journal import RemoteJournal
from penstock.log import write_ledger
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
from penstock.log.write_ledger import PREFIX, Ledger, Verdict, verdict
from penstock.values.descriptions import StreamDescription

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
    """The caller of a commit."""

    token_id: str
    may_publish: Callable[[str], bool]


ANY_WRITER = Writer("", lambda _: True)
"""The caller on a server without authentication."""


class CommitResult(NamedTuple):
    """The result of a commit."""

    rows: int
    is_repeat: bool
    note: str = ""
    """The note of the commit that published the batch."""


class Writes:
    """All writes of a broker. Names of writes and queries are `NAME`, or `PROJECT/NAME`. Close it before the broker.

    Without a data directory, staged parts are in a temporary directory until `close`. A journal in a database also has copies
    of them, which survive it.
    """

    def __init__(self, broker: Broker, *, limits: StagingLimits | None = None) -> None:
        self._broker = broker
        self._ledgers = Documents(broker, PREFIX)
        is_local = broker.is_durable and not isinstance(broker.journal, RemoteJournal)
        path: str | None = getattr(broker.journal, "path", None) if is_local else None
        self._temporary = Path(tempfile.gettempdir(), f"penstock-{secrets.token_hex(8)}") if path is None else None
        copies = broker.journal.staged if isinstance(broker.journal, RemoteJournal) else None
        self.staging = Staging(self._temporary or Path(path or "") / "staged", limits, copies)
        # A query always has the same lock, so that its commits run one after the other; sometimes others wait for it too.
        self._locks = [threading.Lock() for _ in range(_LOCKS)]
        self._lock = threading.Lock()
        self._unfinished: set[str] = set()
        """Queries with a batch that was decided and is not completely published."""
        self._decided: dict[str, str] = {}
        """The writes of those batches, by query."""
        self._queries: set[str] = set()
        """All known queries."""
        self._published: dict[str, Ledger] = {}
        """The last published writes without a query, oldest first."""
        self._tidy_at = 0
        self._bell = threading.Event()
        self._is_closing = False
        self._recover()
        self._thread = threading.Thread(target=self._run, name="penstock-writes", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Leave unfinished batches to the next start. Returns when no commit runs any more. Safe to call twice."""
        self._is_closing = True
        self._bell.set()
        self._thread.join()
        for lock in self._locks:
            with lock:
                pass  # a running commit has noticed it, and ended after its slice
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def settle(self, upload: Upload, find: Callable[[str], StreamDescription], *, stream: str | None = None) -> PartInfo:
        """Check an uploaded part like a publish, and keep it until its commit."""
        from penstock.log.arrow_rows import Target, target  # noqa: PLC0415  # pyarrow is an extra

        def find_target(name: str) -> Target:
            return target(self._broker, find(name))

        if stream is not None:
            find(stream)
        return upload.settle(find_target, self._broker.clock.now(), stream=stream, rules=self._broker.rules)

    def commit(
        self,
        write: str,
        parts: Sequence[str],
        *,
        query: str | None = None,
        batch: int = 0,
        find: Callable[[str], StreamDescription],
        writer: Writer = ANY_WRITER,
        note: str = "",
    ) -> CommitResult:
        """Publish the parts of a write, once for each (query, batch). `find` returns the stream of a name, or raises.

        Without a query the write is identified by its own name, until something is staged with that name again. Nothing about it
        stays on disk.
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
                if last is None or last.batch != batch:
                    return CommitResult(0, is_repeat=True)
                return CommitResult(last.rows, is_repeat=True, note=last.note)
            decided = self._decide(write, parts, key, batch, find=find, owner=writer.token_id, note=note)
            if decided.rows:
                self._finish(key)
            else:
                self._ended(key)
            return CommitResult(decided.rows, is_repeat=False, note=note)

    def abort(self, write: str) -> None:
        """Remove a staged write, unless it is being published. Safe to call twice."""
        self.staging.abort(write)

    def listed(self) -> list[tuple[StagedWrite, bool]]:
        """All writes, each with whether it is being published."""
        return [(write, self.staging.is_claimed(write.write)) for write in self.staging.listed()]

    def tidy(self) -> None:
        """Remove writes that were not committed in time, and queries that have been unused for very long."""
        now = self._broker.clock.now()
        for write in self.staging.expired(now):
            log.info("the staged write %r was not committed in time, and is removed", write)
            self.abort(write)
        for query in [*self._queries]:
            lock = self._lock_of(query)
            # A query that commits now is in use; if the lock is held for another one, the next call checks again.
            if lock.acquire(blocking=False):
                try:
                    known = self._ledger(query)
                    if known is not None and write_ledger.is_forgotten(query, known, now):
                        self._drop(query)
                finally:
                    lock.release()

    # ── deciding ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _decide(
        self,
        write: str,
        parts: Sequence[str],
        query: str,
        batch: int,
        *,
        find: Callable[[str], StreamDescription],
        owner: str,
        note: str,
    ) -> Ledger:
        """Store durably that this write is this batch. Before, nothing has happened; afterwards, it cannot be undone."""
        if not write_ledger.is_unnamed(query) and query not in self._queries and len(self._queries) >= MAX_QUERIES:
            raise ResourceExhausted(
                f"{len(self._queries)} queries write to this server, which is the maximum",
                hint="use the same name for every run of a query",
            )
        # From here on no part is added and the write cannot be aborted: the checked rows are those that will be published.
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
        now = self._broker.clock.now()
        decided = Ledger(write_ledger.VERSION, batch, now, write, rows, owner=owner, streams=streams, note=note)
        try:
            self._ledgers.keep(query, write_ledger.encode(decided))
        except PenstockError:
            if self._ledger(query) != decided:
                self._ended(query, keep=True)
            raise  # if it is stored in memory but not on disk yet, it is finished as soon as the disk works again
        return decided

    def _plan(self, write: str, parts: Sequence[str], find: Callable[[str], StreamDescription]) -> tuple[int, tuple[str, ...]]:
        """Check a commit, and store its parts and streams; returns the number of rows, and the names of the first streams."""
        staged = self.staging.parts(write)
        for part in parts:
            if part not in staged or not self.staging.is_whole(write, part):
                raise PartNotFound(f"{part} of write {write}")
        if len(set(parts)) != len(parts):
            raise InvalidArgument.of("parts", [*parts], "each part once")
        chosen = {part: staged[part] for part in parts}
        streams = {name: find(name) for name in names(chosen)}
        # A queue that refuses messages when it is full must have room for all of them: a commit must not stop in the middle.
        counts: dict[int, int] = {}
        for name, stream in streams.items():
            count = sum(info.streams.get(name, 0) for info in chosen.values())
            counts[stream.number] = counts.get(stream.number, 0) + count
        check_room(self._broker, counts)
        rows = sum(info.rows for info in chosen.values())
        if rows:
            # Without pyarrow nothing could be published, so nothing may be decided.
            import penstock.log.staged_part  # noqa: F401, PLC0415  # pyarrow is an extra

            order = [ManifestPart(part, info.rows, info.stream) for part, info in chosen.items()]
            self.staging.decide(write, Manifest(order, {name: stream.number for name, stream in streams.items()}))
        return rows, tuple(sorted(streams)[: write_ledger.MAX_STREAMS])

    # ── publishing ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _finish(self, query: str) -> None:
        """Publish the rest of a decided batch. Call it with the query's lock held."""
        while True:
            try:
                self._publish_rest(query)
            except (QueueNotFound, TopicNotFound):
                continue  # the stream was just deleted: the next attempt leaves it out
            self._ended(query)
            return

    def _publish_rest(self, query: str) -> None:
        from penstock.log import staged_part  # noqa: PLC0415  # pyarrow is an extra
        from penstock.log.arrow_rows import target  # noqa: PLC0415

        state = self._ledger(query)
        assert state is not None, "it was decided"
        write, clock = state.directory, self._broker.clock
        manifest = self.staging.manifest(write)
        found = {name: find_stream(self._broker, number) for name, number in manifest.streams.items()}
        targets = {name: target(self._broker, stream) if stream is not None else None for name, stream in found.items()}
        parts = [(self.staging.local_path(write, part.part), part.rows, part.stream) for part in manifest.parts]
        coming: PendingPublish | None = None
        skipped = state.turns
        try:
            # While one slice is being written to disk, the next one is prepared.
            for until, turns in staged_part.slices(parts, targets, state.done, state.until, clock.now):
                if self._is_closing:
                    raise BrokerClosed
                for number, turn in enumerate(turns, 1):
                    if number > skipped:
                        _wait(coming)
                        state = state.passed(until, 0 if number == len(turns) else number, clock.now())
                        coming = self._publish(turn, query, write_ledger.encode(state))
                skipped = 0
        finally:
            # Also after an error: until this slice is on disk or refused, it is not known whether its rows are published.
            _wait(coming)
        if not state.is_finished:
            raise CorruptLog(str(self.staging.root), f"the staged write {write!r}", f"{state.rows - state.done} rows are missing")

    def _publish(self, turn: Turn | None, query: str, ledger: bytes) -> PendingPublish | None:
        """Publish the messages for one stream, with the ledger. It returns without waiting for the disk."""
        if turn is None:
            log.warning("rows of a staged write are left out: their stream was deleted after the commit was decided")
            self._ledgers.keep(query, ledger)
            return None
        target, batch = turn
        return self._ledgers.publish(target.stream, batch, query, ledger)

    def _drop(self, query: str) -> None:
        self._ledgers.drop(query)
        self._queries.discard(query)

    def _verdict(self, key: str, write: str, batch: int) -> Verdict:
        known = self._ledger(key)
        if not write_ledger.is_unnamed(key):
            return verdict(known, batch)
        is_staged = bool(self.staging.parts(write))
        return write_ledger.verdict_of_write(known, is_staged=is_staged, is_published=key in self._published)

    def _ended(self, query: str, *, keep: bool = False) -> None:
        """Note that a batch is completely published, or was not decided after all."""
        with self._lock:
            self._unfinished.discard(query)
            write = self._decided.pop(query, None)
        if write is not None:
            (self.staging.release if keep else self.staging.forget)(write)
        if write_ledger.is_unnamed(query) and not keep and (known := self._ledger(query)) is not None:
            self._remember(query, known)
            with suppress(JournalUnavailable):  # it is published even if this fails; `tidy` tries again
                self._drop(query)

    def _remember(self, key: str, known: Ledger) -> None:
        """Remember that a write without a query was published: its caller may repeat the call, if the answer was lost."""
        with self._lock:
            # Thousands of writes may go to the same streams: their names are stored once.
            self._published[key] = msgspec.structs.replace(known, streams=tuple(map(sys.intern, known.streams)))
            while len(self._published) > MAX_PUBLISHED:
                del self._published[next(iter(self._published))]

    # ── by itself ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _recover(self) -> None:
        """Load decided batches at a start, and remove the staged parts of published ones."""
        for query, body in self._ledgers.all().items():
            known = write_ledger.decode(PREFIX + query, body)
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
        """Finish batches that a crash or a full disk has interrupted, and tidy up, until `close`."""
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
                except Exception as error:  # noqa: BLE001  # the outermost handler of the thread, which has other queries to finish
                    if told.get(query) != str(error):
                        told[query] = str(error)
                        log.error("cannot finish the decided batch of query %r yet: %s", query, error)
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
        body = self._ledgers.get(query)
        return None if body is None else write_ledger.decode(PREFIX + query, body)

    def _lock_of(self, query: str) -> threading.Lock:
        return self._locks[hash(query) % _LOCKS]


def _wait(coming: PendingPublish | None) -> None:
    if coming is not None:
        coming.wait()


def _check_writer(known: Ledger | None, writer: Writer, name: str) -> None:
    """Refuse callers that may neither continue nor repeat a query."""
    if known is not None and not write_ledger.may_continue(known, writer.token_id, writer.may_publish):
        raise PermissionDenied("publish", f"the streams of query {name.rpartition('/')[2]}")
