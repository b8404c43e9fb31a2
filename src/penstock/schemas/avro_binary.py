"""Checks the binary encoding of a value of an Avro type by walking over the bytes, without building the value.

Each type is compiled once into a function `(data, at, room) -> at` that steps over one value and returns where the next starts.
The time is bounded: values without bytes are not walked, so each step consumes a byte of the message, and `room` bounds the
nesting of values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from penstock.schemas.avro_types import Array, Enum, Field, Fixed, Map, Primitive, Record, Type, Union, takes_no_bytes
from penstock.schemas.schema import SchemaMismatch

MAX_DEPTH = 200  # nesting of values
MAX_EMPTY_ITEMS = 10_000_000  # items without bytes: as many as the items of one byte each in the largest message

Step = Callable[[bytes, int, int], int]
_TOO_DEEP = f"values are nested more than {MAX_DEPTH} deep"


def binary_check(root: Type, records: list[Record]) -> Callable[[bytes], None]:
    """A function that raises Problem unless the bytes are exactly one value of `root`."""
    builder = _Builder(records)
    step = builder.step_of(root)

    def check(data: bytes) -> None:
        end = step(data, 0, MAX_DEPTH)
        if end != len(data):
            raise SchemaMismatch(f"{len(data) - end} bytes are left after the value, which ends at byte {end}")

    return check


class _Builder:
    """Compiles types into steps. Every record gets its step before its fields are compiled, since records may be recursive."""

    def __init__(self, records: list[Record]) -> None:
        self._plans: dict[Record, list[tuple[str, Step]]] = {record: [] for record in records}
        self._steps: dict[Record, Step] = {record: _record_step(plan) for record, plan in self._plans.items()}
        for record, plan in self._plans.items():
            plan.extend(self._plan_of(record))

    def _plan_of(self, record: Record) -> Iterator[tuple[str, Step]]:
        for field in _paid_fields(record):
            path, kind = field.name, field.type
            # A record with one field would cost a step without a byte of its own: a chain of them becomes one step to the
            # innermost.
            for _ in range(MAX_DEPTH):
                if not isinstance(kind, Record) or len(inner := _paid_fields(kind)) != 1:
                    break
                path, kind = f"{path}.{inner[0].name}", inner[0].type
            yield path, self.step_of(kind)

    def step_of(self, kind: Type) -> Step:
        if takes_no_bytes(kind):
            return _nothing
        match kind:
            case Primitive(name=name):
                return _PRIMITIVES[name]
            case Fixed(size=size):
                return _fixed_step(size)
            case Enum(symbols=symbols):
                return _enum_step(len(symbols))
            case Record():
                return self._steps[kind]
            case Array(items=items):
                return _blocks_step(None if takes_no_bytes(items) else self.step_of(items), is_map=False)
            case Map(values=values):
                return _blocks_step(self.step_of(values), is_map=True)
            case Union(branches=branches):
                return _union_step([self.step_of(branch) for branch in branches.values()])


def _paid_fields(record: Record) -> list[Field]:
    """The fields that have at least one byte."""
    return [field for field in record.fields.values() if not takes_no_bytes(field.type)]


def _long(data: bytes, at: int) -> tuple[int, int]:
    """A zigzag variable-length integer of at most 64 bits, and the offset after it."""
    raw = shift = 0
    for byte in data[at : at + 10]:
        at += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            if raw >> 64:
                raise SchemaMismatch("found an integer of more than 64 bits")
            return (raw >> 1) ^ -(raw & 1), at
        shift += 7
    if shift == 70:
        raise SchemaMismatch("found an integer of more than 10 bytes")
    raise SchemaMismatch(f"the message ends at byte {len(data)}, inside an integer")


def _long_step(data: bytes, at: int, _room: int) -> int:
    # One byte is the usual length of an integer: not worth a call.
    if at < len(data) and data[at] < 0x80:
        return at + 1
    return _long(data, at)[1]


def _int_step(data: bytes, at: int, _room: int) -> int:
    if at < len(data) and data[at] < 0x80:
        return at + 1
    value, at = _long(data, at)
    if not -(2**31) <= value < 2**31:
        raise SchemaMismatch(f"found the integer {value}, expected an int of 32 bits")
    return at


def _boolean_step(data: bytes, at: int, _room: int) -> int:
    if at >= len(data):
        raise SchemaMismatch(f"the message ends at byte {at}, expected a boolean")
    if data[at] > 1:
        raise SchemaMismatch(f"found the byte {data[at]}, expected a boolean: 0 or 1")
    return at + 1


def _fixed_step(size: int, kind: str = "fixed") -> Step:
    def step(data: bytes, at: int, _room: int) -> int:
        end = at + size
        if end > len(data):
            raise SchemaMismatch(f"the message ends at byte {len(data)}, expected {size} bytes of {kind} from byte {at}")
        return end

    return step


def _bytes_step(data: bytes, at: int, _room: int) -> int:
    if at < len(data) and data[at] < 0x80 and not data[at] & 1:
        end = at + 1 + (data[at] >> 1)
    else:
        size, at = _long(data, at)
        if size < 0:
            raise SchemaMismatch(f"found the length {size}, expected 0 or more")
        end = at + size
    if end > len(data):
        raise SchemaMismatch(f"the message ends at byte {len(data)}, expected text or bytes up to byte {end}")
    return end


def _string_step(data: bytes, at: int, room: int) -> int:
    end = _bytes_step(data, at, room)
    # The length before the text is decoded with it: as a variable-length integer it may contain bytes that are not UTF-8, so skip
    # it here.
    start = at + 1
    while data[start - 1] >= 0x80:
        start += 1
    try:
        data[start:end].decode()
    except UnicodeDecodeError as error:
        raise SchemaMismatch(f"byte {start + error.start} is not valid UTF-8") from None
    return end


def _enum_step(count: int) -> Step:
    def step(data: bytes, at: int, _room: int) -> int:
        index, at = _long(data, at)
        if not 0 <= index < count:
            raise SchemaMismatch(f"found the symbol number {index}, expected one from 0 to {count - 1}")
        return at

    return step


def _union_step(branches: list[Step]) -> Step:
    def step(data: bytes, at: int, room: int) -> int:
        index, at = _long(data, at)
        if not 0 <= index < len(branches):
            raise SchemaMismatch(f"found the branch number {index}, expected one from 0 to {len(branches) - 1}")
        if room <= 0:
            raise SchemaMismatch(_TOO_DEEP)
        return branches[index](data, at, room - 1)

    return step


def _blocks_step(item: Step | None, *, is_map: bool) -> Step:
    """Arrays and maps: blocks of a count and that many items, up to a count of 0. A size follows a negative count."""

    def step(data: bytes, at: int, room: int) -> int:
        if room <= 0:
            raise SchemaMismatch(_TOO_DEEP)
        index = 0
        while True:
            count, at = _long(data, at)
            if count == 0:
                return at
            promised = None
            if count < 0:
                count = -count
                size, at = _long(data, at)
                promised = at + size
            if item is None:
                index += count
                if index > MAX_EMPTY_ITEMS:
                    raise SchemaMismatch(f"found {index} items that take no bytes, expected at most {MAX_EMPTY_ITEMS}")
            elif count > len(data) - at:
                raise SchemaMismatch(f"found a count of {count} items with {len(data) - at} bytes left")
            else:
                try:
                    for _ in range(count):
                        if is_map:
                            at = _string_step(data, at, room)
                        at = item(data, at, room - 1)
                        index += 1
                except SchemaMismatch as problem:
                    raise problem.inside(index) from None
            if promised is not None and promised != at:
                raise SchemaMismatch(f"the block ends at byte {at}, its size says byte {promised}")

    return step


def _record_step(plan: list[tuple[str, Step]]) -> Step:
    def step(data: bytes, at: int, room: int) -> int:
        if room <= 0:
            raise SchemaMismatch(_TOO_DEEP)
        room -= 1
        name = ""
        try:
            for name, inner in plan:  # noqa: B007  # the handler names it
                at = inner(data, at, room)
        except SchemaMismatch as problem:
            raise problem.inside(name) from None
        return at

    return step


def _nothing(_data: bytes, at: int, _room: int) -> int:
    return at


_PRIMITIVES: dict[str, Step] = {
    "boolean": _boolean_step,
    "int": _int_step,
    "long": _long_step,
    "float": _fixed_step(4, "float"),
    "double": _fixed_step(8, "double"),
    "bytes": _bytes_step,
    "string": _string_step,
}
