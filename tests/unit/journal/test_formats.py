"""An older data directory is migrated once, as a whole or not at all; a newer one is refused, and nothing in it is changed."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path

import apsw
import pytest

from penstock import Message, MessageQueue, backup
from penstock.errors import CorruptLog, PenstockError, UnsupportedFormat
from penstock.journal import formats
from penstock.journal.readonly import ReadOnlyJournal


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory of the present format with a message in it."""
    with MessageQueue(data_dir=tmp_path / "data") as queue:
        queue.register_topic("orders")
        queue.register_subscription("billing", "orders")
        queue.publish("orders", [Message(b"order 1")])
    return tmp_path / "data"


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The next version but one, whose two steps are noted here when they are done."""
    done: list[str] = []

    def add_table(database: apsw.Connection) -> None:
        database.execute("CREATE TABLE colours (name)")
        done.append("table")

    def fill_table(database: apsw.Connection) -> None:
        database.execute("INSERT INTO colours VALUES ('red')")
        done.append("row")

    become(monkeypatch, formats.FORMAT + 2, {formats.FORMAT: add_table, formats.FORMAT + 1: fill_table})
    return done


def become(monkeypatch: pytest.MonkeyPatch, number: int, steps: Mapping[int, object]) -> None:
    monkeypatch.setattr(formats, "FORMAT", number)
    monkeypatch.setattr(formats, "STEPS", steps)


def content(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir() if file.name != "LOCK"}


def pulled(path: Path) -> list[bytes]:
    with MessageQueue(data_dir=path) as queue:
        [message] = queue.pull("billing", 10)
        queue.nack(message.ack_id)
        return [message.data]


def colours(path: Path) -> list[str]:
    database = sqlite3.connect(path / "penstock.db")
    try:
        return [name for (name,) in database.execute("SELECT name FROM colours")]
    finally:
        database.close()


def test_an_older_directory_is_migrated_once_with_everything_in_it(data: Path, steps: list[str]) -> None:
    assert pulled(data) == [b"order 1"]
    assert steps == ["table", "row"]
    assert (data / "FORMAT").read_text() == formats.text(formats.FORMAT)

    assert pulled(data) == [b"order 1"]
    assert steps == ["table", "row"]
    assert colours(data) == ["red"]
    assert backup.verify(data).problems == []


def test_a_new_directory_needs_no_migration(tmp_path: Path, steps: list[str]) -> None:
    MessageQueue(data_dir=tmp_path / "new").close()
    assert steps == []
    assert (tmp_path / "new" / "FORMAT").read_text() == formats.text(formats.FORMAT)


def test_a_migration_that_fails_changes_nothing(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    present = formats.FORMAT

    def half(database: apsw.Connection) -> None:
        database.execute("CREATE TABLE colours (name)")
        raise apsw.FullError("no room")

    with monkeypatch.context() as newer:
        become(newer, present + 1, {present: half})
        with pytest.raises(PenstockError, match="no room"):
            MessageQueue(data_dir=data)
    assert pulled(data) == [b"order 1"]
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        colours(data)


def test_a_crash_behind_a_migration_is_noticed(data: Path, steps: list[str]) -> None:
    old = (data / "FORMAT").read_bytes()
    MessageQueue(data_dir=data).close()
    (data / "FORMAT").write_bytes(old)

    assert pulled(data) == [b"order 1"]
    assert steps == ["table", "row"]
    assert (data / "FORMAT").read_text() == formats.text(formats.FORMAT)


def test_readers_do_not_migrate(data: Path, steps: list[str]) -> None:
    before = content(data)
    for read in (ReadOnlyJournal, lambda path: backup.back_up(path, path.parent / "copy")):
        with pytest.raises(UnsupportedFormat, match="format 1 of an older version; this version reads format 3") as caught:
            read(data)
        assert "start a server or broker of this version on it to migrate it" in str(caught.value.hint)
    assert content(data).items() >= before.items()
    assert steps == []


def test_a_much_newer_directory_is_not_called_damaged(data: Path) -> None:
    for number in (10**9, 10**99):
        (data / "FORMAT").write_text(formats.text(number))
        for read in (lambda path: MessageQueue(data_dir=path), ReadOnlyJournal, backup.verify):
            with pytest.raises(UnsupportedFormat, match="of a newer version"):
                read(data)


@pytest.mark.parametrize("place", ["FORMAT", "meta"])
def test_a_newer_directory_is_refused_and_left_as_it_is(data: Path, place: str) -> None:
    if place == "FORMAT":
        (data / "FORMAT").write_text(formats.text(7))
    else:
        database = sqlite3.connect(data / "penstock.db")
        with database:
            database.execute("UPDATE meta SET value = 7 WHERE name = 'format'")
        database.close()
    before = content(data)
    for read in (lambda path: MessageQueue(data_dir=path), ReadOnlyJournal, backup.verify):
        with pytest.raises(UnsupportedFormat, match="format 7 of a newer version; this version reads format 1") as caught:
            read(data)
        assert "restore a backup from before the upgrade" in str(caught.value.hint)
        assert (caught.value.found, caught.value.newest) == (7, formats.FORMAT)
    assert content(data).items() >= before.items()


@pytest.mark.parametrize("text", ["", "hello", "penstock data directory, format 0\n", "penstock data directory, format x\n"])
def test_what_is_no_format_is_damage(data: Path, text: str) -> None:
    (data / "FORMAT").write_text(text)
    with pytest.raises(CorruptLog, match="FORMAT"):
        MessageQueue(data_dir=data)
