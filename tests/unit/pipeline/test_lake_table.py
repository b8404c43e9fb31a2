"""A table of the lake: a commit happens once or not at all, whoever repeats it; what readers need is kept."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from penstock.errors import DataLoss, FailedPrecondition, InvalidArgument
from penstock.pipeline.lake.table import ARCHIVE, KEPT_DAYS, SHAPES, ArchivedSpan, Lake, Watermark, lake_address, local_path
from tests.unit.pipeline.lakes import messages, offsets, store, write

pytestmark = pytest.mark.alone

DAY = 86_400


def test_a_lake_is_a_path_a_file_url_or_an_object_store(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str | Path, str]] = [
        ("/data/lake", "/data/lake"),
        ("/data/./x/../lake/", "/data/lake"),
        ("file:/data/lake", "/data/lake"),
        ("file:///data/my%20lake", "/data/my lake"),
        ("file://localhost/data", "/data"),
        (Path("/data/a:b"), "/data/a:b"),
        ("s3://bucket/lake/", "s3://bucket/lake"),
        ("gs://bucket", "gs://bucket"),
        ("az://container/lake", "az://container/lake"),
    ]
    for given, address in cases:
        with subtests.test(given=given):
            assert lake_address(given) == address


def test_a_relative_path_is_of_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert lake_address("lake") == str(tmp_path / "lake")


def test_other_places_are_refused(subtests: pytest.Subtests) -> None:
    cases: list[Any] = ["", "s3://", "hdfs:///lake", "file://other-host/lake", "file:relative", "dbfs:/x", "a\0b", 7, None]
    for given in cases:
        with subtests.test(given=given), pytest.raises(InvalidArgument, match="lake"):
            lake_address(given)
    with pytest.raises(InvalidArgument, match="checkpoint is 's3://bucket', expected the path of a directory, or a file: URL"):
        local_path("s3://bucket", "checkpoint")
    with pytest.raises(InvalidArgument, match="table"):
        Lake("lake").table("../x")


def test_a_lake_with_a_manifest_is_refused_with_what_to_do(tmp_path: Path) -> None:
    commit = tmp_path / "_penstock" / "messages" / f"{7:020}.json"
    commit.parent.mkdir(parents=True)
    commit.write_text("{}")

    with pytest.raises(FailedPrecondition, match="format of an older version") as caught:
        Lake(tmp_path)
    assert "archive into a new directory" in str(caught.value.hint)


def test_a_new_lake_is_empty_and_reading_makes_nothing(tmp_path: Path) -> None:
    table = Lake(tmp_path / "lake").table("messages")

    assert table.watermark() == Watermark(0, {})
    assert table.files() == []
    assert Lake(tmp_path / "lake").tables() == []
    with pytest.raises(FailedPrecondition, match="there is no table"):
        _ = table.delta
    assert not (tmp_path / "lake").exists()


def test_a_version_is_committed_once(tmp_path: Path) -> None:
    """delta-rs itself takes a second commit of the same version: the table must ask before."""
    table = Lake(tmp_path).table("messages")
    first, again, other = (write(tmp_path, "messages", messages("orders", range(5))) for _ in range(3))

    assert table.commit(first, "app", 3)
    assert not table.commit(again, "app", 3)
    assert not Lake(tmp_path).table("messages").commit(again, "app", 2)
    assert table.commit(other, "another", 0)
    assert offsets(tmp_path) == sorted([*range(5)] * 2)


def test_of_writers_at_once_each_version_is_taken_by_one(tmp_path: Path) -> None:
    write(tmp_path, "messages", messages("orders", range(1)))
    won: list[int] = []
    start = threading.Barrier(4)

    def run() -> None:
        table = Lake(tmp_path).table("messages")
        start.wait(30)
        for version in range(12):
            files = write(tmp_path, "messages", messages("orders", [version]))
            if table.commit(files, "app", version):
                won.append(version)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert sorted(won) == offsets(tmp_path)
    assert set(won) <= set(range(12))
    assert len(won) == len(set(won))


def test_how_far_the_archive_is_stays_known_under_other_commits(tmp_path: Path) -> None:
    store(tmp_path, "orders", 0, 5)
    store(tmp_path, "x" * 250, 0, 2)
    table = Lake(tmp_path).table("messages")
    for version in range(12):
        assert table.commit(write(tmp_path, "messages", messages("more", [version])), "app", version)

    known = Watermark(2, {"orders": ArchivedSpan(7, 0, 5), "x" * 250: ArchivedSpan(7, 0, 2)})
    assert table.watermark() == Lake(tmp_path).table("messages").watermark() == known


def test_a_watermark_that_was_lost_is_told(tmp_path: Path) -> None:
    table = Lake(tmp_path).table("messages")
    assert table.commit(write(tmp_path, "messages", messages("orders", range(5))), ARCHIVE, 1)

    with pytest.raises(DataLoss, match="commit 1 of the archive has left the log"):
        table.watermark()


def test_a_checkpoint_is_written_every_hundred_commits(tmp_path: Path) -> None:
    table = Lake(tmp_path).table("messages")
    files = write(tmp_path, "messages", messages("orders", range(1)))
    for version in range(102):
        assert table.commit(files if version == 0 else [], "app", version)

    assert list((tmp_path / "messages" / "_delta_log").glob(f"{99:020}.checkpoint*.parquet"))
    again = Lake(tmp_path).table("messages")
    assert not again.commit(files, "app", 101), "applications are in the checkpoint"
    assert offsets(tmp_path) == [0]


def test_a_table_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    Lake(tmp_path).table("messages").create(SHAPES["events"])

    with pytest.raises(FailedPrecondition, match="other columns"):
        Lake(tmp_path).table("messages").create(SHAPES["messages"])


def test_small_files_are_merged_and_nothing_else_changes(tmp_path: Path) -> None:
    streams = ["orders", "a'b/%=", "x" * 250]
    for stop in range(5, 25, 5):
        for stream in streams:
            store(tmp_path, stream, stop - 5, stop)
    table = Lake(tmp_path).table("messages")
    before, count = table.watermark(), len(table.files())
    assert table.compact(1 << 20, min_files=99).files_before == 0
    report = table.compact(1 << 20, min_files=2)

    assert table.watermark() == before
    assert len(table.files()) == count - report.files_before + report.files_after
    assert len(table.files("orders")) == 3, "one for each day"
    assert len(table.files("x" * 250)) == 6, "its name is too long for a directory of delta-rs"
    assert table.compact(1 << 20).files_before == 0, "nothing is left to do"
    for stream in streams:
        assert offsets(tmp_path, stream) == list(range(20))


def test_vacuum_keeps_for_a_week_what_readers_may_have_planned_with(tmp_path: Path) -> None:
    for start in range(4):
        store(tmp_path, "orders", start, start + 1)
    table = Lake(tmp_path).table("messages")
    reading = [DeltaTable(str(tmp_path / "messages")).to_pyarrow_dataset(), *write(tmp_path, "messages", messages("orders", [9]))]
    table.compact(1 << 20)
    old, young = (write(tmp_path, "messages", messages("orders", [9]))[0].path for _ in range(2))
    now = (tmp_path / "messages" / old).stat().st_mtime
    os.utime(tmp_path / "messages" / old, (now - (KEPT_DAYS + 1) * DAY,) * 2)
    os.utime(tmp_path / "messages" / young, (now - (KEPT_DAYS - 1) * DAY,) * 2)

    assert table.vacuum() == 0
    assert table.vacuum(is_full=True) == 1, "what a killed writer left more than a week ago"
    assert not (tmp_path / "messages" / old).exists()
    assert (tmp_path / "messages" / young).exists()
    assert sorted(reading[0].to_table()["offset"].to_pylist()) == [0, 1, 2, 3], "a reader that began before the merge"
    assert offsets(tmp_path) == [0, 1, 2, 3]
