"""Google's REST API on a real server: every call, seen again over gRPC; Google's own client; hostile requests."""

import base64
import json
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import httpx
import pytest
from google.api_core import exceptions
from google.api_core.client_options import ClientOptions
from google.auth.credentials import AnonymousCredentials
from google.protobuf import field_mask_pb2, json_format
from google.pubsub_v1.services.publisher import PublisherClient
from google.pubsub_v1.services.schema_service import SchemaServiceClient
from google.pubsub_v1.services.subscriber import SubscriberClient

from penstock.access import Keyring, Verb
from penstock.clock import SystemClock
from penstock.google import messages
from penstock.testing.server import LocalServer

P = "projects/demo"
AVRO = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]})
AVRO_2 = json.dumps(
    {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}, {"name": "n", "type": "int", "default": 0}]}
)


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    with LocalServer() as running:
        yield running


@pytest.fixture
def client(server: LocalServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=10) as made:
        yield made


@pytest.fixture
def topic(client: httpx.Client, request: pytest.FixtureRequest) -> str:
    """A topic of this test alone, with a subscription of the same id."""
    id_ = f"t-{zlib.crc32(request.node.name.encode()):x}"
    assert client.put(f"/v1/{P}/topics/{id_}").status_code == 200
    assert client.put(f"/v1/{P}/subscriptions/{id_}", json={"topic": f"{P}/topics/{id_}"}).status_code == 200
    return id_


class Both:
    """Calls over REST, each answer read strictly as the message that it must be, and the same resources over gRPC."""

    def __init__(self, client: httpx.Client, channel: grpc.Channel) -> None:
        self.client = client
        self.channel = channel
        self.called: set[str] = set()

    def rest(self, call: str, verb: str, path: str, body: object = None) -> Any:
        answer = self.client.request(verb, f"/v1/{path}", json=body)
        assert answer.status_code == 200, answer.text
        self.called.add(call)
        return json_format.ParseDict(answer.json(), method(call).response())

    def grpc(self, call: str, **fields: Any) -> Any:
        found = method(call)
        path = next(path for path in messages.METHODS if path.endswith(f"/{call}"))
        return found.response.FromString(self.channel.unary_unary(path)(found.request(**fields).SerializeToString(), timeout=10))


def method(call: str) -> Any:
    return next(method for path, method in messages.METHODS.items() if path.endswith(f"/{call}"))


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def error(answer: httpx.Response) -> tuple[int, str, str]:
    """(HTTP status, Google's word, reason) of an error, whose form is checked."""
    body = answer.json()["error"]
    assert set(body) == {"code", "message", "status", "details"}
    (info,) = body["details"]
    assert (body["code"], info["@type"], info["domain"]) == (
        answer.status_code,
        "type.googleapis.com/google.rpc.ErrorInfo",
        "penstock",
    )
    return answer.status_code, body["status"], info["reason"]


def test_every_call_works_and_grpc_sees_the_same(server: LocalServer, client: httpx.Client) -> None:
    with grpc.insecure_channel(server.grpc) as channel:
        both = Both(client, channel)
        _topics(both)
        _subscriptions(both)
        _messages(both)
        _snapshots(both)
        _policies(both)
        _schemas(both)
        _endings(both)
    unary = {path.rpartition("/")[2] for path, one in messages.METHODS.items() if not one.client_streaming}
    assert len(unary) == 37
    assert both.called == unary


def _topics(both: Both) -> None:
    made = both.rest("CreateTopic", "PUT", f"{P}/topics/orders", {"labels": {"a": "b"}, "messageRetentionDuration": "600.5s"})
    assert made.message_retention_duration.nanos == 500_000_000
    assert made == both.grpc("GetTopic", topic=made.name) == both.rest("GetTopic", "GET", f"{P}/topics/orders")
    patch = {"topic": {"labels": {"c": "d"}}, "updateMask": "labels,messageRetentionDuration"}
    changed = both.rest("UpdateTopic", "PATCH", f"{P}/topics/orders", patch)
    assert changed == both.grpc("GetTopic", topic=made.name)
    assert dict(changed.labels) == {"c": "d"}
    assert not changed.HasField("message_retention_duration")
    both.rest("CreateTopic", "PUT", f"{P}/topics/other")
    page = both.rest("ListTopics", "GET", f"{P}/topics?pageSize=1")
    rest = both.rest("ListTopics", "GET", f"{P}/topics?page_token={page.next_page_token}")
    assert [*page.topics, *rest.topics] == list(both.grpc("ListTopics", project=P).topics)
    assert len(page.topics) == 1


