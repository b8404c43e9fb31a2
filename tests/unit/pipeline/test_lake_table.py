"""A table on a disk that may stop at any operation: every row is there once, and the directory is what the manifest says."""

from __future__ import annotations

import errno
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import Aborted, DataLoss, FailedPrecondition, InvalidArgument
from penstock.pipeline.core.offsets import Position
from penstock.pipeline.lake import table as table_module
from penstock.pipeline.lake.files import HIDDEN, Disk, Lock
from penstock.pipeline.lake.table import GRACE, Lake, Staged, Table
from penstock.testing import ManualClock

DAY = "2026-01-31"


class Killed(BaseException):
    """The process is gone: no handler may go on."""


class DyingDisk(Disk):
    """A disk whose process is killed before its operation number `life`; from then on nothing happens any more."""

    def __init__(self, life: int) -> None:
        self.life = life

    def _step(self) -> None:
        self.life -= 1
        if self.life < 0:
            raise Killed

    def _write(self, path: Path, content: bytes) -> None:
        self._step()
        path.write_bytes(content[: len(content) // 2])
        self._step()
        super()._write(path, content)

    def make(self, path: Path) -> None:
        self._step()
        super().make(path)

    def move(self, source: Path, target: Path) -> bool:
        self._step()
        return super().move(source, target)

    def sync(self, path: Path) -> None:
        self._step()
        super().sync(path)

    def remove(self, path: Path) -> None:
        self._step()
        super().remove(path)


class FailingDisk(DyingDisk):
    """A disk on which operation number `life` fails, and no other: full for a moment, say."""

    def _step(self) -> None:
        self.life -= 1
        if self.life == -1:
            raise OSError(errno.ENOSPC, "no space left on device")


def rows_of(path: Path) -> list[str]:
    return path.read_text().splitlines()


def staged(table: Table, stream: str, number: int, first: int, stop: int) -> Staged:
    path = table.stage() / f"{first}.zstd.txt"
    path.write_text("".join(f"{stream} {number} {offset}\n" for offset in range(first, stop)))
    return Staged(path, stop - first, DAY, stream, number, first, stop - 1)


def append(table: Table, stop: int, *, stream: str = "orders", number: int = 7) -> None:
    base = table.watermark()
    before = base.get(stream, Position(number, 0))
    first = before.offset if before.number == number else 0
    table.commit([staged(table, stream, number, first, stop)], watermark={stream: Position(number, stop)}, base=base)


def compact(table: Table) -> None:
    files = table.files("orders")[:2]
    if len(files) == 2:
        path = table.stage() / "whole.zstd.txt"
        path.write_text("".join((table.lake / file.path).read_text() for file in files))
        whole = Staged(path, sum(file.rows for file in files), DAY, "orders", 7, files[0].first, files[1].last)
        table.commit([whole], remove=[file.path for file in files])


def listed(table: Table) -> set[str]:
    return {str(path.relative_to(table.lake)) for path in table.root.rglob("*") if path.is_file()}


def left(table: Table) -> list[Path]:
    return [path for path in (table.lake / HIDDEN / "staging").rglob("*") if path.is_file()]


def check_at_rest(lake: Path) -> Table:
    """All rows below the watermark are there, once; the directory is the manifest; nothing is left in staging."""
    table = Lake(lake).table("messages")
    table.recover()
    table.close()
    files = table.files()
    assert listed(table) == {file.path for file in files}
    assert left(table) == []
    for file in files:
        assert (lake / file.path).stat().st_size == file.bytes
    found = Counter(row for file in files for row in rows_of(lake / file.path))
    wanted = Counter(
        f"{stream} {position.number} {offset}"
        for stream, position in table.watermark().items()
        for offset in range(position.offset)
    )
    assert found == wanted
    return table


def two_commits(lake: Path) -> Path:
    """A lake with five rows in two files."""
    with Lake(lake).table("messages") as table:
        append(table, 3)
        append(table, 5)
    return lake


def die(table: Table) -> None:
    """What the kernel does for a process that ends."""
    if table._lock is not None:
        table._lock.release()


def test_what_was_committed_is_there_under_its_final_name(tmp_path: Path) -> None:
    with Lake(tmp_path).table("messages") as table:
        append(table, 3)
        append(table, 5)
        append(table, 2, stream="a/b")

        assert table.watermark() == {"orders": (7, 5), "a/b": (7, 2)}
        assert [(file.first, file.last) for file in table.files("orders")] == [(0, 2), (3, 4)]
        assert [file.path for file in table.files("a/b")] == [
            "messages/stream=a%2Fb/date=2026-01-31/part-0000000003-00000.zstd.txt"
        ]
        assert listed(table) == {file.path for file in table.files()}
    check_at_rest(tmp_path)


def test_a_new_lake_is_empty_and_reading_makes_nothing(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    table = Lake(lake).table("messages")

    assert table.watermark() == {}
    assert table.files() == []
    table.recover()
    assert not lake.exists()


@pytest.mark.parametrize("operation", ["append", "compact", "recover", "fold"])
def test_killed_at_every_operation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str) -> None:
    """Whatever the disk did last: what was there stays, what was decided is finished, what was not is gone."""
    template = two_commits(tmp_path / "template")
    for life in range(200):
        lake = tmp_path / str(life)
        shutil.copytree(template, lake)
        if operation == "recover":
            half = Lake(lake, disk=DyingDisk(14)).table("messages")
            with pytest.raises(Killed):
                append(half, 9)
            die(half)
        if operation == "fold":
            monkeypatch.setattr(table_module, "FOLD", 3)
        victim = Lake(lake, disk=DyingDisk(life)).table("messages")
        try:
            if operation == "recover":
                victim.recover()
            elif operation == "compact":
                compact(victim)
            else:
                append(victim, 9)
        except Killed:
            is_over = False
        else:
            is_over = True
        die(victim)
        monkeypatch.undo()
        table = check_at_rest(lake)
        assert table.watermark()["orders"].offset in {5, 9}
        if is_over:
            break
        shutil.rmtree(lake)
    else:
        pytest.fail("it never came to its end")
    assert life > 5, "the operations were counted"


@pytest.mark.parametrize("operation", ["append", "compact", "fold"])
def test_a_disk_that_fails_at_any_operation_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    """The writer lives on, and clears away what it staged: not what the manifest has already."""
    template = two_commits(tmp_path / "template")
    for life in range(200):
        lake = tmp_path / str(life)
        shutil.copytree(template, lake)
        if operation == "fold":
            monkeypatch.setattr(table_module, "FOLD", 3)
        failing = FailingDisk(life)
        with suppress(OSError), Lake(lake, disk=failing).table("messages") as victim:
            try:
                compact(victim) if operation == "compact" else append(victim, 9)
            finally:
                for folder in (lake / HIDDEN / "staging" / "messages").glob("*/*/"):
                    victim.discard(folder)
        monkeypatch.undo()
        assert check_at_rest(lake).watermark()["orders"].offset in {5, 9}
        if failing.life >= 0:
            break
        shutil.rmtree(lake)
    else:
        pytest.fail("it never came to its end")
    assert life > 5, "the operations were counted"


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["append", "append", "compact", "again", "recover"]), st.integers(0, 60), st.integers(0, 1)),
        max_size=14,
    ),
    fold=st.integers(1, 5),
)
def test_any_history_of_kills_leaves_every_row_once(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int]], fold: int
) -> None:
    """Two writers, each killed now and then in the middle of what it does, then started again; some see old versions."""
    lake = tmp_path_factory.mktemp("lake")
    writers: list[Table | None] = [None, None]
    number, confirmed = 7, Position(0, 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_module, "FOLD", fold)
        for action, life, who in steps:
            writer = writers[who]
            if writer is None:
                writer = writers[who] = Lake(lake, disk=DyingDisk(1 << 30)).table("messages")
                writer.recover()
            disk = writer._disk
            assert isinstance(disk, DyingDisk)
            disk.life = life
            number += action == "again"
            try:
                if action in {"append", "again"}:
                    if action == "again":  # the stream was deleted and made again; its old rows must not count as missing
                        stream = f"other{number}"
                        append(writer, 3, stream=stream)
                    else:
                        append(writer, writer.watermark().get("orders", Position(7, 0)).offset + 4)
                        confirmed = max(confirmed, writer.watermark()["orders"])
                elif action == "compact":
                    writer.recover()
                    compact(writer)
                else:
                    writer.recover()
                disk.life = 1 << 30
            except Killed:
                die(writer)
                writers[who] = None
        for writer in writers:
            if writer is not None:
                writer.close()
        table = check_at_rest(lake)
        assert table.watermark().get("orders", Position(0, 0)) >= confirmed
    shutil.rmtree(lake)


