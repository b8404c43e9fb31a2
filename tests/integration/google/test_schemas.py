"""Schemas through Google's client: revisions, and messages that must fit."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest
from google.api_core import exceptions
from google.pubsub_v1.types import Encoding, Schema, SchemaView

from tests.integration.google.real_client import CALL_SECONDS, Google, mask, unique

AVRO = json.dumps({"type": "record", "name": "Point", "fields": [{"name": "x", "type": "int"}]})
AVRO_2 = json.dumps(
    {
        "type": "record",
        "name": "Point",
        "fields": [{"name": "x", "type": "int"}, {"name": "label", "type": "string", "default": ""}],
    }
)
NUMBERS = '{"type": "array", "items": "int"}'
PROTO = 'syntax = "proto3"; message Point { int32 x = 1; }'
PROTO_2 = 'syntax = "proto3"; message Point { int32 x = 1; string label = 2; }'


def create(google: Google, kind: str = "AVRO", definition: str = AVRO) -> Any:
    request = {
        "parent": f"projects/{google.project}",
        "schema_id": unique("schema"),
        "schema": {"type_": kind, "definition": definition},
    }
    return google.call(google.schemas.create_schema, request)


def commit(google: Google, name: str, definition: str, kind: str = "AVRO") -> Any:
    request = {"name": name, "schema": {"name": name, "type_": kind, "definition": definition}}
    return google.call(google.schemas.commit_schema, request)


def topic_with(google: Google, schema: Any, encoding: str, **settings: str) -> tuple[str, str]:
    topic = google.topic(schema_settings={"schema": schema.name, "encoding": encoding, **settings})
    return topic, google.subscription(topic)


def avro_bytes(definition: str, value: object) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(definition)), value)
    return out.getvalue()


@pytest.mark.parametrize(("kind", "definition"), [("AVRO", AVRO), ("PROTOCOL_BUFFER", PROTO)])
def test_a_schema_is_made_found_and_deleted(google: Google, kind: str, definition: str) -> None:
    made = create(google, kind, definition)
    assert made.type_ == getattr(Schema.Type, kind)
    assert made.definition == definition
    assert len(made.revision_id) == 8
    assert made.revision_create_time
    assert google.call(google.schemas.get_schema, {"name": made.name}) == made
    google.call(google.schemas.delete_schema, {"name": made.name})
    for call in (google.schemas.get_schema, google.schemas.delete_schema):
        with pytest.raises(exceptions.NotFound):
            google.call(call, {"name": made.name})


BROKEN = [
    ("AVRO", "{"),
    ("AVRO", '{"type": "record"}'),
    ("AVRO", ""),
    ("PROTOCOL_BUFFER", 'syntax = "proto3"; message {'),
    ("PROTOCOL_BUFFER", 'syntax = "proto3";'),
    ("TYPE_UNSPECIFIED", AVRO),
]


def test_a_broken_definition_is_refused(google: Google, subtests: pytest.Subtests) -> None:
    for kind, definition in BROKEN:
        request = {"parent": f"projects/{google.project}", "schema": {"type_": kind, "definition": definition}}
        with subtests.test(kind=kind, definition=definition):
            with pytest.raises(exceptions.InvalidArgument):
                create(google, kind, definition)
            with pytest.raises(exceptions.InvalidArgument):
                google.call(google.schemas.validate_schema, request)


def test_a_second_schema_of_the_id_is_refused(google: Google) -> None:
    made = create(google)
    request = {
        "parent": f"projects/{google.project}",
        "schema_id": made.name.rpartition("/")[2],
        "schema": {"type_": "AVRO", "definition": AVRO},
    }
    with pytest.raises(exceptions.AlreadyExists):
        google.call(google.schemas.create_schema, request)


def test_a_good_definition_validates(google: Google) -> None:
    for kind, definition in (("AVRO", AVRO), ("AVRO", '["null", "string"]'), ("PROTOCOL_BUFFER", PROTO)):
        request = {"parent": f"projects/{google.project}", "schema": {"type_": kind, "definition": definition}}
        google.call(google.schemas.validate_schema, request)


MESSAGES: dict[str, tuple[str, str, str, bytes, bytes]] = {
    "Avro as JSON": ("AVRO", AVRO, "JSON", b'{"x": 1}', b'{"x": "one"}'),
    "Avro as binary": ("AVRO", AVRO, "BINARY", avro_bytes(AVRO, {"x": 1}), b"\xff"),
    "Avro that is no record, as JSON": ("AVRO", '"string"', "JSON", b'"one"', b"1"),
    "Avro that is no record, as binary": ("AVRO", NUMBERS, "BINARY", avro_bytes(NUMBERS, [1, 2]), b"\x04\x02"),
    "Protobuf as JSON": ("PROTOCOL_BUFFER", PROTO, "JSON", b'{"x": 1}', b'{"y": 1}'),
    "Protobuf as binary": ("PROTOCOL_BUFFER", PROTO, "BINARY", b"\x08\x01", b"\x08"),
}


@pytest.mark.parametrize(("kind", "definition", "encoding", "good", "bad"), MESSAGES.values(), ids=MESSAGES)
def test_a_topic_takes_only_what_fits_its_schema(
    google: Google, kind: str, definition: str, encoding: str, good: bytes, bad: bytes
) -> None:
    schema = create(google, kind, definition)
    topic, subscription = topic_with(google, schema, encoding)
    google.publish(topic, good)
    for messages in ([bad], [good, bad]):
        with pytest.raises(exceptions.InvalidArgument):
            google.publish(topic, *messages)
    (found,) = google.pull(subscription, 1)
    assert found.message.data == good
    assert dict(found.message.attributes) == {
        "googclient_schemaencoding": encoding,
        "googclient_schemaname": schema.name,
        "googclient_schemarevisionid": schema.revision_id,
    }
    assert google.pull_once(subscription, now=True) == []


@pytest.mark.parametrize(("kind", "definition", "encoding", "good", "bad"), MESSAGES.values(), ids=MESSAGES)
def test_a_message_is_validated_without_being_published(
    google: Google, kind: str, definition: str, encoding: str, good: bytes, bad: bytes
) -> None:
    schema = create(google, kind, definition)
    parent = {"parent": f"projects/{google.project}", "encoding": getattr(Encoding, encoding)}
    for spec in ({"name": schema.name}, {"schema": {"type_": kind, "definition": definition}}):
        google.call(google.schemas.validate_message, {**parent, **spec, "message": good})
        with pytest.raises(exceptions.InvalidArgument):
            google.call(google.schemas.validate_message, {**parent, **spec, "message": bad})


def test_attributes_of_the_publisher_stay_beside_the_schemas(google: Google) -> None:
    topic, subscription = topic_with(google, create(google), "JSON")
    google.publish(topic, {"data": b'{"x": 1}', "attributes": {"mine": "kept"}})
    assert google.pull(subscription, 1)[0].message.attributes["mine"] == "kept"


def test_revisions_are_committed_listed_rolled_back_and_deleted(google: Google) -> None:
    first = create(google)
    second = commit(google, first.name, AVRO_2)
    assert second.revision_id != first.revision_id
    assert google.call(google.schemas.get_schema, {"name": first.name}).revision_id == second.revision_id
    old = google.call(google.schemas.get_schema, {"name": f"{first.name}@{first.revision_id}"})
    assert old.definition == AVRO
    listed = list(google.schemas.list_schema_revisions(name=first.name))
    assert [one.revision_id for one in listed] == [second.revision_id, first.revision_id]

    third = google.call(google.schemas.rollback_schema, {"name": first.name, "revision_id": first.revision_id})
    assert third.definition == AVRO
    assert third.revision_id not in {first.revision_id, second.revision_id}
    google.schemas.delete_schema_revision(name=f"{first.name}@{second.revision_id}", timeout=CALL_SECONDS)
    listed = list(google.schemas.list_schema_revisions(name=first.name))
    assert [one.revision_id for one in listed] == [third.revision_id, first.revision_id]
    google.schemas.delete_schema_revision(name=f"{first.name}@{first.revision_id}", timeout=CALL_SECONDS)
    with pytest.raises((exceptions.FailedPrecondition, exceptions.InvalidArgument)):
        google.schemas.delete_schema_revision(name=f"{first.name}@{third.revision_id}", timeout=CALL_SECONDS)


def test_a_revision_of_another_kind_is_refused(google: Google) -> None:
    made = create(google)
    with pytest.raises(exceptions.InvalidArgument):
        commit(google, made.name, PROTO, "PROTOCOL_BUFFER")
    with pytest.raises(exceptions.NotFound):
        commit(google, google.name("schemas"), AVRO)


def test_a_topic_takes_every_revision_and_says_which(google: Google) -> None:
    first = create(google)
    second = commit(google, first.name, AVRO_2)
    topic, subscription = topic_with(google, first, "BINARY")
    google.publish(topic, avro_bytes(AVRO, {"x": 1}))
    google.publish(topic, avro_bytes(AVRO_2, {"x": 1, "label": "l"}))
    found = [one.message.attributes["googclient_schemarevisionid"] for one in google.pull(subscription, 2)]
    assert sorted(found) == sorted([first.revision_id, second.revision_id])


def test_a_topic_may_be_held_to_some_revisions(google: Google) -> None:
    first = create(google)
    second = commit(google, first.name, AVRO_2)
    topic, _ = topic_with(google, first, "BINARY", first_revision_id=second.revision_id, last_revision_id=second.revision_id)
    with pytest.raises(exceptions.InvalidArgument):
        google.publish(topic, avro_bytes(AVRO, {"x": 1}))
    google.publish(topic, avro_bytes(AVRO_2, {"x": 1, "label": "l"}))


def test_a_proto_schema_may_grow(google: Google) -> None:
    made = create(google, "PROTOCOL_BUFFER", PROTO)
    topic, subscription = topic_with(google, made, "JSON")
    with pytest.raises(exceptions.InvalidArgument):
        google.publish(topic, b'{"x": 1, "label": "new"}')
    second = commit(google, made.name, PROTO_2, "PROTOCOL_BUFFER")
    google.publish(topic, b'{"x": 1, "label": "new"}')
    (found,) = google.pull(subscription, 1)
    assert found.message.attributes["googclient_schemarevisionid"] == second.revision_id


def test_a_topic_of_no_schema_is_refused(google: Google) -> None:
    with pytest.raises(exceptions.NotFound):
        google.topic(schema_settings={"schema": google.name("schemas"), "encoding": "JSON"})
    with pytest.raises(exceptions.InvalidArgument):
        google.topic(schema_settings={"schema": create(google).name})


def test_a_schema_can_be_put_on_a_topic_and_taken_off(google: Google) -> None:
    topic = google.topic()
    settings = {"schema": create(google).name, "encoding": "JSON"}
    request = {"topic": {"name": topic, "schema_settings": settings}, "update_mask": mask("schema_settings")}
    google.call(google.plain.update_topic, request)
    with pytest.raises(exceptions.InvalidArgument):
        google.publish(topic, b"anything")
    google.call(google.plain.update_topic, {"topic": {"name": topic}, "update_mask": mask("schema_settings")})
    google.publish(topic, b"anything")


def test_the_topic_of_a_deleted_schema_shows_so_and_takes_nothing(google: Google) -> None:
    schema = create(google)
    topic, _ = topic_with(google, schema, "JSON")
    google.call(google.schemas.delete_schema, {"name": schema.name})
    assert google.call(google.plain.get_topic, {"topic": topic}).schema_settings.schema == "_deleted-schema_"
    with pytest.raises((exceptions.FailedPrecondition, exceptions.InvalidArgument)):
        google.publish(topic, b'{"x": 1}')


def test_schemas_are_listed_in_pages_and_views(server: Any) -> None:
    mine = Google(server.grpc, project=unique("project"))
    try:
        made = sorted(create(mine).name for _ in range(3))
        parent = f"projects/{mine.project}"
        pages = list(mine.schemas.list_schemas(request={"parent": parent, "page_size": 2, "view": SchemaView.FULL}).pages)
        assert [[one.name for one in page.schemas] for page in pages] == [made[:2], made[2:]]
        assert pages[0].schemas[0].definition == AVRO
        basic = next(iter(mine.schemas.list_schemas(request={"parent": parent, "view": SchemaView.BASIC})))
        assert not basic.definition
    finally:
        mine.close()
