"""Filters prune: what is left holds every row that fulfils them, and little else."""

from __future__ import annotations

import operator
from bisect import bisect_left
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.durations import FOREVER, to_datetime
from penstock.ids import message_id
from penstock.pipeline.core.filters import ANYTHING, MANY, Condition, RowFilter, prune, wanted
from penstock.pipeline.core.planning import OffsetRange

STREAMS = {"orders": 1, "refunds": 2, "queue:jobs": 3}
ROWS = 12
START = 1_700_000_000_000_000
OPS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "in": lambda left, right: left in right,
}


def published_at(offset: int) -> int:
    return START + offset // 2 * 10  # two messages share an instant


def row(stream: str, offset: int) -> dict[str, Any]:
    at = published_at(offset)
    return {
        "stream": stream,
        "offset": offset,
        "key": f"k{offset % 3}" if offset % 4 else None,
        "publish_time": to_datetime(at),
        "message_id": message_id(at, STREAMS[stream], offset),
    }


TABLE = [row(stream, offset) for stream in STREAMS for offset in range(ROWS)]
PIECES = [OffsetRange(stream, number, 0, ROWS) for stream, number in STREAMS.items()]

literals: dict[str, st.SearchStrategy[Any]] = {
    "stream": st.sampled_from([*STREAMS, "other"]),
    "offset": st.integers(-2, ROWS + 2),
    "key": st.sampled_from(["k0", "k1", "k2", "", "other"]),
    "publish_time": st.integers(START - 5, START + 70).map(to_datetime),
    "message_id": st.sampled_from([line["message_id"] for line in TABLE] + ["", "no id", "0" * 30]),
}
conditions = st.sampled_from(sorted(literals)).flatmap(
    lambda column: st.one_of(
        st.builds(Condition, st.just(column), st.sampled_from(["=", "<", "<=", ">", ">="]), literals[column]),
        st.builds(Condition, st.just(column), st.just("in"), st.lists(st.one_of(literals[column], st.none()), max_size=4)),
    )
)


def looked_up(at: int) -> dict[str, int]:
    return {stream: bisect_left([published_at(offset) for offset in range(ROWS)], at) for stream in STREAMS}


def pruned(want: RowFilter) -> list[OffsetRange]:
    since = looked_up(want.since) if want.since > 0 else {}
    until = looked_up(want.until) if want.until < FOREVER else {}
    return prune(PIECES, want, since=since, until=until)


def holds(line: dict[str, Any], condition: Condition) -> bool:
    value = line[condition.column]
    return value is not None and OPS[condition.op](value, condition.value)


@given(st.lists(conditions, max_size=4))
def test_pruned_and_filtered_is_filtered(asked: list[Condition]) -> None:
    want = wanted(asked, is_messages=True)
    left = [(piece.stream, offset) for piece in pruned(want) for offset in range(piece.start, piece.stop)]

    kept = [line for line in TABLE if (line["stream"], line["offset"]) in set(left)]
    if want.keys is not None:
        kept = [line for line in kept if line["key"] in want.keys]
    by_hand = [line for line in TABLE if all(holds(line, condition) for condition in asked)]
    assert [line for line in kept if all(holds(line, condition) for condition in asked)] == by_hand
    assert len(left) == len(set(left)), "no row comes twice"
    understood = all(condition.op in {"=", "in"} or condition.column in {"offset", "publish_time"} for condition in asked)
    exact = not any(condition.column == "publish_time" and condition.op == "in" for condition in asked)
    if understood and exact:
        assert kept == by_hand, "and nothing is read in vain"