def _subscriptions(both: Both) -> None:
    asked = {
        "topic": f"{P}/topics/orders",
        "ackDeadlineSeconds": 20,
        "retryPolicy": {"minimumBackoff": "1s", "maximumBackoff": "2.5s"},
        "deadLetterPolicy": {"deadLetterTopic": f"{P}/topics/other", "maxDeliveryAttempts": "7"},
        "expirationPolicy": {},
    }
    made = both.rest("CreateSubscription", "PUT", f"{P}/subscriptions/work", asked)
    assert (made.dead_letter_policy.max_delivery_attempts, made.retry_policy.maximum_backoff.nanos) == (7, 500_000_000)
    seen = both.rest("GetSubscription", "GET", f"{P}/subscriptions/work")
    assert made == seen == both.grpc("GetSubscription", subscription=made.name)
    patch = {"subscription": {"ack_deadline_seconds": 30}, "update_mask": "ack_deadline_seconds"}
    changed = both.rest("UpdateSubscription", "PATCH", f"{P}/subscriptions/work", patch)
    assert changed == both.grpc("GetSubscription", subscription=made.name)
    assert changed.ack_deadline_seconds == 30
    listed = both.rest("ListSubscriptions", "GET", f"{P}/subscriptions")
    assert listed == both.grpc("ListSubscriptions", project=P)
    names = both.rest("ListTopicSubscriptions", "GET", f"{P}/topics/orders/subscriptions").subscriptions
    assert list(names) == [made.name]
    both.rest("CreateSubscription", "PUT", f"{P}/subscriptions/pushed", {"topic": f"{P}/topics/other"})
    push = {"pushConfig": {"pushEndpoint": "http://127.0.0.1:9/nobody", "attributes": {"x-goog-version": "v1"}}}
    both.rest("ModifyPushConfig", "POST", f"{P}/subscriptions/pushed:modifyPushConfig", push)
    kept = both.grpc("GetSubscription", subscription=f"{P}/subscriptions/pushed")
    assert kept.push_config.push_endpoint == "http://127.0.0.1:9/nobody"


def _messages(both: Both) -> None:
    sent = [{"data": b64(bytes([n])), "attributes": {"n": str(n)}, "orderingKey": "k"} for n in range(3)]
    ids = both.rest("Publish", "POST", f"{P}/topics/orders:publish", {"messages": sent}).message_ids
    pulled = both.rest("Pull", "POST", f"{P}/subscriptions/work:pull", {"maxMessages": 2}).received_messages
    (third,) = both.grpc("Pull", subscription=f"{P}/subscriptions/work", max_messages=2).received_messages
    everything = [*pulled, third]
    assert [delivery.message.message_id for delivery in everything] == list(ids)
    assert [delivery.message.data for delivery in everything] == [b"\0", b"\1", b"\2"]
    assert [dict(delivery.message.attributes) for delivery in everything] == [{"n": "0"}, {"n": "1"}, {"n": "2"}]
    assert {delivery.message.publish_time.ToJsonString() for delivery in everything} == {
        third.message.publish_time.ToJsonString()
    }
    assert [delivery.delivery_attempt for delivery in everything] == [1, 1, 1]
    both.rest("Acknowledge", "POST", f"{P}/subscriptions/work:acknowledge", {"ackIds": [pulled[0].ack_id]})
    given_back = {"ackIds": [pulled[1].ack_id, third.ack_id], "ackDeadlineSeconds": 0}
    both.rest("ModifyAckDeadline", "POST", f"{P}/subscriptions/work:modifyAckDeadline", given_back)
    both.rest("Seek", "POST", f"{P}/subscriptions/work:seek", {"time": "2100-01-01T00:00:00Z"})
    empty = both.rest("Pull", "POST", f"{P}/subscriptions/work:pull", {"maxMessages": 1, "returnImmediately": True})
    assert not empty.received_messages


