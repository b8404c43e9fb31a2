"""The data directory is its owner's, and a file of it that is missing or cannot be read is named."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from penstock import Message, MessageQueue
from penstock.errors import CorruptLog, FailedPrecondition
from penstock.journal.directory import MARK, check_files, check_mark, marked, read_file, write_mark
from penstock.journal.sqlite import SqliteJournal

NOBODY = 65_534


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def modes(path: Path) -> dict[str, int]:
    return {file.name: file.stat().st_mode & 0o777 for file in path.iterdir()}


def fill(path: Path) -> dict[str, int]:
    """The modes of the files while a broker that has stored something is open."""
    with MessageQueue(data_dir=path) as queue:
        if not queue.topic_exists("orders"):
            queue.register_topic("orders")
        queue.publish("orders", [Message(b"secret")])
        return modes(path)


def test_a_new_directory_and_all_in_it_can_be_read_by_the_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "above" / "data"
    while_open = fill(path)
    assert while_open.keys() == {"LOCK", "FORMAT", "high-water", "penstock.db", "penstock.db-wal", "penstock.db-shm"}
    assert set(while_open.values()) == set(modes(path).values()) == {0o600}
    assert path.stat().st_mode & 0o777 == 0o700
    assert path.parent.stat().st_mode & 0o777 == 0o755


def test_a_directory_that_exists_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o750)
    assert set(fill(tmp_path).values()) == {0o600}
    assert tmp_path.stat().st_mode & 0o777 == 0o750


def test_files_that_exist_keep_their_modes(tmp_path: Path) -> None:
    fill(tmp_path / "data")
    for file in (tmp_path / "data").iterdir():
        file.chmod(0o640)
    assert set(fill(tmp_path / "data").values()) == {0o640}


def test_a_new_directory_has_a_mark(tmp_path: Path) -> None:
    MessageQueue(data_dir=tmp_path / "data").close()
    check_mark(tmp_path / "data", lambda: 0, is_needed=True)
    assert (tmp_path / "data" / MARK).stat().st_size


@pytest.mark.parametrize("content", [None, b"", b"short", b"a mark of 12", b"longer than a mark"])
def test_a_mark_that_is_missing_or_damaged_is_refused_where_it_is_needed(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / MARK).write_bytes(content)
    check_mark(tmp_path, lambda: 5)
    check_mark(tmp_path, lambda: 0, is_needed=True)
    with pytest.raises(CorruptLog, match="high-water: the file is missing or damaged"):
        check_mark(tmp_path, lambda: 5, is_needed=True)

    write_mark(tmp_path, 5)
    check_mark(tmp_path, lambda: 5, is_needed=True)
    with pytest.raises(CorruptLog, match="ends at event 4, but 5 were confirmed"):
        check_mark(tmp_path, lambda: 4)


@pytest.mark.parametrize("content", [None, b"short", b"longer than a mark"])
def test_a_broker_that_accepts_a_log_without_its_mark_writes_one(tmp_path: Path, content: bytes | None) -> None:
    fill(tmp_path)
    (tmp_path / MARK).unlink()
    if content is not None:
        (tmp_path / MARK).write_bytes(content)
    with closing(SqliteJournal(tmp_path)) as journal:
        journal.load()
        journal.verify()
        assert marked(tmp_path) == journal.event_range()[1]


def test_a_mark_that_is_no_file_is_damage(tmp_path: Path) -> None:
    (tmp_path / MARK).mkdir()
    with pytest.raises(CorruptLog, match="high-water: Is a directory"):
        check_mark(tmp_path, lambda: 5)


@contextmanager
def as_nobody() -> Iterator[None]:
    """Without the rights of root, who may read everything."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


def test_a_file_that_may_not_be_read_is_not_damaged() -> None:
    path = Path(tempfile.mkdtemp())
    try:
        fill(path)
        (path / "cursors").touch()
        path.chmod(0o755)
        for file in path.iterdir():
            file.chmod(0)
        reads: dict[str, Callable[[], object]] = {
            "FORMAT": lambda: check_files(path),
            "high-water": lambda: check_mark(path, lambda: 0),
            "cursors": lambda: read_file(path / "cursors"),
        }
        with as_nobody():
            for name, read in reads.items():
                with pytest.raises(FailedPrecondition, match=f"cannot read '.*{name}': Permission denied") as caught:
                    read()
                assert caught.value.hint == "run this as the owner of the data directory"
    finally:
        shutil.rmtree(path)
