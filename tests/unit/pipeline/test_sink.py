"""What a task makes of the batches that Spark gives it, before anything is sent."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.pipeline.core.rows import Layout
from penstock.pipeline.sink import messages, pieces

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
