"""The tokens of a server whose log is in PostgreSQL. They are stored beside the log, for all nodes."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable

from penstock.errors import CorruptLog, FailedPrecondition, Unavailable
from penstock.journal.postgres_connection import LOCK_CLASS, SCHEMA, Address, Refused, Session, Unsure, make_tables
from penstock.journal.postgres_reader import PostgresReader

log = logging.getLogger("penstock.access")

FILE = "tokens.json"
LOOK_SECONDS = 1.0


class PostgresTokens:
    """A store of tokens. With `watch` a thread checks for changes once a second, and `signature` and `read` never block."""

    def __init__(self, address: str, *, number: int = 1, watch: bool = False) -> None:
        self._reader = PostgresReader(Address(address), number)
        weakref.finalize(self, self._reader.close)
        self.name = f"the tokens in {self._reader.path}"
        self._is_watching = False
        self._found: tuple[bytes | None, object] = (None, None)
        self._found = self.read()
        if watch:
            self._is_watching = True
            threading.Thread(target=_watch, args=(weakref.ref(self),), name="penstock-tokens", daemon=True).start()

    def signature(self) -> object:
        return self._found[1] if self._is_watching else self._look()[1]

    def read(self) -> tuple[bytes | None, object]:
        if self._is_watching:
            return self._found
        try:
            return self._look()
        except (Unavailable, CorruptLog) as error:
            raise FailedPrecondition(f"cannot read {self.name}: {error}") from error

    def update(self, change: Callable[[bytes | None], bytes]) -> None:
        session = Session(self._reader.address.connect("tokens", target_session_attrs="read-write"))
        number = self._reader.number
        try:
            make_tables(self._reader.path, session)
            with session.transaction():
                session.execute("SELECT pg_advisory_xact_lock($1::int, $2::int)", LOCK_CLASS + 1, number, keep=False)
                query = "SELECT encode(body, 'hex') FROM files WHERE log = $1::int AND name = $2"
                rows = session.execute(query, number, FILE, keep=False)
                content = change(bytes.fromhex(rows[0][0] or "") if rows else None)
                session.execute(
                    "INSERT INTO files VALUES ($1::int, $2, 1, $3::bytea)"
                    " ON CONFLICT (log, name) DO UPDATE SET body = excluded.body, changed = files.changed + 1",
                    *(number, FILE, content),
                    keep=False,
                )
        except (Unsure, Refused) as error:
            raise FailedPrecondition(f"cannot write {self.name}: {error}") from error
        finally:
            session.close()
        self._found = self._look()

    def refresh(self) -> None:
        """Check for changes. While the database is unavailable, the tokens stay as they are."""
        try:
            self._found = self._look()
        except (Unavailable, CorruptLog) as error:
            log.debug("the tokens were not read again: %s", error)

    def _look(self) -> tuple[bytes | None, object]:
        number = self._reader.number
        with self._reader._reading(self.name) as reader:
            row = reader.execute(f"SELECT to_regclass('{SCHEMA}.files') IS NULL").fetchone()
            if row is not None and row[0]:
                return None, None  # the first owner creates the tables
            query = f"SELECT changed FROM files WHERE log = {number} AND name = ?"
            row = reader.execute(query, (FILE,)).fetchone()
            if row is not None and row[0] == self._found[1]:
                return self._found
            query = f"SELECT body, changed FROM files WHERE log = {number} AND name = ?"
            row = reader.execute(query, (FILE,)).fetchone()
        return (None, None) if row is None else (bytes(row[0]), row[1])


def _watch(found: weakref.ref[PostgresTokens]) -> None:
    pause = threading.Event()
    while not pause.wait(LOOK_SECONDS):
        tokens = found()
        if tokens is None:
            return
        tokens.refresh()
        del tokens
