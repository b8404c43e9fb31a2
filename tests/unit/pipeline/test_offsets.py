"""Positions: where reads begin and end, what waits, what is lost, and what a batch that is repeated reads."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import DataLoss, FailedPrecondition, InvalidArgument
from penstock.log.log import EVENTS, EventSpan, Spans, StreamSpan
from penstock.pipeline.core.offsets import (
    LostData,
    Position,
    backlog,
    by_name,
    check,
    decode,
    encode,
    pieces_between,
    pieces_of,
    place,
    times,
)
from penstock.pipeline.core.options import EARLIEST, LATEST, Bound, Kind, Point
from penstock.pipeline.core.planning import OffsetRange


def spans_of(**spans: tuple[int, int, int]) -> dict[str, StreamSpan]:
    return {name: StreamSpan(name, number, earliest, latest, 0) for name, (number, earliest, latest) in spans.items()}


def everything(_: str) -> bool:
    return True


# ── checkpoints ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@given(st.dictionaries(st.text(), st.tuples(st.integers(0, 1 << 23), st.integers(0, 1 << 40)).map(lambda at: Position(*at))))
def test_positions_survive_a_checkpoint(offsets: dict[str, Position]) -> None:
    assert decode(json.loads(json.dumps(encode(offsets)))) == offsets


def test_a_checkpoint_of_something_else_is_refused_in_words(subtests: pytest.Subtests) -> None:
    cases: list[object] = [7, "7", None, [], [1], [1, 2, 3], [1, -1], [-1, 1], [1.5, 2], ["1", 2], {"number": 1}]
    for value in cases:
        with (
            subtests.test(value=value),
            pytest.raises(
                FailedPrecondition, match=r"the checkpoint has .* for 'orders', expected \[number of the stream, offset\]"
            ),
        ):
            decode({"orders": value})


def test_the_event_log_is_a_stream() -> None:
    spans = Spans([StreamSpan("orders", 3, 0, 5, 0)], EventSpan(2, 9))

    assert by_name(spans, is_messages=True) == spans_of(orders=(3, 0, 5))
    assert by_name(spans, is_messages=False) == {EVENTS: StreamSpan(EVENTS, 0, 2, 9, 0)}


# ── begins and ends ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_bound_has_an_offset_inside_what_there_is(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Point | None, dict[str, int], int, str | None]] = [
        (None, {}, 10, None),
        (EARLIEST, {}, 10, None),
        (LATEST, {}, 20, None),
        (Point(Kind.OFFSET, 10), {}, 10, None),
        (Point(Kind.OFFSET, 15), {}, 15, None),
        (Point(Kind.OFFSET, 20), {}, 20, None),
        (Point(Kind.OFFSET, 9), {}, 10, "offsets 9 to 9 of 'orders' (1 rows) are gone"),
        (Point(Kind.OFFSET, 0), {}, 10, "offsets 0 to 9 of 'orders' (10 rows) are gone"),
        (Point(Kind.OFFSET, 21), {}, 20, "offset 21 of 'orders' is beyond its end, 20"),
        (Point(Kind.TIME, 5), {"orders": 12}, 12, None),
        (Point(Kind.TIME, 5), {"orders": 25}, 20, None),
        (Point(Kind.TIME, 5), {"orders": 3}, 10, None),
    ]
    for point, found, offset, lost in cases:
        with subtests.test(point=point, found=found, offset=offset, lost=lost):
            offsets, losses = place(spans_of(orders=(7, 10, 20)), Bound("startingOffsets", point), EARLIEST, found)

            assert offsets == {"orders": offset}
            assert [loss.text.startswith(lost or "?") for loss in losses] == [True] * (lost is not None)


def test_a_bound_by_stream_counts_for_that_stream() -> None:
    bound = Bound("startingOffsets", EARLIEST, {"orders": Point(Kind.OFFSET, 3), "refunds": Point(Kind.TIME, 99)})
    spans = spans_of(orders=(1, 0, 9), refunds=(2, 0, 9), others=(3, 4, 9))

    assert times(spans, bound) == {"refunds": 99}
    assert place(spans, bound, LATEST, {"refunds": 8}) == ({"orders": 3, "refunds": 8, "others": 4}, [])


def test_a_bound_for_a_stream_that_is_not_read_is_refused_with_those_that_are() -> None:
    bound = Bound("startingOffsets", EARLIEST, {"odrers": EARLIEST})

    with pytest.raises(InvalidArgument, match="startingOffsets is 'odrers', expected only streams that are read: orders"):
        place(spans_of(orders=(1, 0, 9)), bound, LATEST, {})


def test_ranges_of_a_batch_are_in_order_and_never_backwards() -> None:
    spans = spans_of(b=(2, 0, 9), a=(1, 0, 9), c=(3, 0, 9))

    assert pieces_between(spans, {"a": 1, "b": 5, "c": 4}, {"a": 9, "b": 5, "c": 3}) == [OffsetRange("a", 1, 1, 9)]


# ── what waits ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_published_waits() -> None:
    waiting = backlog({"orders": Position(7, 5)}, spans_of(orders=(7, 0, 9)), everything)

    assert (waiting.rows, waiting.losses) == ({"orders": 4}, [])
    assert waiting.end() == {"orders": Position(7, 9)}
    assert waiting.end({"orders": 6}) == {"orders": Position(7, 6)}
    assert waiting.end({"orders": 99}) == {"orders": Position(7, 9)}
    assert waiting.end({}) == {"orders": Position(7, 5)}


def test_a_new_stream_is_placed_where_it_begins_and_read_from_the_next_batch_on() -> None:
    start = {"orders": Position(7, 5)}
    spans = spans_of(orders=(7, 0, 5), new=(8, 2, 4), empty=(9, 3, 3))
    waiting = backlog(start, spans, everything)

    assert waiting.rows == {"orders": 0, "new": 0, "empty": 0}
    assert waiting.end() == waiting.end({}) == {"orders": Position(7, 5), "new": Position(8, 2), "empty": Position(9, 3)}
    assert pieces_of(start, waiting.end()) == []
    assert backlog(waiting.end(), spans, everything).rows == {"orders": 0, "new": 2, "empty": 0}


def test_a_query_that_begins_says_where_unless_the_stream_is_another_one_since() -> None:
    places = {"a": Position(7, 3), "b": Position(8, 3)}

    waiting = backlog({}, spans_of(a=(7, 0, 5), b=(9, 1, 5), c=(10, 2, 5)), everything, places)

    assert waiting.end() == {"a": Position(7, 3), "b": Position(9, 1), "c": Position(10, 2)}


def test_what_is_lost_is_told_and_the_rest_goes_on(subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, StreamSpan], str, Position]] = [
        (spans_of(), "stream 'orders' (number 7) was deleted, and read up to offset 5", Position(7, 5)),
        (
            spans_of(orders=(9, 0, 3)),
            "stream 'orders' (number 7) was deleted and created again, read up to offset 5: it is number 9 now",
            Position(9, 0),
        ),
        (spans_of(orders=(9, 0, 0)), "stream 'orders' (number 7) was deleted and created again", Position(9, 0)),
        (spans_of(orders=(7, 8, 9)), "offsets 5 to 7 of 'orders' (3 rows) are gone: retention removed them", Position(7, 9)),
        (spans_of(orders=(7, 0, 4)), "offset 5 of 'orders' is beyond its end, 4", Position(7, 4)),
    ]
    for spans, text, end in cases:
        with subtests.test(spans=spans, text=text, end=end):
            waiting = backlog({"orders": Position(7, 5)}, spans, everything)

            assert [loss.text.startswith(text) for loss in waiting.losses] == [True]
            assert waiting.end() == {"orders": end}
            again = backlog(waiting.end(), spans, everything)
            assert backlog(again.end(), spans, everything).end() == again.end(), "it settles"
            assert not again.losses or not spans, "and is told once, but for a stream that is no more"


def test_a_stream_that_is_not_asked_for_any_more_is_no_loss_and_stays_in_the_checkpoint() -> None:
    start = {"orders": Position(7, 5), "old": Position(1, 3)}
    waiting = backlog(start, spans_of(orders=(7, 0, 6)), lambda stream: stream == "orders")

    assert waiting.losses == []
    assert waiting.end() == {"orders": Position(7, 6), "old": Position(1, 3)}


def test_losses_are_an_error_that_names_them_and_says_what_to_do() -> None:
    check([])
    with pytest.raises(DataLoss) as caught:
        check([LostData(f"s{number}", f"loss {number}") for number in range(7)])

    assert str(caught.value) == "loss 0; loss 1; loss 2; loss 3; loss 4; and 2 more"
    assert caught.value.hint is not None
    assert "failOnDataLoss" in caught.value.hint


# ── what a batch reads ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_batch_reads_what_lies_between_two_positions() -> None:
    start = {"a": Position(1, 5), "b": Position(2, 5), "back": Position(4, 9), "gone": Position(3, 1)}
    end = {"c": Position(5, 8), "a": Position(1, 9), "b": Position(4, 2), "back": Position(4, 8), "gone": Position(3, 1)}

    assert pieces_of(start, end) == [OffsetRange("a", 1, 5, 9)]
    assert pieces_of(end, end) == []


steps = st.lists(
    st.dictionaries(
        st.sampled_from(["a", "b", "c"]), st.tuples(st.integers(0, 2), st.integers(0, 5), st.integers(0, 9)), max_size=3
    ),
    max_size=8,
)


@given(steps)
def test_whatever_happens_to_streams_no_offset_is_read_twice(history: list[dict[str, tuple[int, int, int]]]) -> None:
    """Streams come, go, are made again (with numbers that only grow), grow, and lose their begin."""
    position: dict[str, Position] = {}
    read: set[tuple[str, int, int]] = set()
    numbers: dict[str, int] = {}
    ends: dict[str, tuple[int, int]] = {}
    for step in history:
        spans = {}
        for stream, (more, cut, rows) in step.items():
            number = numbers[stream] = numbers.get(stream, 0) + more
            earliest, latest = ends.get(stream, (0, 0)) if more == 0 else (0, 0)
            latest += rows
            earliest = min(earliest + cut, latest)
            ends[stream] = earliest, latest
            spans[stream] = StreamSpan(stream, number, earliest, latest, 0)
        waiting = backlog(position, spans, everything)
        end = waiting.end()
        for piece in pieces_of(position, end):
            places = {(piece.stream, piece.number, offset) for offset in range(piece.start, piece.stop)}
            assert not places & read
            read |= places
        position = end
