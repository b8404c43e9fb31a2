"""Reading a log in PostgreSQL: on the primary for its owner, and on a hot standby, where nothing beyond `confirmed` is read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any, NamedTuple

import psycopg

from penstock.errors import BrokerClosed, CorruptLog, FailedPrecondition
from penstock.journal import sql_reader
from penstock.journal.postgres_connection import SCHEMA, Address, check_format, translated
from penstock.journal.sql_reader import Rows, SqlReader, Verified


class ReaderConnection:
    """A connection for reading."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection

    def execute(self, query: str, parameters: Sequence[object] = ()) -> Rows:
        """Run a query; its parameters are written `?`."""
        return self.connection.execute(query.replace("%", "%%").replace("?", "%s").encode(), parameters, binary=True)

    def close(self) -> None:
        self.connection.close()


class Owner(NamedTuple):
    """Who owns a log, as the database knows it."""

    epoch: int
    node: str
    address: str
    version: str
    since: datetime
    silent_seconds: float
    """How long ago the owner was alive, by the clock of the database."""
    confirmed: int
    """How many events are confirmed at least."""
    pid: int
    backend_start: datetime
    """The backend of the owner's connection."""


class PostgresReader(SqlReader[ReaderConnection]):
    """The reading half of a journal in PostgreSQL."""

    def __init__(self, address: Address, number: int) -> None:
        super().__init__(str(address))
        self.address = address
        self.number = number
        """Which log of the database."""
        self._of_log = self._of_chunks = self._of_events = f"log = {number} AND "

    def after_fork(self) -> None:
        """In a child: the connections are the parent's, and its own would be new ones."""

    def stored_checkpoint(self) -> tuple[int, bytes | None]:
        query = f"SELECT part, parts, events, crc, body FROM checkpoints WHERE log = {self.number} ORDER BY part"
        with self._reading("the checkpoint") as reader:
            rows = list(reader.execute(query))
        if not rows:
            return 0, None
        _, parts, since, crc, _ = rows[0]
        if [row[:4] for row in rows] != [(part, parts, since, crc) for part in range(parts)]:
            raise CorruptLog(self.path, "the checkpoint", f"found {len(rows)} parts that do not belong together")
        body = b"".join(row[4] for row in rows)
        self._verify((since,), body, crc, "the checkpoint")
        return since, body

    def owner(self) -> Owner | None:
        """Who owns the log; None if nobody ever did."""
        columns = "epoch, node, address, version, since, extract(epoch FROM clock_timestamp() - beat)::float8, confirmed, pid"
        with self._reading("the owner") as reader:
            row = reader.execute(f"SELECT {columns}, backend_start FROM logs WHERE log = {self.number}").fetchone()
        return None if row is None else Owner(*row)

    def lag_bytes(self) -> int | None:
        """How far the standby that is furthest behind has still to write, in bytes; None if none is connected."""
        query = "SELECT max(pg_wal_lsn_diff(pg_current_wal_lsn(), flush_lsn))::bigint FROM pg_stat_replication"
        with self._reading("the replication") as reader:
            row = reader.execute(query).fetchone()
        return None if row is None else row[0]

    def read_file(self, name: str) -> bytes | None:
        """What lies beside the log under a name; None if nothing does."""
        with self._reading(name) as reader:
            row = reader.execute(f"SELECT body FROM files WHERE log = {self.number} AND name = ?", (name,)).fetchone()
        return None if row is None else bytes(row[0])

    @contextmanager
    def snapshot(self, reader: ReaderConnection) -> Iterator[None]:
        reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            yield
        except BaseException:
            with suppress(psycopg.Error):
                reader.execute("ROLLBACK")
            raise
        reader.execute("COMMIT")

    def _connect_reader(self) -> ReaderConnection:
        return ReaderConnection(self.address.connect("reader"))

    def _page(self, columns: str, table: str, condition: str, limit: int) -> str:
        key = columns.partition(",")[0]
        size = f"sum(octet_length(body)) OVER (ORDER BY {key} ROWS UNBOUNDED PRECEDING) - octet_length(body) AS before"
        rows = f"SELECT {columns}, {size} FROM {table} WHERE {condition} ORDER BY {key} LIMIT {sql_reader.FETCH_ROWS}"
        return f"SELECT {columns} FROM ({rows}) AS page WHERE before < {limit} ORDER BY {key}"

    def _check_database(self) -> Verified:
        self._check_format()
        return Verified()

    def _check_mark(self) -> None:
        owner, (_, latest) = self.owner(), self.event_range()
        if owner is not None and latest < owner.confirmed:
            problem = f"the log ends at event {latest}, but {owner.confirmed} were confirmed: rows were removed"
            raise CorruptLog(self.path, "the event log", problem)

    def _check_format(self) -> int:
        """Refuse a database without our tables, or with those of a version that cannot be read."""
        with self._reading("opening") as reader:
            row = reader.execute(f"SELECT to_regclass('{SCHEMA}.meta') IS NULL").fetchone()
            if row is not None and row[0]:
                raise FailedPrecondition(
                    f"there is no log in {self.path}",
                    hint="a server makes it: penstock serve --journal, or penstock journal copy",
                )
            row = reader.execute("SELECT value FROM meta WHERE log = 0 AND name = 'format'").fetchone()
        return check_format(self.path, row and row[0])

    @contextmanager
    def _guarded(self, where: str) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise translated(self.path, where, error) from error

    def _give_back(self, reader: ReaderConnection) -> None:
        if not reader.connection.broken and not reader.connection.closed:
            super()._give_back(reader)
            return
        with self._readers_lock:
            # The others lost their server at the same time.
            lost, self._readers = [reader, *self._readers], []
        for one in lost:
            one.close()


class ReadOnlyPostgres(PostgresReader):
    """A log in PostgreSQL, to be read without owning it, also on a hot standby. Nothing beyond what is confirmed is read.

    What the owner has sent but nobody has confirmed may be on this server and get lost at a failover; the offsets then belong to
    other messages. A row of events proves that every earlier one is confirmed, and `logs.confirmed` follows within a second.
    """

    def __init__(self, address: str, *, number: int = 1) -> None:
        super().__init__(Address(address), number)
        newest = f"SELECT first FROM events WHERE log = {number} ORDER BY first DESC LIMIT 1"
        bound = f"(SELECT greatest(confirmed, ({newest})) FROM logs WHERE log = {number})"
        self._of_events += f"first < {bound} AND "
        self._of_chunks += f"event < {bound} AND "
        try:
            self._check_format()
        except BaseException:
            self.close()
            raise

    def version(self) -> object:
        """What changes whenever something became readable; while it is the same, nothing did."""
        if not self._is_open:
            raise BrokerClosed
        return self.event_range()

    def standby_lag(self) -> float:
        """How many seconds ago the newest transaction of this server was committed on the primary; 0 on the primary."""
        query = (
            "SELECT CASE WHEN NOT pg_is_in_recovery() OR pg_last_wal_receive_lsn() = pg_last_wal_replay_lsn() THEN 0"
            " ELSE extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp()) END::float8"
        )
        with self._reading("the replication") as reader:
            row = reader.execute(query).fetchone()
        return float(row[0] or 0) if row is not None else 0.0
