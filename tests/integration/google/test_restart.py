"""What a restart of the server looks like to Google's client: it notices nothing but a pause."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from google.api_core import exceptions

from penstock.testing.server import LocalServer, ServerProcess
from tests.integration.google.real_client import Google, Listener, bodies


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


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


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_an_open_stream_goes_on_after_a_restart(tmp_path: Path, end: str) -> None:
    port = free_port()
    with ServerProcess(tmp_path, grpc_port=port) as server:
        google = Google(server.grpc)
        topic, subscription = google.pair()
        with Listener(google, subscription) as listener:
            google.publish(topic, b"before")
            listener.wait(1)
            server.stop() if end == "stop" else server.kill()
            with ServerProcess(tmp_path, grpc_port=port):
                google.publisher.publish(topic, b"after").result(30)
                listener.arrivals.until(lambda found: b"after" in bodies(found), within=30)
                assert listener.future.running()
        google.close()


def test_a_batch_publisher_waits_for_the_server_to_come_back(tmp_path: Path) -> None:
    port = free_port()
    with LocalServer(data_dir=tmp_path, grpc_port=port) as server:
        google = Google(server.grpc)
        topic, subscription = google.pair()
    future = google.publisher.publish(topic, b"patient")
    with LocalServer(data_dir=tmp_path, grpc_port=port):
        assert future.result(30)
        assert bodies(google.pull(subscription, 1)) == [b"patient"]
        google.close()


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
