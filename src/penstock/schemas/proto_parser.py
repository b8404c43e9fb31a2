"""Parses a .proto definition (proto2 or proto3, one file, no imports) into a descriptor for google.protobuf.

It accepts what Google's service accepts: exactly one message type at the top, with types and enums inside. Options are skipped,
except `allow_alias` and `json_name`; so are defaults, since they do not decide whether a message is valid. Refused with their
place: imports, services, extensions of other types, groups, editions. `Scope` and `FieldNumbers` have the rules about names and
numbers; `types_of` returns the declared types.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto

from penstock.schemas.proto_tokens import ProtoToken, ProtoTokens
from penstock.schemas.schema import shortened

MAX_NAME = (
    1024  # characters of a full name; every name is stored with its scope, so without a limit their total size could explode
)
MAX_FIELD_NUMBER = 2**29 - 1
_KEPT_BY_THE_LIBRARY = range(19_000, 20_000)

MAX_DEPTH = 32  # nesting of messages, the limit of protoc
FILE_NAME = "schema.proto"

_FIELD = FieldDescriptorProto
_INTEGERS = ("int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64", "sfixed32", "sfixed64")
_KEY_TYPES = frozenset({*_INTEGERS, "bool", "string"})
_SCALARS = {name: _FIELD.Type.Value(f"TYPE_{name.upper()}") for name in (*_KEY_TYPES, "double", "float", "bytes")}
_LABELS = {"optional": _FIELD.LABEL_OPTIONAL, "required": _FIELD.LABEL_REQUIRED, "repeated": _FIELD.LABEL_REPEATED}
_NOT_SUPPORTED = {
    "import": "imports are not supported: a schema is one file that stands alone",
    "service": "services are not supported: a schema is one message type",
    "extend": "extending a type is not supported in a schema",
    "group": "groups are not supported: use a message type",
    "edition": "editions are not supported: use proto2 or proto3",
}


class Scope:
    """All names of a file by their full form, and the uses of types, which are resolved once the file is read."""

    def __init__(self, words: ProtoTokens) -> None:
        self._words = words
        self._kinds: dict[str, str] = {}
        self._uses: list[tuple[FieldDescriptorProto, str, str, int, bool]] = []
        self._firsts: dict[str, int] = {}

    @property
    def has_names(self) -> bool:
        return bool(self._kinds)

    def package(self, name: str, at: int) -> None:
        """Declare the package: it and its parents are names that a type's name may start with."""
        if len(name) > MAX_NAME:
            self._words.refuse(f"the package's name has {len(name)} characters, expected at most {MAX_NAME}", at)
        parts = name.split(".")
        self._kinds.update((".".join(parts[: count + 1]), "package") for count in range(len(parts)))

    def declare(self, parent: str, name: ProtoToken, kind: str) -> str:
        full = f"{parent}.{name.text}" if parent else name.text
        if len(full) > MAX_NAME:
            self._words.refuse(f"the full name has {len(full)} characters, expected at most {MAX_NAME}", name.at)
        if full in self._kinds:
            self._words.refuse(
                f"the name {shortened(full)} is declared twice (as a {self._kinds[full]}, now as a {kind})", name.at
            )
        self._kinds[full] = kind
        return full

    def first_number(self, enum: str, number: int, *, is_open: bool) -> None:
        """Note the first number of an enum: as the value of a map it must be 0, the value of absent entries."""
        if not is_open:
            self._firsts[enum] = number

    def refer(self, field: FieldDescriptorProto, name: str, scope: str, at: int, *, is_map_value: bool = False) -> None:
        """Note a field whose type is a name, perhaps not declared yet."""
        self._uses.append((field, name, scope, at, is_map_value))

    def resolve(self) -> None:
        for field, name, scope, at, is_map_value in self._uses:
            full = self._found(name, scope)
            kind = self._kinds.get(full)
            if kind not in {"message", "enum"}:
                what = f"it is a {kind}" if kind else "nothing is declared under that name"
                self._words.refuse(f"there is no type {shortened(name)}: {what}", at)
            if is_map_value and self._firsts.get(full, 0) != 0:
                self._words.refuse(f"the first value of the enum {shortened(name)} is not 0, which values of a map need", at)
            field.type = FieldDescriptorProto.TYPE_MESSAGE if kind == "message" else FieldDescriptorProto.TYPE_ENUM
            field.type_name = f".{full}"

    def _found(self, name: str, scope: str) -> str:
        """The innermost scope that knows the first part of the name decides, by the rules of the language."""
        if name.startswith("."):
            return name[1:]
        first, _, rest = name.partition(".")
        while True:
            candidate = f"{scope}.{first}" if scope else first
            kind = self._kinds.get(candidate)
            # A name that cannot contain the rest of the name, or is not a type, does not hide those of outer scopes.
            if kind in ({"message", "enum", "package"} if rest else {"message", "enum"}):
                return f"{candidate}.{rest}" if rest else candidate
            if not scope:
                return name
            scope = scope.rpartition(".")[0]


