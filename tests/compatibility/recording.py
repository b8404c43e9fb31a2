"""Conversations with a server of whichever version is on the path, and a data directory that it writes: what tests replay.

`scripts/record_compatibility.py` runs this program with the modules of a checkout. Requests are made here, of plain bytes; only
the server is the checkout's. Its clock stands still.
"""

from __future__ import annotations

import base64
import io
import json
import lzma
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from google.iam.v1 import iam_policy_pb2, policy_pb2
from google.protobuf import duration_pb2
from google.pubsub_v1.types import pubsub, schema

from penstock.testing import ManualClock
from penstock.testing.server import LocalServer
from tests.compatibility.channels import CHANNELS, IAM, PUBLISHER, SCHEMAS, SUBSCRIBER, pack
from tests.compatibility.conversation import RECORDED, Step, Talk, dump

HISTORY = ("chat",)
PROJECT = "projects/penstock"


class Recorder:
    """Says requests and keeps them with their replies."""

    def __init__(self, talk: Talk) -> None:
        self._talk = talk
        self.steps: list[Step] = []

    def say(self, connection: str, request: bytes, replies: int = 1) -> list[Any]:
        """Returns the replies as they can be read."""
        found = self._talk.exchange(connection, request, replies)
        self.steps.append(Step(connection, request, tuple(found)))
        return [CHANNELS[connection.partition(":")[0]].read(reply, request) for reply in found]

    def native(self, *items: Any, replies: int = 1, on: str = "native") -> Any:
        """A frame of the native protocol or of SynapRPC; returns the first reply."""
        body = pack(items)
        return next(iter(self.say(on, len(body).to_bytes(4, "little") + body, replies)), None)

    def call(self, operation: str, **arguments: Any) -> Any:
        """An operation of the native protocol; returns its result."""
        reply = self.native(1, len(self.steps) + 1, operation, arguments)
        return reply[2] if reply[0] == 0 else reply

    def grpc(self, path: str, message: Any, replies: int = 1) -> Any:
        """A call of gRPC; returns status and fields."""
        data = type(message).serialize(message) if hasattr(type(message), "serialize") else message.SerializeToString()
        return self.say("grpc", path.encode() + b"\n" + data, replies)[0]

    def http(self, head: str, body: Any = None) -> Any:
        """A request with a JSON body; returns status and values."""
        return self.say("http", f"{head}\n{'' if body is None else json.dumps(body)}".encode())[0]

    def hub(self, kind: str, payload: Any, replies: int = 1, on: str = "hub:ann") -> list[Any]:
        """A request to the hub; returns its replies."""
        text = json.dumps({"type": kind, "id": f"r{len(self.steps)}", "payload": payload})
        return self.say(on, text.encode(), replies)

    def resp(self, *words: str) -> Any:
        """A command of RESP3."""
        parts = [f"${len(word.encode())}\r\n{word}\r\n" for word in words]
        return self.say("resp3", f"*{len(parts)}\r\n{''.join(parts)}".encode())[0]

    def rpc(self, command: str, *arguments: Any) -> Any:
        """A command of SynapRPC."""
        names = {str: "Str", bytes: "Bytes", int: "Int", float: "Float", bool: "Bool"}
        tagged = [{names[type(each)]: each} for each in arguments]
        return self.native(len(self.steps) + 1, command, tagged, on="synap_rpc")


