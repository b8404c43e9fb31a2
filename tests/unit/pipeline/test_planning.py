"""Plans: every offset once, parts of equal size, limits kept, and a limit shared so that nobody starves."""

from __future__ import annotations

import pickle
import timeit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.pipeline.core.planning import LARGE_ROWS, SMALL_ROWS, OffsetRange, plan, share

pieces_of_streams = st.lists(st.tuples(st.integers(0, 1_000), st.integers(0, 2_000)), max_size=20).map(
    lambda sizes: [OffsetRange(f"s{number}", number, start, start + rows) for number, (start, rows) in enumerate(sizes)]
)


def offsets_of(parts: list[list[OffsetRange]]) -> list[tuple[str, int]]:
    return [(piece.stream, offset) for part in parts for piece in part for offset in range(piece.start, piece.stop)]


@given(
    pieces_of_streams, st.integers(1, 8), st.one_of(st.none(), st.integers(1, 40)), st.one_of(st.none(), st.integers(50, 5_000))
)
def test_every_offset_is_in_exactly_one_part_and_parts_are_of_equal_size(
    pieces: list[OffsetRange], cores: int, min_partitions: int | None, max_rows: int | None
) -> None:
    parts = plan(pieces, cores=cores, min_partitions=min_partitions, max_rows=max_rows)

    assert offsets_of(parts) == offsets_of([pieces])
    sizes = [sum(piece.rows for piece in part) for part in parts]
    assert max(sizes, default=0) - min(sizes, default=0) <= 1
    assert all(piece.rows > 0 for part in parts for piece in part)
    assert max(sizes, default=0) <= (max_rows or LARGE_ROWS)
    assert len(parts) >= min(min_partitions or 1, sum(sizes))
    assert plan(pieces, cores=cores, min_partitions=min_partitions, max_rows=max_rows) == parts


def test_how_many_parts(subtests: pytest.Subtests) -> None:
    cases: list[tuple[int, dict[str, int], int]] = [
        (0, {}, 0),
        (1, {}, 1),
        (SMALL_ROWS, {}, 1),
        (SMALL_ROWS + 1, {}, 2),
        (10 * SMALL_ROWS, {}, 4),
        (10 * LARGE_ROWS, {}, 10),
        (5, {"min_partitions": 3}, 3),
        (5, {"min_partitions": 30}, 5),
        (10 * SMALL_ROWS, {"min_partitions": 2}, 2),
        (10, {"max_rows": 1}, 10),
        (10, {"max_rows": 4, "min_partitions": 2}, 3),
    ]
    for rows, options, count in cases:
        with subtests.test(rows=rows, options=options, count=count):
            assert len(plan([OffsetRange("orders", 0, 7, 7 + rows)], cores=4, **options)) == count


def test_small_streams_are_gathered() -> None:
    parts = plan([OffsetRange(f"s{number:03}", number, 0, 5) for number in range(300)], cores=4)

    assert [len(part) for part in parts] == [300]


def test_planning_300_streams_takes_less_than_20_ms() -> None:
    pieces = [OffsetRange(f"s{number:03}", number, 0, 100_000) for number in range(300)]

    assert min(timeit.repeat(lambda: plan(pieces, cores=16, min_partitions=64), number=1, repeat=5)) < 0.020


def test_a_piece_survives_the_way_to_its_task() -> None:
    piece = OffsetRange("orders", 3, 10, 20)

    assert pickle.loads(pickle.dumps(piece)) == piece


@given(st.dictionaries(st.text(max_size=3), st.integers(0, 1_000), max_size=12), st.integers(1, 5_000))
def test_a_limit_is_used_up_and_kept_and_reaches_as_many_streams_as_it_can(waiting: dict[str, int], limit: int) -> None:
    given_rows = share(waiting, limit)

    assert sum(given_rows.values()) == min(limit, sum(waiting.values()))
    assert len(given_rows) == min(limit, sum(rows > 0 for rows in waiting.values()))
    assert all(0 < rows <= waiting[stream] for stream, rows in given_rows.items())


def test_a_limit_is_shared_in_proportion() -> None:
    assert share({"large": 9_001, "small": 1_001, "empty": 0}, 1_002) == {"large": 901, "small": 101}


def test_with_a_limit_of_one_row_the_longest_comes_first_and_all_are_emptied() -> None:
    waiting = {"a": 2, "b": 3, "c": 1}
    taken = []
    while any(waiting.values()):
        ((stream, rows),) = share(waiting, 1).items()
        waiting[stream] -= rows
        taken.append(stream)

    assert taken == ["b", "a", "b", "a", "b", "c"]
