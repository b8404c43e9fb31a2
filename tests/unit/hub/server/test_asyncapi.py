"""The AsyncAPI document: nothing that can be said is missing from it, and everything in it holds together."""

import re
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import msgspec
import pytest

from penstock.hub.core.close_codes import CLOSES
from penstock.hub.core.dialects import SPECIFIED
from penstock.hub.core.messages import COMMANDS, REPLIES, Command, Message, Position, Reply, decode_envelope
from penstock.hub.core.names import is_address, is_pattern, is_topic
from penstock.hub.server.asyncapi import EXAMPLES, REPLIES_TO, UNASKED, asyncapi

DOCUMENT = asyncapi("1.2.3", "https://hub.example.org:8443")
MESSAGES = DOCUMENT["components"]["messages"]
SCHEMAS = DOCUMENT["components"]["schemas"]
DRAFT = {"$schema": "http://json-schema.org/draft-07/schema#"}


def references(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        yield from [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from references(inner)


def resolved(reference: str) -> Any:
    found: Any = DOCUMENT
    for key in reference.removeprefix("#/").split("/"):
        found = found[key]
    return found


def validator(schema: object) -> jsonschema_rs.Draft7Validator:
    """Of a schema of the document: AsyncAPI's schemas are those of draft 7."""
    return jsonschema_rs.Draft7Validator({"allOf": [schema], "components": DOCUMENT["components"]})


def is_valid(name: str, value: object) -> bool:
    return validator({"$ref": f"#/components/schemas/{name}"}).is_valid(value)


def test_names_are_such_as_tools_accept() -> None:
    named = [*DOCUMENT["servers"], *DOCUMENT["channels"], *DOCUMENT["operations"], *MESSAGES, *SCHEMAS]
    assert [name for name in named if not re.fullmatch(r"[\w.\-]+", name)] == []


def test_every_reference_leads_somewhere() -> None:
    found = set(references(DOCUMENT))
    assert len(found) > 100
    for reference in found:
        assert isinstance(resolved(reference), dict)


def test_operations_name_messages_of_their_channel() -> None:
    """AsyncAPI wants references to the channel's own messages, not to those of the components."""
    for operation in DOCUMENT["operations"].values():
        for part in (operation, operation.get("reply", {"messages": []})):
            assert all(reference["$ref"].startswith("#/channels/hub/messages/") for reference in part["messages"])


def test_every_message_is_there_by_its_wire_name() -> None:
    wanted = {kind.__name__: name for name, kind in COMMANDS.items()} | {kind.__name__: name for kind, name in REPLIES.items()}

    assert {key: message["name"] for key, message in MESSAGES.items()} == wanted | {"Forwarded": "forwarded"}
    assert set(DOCUMENT["channels"]["hub"]["messages"]) == set(MESSAGES)


def test_every_message_is_in_an_operation() -> None:
    received = {name for operation in DOCUMENT["operations"].values() for name in references(operation["messages"])}
    replied = {name for operation in DOCUMENT["operations"].values() for name in references(operation.get("reply", {}))}

    assert {f"#/channels/hub/messages/{name}" for name in MESSAGES} <= received | replied
    assert set(REPLIES_TO) == set(COMMANDS)
    assert {kind for answers in REPLIES_TO.values() for kind in answers} | set(UNASKED) == set(REPLIES)


def test_every_schema_is_one(subtests: pytest.Subtests) -> None:
    for name in SCHEMAS:
        with subtests.test(name=name):
            assert jsonschema_rs.meta.is_valid(SCHEMAS[name] | DRAFT)
            assert SCHEMAS[name]["description"]


def test_an_example_is_valid_and_of_no_other_payload(subtests: pytest.Subtests) -> None:
    for name in MESSAGES:
        with subtests.test(name=name):
            message = MESSAGES[name]
            assert jsonschema_rs.meta.is_valid(message["payload"] | DRAFT)
            for example in message["examples"]:
                validator(message["payload"]).validate(example["payload"])
                spoiled = {**example["payload"], "type": 7}
                assert not validator(message["payload"]).is_valid(spoiled)


def test_an_example_is_what_the_hub_itself_reads_or_writes(subtests: pytest.Subtests) -> None:
    for kind in EXAMPLES:
        with subtests.test(kind=kind.__name__):
            example = EXAMPLES[kind]
            if issubclass(kind, Command):
                frame = MESSAGES[kind.__name__]["examples"][0]["payload"]
                command = SPECIFIED.read(decode_envelope(msgspec.json.encode(frame)))
                assert isinstance(command, kind)
                assert set(example) <= {field.encode_name for field in msgspec.structs.fields(kind)}
            else:
                reply = msgspec.convert(example, kind)
                assert isinstance(reply, Reply)
                written = SPECIFIED.write(reply, "@(a/b)", request=None, command=None, now=1_000, make_id=str)
                assert msgspec.json.decode(written)["payload"] == example


def test_what_the_hub_forwards_is_as_described(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, Message]] = [
        (
            "with a position",
            Message(
                type="a", sender="@(a/b)", data=b"null", message_id="m", published_at=1_000, topic="t", position=Position("e", 0)
            ),
        ),
        ("without", Message(type="a", sender="@(a/b)", data=b"[1]", message_id="m", published_at=1_000, topic="t")),
        ("direct", Message(type="a", sender="@(a/b)", data=b"{}", message_id="m", published_at=1_000, metadata=b'"mine":1')),
    ]
    for title, message in rows:
        with subtests.test(title):
            head, tail = SPECIFIED.parts(message, str)
            frame = msgspec.json.decode(head + b'"@(a/c)"' + tail)

            validator(MESSAGES["Forwarded"]["payload"]).validate(frame)
            assert set(frame["metadata"]) - {"mine"} <= set(SCHEMAS["ForwardedMetadata"]["properties"])


def test_the_rules_of_topics_are_the_hubs_own(subtests: pytest.Subtests) -> None:
    rows: list[str] = [
        "orders",
        "orders/eu",
        "a//b",
        "/",
        "",
        "+",
        "#",
        "a/#",
        "a/+/b",
        "a/#/b",
        "a+",
        "a#",
        "+/+",
        "/#",
        "a b",
        "é",
        "a" * 256,
        "a" * 257,
    ]
    for text in rows:
        with subtests.test(text=text):
            assert is_valid("Topic", text) == is_topic(text)
            assert is_valid("TopicPattern", text) == is_pattern(text)


def test_the_rules_of_addresses_are_the_hubs_own(subtests: pytest.Subtests) -> None:
    rows: list[str] = ["@(a/b)", "@(browser/client-ui)", "@(A/b)", "@(a)", "a/b", "@(a/b/c)", "@(a/)", f"@({'a' * 300}/b)"]
    for text in rows:
        with subtests.test(text=text):
            assert is_valid("Address", text) == is_address(text)


def test_what_the_hub_refuses_is_not_valid(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, object]] = [
        ("Publish", {"type": "a"}),
        ("Publish", {"topic": "a"}),
        ("Publish", {"topic": "a/#", "type": "a"}),
        ("Publish", None),
        ("Subscribe", {}),
        ("Subscribe", {"topic": "a/#/b"}),
        ("Register", {"actorAddress": "me", "capabilities": []}),
        ("Discover", {"limit": 0}),
        ("Renew", None),
    ]
    for name, payload in rows:
        with subtests.test(name=name, payload=payload):
            [example] = MESSAGES[name]["examples"]
            assert not validator(MESSAGES[name]["payload"]).is_valid({**example["payload"], "payload": payload})


