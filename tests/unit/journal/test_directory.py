"""The data directory is its owner's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import Message, MessageQueue


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
