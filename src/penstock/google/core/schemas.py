"""Schemas in requests and answers: the rules, and the views."""

from __future__ import annotations

from typing import Any

from penstock.durations import FOREVER
from penstock.errors import InvalidArgument
from penstock.google import messages

MAX_DEFINITION_BYTES = 300 * 1024
BASIC, FULL = messages.SchemaView.BASIC, messages.SchemaView.FULL


def check_schema(schema: Any) -> None:
    known = messages.Schema.Type
    if schema.type not in {known.Value("AVRO"), known.Value("PROTOCOL_BUFFER")}:
        raise InvalidArgument.of("schema.type", schema.type, "AVRO (2) or PROTOCOL_BUFFER (1)")
    size = len(schema.definition.encode())
    if not 0 < size <= MAX_DEFINITION_BYTES:
        raise InvalidArgument(f"schema.definition is {size} bytes long, expected 1 to {MAX_DEFINITION_BYTES}")


def check_commit(newest: Any, schema: Any) -> None:
    """A new revision keeps the schema's name and type."""
    check_schema(schema)
    if schema.name and schema.name != newest.name:
        raise InvalidArgument.of("schema.name", schema.name, f"{newest.name!r}, the schema that is committed to")
    if schema.type != newest.type:
        wanted = f"{messages.Schema.Type.Name(newest.type)}, as in the revisions before"
        raise InvalidArgument.of("schema.type", messages.Schema.Type.Name(schema.type), wanted)


def viewed(schema: Any, view: int, *, unset: int) -> Any:
    """The schema in a view. `unset` is the view of calls that name none: FULL for one schema, BASIC in lists."""
    if view not in {messages.SchemaView.SCHEMA_VIEW_UNSPECIFIED, BASIC, FULL}:
        raise InvalidArgument.of("view", view, "BASIC (1) or FULL (2)")
    if (view or unset) == FULL:
        return schema
    shown = messages.Schema()
    shown.CopyFrom(schema)
    shown.ClearField("definition")
    shown.ClearField("compiled_proto_schema")
    return shown


def revision_key(schema: Any) -> str:
    """Sorts the revisions of a schema newest first; also their place in `paging.page`."""
    return f"{FOREVER - schema.revision_create_time.ToMicroseconds():020d}@{schema.revision_id}"
