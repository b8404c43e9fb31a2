"""The types of an Avro schema, and the parser of definitions: names are resolved, the rules of specification 1.11 are checked.

Definitions are untrusted. Parsing takes time in proportion to their length; nesting is bounded by MAX_DEPTH. Logical types and
unknown attributes are ignored, as the specification requires of readers that do not support them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NoReturn

from penstock.errors import InvalidArgument
from penstock.schemas.json_text import decoded_json, is_unicode
from penstock.schemas.schema import SchemaMismatch, found, shortened

MAX_NAME = (
    1024  # characters of a full name; every name is stored with its namespace, so without a limit their total size could explode
)
MAX_DEPTH = 64  # types defined inside types; named types may refer to each other without limit
PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
INTEGER_BITS = {"int": 32, "long": 64}

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_FULL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*", re.ASCII)
_ABSENT = object()


@dataclass(frozen=True, slots=True, eq=False)
class Primitive:
    """null, boolean, int, long, float, double, bytes or string."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Fixed:
    """A fixed number of bytes."""

    name: str
    aliases: frozenset[str]
    size: int


@dataclass(frozen=True, slots=True, eq=False)
class Enum:
    """One of a list of symbols."""

    name: str
    aliases: frozenset[str]
    symbols: tuple[str, ...]
    has_default: bool


@dataclass(frozen=True, slots=True, eq=False)
class Array:
    """Any number of items."""

    items: Type


@dataclass(frozen=True, slots=True, eq=False)
class Map:
    """Any number of values, each with a string as its key."""

    values: Type


@dataclass(frozen=True, slots=True, eq=False)
class Union:
    """A union; `branches` is in the order of the definition, with the names that the JSON encoding uses."""

    branches: dict[str, Type]


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    """A field of a record."""

    name: str
    type: Type
    aliases: frozenset[str]
    has_default: bool


@dataclass(slots=True, eq=False)
class Record:
    """Named fields in order. `takes_no_bytes`: whether its binary form is always empty."""

    name: str
    aliases: frozenset[str]
    fields: dict[str, Field] = field(default_factory=dict)
    without_default: frozenset[str] = frozenset()
    takes_no_bytes: bool = False


Named = Fixed | Enum | Record
Type = Primitive | Fixed | Enum | Array | Map | Union | Record


def takes_no_bytes(kind: Type) -> bool:
    """Whether the binary form of every value of this type is empty."""
    match kind:
        case Primitive(name=name):
            return name == "null"
        case Fixed(size=size):
            return size == 0
        case Record():
            return kind.takes_no_bytes
    return False


def read_definition(definition: str) -> tuple[Type, list[Record]]:
    """The type of an Avro definition, and every record in it; InvalidArgument if it is invalid."""
    try:
        value = decoded_json(definition)
    except SchemaMismatch as problem:
        raise InvalidArgument(f"Avro schema: {problem.reason}") from None
    reader = _Reader()
    root = reader.type_of(value, namespace="", where="", depth=0)
    reader.check_defaults()
    return root, reader.records


