"""Schemas and their revisions: what may be stored, what is shown, and which revisions a topic accepts.

What a definition means, and whether a message fits it, is not decided here.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from hashlib import sha256
from typing import Any

from penstock.durations import FOREVER
from penstock.errors import FailedPrecondition, InvalidArgument
from penstock.google import messages

MAX_DEFINITION_BYTES = 300 * 1024
MAX_REVISIONS = 20
BASIC, FULL = messages.SchemaView.BASIC, messages.SchemaView.FULL


def check_schema(schema: Any) -> None:
    """A type and a definition of bearable size."""
    known = messages.Schema.Type
    if schema.type not in {known.Value("AVRO"), known.Value("PROTOCOL_BUFFER")}:
        raise InvalidArgument.of("schema.type", schema.type, "AVRO (2) or PROTOCOL_BUFFER (1)")
    size = len(schema.definition.encode())
    if not 0 < size <= MAX_DEFINITION_BYTES:
        raise InvalidArgument(f"schema.definition is {size} bytes long, wanted 1 to {MAX_DEFINITION_BYTES}")


def check_commit(newest: Any, schema: Any) -> None:
    """A new revision keeps the schema's name and type."""
    check_schema(schema)
    if schema.name and schema.name != newest.name:
        raise InvalidArgument.of("schema.name", schema.name, f"{newest.name!r}, the schema that is committed to")
    if schema.type != newest.type:
        wanted = f"{messages.Schema.Type.Name(newest.type)}, as in the revisions before"
        raise InvalidArgument.of("schema.type", messages.Schema.Type.Name(schema.type), wanted)


def check_room(count: int, name: str) -> None:
    """A schema has only so many revisions."""
    if count >= MAX_REVISIONS:
        raise FailedPrecondition(
            f"{name} has {count} revisions, wanted fewer than {MAX_REVISIONS} before another is added",
            hint="delete a revision that no topic needs",
        )


def check_revision_deletable(count: int, name: str) -> None:
    """A schema keeps at least one revision."""
    if count <= 1:
        raise FailedPrecondition(f"{name} has only this revision, which cannot be deleted", hint="delete the schema instead")


def revision_id(name: str, definition: str, at: int, taken: Collection[str]) -> str:
    """8 hexadecimal digits that no other revision of the schema has."""
    attempt = 0
    while True:
        digits = sha256(f"{name}\n{at}\n{attempt}\n{definition}".encode()).hexdigest()[:8]
        if digits not in taken:
            return digits
        attempt += 1


def viewed(schema: Any, view: int, *, unset: int) -> Any:
    """The schema as a view shows it. `unset` is the view of a call that asks for none: FULL for one schema, BASIC in lists."""
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
    """Sorts the revisions of one schema as they are listed, the newest first; also their place in `paging.page`."""
    return f"{FOREVER - schema.revision_create_time.ToMicroseconds():020d}@{schema.revision_id}"


def accepted_revisions(revisions: Sequence[str], first: str, last: str) -> list[str]:
    """The ids, newest first, of the revisions that a topic accepts; `revisions` are in the order of their commits.

    An empty `first` or `last` leaves that end open.
    """
    for field, revision in (("first_revision_id", first), ("last_revision_id", last)):
        if revision and revision not in revisions:
            raise InvalidArgument.of(f"schema_settings.{field}", revision, "a revision that the schema has")
    start = revisions.index(first) if first else 0
    end = revisions.index(last) + 1 if last else len(revisions)
    if start >= end:
        raise InvalidArgument.of(
            "schema_settings.first_revision_id", first, f"a revision no newer than last_revision_id ({last})"
        )
    return list(reversed(revisions[start:end]))
