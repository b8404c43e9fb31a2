"""REST to protobuf and back: templates, queries, bodies; and the short way reads nothing otherwise than the usual one."""

import asyncio
import base64
from typing import Any

import msgspec
import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st

from penstock.access import ANYONE
from penstock.errors import InvalidArgument
from penstock.google import messages
from penstock.google.fast_calls import FastCalls, pulled
from penstock.google.messages.methods import Binding
from penstock.google.rest import ID, PROJECT, SCHEMA_ID
from penstock.google.transcoding import Style, Template, read_query, read_request, write_answer
from penstock.values import resource_names as names

TOPIC = "projects/p/topics/abc"
PUBLISH = Template.of(messages.METHODS["/google.pubsub.v1.Publisher/Publish"].bindings[0])


def template(call: str) -> Template:
    return next(Template.of(one.bindings[0]) for path, one in messages.METHODS.items() if path.endswith(f"/{call}"))


def read(kind: Any, call: str, body: object, query: str = "") -> Any:
    fields, _ = read_query(query)
    return read_request(kind(), template(call), TOPIC, fields, msgspec.json.encode(body))


def test_a_template_becomes_a_path_of_the_shell(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, str, str]] = [
        ("/v1/{topic=projects/*/topics/*}:publish", "/v1/projects/{project}/topics/{topic}:publish", "topic"),
        ("/v1/{topic.name=projects/*/topics/*}", "/v1/projects/{project}/topics/{topic}", "topic.name"),
        ("/v1/{parent=projects/*}/schemas:validate", "/v1/projects/{project}/schemas:validate", "parent"),
        ("/v1/{topic=projects/*/topics/*}/snapshots", "/v1/projects/{project}/topics/{topic}/snapshots", "topic"),
    ]
    for path, expected, field in rows:
        with subtests.test(path=path, expected=expected):
            made = Template.of(Binding("GET", path, None))
            assert (made.path, made.field) == (expected, field)


def test_what_a_path_names_is_never_read_as_a_template() -> None:
    assert PUBLISH.filled({"project": "{topic}", "topic": "{0}"}) == "projects/{topic}/topics/{0}"


def test_a_template_without_a_field_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="field=pattern"):
        Template.of(Binding("GET", "/v1/topics", None))


def test_a_query_is_fields_and_a_style(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, list[tuple[str, str]], Style]] = [
        ("", [], Style()),
        ("pageSize=1&pageToken=", [("pageSize", "1"), ("pageToken", "")], Style()),
        ("%24alt=json%3Benum-encoding%3Dint", [], Style(enums_as_numbers=True)),
        ("alt=json&prettyPrint=true&key=k&access_token=t&fields=a", [], Style(is_pretty=True)),
        ("$prettyPrint=false", [], Style()),
    ]
    for query, fields, style in rows:
        with subtests.test(query=query, fields=fields):
            assert read_query(query) == (fields, style)


def test_a_query_that_cannot_be_read_is_refused(subtests: pytest.Subtests) -> None:
    rows: list[str] = ["a=%FF", "alt=proto", "&".join(["a=1"] * 101)]
    for query in rows:
        with subtests.test(query=query), pytest.raises(InvalidArgument):
            read_query(query)


@pytest.mark.parametrize("mask", ["labels,messageRetentionDuration", "labels,message_retention_duration"])
def test_a_mask_is_taken_in_both_spellings(mask: str) -> None:
    request = read(messages.UpdateTopicRequest, "UpdateTopic", {"topic": {"labels": {"a": "b"}}, "updateMask": mask})
    assert list(request.update_mask.paths) == ["labels", "message_retention_duration"]
    assert (request.topic.name, dict(request.topic.labels)) == (TOPIC, {"a": "b"})


def test_bytes_are_taken_in_both_alphabets_padded_or_not(subtests: pytest.Subtests) -> None:
    for text in ("-_8=", "-_8", "+/8=", "+/8"):
        with subtests.test(text=text):
            request = read(messages.PublishRequest, "Publish", {"messages": [{"data": text}]})
            assert request.messages[0].data == b"\xfb\xff"


