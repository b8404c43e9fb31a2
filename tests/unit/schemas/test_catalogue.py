"""Compiled schemas are kept, a bounded number of them; definitions have a largest size."""

import pytest

from penstock.errors import InvalidArgument
from penstock.schemas import MAX_DEFINITION, Encoding, SchemaKind, compile_schema
from penstock.schemas.catalogue import MAX_KEPT, MAX_KEPT_CHARACTERS

RECORD = '{"type": "record", "name": "R", "fields": []}'
MESSAGE = "message M {}"


@pytest.mark.parametrize(("kind", "definition"), [(SchemaKind.AVRO, RECORD), (SchemaKind.PROTOCOL_BUFFER, MESSAGE)])
def test_a_definition_is_compiled_once(kind: SchemaKind, definition: str) -> None:
    assert compile_schema(kind, definition) is compile_schema(kind, definition)


def test_a_definition_of_one_kind_is_not_taken_for_another() -> None:
    compile_schema(SchemaKind.AVRO, RECORD)
    with pytest.raises(InvalidArgument, match="line 1, column 1"):
        compile_schema(SchemaKind.PROTOCOL_BUFFER, RECORD)


def test_what_was_not_used_for_long_is_let_go() -> None:
    first = compile_schema(SchemaKind.AVRO, RECORD)
    for count in range(1, MAX_KEPT):
        compile_schema(SchemaKind.AVRO, RECORD + " " * count)
    assert compile_schema(SchemaKind.AVRO, RECORD) is first
    for count in range(MAX_KEPT, 2 * MAX_KEPT):
        compile_schema(SchemaKind.AVRO, RECORD + " " * count)
    assert compile_schema(SchemaKind.AVRO, RECORD) is not first


def test_large_definitions_are_kept_in_smaller_number() -> None:
    first = compile_schema(SchemaKind.AVRO, RECORD)
    large = 250_000
    for count in range(MAX_KEPT_CHARACTERS // large + 1):
        compile_schema(SchemaKind.AVRO, RECORD + " " * (large + count))
    assert compile_schema(SchemaKind.AVRO, RECORD) is not first


def test_a_definition_has_at_most_300_kib() -> None:
    compile_schema(SchemaKind.PROTOCOL_BUFFER, MESSAGE + " " * (MAX_DEFINITION - len(MESSAGE)))
    with pytest.raises(InvalidArgument, match="307201 bytes, expected 1 to 307200"):
        compile_schema(SchemaKind.PROTOCOL_BUFFER, MESSAGE + " " * (MAX_DEFINITION - len(MESSAGE) + 1))
    with pytest.raises(InvalidArgument, match="expected 1 to 307200"):
        compile_schema(SchemaKind.AVRO, " " * (MAX_DEFINITION - 1) + "\u20ac")


def test_a_schema_knows_what_it_was_made_of() -> None:
    schema = compile_schema(SchemaKind.AVRO, RECORD)

    assert (schema.kind, schema.definition) == (SchemaKind.AVRO, RECORD)
    schema.validate(b"", Encoding.BINARY)
