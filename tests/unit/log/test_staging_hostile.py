"""Staged writes under attack: what comes at the wrong moment, is damaged, or is much larger than it looks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import Broker
from penstock.errors import BrokerClosed, CorruptLog, FailedPrecondition, InvalidArgument, PartNotFound, PermissionDenied
from penstock.journal.journal import Commit
from penstock.log import arrow_sizes, staged_part
from penstock.log.staging import Staging, StagingLimits
from penstock.log.writes import CommitResult, Writer
from penstock.values.descriptions import StreamDescription
from tests.unit.log.desk import Desk, body_of, finder, opened, rows

MIB = 1024 * 1024


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with opened(tmp_path) as broker:
        yield broker


@pytest.fixture
def desk(broker: Broker) -> Iterator[Desk]:
    desk = Desk(broker)
    yield desk
    desk.writes.close()


# ── at the wrong moment ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("meddle", ["abort", "stage"])
def test_what_comes_while_a_commit_is_decided_changes_nothing(desk: Desk, meddle: str) -> None:
    """The finder is asked after the parts were looked at and before the decision: the moment for mischief."""
    desk.stage("w", "p", rows(value=["a", "b"]))
    refused: list[str] = []

    def meddling(name: str) -> StreamDescription:
        if meddle == "abort":
            desk.writes.abort("w")
        else:
            with pytest.raises(FailedPrecondition, match="is being published") as raised:
                desk.stage("w", "p", rows(value=["other"]))
            refused.append(str(raised.value))
        return finder(desk.broker)(name)

    done = desk.writes.commit("w", ["p"], query="q", batch=0, find=meddling)

    assert done == CommitResult(2, is_repeat=False)
    assert desk.values() == [b"a", b"b"]
    assert len(refused) == (meddle == "stage")


def test_a_part_is_not_replaced_by_another_token_whoever_came_first(desk: Desk) -> None:
    staging = desk.writes.staging
    late = staging.upload("w", "p", "theirs")  # it began before anything was staged
    late.write(body_of(rows(value=["theirs"])))
    with staging.upload("w", "p", "mine") as upload:
        upload.write(body_of(rows(value=["mine"])))
        desk.writes.settle(upload, finder(desk.broker), stream="t")

    with late, pytest.raises(PermissionDenied, match="parts of write w, which another token has staged"):
        desk.writes.settle(late, finder(desk.broker), stream="t")
    for known in (staging, Staging(staging.root)):  # also after a restart
        with pytest.raises(PermissionDenied):
            known.upload("w", "q", "theirs")
    assert desk.commit("w", "p").rows == 1
    assert desk.values() == [b"mine"]


def test_a_finished_write_without_a_query_is_repeated_only_by_tokens_that_could_have_published_it(desk: Desk) -> None:
    desk.stage("w", "p", rows(value=["a", "b"]))
    find = finder(desk.broker)

    def commit(writer: Writer) -> CommitResult:
        return desk.writes.commit("w", ["p"], find=find, writer=writer)

    mine, theirs = Writer("mine", lambda _: False), Writer("theirs", lambda stream: stream == "other")
    assert commit(mine) == CommitResult(2, is_repeat=False)
    with pytest.raises(PermissionDenied):
        commit(theirs)
    assert commit(mine) == CommitResult(2, is_repeat=True)
    assert commit(Writer("trusted", lambda stream: stream == "t")) == CommitResult(2, is_repeat=True)
    desk.stage("w", "p", rows(value=["c"]))
    assert commit(theirs) == CommitResult(1, is_repeat=False), "another write of the same name"


def test_a_part_that_was_being_checked_when_the_commit_came_does_not_enter(desk: Desk) -> None:
    desk.stage("w", "p", rows(value=["a", "b"]))
    find = finder(desk.broker)

    def committing(name: str) -> StreamDescription:
        desk.writes.commit("w", ["p"], query="q", batch=0, find=failing)
        return find(name)

    def failing(name: str) -> StreamDescription:
        with pytest.raises(FailedPrecondition, match="is being published"):
            desk.writes.staging.enter("w", "p", upload._coming, info)  # the last step of settling a part
        return find(name)

    info = desk.writes.staging.parts("w")["p"]
    with desk.writes.staging.upload("w", "p") as upload:
        upload.write(body_of(rows(value=["other"])))
        with pytest.raises(FailedPrecondition, match="was aborted or committed"):
            desk.writes.settle(upload, committing, stream="t")
    assert desk.values() == [b"a", b"b"]


def test_a_commit_that_was_refused_leaves_the_write_as_it_was(desk: Desk) -> None:
    desk.stage("w", "p", rows(value=["a"]))
    with pytest.raises(PartNotFound):
        desk.commit("w", "p", "missing")

    assert [is_published for _, is_published in desk.writes.listed()] == [False]
    desk.stage("w", "p", rows(value=["b"]))
    assert desk.commit("w", "p") == CommitResult(1, is_repeat=False)
    assert desk.values() == [b"b"]


def test_a_slice_on_its_way_is_waited_for_when_the_next_one_cannot_be_made(
    tmp_path: Path, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While nobody knows whether a slice is in the log, nobody may publish it again."""
    monkeypatch.setattr(staged_part, "SLICE_ROWS", 10)
    desk.stage("w", "p", rows(value=[str(number) for number in range(30)]))
    append, slices = desk.broker.journal.append, staged_part.slices
    gate, troubles = threading.Event(), [OSError(5, "the disk has a bad day")]

    def slow(commit: Commit) -> None:
        if commit.appends:
            gate.wait(10)
        append(commit)

    def failing(*args: Any) -> Iterator[Any]:
        for number, one in enumerate(slices(*args)):
            if number == 1 and troubles:
                threading.Timer(0.3, gate.set).start()
                raise troubles.pop()
            yield one

    monkeypatch.setattr(desk.broker.journal, "append", slow)
    monkeypatch.setattr(staged_part, "slices", failing)
    with pytest.raises(OSError, match="bad day"):
        desk.commit("w", "p")
    assert desk.commit("w", "p").is_repeat
    assert desk.values() == [str(number).encode() for number in range(30)]