def _snapshots(both: Both) -> None:
    made = both.rest("CreateSnapshot", "PUT", f"{P}/snapshots/snap", {"subscription": f"{P}/subscriptions/work"})
    assert made == both.grpc("GetSnapshot", snapshot=made.name) == both.rest("GetSnapshot", "GET", f"{P}/snapshots/snap")
    patch = {"snapshot": {"labels": {"x": "y"}}, "updateMask": "labels"}
    changed = both.rest("UpdateSnapshot", "PATCH", f"{P}/snapshots/snap", patch)
    assert changed == both.grpc("GetSnapshot", snapshot=made.name)
    assert list(both.rest("ListSnapshots", "GET", f"{P}/snapshots").snapshots) == [changed]
    assert list(both.rest("ListTopicSnapshots", "GET", f"{P}/topics/orders/snapshots").snapshots) == [made.name]
    both.rest("Seek", "POST", f"{P}/subscriptions/work:seek", {"snapshot": made.name})
    both.rest("DeleteSnapshot", "DELETE", f"{P}/snapshots/snap")
    assert not both.grpc("ListSnapshots", project=P).snapshots


def _policies(both: Both) -> None:
    policy = {"policy": {"bindings": [{"role": "roles/viewer", "members": ["allUsers"]}]}}
    kept = both.rest("SetIamPolicy", "POST", f"{P}/topics/orders:setIamPolicy", policy)
    shown = both.rest("GetIamPolicy", "GET", f"{P}/topics/orders:getIamPolicy?options.requestedPolicyVersion=3")
    assert kept == shown == both.grpc("GetIamPolicy", resource=f"{P}/topics/orders")
    assert kept.etag
    wanted = {"permissions": ["pubsub.topics.get", "pubsub.topics.publish"]}
    for resource in ("topics/orders", "subscriptions/work"):
        allowed = both.rest("TestIamPermissions", "POST", f"{P}/{resource}:testIamPermissions", wanted)
        assert list(allowed.permissions) == wanted["permissions"]


def _schemas(both: Both) -> None:
    first = both.rest("CreateSchema", "POST", f"{P}/schemas?schemaId=order", {"type": "AVRO", "definition": AVRO})
    assert first == both.grpc("GetSchema", name=f"{P}/schemas/order") == both.rest("GetSchema", "GET", f"{P}/schemas/order")
    assert not both.rest("GetSchema", "GET", f"{P}/schemas/order?view=BASIC").definition
    change = {"schema": {"name": first.name, "type": 2, "definition": AVRO_2}}
    second = both.rest("CommitSchema", "POST", f"{P}/schemas/order:commit", change)
    assert both.rest("GetSchema", "GET", f"{P}/schemas/order@{first.revision_id}") == first
    third = both.rest("RollbackSchema", "POST", f"{P}/schemas/order:rollback", {"revisionId": first.revision_id})
    revisions = both.rest("ListSchemaRevisions", "GET", f"{P}/schemas/order:listRevisions?view=FULL").schemas
    assert sorted(one.revision_id for one in revisions) == sorted(one.revision_id for one in (first, second, third))
    gone = both.rest("DeleteSchemaRevision", "DELETE", f"{P}/schemas/order@{second.revision_id}:deleteRevision")
    assert gone.revision_id == second.revision_id
    assert both.rest("ListSchemas", "GET", f"{P}/schemas?view=FULL") == both.grpc("ListSchemas", parent=P, view=2)
    both.rest("ValidateSchema", "POST", f"{P}/schemas:validate", {"schema": {"type": "AVRO", "definition": AVRO}})
    message = {"name": first.name, "message": b64(b'{"id": "1"}'), "encoding": "JSON"}
    both.rest("ValidateMessage", "POST", f"{P}/schemas:validateMessage", message)
    both.rest("DeleteSchema", "DELETE", f"{P}/schemas/order")
    assert not both.grpc("ListSchemas", parent=P).schemas


def _endings(both: Both) -> None:
    both.rest("DetachSubscription", "POST", f"{P}/subscriptions/work:detach")
    assert both.grpc("GetSubscription", subscription=f"{P}/subscriptions/work").detached
    both.rest("DeleteSubscription", "DELETE", f"{P}/subscriptions/work")
    both.rest("DeleteTopic", "DELETE", f"{P}/topics/orders")
    assert f"{P}/topics/orders" not in [one.name for one in both.grpc("ListTopics", project=P).topics]
    pushed = both.rest("GetSubscription", "GET", f"{P}/subscriptions/pushed")
    assert pushed.topic == f"{P}/topics/other"


