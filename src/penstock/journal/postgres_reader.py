"""Reading a log in PostgreSQL: on the primary for its owner, and on a hot standby, where only confirmed data is read."""

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
        """Run a query with `?` for parameters."""
        return self.connection.execute(query.replace("%", "%%").replace("?", "%s").encode(), parameters, binary=True)

    def close(self) -> None:
        self.connection.close()


class Owner(NamedTuple):
    """The owner of a log, from the database."""

    epoch: int
    node: str
    address: str
    version: str
    since: datetime
    silent_seconds: float
    """The time since the last heartbeat of the owner, by the clock of the database."""
    confirmed: int
    """The minimum number of confirmed events."""
    pid: int
    backend_start: datetime
    """The backend of the owner's connection."""


class PostgresReader(SqlReader[ReaderConnection]):
    """The reading part of a journal in PostgreSQL."""

    def __init__(self, address: Address, number: int) -> None:
        super().__init__(str(address))
        self.address = address
        self.number = number
        """The number of the log in the database."""
        self._of_log = self._of_chunks = self._of_events = f"log = {number} AND "

    def after_fork(self) -> None:
        """Do nothing: the connections belong to the parent, and a child opens new ones."""

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
        """The owner of the log; None if it never had one."""
        columns = "epoch, node, address, version, since, extract(epoch FROM clock_timestamp() - beat)::float8, confirmed, pid"
        with self._reading("the owner") as reader:
            row = reader.execute(f"SELECT {columns}, backend_start FROM logs WHERE log = {self.number}").fetchone()
        return None if row is None else Owner(*row)

    def lag_bytes(self) -> int | None:
        """The lag in bytes of the slowest standby; None if no standby is connected."""
        query = "SELECT max(pg_wal_lsn_diff(pg_current_wal_lsn(), flush_lsn))::bigint FROM pg_stat_replication"
        with self._reading("the replication") as reader:
            row = reader.execute(query).fetchone()
        return None if row is None else row[0]

    def read_file(self, name: str) -> bytes | None:
        """The content of a file beside the log; None if it does not exist."""
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
        """Refuse a database without our tables, or with tables of a format that cannot be read."""
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
            # The other connections were lost at the same time.
            lost, self._readers = [reader, *self._readers], []
        for one in lost:
            one.close()


class ReadOnlyPostgres(PostgresReader):
    """A log in PostgreSQL for reading without owning it, also on a hot standby. Only confirmed data is read.

    Unconfirmed data of the owner may be on this server and be lost at a failover; then other messages get its offsets. A row of
    events proves that every earlier one is confirmed, and `logs.confirmed` follows within a second.
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
        """A value that changes whenever something new can be read, and only then."""
        if not self._is_open:
            raise BrokerClosed
        return self.event_range()

    def standby_lag(self) -> float:
        """Seconds since the commit of the newest transaction on this standby; 0 on the primary and without a backlog."""
        query = (
            "SELECT CASE WHEN NOT pg_is_in_recovery() OR pg_last_wal_receive_lsn() = pg_last_wal_replay_lsn() THEN 0"
            " ELSE extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp()) END::float8"
        )
        with self._reading("the replication") as reader:
            row = reader.execute(query).fetchone()
        return float(row[0] or 0) if row is not None else 0.0
