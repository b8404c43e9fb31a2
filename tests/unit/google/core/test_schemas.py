"""Schemas: what may be stored, what views show, revisions in order."""

from typing import Any

import pytest

from penstock.errors import InvalidArgument
from penstock.google import messages
from penstock.google.core import schemas

NAME = "projects/p/schemas/order"
AVRO, PROTO = messages.Schema.Type.Value("AVRO"), messages.Schema.Type.Value("PROTOCOL_BUFFER")


def schema(**fields: Any) -> Any:
    return messages.Schema(**{"name": NAME, "type": AVRO, "definition": "{}", "revision_id": "00000001", **fields})


def test_a_good_schema(subtests: pytest.Subtests) -> None:
    rows: list[dict[str, Any]] = [{}, {"type": PROTO}, {"definition": "x" * (300 * 1024)}]
    for fields in rows:
        with subtests.test(fields=fields):
            schemas.check_schema(schema(**fields))


def test_a_bad_schema(subtests: pytest.Subtests) -> None:
    rows: list[tuple[dict[str, Any], str]] = [
        ({"type": 0}, "schema.type is 0, expected AVRO"),
        ({"type": 9}, "schema.type is 9"),
        ({"definition": ""}, "schema.definition is 0 bytes long"),
        ({"definition": "é" * (150 * 1024) + "x"}, "schema.definition is 307201 bytes long"),
    ]
    for fields, problem in rows:
        with subtests.test(fields=fields, problem=problem), pytest.raises(InvalidArgument, match=problem):
            schemas.check_schema(schema(**fields))


def test_a_commit_keeps_name_and_type() -> None:
    schemas.check_commit(schema(), schema(definition="[]"))
    schemas.check_commit(schema(), schema(name=""))
    with pytest.raises(InvalidArgument, match=r"schema\.type is 'PROTOCOL_BUFFER', expected AVRO"):
        schemas.check_commit(schema(), schema(type=PROTO))
    with pytest.raises(InvalidArgument, match=r"schema\.name is"):
        schemas.check_commit(schema(), schema(name="projects/p/schemas/other"))
    with pytest.raises(InvalidArgument, match=r"schema\.definition"):
        schemas.check_commit(schema(), schema(definition=""))


def test_a_basic_view_has_no_definition(subtests: pytest.Subtests) -> None:
    rows: list[tuple[int, int, bool]] = [
        (0, schemas.FULL, True),
        (0, schemas.BASIC, False),
        (1, schemas.FULL, False),
        (2, schemas.BASIC, True),
    ]
    for view, unset, full in rows:
        with subtests.test(view=view, unset=unset):
            shown = schemas.viewed(schema(), view, unset=unset)

            assert shown == (schema() if full else schema(definition=""))


def test_an_unknown_view_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="view is 3"):
        schemas.viewed(schema(), 3, unset=schemas.FULL)


def test_revisions_are_listed_with_the_newest_first() -> None:
    revisions = [
        schema(revision_id="0000000b", revision_create_time={"seconds": 1}),
        schema(revision_id="0000000c", revision_create_time={"seconds": 1_700_000_000, "nanos": 1_000}),
        schema(revision_id="0000000a", revision_create_time={"seconds": 1_700_000_000}),
    ]

    listed = sorted(revisions, key=schemas.revision_key)

    assert [each.revision_id for each in listed] == ["0000000c", "0000000a", "0000000b"]
