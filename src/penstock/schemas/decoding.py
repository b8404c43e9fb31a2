"""Messages decoded into the fields of their schema: each field has a plain type, and a message is a mapping of these fields.

Fields that contain others (records, lists, maps, unions of several types) are JSON text.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Mapping
from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor_pb2 import FieldDescriptorProto

from penstock.schemas.avro_types import Array, Enum, Fixed, Map, Primitive, Record, Type, Union, read_definition
from penstock.schemas.proto import message_class
from penstock.schemas.proto_parser import ProtoTypes, is_repeated
from penstock.schemas.schema import Encoding, Schema, SchemaKind

BOOLEAN, INTEGER, FLOAT, TEXT, BYTES = "boolean", "bigint", "double", "string", "binary"

Decode = Callable[[bytes, Encoding], Mapping[str, Any]]
"""Decodes a message into fields; raises ValueError, or another error, if it does not match this schema."""

_AVRO = {"boolean": BOOLEAN, "int": INTEGER, "long": INTEGER, "float": FLOAT, "double": FLOAT, "bytes": BYTES, "string": TEXT}
_PROTO = {
    FieldDescriptorProto.TYPE_BOOL: BOOLEAN,
    FieldDescriptorProto.TYPE_FLOAT: FLOAT,
    FieldDescriptorProto.TYPE_DOUBLE: FLOAT,
    FieldDescriptorProto.TYPE_STRING: TEXT,
    FieldDescriptorProto.TYPE_BYTES: BYTES,
    FieldDescriptorProto.TYPE_ENUM: TEXT,
}
_NESTED = (FieldDescriptorProto.TYPE_MESSAGE, FieldDescriptorProto.TYPE_GROUP)


def fields_of(schema: Schema) -> tuple[dict[str, str], Decode]:
    """The fields of a schema with their types, and the decoder of its messages."""
    return _proto(schema) if schema.kind is SchemaKind.PROTOCOL_BUFFER else _avro(schema)


def _avro(schema: Schema) -> tuple[dict[str, str], Decode]:
    root, _ = read_definition(schema.definition)
    kinds = {name: field.type for name, field in root.fields.items()} if isinstance(root, Record) else {"value": root}

    def decode(data: bytes, encoding: Encoding) -> Mapping[str, Any]:
        if encoding is Encoding.JSON:
            value = _plain_json(root, json.loads(data))
        else:
            value, end = _read(root, data, 0)
            if end != len(data):
                raise ValueError(f"{len(data) - end} bytes are left over")
        values = value if isinstance(root, Record) else {"value": value}
        return {name: _flat(kind, values[name]) for name, kind in kinds.items()}

    return {name: _avro_type(kind) for name, kind in kinds.items() if _avro_type(kind)}, decode


def _avro_type(kind: Type) -> str:
    """The type of a column; None for a field that is always null."""
    match kind:
        case Primitive(name=name):
            return _AVRO.get(name, "")
        case Fixed():
            return BYTES
        case Union(branches=branches):
            others = [branch for branch in branches.values() if not (isinstance(branch, Primitive) and branch.name == "null")]
            return _avro_type(others[0]) if len(others) == 1 else TEXT
        case _:
            return TEXT


def _flat(kind: Type, value: object) -> object:
    """A value for its column: JSON if its type contains others."""
    if value is None or isinstance(kind, Primitive | Fixed | Enum):
        return value
    if isinstance(kind, Union):
        others = [branch for branch in kind.branches.values() if not (isinstance(branch, Primitive) and branch.name == "null")]
        if len(others) == 1:
            return _flat(others[0], value)
    return json.dumps(value, default=lambda found: base64.b64encode(found).decode(), ensure_ascii=False)


def _plain_json(kind: Type, value: Any) -> Any:
    """A value of Avro's JSON encoding, without the names of the branches of unions, and with bytes as bytes."""
    match kind:
        case Union(branches=branches) if isinstance(value, dict):
            ((branch, inner),) = value.items()
            return _plain_json(branches[branch], inner)
        case Primitive(name="bytes") | Fixed():
            return value.encode("latin-1")
        case Primitive(name="float" | "double"):
            return float(value)
        case Record(fields=fields):
            return {name: _plain_json(field.type, value[name]) for name, field in fields.items()}
        case Array(items=items):
            return [_plain_json(items, item) for item in value]
        case Map(values=values):
            return {name: _plain_json(values, item) for name, item in value.items()}
        case _:
            return value


