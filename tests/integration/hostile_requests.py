"""Requests that no honest client sends, made from the descriptors: every field may hold what its type allows and no rule does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from hypothesis import strategies as st

from penstock.google import messages

PROJECT = "fuzz"
TOPIC, OTHER_TOPIC = f"projects/{PROJECT}/topics/known", f"projects/{PROJECT}/topics/other"
SUBSCRIPTION = f"projects/{PROJECT}/subscriptions/known"
EXACT = f"projects/{PROJECT}/subscriptions/exact"
SNAPSHOT = f"projects/{PROJECT}/snapshots/known"
SCHEMA = f"projects/{PROJECT}/schemas/known"
AVRO = '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "string"}]}'
PROTO = 'syntax = "proto3"; message M { string a = 1; }'

KNOWN = [TOPIC, OTHER_TOPIC, SUBSCRIPTION, EXACT, SNAPSHOT, SCHEMA, f"projects/{PROJECT}"]
NAMES = [
    *KNOWN,
    *(name + suffix for name in KNOWN for suffix in ("/", "/x", "-new", "@00000000", "@", "\0")),
    "projects/fuzz/topics/_deleted-topic_",
    "_deleted-topic_",
    "_deleted-schema_",
    "projects//topics/known",
    "projects/fuzz/topics/",
    "projects/fuzz/topics/goog-x",
    "projects/-/topics/known",
    "projects/" + "p" * 70_000,
    "known",
]
SOURCES = [
    AVRO,
    PROTO,
    '{"type": "record"',
    "[" * 3_000,
    '{"type": "array", "items": ' * 900 + '"int"' + "}" * 900,
    '{"type": "record", "name": "R", "fields": [{"name": "r", "type": "R"}]}',
    '{"type": "fixed", "name": "F", "size": -1}',
    'syntax = "proto3"; message M { M m = 1; }',
    'syntax = "proto3"; ' + "message M { " * 300 + "}" * 300,
    'syntax = "proto3"; message M { string a = 99999999999; }',
    "syntax = ",
]
FILTERS = [
    'attributes.a = "b"',
    "(" * 5_000,
    "NOT " * 2_000 + "attributes:a",
    'hasPrefix(attributes.a, "',
    "attributes",
    '"' * 300,
]
CODES = ["function f(m, d) { return m }", "function f(m, d) { while (true) {} }", "function f(", "}" * 1_000, "f = 1"]
PATHS = [
    "labels",
    "labels.a",
    "name",
    "*",
    "",
    ".",
    "..",
    "push_config.oidc_token",
    "message_retention_duration",
    "no_such",
    "état",
]

TEXTS = st.one_of(
    st.sampled_from(NAMES),
    st.sampled_from(["", " ", "\0", "\n\r\x1b[31m", "\u202e\ufeff", "🜁" * 100, "%s%n{}", "-1", "x" * 1_025, "x" * 300_000]),
    st.text(max_size=30),
)
BY_FIELD: dict[str, list[str]] = {
    "definition": SOURCES,
    "filter": FILTERS,
    "code": CODES,
    "paths": PATHS,
    "push_endpoint": ["http://127.0.0.1:1/", "ftp://x", "http://", "http://[::1", "http://u:p@h/", "http://" + "h" * 5_000],
    "page_token": ["AAAA", "=", "💥", "1", "-1", "9" * 400],
    "revision_id": ["00000000", "zzzzzzzz", "@", ""],
    "ack_ids": ["1", "-", "A" * 20_000, "0:0:0:0"],
}

MANY_BYTES = 1_000_000
"""What is repeated grows no further: a request beyond the limit of the port does not reach the code that is tested here."""

_INT32 = [0, 1, -1, 9, 10, 600, 601, 1_000, 1_001, 2**31 - 1, -(2**31)]
_INT64 = [*_INT32, 2**63 - 1, -(2**63), 253_402_300_799, 253_402_300_800, -62_135_596_801]
_SCALARS: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_BYTES: st.one_of(st.binary(max_size=40), st.just(b"\xff" * 100_000)),
    FieldDescriptor.TYPE_DOUBLE: st.floats(),
    FieldDescriptor.TYPE_ENUM: st.sampled_from([0, 1, 2, 3, 7, 99, -1, 2**31 - 1]),
    FieldDescriptor.TYPE_INT32: st.sampled_from(_INT32),
    FieldDescriptor.TYPE_INT64: st.sampled_from(_INT64),
}


class Sent:
    """The bytes of a request; a failing test shows their beginning."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def __repr__(self) -> str:
        return f"{self.data[:400]!r}" + (f" … ({len(self.data)} bytes)" if len(self.data) > 400 else "")