def test_two_writers_that_made_the_same_rows(tmp_path: Path) -> None:
    """Both read offsets 0 to 4; one of them is told so, and adds nothing."""
    one, two = (Lake(tmp_path).table("messages") for _ in range(2))
    first, second = staged(one, "orders", 7, 0, 5), staged(two, "orders", 7, 0, 5)
    one.commit([first], watermark={"orders": Position(7, 5)}, base={})

    with pytest.raises(Aborted, match="another archive"):
        two.commit([second], watermark={"orders": Position(7, 5)}, base={})
    one.close()
    two.close()
    check_at_rest(tmp_path)


def test_a_writer_of_other_streams_is_no_obstacle(tmp_path: Path) -> None:
    one, two = (Lake(tmp_path).table("messages") for _ in range(2))
    append(one, 3)
    two.state()
    append(one, 5)
    append(two, 4, stream="bills")
    append(one, 9)

    assert two.watermark() == {"orders": (7, 9), "bills": (7, 4)}
    one.close()
    two.close()
    check_at_rest(tmp_path)


def test_a_recovery_leaves_a_writer_that_lives_alone(tmp_path: Path) -> None:
    writer = Lake(tmp_path).table("messages")
    waiting = staged(writer, "orders", 7, 0, 5)
    Lake(tmp_path).table("messages").recover()

    writer.commit([waiting], watermark={"orders": Position(7, 5)}, base={})
    writer.close()
    check_at_rest(tmp_path)


