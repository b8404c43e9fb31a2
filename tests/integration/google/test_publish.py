"""Publishing through Google's client: its batches, compression and ordering keys, and the limits of the API."""

from __future__ import annotations

from concurrent.futures import wait
from typing import Any

import grpc
import pytest
from google.api_core import exceptions
from google.cloud import pubsub_v1
from google.cloud.pubsub_v1.types import BatchSettings, LimitExceededBehavior, PublisherOptions, PublishFlowControl
from google.pubsub_v1 import PublisherClient as PlainPublisher
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

from tests.integration.google.real_client import PATIENCE, Google, bodies

MIB = 1024 * 1024


def test_what_is_published_is_pulled_as_it_was(google: Google) -> None:
    topic, subscription = google.pair()
    message_id = google.publisher.publish(topic, b"\x00\xff body", origin="test", größe="groß").result(PATIENCE)
    (found,) = google.pull(subscription, 1)
    assert found.message.data == b"\x00\xff body"
    assert dict(found.message.attributes) == {"origin": "test", "größe": "groß"}
    assert found.message.message_id == message_id
    assert found.message.ordering_key == ""
    assert found.delivery_attempt == 0


def test_the_batching_client_loses_and_repeats_nothing(google: Google) -> None:
    topic, subscription = google.pair()
    futures = [google.publisher.publish(topic, b"%d" % number) for number in range(2_000)]
    done = wait(futures, PATIENCE).done
    ids = {future.result() for future in done}
    assert len(ids) == 2_000
    found = google.pull(subscription, 2_000)
    assert sorted(int(one.message.data) for one in found) == list(range(2_000))
    assert {one.message.message_id for one in found} == ids


def test_ids_come_in_the_order_of_the_messages(google: Google) -> None:
    topic, subscription = google.pair()
    ids = google.publish(topic, b"a", b"b", b"c")
    found = {one.message.data: one.message.message_id for one in google.pull(subscription, 3)}
    assert [found[data] for data in (b"a", b"b", b"c")] == ids


def test_each_subscription_gets_every_message(google: Google) -> None:
    topic = google.topic()
    subscriptions = [google.subscription(topic) for _ in range(3)]
    google.publish(topic, b"a", b"b")
    for subscription in subscriptions:
        assert sorted(bodies(google.pull(subscription, 2))) == [b"a", b"b"]


def test_a_subscription_gets_nothing_from_before_its_time(google: Google) -> None:
    topic = google.topic()
    google.publish(topic, b"before")
    subscription = google.subscription(topic)
    google.publish(topic, b"after")
    assert bodies(google.pull(subscription, 1)) == [b"after"]


def test_attributes_alone_make_a_message(google: Google) -> None:
    topic, subscription = google.pair()
    google.publish(topic, {"attributes": {"only": ""}})
    assert dict(google.pull(subscription, 1)[0].message.attributes) == {"only": ""}


