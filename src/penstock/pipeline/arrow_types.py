"""The Arrow types of the pipeline's columns, by the names of their Spark types."""

from __future__ import annotations

import pyarrow as pa

TYPES = {
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
}


def arrow_schema(columns: str) -> pa.Schema:
    """The schema of columns as `penstock.pipeline.schemas` writes them."""
    fields = (column.split(" ", 2) for column in columns.split(", "))
    return pa.schema([pa.field(name, TYPES[kind], not rest) for name, kind, *rest in fields])
