"""Connections to PostgreSQL: addresses, errors, the format of the tables, and statements that are never cancelled.

psycopg cancels a statement when a signal interrupts it, and a commit that is cancelled while it waits for the standby is reported
as successful, with only a warning. So all changes go through `Session`, which calls libpq directly, never sends a cancel, and
treats every warning as an unknown outcome.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.resources import files
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from penstock import forks
from penstock.errors import CorruptLog, FailedPrecondition, InvalidArgument, PenstockError, Unavailable, UnsupportedFormat
from penstock.extras import how_to_install
from penstock.journal.journal import DATABASES, is_database

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

try:
    import psycopg
    from psycopg import pq
    from psycopg.conninfo import conninfo_to_dict, make_conninfo
except ImportError as error:
    raise FailedPrecondition(
        f"a journal on PostgreSQL needs psycopg: {error}", hint=f"install it: {how_to_install('postgres')}"
    ) from error

log = logging.getLogger("penstock.broker")

FORMAT = 1
STEPS: Mapping[int, str] = {}
"""The SQL that migrates format N to N + 1, by N."""
SCHEMA = "penstock"
LOCK_CLASS = 0x50535448
"""The first key of all our advisory locks; the second is the log, or 0 for the tables themselves."""
MIN_VERSION = 140_000
CONNECT_SECONDS = 5
DEFAULTS = {
    "application_name": "penstock",
    "connect_timeout": CONNECT_SECONDS,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "client_encoding": "UTF8",
}
"""Defaults of the parameters of an address. None of these timeouts makes the server cancel a statement."""


class Address:
    """The address of a database; `str()` leaves out the password."""

    def __init__(self, text: str) -> None:
        if not is_database(text):
            raise InvalidArgument.of("journal", text if isinstance(text, str) and "@" not in text else "…", f"{DATABASES[0]}…")
        try:
            self._parameters = conninfo_to_dict(text)
        except psycopg.ProgrammingError:
            # The text of the error may contain the password.
            hint = f"write {DATABASES[0]}USER@HOST:PORT/DATABASE; signs such as @ / : in a user or password are written %40 …"
            raise InvalidArgument("journal is not the address of a PostgreSQL database", hint=hint) from None
        self.has_password = "password" in self._parameters

    def __str__(self) -> str:
        found = {name: str(value) for name, value in self._parameters.items()}
        user = f"{quote(found['user'])}@" if "user" in found else ""
        ports = found.get("port", "").split(",")
        hosts = found.get("host", found.get("hostaddr", "")).split(",")
        ports = ports * len(hosts) if len(ports) == 1 else ports
        places = (f"{quote(host, safe='[]')}{':' + port if port else ''}" for host, port in zip(hosts, ports, strict=False))
        return f"{DATABASES[0]}{user}{','.join(places)}/{quote(found.get('dbname', ''))}"

    def connect(self, purpose: str, **parameters: object) -> psycopg.Connection[Any]:
        """A connection in autocommit mode, with our schema in its search path. Unavailable if it cannot be opened."""
        name = f"{self._parameters.get('application_name', DEFAULTS['application_name'])} {purpose}"
        found: dict[str, Any] = {**DEFAULTS, **parameters, **self._parameters, "application_name": name}
        try:
            connection = psycopg.connect(make_conninfo("", **found), autocommit=True)
            try:
                connection.execute(f"SET search_path = {SCHEMA}".encode())
            except BaseException:
                connection.close()
                raise
        except psycopg.Error as error:
            raise Unavailable(
                f"cannot connect to {self}: {_text(error)}", hint="start PostgreSQL, or check the address, user and password"
            ) from error
        forks.keep_open(connection)
        return connection


def _text(error: psycopg.Error) -> str:
    """The text of a psycopg error in one line."""
    return " ".join(str(error).split())


def translated(path: str, where: str, error: psycopg.Error) -> PenstockError:
    """Convert an error of PostgreSQL while reading to one of ours."""
    if isinstance(error, psycopg.errors.UndefinedTable | psycopg.errors.UndefinedColumn):
        return CorruptLog(path, where, _text(error))
    if isinstance(error, psycopg.errors.DataCorrupted | psycopg.errors.IndexCorrupted):
        return CorruptLog(path, where, _text(error))
    return Unavailable(f"cannot read the log {path!r}: {where}: {_text(error)}")


class Unsure(Exception):
    """A statement was sent, and its outcome is unknown."""


class Refused(Exception):
    """The server refused a statement, which changed nothing."""

    def __init__(self, state: str, problem: str) -> None:
        super().__init__(problem)
        self.state = state
        """The SQLSTATE."""


Value = int | str | bytes | None


class Session:
    """A connection for statements with changes. For one thread at a time; only `cut` may be called by another thread."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._pgconn = connection.pgconn
        self._prepared: dict[str, bytes] = {}
        self._warnings: list[str] = []
        connection.add_notice_handler(self._note)
        self.pid = 0
        self.started_at = ""
        [(pid, started_at)] = self.execute(
            "SELECT pid, backend_start::text FROM pg_stat_activity WHERE pid = pg_backend_pid()", keep=False
        )
        assert pid is not None, "a session has a process"
        assert started_at is not None, "a session has a beginning"
        self.pid, self.started_at = int(pid), started_at

    @property
    def is_broken(self) -> bool:
        return bool(self._pgconn.status != pq.ConnStatus.OK)

    def execute(self, query: str, *values: Value, keep: bool = True) -> list[tuple[str | None, ...]]:
        """Run one statement to its end; returns its rows as text. `keep`: it is prepared on the server, to be run again.

        Unsure: it is not known whether it has changed anything. Refused: it has changed nothing.
        """
        self._warnings.clear()
        if self.is_broken:
            raise Refused("08003", "the connection was lost before")
        raw = [None if value is None else value if isinstance(value, bytes) else str(value).encode() for value in values]
        formats = [pq.Format.BINARY if isinstance(value, bytes) else pq.Format.TEXT for value in values]
        if keep:
            result = self._pgconn.exec_prepared(self._name(query), raw, formats)  # type: ignore[arg-type]  # None is NULL
        else:
            result = self._pgconn.exec_params(query.encode(), raw, param_formats=formats)
        self._check(result)
        return [
            tuple(None if (cell := result.get_value(row, column)) is None else cell.decode() for column in range(result.nfields))
            for row in range(result.ntuples)
        ]

    def script(self, text: str) -> None:
        """Run several statements without parameters, as one transaction unless they contain BEGIN or COMMIT."""
        self._warnings.clear()
        self._check(self._pgconn.exec_(text.encode()))

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run several statements as one transaction."""
        self.execute("BEGIN", keep=False)
        try:
            yield
        except BaseException:
            with suppress(Unsure, Refused):
                self.execute("ROLLBACK", keep=False)
            raise
        self.execute("COMMIT", keep=False)

    def cut(self) -> None:
        """End the connection now. The outcome of a running statement is then unknown. No cancel is sent."""
        with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(self._pgconn.socket)) as door:
            door.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._connection.close()

    def _name(self, query: str) -> bytes:
        name = self._prepared.get(query)
        if name is None:
            name = b"penstock_%d" % len(self._prepared)
            self._check(self._pgconn.prepare(name, query.encode()))
            self._prepared[query] = name
        return name

    def _note(self, notice: psycopg.errors.Diagnostic) -> None:
        if notice.severity_nonlocalized == "WARNING":
            self._warnings.append(notice.message_primary or "a warning without text")

    def _check(self, result: PGresult) -> None:
        if result.status in {pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK}:
            if self._warnings:
                raise Unsure(f"PostgreSQL warned: {'; '.join(self._warnings)}")
            return
        field = pq.DiagnosticField
        problem = " ".join((result.error_message or self._pgconn.error_message).decode(errors="replace").split())
        state = (result.error_field(field.SQLSTATE) or b"08006").decode()
        severity = (result.error_field(field.SEVERITY_NONLOCALIZED) or b"FATAL").decode()
        if self.is_broken or severity != "ERROR":
            raise Unsure(problem)
        raise Refused(state, problem)


def bytea_array(values: Sequence[bytes]) -> bytes:
    """An array of byte strings in the binary format of PostgreSQL."""
    head = b"".join(number.to_bytes(4, "big") for number in (1, 0, 17, len(values), 1)) if values else bytes(8) + b"\0\0\0\x11"
    return head + b"".join([part for value in values for part in (len(value).to_bytes(4, "big"), value)])


def number_array(values: Sequence[int | None]) -> str:
    """An array of numbers as text."""
    return f"{{{','.join(['NULL' if value is None else str(value) for value in values])}}}"


def make_tables(path: str, session: Session) -> None:
    """Create the tables if there are none, or migrate those of an older format to the current one."""
    session.script(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")
    with session.transaction():
        session.execute("SELECT pg_advisory_xact_lock($1::int, 0)", LOCK_CLASS, keep=False)
        [(table,)] = session.execute(f"SELECT to_regclass('{SCHEMA}.meta')::text", keep=False)
        if table is None:
            session.script(files("penstock.journal").joinpath("postgres.sql").read_text())
            session.execute("INSERT INTO meta VALUES (0, 'format', $1::bigint)", FORMAT, keep=False)
            return
        rows = session.execute("SELECT value FROM meta WHERE log = 0 AND name = 'format'", keep=False)
        found = check_format(path, int(rows[0][0] or 0) if rows else None)
        for number in range(found, FORMAT):
            session.script(STEPS[number])
        if found < FORMAT:
            session.execute("UPDATE meta SET value = $1::bigint WHERE log = 0 AND name = 'format'", FORMAT, keep=False)
            log.info("migrated %s from format %d to %d", path, found, FORMAT)


def check_format(path: str, found: int | None) -> int:
    """Refuse tables of a format that this version neither reads nor migrates; returns the format."""
    if found is None or not (found >= FORMAT or found in STEPS):
        raise CorruptLog(path, "meta", f"format is {found!r}, this version reads {FORMAT}")
    if found > FORMAT:
        raise UnsupportedFormat(path, found, FORMAT)
    return found


def check_server(path: str, connection: psycopg.Connection[Any]) -> None:
    """Refuse a server that is too old or a standby, and warn if it does not sync to disk."""
    if connection.info.server_version < MIN_VERSION:
        raise FailedPrecondition(
            f"PostgreSQL of {path} has version {connection.info.server_version // 10_000}, expected 14 or newer"
        )
    row = connection.execute("SELECT pg_is_in_recovery(), current_setting('fsync')").fetchone()
    if row is not None and row[0]:
        raise FailedPrecondition(
            f"{path} is a standby, expected the primary", hint="name all servers in the address: HOST1,HOST2"
        )
    if row is not None and row[1] == "off":
        log.warning("fsync is off in PostgreSQL of %s: what is confirmed does not survive a power loss", path)


def check_direct(address: Address, session: Session, backend_pid: int) -> None:
    """Refuse a pooler in transaction mode: locks and settings would apply to the backends of others.

    The backends of two statements are compared, with a transaction of a second connection in between.
    """
    if session.pid == backend_pid:
        return
    other = Session(address.connect("check"))
    try:
        with other.transaction():
            [(pid,)] = session.execute("SELECT pg_backend_pid()", keep=False)
        shared = {pid, str(session.pid), str(other.pid)}
    except (Refused, Unsure) as error:
        raise Unavailable(f"cannot ask {address}: {error}") from error
    finally:
        other.close()
    if len(shared) != 2 or pid != str(session.pid):
        raise FailedPrecondition(
            f"{address} is a pooler in transaction mode, expected PostgreSQL itself",
            hint="connect to PostgreSQL directly, or set pool_mode = session for this database",
        )
