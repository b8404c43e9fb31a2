"""What a task makes of the batches that Spark gives it, before anything is sent."""

from __future__ import annotations

import base64
import json
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.pipeline.core.destination import Layout
from penstock.pipeline.sink import json_rows, messages, pieces

AT = datetime(2030, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("name", "column", "kind", "expected"),
    [
        ("value", pa.array(["ä", None]), pa.binary(), ["ä".encode(), b""]),
        ("value", pa.array([b"\xff", None]), pa.binary(), [b"\xff", b""]),
        ("key", pa.array(["k", None]), pa.string(), ["k", None]),
        ("priority", pa.array([9, None], pa.int8()), pa.int64(), [9, None]),
        ("ttl", pa.array([3, None], pa.int16()), pa.float64(), [3.0, None]),
        ("ttl", pa.array([Decimal("1.25"), None], pa.decimal128(5, 2)), pa.float64(), [1.25, None]),
        ("ttl", pa.array([timedelta(days=1, milliseconds=1), None], pa.duration("us")), pa.float64(), [86_400.001, None]),
        ("deliver_at", pa.array([AT, None], pa.timestamp("us", "Europe/Berlin")), pa.timestamp("us", "UTC"), [AT, None]),
        ("attributes", pa.array([[("a", "b")], None], pa.map_(pa.string(), pa.string())), None, [[("a", "b")], None]),
    ],
)
def test_a_column_as_it_is_sent(name: str, column: pa.Array, kind: pa.DataType | None, expected: list[Any]) -> None:
    sent = messages(pa.record_batch({name: column}), Layout((name,), None))

    assert sent.schema.names == [name]
    assert sent.column(name).to_pylist() == expected
    if kind is not None:
        assert sent.schema.field(name).type == kind


def test_columns_with_the_names_of_kafka() -> None:
    headers = pa.array(
        [[{"key": "a", "value": b"1"}, {"key": "b", "value": None}], None, [], [{"key": "c", "value": "é".encode()}]],
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    )
    batch = pa.record_batch({"topic": pa.array(["x", "y", "z", "x"]), "headers": headers}).slice(1)
    sent = messages(batch, Layout(("topic", "headers"), None))

    assert sent.to_pydict() == {"stream": ["y", "z", "x"], "attributes": [None, [], [("c", "é")]]}


def test_a_payload_of_json_becomes_the_value() -> None:
    batch = pa.record_batch({"id": pa.array([1, 2]), "key": pa.array(["a", None]), "value": pa.array(["x", "y"])})

    sent = messages(batch, Layout(("key",), ("id", "value")))

    assert sent.to_pydict() == {"key": ["a", None], "value": [b'{"id":1,"value":"x"}', b'{"id":2,"value":"y"}']}


def table(sizes: list[int]) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array([bytes(size) for size in sizes], pa.binary())})


@given(st.lists(st.lists(st.integers(0, 3000), max_size=20), max_size=8), st.integers(1, 5000))
def test_pieces_hold_every_row_once_in_order(sizes: list[list[int]], limit: int) -> None:
    groups = list(pieces((table(each) for each in sizes), limit))

    found = [len(value) for group in groups for batch in group for value in batch.column(0).to_pylist()]
    assert found == [size for each in sizes for size in each]
    assert all(group and all(batch.num_rows for batch in group) for group in groups)
    assert all(sum(batch.nbytes for batch in group[:-1]) < limit for group in groups)


def test_a_large_batch_is_cut_and_a_large_row_goes_alone() -> None:
    groups = list(pieces([table([1000] * 10), table([50_000]), table([10])], 2100))

    assert [[batch.num_rows for batch in group] for group in groups] == [[2, 2], [2, 2], [2, 1], [1]]


def test_no_rows_are_no_piece() -> None:
    assert list(pieces([], 100)) == []
    assert list(pieces([table([])], 100)) == []


MOMENT = datetime(2024, 2, 29, 12, 30, 15, 250_000, tzinfo=UTC)


def written(column: pa.Array) -> list[str]:
    """What becomes of a column."""
    made = json_rows(pa.record_batch({"x": column}), ["x"])
    assert made.type == pa.binary()
    return [text.decode().removeprefix('{"x":').removesuffix("}") for text in made.to_pylist()]