def test_null_is_as_if_it_were_not_there() -> None:
    request = read(messages.Topic, "CreateTopic", {"labels": None, "messageRetentionDuration": None, "kmsKeyName": None})
    assert request == messages.Topic(name=TOPIC)


def test_nested_and_repeated_fields_come_from_the_query() -> None:
    request = read(messages.GetIamPolicyRequest, "GetIamPolicy", None, "options.requestedPolicyVersion=3")
    assert request == messages.GetIamPolicyRequest(resource=TOPIC, options={"requested_policy_version": 3})
    plain = Template.of(Binding("POST", "/v1/{subscription=projects/*/subscriptions/*}:x", None))
    fields, _ = read_query("ackIds=a&ack_ids=b&ackDeadlineSeconds=5")
    made = read_request(messages.ModifyAckDeadlineRequest(), plain, "s", fields, b"")
    assert (list(made.ack_ids), made.ack_deadline_seconds) == (["a", "b"], 5)
    fields, _ = read_query("returnImmediately=true")
    assert read_request(messages.PullRequest(), plain, "s", fields, b"").return_immediately


def test_a_wrong_field_of_the_query_is_named(subtests: pytest.Subtests) -> None:
    rows: list[str] = ["returnImmediately=yes", "returnImmediately.x=1", "a.b=1", "subscription=t", "maxMessages="]
    for query in rows:
        with subtests.test(query=query):
            plain = Template.of(Binding("POST", "/v1/{subscription=projects/*/subscriptions/*}:x", None))
            fields, _ = read_query(query)
            with pytest.raises(InvalidArgument):
                read_request(messages.PullRequest(), plain, "s", fields, b"")


def test_an_error_names_the_field(subtests: pytest.Subtests) -> None:
    rows: list[tuple[object, str]] = [
        ({"messages": [{}, {"dato": 1}]}, r"Unknown name 'dato' in messages\[1\]: PubsubMessage has no such field"),
        ({"nope": 1}, "Unknown name 'nope' in the body"),
        ({"messages": [{"data": "%"}]}, r"messages\[0\].data is '%', expected base64"),
        ({"messages": [{"attributes": {"a": 1}}]}, r"messages\[0\].attributes\['a'\] is 1, expected a string"),
        ({"messages": {}}, "messages is {}, expected a list"),
        ({"messages": [{"orderingKey": "a", "ordering_key": "b"}]}, "given twice"),
    ]
    for body, told in rows:
        with subtests.test(body=body, told=told), pytest.raises(InvalidArgument, match=told):
            read(messages.PublishRequest, "Publish", body)


def test_a_long_wrong_value_is_not_repeated_in_full() -> None:
    with pytest.raises(InvalidArgument) as caught:
        read(messages.PullRequest, "Pull", {"maxMessages": "x" * 100_000})
    assert len(str(caught.value)) < 500


def test_an_answer_has_googles_form() -> None:
    subscription = messages.Subscription(name="s", state=1, message_retention_duration={"seconds": 600})
    assert write_answer(subscription, Style()) == b'{"name":"s","messageRetentionDuration":"600s","state":"ACTIVE"}'
    assert write_answer(messages.Subscription(state=1), Style(enums_as_numbers=True)) == b'{"state":1}'
    assert write_answer(messages.CloudStorageConfig(max_bytes=2**53), Style()) == b'{"maxBytes":"9007199254740992"}'
    assert write_answer(messages.Empty(), Style()) == b"{}"


def test_the_documented_patterns_are_those_of_the_names() -> None:
    for pattern, rule in ((PROJECT, names._PROJECT), (ID, names._ID)):
        assert pattern == f"^{rule.pattern}$"
    assert f"^{names._ID.pattern}(@{names._REVISION.pattern})?$" == SCHEMA_ID


# ── the short way ────────────────────────────────────────────────────────────────────────────────────────────────────────