def _scalar(field: Any) -> st.SearchStrategy[Any]:
    if field.type == FieldDescriptor.TYPE_STRING:
        special = BY_FIELD.get(field.name)
        return st.one_of(st.sampled_from(special), TEXTS) if special is not None else TEXTS
    return _SCALARS[field.type]


def _is_map(field: Any) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def spoil(draw: Callable[[st.SearchStrategy[Any]], Any], message: Any, depth: int = 4) -> None:
    """Put hostile values into some fields of a message, in place; what it holds elsewhere stays."""
    fields = list(message.DESCRIPTOR.fields)
    if not fields:
        return
    for field in draw(st.lists(st.sampled_from(fields), min_size=1, max_size=3, unique_by=lambda field: field.number)):
        value = getattr(message, field.name)
        many = draw(st.sampled_from([1, 1, 2, 5, 120]))
        if _is_map(field):
            entry = field.message_type.fields_by_name
            if entry["value"].message_type is not None:
                if depth:
                    spoil(draw, value[draw(TEXTS)], depth - 1)
                continue
            key = draw(TEXTS)
            for number in range(many):
                value[f"{key}{number}" if number else key] = draw(_scalar(entry["value"])) if number < 3 else ""
        elif field.message_type is not None:
            if not depth:
                continue
            if field.is_repeated:
                one = value.add()
                spoil(draw, one, depth - 1)
                for _ in range(min(many, MANY_BYTES // (one.ByteSize() + 1)) - 1):
                    value.add().CopyFrom(one)
            else:
                value.SetInParent()
                spoil(draw, value, depth - 1)
        elif field.is_repeated:
            one = draw(_scalar(field))
            value.extend([one] * (min(many, 3) if isinstance(one, str | bytes) and len(one) > 10_000 else many))
        else:
            setattr(message, field.name, draw(_scalar(field)))


def deep_topic(depth: int) -> Sent:
    """A topic with a structure inside a structure, so many times. Written as bytes: the library makes no deeper than it reads."""
    struct = b""
    for _ in range(depth):
        struct = _field(1, _field(1, b"x") + _field(2, _field(5, struct)))
    transform = _field(6, _field(2, _field(1, struct)))
    return Sent(_field(1, f"{TOPIC}-deep".encode()) + _field(13, transform))


def _field(number: int, content: bytes) -> bytes:
    size, rest = bytearray(), len(content)
    while rest > 127:
        size.append(rest & 127 | 128)
        rest >>= 7
    return bytes([number << 3 | 2, *size, rest]) + content


def honest_requests() -> dict[str, Any]:
    """A request for every call that would succeed, or at least nearly: what is spoilt starts from it."""
    made = {
        "CreateTopic": messages.Topic(name=f"{TOPIC}-new", labels={"a": "b"}),
        "UpdateTopic": messages.UpdateTopicRequest(
            topic={"name": TOPIC, "labels": {"a": "c"}}, update_mask={"paths": ["labels"]}
        ),
        "Publish": messages.PublishRequest(topic=TOPIC, messages=[{"data": b"x", "attributes": {"a": "b"}, "ordering_key": "k"}]),
        "GetTopic": messages.GetTopicRequest(topic=TOPIC),
        "ListTopics": messages.ListTopicsRequest(project=f"projects/{PROJECT}", page_size=1),
        "ListTopicSubscriptions": messages.ListTopicSubscriptionsRequest(topic=TOPIC, page_size=1),
        "ListTopicSnapshots": messages.ListTopicSnapshotsRequest(topic=TOPIC, page_size=1),
        "DeleteTopic": messages.DeleteTopicRequest(topic=OTHER_TOPIC),
        "DetachSubscription": messages.DetachSubscriptionRequest(subscription=f"{SUBSCRIPTION}-new"),
        "CreateSubscription": messages.Subscription(
            name=f"{SUBSCRIPTION}-new",
            topic=TOPIC,
            filter='attributes.a = "b"',
            dead_letter_policy={"dead_letter_topic": OTHER_TOPIC, "max_delivery_attempts": 5},
        ),
        "GetSubscription": messages.GetSubscriptionRequest(subscription=SUBSCRIPTION),
        "UpdateSubscription": messages.UpdateSubscriptionRequest(
            subscription={"name": SUBSCRIPTION, "ack_deadline_seconds": 20}, update_mask={"paths": ["ack_deadline_seconds"]}
        ),
        "ListSubscriptions": messages.ListSubscriptionsRequest(project=f"projects/{PROJECT}", page_size=1),
        "DeleteSubscription": messages.DeleteSubscriptionRequest(subscription=f"{SUBSCRIPTION}-new"),
        "ModifyAckDeadline": messages.ModifyAckDeadlineRequest(
            subscription=SUBSCRIPTION, ack_ids=["AAAA"], ack_deadline_seconds=10
        ),
        "Acknowledge": messages.AcknowledgeRequest(subscription=EXACT, ack_ids=["AAAA"]),
        "Pull": messages.PullRequest(subscription=SUBSCRIPTION, max_messages=1, return_immediately=True),
        "StreamingPull": messages.StreamingPullRequest(subscription=SUBSCRIPTION, stream_ack_deadline_seconds=10, client_id="c"),
        "ModifyPushConfig": messages.ModifyPushConfigRequest(subscription=SUBSCRIPTION),
        "GetSnapshot": messages.GetSnapshotRequest(snapshot=SNAPSHOT),
        "ListSnapshots": messages.ListSnapshotsRequest(project=f"projects/{PROJECT}", page_size=1),
        "CreateSnapshot": messages.CreateSnapshotRequest(name=f"{SNAPSHOT}-new", subscription=SUBSCRIPTION),
        "UpdateSnapshot": messages.UpdateSnapshotRequest(
            snapshot={"name": SNAPSHOT, "labels": {"a": "b"}}, update_mask={"paths": ["labels", "expire_time"]}
        ),
        "DeleteSnapshot": messages.DeleteSnapshotRequest(snapshot=f"{SNAPSHOT}-new"),
        "Seek": messages.SeekRequest(subscription=SUBSCRIPTION, snapshot=SNAPSHOT),
        "CreateSchema": messages.CreateSchemaRequest(
            parent=f"projects/{PROJECT}", schema_id="known-new", schema={"type": 2, "definition": AVRO}
        ),
        "GetSchema": messages.GetSchemaRequest(name=SCHEMA, view=2),
        "ListSchemas": messages.ListSchemasRequest(parent=f"projects/{PROJECT}", page_size=1),
        "ListSchemaRevisions": messages.ListSchemaRevisionsRequest(name=SCHEMA, page_size=1),
        "CommitSchema": messages.CommitSchemaRequest(name=SCHEMA, schema={"name": SCHEMA, "type": 2, "definition": AVRO}),
        "RollbackSchema": messages.RollbackSchemaRequest(name=SCHEMA, revision_id="00000000"),
        "DeleteSchemaRevision": messages.DeleteSchemaRevisionRequest(name=f"{SCHEMA}@00000000"),
        "DeleteSchema": messages.DeleteSchemaRequest(name=f"{SCHEMA}-new"),
        "ValidateSchema": messages.ValidateSchemaRequest(parent=f"projects/{PROJECT}", schema={"type": 1, "definition": PROTO}),
        "ValidateMessage": messages.ValidateMessageRequest(
            parent=f"projects/{PROJECT}", schema={"type": 2, "definition": AVRO}, message=b'{"a": "b"}', encoding=1
        ),
        "SetIamPolicy": messages.SetIamPolicyRequest(resource=TOPIC, policy={"bindings": [{"role": "r", "members": ["user:u"]}]}),
        "GetIamPolicy": messages.GetIamPolicyRequest(resource=TOPIC),
        "TestIamPermissions": messages.TestIamPermissionsRequest(resource=TOPIC, permissions=["pubsub.topics.get"]),
    }
    return {path: made[path.rpartition("/")[2]] for path in messages.METHODS}


HONEST = honest_requests()


@st.composite
def spoilt(draw: st.DrawFn, path: str) -> Sent:
    """An honest request with some fields spoilt."""
    request = messages.METHODS[path].request()
    if draw(st.sampled_from([True, True, True, False])):
        request.CopyFrom(HONEST[path])
    spoil(draw, request)
    return Sent(request.SerializeToString())


@st.composite
def torn(draw: st.DrawFn, path: str) -> Sent:
    """The bytes of an honest request, with some cut out, put in or changed."""
    data = bytearray(HONEST[path].SerializeToString())
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        data[at : at + draw(st.integers(0, 3))] = draw(st.binary(max_size=4))
    return Sent(bytes(data))


def hostile(path: str) -> st.SearchStrategy[Sent]:
    """Requests for one call: spoilt, torn, or no protobuf at all."""
    return st.one_of(spoilt(path), spoilt(path), torn(path), st.binary(max_size=200).map(Sent))
