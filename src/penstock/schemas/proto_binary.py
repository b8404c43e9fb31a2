"""Checks the wire format of a message type with google.protobuf, after an estimate of the memory that parsing takes.

The library builds the whole message. A message inside, empty on the wire, takes two bytes there and up to 64 KiB in memory, if
its type has thousands of fields; so ten megabytes could take hundreds of gigabytes. What might take more than MAX_MEMORY is first
walked over here, adding up what each message inside would take. The same walk says, of bytes that the library refused with a
word, which field is wrong. It refuses nothing that the library takes.

Unknown fields pass, as the wire format has it: a field of a number the schema does not know, or of another wire type.
"""

from __future__ import annotations

from collections.abc import Callable

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto
from google.protobuf.message import DecodeError, Message

from penstock.schemas.proto_parser import ProtoTypes
from penstock.schemas.schema import SchemaMismatch

MAX_MEMORY = 256 * 1024 * 1024
MAX_EXPLAINED = 1024 * 1024  # bytes: in larger corrupt messages the wrong field is not searched
MAX_DEPTH = 100  # messages inside messages, the library's limit
_PER_MESSAGE, _PER_FIELD = 32, 16  # bytes, measured on upb and rounded up
_VARINT, _DELIMITED, _GROUP, _END_GROUP = 0, 2, 3, 4  # wire types
_SIZES = {1: 8, 5: 4}  # of the wire types of fixed length


class _Shape:
    """A message type for the walk: its cost, and its fields with text or messages, by number."""

    __slots__ = ("cost", "fields")

    def __init__(self, message: DescriptorProto) -> None:
        self.cost = _PER_MESSAGE + _PER_FIELD * len(message.field)
        self.fields: dict[int, tuple[str, _Shape | None]] = {}


def binary_check(types: ProtoTypes, message_class: type[Message]) -> Callable[[bytes], None]:
    """A function that raises Problem unless the bytes are a message of the schema."""
    shapes = _shapes_of(types)
    root = shapes[types.root]
    dearest = max((inner.cost for shape in shapes.values() for _, inner in shape.fields.values() if inner), default=0)
    parse = message_class.FromString

    def check(data: bytes) -> None:
        may_be_heavy = len(data) // 2 * dearest > MAX_MEMORY
        if may_be_heavy:
            _Walk(data).message(0, len(data), root, MAX_DEPTH)
        try:
            message = parse(data)
        except DecodeError as error:
            if not may_be_heavy and len(data) <= MAX_EXPLAINED:
                _Walk(data).message(0, len(data), root, MAX_DEPTH)
            raise SchemaMismatch(str(error)) from None
        if not message.IsInitialized():
            raise SchemaMismatch("the required field is missing").inside(message.FindInitializationErrors()[0])

    return check


def _shapes_of(types: ProtoTypes) -> dict[str, _Shape]:
    shapes = {full: _Shape(message) for full, message in types.messages.items()}
    for full, message in types.messages.items():
        for field in message.field:
            if field.type == FieldDescriptorProto.TYPE_MESSAGE:
                shapes[full].fields[field.number] = field.name, shapes[field.type_name]
            elif field.type == FieldDescriptorProto.TYPE_STRING and types.is_proto3:  # in proto2 the library accepts any bytes
                shapes[full].fields[field.number] = field.name, None
    return shapes


class _Walk:
    """One walk over a message."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._memory = 0

    def message(self, at: int, end: int, shape: _Shape, room: int) -> None:
        self._memory += shape.cost
        if self._memory > MAX_MEMORY:
            raise SchemaMismatch(f"the messages inside would take more than {MAX_MEMORY // 1024 // 1024} MiB of memory")
        if room < 0:
            raise SchemaMismatch(f"messages are nested more than {MAX_DEPTH} deep")
        groups = 0  # in a group, which our schemas never declare, numbers have no meaning for us
        while at < end:
            start = at
            tag, at = self._varint(at, end)
            number, wire = tag >> 3, tag & 7
            if number == 0:
                raise SchemaMismatch(f"found the field number 0 at byte {start}")
            if wire == _VARINT:
                _, at = self._varint(at, end)
            elif wire in _SIZES:
                at += _SIZES[wire]
            elif wire == _DELIMITED:
                size, at = self._varint(at, end)
                if at + size <= end and not groups and number in shape.fields:
                    self._field(at, at + size, shape.fields[number], room)
                at += size
            elif wire == _GROUP:
                groups += 1
                if groups > MAX_DEPTH:
                    raise SchemaMismatch(f"groups are nested more than {MAX_DEPTH} deep")
            elif wire == _END_GROUP:
                groups -= 1
            else:
                raise SchemaMismatch(f"found the wire type {wire} at byte {start}, expected 0 to 5")
            if at > end:
                raise SchemaMismatch(f"the field number {number} at byte {start} needs {at - end} bytes more than there are")

    def _field(self, at: int, end: int, field: tuple[str, _Shape | None], room: int) -> None:
        name, shape = field
        try:
            if shape is not None:
                self.message(at, end, shape, room - 1)
            else:
                self._data[at:end].decode()
        except UnicodeDecodeError as error:
            raise SchemaMismatch(f"byte {at + error.start} is not valid UTF-8").inside(name) from None
        except SchemaMismatch as problem:
            raise problem.inside(name) from None

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        if at < end and self._data[at] < 0x80:
            return self._data[at], at + 1
        value = shift = 0
        for byte in self._data[at : min(at + 10, end)]:
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, at
            shift += 7
        what = "an integer has more than 10 bytes" if shift == 70 else "the message ends inside an integer"
        raise SchemaMismatch(f"{what} at byte {at}")
