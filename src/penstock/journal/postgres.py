"""The journal of a broker on PostgreSQL: one log of a database, owned by one node at a time.

    PostgresJournal(address, node=…, advertised=…, on_lost=…)   become the owner; LogInUse if another node is
    journal.owner() · PostgresReader.owner()                    the owner of the log, since when, and when it was last alive
    journal.abandon()                                           stop now: a hanging commit also ends, with an unknown outcome
    evict(address, seconds)                                     end the session of an owner that has been silent for `seconds`
    ReadOnlyPostgres(address)                                   read without owning, also on a hot standby

*Ownership.* The session that writes holds an advisory lock on the log, which shows others that it has an owner. Safety does not
depend on it: a new owner increments `logs.epoch`, and every commit checks in its own statement, with FOR SHARE, that the epoch is
unchanged. So a takeover waits for the commit in flight, and the old owner writes nothing after it. An owner that finds another
epoch has lost the log permanently: `on_lost` is called once, from any thread, and must return at once; every later write raises
LogLost. To own the log again, open another journal.

*Heartbeat.* Once a second, `beat` and `confirmed` are updated on the same connection. The server ends the session after
`IDLE_SECONDS` without a statement, so a suspended process loses its session, and with it the lock.

*Outcomes of a commit.* It is stored; or JournalUnavailable, and nothing of it is stored; or JournalUncertain: the connection was
lost or PostgreSQL sent a warning while the statement ran. `is_stored` then looks for the commit under its epoch, after the old
backend has ended. Statements are never cancelled: a cancelled wait for the standby looks like success.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from penstock.clock import monotonic
from penstock.durations import SECOND
from penstock.errors import (
    BrokerClosed,
    FailedPrecondition,
    JournalUnavailable,
    JournalUncertain,
    LogInUse,
    LogLost,
    PenstockError,
    Unavailable,
)
from penstock.ids import MAX_OFFSET
from penstock.journal.core import checkpoint as image
from penstock.journal.core import chunk as chunks
from penstock.journal.core import events
from penstock.journal.core.checkpoint import State
from penstock.journal.journal import Commit
from penstock.journal.postgres_connection import (
    LOCK_CLASS,
    Address,
    Refused,
    Session,
    Unsure,
    Value,
    bytea_array,
    check_direct,
    check_server,
    make_tables,
    number_array,
)
from penstock.journal.postgres_reader import PostgresReader
from penstock.journal.postgres_staged import PostgresStaged
from penstock.journal.sql_reader import STREAM_BITS, Row, checksum, removed_until

log = logging.getLogger("penstock.broker")

BEAT_SECONDS = 1.0
LOCK_SECONDS = 1
"""How long the lock of an owner that has just ended is waited for: PostgreSQL frees it a moment later."""
IDLE_SECONDS = 5
"""Seconds without a statement after which the server ends the session of an owner."""
PATIENCE = 5 * SECOND
"""How long a statement may wait before that is reported as a problem."""
PART_BYTES = 64 * 1024 * 1024
_UNIQUE_VIOLATION = "23505"
_HINT = "make PostgreSQL reachable, and give it room; the broker retries by itself"

_FENCE = "SELECT log FROM logs WHERE log = $1::int AND epoch = $2::bigint FOR SHARE"
_COMMIT = f"""
WITH own AS MATERIALIZED ({_FENCE}),
e AS (
    INSERT INTO events (log, first, count, at, epoch, commit_id, crc, body)
    SELECT log, $3::bigint, $4::int, $5::bigint, $2::bigint, $6::bigint, $7::bigint, $8::bytea FROM own WHERE $4::int > 0
    RETURNING 1
),
c AS (
    INSERT INTO chunks (log, position, count, size, published_at, plain, keyed, event, crc, body)
    SELECT log, position, count, size, published_at, plain, keyed, $3::bigint, crc, body FROM own, unnest(
        $9::bigint[], $10::int[], $11::bigint[], $12::bigint[], $13::smallint[], $14::smallint[], $15::bigint[], $16::bytea[]
    ) AS u(position, count, size, published_at, plain, keyed, crc, body)
    RETURNING 1
)
SELECT (SELECT count(*) FROM own), (SELECT count(*) FROM e), (SELECT count(*) FROM c)
"""
_BEAT = """
UPDATE logs SET beat = clock_timestamp(), confirmed = $3::bigint, pid = $4::int, backend_start = $5::text::timestamptz
WHERE log = $1::int AND epoch = $2::bigint RETURNING 1
"""
_ACQUIRE = """
INSERT INTO logs (log, epoch, node, address, version, since, beat, pid, backend_start, confirmed)
VALUES ($1::int, 1, $2, $3, $4, clock_timestamp(), clock_timestamp(), $5::int, $6::text::timestamptz, 0)
ON CONFLICT (log) DO UPDATE SET epoch = logs.epoch + 1, node = excluded.node, address = excluded.address,
    version = excluded.version, since = excluded.since, beat = excluded.beat, pid = excluded.pid,
    backend_start = excluded.backend_start
