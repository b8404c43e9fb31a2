"""The rules of .proto about names and numbers: what is declared once, what a type's name refers to, which numbers are free."""

from __future__ import annotations

from itertools import pairwise

from google.protobuf.descriptor_pb2 import FieldDescriptorProto

from penstock.schemas.problem import shortened
from penstock.schemas.proto_tokens import Word, Words

MAX_NAME = 1024  # characters of a full name; every name is kept with its scope in front, so long ones would multiply
MAX_FIELD_NUMBER = 2**29 - 1
_KEPT_BY_THE_LIBRARY = range(19_000, 20_000)


class Scope:
    """Every name of a file by its full form, and the uses of types, which are resolved when the whole file is read."""

    def __init__(self, words: Words) -> None:
        self._words = words
        self._kinds: dict[str, str] = {}
        self._uses: list[tuple[FieldDescriptorProto, str, str, int, bool]] = []
        self._firsts: dict[str, int] = {}

    @property
    def has_names(self) -> bool:
        """Whether anything is declared yet."""
        return bool(self._kinds)

    def package(self, name: str, at: int) -> None:
        """The package and those around it are names that a type's name may begin with."""
        if len(name) > MAX_NAME:
            self._words.refuse(f"the package's name has {len(name)} characters, wanted at most {MAX_NAME}", at)
        parts = name.split(".")
        self._kinds.update((".".join(parts[: count + 1]), "package") for count in range(len(parts)))

    def declare(self, parent: str, name: Word, kind: str) -> str:
        """Add a name to a scope and say its full form."""
        full = f"{parent}.{name.text}" if parent else name.text
        if len(full) > MAX_NAME:
            self._words.refuse(f"the full name has {len(full)} characters, wanted at most {MAX_NAME}", name.at)
        if full in self._kinds:
            self._words.refuse(
                f"the name {shortened(full)} is declared twice (as a {self._kinds[full]}, now as a {kind})", name.at
            )
        self._kinds[full] = kind
        return full

    def first_number(self, enum: str, number: int, *, is_open: bool) -> None:
        """Note the first number of an enum: as a value of a map it must be 0, since a value left out is read as it."""
        if not is_open:
            self._firsts[enum] = number

    def refer(self, field: FieldDescriptorProto, name: str, scope: str, at: int, *, is_map_value: bool = False) -> None:
        """A field of a type that is known by name, perhaps not declared yet."""
        self._uses.append((field, name, scope, at, is_map_value))

    def resolve(self) -> None:
        """Give each field the full name of its type."""
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
        """The innermost scope that knows the first part of the name decides, as the language has it."""
        if name.startswith("."):
            return name[1:]
        first, _, rest = name.partition(".")
        while True:
            candidate = f"{scope}.{first}" if scope else first
            kind = self._kinds.get(candidate)
            # What cannot hold the rest of the name, or is no type, does not hide what is further out.
            if kind in ({"message", "enum", "package"} if rest else {"message", "enum"}):
                return f"{candidate}.{rest}" if rest else candidate
            if not scope:
                return name
            scope = scope.rpartition(".")[0]


class Numbers:
    """The numbers of one message or enum: used once each, and never where they are reserved."""

    def __init__(self, words: Words, what: str) -> None:
        self._words = words
        self._what = what
        self._used: list[tuple[int, str, int]] = []
        self._ranges: list[tuple[int, int, int]] = []
        self._names: dict[str, int] = {}

    def add(self, name: str, number: int, at: int) -> None:
        """Use a number."""
        if self._what == "field" and number in _KEPT_BY_THE_LIBRARY:
            self._words.refuse(f"found {number}; the field numbers 19000 to 19999 are kept by Protocol Buffers itself", at)
        self._used.append((number, name, at))

    def reserve(self, least: int, most: int) -> None:
        """Read what follows `reserved` or `extensions`: ranges of numbers, or names."""
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
        """Once all is read: no number twice, none reserved, no reserved range over another, no reserved name."""
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
    """The JSON name of a field that is given none: without '_', and with a capital after each."""
    first, *others = name.split("_")
    return first + "".join(part[:1].upper() + part[1:] for part in others)