# ── Google's own client ──────────────────────────────────────────────────────────────────────────────────────────────────


def official(kind: Any, server: LocalServer) -> Any:
    return kind(
        transport="rest",
        credentials=AnonymousCredentials(),  # type: ignore[no-untyped-call]  # the library ships no types for it
        client_options=ClientOptions(api_endpoint=server.url),
    )


def test_the_unmodified_client_of_google_works_over_its_rest_transport(server: LocalServer) -> None:
    publisher, subscriber = official(PublisherClient, server), official(SubscriberClient, server)
    topic, subscription = "projects/lib/topics/a+b~c", "projects/lib/subscriptions/work"
    assert publisher.create_topic(name=topic).name == topic
    changed = publisher.update_topic(
        request={"topic": {"name": topic, "labels": {"a": "b"}}, "update_mask": field_mask_pb2.FieldMask(paths=["labels"])}
    )
    assert (dict(changed.labels), changed.state.name) == ({"a": "b"}, "ACTIVE")
    assert [one.name for one in publisher.list_topics(project="projects/lib")] == [topic]
    subscriber.create_subscription(name=subscription, topic=topic, ack_deadline_seconds=30)
    ids = publisher.publish(topic=topic, messages=[{"data": bytes(range(256)), "attributes": {"k": "ü"}}], retry=None).message_ids
    (received,) = subscriber.pull(subscription=subscription, max_messages=5, retry=None).received_messages
    assert (received.message.message_id, received.message.data) == (ids[0], bytes(range(256)))
    assert dict(received.message.attributes) == {"k": "ü"}
    subscriber.acknowledge(subscription=subscription, ack_ids=[received.ack_id])
    schemas = official(SchemaServiceClient, server)
    schema = schemas.create_schema(parent="projects/lib", schema={"type_": "AVRO", "definition": AVRO}, schema_id="order")
    assert schemas.get_schema(name=schema.name).definition == AVRO


def test_the_unmodified_client_of_google_understands_the_errors(server: LocalServer) -> None:
    publisher = official(PublisherClient, server)
    publisher.create_topic(name="projects/errors/topics/here")
    cases: list[tuple[Callable[[], object], type[Exception], str]] = [
        (lambda: publisher.get_topic(topic="projects/errors/topics/none"), exceptions.NotFound, "TOPIC_NOT_FOUND"),
        (lambda: publisher.create_topic(name="projects/errors/topics/here"), exceptions.Conflict, "ALREADY_EXISTS"),
        (lambda: publisher.publish(topic="projects/errors/topics/here"), exceptions.BadRequest, "INVALID_ARGUMENT"),
    ]
    for call, kind, reason in cases:
        with pytest.raises(kind) as caught:
            call()
        assert caught.value.reason == reason  # type: ignore[attr-defined]  # of every GoogleAPICallError


def test_stale_ack_ids_of_an_exactly_once_subscription_are_named_in_the_details(client: httpx.Client, topic: str) -> None:
    once = {"topic": f"{P}/topics/{topic}", "enableExactlyOnceDelivery": True}
    client.put(f"/v1/{P}/subscriptions/once", json=once)
    client.post(f"/v1/{P}/topics/{topic}:publish", json={"messages": [{"data": "YQ=="}]})
    (delivery,) = client.post(f"/v1/{P}/subscriptions/once:pull", json={"maxMessages": 1}).json()["receivedMessages"]
    asked = {"ackIds": [delivery["ackId"]]}
    back = asked | {"ackDeadlineSeconds": 0}
    assert client.post(f"/v1/{P}/subscriptions/once:modifyAckDeadline", json=back).json() == {}
    again = client.post(f"/v1/{P}/subscriptions/once:acknowledge", json=asked)
    assert error(again) == (400, "FAILED_PRECONDITION", "ACK_IDS_REFUSED")
    metadata = again.json()["error"]["details"][0]["metadata"]
    assert metadata == {delivery["ackId"]: "PERMANENT_FAILURE_INVALID_ACK_ID"}


