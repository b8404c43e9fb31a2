"""Google's own Python client against a Penstock server, with what tests need around it: names, short calls, waiting.

The client is the published one, unmodified: all it is told is PUBSUB_EMULATOR_HOST. Calls are made without the client's
retries, so that an error of the server is seen and not hidden behind a minute of patience.
"""

from __future__ import annotations

import itertools
import json
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Self

import grpc
import pytest
from google.cloud import pubsub_v1
from google.protobuf import field_mask_pb2
from google.pubsub_v1 import PublisherClient as PlainPublisher
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport
from google.pubsub_v1.types import StreamingPullRequest

from penstock.clock import monotonic
from penstock.testing import ManualClock

PROJECT = "test-project"
CALL_SECONDS = 30.0
PATIENCE = 30.0
"""How long a test waits for what must happen: far longer than it takes, so that a busy machine fails nothing."""

_numbers = itertools.count(1)


def unique(prefix: str = "name") -> str:
    """An id that no other test uses."""
    return f"{prefix}-{next(_numbers)}"


class Arrivals:
    """A list that one thread fills and another waits on."""

    def __init__(self) -> None:
        self._bell = threading.Condition()
        self._items: list[Any] = []

    def add(self, item: Any) -> None:
        """Put something in."""
        with self._bell:
            self._items.append(item)
            self._bell.notify_all()

    @property
    def items(self) -> list[Any]:
        """What has come so far."""
        with self._bell:
            return list(self._items)

    def wait(self, count: int, within: float = PATIENCE) -> list[Any]:
        """The items, once there are so many."""
        return self.until(lambda items: len(items) >= count, within)

    def until(self, condition: Callable[[list[Any]], bool], within: float = PATIENCE) -> list[Any]:
        """The items, once they fulfil a condition; fails when they do not in time."""
        with self._bell:
            assert self._bell.wait_for(lambda: condition(self._items), within), f"not in {within} s; came: {self._items}"
            return list(self._items)

    def stay(self, seconds: float) -> list[Any]:
        """The items, when nothing came for so long; returns early, with more of them, if something did."""
        with self._bell:
            before = len(self._items)
            self._bell.wait_for(lambda: len(self._items) > before, seconds)
            return list(self._items)


