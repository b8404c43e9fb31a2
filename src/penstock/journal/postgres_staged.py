"""The staged files of Spark writes in PostgreSQL: a part survives the node that received it.

A node works with files; this stores a copy of each, which the next owner of the log fetches when it needs it. Each upload has its
own connection, so that a large part does not delay publishing.
"""

from __future__ import annotations

from pathlib import Path

from penstock.errors import JournalUnavailable
from penstock.journal.postgres_connection import Address, Refused, Session, Unsure
from penstock.journal.postgres_reader import PostgresReader

PIECE_BYTES = 8 * 1024 * 1024


class PostgresStaged:
    """The staged files of one log. Thread-safe."""

    def __init__(self, reader: PostgresReader) -> None:
        self._reader = reader
        self._address: Address = reader.address
        self._number = reader.number

    def keep(self, name: str, file: Path, info: bytes | None = None) -> None:
        """Store a file under a name, in place of an earlier one; it is replicated on return."""
        session = Session(self._address.connect("staging", target_session_attrs="read-write"))
        try:
            with session.transaction(), file.open("rb") as content:
                session.execute("DELETE FROM staged WHERE log = $1::int AND name = $2", self._number, name, keep=False)
                piece = 0
                while body := content.read(PIECE_BYTES):
                    query = "INSERT INTO staged VALUES ($1::int, $2, $3::int, $4::bytea, $5::bytea)"
                    session.execute(query, self._number, name, piece, None if piece else info, body)
                    piece += 1
        except (Unsure, Refused) as error:
            raise JournalUnavailable(self._reader.path, f"staging: {error}") from error
        finally:
            session.close()

    def infos(self) -> dict[str, bytes | None]:
        """All names with their metadata."""
        with self._reader._reading("what is staged") as reader:
            query = f"SELECT name, info FROM staged WHERE log = {self._number} AND piece = 0"
            return dict(iter(reader.execute(query)))

    def fetch(self, name: str, file: Path) -> bool:
        """Write the content stored under a name to a file; False if there is none."""
        draft, piece = file.with_name(f".{file.name}.fetched"), 0
        query = f"SELECT body FROM staged WHERE log = {self._number} AND name = ? AND piece = ?"
        with draft.open("wb") as content:
            while True:
                with self._reader._reading("what is staged") as reader:
                    row = reader.execute(query, (name, piece)).fetchone()
                if row is None:
                    break
                content.write(row[0])
                piece += 1
        if piece:
            draft.replace(file)
        else:
            draft.unlink()
        return piece > 0

    def drop(self, folder: str) -> None:
        """Remove all files of a folder."""
        session = Session(self._address.connect("staging", target_session_attrs="read-write"))
        try:
            query = "DELETE FROM staged WHERE log = $1::int AND starts_with(name, $2)"
            session.execute(query, self._number, f"{folder}/", keep=False)
        except (Unsure, Refused) as error:
            raise JournalUnavailable(self._reader.path, f"staging: {error}") from error
        finally:
            session.close()
