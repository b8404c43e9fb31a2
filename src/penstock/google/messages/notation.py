"""A short notation for protocol messages, and the protobuf classes made from it.

    Topic                                         a message; `Outer.Inner` is nested in Outer, which stands above it
      name 1 string, labels 2 {string string},    its fields: name, number, type; {key value} is a map
      transforms 13 MessageTransform*,            * repeats; ? keeps apart "absent" and "the default value"
      source: a 1 A, b 2 B                        at most one of these is set
    enum Topic.State                              an enumeration and its values
      UNSPECIFIED 0, ACTIVE 1

A type is a scalar, a well-known type of protobuf, or a message or enumeration that is looked up from the inside out. A line
that ends in a comma continues in the next.

The classes live in a pool of their own: the pool that all of a process shares refuses a second definition of a name, and a
program may well import Google's client, which defines the same names, beside Penstock.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import (
    any_pb2,
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    message_factory,
    struct_pb2,
    timestamp_pb2,
)
from google.protobuf.internal import enum_type_wrapper

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    name.removeprefix("TYPE_").lower(): number
    for name, number in _Field.Type.items()
    if name not in {"TYPE_MESSAGE", "TYPE_ENUM", "TYPE_GROUP"}
}
_WELL_KNOWN_FILES = tuple(
    module.DESCRIPTOR for module in (any_pb2, duration_pb2, empty_pb2, field_mask_pb2, struct_pb2, timestamp_pb2)
)
_WELL_KNOWN = {name: f".{file.package}.{name}" for file in _WELL_KNOWN_FILES for name in file.message_types_by_name}


class Package:
    """The messages and enumerations of one protobuf package, read from the notation into a pool."""

    def __init__(self, pool: descriptor_pool.DescriptorPool, name: str, notation: str, *, needs: tuple[str, ...] = ()) -> None:
        self.name = name
        self._pool = pool
        file = descriptor_pb2.FileDescriptorProto(name=f"{name.replace('.', '/')}.proto", package=name, syntax="proto3")
        file.dependency.extend(known.name for known in _WELL_KNOWN_FILES)
        file.dependency.extend(f"{need.replace('.', '/')}.proto" for need in needs)
        _read(notation, file)
        pool.AddSerializedFile(file.SerializeToString())

    def message(self, name: str) -> Any:  # classes that are created at run time have no static type
        """The class of a message of this package, or of a well-known type."""
        full_name = _WELL_KNOWN[name].removeprefix(".") if name in _WELL_KNOWN else f"{self.name}.{name}"
        return message_factory.GetMessageClass(self._pool.FindMessageTypeByName(full_name))

    def enum(self, name: str) -> Any:  # as above
        """An enumeration: `.NAME` is a number, `.Name(number)` and `.Value(name)` translate."""
        return enum_type_wrapper.EnumTypeWrapper(self._pool.FindEnumTypeByName(f"{self.name}.{name}"))


def new_pool() -> descriptor_pool.DescriptorPool:
    """A pool with only the well-known types."""
    pool = descriptor_pool.DescriptorPool()
    for file in _WELL_KNOWN_FILES:
        pool.AddSerializedFile(file.serialized_pb)
    return pool


def _read(notation: str, file: descriptor_pb2.FileDescriptorProto) -> None:
    made: dict[str, Any] = {"": file}
    current: Any = file
    for line in notation.replace(",\n", ",").splitlines():
        if not line.startswith(" "):
            kind, _, name = line.rpartition(" ")
            outer, _, inner = name.rpartition(".")
            current = made[name] = _declare(made[outer], inner, is_enum=kind == "enum")
        elif isinstance(current, descriptor_pb2.EnumDescriptorProto):
            for entry in line.split(","):
                value, number = entry.split()
                current.value.add(name=value, number=int(number))
        else:
            _add_fields(current, line)
    for message in made.values():
        if isinstance(message, descriptor_pb2.DescriptorProto):
            _close_optionals(message)


def _declare(owner: Any, name: str, *, is_enum: bool) -> Any:
    if is_enum:
        return owner.enum_type.add(name=name)
    if isinstance(owner, descriptor_pb2.FileDescriptorProto):
        return owner.message_type.add(name=name)
    return owner.nested_type.add(name=name)


def _add_fields(message: descriptor_pb2.DescriptorProto, line: str) -> None:
    choice, _, fields = line.rpartition(":")
    if choice:
        message.oneof_decl.add(name=choice.strip())
    for entry in fields.split(","):
        name, number, kind = entry.split(maxsplit=2)
        if kind.startswith("{"):
            kind = f"{_map_entry(message, name, kind)}*"
        field = message.field.add(name=name, number=int(number), label=_Field.LABEL_OPTIONAL)
        if kind.endswith("*"):
            field.label = _Field.LABEL_REPEATED
        elif kind.endswith("?"):
            field.proto3_optional = True
        elif choice:
            field.oneof_index = len(message.oneof_decl) - 1
        _set_type(field, kind.rstrip("*?"))


def _map_entry(message: descriptor_pb2.DescriptorProto, field: str, kind: str) -> str:
    """On the wire a map is a repeated message of a key and a value; its name follows from the field's."""
    type_name = f"{field.title().replace('_', '')}Entry"
    entry = message.nested_type.add(name=type_name)
    entry.options.map_entry = True
    for number, (name, part) in enumerate(zip(("key", "value"), kind.strip("{}").split(), strict=True), start=1):
        _set_type(entry.field.add(name=name, number=number, label=_Field.LABEL_OPTIONAL), part)
    return type_name


def _set_type(field: descriptor_pb2.FieldDescriptorProto, kind: str) -> None:
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    else:  # the pool finds out whether the name is a message or an enumeration
        field.type_name = _WELL_KNOWN.get(kind, kind)


def _close_optionals(message: descriptor_pb2.DescriptorProto) -> None:
    """An optional single field is a oneof of its own; these come after the declared ones."""
    for field in message.field:
        if field.proto3_optional:
            field.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{field.name}")