def test_a_recovery_removes_what_a_dead_writer_left(tmp_path: Path) -> None:
    writer = Lake(tmp_path).table("messages")
    staged(writer, "orders", 7, 0, 5)
    die(writer)
    table = Lake(tmp_path).table("messages")
    assert len(left(table)) == 2
    table.recover()
    assert left(table) == []


def test_ten_thousand_commits_are_read_as_quickly_as_a_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "FOLD", 10)
    with Lake(tmp_path).table("messages") as table:
        for stop in range(1, 101):
            append(table, stop)
            if stop % 7 == 0:
                compact(table)
        home = tmp_path / HIDDEN / "messages"
        assert len(list(home.iterdir())) < 25
        reader = Lake(tmp_path).table("messages")
        assert reader.watermark() == {"orders": (7, 100)}
        assert len(reader._recent) < 10
        append(table, 101)
        assert reader.watermark() == {"orders": (7, 101)}, "a reader follows"
    check_at_rest(tmp_path)


def test_a_writer_that_slept_through_folds_does_not_take_an_old_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its next number is free again: the commit with it was folded and removed."""
    monkeypatch.setattr(table_module, "FOLD", 5)
    sleeper, busy = (Lake(tmp_path).table("messages") for _ in range(2))
    append(sleeper, 1)
    waiting = staged(sleeper, "bills", 7, 0, 5)
    old = sleeper._numbers()
    for stop in range(2, 30):
        append(busy, stop)
    state = sleeper._state
    assert state.version == 1
    assert not (tmp_path / HIDDEN / "messages" / f"{2:020}.json").exists()
    answers = iter([old])  # what it saw before it fell asleep
    real = sleeper._numbers
    monkeypatch.setattr(sleeper, "_numbers", lambda: next(answers, None) or real())

    commit = sleeper.commit([waiting], watermark={"bills": Position(7, 5)}, base={})
    assert commit.version == 30
    sleeper.close()
    busy.close()
    assert check_at_rest(tmp_path).watermark() == {"orders": (7, 29), "bills": (7, 5)}


def test_readers_find_a_file_wherever_it_is(tmp_path: Path) -> None:
    class Slow(Disk):
        def move(self, source: Path, target: Path) -> bool:
            seen.append([path for path in reader.places(reader.files()[0]) if path.exists()])
            return super().move(source, target)

    seen: list[list[Path]] = []
    reader = Lake(tmp_path).table("messages")
    with Lake(tmp_path, disk=Slow()).table("messages") as table:
        append(table, 3)
        assert seen[0], "decided, not renamed yet"
        old = reader.files()[0]
        append(table, 5)
        compact(table)
    assert [rows_of(path) for path in reader.places(old) if path.exists()] == [[f"orders 7 {n}" for n in range(3)]]


def test_replaced_files_stay_for_an_hour(tmp_path: Path) -> None:
    with Lake(tmp_path).table("messages") as table:
        append(table, 3)
        append(table, 5)
        compact(table)
    removed = tmp_path / HIDDEN / "removed"
    made = max(path.stat().st_ctime_ns // 1000 for path in removed.rglob("*.txt"))
    for late, wanted in ((GRACE - 1_000_000, 2), (GRACE + 1_000_000, 0)):
        Lake(tmp_path, clock=ManualClock((made + late) / 1_000_000)).table("messages").recover()
        assert len(list(removed.rglob("*.txt"))) == wanted


def test_only_what_was_staged_here_can_be_committed(tmp_path: Path) -> None:
    with Lake(tmp_path / "lake").table("messages") as table:
        outside = tmp_path / "outside.txt"
        outside.write_text("")
        table.stage()
        with pytest.raises(InvalidArgument, match="stage"):
            table.commit([Staged(outside, 0, DAY)])
        with pytest.raises(FailedPrecondition, match="gone"):
            table.commit([Staged(table.stage() / "missing.txt", 0, DAY)])
        assert table.state().version == 0


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda home: (home / f"{2:020}.json").unlink(), "hole after version 1"),
        (lambda home: (home / f"{2:020}.json").write_text("{"), "not what was written"),
        (lambda home: (home / f"{2:020}.json").write_text((home / f"{3:020}.json").read_text()), "from 1 to 3"),
        (
            lambda home: (home / f"{2:020}.json").write_text(
                (home / f"{1:020}.json").read_text().replace('"version":1', '"version":2')
            ),
            "does not follow",
        ),
        (
            lambda home: (home / f"{2:020}.json").write_text(
                (home / f"{2:020}.json").read_text().replace('"format":1', '"format":2')
            ),
            "format 2",
        ),
    ],
)
def test_a_damaged_manifest_is_told_and_not_repaired(tmp_path: Path, damage: Callable[[Path], object], words: str) -> None:
    with Lake(tmp_path).table("messages") as table:
        for stop in (3, 5, 7):
            append(table, stop)
    damage(tmp_path / HIDDEN / "messages")

    with pytest.raises(DataLoss, match=words):
        Lake(tmp_path).table("messages").watermark()


def test_a_file_that_somebody_took_away_is_told(tmp_path: Path) -> None:
    with Lake(tmp_path).table("messages") as table:
        append(table, 3)
        (tmp_path / table.files()[0].path).unlink()

        with pytest.raises(DataLoss, match="neither there nor"):
            table.recover()


@pytest.mark.parametrize("name", ["", "Messages", "a/b", "_penstock", "../x", "x" * 65])
def test_names_of_tables_are_checked(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidArgument, match="table"):
        Lake(tmp_path).table(name)


def test_a_lock_that_was_removed_is_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "LOCK"
    held = Lock.take(path)
    assert held is not None
    assert Lock.take(path) is None
    path.unlink()
    other = Lock.take(path)
    assert other is not None
    other.release()
    held.release()
    held.release()
    assert Lock.take(tmp_path / "missing" / "LOCK") is None
