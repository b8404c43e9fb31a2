"""The messages against those of the installed Google client, field by field, and what the runtime makes of them."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from google.iam.v1 import iam_policy_pb2, options_pb2, policy_pb2
from google.protobuf import json_format
from google.pubsub_v1 import types
from google.pubsub_v1.services.publisher.transports.grpc import PublisherGrpcTransport
from google.pubsub_v1.services.publisher.transports.rest_base import _BasePublisherRestTransport
from google.pubsub_v1.services.schema_service.transports.grpc import SchemaServiceGrpcTransport
from google.pubsub_v1.services.schema_service.transports.rest_base import _BaseSchemaServiceRestTransport
from google.pubsub_v1.services.subscriber.transports.grpc import SubscriberGrpcTransport
from google.pubsub_v1.services.subscriber.transports.rest_base import _BaseSubscriberRestTransport
from google.rpc import error_details_pb2, status_pb2
from google.type import expr_pb2

from penstock.google import messages
from penstock.google.messages.notation import Package, new_pool

GOOGLE_FILES = [
    types.Topic.pb().DESCRIPTOR.file,
    types.Schema.pb().DESCRIPTOR.file,
    *(module.DESCRIPTOR for module in (iam_policy_pb2, options_pb2, policy_pb2, error_details_pb2, status_pb2, expr_pb2)),
]
REST = {
    "Publisher": _BasePublisherRestTransport,
    "Subscriber": _BaseSubscriberRestTransport,
    "SchemaService": _BaseSchemaServiceRestTransport,
}
GRPC: list[Any] = [PublisherGrpcTransport, SubscriberGrpcTransport, SchemaServiceGrpcTransport]


def wire_name(name: str) -> str:
    """Google's Python client writes `type_` for what is `type` in the API."""
    return name.removesuffix("_")


def described(message: Any) -> dict[str, object]:
    """Everything about a message that a peer or a JSON reader can notice, and the same of what is nested in it."""
    fields = {
        wire_name(field.name): (
            field.number,
            field.type,
            field.is_repeated,
            field.has_presence,
            field.json_name,
            field.message_type and field.message_type.full_name,
            field.enum_type and field.enum_type.full_name,
            field.containing_oneof and field.containing_oneof.name,
            bool(field.message_type) and field.message_type.GetOptions().map_entry,
        )
        for field in message.fields
    }
    nested = {name: described(inner) for name, inner in message.nested_types_by_name.items()}
    return {
        "fields": fields,
        "nested": nested,
        "enums": {name: values(enum) for name, enum in message.enum_types_by_name.items()},
    }


def values(enum: Any) -> dict[str, int]:
    return {value.name: value.number for value in enum.values}


def google_messages() -> Iterator[Any]:
    for file in GOOGLE_FILES:
        yield from file.message_types_by_name.values()


def test_every_message_is_that_of_the_client(subtests: pytest.Subtests) -> None:
    for theirs in list(google_messages()):
        with subtests.test(theirs=theirs.full_name):
            ours = messages.POOL.FindMessageTypeByName(theirs.full_name)

            assert described(ours) == described(theirs)
            assert getattr(messages, theirs.name).DESCRIPTOR is ours


@pytest.mark.parametrize("name", ["Encoding", "SchemaView"])
def test_every_enumeration_is_that_of_the_client(name: str) -> None:
    ours = getattr(messages, name)

    assert dict(ours.items()) == values(GOOGLE_FILES[1].enum_types_by_name[name])
    assert [getattr(ours, word) for word, _ in ours.items()] == ours.values()


def test_there_is_no_message_that_google_does_not_have() -> None:
    theirs = {message.name for message in google_messages()}
    ours = {
        name
        for name, value in vars(messages).items()
        if hasattr(value, "DESCRIPTOR") and hasattr(value, "FromString") and value.DESCRIPTOR.file.package != "google.protobuf"
    }

    assert ours == theirs


def rest_options() -> Iterator[tuple[str, Any]]:
    for service, transport in REST.items():
        for name, inner in vars(transport).items():
            if name.startswith("_Base"):
                method = name.removeprefix("_Base")
                owner = "google.iam.v1.IAMPolicy" if "Iam" in method else f"google.pubsub.v1.{service}"
                options = getattr(inner, "_get_http_options", None)
                yield f"/{owner}/{method}", options


def test_every_call_is_found_over_rest_where_the_client_looks_for_it(subtests: pytest.Subtests) -> None:
    for path, options in list(rest_options()):
        with subtests.test(path=path, options=options):
            bindings = messages.METHODS[path].bindings

            if options is None:
                assert path.endswith("/StreamingPull")
                assert bindings == ()
            else:
                theirs = {(option["method"].upper(), option["uri"], option.get("body")) for option in options()}
                assert {(binding.verb, binding.path, binding.body) for binding in bindings} == theirs


class Recorder(grpc.Channel):  # type: ignore[misc]  # grpc ships no types
    """A channel that takes down which calls a client of Google would make on it, and with which messages."""

    def __init__(self) -> None:
        self.calls: dict[str, tuple[str, str, bool]] = {}

    def _record(self, path: str, serializer: Any, deserializer: Any, *, streams: bool) -> Callable[..., None]:
        if path.startswith("/google.pubsub"):
            answer = deserializer(b"")
            raw = type(answer).pb(answer) if hasattr(type(answer), "pb") else answer
            self.calls[path] = (serializer.__self__.pb().DESCRIPTOR.full_name, raw.DESCRIPTOR.full_name, streams)
        return lambda *_: None

    def unary_unary(
        self, path: str, request_serializer: Any = None, response_deserializer: Any = None, _registered: Any = None
    ) -> object:
        return self._record(path, request_serializer, response_deserializer, streams=False)

    def stream_stream(
        self, path: str, request_serializer: Any = None, response_deserializer: Any = None, _registered: Any = None
    ) -> object:
        return self._record(path, request_serializer, response_deserializer, streams=True)

    def unary_stream(self, *_: object) -> None:
        raise AssertionError("the API has no such call")

    stream_unary = unary_stream

    def subscribe(self, callback: object, try_to_connect: object = None) -> None: ...

    def unsubscribe(self, callback: object) -> None: ...

    def close(self) -> None: ...


