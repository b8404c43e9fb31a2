"""What a restart of the server looks like to Google's client: it notices nothing but a pause."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from google.api_core import exceptions
from google.cloud import pubsub_v1

from penstock.testing.server import LocalServer
from tests.integration.google.real_client import PATIENCE, Google, Listener, RawStream, bodies, eager
from tests.ports import free_port


@pytest.mark.long
@pytest.mark.timeout(330)
def test_an_open_stream_goes_on_after_a_restart(tmp_path: Path) -> None:
    port = free_port()
    with ExitStack() as stack:
        first = stack.enter_context(LocalServer(data_dir=tmp_path, grpc_port=port))
        google = Google(first.grpc)
        topic, subscription = google.pair()
        publisher = eager(pubsub_v1.PublisherClient, first.grpc)
        subscriber = eager(pubsub_v1.SubscriberClient, first.grpc)
        listener = Listener(google, subscription, client=subscriber)
        publisher.publish(topic, b"before").result(PATIENCE)
        listener.wait(1)
        first.stop()
        future = publisher.publish(topic, b"meanwhile")
        stack.enter_context(LocalServer(data_dir=tmp_path, grpc_port=port))
        stack.callback(google.close)
        stack.callback(publisher.transport.close)
        stack.enter_context(listener)
        assert future.result(PATIENCE)
        publisher.publish(topic, b"after").result(PATIENCE)
        # Google's client waits up to a minute between tries, and on a busy machine more than one of them fails.
        listener.arrivals.until(lambda found: {b"meanwhile", b"after"} <= set(bodies(found)), within=300)
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


def test_streams_that_are_reopened_while_the_server_stops_end_as_unavailable() -> None:
    """Google's clients reopen a stream at once, and give up when that ends with anything but UNAVAILABLE."""
    with LocalServer() as server:
        google = Google(server.grpc)
        _, subscription = google.pair()
        streams = [google.stream(subscription) for _ in range(20)]
        for stream in streams:
            stream.answers.wait(1)

        def reopen(stream: RawStream) -> set[str]:
            ends = {stream.end().name}
            for _ in range(3):
                ends.add(google.stream(subscription).end().name)
            return ends

        with ThreadPoolExecutor(len(streams)) as pool:
            ends = pool.map(reopen, streams)
            server.stop()
            assert set[str]().union(*ends) == {"UNAVAILABLE"}
    google.close()
