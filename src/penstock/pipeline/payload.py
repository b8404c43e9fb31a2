"""Rows as JSON objects, made of Arrow columns: a column at a time as far as it goes, since a cell at a time is slow.

Dates and times are ISO 8601 (instants in UTC, with a Z), decimals are numbers with all their digits, binary is base64, intervals
are ISO 8601 durations. Nulls are kept. What JSON cannot say (NaN, infinity) is null.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

Values = list[Any]  # whatever JSON knows

ESCAPED = '"\\' + "".join(map(chr, range(32)))
"""The characters that cannot stand in a JSON text as they are."""

_ENCODER = msgspec.json.Encoder(decimal_format="number")


def json_rows(batch: pa.RecordBatch, names: Sequence[str]) -> pa.Array:
    """One JSON object for each row, with these columns in this order, as a column of bytes."""
    columns = [_values(batch.column(name)) for name in names]
    return pa.array(list(map(_ENCODER.encode, map(_row(tuple(names)), *columns))), pa.binary())


@cache
def _row(names: tuple[str, ...]) -> Callable[..., object]:
    """What makes a row of its cells: a struct, which is encoded three times as fast as a dict, unless a name must be escaped."""
    if any(character in name for name in names for character in ESCAPED):
        return lambda *cells: dict(zip(names, cells, strict=True))
    fields = [f"c{index}" for index in range(len(names))]
    renamed = dict(zip(fields, names, strict=True))
    return msgspec.defstruct("Row", [(field, object) for field in fields], rename=renamed, gc=False)


def _values(column: pa.Array) -> Values:
    """The cells as Python knows them."""
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_boolean(kind) or pa.types.is_floating(kind):
        return _quick(column)
    if pa.types.is_integer(kind):
        return _quick(column) if column.null_count == 0 else _values_or_none(column)
    if pa.types.is_timestamp(kind):
        return _quick(_instants(column))
    if pa.types.is_date(kind):
        return _quick(column.cast(pa.string()))
    if pa.types.is_time(kind):
        return _quick(column.cast(pa.time64("us")).cast(pa.string()))
    if pa.types.is_struct(kind):
        return _structs(column)
    if pa.types.is_map(kind):
        return _maps(column)
    if pa.types.is_list(kind):
        return _grouped(column, _values(column.values))
    return _cells(column)  # decimals, durations, nulls


def _quick(column: pa.Array) -> Values:
    """As numpy makes them, many times faster than one by one. A number that is missing becomes NaN, which JSON has as null."""
    cells: Values = column.to_numpy(zero_copy_only=False).tolist()
    return cells


def _cells(column: pa.Array) -> Values:
    cells: Values = column.to_pylist()
    return cells


def _values_or_none(column: pa.Array) -> Values:
    """Whole numbers with gaps: numpy would make them floats, and lose digits."""
    numbers, is_null = _quick(column.fill_null(0)), _quick(column.is_null())
    return [None if gap else number for number, gap in zip(numbers, is_null, strict=True)]


def _instants(column: pa.Array) -> pa.Array:
    """ISO 8601, with six digits of a second. Spark's instants are in UTC whatever zone they name; others have no zone."""
    text = pc.replace_substring(column.cast(pa.timestamp("us")).cast(pa.string()), pattern=" ", replacement="T")
    return pc.binary_join_element_wise(text, "Z", "") if column.type.tz is not None else text


def _structs(column: pa.Array) -> Values:
    names = [field.name for field in column.type]
    if not names:
        return [{} if is_valid else None for is_valid in _quick(column.is_valid())]
    rows = zip(*[_values(column.field(index)) for index in range(len(names))], strict=True)
    objects: Values = [dict(zip(names, row, strict=True)) for row in rows]
    return _with_nulls(column, objects)


def _maps(column: pa.Array) -> Values:
    pairs = list(zip(_values(column.keys), _values(column.items), strict=True))
    return [None if group is None else dict(group) for group in _grouped(column, pairs)]


def _grouped(column: pa.Array, flat: Values) -> Values:
    """The cells of all lists, or of all maps, in the groups that they belong to."""
    ends = _quick(column.offsets)
    return _with_nulls(column, [flat[start:stop] for start, stop in pairwise(ends)])


def _with_nulls(column: pa.Array, values: Values) -> Values:
    if column.null_count == 0:
        return values
    return [value if is_valid else None for value, is_valid in zip(values, _quick(column.is_valid()), strict=True)]