class _Reader:
    """One pass over a decoded definition. A name may be used once it is declared, so also inside its own declaration."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self._primitives: dict[str, Type] = {name: Primitive(name) for name in PRIMITIVES}
        self._named: dict[str, Named] = {}
        self._defaults: list[tuple[str, Type, object]] = []

    def type_of(self, value: object, *, namespace: str, where: str, depth: int) -> Type:
        if depth > MAX_DEPTH:
            _refuse(where, f"types are nested more than {MAX_DEPTH} deep")
        inner = depth + 1
        if isinstance(value, str):
            return self._reference(value, namespace, where)
        if isinstance(value, list):
            return self._union(value, namespace, where, inner)
        if not isinstance(value, dict) or "type" not in value:
            _refuse(where, f"found {found(value)}, expected a type: a name, an object with 'type', or an array for a union")
        match value["type"]:
            case "record" | "error":
                return self._record(value, namespace, where, inner)
            case "enum":
                return self._enum(value, namespace, where)
            case "fixed":
                return self._fixed(value, namespace, where)
            case "array":
                items = _member(value, "items", where)
                return Array(self.type_of(items, namespace=namespace, where=f"{where}.items", depth=inner))
            case "map":
                values = _member(value, "values", where)
                return Map(self.type_of(values, namespace=namespace, where=f"{where}.values", depth=inner))
        return self.type_of(value["type"], namespace=namespace, where=where, depth=inner)

    def check_defaults(self) -> None:
        """Check defaults once every record is complete: a default may be of a record that is still being read."""
        for where, kind, value in self._defaults:
            try:
                _check_default(kind, value)
            except SchemaMismatch as problem:
                _refuse(f"{where}.default", problem.reason)

    def _reference(self, name: str, namespace: str, where: str) -> Type:
        if name in self._primitives:
            return self._primitives[name]
        full = f"{namespace}.{name}" if namespace and "." not in name else name
        if full not in self._named:
            _refuse(where, f"there is no type {shortened(name)}; a named type is declared before it is used")
        return self._named[full]

    def _union(self, value: list[object], namespace: str, where: str, depth: int) -> Union:
        branches: dict[str, Type] = {}
        for index, item in enumerate(value):
            spot = f"{where}[{index}]"
            branch = self.type_of(item, namespace=namespace, where=spot, depth=depth)
            if isinstance(branch, Union):
                _refuse(spot, "a union may not hold a union")
            name = branch_name(branch)
            if name in branches:
                _refuse(spot, f"the union has {name} twice")
            branches[name] = branch
        if not branches:
            _refuse(where, "the union is empty")
        return Union(branches)

    def _record(self, value: dict[str, object], namespace: str, where: str, depth: int) -> Record:
        name, aliases, namespace = self._declared(value, namespace, where)
        record = Record(name, aliases)
        self._named[name] = record
        self.records.append(record)
        for index, item in enumerate(_list_member(value, "fields", where)):
            spot = f"{where}.fields[{index}]"
            if not isinstance(item, dict):
                _refuse(spot, f"found {found(item)}, expected an object with 'name' and 'type'")
            added = self._field(item, namespace, spot, depth)
            if added.name in record.fields:
                _refuse(spot, f"the record has a field {shortened(added.name)} already")
            record.fields[added.name] = added
        record.without_default = frozenset(added.name for added in record.fields.values() if not added.has_default)
        # A recursive record is still being read here and counts as having bytes: no finite message could contain it otherwise.
        record.takes_no_bytes = all(takes_no_bytes(added.type) for added in record.fields.values())
        return record

    def _field(self, item: dict[str, object], namespace: str, spot: str, depth: int) -> Field:
        name = _simple_name(_member(item, "name", spot), f"{spot}.name")
        where = f"{spot}({name[:40]})"
        kind = self.type_of(_member(item, "type", where), namespace=namespace, where=f"{where}.type", depth=depth)
        if item.get("order", "ascending") not in ("ascending", "descending", "ignore"):
            _refuse(f"{where}.order", f"found {found(item['order'])}, expected ascending, descending or ignore")
        default = item.get("default", _ABSENT)
        if default is not _ABSENT:
            self._defaults.append((where, kind, default))
        return Field(name, kind, _aliases(item, "", where), default is not _ABSENT)

    def _enum(self, value: dict[str, object], namespace: str, where: str) -> Enum:
        name, aliases, _ = self._declared(value, namespace, where)
        symbols: dict[str, None] = {}
        for index, item in enumerate(_list_member(value, "symbols", where)):
            symbol = _simple_name(item, f"{where}.symbols[{index}]")
            if symbol in symbols:
                _refuse(f"{where}.symbols[{index}]", f"the enum has {shortened(symbol)} already")
            symbols[symbol] = None
        default = value.get("default")
        if "default" in value and not (isinstance(default, str) and default in symbols):
            _refuse(f"{where}.default", f"found {found(default)}, expected one of the symbols")
        self._named[name] = declared = Enum(name, aliases, tuple(symbols), "default" in value)
        return declared

    def _fixed(self, value: dict[str, object], namespace: str, where: str) -> Fixed:
        name, aliases, _ = self._declared(value, namespace, where)
        size = _member(value, "size", where)
        if type(size) is not int or not 0 <= size < 2**31:
            _refuse(f"{where}.size", f"found {found(size)}, expected a number of bytes from 0 to {2**31 - 1}")
        self._named[name] = declared = Fixed(name, aliases, size)
        return declared

    def _declared(self, value: dict[str, object], namespace: str, where: str) -> tuple[str, frozenset[str], str]:
        """The full name of a named type, its aliases, and the namespace for its content."""
        name = _member(value, "name", where)
        if not isinstance(name, str) or not _FULL_NAME.fullmatch(name):
            _refuse(f"{where}.name", f"found {found(name)}, expected letters, digits and '_', not starting with a digit")
        if "." not in name:
            namespace = _namespace(value.get("namespace", namespace), where)
            name = f"{namespace}.{name}" if namespace else name
        else:
            namespace = name.rpartition(".")[0]
        if len(name) > MAX_NAME:
            _refuse(f"{where}.name", f"the full name has {len(name)} characters, expected at most {MAX_NAME}")
        if name in self._primitives or name in self._named:
            _refuse(f"{where}.name", f"the name {shortened(name)} is taken")
        return name, _aliases(value, namespace, where), namespace


def branch_name(kind: Type) -> str:
    """The name of this branch in the JSON encoding of a union."""
    match kind:
        case Array():
            return "array"
        case Map():
            return "map"
        case Union():
            return "union"
    return kind.name


def _check_default(kind: Type, value: object) -> None:
    """Check a default: JSON without the wrapping of unions, for the union's first branch. Linear in the default's size."""
    match kind:
        case Union(branches=branches):
            _check_default(next(iter(branches.values())), value)
        case Array(items=items) if isinstance(value, list):
            for item in value:
                _check_default(items, item)
        case Map(values=values) if isinstance(value, dict):
            for item in value.values():
                _check_default(values, item)
        case Record() if isinstance(value, dict):
            # The walk follows the default and stops at the first missing field: fast for a short default.
            for name in kind.without_default:
                if name not in value:
                    raise SchemaMismatch(f"the field {shortened(name)} is missing and has no default of its own")
            for name, item in value.items():
                if name not in kind.fields:
                    raise SchemaMismatch(f"the record has no field {shortened(name)}")
                _check_default(kind.fields[name].type, item)
        case Enum(symbols=symbols) if isinstance(value, str) and value in symbols:
            pass
        case Fixed(size=size) if isinstance(value, str) and len(value) == size and is_latin(value):
            pass
        case Primitive(name=name) if fits(name, value):
            pass
        case _:
            raise SchemaMismatch(
                f"found {found(value)}, expected a value of type {branch_name(kind)} (of a union: its first branch)"
            )


def fits(primitive: str, value: object) -> bool:
    """Whether a decoded JSON value is of this primitive type."""
    match primitive:
        case "null":
            return value is None
        case "boolean":
            return value is True or value is False
        case "int" | "long":
            half = 1 << (INTEGER_BITS[primitive] - 1)
            return type(value) is int and -half <= value < half
        case "float" | "double":
            # 1e999 is parsed as infinity, and an integer may be larger than any double; neither is a number of this type.
            return type(value) in {int, float} and -_LARGEST <= value <= _LARGEST  # type: ignore[operator]  # just checked
        case "bytes":
            return isinstance(value, str) and is_latin(value)
    return isinstance(value, str) and is_unicode(value)


_LARGEST = 1.7976931348623157e308


def is_latin(text: str) -> bool:
    """Whether each character stands for one byte, as in Avro's JSON encoding of bytes."""
    return text.isascii() or max(text) <= "\xff"


