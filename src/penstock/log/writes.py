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
    """Who commits."""

    token_id: str
    may_publish: Callable[[str], bool]


ANY_WRITER = Writer("", lambda _: True)
"""The caller where no tokens are asked for."""


class CommitResult(NamedTuple):
    """What a commit did."""

    rows: int
    is_repeat: bool
    note: str = ""
    """That of the commit that published the batch."""


class Writes:
    """All writes of a broker. Names of writes and queries are `NAME`, or `PROJECT/NAME`. Close it before the broker.

    Without a data directory what is staged lives in a temporary one, as long as this does; with a journal in a database, which
    keeps a copy, for longer.
    """

    def __init__(self, broker: Broker, *, limits: StagingLimits | None = None) -> None:
        self._broker = broker
        self._ledgers = Documents(broker, PREFIX)
        is_local = broker.is_durable and not isinstance(broker.journal, RemoteJournal)
        path: str | None = getattr(broker.journal, "path", None) if is_local else None
        self._temporary = Path(tempfile.gettempdir(), f"penstock-{secrets.token_hex(8)}") if path is None else None
        copies = broker.journal.staged if isinstance(broker.journal, RemoteJournal) else None
        self.staging = Staging(self._temporary or Path(path or "") / "staged", limits, copies)
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

    def settle(self, upload: Upload, find: Callable[[str], StreamDescription], *, stream: str | None = None) -> PartInfo:
        """Check a part that has come in as a publish is checked, and keep it until its commit."""
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
        """Make durable that this write stands for this batch. Until here nothing has happened, after it there is no way back."""
        if not write_ledger.is_unnamed(query) and query not in self._queries and len(self._queries) >= MAX_QUERIES:
            raise ResourceExhausted(
                f"{len(self._queries)} queries write here, the most that are allowed", hint="use names that stay"
            )
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
        now = self._broker.clock.now()
        decided = Ledger(write_ledger.VERSION, batch, now, write, rows, owner=owner, streams=streams, note=note)
        try:
            self._ledgers.keep(query, write_ledger.encode(decided))
        except PenstockError:
            if self._ledger(query) != decided:
                self._ended(query, keep=True)
            raise  # and when it is known but not on disk yet, it is finished as soon as the disk takes it
        return decided

    def _plan(self, write: str, parts: Sequence[str], find: Callable[[str], StreamDescription]) -> tuple[int, tuple[str, ...]]:
        """Check what a commit asks for, and write down where its rows are and go; returns how many they are, and some streams."""
        staged = self.staging.parts(write)
        for part in parts:
            if part not in staged or not self.staging.is_whole(write, part):
                raise PartNotFound(f"{part} of write {write}")
        if len(set(parts)) != len(parts):
            raise InvalidArgument.of("parts", [*parts], "each part once")
        chosen = {part: staged[part] for part in parts}
        streams = {name: find(name) for name in names(chosen)}
        # A queue that refuses messages must have room for all of them: a commit must not be stuck half-way.
        counts: dict[int, int] = {}
        for name, stream in streams.items():
            count = sum(info.streams.get(name, 0) for info in chosen.values())
            counts[stream.number] = counts.get(stream.number, 0) + count
        check_room(self._broker, counts)
        rows = sum(info.rows for info in chosen.values())
        if rows:
            # Where pyarrow is missing nothing could be published, so nothing may be decided.
            import penstock.log.staged_part  # noqa: F401, PLC0415  # pyarrow is an extra

            order = [ManifestPart(part, info.rows, info.stream) for part, info in chosen.items()]
            self.staging.decide(write, Manifest(order, {name: stream.number for name, stream in streams.items()}))
        return rows, tuple(sorted(streams)[: write_ledger.MAX_STREAMS])

    # ── publishing ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _finish(self, query: str) -> None:
        """Publish what is left of a batch that was decided. Call it with the query's lock held."""
        while True:
            try:
                self._publish_rest(query)
            except (QueueNotFound, TopicNotFound):
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
        found = {name: find_stream(self._broker, number) for name, number in manifest.streams.items()}
        targets = {name: target(self._broker, stream) if stream is not None else None for name, stream in found.items()}
        parts = [(self.staging.local_path(write, part.part), part.rows, part.stream) for part in manifest.parts]
        coming: PendingPublish | None = None
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
                        coming = self._publish(turn, query, write_ledger.encode(state))
                skipped = 0
        finally:
            # Whatever went wrong: until this one is on disk or refused, its mark does not say whether its rows are published.
            _wait(coming)
        if not state.is_finished:
            raise CorruptLog(str(self.staging.root), f"the staged write {write!r}", f"{state.rows - state.done} rows are missing")

    def _publish(self, turn: Turn | None, query: str, ledger: bytes) -> PendingPublish | None:
        """Publish what goes to one stream, with the ledger; returns at once where the disk is waited for."""
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
        body = self._ledgers.get(query)
        return None if body is None else write_ledger.decode(PREFIX + query, body)

    def _lock_of(self, query: str) -> threading.Lock:
        return self._locks[hash(query) % _LOCKS]


def _wait(coming: PendingPublish | None) -> None:
    if coming is not None:
        coming.wait()


def _check_writer(known: Ledger | None, writer: Writer, name: str) -> None:
    """Refuse those who may neither continue nor repeat what is known."""
    if known is not None and not write_ledger.may_continue(known, writer.token_id, writer.may_publish):
        raise PermissionDenied("publish", f"the streams of query {name.rpartition('/')[2]}")