def test_bounds_are_exact(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, Any, int, int]] = [
        ("=", 5, 5, 6),
        ("<", 5, 0, 5),
        ("<=", 5, 0, 6),
        (">", 5, 6, ROWS),
        (">=", 5, 5, ROWS),
        ("in", (5,), 5, 6),
    ]
    for op, value, start, stop in cases:
        with subtests.test(op=op, value=value, start=start, stop=stop):
            assert pruned(wanted([Condition("offset", op, value)], is_messages=True)) == [
                piece._replace(start=start, stop=stop) for piece in PIECES
            ]
            moment = [to_datetime(published_at(2 * offset)) for offset in (value if op == "in" else [value])]
            times = wanted([Condition("publish_time", op, moment if op == "in" else moment[0])], is_messages=True)
            low = {"=": 10, "in": 10, ">=": 10, ">": 12}.get(op, 0)
            high = {"=": 12, "in": 12, "<": 10, "<=": 12}.get(op, ROWS)
            assert pruned(times) == [piece._replace(start=low, stop=high) for piece in PIECES if low < high]


def test_contradictions_leave_nothing(subtests: pytest.Subtests) -> None:
    cases: list[list[Condition]] = [
        [Condition("offset", ">", 5), Condition("offset", "<", 5)],
        [Condition("offset", "in", [])],
        [Condition("offset", "in", [None])],
        [Condition("offset", "=", -1), Condition("offset", ">=", 0)],
        [Condition("stream", "=", "orders"), Condition("stream", "=", "refunds")],
        [Condition("key", "=", "a"), Condition("key", "in", ["b", "c"])],
        [Condition("message_id", "=", "no message id")],
        [Condition("publish_time", "<", to_datetime(5)), Condition("publish_time", ">", to_datetime(5))],
    ]
    for asked in cases:
        with subtests.test(asked=asked):
            assert pruned(wanted(asked, is_messages=True)) == []


def test_what_is_not_understood_prunes_nothing(subtests: pytest.Subtests) -> None:
    cases: list[Condition] = [
        Condition("value", "=", b"x"),
        Condition("partition", "=", 0),
        Condition("offset", "=", None),
        Condition("offset", "=", True),
        Condition("offset", ">", 1.5),
        Condition("offset", "=", "1"),
        Condition("stream", "<", "orders"),
        Condition("stream", "=", 5),
        Condition("key", ">", "a"),
        Condition("publish_time", ">", datetime(2026, 1, 1)),  # noqa: DTZ001  # which instant that is, nobody knows
        Condition("publish_time", ">", 5),
        Condition("publish_time", "=", timedelta(1)),
        Condition("message_id", "=", 5),
        Condition("key", "in", [str(number) for number in range(MANY + 1)]),
    ]
    for condition in cases:
        with subtests.test(condition=condition):
            assert wanted([condition], is_messages=True) == ANYTHING


def test_events_are_found_by_offset_and_stream_alone() -> None:
    asked = [
        Condition("offset", ">=", 3),
        Condition("stream", "=", "orders"),
        Condition("message_id", "=", message_id(1, 1, 1)),
        Condition("publish_time", ">", datetime(2026, 1, 1, tzinfo=UTC)),
        Condition("key", "=", "k"),
    ]

    assert wanted(asked, is_messages=False) == RowFilter(streams=frozenset({"orders"}), between=(3, FOREVER))


def test_neighbours_are_one_range_and_very_many_points_too() -> None:
    piece = OffsetRange("orders", 1, 0, 100_000)

    few = wanted([Condition("offset", "in", [5, 7, 6, 9, 5])], is_messages=True)
    many = wanted([Condition("offset", "in", list(range(0, 4 * MANY, 2)))], is_messages=True)
    assert prune([piece], few, since={}, until={}) == [piece._replace(start=5, stop=8), piece._replace(start=9, stop=10)]
    assert prune([piece], many, since={}, until={}) == [piece._replace(start=0, stop=4 * MANY - 1)]


def test_a_message_id_is_one_offset_of_one_stream() -> None:
    want = wanted([Condition("message_id", "=", message_id(published_at(4), STREAMS["refunds"], 4))], is_messages=True)

    assert pruned(want) == [OffsetRange("refunds", 2, 4, 5)]