RETURNING epoch
"""
_CHUNK_INSERT = """
INSERT INTO chunks (log, position, count, size, published_at, plain, keyed, crc, body, event)
SELECT $1::int, u.*, 0 FROM unnest(
    $2::bigint[], $3::int[], $4::bigint[], $5::bigint[], $6::smallint[], $7::smallint[], $8::bigint[], $9::bytea[]
) AS u
"""
_EVENT_INSERT = """
INSERT INTO events (log, first, count, at, crc, body, epoch, commit_id)
SELECT $1::int, u.*, 0, 0 FROM unnest($2::bigint[], $3::int[], $4::bigint[], $5::bigint[], $6::bytea[]) AS u
"""
UNFINISHED = "unfinished_copy"
"""The name in `meta` that marks a log into which another one is being copied."""
_TERMINATE = """
SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE pid = $1::int AND backend_start = $2::text::timestamptz
"""


class _Sent(NamedTuple):
    """A commit that was sent, and whose answer has not arrived."""

    first: int
    events: int
    commit_id: int
    position: int | None
    """The position of its first chunk."""


class PostgresJournal(PostgresReader):
    """A log in PostgreSQL, owned by this process. See the docstring of the module."""

    def __init__(
        self,
        address: str,
        *,
        node: str = "",
        advertised: str = "",
        version: str = "",
        number: int = 1,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(Address(address), number)
        self._names = node or socket.gethostname(), advertised, version
        self._on_lost = on_lost
        self.epoch = 0
        """The epoch of this owner. All its commits have it."""
        self._pen = threading.RLock()
        """Held by the thread that writes."""
        self._session: Session | None = None
        self._backend = 0, ""
        """The process id and the start time of the last session, which may outlive its connection."""
        self._sent: _Sent | None = None
        """A commit with an unknown outcome."""
        self._commits = 0
        self._first_event = self._next_event = 0
        self._held_event = MAX_OFFSET
        self._lost: LogLost | None = None
        self._started_at: int | None = None
        """When the running statement was sent."""
        self.alive_at = monotonic()
        """When the database last answered. An owner that has had no answer for long should stop delivering."""
        self._trouble: str | None = None
        self._stop = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="penstock-heartbeat", daemon=True)
        try:
            self._acquire()
        except BaseException:
            self.close()
            raise
        self._heart.start()

    # ── the port ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def append(self, commit: Commit) -> None:
        rows: list[tuple[int | None, ...]] = []
        bodies: list[bytes] = []
        for append in commit.appends:
            batch = append.batch
            body = chunks.encode(chunks.pack(batch.messages))
            position = append.stream << STREAM_BITS | append.first
            header = (position, len(batch.messages), batch.size, append.at, batch.priority, int(batch.keyed))
            rows.append((*header, checksum(header, body)))
            bodies.append(body)
        count = sum([event.count for event in commit.events])
        record = events.encode(commit.events) if count else b""
        with self._pen:
            if not rows and not count:
                self._write_beat()
                return
            self._commits += 1
            first = self._next_event
            mark = (first, count, commit.at)
            columns = [number_array(column) for column in zip(*rows, strict=True)] or ["{}"] * 7
            sent = _Sent(first, count, self._commits, rows[0][0] if rows else None)
            values: tuple[Value, ...] = (*mark, self._commits, checksum(mark, record), record, *columns, bytea_array(bodies))
            for is_last in (False, True):
                session = self._ready()
                try:
                    [found] = self._run(session, _COMMIT, self.number, self.epoch, *values)
                except Unsure as error:
                    self._sent = sent
                    if self._is_found(str(error)):
                        return
                    if is_last:
                        raise self._unavailable(str(error)) from error
                    continue  # the session had ended before the statement arrived: retry instead of an error
                if found[0] != "1":
                    raise self._lose("its epoch is over")
                assert found == ("1", str(int(count > 0)), str(len(rows))), f"the commit wrote {found}"
                self._next_event += count
                return

    def is_stored(self) -> bool:
        with self._pen:
            if self._lost is not None:
                raise self._lost
            return self._is_found("the database has not answered yet")

    def checkpoint(self, state: State) -> None:
        body = image.encode(state)
        with self._writing() as session:
            session.execute("DELETE FROM checkpoints WHERE log = $1::int", self.number)
            self._insert_checkpoint(session, self._next_event, body)
            session.execute("UPDATE logs SET confirmed = $2::bigint WHERE log = $1::int", self.number, self._next_event)

    def _insert_checkpoint(self, session: Session, since: int, body: bytes) -> None:
        pieces = [body[at : at + PART_BYTES] for at in range(0, len(body), PART_BYTES)]
        query = "INSERT INTO checkpoints VALUES ($1::int, $2::int, $3::int, $4::bigint, $5::bigint, $6::bytea)"
        for part, piece in enumerate(pieces):
            session.execute(query, self.number, part, len(pieces), since, checksum((since,), body), piece)

    def event_range(self) -> tuple[int, int]:
        return self._first_event, self._next_event

    def trim(self, stream: int, chunks: list[int]) -> None:
        if not chunks:
            return
        base = stream << STREAM_BITS
        with self._writing() as session:
            # Up to the end of the last of them, the stream is not complete any more.
            last = "SELECT count FROM chunks WHERE log = $1::int AND position = $2::bigint"
            rows = session.execute(last, self.number, base | max(chunks))
            removed = max(chunks) + (int(rows[0][0] or 0) if rows else 0)
            positions = number_array([base | first for first in chunks])
            session.execute("DELETE FROM chunks WHERE log = $1::int AND position = ANY($2::bigint[])", self.number, positions)
            name = removed_until(stream)
            within = "log = $1::int AND position >= $2::bigint AND position < $3::bigint"
            if session.execute(f"SELECT 1 FROM chunks WHERE {within} LIMIT 1", self.number, base, base + MAX_OFFSET):
                query = (
                    "INSERT INTO meta VALUES ($1::int, $2, $3::bigint)"
                    " ON CONFLICT (log, name) DO UPDATE SET value = greatest(meta.value, excluded.value)"
                )
                session.execute(query, self.number, name, removed)
            else:
                session.execute("DELETE FROM meta WHERE log = $1::int AND name = $2", self.number, name)

    def trim_events(self, before: int) -> None:
        known = self._first_event
        query = (
            "DELETE FROM events WHERE log = $1::int AND at < $2::bigint AND first + count <= $3::bigint"
            " AND first + count <= (SELECT min(events) FROM checkpoints WHERE log = $1::int)"
            " AND first < (SELECT max(first) FROM events WHERE log = $1::int) RETURNING 1"
        )
        try:
            with self._writing() as session:
                if session.execute(query, self.number, before, self._held_event):
                    [(oldest,)] = session.execute("SELECT min(first) FROM events WHERE log = $1::int", self.number)
                    # Readers must know it before they can see the gap.
                    self._first_event = int(oldest or 0)
                    query = (
                        "INSERT INTO meta VALUES ($1::int, 'first_event', $2::bigint)"
                        " ON CONFLICT (log, name) DO UPDATE SET value = excluded.value"
                    )
                    session.execute(query, self.number, self._first_event)
        except PenstockError:
            self._first_event = known
            raise

    def hold_events(self, start: int | None) -> None:
        self._held_event = MAX_OFFSET if start is None else start

    def write_file(self, name: str, content: bytes) -> None:
        """Store a file beside the log; on disk, and on the standby, on return."""
        query = (
            "INSERT INTO files VALUES ($1::int, $2, 1, $3::bytea)"
            " ON CONFLICT (log, name) DO UPDATE SET body = excluded.body, changed = files.changed + 1"
        )
        with self._writing() as session:
            session.execute(query, self.number, name, content)

    def take_rows(self, chunks: Iterable[Row], events: Iterable[Row]) -> None:
        """Store rows of another log unchanged."""
        with self._writing() as session:
            # Until `take_state`, the incomplete log cannot be opened.
            session.execute("INSERT INTO meta VALUES ($1::int, $2, 1) ON CONFLICT DO NOTHING", self.number, UNFINISHED)
            for query, rows in ((_CHUNK_INSERT, list(chunks)), (_EVENT_INSERT, list(events))):
                if rows:
                    *numbers, bodies = zip(*rows, strict=True)
                    session.execute(query, self.number, *map(number_array, numbers), bytea_array(bodies))

    def take_state(self, ends: Mapping[str, int], since: int, checkpoint: bytes | None) -> None:
        """Finish a log that was copied: store where it begins, and its checkpoint."""
        with self._writing() as session:
            for name, value in ends.items():
                session.execute("INSERT INTO meta VALUES ($1::int, $2, $3::bigint)", self.number, name, value)
            if checkpoint is not None:
                self._insert_checkpoint(session, since, checkpoint)
            session.execute("DELETE FROM meta WHERE log = $1::int AND name = $2", self.number, UNFINISHED)
        with self._reading("the ends of the log") as reader, self.snapshot(reader):
            self._first_event, self._next_event = self._stored_ends(reader)
        self._write_beat()

    def remove_all(self) -> None:
        """Remove everything that was copied, after an error."""
        with self._writing() as session:
            for table in ("chunks", "events", "meta", "checkpoints", "files", "staged"):
                session.execute(f"DELETE FROM {table} WHERE log = $1::int", self.number)

    @property
    def staged(self) -> PostgresStaged:
        """The staged files of Spark writes."""
        return PostgresStaged(self)

    @property
    def trouble(self) -> str | None:
        """The problem of the database; None if there is none."""
        started_at = self._started_at
        if started_at is not None and monotonic() - started_at > PATIENCE:
            seconds = (monotonic() - started_at) // SECOND
            return f"PostgreSQL has not answered for {seconds} s; perhaps its synchronous standby is missing"
        return self._lost.problem if self._lost is not None else self._trouble

    def abandon(self) -> None:
        """Give up the log at once: a waiting statement ends with an unknown outcome, and every later one is refused."""
        if self._lost is None:
            self._lost = LogLost(self.path, "this node has given up the log")
        session = self._session
        if session is not None:
            session.cut()

    def close(self) -> None:
        self._stop.set()
        if self._heart.is_alive() and threading.current_thread() is not self._heart:
            self._heart.join()
        super().close()
        with self._pen:
            session, self._session = self._session, None
            if session is not None:
                session.close()

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _acquire(self) -> None:
        """Become the owner, whatever the previous owner does; LogInUse while its session lives."""
        session = self._connect(is_first=True)
        try:
            deadline = monotonic() + LOCK_SECONDS * SECOND
            while not _has_lock(session, self.number):
                if monotonic() >= deadline:
                    owner = self.owner()
                    since = "" if owner is None else f"{owner.since:%Y-%m-%d %H:%M:%S %Z}"
                    raise LogInUse(self.path, "another node" if owner is None else f"node {owner.node!r}, since {since}")
                self._stop.wait(0.05)
            [(epoch,)] = self._run(session, _ACQUIRE, self.number, *self._names, session.pid, session.started_at)
        except (Unsure, Refused) as error:
            raise Unavailable(f"cannot take over the log in {self.path}: {error}", hint=_HINT) from error
        self.epoch = int(epoch or 0)
        with self._reading("opening") as reader, self.snapshot(reader):
            self._first_event, self._next_event = self._stored_ends(reader)
            query = f"SELECT 1 FROM meta WHERE {self._of_log}name = ?"
            is_unfinished = reader.execute(query, (UNFINISHED,)).fetchone() is not None
        if is_unfinished:
            hint = "a copy into it was interrupted: drop the schema penstock, or the database, and copy again"
            raise FailedPrecondition(f"the log in {self.path} is not complete", hint=hint)
        self._check_mark()

    def _connect(self, *, is_first: bool = False) -> Session:
        """Open the session that writes."""
        connection = self.address.connect("owner", target_session_attrs="read-write")
        try:
            session = Session(connection)
            if is_first:
                check_server(self.path, connection)
                check_direct(self.address, session, connection.info.backend_pid)
                make_tables(self.path, session)
            session.script(
                f"SET idle_session_timeout = '{IDLE_SECONDS}s'; SET idle_in_transaction_session_timeout = '2s';"
                " SET statement_timeout = 0; SET lock_timeout = 0;"
            )
            [(level,)] = session.execute("SHOW synchronous_commit", keep=False)
            if level in {"off", "local", "remote_write"}:
                session.script("SET synchronous_commit = on")
        except (Unsure, Refused) as error:
            connection.close()
            raise Unavailable(f"cannot prepare the session at {self.path}: {error}", hint=_HINT) from error
        except BaseException:
            connection.close()
            raise
        self._session, self._backend = session, (session.pid, session.started_at)
        return session

    def _ready(self) -> Session:
        """The session to write with; a new one if the last was lost. Call it with the pen held.

        JournalUnavailable if none can be opened, LogLost if another node owns the log.
        """
        if not self._is_open:
            raise BrokerClosed
        if self._lost is not None:
            raise self._lost
        if self._session is not None and not self._session.is_broken:
            return self._session
        try:
            self._revive()
        except (Unsure, Refused, Unavailable) as error:
            if isinstance(error, LogLost):
                raise
            raise self._unavailable(str(error)) from error
        assert self._session is not None, "it was opened a moment ago"
        return self._session

    def _revive(self) -> None:
        """Continue as the same owner on a new connection. The old backend must have ended, and the epoch must be unchanged."""
        old = self._backend
        if self._session is not None:
            self._session.close()
            self._session = None
        session = self._connect()
        try:
            while session.execute(_TERMINATE, *old, keep=False):
                if self._stop.is_set():
                    raise BrokerClosed
            if not _has_lock(session, self.number):
                rows = session.execute("SELECT epoch FROM logs WHERE log = $1::int", self.number, keep=False)
                if rows != [(str(self.epoch),)]:
                    raise self._lose("another node has taken it over")
                raise Unsure("another node is taking over the log")
            self._execute_beat(session)
        except BaseException:
            session.close()
            self._session, self._backend = None, old
            raise
        log.warning("connected to PostgreSQL again, as the owner of the same log")

    def _is_found(self, problem: str) -> bool:
        """Whether the commit with the unknown outcome is durably stored. Call it with the pen held."""
        sent = self._sent
        assert sent is not None, "there is a commit with an unknown outcome"
        if self._lost is not None:
            raise self._uncertain(self._lost.problem)
        try:
            if self._session is None or self._session.is_broken:
                self._revive()
            assert self._session is not None, "it was opened a moment ago"
            # Once this is replicated, everything before it is replicated too.
            self._execute_beat(self._session)
            if sent.events:
                found = self._session.execute(
                    "SELECT 1 FROM events WHERE log = $1::int AND first = $2::bigint AND epoch = $3::bigint"
                    " AND commit_id = $4::bigint",
                    *(self.number, sent.first, self.epoch, sent.commit_id),
                )
            else:
                query = "SELECT 1 FROM chunks WHERE log = $1::int AND position = $2::bigint"
                found = self._session.execute(query, self.number, sent.position)
        except LogLost as error:
            raise self._uncertain(error.problem) from error
        except (Unsure, Refused, Unavailable) as error:
            self._trouble = str(error)
            raise self._uncertain(f"{problem}; {error}") from error
        self._sent = None
        if found:
            self._next_event += sent.events
        return bool(found)

    def _execute_beat(self, session: Session) -> None:
        """Update `beat` and `confirmed` in a separate commit; LogLost if the epoch has changed."""
        values = (self.number, self.epoch, self._next_event, session.pid, session.started_at)
        if not self._run(session, _BEAT, *values):
            raise self._lose("its epoch is over")
        self._trouble = None

    def _write_beat(self) -> None:
        """Like `_execute_beat`, with the errors of a write."""
        try:
            self._execute_beat(self._ready())
        except (Unsure, Refused) as error:
            raise self._unavailable(str(error)) from error

    @contextmanager
    def _writing(self) -> Iterator[Session]:
        """A transaction of several statements under our epoch. If its outcome is unknown, the caller repeats it."""
        with self._pen:
            session = self._ready()
            self._started_at = monotonic()
            try:
                with session.transaction():
                    if not session.execute(_FENCE, self.number, self.epoch):
                        raise self._lose("its epoch is over")
                    yield session
            except (Unsure, Refused) as error:
                raise self._unavailable(str(error)) from error
            finally:
                self._started_at = None
            self.alive_at = monotonic()

    def _run(self, session: Session, query: str, *values: Value) -> list[tuple[str | None, ...]]:
        """Execute a statement that waits for the standby."""
        self._started_at = monotonic()
        try:
            rows = session.execute(query, *values)
        except Refused as error:
            if error.state == _UNIQUE_VIOLATION:
                raise self._lose("another node has written to it") from error
            raise self._unavailable(str(error)) from error
        finally:
            self._started_at = None
        self.alive_at = monotonic()
        return rows

    def _beat(self) -> None:
        """Show that this owner is alive, and notice if it has lost the log."""
        reported = False
        while not self._stop.wait(BEAT_SECONDS):
            if not self._pen.acquire(blocking=False):
                # A commit is under way, which shows the same.
                trouble = self.trouble
                if trouble is not None and not reported:
                    log.error("%s", trouble)
                reported = trouble is not None
                continue
            try:
                if self._lost is not None:
                    return
                if self._sent is None:  # otherwise the writer is about to look for it
                    self._write_beat()
            except PenstockError as error:
                self._trouble = getattr(error, "problem", str(error))
            finally:
                self._pen.release()

    def _lose(self, problem: str) -> LogLost:
        """Record that another node owns the log; returns the error to raise."""
        if self._lost is None:
            self._lost = LogLost(self.path, f"this node has lost the log: {problem}")
            log.error("%s", self._lost)
            self._on_lost()
        return self._lost

    def _unavailable(self, problem: str) -> JournalUnavailable:
        return JournalUnavailable(self.path, problem, hint=_HINT)

    def _uncertain(self, problem: str) -> JournalUncertain:
        return JournalUncertain(self.path, problem)


def evict(address: str, seconds: float = IDLE_SECONDS, *, number: int = 1) -> bool:
    """End the session of an owner that has been silent for `seconds`; True if there was one. Then its lock is free.

    This is necessary if the owner's commit hangs, waiting for a standby: such a session is not idle.
    """
    reader = PostgresReader(Address(address), number)
    try:
        owner = reader.owner()
        if owner is None or owner.silent_seconds < seconds:
            return False
        session = Session(reader.address.connect("eviction"))
        try:
            return bool(session.execute(_TERMINATE, owner.pid, owner.backend_start.isoformat(), keep=False))
        except (Unsure, Refused) as error:
            raise Unavailable(f"cannot end the session of {owner.node!r}: {error}") from error
        finally:
            session.close()
    finally:
        reader.close()


def _has_lock(session: Session, number: int) -> bool:
    """Take the advisory lock of a log; it is released when the session ends."""
    return session.execute("SELECT pg_try_advisory_lock($1::int, $2::int)::text", LOCK_CLASS, number, keep=False) == [("true",)]