def _member(value: dict[str, object], name: str, where: str) -> object:
    if name not in value:
        _refuse(where, f"{name!r} is missing")
    return value[name]


def _list_member(value: dict[str, object], name: str, where: str) -> list[object]:
    items = _member(value, name, where)
    if not isinstance(items, list):
        _refuse(f"{where}.{name}", f"found {found(items)}, expected an array")
    return items


def _simple_name(value: object, where: str) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        _refuse(where, f"found {found(value)}, expected letters, digits and '_', not starting with a digit")
    return value


def _namespace(value: object, where: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str) or (value and not _FULL_NAME.fullmatch(value)) or len(value) > MAX_NAME:
        _refuse(f"{where}.namespace", f"found {found(value)}, expected names joined by dots, at most {MAX_NAME} characters")
    return value


def _aliases(value: dict[str, object], namespace: str, where: str) -> frozenset[str]:
    if "aliases" not in value:
        return frozenset()
    aliases: set[str] = set()
    for index, alias in enumerate(_list_member(value, "aliases", where)):
        if not isinstance(alias, str) or not _FULL_NAME.fullmatch(alias):
            _refuse(f"{where}.aliases[{index}]", f"found {found(alias)}, expected a name")
        aliases.add(f"{namespace}.{alias}" if namespace and "." not in alias else alias)
    return frozenset(aliases)


def _refuse(where: str, reason: str) -> NoReturn:
    spot = where.removeprefix(".")
    raise InvalidArgument(f"Avro schema: {f'at {spot}: ' if spot else ''}{reason}")
