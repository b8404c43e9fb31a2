"""Every gRPC call with hostile requests: a clear status in time, nothing half done, nobody else harmed."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.google import messages
from penstock.testing.server import LocalServer
from tests.integration import hostile_requests as hostile

CALL_SECONDS = 60.0
NEIGHBOUR_SECONDS = 60.0
STREAMING_PULL = "/google.pubsub.v1.Subscriber/StreamingPull"
QUIET_TOPIC, QUIET = "projects/neighbour/topics/quiet", "projects/neighbour/subscriptions/quiet"
UNARY = [path for path in messages.METHODS if path != STREAMING_PULL]

GOOD = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.OUT_OF_RANGE,
}
"""What a server without tokens and limits may answer. INTERNAL and UNKNOWN are bugs, and so is no answer in time."""


BELONGINGS: list[tuple[str, str, str, Any]] = [
    ("topics", "fuzz/known", "CreateTopic", messages.Topic(name=hostile.TOPIC)),
    ("topics", "fuzz/other", "CreateTopic", messages.Topic(name=hostile.OTHER_TOPIC)),
    (
        "subscriptions",
        "fuzz/known",
        "CreateSubscription",
        messages.Subscription(name=hostile.SUBSCRIPTION, topic=hostile.TOPIC),
    ),
    (
        "subscriptions",
        "fuzz/exact",
        "CreateSubscription",
        messages.Subscription(name=hostile.EXACT, topic=hostile.TOPIC, enable_exactly_once_delivery=True),
    ),
    (
        "snapshots",
        "fuzz/known",
        "CreateSnapshot",
        messages.CreateSnapshotRequest(name=hostile.SNAPSHOT, subscription=hostile.SUBSCRIPTION),
    ),
    (
        "documents",
        f"schema:{hostile.SCHEMA}",
        "CreateSchema",
        messages.CreateSchemaRequest(
            parent=f"projects/{hostile.PROJECT}", schema_id="known", schema={"type": 2, "definition": hostile.AVRO}
        ),
    ),
]
"""What a request may find: where the broker keeps it, under which name, and how it is made."""


class Complaints(logging.Handler):
    """Keeps what the server logs as an error, and every traceback."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = logging.Formatter().format(record)
        if record.levelno >= logging.ERROR or record.exc_info or "Traceback" in text:
            self.seen.append(text)


class Target:
    """A server, the attacker's connection to it, and a neighbour that must not feel anything."""

    def __init__(self, server: LocalServer, complaints: Complaints) -> None:
        self.server = server
        self.complaints = complaints
        options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        self.channel = grpc.insecure_channel(server.grpc, options=options)
        self._neighbour = grpc.insecure_channel(server.grpc, options=options)
        self._honest("CreateTopic", messages.Topic(name=QUIET_TOPIC))
        self._honest(
            "CreateSubscription",
            messages.Subscription(name=QUIET, topic=QUIET_TOPIC),
        )

    def close(self) -> None:
        self.channel.close()
        self._neighbour.close()

    def send(self, path: str, request: bytes, **options: Any) -> tuple[grpc.StatusCode, str]:
        """Make a call; an answer must be one of its kind."""
        try:
            answer = self.channel.unary_unary(path)(request, timeout=CALL_SECONDS, **options)
        except grpc.RpcError as error:
            return error.code(), str(error.details())
        messages.METHODS[path].response.FromString(answer)
        return grpc.StatusCode.OK, ""

    def stream(self, path: str, requests: list[bytes], response: Any, at_most: int | None = None) -> tuple[grpc.StatusCode, str]:
        """Send requests as a stream and read to its end; every answer must be one of its kind."""
        call = self.channel.stream_stream(path)(iter(requests), timeout=CALL_SECONDS)
        try:
            answers = [response.FromString(answer) for answer in call]
        except grpc.RpcError as error:
            return error.code(), str(error.details())
        assert at_most is None or len(answers) <= at_most
        return call.code(), ""

    def restore(self) -> None:
        """Make again what a call has deleted, so that the next one finds something."""
        catalog = self.server.broker.catalog
        for held, key, call, request in BELONGINGS:
            if key not in getattr(catalog, held):
                self._try(call, request)

    def state(self) -> tuple[Any, ...]:
        """What exists and how it is set: a refused call may not change any of it."""
        broker = self.server.broker
        with broker.lock:
            catalog = broker.catalog
            return (
                {name: (stream.spec, stream.next_offset) for name, stream in catalog.topics.items()},
                {name: (queue.policy, queue.spec, queue.detached) for name, queue in catalog.subscriptions.items()},
                dict(catalog.snapshots),
                dict(catalog.documents),
            )

    def check_neighbour(self) -> None:
        """Somebody else's message goes through, promptly."""
        self._honest("Publish", messages.PublishRequest(topic=QUIET_TOPIC, messages=[{"data": b"hello"}]))
        answer = self._honest("Pull", messages.PullRequest(subscription=QUIET, max_messages=10))
        assert [one.message.data for one in answer.received_messages] == [b"hello"]
        ack_ids = [one.ack_id for one in answer.received_messages]
        self._honest("Acknowledge", messages.AcknowledgeRequest(subscription=QUIET, ack_ids=ack_ids))

    def check_log(self) -> None:
        seen, self.complaints.seen = self.complaints.seen, []
        assert not seen, "the server logged:\n" + "\n".join(seen)

    def _honest(self, name: str, request: Any) -> Any:
        path = next(path for path in messages.METHODS if path.endswith("/" + name))
        data = self._neighbour.unary_unary(path)(request.SerializeToString(), timeout=NEIGHBOUR_SECONDS)
        return messages.METHODS[path].response.FromString(data)

    def _try(self, name: str, request: Any) -> None:
        try:
            self._honest(name, request)
        except grpc.RpcError as error:
            if error.code() not in {grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.FAILED_PRECONDITION}:
                raise


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    complaints = Complaints()
    logging.getLogger().addHandler(complaints)
    with LocalServer() as server:
        target = Target(server, complaints)
        yield target
        target.close()
    logging.getLogger().removeHandler(complaints)
    target.check_log()


