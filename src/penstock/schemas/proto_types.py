"""The message types and enums of a parsed definition, by full name."""

from __future__ import annotations

from dataclasses import dataclass

from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto


@dataclass(frozen=True, slots=True, eq=False)
class ProtoTypes:
    """What one definition declares. Names are as fields refer to them: with a dot in front."""

    root: str
    messages: dict[str, DescriptorProto]
    enums: dict[str, EnumDescriptorProto]
    is_proto3: bool


def types_of(file: FileDescriptorProto) -> ProtoTypes:
    """The types of a file whose first message is the schema's."""
    package = f".{file.package}" if file.package else ""
    root = f"{package}.{file.message_type[0].name}"
    types = ProtoTypes(root, {}, {f"{package}.{enum.name}": enum for enum in file.enum_type}, file.syntax == "proto3")
    waiting = [(root, file.message_type[0])]
    while waiting:
        full, message = waiting.pop()
        types.messages[full] = message
        types.enums.update((f"{full}.{enum.name}", enum) for enum in message.enum_type)
        waiting.extend((f"{full}.{inner.name}", inner) for inner in message.nested_type)
    return types


def is_repeated(field: FieldDescriptorProto) -> bool:
    """Whether the field may hold many values; a map is such a field too."""
    return bool(field.label == FieldDescriptorProto.LABEL_REPEATED)


def is_required(field: FieldDescriptorProto) -> bool:
    """Whether the field must be set."""
    return bool(field.label == FieldDescriptorProto.LABEL_REQUIRED)
