"""Checks a value, decoded from JSON, against Protocol Buffers' JSON encoding of a message type.

Each message type is compiled once into a function `(value, room)` that raises Problem; no message is built. A schema has no
imports, so the special forms of the well-known types do not occur. As in the mapping: a field has its JSON name or its own name,
null means that a field is absent, 64-bit integers may be strings, an enum is a name or a number. Unknown fields are refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, FieldDescriptorProto

from penstock.schemas.json_text import decoded_json, is_unicode
from penstock.schemas.proto_parser import ProtoTypes, is_repeated, is_required
from penstock.schemas.schema import SchemaMismatch, found, shortened

MAX_DEPTH = 100  # nesting of messages, the limit of the library for the binary encoding too

Check = Callable[[object, int], None]

_INTEGER = re.compile(r"-?[0-9]{1,20}", re.ASCII)
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?", re.ASCII)
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]*={0,2}", re.ASCII)
_SPECIAL_NUMBERS = frozenset({"NaN", "Infinity", "-Infinity"})
_LARGEST_FLOAT = 3.4028235677973366e38  # larger numbers round to infinity in 32 bits
_LARGEST_DOUBLE = 1.7976931348623157e308

_F = FieldDescriptorProto


class _Plan(NamedTuple):
    """The checks of a message type: its fields by each of their names, and the required ones."""

    fields: dict[str, tuple[str, Check, str | None]]  # (name, check, oneof)
    required: list[str]


def json_check(types: ProtoTypes) -> Callable[[bytes], None]:
    """A function that raises Problem unless the bytes are the JSON encoding of a message of the schema."""
    inner = _Builder(types).message(types.root)

    def check(data: bytes) -> None:
        inner(decoded_json(data), MAX_DEPTH)

    return check


class _Builder:
    """Compiles message types into checks.

    Every type gets its check before its fields are compiled, since types may be recursive.
    """

    def __init__(self, types: ProtoTypes) -> None:
        self._types = types
        plans = {full: _Plan({}, []) for full in types.messages}
        self._messages = {full: _message_check(plan) for full, plan in plans.items()}
        self._enums = {full: _enum_check(enum, is_closed=not types.is_proto3) for full, enum in types.enums.items()}
        for full, plan in plans.items():
            self._fill(plan, types.messages[full])

    def message(self, full: str) -> Check:
        return self._messages[full]

    def _fill(self, plan: _Plan, message: DescriptorProto) -> None:
        fields = {}
        for field in message.field:
            oneof = message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else None
            fields[field.json_name] = plan.fields[field.name] = field.name, self._field(field), oneof
            if is_required(field):
                plan.required.append(field.name)
        plan.fields.update(fields)  # a JSON name takes precedence over another field's own name

    def _field(self, field: FieldDescriptorProto) -> Check:
        inner = self._types.messages.get(field.type_name)
        if inner is not None and inner.options.map_entry:
            key, value = inner.field
            return _map_check(_key_check(key), self._single(value))
        return _list_check(self._single(field)) if is_repeated(field) else self._single(field)

    def _single(self, field: FieldDescriptorProto) -> Check:
        if field.type == _F.TYPE_MESSAGE:
            return self._messages[field.type_name]
        if field.type == _F.TYPE_ENUM:
            return self._enums[field.type_name]
        return _SCALARS[field.type]


def _message_check(plan: _Plan) -> Check:
    fields, required = plan

    def check(value: object, room: int) -> None:
        if not isinstance(value, dict):
            raise SchemaMismatch(f"found {found(value)}, expected an object")
        if room <= 0:
            raise SchemaMismatch(f"messages are nested more than {MAX_DEPTH} deep")
        seen: set[str] = set()
        missing = set(required)
        key = ""
        try:
            for key, item in value.items():
                entry = fields.get(key)
                if entry is None:
                    raise SchemaMismatch("the schema has no such field")
                name, inner, oneof = entry
                if name in seen:
                    raise SchemaMismatch("the field is there twice, by its JSON name and by its own")
                seen.add(name)
                if item is None:
                    continue
                missing.discard(name)
                if oneof is not None:
                    # Field names contain no dot, so a oneof never looks like a field.
                    if f".{oneof}" in seen:
                        raise SchemaMismatch(f"another field of the oneof {oneof!r} is set too")
                    seen.add(f".{oneof}")
                inner(item, room - 1)
        except SchemaMismatch as problem:
            raise problem.inside(key) from None
        if missing:
            raise SchemaMismatch("the required field is missing").inside(min(missing))

    return check


def _list_check(item_check: Check) -> Check:
    def check(value: object, room: int) -> None:
        if not isinstance(value, list):
            raise SchemaMismatch(f"found {found(value)}, expected an array")
        index = 0
        try:
            for index, item in enumerate(value):  # noqa: B007  # the handler names it
                item_check(item, room)
        except SchemaMismatch as problem:
            raise problem.inside(index) from None

    return check


def _map_check(key_check: Callable[[str], None], value_check: Check) -> Check:
    def check(value: object, room: int) -> None:
        if not isinstance(value, dict):
            raise SchemaMismatch(f"found {found(value)}, expected an object of a map")
        key = ""
        try:
            for key, item in value.items():
                key_check(key)
                value_check(item, room)
        except SchemaMismatch as problem:
            raise problem.inside(key) from None

    return check


def _key_check(field: FieldDescriptorProto) -> Callable[[str], None]:
    """Check the keys of a map: strings in JSON, whatever their type is."""
    scalar, is_bool = _SCALARS[field.type], field.type == _F.TYPE_BOOL

    def check(key: str) -> None:
        if not is_bool:
            scalar(key, 0)
        elif key not in {"true", "false"}:
            raise SchemaMismatch(f"found the key {shortened(key)}, expected 'true' or 'false'")

    return check


def _enum_check(enum: EnumDescriptorProto, *, is_closed: bool) -> Check:
    names = frozenset(value.name for value in enum.value)
    numbers = frozenset(value.number for value in enum.value)
    title = enum.name[:60]

    def check(value: object, _room: int) -> None:
        if isinstance(value, str):
            if value in names:
                return
        elif type(value) is int and (value in numbers if is_closed else -(2**31) <= value < 2**31):
            return
        raise SchemaMismatch(f"found {found(value)}, expected a name or number of the enum {title}")

    return check


def _integer_check(least: int, most: int) -> Check:
    def check(value: object, _room: int) -> None:
        if type(value) is int:
            number = value
        elif (isinstance(value, str) and _INTEGER.fullmatch(value)) or (isinstance(value, float) and value.is_integer()):
            number = int(value)
        else:
            raise SchemaMismatch(f"found {found(value)}, expected an integer")
        if not least <= number <= most:
            raise SchemaMismatch(f"found {found(value)}, expected an integer from {least} to {most}")

    return check


def _float_check(largest: float, kind: str) -> Check:
    def check(value: object, _room: int) -> None:
        number = value
        if isinstance(value, str):
            if value in _SPECIAL_NUMBERS:
                return
            number = float(value) if _NUMBER.fullmatch(value) else None
        if type(number) not in {int, float} or not -largest <= number <= largest:  # type: ignore[operator]  # just checked
            raise SchemaMismatch(f"found {found(value)}, expected a {kind}, 'NaN', 'Infinity' or '-Infinity'")

    return check


def _bool_check(value: object, _room: int) -> None:
    if value is not True and value is not False:
        raise SchemaMismatch(f"found {found(value)}, expected true or false")


def _string_check(value: object, _room: int) -> None:
    if not isinstance(value, str) or not is_unicode(value):
        raise SchemaMismatch(f"found {found(value)}, expected a string")


def _bytes_check(value: object, _room: int) -> None:
    # Both alphabets are accepted, with or without padding; a single remaining character means that something was cut off.
    if not isinstance(value, str) or not _BASE64.fullmatch(value) or len(value.rstrip("=")) % 4 == 1:
        raise SchemaMismatch(f"found {found(value)}, expected bytes in base64")


_INT32, _INT64 = _integer_check(-(2**31), 2**31 - 1), _integer_check(-(2**63), 2**63 - 1)
_UINT32, _UINT64 = _integer_check(0, 2**32 - 1), _integer_check(0, 2**64 - 1)
_SCALARS: dict[int, Check] = {
    **dict.fromkeys((_F.TYPE_INT32, _F.TYPE_SINT32, _F.TYPE_SFIXED32), _INT32),
    **dict.fromkeys((_F.TYPE_INT64, _F.TYPE_SINT64, _F.TYPE_SFIXED64), _INT64),
    **dict.fromkeys((_F.TYPE_UINT32, _F.TYPE_FIXED32), _UINT32),
    **dict.fromkeys((_F.TYPE_UINT64, _F.TYPE_FIXED64), _UINT64),
    _F.TYPE_FLOAT: _float_check(_LARGEST_FLOAT, "float"),
    _F.TYPE_DOUBLE: _float_check(_LARGEST_DOUBLE, "double"),
    _F.TYPE_BOOL: _bool_check,
    _F.TYPE_STRING: _string_check,
    _F.TYPE_BYTES: _bytes_check,
}