def test_every_call_of_the_client_is_there_with_its_messages() -> None:
    channel = Recorder()
    for transport in GRPC:
        client = transport(channel=channel)
        client._logged_channel = channel  # the one it has makes its stubs only when they are called
        client._stubs.clear()
        for name in dir(transport):
            if isinstance(getattr(transport, name), property):
                getattr(client, name)
    for method in iam_policy_pb2.DESCRIPTOR.services_by_name["IAMPolicy"].methods:
        path = f"/google.iam.v1.IAMPolicy/{method.name}"
        channel.calls[path] = (method.input_type.full_name, method.output_type.full_name, False)

    ours = {
        path: (method.request.DESCRIPTOR.full_name, method.response.DESCRIPTOR.full_name, method.client_streaming)
        for path, method in messages.METHODS.items()
    }

    assert len(ours) == 38
    assert ours == channel.calls
    assert all(method.client_streaming == method.server_streaming for method in messages.METHODS.values())


def test_what_the_client_writes_is_read_and_what_is_written_the_client_reads() -> None:
    theirs = types.PublishRequest(
        topic="projects/p/topics/t", messages=[types.PubsubMessage(data=b"x", attributes={"k": "v"}, ordering_key="o")]
    )

    ours = messages.PublishRequest.FromString(types.PublishRequest.serialize(theirs))

    assert ours.topic == "projects/p/topics/t"
    assert dict(ours.messages[0].attributes) == {"k": "v"}
    assert types.PublishRequest.deserialize(ours.SerializeToString()) == theirs


def test_json_reads_and_writes_times_durations_masks_enumerations_and_bytes() -> None:
    text = {
        "name": "projects/p/subscriptions/s",
        "messageRetentionDuration": "604800s",
        "expirationPolicy": {"ttl": "86400.500s"},
        "labels": {"a": "b"},
        "state": "ACTIVE",
    }
    subscription = json_format.ParseDict(text, messages.Subscription())
    assert subscription.message_retention_duration.seconds == 604_800
    assert subscription.expiration_policy.ttl.nanos == 500_000_000
    assert subscription.state == messages.Subscription.State.Value("ACTIVE")
    assert json_format.MessageToDict(subscription) == text

    request = json_format.ParseDict({"updateMask": "ackDeadlineSeconds,labels"}, messages.UpdateSubscriptionRequest())
    assert list(request.update_mask.paths) == ["ack_deadline_seconds", "labels"]

    message = json_format.ParseDict({"data": "eA==", "publishTime": "2024-02-03T04:05:06.789Z"}, messages.PubsubMessage())
    assert message.data == b"x"
    assert message.publish_time.ToMicroseconds() == 1_706_933_106_789_000
    assert json_format.MessageToDict(message) == {"data": "eA==", "publishTime": "2024-02-03T04:05:06.789Z"}

    inference = {"aiInference": {"unstructuredInference": {"parameters": {"n": [1, None]}}}}
    transform = json_format.ParseDict(inference, messages.MessageTransform())
    assert transform.WhichOneof("transform") == "ai_inference"
    assert transform.ai_inference.unstructured_inference.parameters["n"][0] == 1


def test_details_of_a_status_are_packed_and_shown_as_json() -> None:
    status = messages.Status(code=3, message="no")
    status.details.add().Pack(messages.ErrorInfo(reason="r", metadata={"id": "PERMANENT_FAILURE_INVALID_ACK_ID"}))

    theirs = status_pb2.Status.FromString(status.SerializeToString())
    info = error_details_pb2.ErrorInfo()
    assert theirs.details[0].Unpack(info)
    assert info.metadata["id"] == "PERMANENT_FAILURE_INVALID_ACK_ID"
    shown = json_format.MessageToDict(status, descriptor_pool=messages.POOL)
    assert shown["details"][0]["@type"] == "type.googleapis.com/google.rpc.ErrorInfo"


@pytest.mark.parametrize("order", ["from google.cloud import pubsub_v1; {}", "{}; from google.cloud import pubsub_v1"])
def test_the_client_may_be_imported_in_the_same_process_before_or_after(order: str) -> None:
    code = order.format("from penstock.google import messages")

    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=60)


def test_the_import_brings_only_the_protobuf_runtime() -> None:
    code = (
        "import sys; from penstock.google import messages;"
        "print(sorted(name for name in sys.modules if name.startswith(('google.', 'grpc', 'proto.')) and"
        " not name.startswith(('google.protobuf', 'google._upb'))))"
    )

    done = subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True, text=True)

    assert done.stdout.strip() == "[]"


def test_the_notation_reads_what_its_description_shows() -> None:
    notation = """\
Topic
  name 1 string, labels 2 {string Topic.State}, count 3 int32?,
    parts 4 Part*
  source: a 5 Part, b 6 bytes
enum Topic.State
  UNSPECIFIED 0,
  ACTIVE 1
Topic.Part
  size 1 int64
"""
    package = Package(new_pool(), "example", notation)
    topic = package.message("Topic")

    filled = topic(name="n", labels={"x": 1}, count=0, parts=[{"size": 7}], b=b"y")

    assert topic.FromString(filled.SerializeToString()) == filled
    assert filled.HasField("count")
    assert filled.WhichOneof("source") == "b"
    assert package.enum("Topic.State").ACTIVE == 1
