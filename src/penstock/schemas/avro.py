"""Avro schemas: compiled into checks for both encodings, and the rules for new revisions."""

from __future__ import annotations

from penstock.errors import InvalidArgument
from penstock.schemas import avro_binary, avro_json
from penstock.schemas.avro_types import (
    Array,
    Enum,
    Field,
    Fixed,
    Map,
    Primitive,
    Record,
    Type,
    Union,
    branch_name,
    read_definition,
)
from penstock.schemas.schema import Schema, SchemaKind, SchemaMismatch, shortened

MAX_PAIRS = 300_000  # types compared for one revision: two huge unions would have millions of pairs
_PROMOTIONS = {
    ("int", "long"),
    ("int", "float"),
    ("int", "double"),
    ("long", "float"),
    ("long", "double"),
    ("float", "double"),
    ("string", "bytes"),
    ("bytes", "string"),
}


def compile_avro(definition: str) -> Schema:
    """The schema of an Avro definition, or InvalidArgument."""
    root, records = read_definition(definition)
    return Schema(
        SchemaKind.AVRO,
        definition,
        root,
        json=avro_json.json_check(root, records),
        binary=avro_binary.binary_check(root, records),
    )


def check_avro_revision(old: Type, new: Type) -> None:
    """Check that each revision can read what the other wrote, by the rules of Avro's schema resolution."""
    for reader, writer, who in ((new, old, "the new revision cannot read the old"), (old, new, "the old cannot read the new")):
        try:
            _Resolution().check(reader, writer)
        except SchemaMismatch as problem:
            raise InvalidArgument(
                f"not a compatible revision: {who}: {problem.location()}{problem.reason}",
                hint="both must be readable by each other: add or remove only fields that have a default",
            ) from None


class _Resolution:
    """Whether a reader's type can read what a writer's type wrote.

    Pairs in progress count as readable: types may be recursive.
    """

    def __init__(self) -> None:
        self._settled: dict[tuple[Type, Type], str | None] = {}  # the obstacle, or None
        self._assumed: list[tuple[Type, Type]] = []
        self._pairs = 0

    def check(self, reader: Type, writer: Type) -> None:
        self._pairs += 1
        if self._pairs > MAX_PAIRS:
            raise SchemaMismatch("the types are too many to compare")
        match reader, writer:
            case _, Union(branches=branches):
                for branch in branches.values():
                    self.check(reader, branch)
            case Union(branches=branches), _:
                # Try the branch of the same name first: it is nearly always the right one, and a union may have thousands.
                same = branches.get(branch_name(writer))
                is_read = same is not None and self._reads(same, writer)
                if not is_read and not any(self._reads(branch, writer) for branch in branches.values()):
                    raise SchemaMismatch(f"no branch of the union reads {_title(writer)}")
            case Record(), Record():
                self._record(reader, writer)
            case Array(items=items), Array(items=written):
                self.check(items, written)
            case Map(values=values), Map(values=written):
                self.check(values, written)
            case Enum(), Enum():
                _same_name(reader, writer)
                gone = set(writer.symbols) - set(reader.symbols)
                if gone and not reader.has_default:
                    raise SchemaMismatch(
                        f"the symbol {shortened(min(gone))} of {_title(writer)} is gone, and the enum has no default"
                    )
            case Fixed(), Fixed():
                _same_name(reader, writer)
                if reader.size != writer.size:
                    raise SchemaMismatch(f"{_title(writer)} has {writer.size} bytes in one and {reader.size} in the other")
            case Primitive(name=name), Primitive(name=written) if name == written or (written, name) in _PROMOTIONS:
                pass
            case _:
                raise SchemaMismatch(f"{_title(writer)} cannot be read as {_title(reader)}")

    def _reads(self, reader: Type, writer: Type) -> bool:
        try:
            self.check(reader, writer)
        except SchemaMismatch:
            if self._pairs > MAX_PAIRS:
                raise
            return False
        return True

    def _record(self, reader: Record, writer: Record) -> None:
        _same_name(reader, writer)
        pair = reader, writer
        if pair in self._settled:
            if reason := self._settled[pair]:
                raise SchemaMismatch(reason)
            return
        self._settled[pair] = None
        mark = len(self._assumed)
        self._assumed.append(pair)
        for field in reader.fields.values():
            written = _written_field(field, writer)
            try:
                if written is not None:
                    self.check(field.type, written.type)
                elif not field.has_default:
                    raise SchemaMismatch("the field is only in one of the two and has no default")
            except SchemaMismatch as problem:
                # Results that were found since may depend on this pair, so they are computed again if needed.
                while len(self._assumed) > mark:
                    del self._settled[self._assumed.pop()]
                self._settled[pair] = problem.reason
                raise problem.inside(field.name) from None


def _written_field(field: Field, writer: Record) -> Field | None:
    names = (field.name, *sorted(field.aliases))
    return next((writer.fields[name] for name in names if name in writer.fields), None)


def _same_name(reader: Record | Enum | Fixed, writer: Record | Enum | Fixed) -> None:
    """Names match without their namespace, or by an alias of the reader."""
    if reader.name.rpartition(".")[2] != writer.name.rpartition(".")[2] and writer.name not in reader.aliases:
        raise SchemaMismatch(f"{_title(writer)} cannot be read as {_title(reader)}")


def _title(kind: Type) -> str:
    match kind:
        case Record():
            return f"the record {shortened(kind.name)}"
        case Enum() | Fixed():
            return f"the {type(kind).__name__.lower()} {shortened(kind.name)}"
    return branch_name(kind)
