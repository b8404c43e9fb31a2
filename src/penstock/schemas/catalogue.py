"""A cache of compiled schemas: a topic compiles its schema once, not for each message."""

from __future__ import annotations

import threading
from collections import OrderedDict

from penstock.errors import InvalidArgument
from penstock.schemas.avro import check_avro_revision, compile_avro
from penstock.schemas.avro_types import Type
from penstock.schemas.proto import check_proto_revision, compile_proto
from penstock.schemas.proto_parser import ProtoTypes
from penstock.schemas.schema import MAX_DEFINITION, Schema, SchemaKind

MAX_KEPT = 256  # schemas
MAX_KEPT_CHARACTERS = (
    4 * 1024 * 1024
)  # bytes of their definitions: a compiled schema takes memory in proportion to its definition


class _SchemaCache:
    """The most recently used schemas, bounded by number and by size."""

    def __init__(self) -> None:
        self._schemas: OrderedDict[tuple[SchemaKind, str], Schema] = OrderedDict()
        self._characters = 0
        self._lock = threading.Lock()  # APIs compile in threads

    def get(self, kind: SchemaKind, definition: str) -> Schema | None:
        with self._lock:
            schema = self._schemas.get((kind, definition))
            if schema is not None:
                self._schemas.move_to_end((kind, definition))
            return schema

    def put(self, schema: Schema) -> Schema:
        """Store a schema; returns the stored one if another thread was faster."""
        with self._lock:
            kept = self._schemas.setdefault((schema.kind, schema.definition), schema)
            if kept is schema:
                self._characters += len(schema.definition)
            while len(self._schemas) > MAX_KEPT or self._characters > MAX_KEPT_CHARACTERS:
                (_, definition), _ = self._schemas.popitem(last=False)
                self._characters -= len(definition)
            return kept


_kept = _SchemaCache()


def compile_schema(kind: SchemaKind, definition: str) -> Schema:
    """Compile an untrusted definition; InvalidArgument names the place and the problem."""
    if (schema := _kept.get(kind, definition)) is not None:
        return schema
    try:
        size = len(definition.encode())
    except UnicodeEncodeError:
        raise InvalidArgument("schema definition is not text: it holds half a surrogate pair") from None
    if not 0 < size <= MAX_DEFINITION:
        raise InvalidArgument(f"schema definition has {size} bytes, expected 1 to {MAX_DEFINITION}")
    try:
        return _kept.put(compile_avro(definition) if kind is SchemaKind.AVRO else compile_proto(definition))
    except RecursionError:
        raise InvalidArgument("schema definition is nested too deeply") from None


def check_revision(old: Schema, new: Schema) -> None:
    """Return if `new` may be committed after `old`; otherwise InvalidArgument names the obstacle."""
    before, after = old.types, new.types
    if isinstance(before, Type) and isinstance(after, Type):
        try:
            check_avro_revision(before, after)
        except RecursionError:
            raise InvalidArgument("not a compatible revision: the types are nested too deeply to compare") from None
    elif isinstance(before, ProtoTypes) and isinstance(after, ProtoTypes):
        check_proto_revision(before, after)
    else:
        raise InvalidArgument(f"not a compatible revision: a schema of {old.kind.value} stays one, found {new.kind.value}")
