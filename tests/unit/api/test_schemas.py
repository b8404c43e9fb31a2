"""Revisions of schemas: their ids, how many there may be, and which of them a topic accepts."""

import pytest

from penstock.api import schemas
from penstock.errors import FailedPrecondition, InvalidArgument, ResourceExhausted
from penstock.google import messages
from penstock.google.schema_service import schema_message
from penstock.values.resource_names import check_revision
from penstock.values.stored_forms import (
    SchemaRevision,
    SchemaUse,
    accepted_revisions,
    schema_revisions,
    stored_revisions,
    stored_topic,
    topic_form,
)

NAME = "projects/p/schemas/order"
REVISIONS = [SchemaRevision(NAME, "AVRO", "{}", letter, 1_700_000_000_123_456) for letter in "abc"]


def test_revision_ids_are_8_digits_of_their_own() -> None:
    taken: set[str] = set()
    for _ in range(100):
        revision = schemas.revision_id(NAME, "{}", 7, taken)
        assert check_revision(revision, "revision_id") not in taken
        taken.add(revision)
    assert schemas.revision_id(NAME, "{}", 7, ()) in taken, "the same commit has the same id"


def test_the_last_revision_cannot_be_deleted() -> None:
    schemas.check_revision_deletable(2, NAME)
    with pytest.raises(FailedPrecondition, match="only this revision"):
        schemas.check_revision_deletable(1, NAME)


def test_there_is_room_for_so_many() -> None:
    schemas.check_room(schemas.MAX_REVISIONS - 1, NAME)
    schemas.check_schemas(schemas.MAX_SCHEMAS - 1, "p")
    with pytest.raises(FailedPrecondition, match="20 revisions"):
        schemas.check_room(schemas.MAX_REVISIONS, NAME)
    with pytest.raises(ResourceExhausted, match="10000 schemas"):
        schemas.check_schemas(schemas.MAX_SCHEMAS, "p")


def test_a_topic_accepts_a_range_of_revisions_the_newest_first(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, str, str]] = [("", "", "cba"), ("b", "", "cb"), ("", "b", "ba"), ("b", "b", "b"), ("a", "c", "cba")]
    for first, last, accepted in rows:
        with subtests.test(first=first, last=last):
            found = accepted_revisions(REVISIONS, SchemaUse(NAME, "JSON", first, last))
            assert [one.revision_id for one in found] == list(accepted)


def test_a_range_that_holds_nothing_is_refused(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, str]] = [("x", ""), ("", "x"), ("c", "b")]
    for first, last in rows:
        with subtests.test(first=first, last=last), pytest.raises(InvalidArgument, match="schema_settings"):
            accepted_revisions(REVISIONS, SchemaUse(NAME, "JSON", first, last))


# ── the stored form, which is that of Google's API ───────────────────────────────────────────────────────────────────────


def test_revisions_are_stored_as_protobuf_stores_them() -> None:
    revisions = [
        *REVISIONS,
        SchemaRevision(NAME, "PROTOCOL_BUFFER", "é" * 1_000, "0000000d", 1_700_000_000_000_000),
        SchemaRevision(NAME, "AVRO", "{}", "0000000e", 0),
    ]
    body = messages.ListSchemaRevisionsResponse(schemas=[schema_message(one) for one in revisions]).SerializeToString()
    assert stored_revisions(revisions) == body
    assert list(schema_revisions(body)) == revisions


def test_a_topic_with_a_schema_is_stored_as_protobuf_stores_it() -> None:
    topic = messages.Topic(
        name="projects/p/topics/orders",
        schema_settings={"schema": NAME, "encoding": "BINARY"},
        message_retention_duration={"seconds": 600, "nanos": 500_000_000},
        state="ACTIVE",
    )
    use = SchemaUse(NAME, "BINARY")
    assert stored_topic("projects/p/topics/orders", use, 600_500_000) == topic.SerializeToString()
    assert topic_form(topic.SerializeToString()).schema == use
    topic.ClearField("message_retention_duration")
    assert stored_topic("projects/p/topics/orders", use, None) == topic.SerializeToString()


def test_fields_that_nobody_knows_are_passed_over() -> None:
    unknown = b"\xfb\x07" + b"\x32\x01x" + b"\xfc\x07" + b"\xf5\x07abcd" + b"\xf1\x07abcdefgh" + b"\xf8\x07\x96\x01"
    known = stored_topic("projects/p/topics/orders", SchemaUse(NAME, "JSON"), None)
    assert topic_form(unknown + known + unknown) == topic_form(known)