def test_a_message_of_almost_ten_megabytes_passes(google: Google) -> None:
    topic, subscription = google.pair()
    body = bytes(range(256)) * (9_900_000 // 256)
    google.publish(topic, body)
    # Told of an emulator, the client opens a channel that takes 4 MiB; who wants more brings a channel.
    with grpc.insecure_channel(google.host, options=[("grpc.max_receive_message_length", -1)]) as channel:
        subscriber = pubsub_v1.SubscriberClient(transport=SubscriberGrpcTransport(channel=channel))
        (found,) = subscriber.pull(subscription=subscription, max_messages=1, timeout=PATIENCE).received_messages
    assert found.message.data == body


def test_large_messages_pass_one_after_the_other(google: Google) -> None:
    topic, subscription = google.pair()
    sent = [bytes([number]) * (3 * MIB) for number in range(5)]
    for body in sent:
        google.publish(topic, body)
    found = google.pull(subscription, 5)
    assert sorted(bodies(found)) == sent


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_compressed_requests_are_understood(google: Google, compression: grpc.Compression) -> None:
    topic, subscription = google.pair()
    with grpc.insecure_channel(google.host, compression=compression) as channel:
        publisher = pubsub_v1.PublisherClient(transport=PublisherGrpcTransport(channel=channel))
        publisher.publish(topic, b"a" * 200_000).result(PATIENCE)
        publisher.stop()
    assert google.pull(subscription, 1)[0].message.data == b"a" * 200_000


def test_a_request_that_unpacks_to_too_much_is_refused(google: Google) -> None:
    topic = google.topic()
    with grpc.insecure_channel(google.host, compression=grpc.Compression.Gzip) as channel:
        publisher = PlainPublisher(transport=PublisherGrpcTransport(channel=channel))
        request = {"topic": topic, "messages": [{"data": bytes(64 * MIB)}]}
        with pytest.raises((exceptions.ResourceExhausted, exceptions.InvalidArgument)):
            publisher.publish(request=request, retry=None, timeout=PATIENCE)


def test_a_blocking_flow_control_lets_everything_through(google: Google) -> None:
    control = PublishFlowControl(message_limit=10, byte_limit=10_000, limit_exceeded_behavior=LimitExceededBehavior.BLOCK)
    publisher = google.client(
        pubsub_v1.PublisherClient,
        batch_settings=BatchSettings(max_messages=5, max_latency=0.01),
        publisher_options=PublisherOptions(flow_control=control),
    )
    topic, subscription = google.pair()
    futures = [publisher.publish(topic, b"x" * 100) for _ in range(200)]
    assert len({future.result(PATIENCE) for future in futures}) == 200
    publisher.stop()
    publisher.transport.close()
    assert len(google.pull(subscription, 200)) == 200


def test_an_ordering_key_comes_back(google: Google) -> None:
    topic, subscription = google.pair(enable_message_ordering=True)
    for ordering_key in ("k", "schlüssel", "x" * 1024):
        google.publish(topic, {"data": b"a", "ordering_key": ordering_key})
        assert google.pull(subscription, 1)[0].message.ordering_key == ordering_key


BAD: dict[str, tuple[type[Exception], list[dict[str, Any]]]] = {
    "no message": (exceptions.InvalidArgument, []),
    "1,001 messages": (exceptions.InvalidArgument, [{"data": b"a"}] * 1_001),
    "an empty message": (exceptions.InvalidArgument, [{"data": b"a"}, {"data": b""}]),
    "only an ordering key": (exceptions.InvalidArgument, [{"ordering_key": "k"}]),
    "101 attributes": (exceptions.InvalidArgument, [{"attributes": {f"key{n}": "" for n in range(101)}}]),
    "a key of 257 bytes": (exceptions.InvalidArgument, [{"attributes": {"k" * 257: "v"}}]),
    "a value of 1,025 bytes": (exceptions.InvalidArgument, [{"attributes": {"k": "v" * 1_025}}]),
    "an empty key": (exceptions.InvalidArgument, [{"attributes": {"": "v"}}]),
    "a reserved key": (exceptions.InvalidArgument, [{"attributes": {"google-thing": "v"}}]),
    "an ordering key of 1,025 bytes": (exceptions.InvalidArgument, [{"data": b"a", "ordering_key": "k" * 1_025}]),
    "more than 10 MiB": (exceptions.InvalidArgument, [{"data": b"a" * (10 * MIB + 1)}]),
    "two ordering keys": (exceptions.FailedPrecondition, [{"data": b"a", "ordering_key": "k"}, {"data": b"b"}]),
}


def test_what_is_out_of_bounds_is_refused_as_a_whole(google: Google, subtests: pytest.Subtests) -> None:
    topic, subscription = google.pair()
    for name, (error, messages) in BAD.items():
        with subtests.test(name=name):
            with pytest.raises(error):
                google.publish(topic, *messages)
            assert google.pull_once(subscription, now=True) == []


GOOD: dict[str, list[dict[str, Any]]] = {
    "1,000 messages": [{"data": b"a"}] * 1_000,
    "100 attributes": [{"attributes": {f"key{n}": "" for n in range(100)}}],
    "a key of 256 and a value of 1,024 bytes": [{"attributes": {"k" * 256: "v" * 1_024}}],
    "a key that only resembles a reserved one": [{"attributes": {"goo": "v", "Google": "v"}}],
    "a trace": [
        {"data": b"a", "attributes": {"googclient_traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}}
    ],
}


def test_what_is_at_the_bounds_is_taken(google: Google, subtests: pytest.Subtests) -> None:
    for name, messages in GOOD.items():
        topic, subscription = google.pair()
        with subtests.test(name=name):
            assert len(set(google.publish(topic, *messages))) == len(messages)
            found = google.pull(subscription, len(messages))
            assert dict(found[0].message.attributes) == messages[0].get("attributes", {})


def test_a_topic_that_is_not_there_is_not_found(google: Google) -> None:
    with pytest.raises(exceptions.NotFound):
        google.publisher.publish(google.name("topics"), b"x").result(PATIENCE)


def test_ids_and_times_of_the_client_are_replaced(google: Google) -> None:
    topic, subscription = google.pair()
    (message_id,) = google.publish(topic, {"data": b"a", "message_id": "mine", "publish_time": {"seconds": 1}})
    (found,) = google.pull(subscription, 1)
    assert found.message.message_id == message_id != "mine"
    assert found.message.publish_time.year > 2000


def test_a_telemetry_span_of_the_client_does_no_harm(google: Google) -> None:
    publisher = google.client(pubsub_v1.PublisherClient, publisher_options=PublisherOptions(enable_open_telemetry_tracing=True))
    topic, subscription = google.pair()
    publisher.publish(topic, b"traced").result(PATIENCE)
    publisher.stop()
    publisher.transport.close()
    assert google.pull(subscription, 1)[0].message.data == b"traced"