def test_closing_ends_a_commit_with_its_slice_and_the_next_start_finishes_it(
    tmp_path: Path, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged_part, "SLICE_ROWS", 10)
    desk.stage("w", "p", rows(value=[str(number) for number in range(1000)]))
    append, publishing, ended = desk.broker.journal.append, threading.Event(), []

    def telling(commit: Commit) -> None:
        append(commit)
        if commit.appends:
            publishing.set()

    def commit() -> None:
        try:
            desk.commit("w", "p")
        except BrokerClosed:
            ended.append(len(desk.values()))

    monkeypatch.setattr(desk.broker.journal, "append", telling)
    thread = threading.Thread(target=commit)
    thread.start()
    assert publishing.wait(10)
    desk.writes.close()
    count = len(desk.values())
    thread.join(10)

    assert ended == [count]
    assert count < 1000
    with pytest.raises(BrokerClosed):
        desk.commit("w", "p")
    again = Desk(desk.broker)
    assert again.commit("w", "p").is_repeat
    assert again.values() == [str(number).encode() for number in range(1000)]
    again.writes.close()


def test_closing_an_upload_waits_for_the_thread_that_checks_it(desk: Desk) -> None:
    upload = desk.writes.staging.upload("w", "p")
    upload.write(body_of(rows(value=["a"])))
    checking, go_on = threading.Event(), threading.Event()
    asked: list[str] = []

    def find(name: str) -> StreamDescription:
        asked.append(name)
        if len(asked) == 2:  # the first is for the stream of all rows
            checking.set()
            go_on.wait(10)
        return finder(desk.broker)(name)

    checker = threading.Thread(target=lambda: desk.writes.settle(upload, find, stream="t"))
    closer = threading.Thread(target=upload.close)
    checker.start()
    assert checking.wait(10)
    closer.start()
    go_on.set()
    checker.join(10)
    closer.join(10)

    size = desk.writes.staging.parts("w")["p"].bytes
    assert desk.writes.staging.bytes == size
    assert desk.commit("w", "p") == CommitResult(1, is_repeat=False)
    assert desk.writes.staging.bytes == 0


def test_parts_that_are_refused_leave_no_directories(desk: Desk) -> None:
    for number in range(3):
        with pytest.raises(InvalidArgument):
            desk.send(f"w{number}", "p", b"nonsense")
    assert [*desk.writes.staging.root.glob("*/*")] == []


# ── damage ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def cut_to_nothing(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


@pytest.mark.parametrize("damage", [Path.unlink, cut_to_nothing])
def test_a_part_whose_file_is_gone_fails_the_commit_before_it_is_decided(desk: Desk, damage: Callable[[Path], None]) -> None:
    desk.stage("w", "p", rows(value=["a"]))
    desk.stage("w", "q", rows(value=["b"]))
    damage(desk.writes.staging.path("w", "q"))

    with pytest.raises(PartNotFound, match="q of write w"):
        desk.commit("w", "p", "q")
    assert desk.values() == []
    desk.stage("w", "q", rows(value=["b"]))
    assert desk.commit("w", "p", "q") == CommitResult(2, is_repeat=False)


