"""Messages as the fields of their schema: what fastavro and protobuf have written comes back."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest

from penstock.schemas import Encoding, SchemaKind, compile_schema
from penstock.schemas.decoding import fields_of
from penstock.schemas.proto import message_class

AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "count", "type": "int"},
        {"name": "price", "type": "double"},
        {"name": "weight", "type": "float"},
        {"name": "paid", "type": "boolean"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "raw", "type": "bytes"},
        {"name": "mark", "type": {"type": "fixed", "name": "Mark", "size": 2}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "OLD", "GONE"]}},
        {"name": "nothing", "type": "null"},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "sizes", "type": {"type": "map", "values": "long"}},
        {"name": "place", "type": {"type": "record", "name": "Place", "fields": [{"name": "town", "type": "string"}]}},
        {"name": "either", "type": ["string", "long"]},
    ],
}
ORDER: dict[str, Any] = {
    "id": -(1 << 60),
    "count": 3,
    "price": 1.25,
    "weight": 0.5,
    "paid": True,
    "note": "hé",
    "raw": b"\x00\xff",
    "mark": b"ab",
    "state": "OLD",
    "nothing": None,
    "tags": ["a", "b"],
    "sizes": {"x": 1},
    "place": {"town": "Rome"},
    "either": 7,
}
FLAT = {
    name: json.dumps(value, ensure_ascii=False) if name in {"tags", "sizes", "place", "either"} else value
    for name, value in ORDER.items()
}
PROTO = """
syntax = "proto3";
message Order {
  int64 id = 1; uint32 count = 2; double price = 3; bool paid = 4; optional string note = 5; bytes raw = 6;
  enum State { NEW = 0; OLD = 1; }
  State state = 7; repeated string tags = 8; map<string, int32> sizes = 9;
  message Place { string town = 1; }
  Place place = 10;
}
"""


def test_avro(subtests: pytest.Subtests) -> None:
    columns, decode = fields_of(compile_schema(SchemaKind.AVRO, json.dumps(AVRO)))
    parsed = fastavro.parse_schema(AVRO)
    binary = io.BytesIO()
    fastavro.schemaless_writer(binary, parsed, ORDER)
    text = io.StringIO()
    fastavro.json_writer(text, parsed, [ORDER])

    assert columns == {
        "id": "bigint",
        "count": "bigint",
        "price": "double",
        "weight": "double",
        "paid": "boolean",
        "note": "string",
        "raw": "binary",
        "mark": "binary",
        "state": "string",
        "tags": "string",
        "sizes": "string",
        "place": "string",
        "either": "string",
    }
    assert decode(binary.getvalue(), Encoding.BINARY) == FLAT
    assert decode(text.getvalue().encode(), Encoding.JSON) == FLAT
    whole = binary.getvalue()
    for broken in (whole[:-1], whole + b"x", b"", b"\xff" * 20):
        with subtests.test(broken=broken), pytest.raises((ValueError, IndexError)):
            decode(broken, Encoding.BINARY)


def test_avro_without_a_record() -> None:
    columns, decode = fields_of(compile_schema(SchemaKind.AVRO, '{"type": "array", "items": "long"}'))

    assert columns == {"value": "string"}
    assert decode(b"\x04\x02\x04\x00", Encoding.BINARY) == {"value": "[1, 2]"}


def test_protocol_buffers() -> None:
    columns, decode = fields_of(compile_schema(SchemaKind.PROTOCOL_BUFFER, PROTO))
    given = {
        "id": "5",
        "count": 7,
        "price": 1.5,
        "paid": True,
        "raw": "AP8=",
        "state": "OLD",
        "tags": ["a"],
        "place": {"town": "Rome"},
    }
    fields = {"id": 5, "count": 7, "price": 1.5, "paid": True, "note": None, "raw": b"\x00\xff", "state": "OLD"}
    fields |= {"tags": '["a"]', "sizes": None, "place": '{"town": "Rome"}'}
    message = message_class(PROTO)(**{**fields, "note": None, "tags": ["a"], "sizes": None, "place": {"town": "Rome"}})

    assert columns == {
        "id": "bigint",
        "count": "bigint",
        "price": "double",
        "paid": "boolean",
        "note": "string",
        "raw": "binary",
        **dict.fromkeys(("state", "tags", "sizes", "place"), "string"),
    }
    assert decode(json.dumps(given).encode(), Encoding.JSON) == fields
    assert decode(message.SerializeToString(), Encoding.BINARY) == fields
