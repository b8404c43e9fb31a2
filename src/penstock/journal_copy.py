"""Copying a log between a data directory and PostgreSQL: the same offsets, ids, times and checksums on both sides.

Both logs are owned while it runs: no server can have them open. Rows are copied as they are, and verified on the way; then both
logs are read again, and their fingerprints compared.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.errors import CorruptLog, FailedPrecondition, InvalidArgument
from penstock.journal.journal import is_database
from penstock.journal.postgres import PostgresJournal
from penstock.journal.postgres_connection import Address
from penstock.journal.sqlite import SqliteJournal

FILES = ("cursors", "tokens.json", "router-config.json")
"""What lies beside a log."""
STAGED = "staged"
"""The directory of rows that wait for the commit of a Spark write."""

OwnedJournal = SqliteJournal | PostgresJournal


def copy(source: str, target: str, progress: Callable[[int], None] = lambda _: None) -> str:
    """Copy the log at an address or in a data directory to another place; returns the fingerprint that both have then.

    `progress` is called with the number of messages and events that were copied since it was called last.

    Raises:
        InvalidArgument: the source is no log, or there is something at the target.
        CorruptLog: the source is damaged; nothing is left at the target.
        DataDirectoryInUse, LogInUse: a server has one of them open.
    """
    with _source(source) as old, _target(target) as new:
        since, checkpoint = old.stored_checkpoint()
        for rows in old.stored_chunks():
            new.take_rows(rows, ())
            progress(sum(row[1] for row in rows))
        for rows in old.stored_events():
            new.take_rows((), rows)
            progress(sum(row[1] for row in rows))
        for name in FILES:
            if (content := old.read_file(name)) is not None:
                new.write_file(name, content)
        new.take_state(old.stored_ends(), since, checkpoint)
        found, expected = new.fingerprint(), old.fingerprint()
        if found != expected:
            raise CorruptLog(new.path, "the copy", f"its fingerprint is {found}, that of the source is {expected}")
    return expected


@contextmanager
def _source(place: str) -> Iterator[OwnedJournal]:
    if not is_database(place):
        if not (Path(place) / "FORMAT").is_file():
            raise InvalidArgument.of("source", place, "a data directory, or the address of a database: postgresql://…")
        _check_nothing_is_staged(place, is_staged=any((Path(place) / STAGED).glob("*/*/*")))
    journal: OwnedJournal = PostgresJournal(place, node="penstock journal copy") if is_database(place) else SqliteJournal(place)
    try:
        if isinstance(journal, PostgresJournal):
            _check_nothing_is_staged(journal.path, is_staged=bool(journal.staged.infos()))
        if journal.event_range() == (0, 0) and not journal.streams():
            raise InvalidArgument.of("source", journal.path, "a log with something in it")
        yield journal
    finally:
        journal.close()


def _check_nothing_is_staged(place: str, *, is_staged: bool) -> None:
    if is_staged:
        hint = "commit or abort the writes; those of a stream are committed by its query when it runs again"
        raise FailedPrecondition(f"{place!r} holds rows of Spark writes that are not committed", hint=hint)


@contextmanager
def _target(place: str) -> Iterator[OwnedJournal]:
    """An empty log, which stays empty, or is not there, if the block ends with an error."""
    if not is_database(place):
        with _new_directory(Path(place)) as draft:
            directory = SqliteJournal(draft)
            try:
                yield directory
            finally:
                directory.close()
        return
    journal = PostgresJournal(place, node="penstock journal copy")
    try:
        if journal.event_range() != (0, 0) or journal.streams() or journal.stored_checkpoint()[1] is not None:
            raise InvalidArgument.of("target", str(Address(place)), "a database whose log is empty")
        try:
            yield journal
        except BaseException:
            journal.remove_all()
            raise
    finally:
        journal.close()


@contextmanager
def _new_directory(path: Path) -> Iterator[Path]:
    """A directory that appears at its place when it is complete."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InvalidArgument.of("target", str(path), "a directory that does not exist or is empty")
    draft = path.with_name(f".{path.name}.copying")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        yield draft
        (draft / "LOCK").unlink()
        draft.replace(path)
    except OSError as error:
        raise FailedPrecondition(f"cannot write {str(path)!r}: {error.strerror}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