def half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def fewer_rows(path: Path) -> None:
    path.write_bytes(body_of(rows(value=["a"] * 3)))


def nonsense(path: Path) -> None:
    path.write_bytes(b"\xff" * path.stat().st_size)


@pytest.mark.parametrize("damage", [Path.unlink, half, fewer_rows, nonsense])
def test_a_part_that_is_damaged_after_the_decision_stops_the_query_and_nothing_else(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path], None]
) -> None:
    monkeypatch.setattr(staged_part, "SLICE_ROWS", 10)
    desk.stage("w", "p", rows(value=["a"] * 20))
    desk.stage("w", "q", rows(value=["b"] * 20))
    path, slices = desk.writes.staging.path("w", "q"), staged_part.slices
    whole = path.read_bytes()

    def damaging(*args: Any) -> Iterator[Any]:
        damage(path)
        yield from slices(*args)

    monkeypatch.setattr(staged_part, "slices", damaging)
    with pytest.raises(CorruptLog, match=r"q\.arrow"):
        desk.commit("w", "p", "q")
    monkeypatch.setattr(staged_part, "slices", slices)

    desk.stage("other", "p", rows(value=["c"]), stream="u")
    assert desk.commit("other", "p", query="other") == CommitResult(1, is_repeat=False)
    path.write_bytes(whole)
    assert desk.commit("w", "p", "q").is_repeat
    assert desk.values() == [b"a"] * 20 + [b"b"] * 20


# ── larger than it looks ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_a_compressed_batch_is_measured_before_it_is_unpacked(desk: Desk, compression: str) -> None:
    bomb = body_of(rows(value=[b"\0" * 9 * MIB] * 32), compression=compression)
    assert len(bomb) < 2 * MIB

    with pytest.raises(InvalidArgument, match=r"a batch is 30\d{7} bytes when it is unpacked, expected at most 268435456"):
        desk.send("w", "p", bomb)
    assert desk.send("w", "p", body_of(rows(value=["a"] * 1000), compression=compression)).rows == 1000


def test_a_part_counts_as_large_as_it_is_unpacked(broker: Broker) -> None:
    desk = Desk(broker, limits=StagingLimits(max_part_bytes=MIB))
    with pytest.raises(InvalidArgument, match=r"the part is \d{7} bytes when it is unpacked, expected at most 1048576"):
        desk.send("w", "p", body_of(*[rows(value=[b"\0" * 300_000])] * 4, compression="zstd"))
    desk.writes.close()


def again(kind: pa.DataType) -> pa.Array:
    """Three hundred times the same mebibyte, which is there once."""
    if pa.types.is_dictionary(kind):
        return pa.DictionaryArray.from_arrays(pa.array([0] * 300, pa.int8()), pa.array([b"x" * MIB], kind.value_type))
    views = pa.array([b"x" * MIB], kind).buffers()
    return pa.Array.from_buffers(kind, 300, [None, pa.py_buffer(views[1].to_pybytes() * 300), *views[2:]])


@pytest.mark.parametrize("kind", [pa.dictionary(pa.int8(), pa.binary()), pa.binary_view()], ids=str)
def test_bytes_that_are_said_again_and_again_are_counted_each_time(desk: Desk, kind: pa.DataType) -> None:
    bomb = body_of(rows(value=again(kind)))
    assert len(bomb) < 3 * MIB

    with pytest.raises(InvalidArgument, match="a batch is 314572800 bytes when it is unpacked"):
        desk.send("w", "p", bomb)


def test_rows_of_no_bytes_are_refused(desk: Desk) -> None:
    nothing = pa.Array.from_buffers(pa.binary(0), 1 << 30, [None, pa.py_buffer(b"")])
    with pytest.raises(InvalidArgument, match=r"column 'value' is fixed_size_binary\[0\], expected binary or string"):
        desk.send("w", "p", body_of(rows(value=nothing)))


def test_what_a_column_says_by_pointing_at_it(subtests: pytest.Subtests) -> None:
    rows: list[tuple[pa.Array, int]] = [
        (pa.array(["a" * 20, None, "bb"], pa.string_view()).slice(1), 2),
        (pa.array(["a" * 20, None, "bb", "bb"]).dictionary_encode(), 24),
        (pa.array([1, 1, 1]).dictionary_encode(), 0),
        (pa.array([[("k", "value")]] * 2, pa.map_(pa.string_view(), pa.string_view())), 12),
        (pa.array(["plain"]), 0),
        (pa.array([], pa.binary_view()), 0),
    ]
    for column, size in rows:
        with subtests.test(column=column, size=size):
            assert arrow_sizes.spread(column) == size