def record(commit: str) -> None:
    """Record with the modules that are on the path."""
    RECORDED.mkdir(exist_ok=True)

    def conversation(name: str, hold: Callable[[Recorder], None]) -> None:
        with (
            LocalServer(clock=ManualClock(), resp_port=0, rpc_port=0, hub_history=HISTORY) as server,
            Talk(server.server) as talk,
        ):
            recorder = Recorder(talk)
            hold(recorder)
        text = dump(recorder.steps, commit)
        (RECORDED / f"{name}.json").write_text(text, encoding="utf-8")
        sys.stdout.write(f"  {name}: {len(recorder.steps)} requests, {len(text):,} bytes\n")

    for name, hold in CONVERSATIONS.items():
        conversation(name, hold)

    with tempfile.TemporaryDirectory() as place:
        written, copy = Path(place) / "written", Path(place) / "copy"
        clock = ManualClock()
        notes: dict[str, Any] = {}
        for fill in (fill_directory, go_on):
            settings: Any = {"data_dir": written, "clock": clock, "hub_history": HISTORY}
            with LocalServer(**settings) as server, Talk(server.server) as talk:
                notes = fill(Recorder(talk), clock)
                server.broker.sync()
                # What a kill would leave: the server still runs.
                shutil.rmtree(copy, ignore_errors=True)
                shutil.copytree(written, copy)
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            tar.add(copy, arcname="data", filter=_anonymous)
        packed = base64.encodebytes(lzma.compress(archive.getvalue(), preset=9)).decode()
        (RECORDED / "directory.txt").write_text(packed)
        with LocalServer(data_dir=copy, clock=clock, hub_history=HISTORY) as server, Talk(server.server) as talk:
            recorder = Recorder(talk)
            ask_directory(recorder, notes)
    text = dump(recorder.steps, commit)
    (RECORDED / "directory.json").write_text(text, encoding="utf-8")
    notes |= {"commit": commit, "seconds": (clock.time - ManualClock().time).total_seconds()}
    (RECORDED / "notes.json").write_text(json.dumps(notes, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    sys.stdout.write(f"  directory: {len(recorder.steps)} questions, {len(packed) + len(text):,} bytes\n")


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


# ── the conversations ────────────────────────────────────────────────────────────────────────────────────────────────────

LIMITS = [10, 1_000_000, 30.0]


def receipt(parcel: list[Any]) -> int:
    """The number by which a delivery is settled."""
    offset, attempt, epoch = map(int, parcel[:3])
    return (epoch % 4096) << 52 | (attempt % 4096) << 40 | offset


def native(say: Any) -> None:
    """Every kind of frame, and the operations a client uses most."""
    say.native(0, 1, 1, None, None, "recorder")
    say.native(8, 2)
    say.call("create_topic", topic="orders")
    say.call("create_topic", topic="orders-dead", retention=3600)
    say.call("create_subscription", subscription="dead", topic="orders-dead", options={})
    options = {
        "ack_deadline_seconds": 20,
        "filter": 'attributes.region = "eu"',
        "message_ordering": True,
        "dead_letter_policy": {"dead_letter_topic": "orders-dead", "max_delivery_attempts": 5},
        "retry_policy": {"minimum_backoff": 0, "maximum_backoff": 0},
    }
    say.call("create_subscription", subscription="billing", topic="orders", options=options)
    say.call("create_subscription", subscription="audit", topic="orders", options={"exactly_once": True})
    messages = [[b"one", {"region": "eu"}, "a"], [b"two", {"region": "us"}, "a", 7], [b"three", {"region": "eu"}, "a"]]
    say.native(2, 100, "orders", messages, ["producer-1", 1])
    say.native(2, 101, "orders", messages, ["producer-1", 1])  # a repeat: the same ids
    say.native(2, 102, "missing", [[b"x"]])
    say.native(2, 103, "orders", [[b""]])
    opened = say.say("native", _frame(4, 110, 1, 0, "billing", "consumer-1", LIMITS), 2)
    [one] = next(each for each in opened if each[0] == 2)[2]
    after = say.say("native", _frame(5, 111, 1, [receipt(one)]), 2)
    [three] = next(each for each in after if each[0] == 2)[2]
    say.native(5, 112, 1, [], [[receipt(three), False, "broken", None, False]])
    say.native(6, 1, [5, 1_000_000, 30.0, False, True], replies=0)
    say.native(5, 113, 1, [receipt(one)])  # not held any more
    say.native(7, 1)
    say.call("subscription_stats", subscription="billing")
    pulled = say.call("pull", subscription="audit", max_messages=2)
    ack_ids = _ack_ids(pulled)
    say.call("modify_ack_deadline", subscription="audit", ack_ids=ack_ids, seconds=60)
    say.call("acknowledge", subscription="audit", ack_ids=[*ack_ids[:1], "nonsense"])
    say.call("peek", subscription="audit", max_messages=3)
    say.call("explain_backlog", subscription="audit")
    say.call("create_snapshot", snapshot="now", subscription="audit")
    say.call("list_snapshots")
    say.call("seek", subscription="audit", snapshot="now")
    say.call("pause_subscription", subscription="audit")
    say.call("get_subscription", subscription="audit")
    say.call("resume_subscription", subscription="audit")
    for operation in ("list_topics", "list_subscriptions", "list_queues", "list_schemas"):
        say.call(operation)
    say.call("create_schema", schema="order", kind="AVRO", definition=AVRO)
    say.call("validate_message", schema="order", data=b'{"id": 1}', encoding="JSON")
    say.call("validate_message", schema="order", data=b'{"id": "x"}', encoding="JSON")
    say.call("create_topic", topic="typed", schema="order")
    say.native(2, 120, "typed", [[b'{"id": 1}']])
    say.native(2, 121, "typed", [[b"no order"]])
    say.call("create_queue", queue="tasks", config={"max_retries": 1, "ack_deadline_secs": 60, "default_priority": 4})
    tasks: list[list[Any]] = [
        [b"bytes", 9],
        ["text"],
        [{"json": [1, None]}, 1, 3600, {"source": "web"}],
        ["later", 5, None, {}, 3, 60],
    ]
    ids = say.native(3, 130, "tasks", tasks)[2]
    say.call("consume", queue="tasks", consumer="w", max_messages=2)
    say.call("extend_message", queue="tasks", message_id=ids[0], seconds=90, consumer="w")
    say.call("ack_messages", queue="tasks", message_ids=[ids[0]], consumer="w")
    say.call("nack_messages", queue="tasks", message_ids=[ids[1]], requeue=False, error="no good")
    say.call("nack_messages", queue="tasks", message_ids=[ids[0]])
    say.call("dead_letter_ids", queue="tasks")
    say.call("dead_letters", queue="tasks", message_ids=[ids[1]])
    say.call("peek_queue", queue="tasks")
    say.call("queue_stats", queue="tasks")
    say.call("get_queue", queue="tasks")
    say.call("explain_queue", queue="tasks")
    say.call("retry_dead_letter", queue="tasks", message_id=ids[1])
    say.call("trace", message_id=ids[1])
    streamed = say.say("native", _frame(4, 140, 2, 1, "tasks", "consumer-2", LIMITS), 2)
    parcels = next(each for each in streamed if each[0] == 2)[2]
    say.native(5, 141, 2, [], [], [[[receipt(parcels[0])], 120.0]], [receipt(parcels[0])])
    say.native(5, 142, 2, [receipt(each) for each in parcels])
    say.native(7, 2)
    say.call("purge_queue", queue="tasks")
    say.call("delete_queue", queue="tasks")
    say.call("get_queue", queue="tasks")
    say.call("no_such_operation")
    say.call("create_topic", topic="a b")
    say.call("create_topic", name="orders")
    say.call("delete_subscription", subscription="billing")
    say.call("delete_topic", topic="orders")
    say.call("overview")


AVRO = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}'


def _frame(*items: Any) -> bytes:

    body = pack(items)
    return len(body).to_bytes(4, "little") + body


def _ack_ids(pulled: Any) -> list[str]:
    """The ids by which the deliveries of a pull are acknowledged: queue, epoch, attempt and offset."""
    queue = pulled["opened"]["queue"]
    return [f"{queue:06x}{epoch:08x}{attempt:08x}{offset:010x}" for offset, attempt, epoch, *_ in pulled["parcels"]]


def resp3(say: Any) -> None:
    """Every command of RESP3 that concerns queues and topics."""
    say.resp("PING")
    say.resp("HELLO", "3")
    _commands(say.resp, str)


def synap_rpc(say: Any) -> None:
    """The same commands over SynapRPC."""
    say.rpc("PING")
    say.rpc("HELLO", 1)
    _commands(say.rpc, lambda value: value)


def _commands(say: Callable[..., Any], as_sent: Callable[[Any], Any]) -> None:
    say("QCREATE", "tasks", as_sent(100), as_sent(30), "MAX_RETRIES", as_sent(1))
    for number in range(3):
        say("QPUBLISH", "tasks", f"payload-{number}", as_sent(number))
    say("QPUBLISH", "missing", "x")
    say("QPUBLISH", "tasks", "x", as_sent(77))
    for verb in (["QACK"], ["QNACK"]):
        taken = say("QCONSUME", "tasks", "w")
        [message_id] = [each for each in _texts(taken) if len(each) == 30]
        say("QEXTEND", "tasks", message_id, as_sent(60))
        say(*verb, "tasks", message_id)
    say("QACK", "tasks", "0" * 30)
    say("QSTATS", "tasks")
    say("QLIST")
    say("QPURGE", "tasks")
    say("QCONSUME", "tasks", "w")
    say("SCREATE", "room")
    say("SPUBLISH", "room", "greeting", '"hello"')
    say("SREAD", "room", as_sent(0), as_sent(10))
    say("SSTATS", "room")
    say("SLIST")
    say("PUBLISH", "room", '"hello"')
    say("TOPICS")
    say("SDELETE", "room")
    say("QDELETE", "tasks")
    say("NOSUCH", "thing")
    say("QPUBLISH")


def _texts(value: Any) -> list[str]:
    match value:
        case str():
            return [value]
        case bytes():
            return [value.decode(errors="replace")]
        case dict():
            return [text for each in value.values() for text in _texts(each)]
        case list():
            return [text for each in value for text in _texts(each)]
    return []


def grpc(say: Any) -> None:
    """The calls of google.pubsub.v1 that its clients make."""
    topic, subscription = f"{PROJECT}/topics/orders", f"{PROJECT}/subscriptions/billing"
    say.grpc(PUBLISHER + "CreateTopic", pubsub.Topic(name=topic, labels={"team": "shop"}))
    say.grpc(PUBLISHER + "CreateTopic", pubsub.Topic(name=topic))
    say.grpc(PUBLISHER + "CreateTopic", pubsub.Topic(name="nonsense"))
    say.grpc(
        PUBLISHER + "CreateTopic",
        pubsub.Topic(name=f"{topic}-dead", message_retention_duration=duration_pb2.Duration(seconds=3600)),
    )
    say.grpc(
        SUBSCRIBER + "CreateSubscription",
        pubsub.Subscription(
            name=subscription,
            topic=topic,
            ack_deadline_seconds=30,
            filter='attributes.region = "eu"',
            enable_message_ordering=True,
            dead_letter_policy=pubsub.DeadLetterPolicy(dead_letter_topic=f"{topic}-dead", max_delivery_attempts=7),
            retry_policy=pubsub.RetryPolicy(
                minimum_backoff=duration_pb2.Duration(seconds=0), maximum_backoff=duration_pb2.Duration(seconds=0)
            ),
            labels={"a": "b"},
        ),
    )
    say.grpc(SUBSCRIBER + "CreateSubscription", pubsub.Subscription(name=f"{PROJECT}/subscriptions/x", topic=f"{topic}-missing"))
    messages = [
        pubsub.PubsubMessage(data=b"one", attributes={"region": "eu"}, ordering_key="k"),
        pubsub.PubsubMessage(data=b"two", attributes={"region": "us"}, ordering_key="k"),
        pubsub.PubsubMessage(data=b"three", attributes={"region": "eu"}, ordering_key="k"),
    ]
    say.grpc(PUBLISHER + "Publish", pubsub.PublishRequest(topic=topic, messages=messages))
    say.grpc(PUBLISHER + "Publish", pubsub.PublishRequest(topic=f"{topic}-missing", messages=messages))
    say.grpc(PUBLISHER + "Publish", pubsub.PublishRequest(topic=topic, messages=[pubsub.PubsubMessage()]))
    _, pulled = say.grpc(SUBSCRIBER + "Pull", pubsub.PullRequest(subscription=subscription, max_messages=10))
    ids = [each["ackId"] for each in pulled["receivedMessages"]]
    say.grpc(
        SUBSCRIBER + "ModifyAckDeadline",
        pubsub.ModifyAckDeadlineRequest(subscription=subscription, ack_ids=ids[:1], ack_deadline_seconds=60),
    )
    say.grpc(SUBSCRIBER + "Acknowledge", pubsub.AcknowledgeRequest(subscription=subscription, ack_ids=ids[:1]))
    say.grpc(SUBSCRIBER + "Acknowledge", pubsub.AcknowledgeRequest(subscription=subscription, ack_ids=["nonsense"]))
    say.grpc(
        SUBSCRIBER + "CreateSnapshot", pubsub.CreateSnapshotRequest(name=f"{PROJECT}/snapshots/now", subscription=subscription)
    )
    say.grpc(SUBSCRIBER + "GetSnapshot", pubsub.GetSnapshotRequest(snapshot=f"{PROJECT}/snapshots/now"))
    say.grpc(SUBSCRIBER + "Seek", pubsub.SeekRequest(subscription=subscription, snapshot=f"{PROJECT}/snapshots/now"))
    say.grpc(
        SUBSCRIBER + "CreateSubscription",
        pubsub.Subscription(name=f"{PROJECT}/subscriptions/audit", topic=topic, enable_exactly_once_delivery=True),
    )
    say.grpc(PUBLISHER + "Publish", pubsub.PublishRequest(topic=topic, messages=messages))
    say.grpc(
        SUBSCRIBER + "StreamingPull",
        pubsub.StreamingPullRequest(subscription=f"{PROJECT}/subscriptions/audit", stream_ack_deadline_seconds=60, client_id="c"),
        replies=2,
    )
    for path, message in (
        (PUBLISHER + "GetTopic", pubsub.GetTopicRequest(topic=topic)),
        (PUBLISHER + "ListTopics", pubsub.ListTopicsRequest(project=PROJECT)),
        (PUBLISHER + "ListTopicSubscriptions", pubsub.ListTopicSubscriptionsRequest(topic=topic)),
        (SUBSCRIBER + "GetSubscription", pubsub.GetSubscriptionRequest(subscription=subscription)),
        (SUBSCRIBER + "ListSubscriptions", pubsub.ListSubscriptionsRequest(project=PROJECT)),
        (SUBSCRIBER + "ListSnapshots", pubsub.ListSnapshotsRequest(project=PROJECT)),
    ):
        say.grpc(path, message)
    avro = schema.Schema(type_=schema.Schema.Type.AVRO, definition=AVRO)
    say.grpc(SCHEMAS + "CreateSchema", schema.CreateSchemaRequest(parent=PROJECT, schema_id="order", schema=avro))
    say.grpc(SCHEMAS + "GetSchema", schema.GetSchemaRequest(name=f"{PROJECT}/schemas/order"))
    for data in (b'{"id": 1}', b'{"id": "x"}'):
        named = schema.ValidateMessageRequest(parent=PROJECT, name=f"{PROJECT}/schemas/order", message=data, encoding="JSON")
        say.grpc(SCHEMAS + "ValidateMessage", named)
    policy = policy_pb2.Policy(bindings=[policy_pb2.Binding(role="roles/pubsub.viewer", members=["user:a@example.com"])])
    say.grpc(IAM + "SetIamPolicy", iam_policy_pb2.SetIamPolicyRequest(resource=topic, policy=policy))
    say.grpc(IAM + "GetIamPolicy", iam_policy_pb2.GetIamPolicyRequest(resource=topic))
    say.grpc(
        IAM + "TestIamPermissions",
        iam_policy_pb2.TestIamPermissionsRequest(resource=topic, permissions=["pubsub.topics.publish"]),
    )
    say.grpc(PUBLISHER + "DeleteTopic", pubsub.DeleteTopicRequest(topic=topic))
    say.grpc(SUBSCRIBER + "GetSubscription", pubsub.GetSubscriptionRequest(subscription=subscription))


def hub(say: Any) -> None:
    """Three actors and an anonymous one: plain topics, a topic with a log, direct messages, and what is refused."""
    say.hub("hub:publish", {"topic": "Bad Topic", "type": "x", "data": 1}, on="hub:nobody")
    for actor in ("ann", "bob", "carol"):
        say.hub("hub:connect", {"version": "1.0"}, on=f"hub:{actor}")
        address = {"actorAddress": f"@(service/{actor})", "capabilities": ["chat"], "metadata": {"floor": 1}}
        say.hub("hub:register", address, on=f"hub:{actor}")
    say.hub("hub:connect", {"version": "9.0"}, on="hub:other")
    say.hub("hub:subscribe", {"topic": "orders/+"})
    say.hub("hub:publish", {"topic": "orders/eu", "type": "order:placed", "data": {"id": 1}}, 1, on="hub:bob")
    say.hub("hub:heartbeat", {"timestamp": 1}, 2)  # the forwarded message comes first
    say.hub("hub:subscribe", {"topic": "chat/lobby", "presence": True})
    say.hub("hub:subscribe", {"topic": "chat/lobby", "durable": True}, on="hub:bob")
    said = {"topic": "chat/lobby", "type": "said", "data": {"text": "hello"}}
    say.hub("hub:publish", said, 1, on="hub:carol")
    forwarded = say.hub("hub:heartbeat", {"timestamp": 2}, 2, on="hub:bob")
    ack_ids = [each["metadata"]["ackId"] for each in forwarded if "metadata" in each]
    say.hub("hub:ack", {"ackIds": ack_ids}, on="hub:bob")
    say.hub("hub:send", {"to": "@(service/ann)", "type": "note", "data": "psst"}, on="hub:bob")
    say.hub("hub:heartbeat", {"timestamp": 3}, 4)  # bob has joined the lobby, what carol said, the note
    say.hub("hub:send", {"to": "@(service/nobody)", "type": "note", "data": "psst"}, on="hub:bob")
    for kind, payload in (
        ("hub:topic_info", {"topic": "orders/eu"}),
        ("hub:list_topics", {}),
        ("hub:presence", {"topic": "orders/eu"}),
        ("hub:discover", {"pattern": "ann", "capabilities": ["chat"]}),
        ("hub:list_actors", {}),
        ("hub:pause", {}),
        ("hub:resume", {}),
        ("hub:queue_stats", {}),
        ("hub:no_such_thing", {}),
        ("hub:subscribe", {}),
    ):
        say.hub(kind, payload, on="hub:bob")
    say.hub("hub:unsubscribe", {"topic": "chat/lobby"}, on="hub:bob")
    say.hub("hub:disconnect", {"reason": "done"}, on="hub:bob")


def http(say: Any) -> None:
    """Queue commands, Pub/Sub over REST, and the log's cursors."""

    def command(name: str, **payload: Any) -> Any:
        return say.http("POST /api/v1/command", {"command": name, "request_id": "1", "payload": payload})[1]["payload"]

    command("queue.create", queue="tasks", max_retries=0)
    first = command("queue.publish", queue="tasks", message={"a": 1}, priority=7, headers={"h": "v"})["message_id"]
    command("queue.publish_batch", queue="tasks", messages=[{"message": "b"}, {"payload": [1, 2]}])
    command("queue.consume", queue="tasks")
    command("queue.nack", queue="tasks", message_id=first, error="bad")
    command("dlq.list", queue="tasks")
    command("dlq.retry", queue="tasks", message_id=first)
    command("queue.consume", queue="tasks", consumer_id="w")
    command("queue.ack", queue="tasks", message_id=first)
    command("queue.stats", queue="tasks")
    command("queue.config", queue="tasks")
    command("queue.list")
    command("queue.consume", queue="missing")
    command("queue.nosuch")
    command("queue.publish", queue="tasks")
    say.http(f"PUT /v1/{PROJECT}/topics/orders", {})
    say.http(f"PUT /v1/{PROJECT}/subscriptions/audit", {"topic": f"{PROJECT}/topics/orders", "ackDeadlineSeconds": 30})
    say.http(f"POST /v1/{PROJECT}/topics/orders:publish", {"messages": [{"data": "b25l", "attributes": {"a": "b"}}]})
    _, pulled = say.http(f"POST /v1/{PROJECT}/subscriptions/audit:pull", {"maxMessages": 10})
    ids = [each["ackId"] for each in pulled["receivedMessages"]]
    say.http(f"POST /v1/{PROJECT}/subscriptions/audit:acknowledge", {"ackIds": ids})
    say.http(f"GET /v1/{PROJECT}/subscriptions/audit")
    say.http(f"GET /v1/{PROJECT}/topics/missing")
    say.http("PUT /log/cursors/nightly", {"offsets": {"orders": 1}, "holds": True})
    say.http("GET /log/cursors")
    say.http("GET /log/streams?name=orders")
    say.http("POST /log/offsets", {"times": {"orders": 0}})


CONVERSATIONS: dict[str, Callable[[Any], None]] = {
    "native": native,
    "resp3": resp3,
    "synap_rpc": synap_rpc,
    "grpc": grpc,
    "hub": hub,
    "http": http,
}


# ── the data directory ───────────────────────────────────────────────────────────────────────────────────────────────────


def fill_directory(say: Any, clock: Any) -> dict[str, Any]:
    """What the first life of the server stores; it ends cleanly, so that there is a checkpoint."""
    say.native(0, 1, 1, None, None, "recorder")
    for topic in ("orders", "orders-dead", "unread"):
        say.call("create_topic", topic=topic)
    options: dict[str, dict[str, Any]] = {
        "audit": {"ack_deadline_seconds": 600},
        "europe": {"filter": 'attributes.region = "eu"', "ack_deadline_seconds": 60},
        "ordered": {"message_ordering": True, "ack_deadline_seconds": 600},
        "once": {"exactly_once": True, "ack_deadline_seconds": 600},
        "failing": {
            "dead_letter_policy": {"dead_letter_topic": "orders-dead", "max_delivery_attempts": 5},
            "retry_policy": {"minimum_backoff": 0, "maximum_backoff": 0},
        },
        "paused": {"max_messages": 3, "overflow": "discard", "retain_acked_messages": False},
    }
    for name, each in options.items():
        say.call("create_subscription", subscription=name, topic="orders", options=each)
    say.call("create_subscription", subscription="dead", topic="orders-dead", options={})
    say.call("pause_subscription", subscription="paused")
    say.call("create_schema", schema="order", kind="AVRO", definition=AVRO)
    say.call("create_topic", topic="typed", schema="order")
    say.native(2, 1, "typed", [[b'{"id": 1}']])
    ids = []
    for number in range(8):
        clock.advance(1)
        region = "eu" if number % 2 else "us"
        message = [f"order {number}".encode(), {"region": region, "n": str(number)}, f"key-{number % 2}", number]
        ids += say.native(2, 1, "orders", [message], ["shop", number])[2]
    say.grpc(PUBLISHER + "CreateTopic", pubsub.Topic(name=f"{PROJECT}/topics/labelled", labels={"team": "shop"}))
    policy = policy_pb2.Policy(bindings=[policy_pb2.Binding(role="roles/pubsub.viewer", members=["user:a@example.com"])])
    say.grpc(IAM + "SetIamPolicy", iam_policy_pb2.SetIamPolicyRequest(resource=f"{PROJECT}/topics/orders", policy=policy))
    say.call("create_queue", queue="tasks", config={"max_retries": 1, "ack_deadline_secs": 600, "default_priority": 4})
    say.call("create_queue", queue="small", config={"max_depth": 2, "overflow": "reject", "message_ttl": 3600})
    tasks: list[list[Any]] = [
        ["first", 9],
        [b"\x00\xff", 8],
        [{"json": [1, None]}, 7, None, {"source": "web"}],
        ["held", 6],
        ["waits"],
    ]
    tasks += [["later", 5, None, {}, 3, 86_400]]
    task_ids = say.native(3, 1, "tasks", tasks)[2]
    say.http("PUT /log/cursors/nightly", {"offsets": {"orders": 3}, "holds": True})
    say.http("PUT /log/cursors/dashboard", {"offsets": {"orders": 1}})
    return {"orders": ids, "tasks": task_ids}


def go_on(say: Any, clock: Any) -> dict[str, Any]:
    """What the second life adds; it does not end, so that the last events are only in the event log."""
    say.native(0, 1, 1, None, None, "recorder")
    notes: dict[str, Any] = {}
    audit = _pull(say, "audit", 5)
    say.call("acknowledge", subscription="audit", ack_ids=audit[:2])
    say.call("create_snapshot", snapshot="before-deploy", subscription="audit")
    say.call("acknowledge", subscription="audit", ack_ids=audit[2:3])
    notes["audit held"] = audit[3:]
    notes["ordered held"] = _pull(say, "ordered", 10)
    notes["once held"] = _pull(say, "once", 2)
    for _ in range(5):
        failing = _pull(say, "failing", 2)
        say.call("modify_ack_deadline", subscription="failing", ack_ids=failing, seconds=0)
        clock.advance(1)
    europe = _pull(say, "europe", 3)
    say.call("acknowledge", subscription="europe", ack_ids=europe[:1])
    clock.advance(120)  # the leases of `europe` end
    taken = say.call("consume", queue="tasks", consumer="w", max_messages=4)
    ids = [each["message_id"] for each in taken]
    say.call("ack_messages", queue="tasks", message_ids=ids[:1], consumer="w")
    say.call("nack_messages", queue="tasks", message_ids=ids[1:2], requeue=False, error="no good", consumer="w")
    say.call("nack_messages", queue="tasks", message_ids=ids[2:3], error="try again", consumer="w")
    notes["tasks held"] = ids[3:4]
    for actor in ("ann", "bob"):
        say.hub("hub:connect", {"version": "1.0"}, on=f"hub:{actor}")
        say.hub("hub:register", {"actorAddress": f"@(service/{actor})", "capabilities": ["chat"]}, on=f"hub:{actor}")
    say.hub("hub:subscribe", {"topic": "chat/lobby", "durable": True}, on="hub:bob")
    say.hub("hub:disconnect", {}, on="hub:bob")
    for number in range(3):
        say.hub("hub:publish", {"topic": "chat/lobby", "type": "said", "data": {"number": number}})
    say.hub("hub:disconnect", {})
    return notes


def _pull(say: Any, subscription: str, count: int) -> list[Any]:
    return _ack_ids(say.call("pull", subscription=subscription, max_messages=count))


def ask_directory(say: Any, notes: dict[str, Any]) -> None:
    """Everything that can be asked about the directory; then what was outstanding is settled, and asked about again."""
    say.native(0, 1, 1, None, None, "recorder")
    for operation in ("list_topics", "list_subscriptions", "list_snapshots", "list_schemas", "list_queues", "overview"):
        say.call(operation)
    subscriptions = ["audit", "europe", "ordered", "once", "failing", "paused", "dead"]
    for subscription in subscriptions:
        for operation in ("get_subscription", "subscription_stats", "explain_backlog"):
            say.call(operation, subscription=subscription)
        say.call("peek", subscription=subscription, max_messages=10)
    for queue in ("tasks", "small"):
        for operation in ("get_queue", "queue_stats", "peek_queue", "explain_queue"):
            say.call(operation, queue=queue)
    letters = say.call("dead_letter_ids", queue="tasks")
    say.call("dead_letters", queue="tasks", message_ids=letters)
    say.call("trace", message_id=letters[0])
    say.call("get_schema", schema="order")
    for topic in ("orders", "labelled", "typed"):
        say.grpc(PUBLISHER + "GetTopic", pubsub.GetTopicRequest(topic=f"{PROJECT}/topics/{topic}"))
    say.grpc(IAM + "GetIamPolicy", iam_policy_pb2.GetIamPolicyRequest(resource=f"{PROJECT}/topics/orders"))
    say.http("GET /log/cursors")
    say.http("GET /log/streams?pattern=.*")
    say.hub("hub:connect", {"version": "1.0"}, on="hub:bob")
    say.hub("hub:register", {"actorAddress": "@(service/bob)", "capabilities": ["chat"]}, on="hub:bob")
    say.hub("hub:subscribe", {"topic": "chat/lobby", "durable": True}, 4, on="hub:bob")
    # What was outstanding when the directory was copied.
    for subscription in ("audit", "ordered", "once"):
        say.call("acknowledge", subscription=subscription, ack_ids=notes[f"{subscription} held"])
        say.call("subscription_stats", subscription=subscription)
    say.call("ack_messages", queue="tasks", message_ids=notes["tasks held"], consumer="w")
    say.call("redrive_dead_letters", queue="tasks")
    say.call("queue_stats", queue="tasks")
    say.native(2, 1, "orders", [[b"order 7", {}, "", 5]], ["shop", 7])  # a repeat of the last publish
    say.call("seek", subscription="audit", snapshot="before-deploy")
    say.call("subscription_stats", subscription="audit")
    say.call("pull", subscription="audit", max_messages=10)


if __name__ == "__main__":
    record(sys.argv[1])