# ── requests that are not as they should be ──────────────────────────────────────────────────────────────────────────────

HOSTILE: dict[str, bytes] = {
    "a list": b"[]",
    "null": b"null",
    "not JSON": b"{messages}",
    "cut off": b'{"messages": [{"data": "YQ=="',
    "a number that is none": b'{"messages": NaN}',
    "not UTF-8": b'{"messages": [{"data": "YQ==", "orderingKey": "\xff"}]}',
    "half a surrogate pair": b'{"messages": [{"data": "YQ==", "orderingKey": "\\ud800"}]}',
    "nested deeply": b'{"messages": ' + b"[" * 100_000,
    "nested deeply inside": b'{"messages": [' + b'{"attributes":' * 5_000 + b"{}" + b"}" * 5_000 + b"]}",
    "an unknown field": b'{"messages": [{"data": "YQ==", "dato": 1}]}',
    "messages as a text": b'{"messages": "YQ=="}',
    "messages as an object": b'{"messages": {"0": {"data": "YQ=="}}}',
    "messages as texts": b'{"messages": ["YQ=="]}',
    "no messages": b"{}",
    "a message that is null": b'{"messages": [null]}',
    "data as a number": b'{"messages": [{"data": 1}]}',
    "data as a list": b'{"messages": [{"data": [97]}]}',
    "data that is not base64": b'{"messages": [{"data": "YQ!="}]}',
    "data with a space": b'{"messages": [{"data": "Y Q="}]}',
    "data of one character": b'{"messages": [{"data": "Y"}]}',
    "data padded in the middle": b'{"messages": [{"data": "YQ==YQ=="}]}',
    "data outside ASCII": '{"messages": [{"data": "ÄÖÜ="}]}'.encode(),
    "attributes as a list": b'{"messages": [{"attributes": ["a"]}]}',
    "an attribute as a number": b'{"messages": [{"attributes": {"a": 1}}]}',
    "an attribute that is null": b'{"messages": [{"attributes": {"a": null}}]}',
    "a time that is none": b'{"messages": [{"data": "YQ==", "publishTime": "yesterday"}]}',
    "a time as a number": b'{"messages": [{"data": "YQ==", "publishTime": 1e300}]}',
    "both spellings": b'{"messages": [{"data": "YQ==", "orderingKey": "a", "ordering_key": "b"}]}',
}


def test_a_hostile_publish_is_refused_and_publishes_nothing(client: httpx.Client, topic: str, subtests: pytest.Subtests) -> None:
    for name, body in HOSTILE.items():
        with subtests.test(name=name):
            answer = client.post(f"/v1/{P}/topics/{topic}:publish", content=body)
            assert error(answer) == (400, "INVALID_ARGUMENT", "INVALID_ARGUMENT")
            assert len(answer.content) < 1500
            pull = {"maxMessages": 1, "returnImmediately": True}
            assert client.post(f"/v1/{P}/subscriptions/{topic}:pull", json=pull).json() == {}


HOSTILE_NUMBERS = [
    "0",
    "-1",
    "2147483648",
    "1e400",
    "1" * 5000,
    '"1e300"',
    f'"{"9" * 5000}"',
    "1.5",
    '"ten"',
    "true",
    "[1]",
    "{}",
    '""',
]


def test_a_hostile_number_is_refused(client: httpx.Client, topic: str, subtests: pytest.Subtests) -> None:
    for number in HOSTILE_NUMBERS:
        with subtests.test(number=number[:20]):
            answer = client.post(f"/v1/{P}/subscriptions/{topic}:pull", content=f'{{"maxMessages": {number}}}')
            assert error(answer) == (400, "INVALID_ARGUMENT", "INVALID_ARGUMENT")
            assert len(answer.content) < 1500


def test_a_number_may_be_written_in_every_way_of_protobuf(client: httpx.Client, topic: str) -> None:
    for number in ("3", '"3"', "3.0", '"3.0"', "3e0"):
        body = f'{{"maxMessages": {number}, "returnImmediately": true}}'
        assert client.post(f"/v1/{P}/subscriptions/{topic}:pull", content=body).json() == {}, number