class FieldNumbers:
    """The numbers of one message or enum: each is used once, and no reserved one."""

    def __init__(self, words: ProtoTokens, what: str) -> None:
        self._words = words
        self._what = what
        self._used: list[tuple[int, str, int]] = []
        self._ranges: list[tuple[int, int, int]] = []
        self._names: dict[str, int] = {}

    def add(self, name: str, number: int, at: int) -> None:
        if self._what == "field" and number in _KEPT_BY_THE_LIBRARY:
            self._words.refuse(f"found {number}; the field numbers 19000 to 19999 are reserved by Protocol Buffers", at)
        self._used.append((number, name, at))

    def reserve(self, least: int, most: int) -> None:
        """Parse what follows `reserved` or `extensions`: ranges of numbers, or names."""
        words = self._words
        while True:
            at = words.here.at
            if words.here.kind == "string":
                self._names[words.string("a name")] = at
            elif words.here.kind == "name":
                words.unexpected("a number, or a name in quotes")
            else:
                first = words.integer("a number", least, most)
                last = first
                if words.take_if("to"):
                    last = most if words.take_if("max") else words.integer("a number", first, most)
                self._ranges.append((first, last, at))
            if words.take_if(","):
                continue
            if words.take_if("["):
                self._skip_options()
            words.expect(";")
            return

    def check_reserved(self, *, may_share: bool = False) -> None:
        """At the end of the message: no number is used twice or reserved, no reserved ranges overlap, no name is reserved."""
        refuse = self._words.refuse
        for _, name, at in self._used:
            if name in self._names:
                refuse(f"the name {name!r} is reserved", at)
        used, ranges = sorted(self._used), sorted(self._ranges)
        for (number, name, at), (other, other_name, other_at) in pairwise(used):
            if number == other and not may_share:
                refuse(f"the number {number} is used by {name!r} and by {other_name!r}", max(at, other_at))
        for (_, last, _), (first, _, at) in pairwise(ranges):
            if first <= last:
                refuse(f"the range from {first} overlaps another that ends at {last}", at)
        position = 0
        for number, name, at in used:
            while position < len(ranges) and ranges[position][1] < number:
                position += 1
            if position < len(ranges) and ranges[position][0] <= number:
                refuse(f"the number {number} of {name!r} is reserved", at)

    def _skip_options(self) -> None:
        words = self._words
        while not words.take_if("]"):
            if words.here.kind == "end":
                words.unexpected("']'")
            words.take()


def json_name_of(name: str) -> str:
    """The default JSON name of a field: without '_', and with a capital after each."""
    first, *others = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in others)


@dataclass(frozen=True, slots=True, eq=False)
class ProtoTypes:
    """The types of one definition. Names are as in fields: with a leading dot."""

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
    """Whether the field may have several values; a map is such a field too."""
    return bool(field.label == FieldDescriptorProto.LABEL_REPEATED)


