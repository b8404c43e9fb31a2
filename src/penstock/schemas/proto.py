"""Protocol Buffer schemas: compiled into checks for both encodings, and the rules for new revisions."""

from __future__ import annotations

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from penstock.errors import InvalidArgument
from penstock.schemas import proto_binary, proto_json
from penstock.schemas.proto_parser import ProtoTypes, is_repeated, is_required, parse_proto, types_of
from penstock.schemas.schema import Schema, SchemaKind, SchemaMismatch, shortened


def compile_proto(definition: str) -> Schema:
    """The schema of a .proto definition, or InvalidArgument."""
    types = types_of(parse_proto(definition))
    return Schema(
        SchemaKind.PROTOCOL_BUFFER,
        definition,
        types,
        json=proto_json.json_check(types),
        binary=proto_binary.binary_check(types, message_class(definition)),
    )


def message_class(definition: str) -> type[Message]:
    """The class of the messages of a .proto definition, or InvalidArgument."""
    file = parse_proto(definition)
    pool = DescriptorPool()  # a pool of its own: two schemas may use the same name, and its classes are freed with the schema
    try:
        pool.AddSerializedFile(file.SerializeToString())
    except TypeError as error:  # errors of the library itself, such as for a type of more than 64 KiB
        reason = str(error).removeprefix("Couldn't build proto file into descriptor pool: ")
        raise InvalidArgument(f"Protocol Buffer schema: {reason}") from None
    found: type[Message] = GetMessageClass(pool.FindMessageTypeByName(types_of(file).root[1:]))
    return found


def check_proto_revision(old: ProtoTypes, new: ProtoTypes) -> None:
    """Common fields keep name, number and type; fields of only one revision are optional.

    The same applies to the types of fields.
    """
    try:
        _Comparison(old, new).run()
    except SchemaMismatch as problem:
        raise InvalidArgument(
            f"not a compatible revision: {problem.location()}{problem.reason}",
            hint="only optional fields may be added or removed; a field that stays keeps its name, number and type",
        ) from None


class _Comparison:
    """Compares two definitions, type by type from the top message; a list of pairs instead of recursion."""

    def __init__(self, old: ProtoTypes, new: ProtoTypes) -> None:
        self._old = old
        self._new = new

    def run(self) -> None:
        first = self._old.root, self._new.root
        seen, waiting = {first}, [first]
        while waiting:
            before, after = waiting.pop()
            if before in self._old.enums:
                self._enum(before, after)
                continue
            for pair in self._message(self._old.messages[before], self._new.messages[after]):
                if pair not in seen:
                    seen.add(pair)
                    waiting.append(pair)

    def _message(self, before: DescriptorProto, after: DescriptorProto) -> list[tuple[str, str]]:
        """Compare the fields of two message types, and queue the types of their fields."""
        old, new = ({field.number: field for field in message.field} for message in (before, after))
        next_pairs = []
        for number in sorted(old.keys() | new.keys()):
            was, now = old.get(number), new.get(number)
            if was is None or now is None:
                alone = was or now
                assert alone is not None
                if is_required(alone) or is_repeated(alone):
                    what = "repeated" if is_repeated(alone) else "required"
                    verb = "removed" if now is None else "added"
                    raise SchemaMismatch(f"the {what} field is {verb}, only optional ones may be").inside(
                        f"{before.name}.{alone.name}"
                    )
                continue
            if (was_text := _described(was, before)) != (now_text := _described(now, after)):
                raise SchemaMismatch(f"the field was {was_text} and is {now_text}").inside(f"{before.name}.{was.name}")
            if was.type_name:
                next_pairs.append((was.type_name, now.type_name))
        names = {field.name: field.number for field in before.field}
        for field in after.field:
            if names.get(field.name, field.number) != field.number:
                raise SchemaMismatch(f"the field had the number {names[field.name]}, now {field.number}").inside(
                    f"{before.name}.{field.name}"
                )
        return next_pairs

    def _enum(self, before: str, after: str) -> None:
        now = {value.name: value.number for value in self._new.enums[after].value}
        for value in self._old.enums[before].value:
            if now.get(value.name) != value.number:
                raise SchemaMismatch(f"the value {shortened(value.name)} = {value.number} is gone").inside(before[1:])


def _described(field: FieldDescriptorProto, message: DescriptorProto) -> str:
    """The parts of a field that must not change, as in a definition.

    Types are the last part of their names: they are compared apart.
    """
    label = "repeated " if is_repeated(field) else "required " if is_required(field) else ""
    kind = field.type_name.rpartition(".")[2] or FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    is_in_oneof = field.HasField("oneof_index") and not field.proto3_optional
    oneof = f" in oneof {message.oneof_decl[field.oneof_index].name}" if is_in_oneof else ""
    return f"{label}{kind} {field.name} = {field.number}{oneof}"