def test_every_type(subtests: pytest.Subtests) -> None:
    cases: list[tuple[pa.DataType, Any, str]] = [
        (pa.string(), 'a "quoted"\nline of Ä', '"a \\"quoted\\"\\nline of Ä"'),
        (pa.binary(), b"\xff\x00", '"/wA="'),
        (pa.bool_(), True, "true"),
        (pa.int8(), -128, "-128"),
        (pa.int64(), (1 << 63) - 1, "9223372036854775807"),
        (pa.float64(), 0.1, "0.1"),
        (pa.float64(), float("nan"), "null"),
        (pa.float64(), float("inf"), "null"),
        (pa.decimal128(38, 10), Decimal("12345678901234567890.0123456789"), "12345678901234567890.0123456789"),
        (pa.date32(), date(2024, 2, 29), '"2024-02-29"'),
        (pa.timestamp("us", "Europe/Berlin"), MOMENT, '"2024-02-29T12:30:15.250000Z"'),
        (pa.timestamp("us"), MOMENT.replace(tzinfo=None), '"2024-02-29T12:30:15.250000"'),
        (pa.time64("ns"), time(1, 2, 3, 4), '"01:02:03.000004"'),
        (pa.duration("us"), timedelta(days=1, seconds=2), '"P1DT2S"'),
        (pa.list_(pa.int32()), [1, None, 3], "[1,null,3]"),
        (pa.list_(pa.int32()), [], "[]"),
        (pa.struct([("a", pa.int32()), ("b", pa.string())]), {"a": 1, "b": None}, '{"a":1,"b":null}'),
        (pa.map_(pa.string(), pa.int32()), [("k", 1), ("l", None)], '{"k":1,"l":null}'),
        (pa.map_(pa.int32(), pa.date32()), [(7, date(2024, 1, 1))], '{"7":"2024-01-01"}'),
        (
            pa.list_(pa.struct([("at", pa.timestamp("us", "UTC"))])),
            [{"at": MOMENT}, None],
            '[{"at":"2024-02-29T12:30:15.250000Z"},null]',
        ),
    ]
    for kind, value, expected in cases:
        with subtests.test(kind=kind, value=value, expected=expected):
            assert written(pa.array([value, None, value], kind)) == [expected, "null", expected]


def test_a_whole_number_beside_a_gap_keeps_its_digits() -> None:
    assert written(pa.array([(1 << 63) - 1, None], pa.int64())) == ["9223372036854775807", "null"]


def test_a_column_of_nothing_and_a_struct_of_nothing() -> None:
    assert written(pa.nulls(2)) == ["null", "null"]
    assert written(pa.array([{}, None], pa.struct([]))) == ["{}", "null"]


def test_columns_of_any_name_in_the_order_they_were_asked_for() -> None:
    batch = pa.record_batch(
        {"a b": pa.array([1]), "class": pa.array(["x"]), 'ä"': pa.array([None], pa.int8()), "other": pa.array([2])}
    )

    assert json_rows(batch, ["class", "a b", 'ä"']).to_pylist() == ['{"class":"x","a b":1,"ä\\"":null}'.encode()]


NESTED = pa.struct(
    [
        ("n", pa.int64()),
        ("t", pa.string()),
        ("b", pa.binary()),
        ("l", pa.list_(pa.struct([("x", pa.int16()), ("m", pa.map_(pa.string(), pa.list_(pa.bool_())))]))),
    ]
)
TEXT = st.text(st.characters(codec="utf-8"), max_size=5)
MAPS = st.dictionaries(TEXT, st.none() | st.lists(st.none() | st.booleans(), max_size=3), max_size=3)
CELLS = st.none() | st.fixed_dictionaries(
    {
        "n": st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
        "t": st.none() | TEXT,
        "b": st.none() | st.binary(max_size=5),
        "l": st.none()
        | st.lists(st.none() | st.fixed_dictionaries({"x": st.none() | st.integers(-9, 9), "m": st.none() | MAPS}), max_size=3),
    }
)


@given(st.lists(CELLS, max_size=8), st.integers(0, 4))
def test_nested_rows_say_what_they_held_also_in_the_middle_of_an_array(cells: list[Any], start: int) -> None:
    column = pa.array(cells, NESTED).slice(start)

    found = [json.loads(text) for text in json_rows(pa.record_batch({"x": column}), ["x"]).to_pylist()]

    assert found == [{"x": as_json(cell)} for cell in cells[start:]]


def as_json(value: Any) -> Any:
    match value:
        case bytes():
            return base64.b64encode(value).decode()
        case dict():
            return {key: as_json(each) for key, each in value.items()}
        case list():
            return [as_json(each) for each in value]
    return value