def test_of_a_key_that_comes_twice_the_last_counts(client: httpx.Client, topic: str) -> None:
    for body in (
        b'{"messages": [{"data": "YQ==", "data": "Yg=="}]}',
        b'{"messages": [{"data": "YQ==", "data": "Yg", "messageId": "ignored"}]}',  # not in the plain form
    ):
        assert client.post(f"/v1/{P}/topics/{topic}:publish", content=body).status_code == 200
    pulled = client.post(f"/v1/{P}/subscriptions/{topic}:pull", json={"maxMessages": 2}).json()["receivedMessages"]
    assert [delivery["message"]["data"] for delivery in pulled] == ["Yg==", "Yg=="]


WRONG = [
    ("GET", "/v1/projects/demo/topics?nope=1", 400),
    ("GET", "/v1/projects/demo/topics?pageSize=many", 400),
    ("GET", "/v1/projects/demo/topics?pageSize=1&page_size=2", 400),
    ("GET", "/v1/projects/demo/topics?pageSize=1&pageSize=1", 400),
    ("GET", "/v1/projects/demo/topics?project=projects/other", 400),
    ("GET", "/v1/projects/demo/topics?pageToken=%FF", 400),
    ("GET", "/v1/projects/demo/topics?" + "&".join(["pageSize=1"] * 200), 400),
    ("GET", "/v1/projects/demo/topics?alt=media", 400),
    ("GET", "/v1/projects/demo/schemas?view=ALL", 400),
    ("GET", "/v1/projects/demo/topics/no", 400),
    ("GET", "/v1/projects/demo/topics/goog-x", 400),
    ("GET", "/v1/projects/demo/topics/a%2Fb", 400),
    ("GET", "/v1/projects/demo/topics/{project}", 400),
    ("GET", "/v1/projects/demo/topics/none", 404),
    ("POST", "/v1/projects/demo/topics/none:publish?messages=1", 400),
    ("POST", "/v1/projects/demo/schemas?schemaId=abc&schema.type=AVRO", 400),
]
UNKNOWN = [
    ("GET", "/v1", 404),
    ("GET", "/v1/projects/demo/topics/%FF%FE", 400),
    ("GET", "/v1/projects/demo", 404),
    ("GET", "/v1/projects/demo/nothing", 404),
    ("GET", "/v2/projects/demo/topics", 404),
    ("POST", "/v1/projects/demo/topics/abc", 405),
    ("POST", "/v1/projects/demo/topics/abc:frobnicate", 405),
    ("DELETE", "/v1/projects/demo/topics", 405),
]


def test_a_wrong_name_or_query_is_told(client: httpx.Client, subtests: pytest.Subtests) -> None:
    for verb, path, status in WRONG:
        with subtests.test(verb=verb, path=path[:100]):
            assert error(client.request(verb, path))[0] == status


def test_an_unknown_path_or_verb_is_an_error_of_googles_form(client: httpx.Client, subtests: pytest.Subtests) -> None:
    for verb, path, status in UNKNOWN:
        with subtests.test(verb=verb, path=path):
            answer = client.request(verb, path)
            assert (answer.status_code, answer.json()["error"]["code"]) == (status, status)


def test_a_name_may_be_percent_encoded(client: httpx.Client) -> None:
    for written, id_ in (("a%2Bb", "a+b"), ("a+c", "a+c"), ("a~b", "a~b"), ("a%7Ec", "a~c"), ("a%25b", "a%b")):
        assert client.put(f"/v1/{P}/topics/{written}").json()["name"] == f"{P}/topics/{id_}"


def test_what_the_path_names_counts_and_not_what_the_body_names(client: httpx.Client) -> None:
    made = client.put(f"/v1/{P}/topics/of-path", json={"name": f"{P}/topics/of-body"})
    assert made.json()["name"] == f"{P}/topics/of-path"


def test_system_parameters_shape_the_answer_or_are_ignored(client: httpx.Client, topic: str) -> None:
    path = f"/v1/{P}/topics/{topic}"
    plain = client.get(path)
    assert plain.json()["state"] == "ACTIVE"
    assert client.get(f"{path}?key=k&access_token=t&$.xgafv=2&fields=name&alt=json&quotaUser=u").content == plain.content
    assert client.get(f"{path}?$alt=json;enum-encoding=int").json()["state"] == 1
    pretty = client.get(f"{path}?prettyPrint=true")
    assert pretty.text.startswith('{\n  "name"')
    assert pretty.json() == plain.json()


