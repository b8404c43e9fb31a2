"""The same topics and subscriptions, reached in three ways: in this process, over gRPC, over REST.

A driver turns the few verbs of the suite into calls of its API, and the API's words back into the suite's. It decides
nothing: what a test expects must hold whichever driver runs it.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import grpc
from google.protobuf import json_format

from penstock import Broker, DeadLetterPolicy, Message, MessageQueue, RetryPolicy, SubscriptionOptions
from penstock.errors import PenstockError
from penstock.google import messages
from penstock.journal.journal import Journal
from penstock.testing import ManualClock
from penstock.testing.server import LocalServer


@dataclass(frozen=True)
class Given:
    """A message to publish."""

    data: bytes
    attributes: dict[str, str] = field(default_factory=dict)
    key: str = ""


@dataclass(frozen=True)
class Got:
    """A delivery."""

    message_id: str
    data: bytes
    attributes: dict[str, str]
    key: str
    ack_id: str


class Refused(Exception):
    """An API's error, by gRPC's number."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Topics(Protocol):
    """What the suite does."""

    clock: ManualClock

    def create_topic(self, topic: str) -> None: ...
    def delete_topic(self, topic: str) -> None: ...
    def subscribe(self, subscription: str, topic: str, **options: Any) -> None: ...
    def unsubscribe(self, subscription: str) -> None: ...
    def publish(self, topic: str, *given: Given) -> list[str]: ...
    def pull(self, subscription: str, most: int = 100) -> list[Got]: ...
    def ack(self, subscription: str, *ack_ids: str) -> None: ...
    def nack(self, subscription: str, *ack_ids: str) -> None: ...
    def extend(self, subscription: str, ack_id: str, seconds: int) -> None: ...
    def snapshot(self, name: str, subscription: str) -> None: ...
    def seek(self, subscription: str, *, time: float | None = None, snapshot: str | None = None) -> None: ...


@contextmanager
def _penstock_errors() -> Iterator[None]:
    try:
        yield
    except PenstockError as error:
        raise Refused(error.code) from error


class Embedded:
    """A `MessageQueue` in this process."""

    def __init__(self, clock: ManualClock, journal: Journal | None) -> None:
        self.clock = clock
        self._broker = Broker(clock=clock, journal=journal)
        self._queue = MessageQueue(broker=self._broker)
        self.close = self._broker.close

    def create_topic(self, topic: str) -> None:
        with _penstock_errors():
            self._queue.register_topic(topic)

    def delete_topic(self, topic: str) -> None:
        with _penstock_errors():
            self._queue.unregister_topic(topic)

    def subscribe(
        self,
        subscription: str,
        topic: str,
        *,
        ack_deadline: int = 10,
        ordered: bool = False,
        backoff: tuple[int, int] | None = None,
        dead: tuple[str, int] | None = None,
        keep: bool = False,
        filter: str = "",  # noqa: A002  # the API's own word
    ) -> None:
        with _penstock_errors():
            options = SubscriptionOptions(
                ack_deadline_seconds=ack_deadline,
                message_ordering=ordered,
                retry_policy=RetryPolicy(*backoff) if backoff else None,
                dead_letter_policy=DeadLetterPolicy(*dead) if dead else None,
                retain_acked_messages=keep,
                filter=filter,
                overflow="spill",
            )
            self._queue.register_subscription(subscription, topic, options)

    def unsubscribe(self, subscription: str) -> None:
        with _penstock_errors():
            self._queue.unregister_subscription(subscription)

    def publish(self, topic: str, *given: Given) -> list[str]:
        with _penstock_errors():
            return self._queue.publish(topic, [Message(one.data, one.attributes, one.key) for one in given])

    def pull(self, subscription: str, most: int = 100) -> list[Got]:
        with _penstock_errors():
            pulled = self._queue.pull(subscription, most)
        return [Got(one.id, one.data, one.attributes, one.ordering_key or "", one.ack_id) for one in pulled]

    def ack(self, subscription: str, *ack_ids: str) -> None:
        self._queue.ack_many(ack_ids)

    def nack(self, subscription: str, *ack_ids: str) -> None:
        self._queue.nack_many(ack_ids)

    def extend(self, subscription: str, ack_id: str, seconds: int) -> None:
        self._queue.set_ack_deadline(ack_id, seconds)

    def snapshot(self, name: str, subscription: str) -> None:
        with _penstock_errors():
            self._queue.create_snapshot(name, subscription)

    def seek(self, subscription: str, *, time: float | None = None, snapshot: str | None = None) -> None:
        with _penstock_errors():
            self._queue.seek(subscription, time=time, snapshot=snapshot)


