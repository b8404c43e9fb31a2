"""Archivers that race each other and are killed at any moment, or repeat what they did: each row is in the lake once."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import CommitProperties, DeltaTable

from penstock import Message, MessageQueue
from penstock.errors import Aborted
from penstock.pipeline.core.planning import OffsetRange
from penstock.pipeline.lake.archiver import Archiver
from penstock.pipeline.lake.table import Lake, NewFile, Table
from penstock.testing.server import LocalServer
from tests.unit.pipeline.lake_victim import NO_SPARK, archiver, plan_batch
from tests.unit.pipeline.lakes import offsets

pytestmark = [pytest.mark.alone, pytest.mark.server]

KILLS = int(os.environ.get("PENSTOCK_LAKE_KILLS", "6"))


@pytest.fixture
def data(tmp_path: Path) -> Iterator[str]:
    """A data directory with a stream of 5,000 messages."""
    with LocalServer(data_dir=tmp_path / "data") as server:
        shop = MessageQueue(broker=server.broker)
        shop.register_topic("orders")
        shop.publish("orders", [Message(b"x")] * 5_000)
        server.broker.sync()
        yield str(tmp_path / "data")


def test_a_batch_that_is_repeated_adds_nothing(data: str, tmp_path: Path) -> None:
    lake = str(tmp_path / "lake")
    for number, stop in enumerate([5, 5, 12, 12, 7]):
        plan_batch(tmp_path / "c", number, {"orders": (1, stop)})
        archiver(data, lake, tmp_path / "c").catch_up(NO_SPARK)

    assert offsets(lake) == list(range(12))
    assert Lake(lake).table("messages").watermark().commits == 2


def test_killed_between_staging_and_commit(data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = str(tmp_path / "lake")
    plan_batch(tmp_path / "c", 0, {"orders": (1, 9)})
    with monkeypatch.context() as patch:
        patch.setattr(Table, "commit", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            archiver(data, lake, tmp_path / "c").catch_up(NO_SPARK)
    assert offsets(lake) == []
    archiver(data, lake, tmp_path / "c").catch_up(NO_SPARK)

    assert offsets(lake) == list(range(9))
    assert len(list((tmp_path / "lake").rglob("*.zstd.parquet"))) == 2, "what was left does not count, and vacuum removes it"


def test_killed_after_a_commit_that_was_not_seen(data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = str(tmp_path / "lake")
    commit = DeltaTable.create_write_transaction

    def lost(self: DeltaTable, *given: Any, commit_properties: CommitProperties) -> None:
        commit(self, *given, commit_properties=commit_properties)
        raise KeyboardInterrupt

    plan_batch(tmp_path / "c", 0, {"orders": (1, 9)})
    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "create_write_transaction", lost)
        with pytest.raises(KeyboardInterrupt):
            archiver(data, lake, tmp_path / "c").catch_up(NO_SPARK)
    archiver(data, lake, tmp_path / "c").catch_up(NO_SPARK)

    assert offsets(lake) == list(range(9))


def test_of_two_drivers_with_the_same_rows_one_is_told(data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second has written its files when the first commits."""
    lake = str(tmp_path / "lake")
    write = Archiver._write
    for name in ("one", "two"):
        plan_batch(tmp_path / name, 0, {"orders": (1, 9)})

    def slow(self: Archiver, spark: Any, pieces: list[OffsetRange]) -> list[NewFile]:
        monkeypatch.setattr(Archiver, "_write", write)
        files = write(self, spark, pieces)
        archiver(data, lake, tmp_path / "one").catch_up(NO_SPARK)
        return files

    monkeypatch.setattr(Archiver, "_write", slow)
    with pytest.raises(Aborted, match="'orders' is archived up to offset 9 of stream number 1, expected nothing: another"):
        archiver(data, lake, tmp_path / "two").catch_up(NO_SPARK)
    archiver(data, lake, tmp_path / "two").catch_up(NO_SPARK)

    assert offsets(lake) == list(range(9))


def start(data: str, lake: str, checkpoint: Path) -> subprocess.Popen[str]:
    """A victim that has begun."""
    command = [sys.executable, "-m", "tests.unit.pipeline.lake_victim", data, lake, str(checkpoint)]
    victim = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert victim.stdout is not None
    assert victim.stdout.readline() == "READY\n"
    return victim


@pytest.mark.timeout(180 + 10 * KILLS)
@pytest.mark.parametrize("writers", [pytest.param(1, marks=pytest.mark.long), 2])
def test_killed_again_and_again(data: str, tmp_path: Path, writers: int) -> None:
    moments, pause = random.Random(writers), threading.Event()
    lake = str(tmp_path / "lake")
    victims = [start(data, lake, tmp_path / str(number)) for number in range(writers)]
    seen = 0
    try:
        for _ in range(KILLS):
            pause.wait(moments.uniform(0, 0.3))
            number = moments.randrange(writers)
            victims[number].kill()
            victims[number].communicate(timeout=60)
            assert victims[number].returncode == -9, "it ended by itself"
            if Lake(lake).table("messages").refresh() is not None:
                found = offsets(lake)
                assert found == list(range(len(found)))
                assert len(found) >= seen
                seen = len(found)
            victims[number] = start(data, lake, tmp_path / str(number))
        deadline = time.monotonic() + 100
        while Lake(lake).table("messages").watermark().commits < 5 * KILLS:  # on a busy machine most may die before their first
            assert time.monotonic() < deadline, "no writer gets anywhere"
            pause.wait(0.05)
    finally:
        for victim in victims:
            victim.kill()
            victim.communicate()
    end = Lake(lake).table("messages").watermark().streams["orders"].offset
    assert offsets(lake) == list(range(end))