class Recorder:
    """Stands where the services stand, and keeps what they would have been asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    async def publish_ids(self, request: Any, _caller: object, size: int) -> list[str]:
        self.asked.append((request.topic, [(one.data, dict(one.attributes), one.ordering_key) for one in request.messages], size))
        return ["1"]

    async def acknowledge(self, request: Any, _caller: object) -> None:
        self.asked.append((request.subscription, list(request.ack_ids)))

    async def modify_ack_deadline(self, request: Any, _caller: object) -> None:
        self.asked.append((request.subscription, list(request.ack_ids), request.ack_deadline_seconds))

    async def pull_bytes(self, request: Any, _caller: object) -> bytes:
        self.asked.append((request.subscription, request.max_messages, request.return_immediately))
        return b""


def shortly(call: str, body: bytes) -> tuple[bytes | None, list[Any]]:
    recorder: Any = Recorder()
    fast = next(one for path, one in FastCalls(recorder, recorder).by_path.items() if path.endswith(f"/{call}"))

    async def run() -> bytes | None:
        return await fast(body, TOPIC, ANYONE)

    return asyncio.run(run()), recorder.asked


TEXT = st.text(max_size=5)
MESSAGE = st.fixed_dictionaries(
    {}, optional={"data": st.binary(max_size=9), "attributes": st.dictionaries(TEXT, TEXT, max_size=3), "orderingKey": TEXT}
)


@given(given_=st.lists(MESSAGE, max_size=4))
def test_a_publish_is_read_alike_both_ways(given_: list[dict[str, Any]]) -> None:
    body = msgspec.json.encode({"topic": "ignored", "messages": given_})
    answer, ((topic, read_shortly, size),) = shortly("Publish", body)
    usual = read_request(messages.PublishRequest(), PUBLISH, TOPIC, [], body)
    assert answer == b'{"messageIds":["1"]}'
    assert topic == usual.topic == TOPIC
    assert read_shortly == [(one.data, dict(one.attributes), one.ordering_key) for one in usual.messages]
    assert usual.ByteSize() <= size, "the short way must never let through what is too long as protobuf"


def test_the_calls_of_a_consumer_go_the_short_way(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, bytes, tuple[Any, ...]]] = [
        ("Pull", b'{"maxMessages": 3, "returnImmediately": true}', (TOPIC, 3, True)),
        ("Acknowledge", b'{"ackIds": ["a", "b"]}', (TOPIC, ["a", "b"])),
        ("ModifyAckDeadline", b'{"ackIds": ["a"], "ackDeadlineSeconds": 600}', (TOPIC, ["a"], 600)),
    ]
    for call, body, expected in rows:
        with subtests.test(call=call, body=body):
            answer, asked = shortly(call, body)
            assert (answer, asked) == (b"{}", [expected])


def test_what_is_not_in_the_plain_form_is_left_to_the_usual_way(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, bytes]] = [
        ("Publish", b'{"messages": [{"data": "-_8="}]}'),
        ("Publish", b'{"messages": [{"data": "YQ"}]}'),
        ("Publish", b'{"messages": [{"data": "YQ==", "ordering_key": "k"}]}'),
        ("Publish", b'{"messages": [{"data": null}]}'),
        ("Publish", b'{"messages": [{"data": "\xff"}]}'),
        ("Publish", b"[" * 100_000),
        ("Publish", b""),
        ("Publish", b'{"messages": [{"data": "' + base64.b64encode(bytes(8 * 1024 * 1024)) + b'"}]}'),
        ("Pull", b'{"maxMessages": "3"}'),
        ("Pull", b'{"maxMessages": 2147483648}'),
        ("Acknowledge", b'{"ack_ids": ["a"]}'),
        ("ModifyAckDeadline", b'{"ackIds": ["a"], "ackDeadlineSeconds": -1}'),
    ]
    for call, body in rows:
        with subtests.test(call=call, body=body):
            assert shortly(call, body) == (None, [])


def test_a_pull_is_written_as_protobuf_writes_it() -> None:
    answer = messages.PullResponse()
    for number in range(4):
        delivery = answer.received_messages.add(ack_id=f"ack{number}", delivery_attempt=number)
        delivery.message.publish_time.seconds = 1_700_000_000 + number // 2
        delivery.message.publish_time.nanos = number * 1_000
        delivery.message.message_id = str(number)
    answer.received_messages[0].message.data = bytes(range(256))
    answer.received_messages[1].message.attributes["ü"] = '"\n'
    answer.received_messages[2].message.ordering_key = "k"
    assert msgspec.json.decode(pulled(answer.SerializeToString())) == json_format.MessageToDict(answer)
    assert pulled(b"") == b"{}"
