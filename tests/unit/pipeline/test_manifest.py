"""The manifest without a disk: which commits may follow, what a table then holds, and what a compaction would merge."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import Aborted, DataLoss, InvalidArgument, PenstockError
from penstock.pipeline.core.manifest import (
    Commit,
    File,
    Snapshot,
    State,
    floor,
    merged,
    mergers,
    pending,
    runs,
)
from penstock.pipeline.core.offsets import Position


def file(first: int, last: int, *, size: int = 10, stream: str = "orders", number: int = 7, date: str = "2026-01-31") -> File:
    path = f"messages/stream={stream}/date={date}/part-{number}-{first}-{last}.parquet"
    return File(path, f"staging/{first}", last - first + 1, size, date, stream, number, first, last)


def append(version: int, base: int | None, stop: int, *, stream: str = "orders", number: int = 7) -> Commit:
    before = {} if base is None else {stream: Position(number, base)}
    return Commit(version, 0, before, {stream: Position(number, stop)}, [file(base or 0, stop - 1, stream=stream)], [])


def state_of(*commits: Commit) -> State:
    state = State()
    for commit in commits:
        state.apply(commit)
    return state


def test_commits_are_folded_in_order() -> None:
    state = state_of(append(1, None, 5), append(2, 5, 8), append(3, None, 2, stream="bills"))

    assert state.version == 3
    assert state.watermark == {"orders": (7, 8), "bills": (7, 2)}
    assert [(each.stream, each.first, each.last) for each in state.files.values()] == [
        ("orders", 0, 4),
        ("orders", 5, 7),
        ("bills", 0, 1),
    ]


def test_a_state_comes_back_from_its_snapshot() -> None:
    state = state_of(append(1, None, 5), append(2, 5, 8))
    stored = msgspec.json.decode(msgspec.json.encode(state.snapshot()), type=Snapshot)

    again = State(stored)
    assert (again.version, again.watermark, again.files) == (state.version, state.watermark, state.files)
    again.apply(append(3, 8, 9))
    assert again.watermark["orders"] == Position(7, 9)


def test_a_stream_made_again_goes_on_from_its_new_number() -> None:
    state = state_of(append(1, None, 5))
    commit = Commit(2, 0, {"orders": Position(7, 5)}, {"orders": Position(9, 3)}, [file(0, 2, number=9)], [])
    state.apply(commit)

    assert state.watermark["orders"] == Position(9, 3)
    assert len(state.files) == 2
    assert floor(state.watermark, "orders", 9) == 3
    assert floor(state.watermark, "orders", 10) == 0
    assert floor(state.watermark, "bills", 1) == 0


def test_a_commit_that_does_not_fit_changes_nothing(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Commit, type[PenstockError], str]] = [
        (append(3, 5, 8), DataLoss, "from 1 to 3"),
        (append(1, 5, 8), DataLoss, "from 1 to 1"),
        (append(2, 4, 8), Aborted, "another"),
        (append(2, None, 8), Aborted, "another"),
        (append(2, 5, 8, number=8), Aborted, "another"),
        (Commit(2, 0, {"orders": Position(7, 5)}, {"orders": Position(7, 4)}, [], []), InvalidArgument, "never decreases"),
        (Commit(2, 0, {"orders": Position(7, 5)}, {"orders": Position(6, 9)}, [], []), InvalidArgument, "never decreases"),
        (Commit(2, 0, {}, {}, [], ["messages/other"]), Aborted, "not in the table"),
        (Commit(2, 0, {}, {}, [file(0, 4)], []), InvalidArgument, "not in the table yet"),
        (Commit(2, 0, {}, {}, [msgspec.structs.replace(file(5, 6), rows=3)], []), InvalidArgument, "one row for each offset"),
        (Commit(2, 0, {}, {}, [msgspec.structs.replace(file(5, 6), rows=-1)], []), InvalidArgument, "one row for each offset"),
    ]
    for commit, error, words in cases:
        with subtests.test(commit=commit, error=error, words=words):
            state = state_of(append(1, None, 5))
            before = state.snapshot()

            with pytest.raises(error, match=words):
                state.apply(commit)
            assert state.snapshot() == before


def test_pending_is_what_the_watermark_has_not_reached() -> None:
    watermark = {"a": Position(1, 10), "b": Position(2, 5), "c": Position(3, 7)}
    ends = {"a": Position(1, 10), "b": Position(2, 6), "c": Position(8, 0), "d": Position(4, 0), "a2": Position(9, 1)}

    assert pending(watermark, ends) == {"b": (2, 6), "c": (8, 0), "d": (4, 0), "a2": (9, 1)}
    assert pending({"a": Position(2, 1)}, {"a": Position(1, 99)}) == {}, "the stream's older self"


def test_runs_end_at_holes_and_leave_out_files_that_lack_rows() -> None:
    lacking = msgspec.structs.replace(file(20, 29), rows=9)

    assert runs([file(5, 9), file(0, 4), file(12, 19), lacking, file(30, 31)]) == [(0, 10), (12, 20), (30, 32)]
    assert runs([]) == []


def sizes(*given: int) -> list[File]:
    return [file(10 * index, 10 * index + 9, size=size) for index, size in enumerate(given)]


def test_small_neighbours_are_merged(subtests: pytest.Subtests) -> None:
    cases: list[tuple[list[int], int, bool, list[list[int]]]] = [
        ([10, 10, 10], 2, True, [[0, 1, 2]]),
        ([10, 10, 10], 4, True, []),
        ([40, 40, 40, 40], 2, True, [[0, 1], [2, 3]]),
        ([10, 100, 10, 10], 2, True, [[2, 3]]),  # one that is large enough parts its neighbours
        ([500, 1, 1], 2, True, [[1, 2]]),
        ([1], 2, True, []),
        ([], 2, True, []),
        ([50, 10, 10], 2, False, [[1, 2]]),  # the large one waits for more of the small ones
        ([50, 30, 20], 2, False, [[0, 1, 2]]),
        ([64, 16, 4], 2, False, []),
    ]
    for given_sizes, min_files, is_thorough, wanted in cases:
        with subtests.test(given_sizes=given_sizes, min_files=min_files, is_thorough=is_thorough, wanted=wanted):
            found = mergers(sizes(*given_sizes), target_bytes=100, min_files=min_files, is_thorough=is_thorough)

            assert [[each.first // 10 for each in group] for group in found] == wanted


def test_files_of_another_stream_incarnation_date_or_format_are_not_merged() -> None:
    others = [
        file(0, 1),
        file(2, 3, stream="bills"),
        file(2, 3, number=8),
        file(2, 3, date="2026-02-01"),
        msgspec.structs.replace(file(2, 3), path="messages/part.orc"),
    ]

    assert mergers(others, target_bytes=1000) == []


def test_files_are_not_merged_over_a_hole_in_their_offsets() -> None:
    """As retention leaves one that was faster than the archive; before and after it, all can be read."""
    lacking = msgspec.structs.replace(file(40, 49), rows=9)
    files = [file(0, 9), file(10, 19), file(30, 34), file(35, 39), lacking, file(50, 54), file(55, 59)]

    groups = mergers(files, target_bytes=1000)

    assert [[each.first for each in group] for group in groups] == [[0, 10], [30, 35], [50, 55]]
    without = [msgspec.structs.replace(each, first=0, last=-1) for each in files]
    assert [len(group) for group in mergers(without, target_bytes=1000)] == [7]


@given(given_sizes=st.lists(st.integers(1, 200), max_size=30), is_thorough=st.booleans())
def test_groups_are_neighbours_that_fit(given_sizes: list[int], is_thorough: bool) -> None:
    files = sizes(*given_sizes)
    groups = mergers(files, target_bytes=100, is_thorough=is_thorough)

    seen: set[str] = set()
    for group in groups:
        places = [files.index(each) for each in group]
        assert places == list(range(places[0], places[0] + len(group)))
        assert sum(each.bytes for each in group) <= 100
        assert len(group) >= 2
        assert seen.isdisjoint(each.path for each in group)
        seen.update(each.path for each in group)


def test_a_lazy_compaction_copies_a_row_a_few_times_only() -> None:
    """A file a batch, a compaction every ten: after 10,000 batches each row was copied about log2(10,000 / 10) times."""
    files: list[File] = []
    copied = 0
    for batch in range(10_000):
        files.append(file(batch, batch, size=1))
        if batch % 10 == 9:
            for group in mergers(files[-200:], target_bytes=1 << 30, min_files=5, is_thorough=False):
                place = files.index(group[0])
                size = sum(each.bytes for each in group)
                copied += size
                files[place : place + len(group)] = [file(group[0].first, group[-1].last, size=size)]

    assert copied / 10_000 < 16
    assert len(files) < 50


def test_limits_of_a_compaction_are_checked(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, int]] = [("target_bytes", 0), ("target_bytes", -1), ("min_files", 1), ("min_files", 0)]
    for name, value in cases:
        with subtests.test(name=name, value=value), pytest.raises(InvalidArgument, match=name):
            mergers([], target_bytes=value if name == "target_bytes" else 100, min_files=value if name == "min_files" else 2)


def test_a_merger_keeps_rows_and_offsets() -> None:
    files = [file(0, 4), file(5, 9)]

    assert merged(files, 10) == (0, 9)
    with pytest.raises(DataLoss, match="nothing was changed"):
        merged(files, 9)
