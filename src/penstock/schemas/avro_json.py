"""Checks a value, decoded from JSON, against Avro's JSON encoding of a type.

Each type is compiled once into a function `(value, room)` that raises Problem. Unions are `null` or an object with one member,
named like the branch; bytes are strings of characters up to U+00FF; every field of a record must be present, also those with
defaults, and no other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from heapq import nsmallest

from penstock.schemas.avro_binary import MAX_DEPTH
from penstock.schemas.avro_types import Array, Enum, Fixed, Map, Primitive, Record, Type, Union, fits, is_latin
from penstock.schemas.json_text import decoded_json, is_unicode
from penstock.schemas.schema import SHOWN, SchemaMismatch, found, shortened

Check = Callable[[object, int], None]


def json_check(root: Type, records: list[Record]) -> Callable[[bytes], None]:
    """A function that raises Problem unless the bytes are the JSON encoding of one value of `root`."""
    checks = _Builder(records)
    inner = checks.check_of(root)

    def check(data: bytes) -> None:
        inner(decoded_json(data), MAX_DEPTH)

    return check


class _Builder:
    """Compiles types into checks. Every record gets its check before its fields are compiled, since records may be recursive."""

    def __init__(self, records: list[Record]) -> None:
        self._plans: dict[Record, dict[str, Check]] = {record: {} for record in records}
        self._checks: dict[Record, Check] = {record: _record_check(plan) for record, plan in self._plans.items()}
        for record, plan in self._plans.items():
            plan.update((field.name, self.check_of(field.type)) for field in record.fields.values())

    def check_of(self, kind: Type) -> Check:
        match kind:
            case Primitive(name=name):
                return _primitive_check(name)
            case Fixed(size=size):
                return _fixed_check(size)
            case Enum(symbols=symbols):
                return _enum_check(frozenset(symbols))
            case Record():
                return self._checks[kind]
            case Array(items=items):
                return _array_check(self.check_of(items))
            case Map(values=values):
                return _map_check(self.check_of(values))
            case Union(branches=branches):
                return _union_check({name: self.check_of(branch) for name, branch in branches.items()})


def _primitive_check(name: str) -> Check:
    def check(value: object, _room: int) -> None:
        if not fits(name, value):
            raise SchemaMismatch(f"found {found(value)}, expected {_WANTED.get(name, name)}")

    return check


_WANTED = {
    "int": "an int of 32 bits",
    "long": "a long of 64 bits",
    "float": "a finite float",
    "double": "a finite double",
    "bytes": "bytes as a string of characters up to U+00FF",
    "string": "a string",
}


def _fixed_check(size: int) -> Check:
    def check(value: object, _room: int) -> None:
        if not isinstance(value, str) or len(value) != size or not is_latin(value):
            raise SchemaMismatch(f"found {found(value)}, expected {size} bytes as a string of characters up to U+00FF")

    return check


def _enum_check(symbols: frozenset[str]) -> Check:
    def check(value: object, _room: int) -> None:
        if not isinstance(value, str) or value not in symbols:
            raise SchemaMismatch(f"found {found(value)}, expected one of {_some(symbols)}")

    return check


def _array_check(item_check: Check) -> Check:
    def check(value: object, room: int) -> None:
        if not isinstance(value, list):
            raise SchemaMismatch(f"found {found(value)}, expected an array")
        _descend(room)
        index = 0
        try:
            for index, item in enumerate(value):  # noqa: B007  # the handler names it
                item_check(item, room - 1)
        except SchemaMismatch as problem:
            raise problem.inside(index) from None

    return check


def _map_check(value_check: Check) -> Check:
    def check(value: object, room: int) -> None:
        if not isinstance(value, dict):
            raise SchemaMismatch(f"found {found(value)}, expected an object of a map")
        _descend(room)
        key = ""
        try:
            for key, item in value.items():
                if not is_unicode(key):
                    raise SchemaMismatch("the key is half a surrogate pair, not text")
                value_check(item, room - 1)
        except SchemaMismatch as problem:
            raise problem.inside(key) from None

    return check


def _record_check(plan: dict[str, Check]) -> Check:
    names = plan.keys()  # a view: the plan is filled later

    def check(value: object, room: int) -> None:
        if not isinstance(value, dict):
            raise SchemaMismatch(f"found {found(value)}, expected an object with the fields {_some(names)}")
        if value.keys() != names:
            raise _other_fields(value, plan)
        _descend(room)
        name = ""
        try:
            for name, inner in plan.items():
                inner(value[name], room - 1)
        except SchemaMismatch as problem:
            raise problem.inside(name) from None

    return check


def _other_fields(value: dict[str, object], plan: dict[str, Check]) -> SchemaMismatch:
    missing = next((name for name in plan if name not in value), None)
    if missing is not None:
        return SchemaMismatch("the field is missing; Avro's JSON has every field, also those with a default").inside(missing)
    unknown = next(name for name in value if name not in plan)
    return SchemaMismatch(f"the schema has no such field, expected only {_some(plan)}").inside(unknown)


def _union_check(branches: dict[str, Check]) -> Check:
    wanted = ", ".join("null" if name == "null" else f'{{"{name[:SHOWN]}": ...}}' for name in list(branches)[:5])
    if len(branches) > 5:
        wanted += " and so on"
    has_null = "null" in branches

    def check(value: object, room: int) -> None:
        if value is None and has_null:
            return
        if not isinstance(value, dict) or len(value) != 1:
            raise SchemaMismatch(f"found {found(value)}, expected one branch of the union: {wanted}")
        ((name, inner),) = value.items()
        branch = branches.get(name)
        if branch is None or name == "null":
            raise SchemaMismatch(f"found the branch {shortened(name)}, expected one of: {wanted}")
        _descend(room)
        branch(inner, room - 1)

    return check


def _descend(room: int) -> None:
    if room <= 0:
        raise SchemaMismatch(f"values are nested more than {MAX_DEPTH} deep")


def _some(names: Collection[str]) -> str:
    """The first few of several names."""
    shown = ", ".join(name[:SHOWN] for name in nsmallest(8, names)) or "nothing"
    return shown if len(names) <= 8 else f"{shown} and {len(names) - 8} more"