def few(examples: int | None) -> settings:
    """So many examples, or as many as the profile says."""
    return settings(
        max_examples=examples or settings().max_examples,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
    )


every_call = pytest.mark.parametrize("examples", [2, pytest.param(None, marks=[pytest.mark.long, pytest.mark.timeout(1200)])])
"""A few requests for each call of the API, and many in the long ring."""


def attack(target: Target, path: str, request: hostile.Sent) -> None:
    target.restore()
    before = target.state()
    code, details = target.send(path, request.data)
    assert code in GOOD, f"{path} answered {code.name}: {details[:500]}"
    if code is not grpc.StatusCode.OK:
        assert target.state() == before, f"{path} failed with {code.name} and changed something: {details[:500]}"
        assert details, f"{path} failed with {code.name} and does not say why"
    target.check_log()
    target.check_neighbour()


@every_call
def test_a_hostile_request_gets_a_clear_refusal(target: Target, examples: int | None, subtests: pytest.Subtests) -> None:
    def fuzz(path: str) -> None:
        @few(examples)
        @given(hostile.hostile(path))
        def run(request: hostile.Sent) -> None:
            attack(target, path, request)

        run()

    for path in UNARY:
        with subtests.test(path=path):
            fuzz(path)


@every_call
def test_a_hostile_stream_gets_a_clear_refusal(target: Target, examples: int | None) -> None:
    """Random sequences of requests on a stream, half of them after an honest first one."""

    @few(examples and 10 * examples)
    @given(st.lists(hostile.hostile(STREAMING_PULL), max_size=6), st.booleans())
    def run(requests: list[hostile.Sent], with_opening: bool) -> None:
        target.restore()
        before = target.state()
        opening = [hostile.HONEST[STREAMING_PULL].SerializeToString()] if with_opening else []
        sent = opening + [request.data for request in requests]
        code, details = target.stream(STREAMING_PULL, sent, messages.StreamingPullResponse)
        assert code in GOOD, f"the stream ended with {code.name}: {details[:500]}"
        assert target.state() == before
        target.check_log()
        target.check_neighbour()

    run()


HOSTILE_METADATA: list[list[tuple[str, str | bytes]]] = [
    [("authorization", "")],
    [("authorization", "Bearer")],
    [("authorization", "Basic " + "x" * 3_000)],
    [("authorization", "Bearer a")] * 30,
    [("x-goog-request-params", "topic=%00%ff&&==")],
    [("grpc-timeout-x", "1"), ("odd-bin", b"\x00\xff")],
]
UNKNOWN_CALLS = [
    "/",
    "/google.pubsub.v1.Publisher/",
    "/google.pubsub.v1.Publisher/NoSuch",
    "/x/" + "y" * 2_000,
    "/google.pubsub.v1.Subscriber/pull",
]


def test_hostile_metadata_gets_an_answer(target: Target, subtests: pytest.Subtests) -> None:
    request = messages.GetTopicRequest(topic=hostile.TOPIC).SerializeToString()
    target.restore()
    for metadata in HOSTILE_METADATA:
        with subtests.test(metadata=metadata[0], count=len(metadata)):
            code, details = target.send("/google.pubsub.v1.Publisher/GetTopic", request, metadata=metadata)
            assert code in {grpc.StatusCode.OK, grpc.StatusCode.UNAUTHENTICATED}, details
            target.check_log()
            target.check_neighbour()


def test_an_unknown_call_is_unimplemented(target: Target, subtests: pytest.Subtests) -> None:
    for path in UNKNOWN_CALLS:
        with subtests.test(path=path[:50]):
            with pytest.raises(grpc.RpcError) as caught:
                target.channel.unary_unary(path)(b"", timeout=CALL_SECONDS)
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
            target.check_log()
            target.check_neighbour()


def test_a_request_beyond_the_limit_is_refused_and_not_kept(target: Target) -> None:
    target.restore()
    request = messages.PublishRequest(topic=hostile.TOPIC, messages=[{"data": bytes(17 * 1024 * 1024)}]).SerializeToString()
    code, details = target.send("/google.pubsub.v1.Publisher/Publish", request)
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED, details
    target.check_log()
    target.check_neighbour()


def test_a_deep_structure_is_taken_or_refused(target: Target, subtests: pytest.Subtests) -> None:
    for depth in (1, 10, 23, 24, 25, 30, 45, 2_000, 9_000):
        with subtests.test(depth=depth):
            attack(target, "/google.pubsub.v1.Publisher/CreateTopic", hostile.deep_topic(depth))


def test_a_stream_of_requests_to_a_unary_call_is_refused(target: Target, subtests: pytest.Subtests) -> None:
    for path in UNARY:
        with subtests.test(path=path):
            request = messages.METHODS[path].request().SerializeToString()
            code, details = target.stream(path, [request] * 3, messages.METHODS[path].response, at_most=1)
            assert code in GOOD | {grpc.StatusCode.UNIMPLEMENTED}, f"{code.name}: {details}"
            target.check_log()