class _Google:
    """Google's API; how a call is made is the subclass's."""

    def __init__(self, clock: ManualClock, server: LocalServer, project: str = "penstock") -> None:
        self.clock = clock
        self.server = server
        self._project = f"projects/{project}"
        self._stack = ExitStack()
        self.close = self._stack.close

    def call(self, method: str, request: Any) -> Any:
        raise NotImplementedError

    def _topic(self, name: str) -> str:
        return f"{self._project}/topics/{name}"

    def _subscription(self, name: str) -> str:
        return f"{self._project}/subscriptions/{name}"

    def create_topic(self, topic: str) -> None:
        self.call("Publisher/CreateTopic", messages.Topic(name=self._topic(topic)))

    def delete_topic(self, topic: str) -> None:
        self.call("Publisher/DeleteTopic", messages.DeleteTopicRequest(topic=self._topic(topic)))

    def subscribe(
        self,
        subscription: str,
        topic: str,
        *,
        ack_deadline: int = 10,
        ordered: bool = False,
        backoff: tuple[int, int] | None = None,
        dead: tuple[str, int] | None = None,
        keep: bool = False,
        exactly_once: bool = False,
        filter: str = "",  # noqa: A002  # the API's own word
    ) -> None:
        request = messages.Subscription(
            name=self._subscription(subscription),
            topic=self._topic(topic),
            ack_deadline_seconds=ack_deadline,
            enable_message_ordering=ordered,
            retain_acked_messages=keep,
            enable_exactly_once_delivery=exactly_once,
            filter=filter,
        )
        if backoff is not None:
            request.retry_policy.minimum_backoff.FromSeconds(backoff[0])
            request.retry_policy.maximum_backoff.FromSeconds(backoff[1])
        if dead is not None:
            request.dead_letter_policy.dead_letter_topic = self._topic(dead[0])
            request.dead_letter_policy.max_delivery_attempts = dead[1]
        self.call("Subscriber/CreateSubscription", request)

    def unsubscribe(self, subscription: str) -> None:
        request = messages.DeleteSubscriptionRequest(subscription=self._subscription(subscription))
        self.call("Subscriber/DeleteSubscription", request)

    def publish(self, topic: str, *given: Given) -> list[str]:
        request = messages.PublishRequest(topic=self._topic(topic))
        for one in given:
            request.messages.add(data=one.data, attributes=one.attributes, ordering_key=one.key)
        return list(self.call("Publisher/Publish", request).message_ids)

    def pull(self, subscription: str, most: int = 100) -> list[Got]:
        request = messages.PullRequest(subscription=self._subscription(subscription), max_messages=most, return_immediately=True)
        return [
            Got(
                one.message.message_id,
                one.message.data,
                dict(one.message.attributes),
                one.message.ordering_key,
                one.ack_id,
            )
            for one in self.call("Subscriber/Pull", request).received_messages
        ]

    def ack(self, subscription: str, *ack_ids: str) -> None:
        request = messages.AcknowledgeRequest(subscription=self._subscription(subscription), ack_ids=ack_ids)
        self.call("Subscriber/Acknowledge", request)

    def nack(self, subscription: str, *ack_ids: str) -> None:
        for ack_id in ack_ids:
            self.extend(subscription, ack_id, 0)

    def extend(self, subscription: str, ack_id: str, seconds: int) -> None:
        request = messages.ModifyAckDeadlineRequest(
            subscription=self._subscription(subscription), ack_ids=[ack_id], ack_deadline_seconds=seconds
        )
        self.call("Subscriber/ModifyAckDeadline", request)

    def snapshot(self, name: str, subscription: str) -> None:
        request = messages.CreateSnapshotRequest(
            name=f"{self._project}/snapshots/{name}", subscription=self._subscription(subscription)
        )
        self.call("Subscriber/CreateSnapshot", request)

    def seek(self, subscription: str, *, time: float | None = None, snapshot: str | None = None) -> None:
        request = messages.SeekRequest(subscription=self._subscription(subscription))
        if time is not None:
            request.time.FromMicroseconds(round(time * 1_000_000))
        else:
            request.snapshot = f"{self._project}/snapshots/{snapshot}"
        self.call("Subscriber/Seek", request)


class Grpc(_Google):
    """Over gRPC."""

    def __init__(self, clock: ManualClock, server: LocalServer, project: str = "penstock") -> None:
        super().__init__(clock, server, project)
        self._channel = self._stack.enter_context(grpc.insecure_channel(self.server.grpc))

    def call(self, method: str, request: Any) -> Any:
        path = f"/google.pubsub.v1.{method}"
        try:
            answer = self._channel.unary_unary(path)(request.SerializeToString(), timeout=20)
        except grpc.RpcError as error:
            raise Refused(error.code().value[0]) from error
        return messages.METHODS[path].response.FromString(answer)


_CODES = {status.name: status.value[0] for status in grpc.StatusCode}


class Rest(_Google):
    """Over HTTP, as JSON."""

    def call(self, method: str, request: Any) -> Any:
        found = messages.METHODS[f"/google.pubsub.v1.{method}"]
        binding = found.bindings[0]
        before, name, after = binding.path.partition("{")[0], *binding.path.partition("{")[2].split("}", 1)
        body = json_format.MessageToDict(request)
        resource = getattr(request, name.partition("=")[0])
        data = json.dumps(body).encode() if binding.body else None
        call = urllib.request.Request(
            f"{self.server.url}{before}{resource}{after}", data, {"Content-Type": "application/json"}, method=binding.verb
        )
        try:
            with urllib.request.urlopen(call, timeout=20) as answer:
                return json_format.Parse(answer.read(), found.response())
        except urllib.error.HTTPError as error:
            with error:
                raise Refused(_CODES[json.loads(error.read())["error"]["status"]]) from error