def test_secrets_in_the_query_are_never_logged(client: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "penstock")
    for path in ("topics", "topics/none", "nothing"):
        client.get(f"/v1/{P}/{path}?key=hush-key&access_token=hush-token")
    assert "/v1/projects/demo" in caplog.text
    assert "hush" not in "".join(record.getMessage() for record in caplog.records if record.name.startswith("penstock"))


def test_a_large_batch_is_limited_as_over_grpc(client: httpx.Client, topic: str) -> None:
    half = {"data": b64(bytes(5 * 1024 * 1024 + 32 * 1024))}
    assert client.post(f"/v1/{P}/topics/{topic}:publish", json={"messages": [half]}).status_code == 200
    answer = client.post(f"/v1/{P}/topics/{topic}:publish", json={"messages": [half, half]})
    assert error(answer) == (400, "INVALID_ARGUMENT", "INVALID_ARGUMENT")


def test_a_token_is_needed_and_its_limits_hold(tmp_path: Any) -> None:
    file = tmp_path / "tokens.json"
    secret = Keyring(file).create("reader", SystemClock().now(), project="demo", verbs=[Verb.READ])
    with LocalServer(auth="token", token_file=file) as server, httpx.Client(base_url=server.url) as client:
        assert error(client.get(f"/v1/{P}/topics"))[:2] == (401, "UNAUTHENTICATED")
        client.headers["Authorization"] = f"Bearer {secret}"
        assert client.get(f"/v1/{P}/topics").json() == {}
        assert error(client.put(f"/v1/{P}/topics/abc"))[:2] == (403, "PERMISSION_DENIED")
        assert error(client.get("/v1/projects/other/topics"))[:2] == (403, "PERMISSION_DENIED")


def test_a_push_endpoint_needs_consume_on_its_subscription(tmp_path: Any) -> None:
    keyring = Keyring(tmp_path / "tokens.json")
    everything = keyring.create("all", SystemClock().now(), project="demo")
    manager = keyring.create("manager", SystemClock().now(), project="demo", verbs=[Verb.MANAGE, Verb.READ])
    push = {"pushConfig": {"pushEndpoint": "https://push.example.com/hook"}}
    one = f"/v1/{P}/subscriptions/one"
    with LocalServer(auth="token", token_file=tmp_path / "tokens.json") as server, httpx.Client(base_url=server.url) as client:
        client.headers["Authorization"] = f"Bearer {manager}"
        topic = {"topic": f"{P}/topics/news"}
        assert client.put(f"/v1/{P}/topics/news").status_code == 200
        assert error(client.put(one, json={**topic, **push}))[:2] == (403, "PERMISSION_DENIED")
        assert client.put(one, json=topic).status_code == 200
        update = {"subscription": push, "updateMask": "pushConfig"}
        assert error(client.post(f"{one}:modifyPushConfig", json=push))[:2] == (403, "PERMISSION_DENIED")
        assert error(client.patch(one, json=update))[:2] == (403, "PERMISSION_DENIED")
        assert "consume" in client.patch(one, json=update).json()["error"]["message"]
        # A snapshot keeps messages beyond their retention.
        assert error(client.put(f"/v1/{P}/snapshots/mark", json={"subscription": f"{P}/subscriptions/one"}))[0] == 403
        # What does not touch the endpoint is still the manager's: other fields, and to let the messages be pulled again.
        client.headers["Authorization"] = f"Bearer {everything}"
        assert client.patch(one, json=update).status_code == 200
        assert client.put(f"/v1/{P}/snapshots/mark", json={"subscription": f"{P}/subscriptions/one"}).status_code == 200
        client.headers["Authorization"] = f"Bearer {manager}"
        labels = {"subscription": {"labels": {"a": "b"}}, "updateMask": "labels"}
        assert client.patch(one, json=labels).json()["pushConfig"]["pushEndpoint"] == push["pushConfig"]["pushEndpoint"]
        assert client.post(f"{one}:modifyPushConfig", json={}).status_code == 200


def test_every_binding_is_documented(client: httpx.Client) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    documented = sum(len(verbs) for path, verbs in paths.items() if path.startswith("/v1/projects/"))
    assert documented == sum(len(one.bindings) for one in messages.METHODS.values())