def test_a_request_that_needs_no_payload_may_do_without(subtests: pytest.Subtests) -> None:
    for name in ("Connect", "Heartbeat", "ListActors", "Resume", "QueueStats"):
        with subtests.test(name=name):
            frame = {"type": MESSAGES[name]["name"]}
            assert validator(MESSAGES[name]["payload"]).is_valid(frame)
            assert validator(MESSAGES[name]["payload"]).is_valid({**frame, "payload": None})


def test_every_way_to_end_is_listed() -> None:
    listed = DOCUMENT["channels"]["hub"]["x-close-codes"]
    assert [(close["code"], close["reason"]) for close in listed] == [(close.code, close.reason) for close in CLOSES]


@pytest.mark.parametrize(
    ("url", "host", "protocol"), [("http://127.0.0.1:8085", "127.0.0.1:8085", "ws"), ("https://[::1]:1", "[::1]:1", "wss")]
)
def test_the_server_is_the_one_that_was_asked(url: str, host: str, protocol: str) -> None:
    document = asyncapi("1", url)
    assert document["servers"]["this"] | {"host": host, "protocol": protocol} == document["servers"]["this"]
    assert document["channels"]["hub"]["address"] == "/ws"


def test_each_document_is_one_of_its_own() -> None:
    assert asyncapi("1.2.3", "https://hub.example.org:8443") == DOCUMENT