def _read(kind: Type, data: bytes, at: int) -> tuple[Any, int]:
    """A value of Avro's binary encoding, and the offset of the next one."""
    match kind:
        case Primitive(name=name):
            return _primitive(name, data, at)
        case Fixed(size=size):
            return _cut(data, at, size)
        case Enum(symbols=symbols):
            index, at = _long(data, at)
            return symbols[index], at
        case Union(branches=branches):
            index, at = _long(data, at)
            return _read(list(branches.values())[index], data, at)
        case Record(fields=fields):
            found = {}
            for name, field in fields.items():
                found[name], at = _read(field.type, data, at)
            return found, at
        case Array(items=items):
            values: list[Any] = []
            for _ in range(len(data) + 1):
                count, at = _block(data, at)
                if not count:
                    break
                for _ in range(count):
                    value, at = _read(items, data, at)
                    values.append(value)
            return values, at
        case Map(values=item):
            entries: dict[str, Any] = {}
            for _ in range(len(data) + 1):
                count, at = _block(data, at)
                if not count:
                    break
                for _ in range(count):
                    key, at = _primitive("string", data, at)
                    entries[key], at = _read(item, data, at)
            return entries, at


def _primitive(name: str, data: bytes, at: int) -> tuple[Any, int]:
    match name:
        case "null":
            return None, at
        case "boolean":
            value, at = _cut(data, at, 1)
            return value == b"\x01", at
        case "int" | "long":
            return _long(data, at)
        case "float":
            return struct.unpack_from("<f", data, at)[0], at + 4
        case "double":
            return struct.unpack_from("<d", data, at)[0], at + 8
    size, at = _long(data, at)
    value, at = _cut(data, at, size)
    return (value.decode() if name == "string" else value), at


def _long(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at


def _block(data: bytes, at: int) -> tuple[int, int]:
    """The number of items in a block; after a negative count the size of the block follows."""
    count, at = _long(data, at)
    if count < 0:
        _, at = _long(data, at)
    return abs(count), at


def _cut(data: bytes, at: int, size: int) -> tuple[bytes, int]:
    if size < 0 or at + size > len(data):
        raise ValueError("the message ends too early")
    return data[at : at + size], at + size


def _proto(schema: Schema) -> tuple[dict[str, str], Decode]:
    types = schema.types
    assert isinstance(types, ProtoTypes), "compiled from a .proto"
    fields = {field.name: field for field in types.messages[types.root].field}
    kinds = {
        name: TEXT if is_repeated(field) or field.type in _NESTED else _PROTO.get(field.type, INTEGER)
        for name, field in fields.items()
    }
    kind = message_class(schema.definition)

    def decode(data: bytes, encoding: Encoding) -> Mapping[str, Any]:
        message = kind()
        if encoding is Encoding.JSON:
            json_format.Parse(data, message)
        else:
            message.ParseFromString(data)
        whole: dict[str, Any] | None = None
        found: dict[str, Any] = {}
        for name, field in fields.items():
            descriptor = kind.DESCRIPTOR.fields_by_name[name]
            if is_repeated(field) or field.type in _NESTED:
                whole = whole if whole is not None else json_format.MessageToDict(message, preserving_proto_field_name=True)
                found[name] = json.dumps(whole[name], ensure_ascii=False) if name in whole else None
            elif descriptor.has_presence and not message.HasField(name):
                found[name] = None
            else:
                value = getattr(message, name)
                symbols = descriptor.enum_type.values_by_number if descriptor.enum_type is not None else {}
                found[name] = (symbols[value].name if value in symbols else str(value)) if symbols else value
        return found

    return kinds, decode