class RawStream:
    """A StreamingPull without the client's machinery: each request is the test's own, each answer is seen."""

    def __init__(self, transport: Any, **opening: Any) -> None:
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.answers = Arrivals()
        self._over = threading.Event()
        self._beats = 0
        self.code: grpc.StatusCode | None = None
        self.details = ""
        if opening:
            self.send(**opening)
        self._call = transport.streaming_pull(iter(self._requests.get, None))
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        try:
            for answer in self._call:
                self.answers.add(answer)
            self.code = grpc.StatusCode.OK
        except grpc.RpcError as error:
            self.code, self.details = error.code(), error.details()
        except Exception as error:  # noqa: BLE001  # the thread's top; what the library wraps is unwrapped for the test
            cause: Any = error.__cause__ or error
            self.code, self.details = cause.code(), cause.details()
        self._over.set()

    def send(self, **fields: Any) -> None:
        """Send a request; one without fields is a sign of life, and is answered."""
        self._beats += not fields
        self._requests.put(StreamingPullRequest(**fields))

    def heard(self) -> None:
        """Return when the server has taken all requests so far: it takes them in their order, and answers a sign of life."""
        self.send()
        wanted = 1 + self._beats  # the first empty answer is the one that opens the stream
        self.answers.until(lambda answers: sum(is_bare(one) for one in answers) >= wanted)

    def after(self, clock: ManualClock, seconds: float) -> None:
        """Let time pass on a clock that does not run by itself: the server looks at it when something happens."""
        clock.advance(seconds)
        self.send()

    def finish(self) -> None:
        """Say that no more requests come."""
        self._requests.put(None)

    def end(self, within: float = PATIENCE) -> grpc.StatusCode:
        """How the stream ended, which it must."""
        assert self._over.wait(within), f"the stream is still open after {within} s"
        assert self.code is not None
        return self.code

    @property
    def received(self) -> list[Any]:
        """The deliveries so far."""
        return [one for answer in self.answers.items for one in answer.received_messages]

    def wait(self, count: int, within: float = PATIENCE) -> list[Any]:
        """The deliveries, once there are so many."""
        self.answers.until(lambda answers: sum(len(answer.received_messages) for answer in answers) >= count, within)
        return self.received

    def cancel(self) -> None:
        """Break off, as a client that dies does."""
        self._call.cancel()
        self._requests.put(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()
        self._over.wait(PATIENCE)


class Google:
    """Clients of one server."""

    def __init__(self, host: str, project: str = PROJECT) -> None:
        self.host = host
        self.project = project
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PUBSUB_EMULATOR_HOST", host)
            self.publisher: Any = pubsub_v1.PublisherClient()
            self.subscriber: Any = pubsub_v1.SubscriberClient()
            self.schemas: Any = pubsub_v1.SchemaServiceClient()
        self.plain: Any = PlainPublisher(transport=self.publisher.transport)
        """The publisher without batching: one call, one request."""

    def close(self) -> None:
        """Close the connections."""
        self.publisher.stop()
        self.publisher.transport.close()
        self.subscriber.close()
        self.schemas.transport.close()

    def client(self, kind: Any, **options: Any) -> Any:
        """Another client of this server, with options of its own."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PUBSUB_EMULATOR_HOST", self.host)
            return kind(**options)

    # ── names ────────────────────────────────────────────────────────────────────────────────────────────────────────────

    def name(self, kind: str, identity: str = "") -> str:
        """A full name; without an id, one that nobody else uses."""
        return f"projects/{self.project}/{kind}/{identity or unique(kind[:-1])}"

    # ── resources ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def topic(self, **fields: Any) -> str:
        """Create a topic; returns its name."""
        fields.setdefault("name", self.name("topics"))
        return str(self.call(self.plain.create_topic, fields).name)

    def subscription(self, topic: str, **fields: Any) -> str:
        """Create a subscription; returns its name."""
        fields.setdefault("name", self.name("subscriptions"))
        return str(self.call(self.subscriber.create_subscription, {"topic": topic, **fields}).name)

    def pair(self, **fields: Any) -> tuple[str, str]:
        """A new topic and a subscription to it."""
        topic = self.topic()
        return topic, self.subscription(topic, **fields)

    def update(self, subscription: str, *paths: str, **fields: Any) -> Any:
        """Change a subscription."""
        request = {"subscription": {"name": subscription, **fields}, "update_mask": mask(*paths)}
        return self.call(self.subscriber.update_subscription, request)

    def call(self, method: Any, request: Any) -> Any:
        """Make one call, once."""
        return method(request=request, retry=None, timeout=CALL_SECONDS)

    # ── messages ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def publish(self, topic: str, *bodies: bytes | dict[str, Any]) -> list[str]:
        """Publish in one request; a body is data, or the fields of a message."""
        sent = [{"data": body} if isinstance(body, bytes) else body for body in bodies]
        return list(self.call(self.plain.publish, {"topic": topic, "messages": sent}).message_ids)

    def pull_once(self, subscription: str, most: int = 100, *, now: bool = False) -> list[Any]:
        """What one Pull returns."""
        request = {"subscription": subscription, "max_messages": most}
        if now:
            request["return_immediately"] = True
            with pytest.warns(DeprecationWarning, match="return_immediately"):
                return list(self.call(self.subscriber.pull, request).received_messages)
        return list(self.call(self.subscriber.pull, request).received_messages)

    def pull(self, subscription: str, count: int, within: float = PATIENCE) -> list[Any]:
        """So many deliveries, by as many Pulls as it takes."""
        found: list[Any] = []
        until = monotonic() + int(within * 1e6)
        while len(found) < count:
            assert monotonic() < until, f"{len(found)} of {count} messages in {within} s"
            found += self.pull_once(subscription, count - len(found))
        return found

    def ack(self, subscription: str, deliveries: Sequence[Any]) -> None:
        """Acknowledge."""
        ack_ids = [one.ack_id for one in deliveries]
        self.call(self.subscriber.acknowledge, {"subscription": subscription, "ack_ids": ack_ids})

    def deadline(self, subscription: str, deliveries: Sequence[Any], seconds: int) -> None:
        """Set the ack deadline of deliveries; 0 nacks them."""
        request = {
            "subscription": subscription,
            "ack_ids": [one.ack_id for one in deliveries],
            "ack_deadline_seconds": seconds,
        }
        self.call(self.subscriber.modify_ack_deadline, request)

    def stream(self, subscription: str, **fields: Any) -> RawStream:
        """Open a raw stream."""
        fields.setdefault("stream_ack_deadline_seconds", 10)
        return RawStream(self.subscriber.transport, subscription=subscription, **fields)


class Listener:
    """The client's own streaming pull, its messages collected; acks each unless told otherwise."""

    def __init__(
        self,
        google: Google,
        subscription: str,
        react: Callable[[Any], None] | None = None,
        *,
        client: Any = None,
        **options: Any,
    ) -> None:
        self.arrivals = Arrivals()
        self._react = react or (lambda message: message.ack())
        self._client = client or google.client(pubsub_v1.SubscriberClient)
        self.future = self._client.subscribe(subscription, callback=self._take, **options)

    def _take(self, message: Any) -> None:
        self._react(message)
        self.arrivals.add(message)

    def wait(self, count: int, within: float = PATIENCE) -> list[Any]:
        """The messages, once there are so many."""
        return self.arrivals.wait(count, within)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.future.cancel()
        with suppress(Exception):  # how it ended is the test's business, and was
            self.future.result(PATIENCE)
        self._client.close()


def eventually(condition: Callable[[], object], within: float = PATIENCE) -> None:
    """Return once a condition is true that nobody announces; fails when it is not in time."""
    until = monotonic() + int(within * 1e6)
    pause = threading.Event()
    while not condition():
        assert monotonic() < until, f"still not so after {within} s"
        pause.wait(0.01)


def is_bare(answer: Any) -> bool:
    """Whether an answer of a stream carries nothing but the subscription's properties."""
    return not (answer.received_messages or "acknowledge_confirmation" in answer or "modify_ack_deadline_confirmation" in answer)


def mask(*paths: str) -> Any:
    """An update mask."""
    return field_mask_pb2.FieldMask(paths=paths)


def bodies(deliveries: Sequence[Any]) -> list[bytes]:
    """The data of deliveries, of a Pull's or of a callback's kind."""
    return [one.message.data if hasattr(one, "message") and not hasattr(one, "nack") else one.data for one in deliveries]


def eager(kind: Any, host: str, **options: Any) -> Any:
    """A client whose channel looks for the server often, and whose calls wait for it.

    By itself the channel waits a second, then two, then four; and the client, after five calls that failed at once, ten.
    """
    patience = {"methodConfig": [{"name": [{}], "waitForReady": True}]}
    channel_options = [
        ("grpc.service_config", json.dumps(patience)),
        ("grpc.initial_reconnect_backoff_ms", 50),
        ("grpc.min_reconnect_backoff_ms", 5_000),  # how long one try may take
        ("grpc.max_reconnect_backoff_ms", 200),
    ]
    transport = PublisherGrpcTransport if kind is pubsub_v1.PublisherClient else SubscriberGrpcTransport
    return kind(transport=transport(channel=grpc.insecure_channel(host, options=channel_options)), **options)


def connected(host: str) -> Iterator[Google]:
    """Clients for a fixture, closed at the end."""
    google = Google(host)
    yield google
    google.close()