def is_required(field: FieldDescriptorProto) -> bool:
    return bool(field.label == FieldDescriptorProto.LABEL_REQUIRED)


def parse_proto(definition: str) -> FileDescriptorProto:
    """The descriptor of a definition; InvalidArgument with line and column if it is invalid."""
    return _Parser(definition).file()


class _Parser:
    """Recursive descent over the words; `depth` bounds the recursion."""

    def __init__(self, definition: str) -> None:
        self._words = ProtoTokens(definition)
        self._file = FileDescriptorProto(name=FILE_NAME)
        self._is_proto3 = False
        self._scope = Scope(self._words)

    def file(self) -> FileDescriptorProto:
        words = self._words
        self._syntax()
        has_package = False
        while words.here.kind != "end":
            start = words.here
            if words.take_if(";"):
                continue
            self._refuse_unsupported(start)
            if words.take_if("package"):
                if has_package or self._scope.has_names:
                    words.refuse("the package is named once, before the types", start.at)
                has_package = True
                self._file.package = words.path("the name of the package").removeprefix(".")
                self._scope.package(self._file.package, start.at)
                words.expect(";")
            elif words.take_if("option"):
                self._option()
            elif words.take_if("message"):
                if self._file.message_type:
                    words.refuse("a schema has exactly one message type at the top, this is the second; put it inside", start.at)
                self._message(self._file.message_type.add(), self._file.package, depth=1)
            elif words.take_if("enum"):
                self._enum(self._file.enum_type.add(), self._file.package)
            else:
                words.unexpected("message, enum, package or option")
        if not self._file.message_type:
            words.refuse("there is no message type, expected exactly one", words.here.at)
        self._scope.resolve()
        return self._file

    def _syntax(self) -> None:
        words = self._words
        if not words.take_if("syntax"):
            return  # the default of the language
        words.expect("=")
        at = words.here.at
        syntax = words.string("'proto2' or 'proto3'")
        if syntax not in {"proto2", "proto3"}:
            words.refuse(f"found {shortened(syntax)}, expected 'proto2' or 'proto3'", at)
        words.expect(";")
        self._is_proto3 = syntax == "proto3"
        if self._is_proto3:
            self._file.syntax = syntax

    def _refuse_unsupported(self, word: ProtoToken) -> None:
        if word.text in _NOT_SUPPORTED and word.kind == "name" and self._words.after.text != ".":
            self._words.refuse(_NOT_SUPPORTED[word.text], word.at)

    def _message(self, message: DescriptorProto, parent: str, *, depth: int) -> None:
        words = self._words
        name = words.name("the name of the message")
        if depth > MAX_DEPTH:
            words.refuse(f"messages are nested more than {MAX_DEPTH} deep", name.at)
        message.name = name.text
        full = self._scope.declare(parent, name, "message")
        numbers = FieldNumbers(words, "field")
        json_names: dict[str, str] = {}
        words.expect("{")
        while not words.take_if("}"):
            start = words.here
            if words.take_if(";"):
                continue
            if start.kind == "name" and words.after.kind == "name" and start.text in {"extend", "group"}:
                words.refuse(_NOT_SUPPORTED[start.text], start.at)
            if start.text == "option" and words.after.text != ".":
                words.take()
                self._option()
            elif start.text == "message" and words.after.kind == "name":
                words.take()
                self._message(message.nested_type.add(), full, depth=depth + 1)
            elif start.text == "enum" and words.after.kind == "name":
                words.take()
                self._enum(message.enum_type.add(), full)
            elif start.text == "oneof" and words.after.kind == "name":
                words.take()
                self._oneof(message, full, numbers, json_names)
            elif start.text == "map" and words.after.text == "<":
                self._map(message, full, numbers, json_names)
            elif start.text == "reserved" and words.after.text != ".":
                words.take()
                numbers.reserve(1, MAX_FIELD_NUMBER)
            elif start.text == "extensions" and words.after.kind == "number":
                words.take()
                if self._is_proto3:
                    words.refuse("proto3 has no extensions", start.at)
                numbers.reserve(1, MAX_FIELD_NUMBER)
            else:
                self._field(message, full, numbers, json_names)
        numbers.check_reserved()
        self._add_synthetic_oneofs(message, full, name)

    def _field(
        self,
        message: DescriptorProto,
        full: str,
        numbers: FieldNumbers,
        json_names: dict[str, str],
        *,
        oneof: int | None = None,
    ) -> None:
        words = self._words
        start = words.here
        label = None
        if start.text in _LABELS and words.after.text != "=":
            label = words.take().text
        if oneof is not None and label:
            words.refuse(f"a field of a oneof is neither optional, required nor repeated, found {label!r}", start.at)
        if self._is_proto3 and label == "required":
            words.refuse("proto3 has no required fields", start.at)
        if not self._is_proto3 and oneof is None and not label:
            words.unexpected("optional, required or repeated, as proto2 has it, or the end of the message")
        at = words.here.at
        if words.here.text == "group":
            words.refuse(_NOT_SUPPORTED["group"], at)
        if words.here.text == "map" and words.after.text == "<":
            words.refuse("a map is neither optional, required nor repeated, nor in a oneof", at)
        field = message.field.add(label=_LABELS[label or "optional"])
        type_name = words.path("the type of a field")
        if type_name in _SCALARS:
            field.type = _SCALARS[type_name]
        else:
            self._scope.refer(field, type_name, full, at)
        if oneof is not None:
            field.oneof_index = oneof
        field.proto3_optional = self._is_proto3 and label == "optional"
        self._finish_field(field, full, numbers, json_names)

    def _finish_field(self, field: FieldDescriptorProto, full: str, numbers: FieldNumbers, json_names: dict[str, str]) -> None:
        """Parse the name, number and options, which all forms of fields end with."""
        words = self._words
        name = words.name("the name of the field")
        field.name = name.text
        self._scope.declare(full, name, "field")
        words.expect("=")
        at = words.here.at
        field.number = words.integer("a field number", 1, MAX_FIELD_NUMBER)
        numbers.add(name.text, field.number, at)
        given = self._field_options()
        field.json_name = given if given is not None else json_name_of(name.text)
        words.expect(";")
        other = json_names.setdefault(field.json_name, name.text)
        if other != name.text:
            words.refuse(f"the fields {other!r} and {name.text!r} have the same JSON name {field.json_name!r}", name.at)

    def _field_options(self) -> str | None:
        """Skip the options of a field or value in brackets; return the `json_name` among them."""
        words = self._words
        json_name = None
        if not words.take_if("["):
            return None
        while True:
            start = words.here
            self._option_name()
            words.expect("=")
            if start.text == "json_name":
                json_name = words.string("a JSON name")
                if not json_name or "\\" in json_name or json_name.startswith("["):
                    words.refuse(f"found the JSON name {shortened(json_name)}, expected a plain name", start.at)
            else:
                if start.text == "default" and self._is_proto3:
                    words.refuse("proto3 has no defaults", start.at)
                words.constant()
            if words.take_if("]"):
                return json_name
            words.expect(",")

    def _option_name(self) -> None:
        words = self._words
        while True:
            if words.take_if("("):
                words.path("the name of an option")
                words.expect(")")
            else:
                words.name("the name of an option")
            if not words.take_if("."):
                return

    def _option(self) -> tuple[str, str]:
        """Skip `name = value;` and return both, as written if they are one word."""
        words = self._words
        name = words.here.text
        self._option_name()
        words.expect("=")
        value = words.here.text
        words.constant()
        words.expect(";")
        return name, value

    def _oneof(self, message: DescriptorProto, full: str, numbers: FieldNumbers, json_names: dict[str, str]) -> None:
        words = self._words
        name = words.name("the name of the oneof")
        self._scope.declare(full, name, "oneof")
        index = len(message.oneof_decl)
        message.oneof_decl.add(name=name.text)
        before = len(message.field)
        words.expect("{")
        while not words.take_if("}"):
            if words.take_if(";"):
                continue
            if words.here.text == "option" and words.after.text != ".":
                words.take()
                self._option()
            else:
                self._field(message, full, numbers, json_names, oneof=index)
        if len(message.field) == before:
            words.refuse(f"the oneof {name.text!r} has no fields", name.at)

    def _map(self, message: DescriptorProto, full: str, numbers: FieldNumbers, json_names: dict[str, str]) -> None:
        words = self._words
        start = words.expect("map")
        words.expect("<")
        key = words.name("the type of the keys")
        if key.text not in _KEY_TYPES:
            words.refuse(f"found keys of type {shortened(key.text)}, expected an integer type, bool or string", key.at)
        words.expect(",")
        value_at = words.here.at
        value_type = words.path("the type of the values")
        words.expect(">")
        field = message.field.add(label=_FIELD.LABEL_REPEATED, type=_FIELD.TYPE_MESSAGE)
        self._finish_field(field, full, numbers, json_names)
        entry = message.nested_type.add(name="".join(part[:1].upper() + part[1:] for part in field.name.split("_")) + "Entry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, label=_FIELD.LABEL_OPTIONAL, type=_SCALARS[key.text], json_name="key")
        value = entry.field.add(name="value", number=2, label=_FIELD.LABEL_OPTIONAL, json_name="value")
        field.type_name = f".{self._scope.declare(full, ProtoToken('name', entry.name, start.at), 'map entry')}"
        if value_type in _SCALARS:
            value.type = _SCALARS[value_type]
        else:
            self._scope.refer(value, value_type, full, value_at, is_map_value=True)

    def _enum(self, enum: EnumDescriptorProto, parent: str) -> None:
        words = self._words
        name = words.name("the name of the enum")
        enum.name = name.text
        full = self._scope.declare(parent, name, "enum")
        numbers = FieldNumbers(words, "value")
        words.expect("{")
        while not words.take_if("}"):
            start = words.here
            if words.take_if(";"):
                continue
            if start.text == "option" and words.after.text != "=":
                words.take()
                option, value = self._option()
                if option == "allow_alias" and value == "true":
                    enum.options.allow_alias = True
            elif start.text == "reserved" and words.after.text != "=":
                words.take()
                numbers.reserve(-(2**31), 2**31 - 1)
            else:
                item = words.name("the name of a value")
                words.expect("=")
                at = words.here.at
                number = words.integer("a number", -(2**31), 2**31 - 1)
                if self._is_proto3 and not enum.value and number != 0:
                    words.refuse(f"found {number}, expected 0: the first value of an enum of proto3 is 0", at)
                # The values of an enum are names beside the enum, not inside it.
                self._scope.declare(parent, item, "value")
                enum.value.add(name=item.text, number=number)
                numbers.add(item.text, number, at)
                self._field_options()
                words.expect(";")
        if not enum.value:
            words.refuse(f"the enum {name.text!r} has no values", name.at)
        numbers.check_reserved(may_share=enum.options.allow_alias)
        self._scope.first_number(full, enum.value[0].number, is_open=self._is_proto3)

    def _add_synthetic_oneofs(self, message: DescriptorProto, full: str, name: ProtoToken) -> None:
        """The library represents an `optional` field of proto3 as a oneof of its own; these come after the declared ones."""
        taken = {field.name for field in message.field} | {oneof.name for oneof in message.oneof_decl}
        for field in message.field:
            if field.proto3_optional:
                oneof = f"_{field.name}"
                while oneof in taken:
                    oneof = f"X{oneof}"
                taken.add(oneof)
                field.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=oneof)
                self._scope.declare(full, ProtoToken("name", oneof, name.at), "oneof")
