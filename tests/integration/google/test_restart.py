"""What a restart of the server looks like to Google's client: it notices nothing but a pause."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.api_core import exceptions
from google.cloud import pubsub_v1
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

from penstock.testing.server import LocalServer, ServerProcess
from tests.integration.google.real_client import PATIENCE, Google, Listener, bodies
from tests.ports import free_port


def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    with LocalServer(data_dir=tmp_path) as server:
        google = Google(server.grpc)
        topic = google.topic(labels={"a": "1"})
        subscription = google.subscription(topic, ack_deadline_seconds=33, enable_message_ordering=True)
        google.publish(topic, *[{"data": b"%d" % number, "ordering_key": "k"} for number in range(10)])
        google.ack(subscription, google.pull(subscription, 1))
        shown = google.call(google.subscriber.get_subscription, {"subscription": subscription})
        snapshot = google.call(
            google.subscriber.create_snapshot, {"name": google.name("snapshots"), "subscription": subscription}
        )
        google.close()
    with LocalServer(data_dir=tmp_path) as server:
        google = Google(server.grpc)
        assert dict(google.call(google.plain.get_topic, {"topic": topic}).labels) == {"a": "1"}
        assert google.call(google.subscriber.get_subscription, {"subscription": subscription}) == shown
        assert google.call(google.subscriber.get_snapshot, {"snapshot": snapshot.name}) == snapshot
        with Listener(google, subscription) as listener:
            assert [int(body) for body in bodies(listener.wait(9))] == list(range(1, 10))
        google.close()


def eager(kind: Any, transport: Any, host: str) -> Any:
    """A client whose channel looks for the server often, and whose calls wait for it.

    By itself the channel waits a second, then two, then four; and the client, after five calls that failed at once, ten.
    """
    patience = {"methodConfig": [{"name": [{}], "waitForReady": True}]}
    options = [
        ("grpc.service_config", json.dumps(patience)),
        ("grpc.initial_reconnect_backoff_ms", 50),
        ("grpc.min_reconnect_backoff_ms", 50),
        ("grpc.max_reconnect_backoff_ms", 200),
    ]
    return kind(transport=transport(channel=grpc.insecure_channel(host, options=options)))


def test_an_open_stream_goes_on_after_a_stop(tmp_path: Path) -> None:
    port = free_port()
    with ExitStack() as stack:
        first = stack.enter_context(LocalServer(data_dir=tmp_path, grpc_port=port))
        goes_on(stack, first.grpc, end=first.stop, second=LocalServer(data_dir=tmp_path, grpc_port=port))


def test_an_open_stream_goes_on_after_a_kill(tmp_path: Path) -> None:
    port = free_port()
    with ExitStack() as stack:
        first = stack.enter_context(ServerProcess(tmp_path, grpc_port=port))
        goes_on(stack, first.grpc, end=first.kill, second=ServerProcess(tmp_path, grpc_port=port))


def goes_on(stack: ExitStack, host: str, *, end: Callable[[], None], second: LocalServer | ServerProcess) -> None:
    google = Google(host)
    topic, subscription = google.pair()
    publisher = eager(pubsub_v1.PublisherClient, PublisherGrpcTransport, host)
    subscriber = eager(pubsub_v1.SubscriberClient, SubscriberGrpcTransport, host)
    listener = Listener(google, subscription, client=subscriber)
    publisher.publish(topic, b"before").result(PATIENCE)
    listener.wait(1)
    end()
    future = publisher.publish(topic, b"meanwhile")
    stack.enter_context(second)
    stack.callback(google.close)
    stack.callback(publisher.transport.close)
    stack.enter_context(listener)
    assert future.result(30)
    publisher.publish(topic, b"after").result(30)
    # Google's client waits longer after each try: on a busy machine the next one may be a minute away.
    listener.arrivals.until(lambda found: {b"meanwhile", b"after"} <= set(bodies(found)), within=90)
    assert listener.future.running()
    publisher.stop()


def test_a_server_that_stops_says_unavailable() -> None:
    with LocalServer() as server:
        google = Google(server.grpc)
        _, subscription = google.pair()
        stream = google.stream(subscription)
        stream.answers.wait(1)
        server.stop()
        assert stream.end().name == "UNAVAILABLE"
    with pytest.raises(exceptions.ServiceUnavailable):
        google.pull_once(subscription)
    google.close()
