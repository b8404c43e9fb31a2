"""What a node knows about the others, from the database that keeps the log: the owner, and the state of each node.

Blocking, over a connection of its own, for one thread at a time. Writes do not wait for standbys of PostgreSQL: a node must be
able to report while commits hang.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from datetime import datetime
from typing import Any

import msgspec
import psycopg

from penstock import __version__
from penstock.errors import Unavailable
from penstock.journal.postgres_connection import LOCK_CLASS, Address, translated

LOG = 1
RELAY_KEY = "relay-key"
"""The name, beside the log, of the key that the nodes share."""
FORGET_SECONDS = 60
"""How long a node that stopped reporting is still listed."""

_LOOK = f"""
SELECT epoch, node, address, version, since, extract(epoch FROM clock_timestamp() - beat)::float8, confirmed,
    EXISTS (
        SELECT FROM pg_locks WHERE locktype = 'advisory' AND classid = {LOCK_CLASS} AND objid = {LOG} AND objsubid = 2
        AND granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    ),
    (SELECT body FROM files WHERE log = {LOG} AND name = '{RELAY_KEY}')
FROM logs WHERE log = {LOG}
"""
_SHOW = f"""
INSERT INTO nodes VALUES ({LOG}, %s, %s, %s, %s, clock_timestamp(), clock_timestamp())
ON CONFLICT (log, node) DO UPDATE SET address = excluded.address, version = excluded.version, state = excluded.state,
    since = CASE WHEN nodes.state = excluded.state THEN nodes.since ELSE excluded.since END, beat = excluded.beat
"""
_LIST = f"""
SELECT node, address, version, state, since, extract(epoch FROM clock_timestamp() - beat)::float8 FROM nodes
WHERE log = {LOG} AND beat > clock_timestamp() - interval '{FORGET_SECONDS} s' ORDER BY node
"""
_REPLICAS = """
SELECT application_name, state, sync_state, pg_wal_lsn_diff(pg_current_wal_lsn(), replay_lsn)::bigint,
    extract(epoch FROM replay_lag)::float8
FROM pg_stat_replication ORDER BY application_name
"""


class OwnerInfo(msgspec.Struct, frozen=True):
    """The owner of the log."""

    epoch: int
    node: str
    address: str
    version: str
    since: datetime
    silent_seconds: float
    """How long ago the owner last reported, by the clock of the database."""
    confirmed: int
    """How many events are confirmed at least."""
    is_held: bool
    """Whether the owner's database session is alive: then no other node can take over."""
    relay_key: bytes | None


class NodeInfo(msgspec.Struct, frozen=True):
    """A node as it last reported."""

    node: str
    address: str
    version: str
    state: str
    """`owner`, `standby`, `read-only` or `stopping`."""
    since: datetime
    """When it entered this state."""
    silent_seconds: float
    """How long ago it reported."""


class ReplicaInfo(msgspec.Struct, frozen=True):
    """A standby of PostgreSQL. Fields that the role may not read are null: grant it `pg_monitor`."""

    name: str
    state: str | None
    sync: str | None
    lag_bytes: int | None
    lag_seconds: float | None


class Members:
    """The view of one node. Every call raises Unavailable if the database does not answer."""

    def __init__(self, journal: str, node: str, address: str, *, reports: bool = True) -> None:
        self._reports = reports
        """Whether this node is listed: a node that reads from a standby of PostgreSQL cannot write."""
        self._place = Address(journal)
        self._node = node
        self._address = address
        self._connection: psycopg.Connection[Any] | None = None

    def look(self, state: str) -> OwnerInfo | None:
        """Report the state of this node, and return the owner of the log; None if there never was one."""
        try:
            if self._reports:
                self._query(_SHOW, self._node, self._address, __version__, state)
            rows = self._query(_LOOK)
        except psycopg.errors.UndefinedTable:
            return None  # the first owner creates the tables
        return OwnerInfo(*rows[0]) if rows else None

    def nodes(self) -> list[NodeInfo]:
        return [NodeInfo(*row) for row in self._query(_LIST)]

    def replicas(self) -> list[ReplicaInfo]:
        return [ReplicaInfo(*row) for row in self._query(_REPLICAS)]

    def leave(self) -> None:
        """Remove this node from the list, and close the connection."""
        with suppress(Unavailable, psycopg.errors.UndefinedTable):
            if self._reports:
                self._query(f"DELETE FROM nodes WHERE log = {LOG} AND node = %s", self._node)
        self.close()

    def cut(self) -> None:
        """End a query that gets no answer. May be called while another thread waits for it."""
        connection = self._connection
        if connection is not None:
            with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.pgconn.socket)) as duplicate:
                duplicate.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection. Safe to call twice."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _query(self, query: str, *values: object) -> list[Any]:
        if self._connection is None:
            place = {"target_session_attrs": "read-write"} if self._reports else {}
            self._connection = self._place.connect("node", tcp_user_timeout=5_000, **place)
            self._connection.execute("SET synchronous_commit = local")
        try:
            cursor = self._connection.execute(query.encode(), values)
            return cursor.fetchall() if cursor.description is not None else []
        except psycopg.errors.UndefinedTable:
            raise
        except psycopg.Error as error:
            self.close()
            raise Unavailable(str(translated(str(self._place), "the nodes", error))) from error
