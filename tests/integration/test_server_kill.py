"""kill -9 of the server under Google's unmodified client: nothing confirmed is lost, no key overtaken, no ack undone."""

from __future__ import annotations

import contextlib
import os
import random
import threading
from collections import defaultdict
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import pubsub_v1
from google.cloud.pubsub_v1.subscriber.exceptions import AcknowledgeError
from google.cloud.pubsub_v1.types import BatchSettings, FlowControl, PublisherOptions

from penstock.clock import monotonic
from penstock.testing.server import ServerProcess
from tests.integration.google.real_client import Google

KILLS = int(os.environ.get("PENSTOCK_SERVER_KILLS", "10"))
KEYS = 5
PATIENCE = 60.0
ROOT = Path(__file__).parents[2]


class Publisher:
    """Publishes numbers with ordering keys until it is told to stop, and notes what was confirmed."""

    def __init__(self, google: Google, topic: str) -> None:
        self._topic = topic
        self._client = google.client(
            pubsub_v1.PublisherClient,
            batch_settings=BatchSettings(max_messages=20, max_latency=0.005),
            publisher_options=PublisherOptions(enable_message_ordering=True),
        )
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._room = threading.Semaphore(200)
        self.confirmed: dict[str, str] = {}
        """Message id by body."""
        self.failures: list[BaseException] = []
        self._threads = [threading.Thread(target=self._publish, args=(f"key-{number}",)) for number in range(KEYS)]
        for thread in self._threads:
            thread.start()

    def _publish(self, key: str) -> None:
        sent = 0
        while not self._over.is_set():
            body = f"{key} {sent}"
            sent += 1
            self._room.acquire()
            try:
                future = self._client.publish(self._topic, body.encode(), ordering_key=key)
            except Exception as error:  # noqa: BLE001  # a paused key says so with one of several classes
                self._room.release()
                self._failed(key, error)
                continue
            future.add_done_callback(lambda done, body=body: self._done(key, body, done))

    def _done(self, key: str, body: str, future: Future[str]) -> None:
        self._room.release()
        error = future.exception()
        if error is None:
            with self._lock:
                self.confirmed[body] = future.result()
        else:
            self._failed(key, error)

    def _failed(self, key: str, error: BaseException) -> None:
        with self._lock:
            self.failures.append(error)
        self._client.resume_publish(self._topic, key)  # after a failure the client holds the key back until it is told

    def stop(self) -> None:
        """Returns when every publish has its answer."""
        self._over.set()
        for thread in self._threads:
            thread.join(PATIENCE)
        self._client.stop()
        for _ in range(200):
            assert self._room.acquire(timeout=PATIENCE), "a publish never got its answer"
        self._client.transport.close()


class Consumer:
    """Receives, acknowledges and notes; on an exactly-once subscription it notes what was confirmed."""

    def __init__(self, google: Google, subscription: str, *, exactly_once: bool = False) -> None:
        self._bell = threading.Condition()
        self._exactly_once = exactly_once
        self.order: list[tuple[str, str]] = []
        """(key, body) of each delivery, in the order they came."""
        self.settled: set[str] = set()
        """Bodies whose ack was confirmed."""
        self.returned: list[str] = []
        """Bodies that came again after their ack was confirmed."""
        self.future = google.subscriber.subscribe(
            subscription, self._receive, flow_control=FlowControl(max_messages=100), await_callbacks_on_shutdown=True
        )

    def _receive(self, message: Any) -> None:
        body = message.data.decode()
        with self._bell:
            self.order.append((message.ordering_key, body))
            if body in self.settled:
                self.returned.append(body)
            self._bell.notify_all()
        if not self._exactly_once:
            message.ack()
            return
        answer = message.ack_with_response()
        answer.add_done_callback(lambda done: self._confirmed(body, done))

    def _confirmed(self, body: str, answer: Any) -> None:
        with contextlib.suppress(AcknowledgeError):
            answer.result()
            with self._bell:
                self.settled.add(body)

    def wait_for(self, bodies: set[str]) -> None:
        """Return when all of these have come."""
        with self._bell:
            came = self._bell.wait_for(lambda: bodies <= {body for _, body in self.order}, PATIENCE)
            missing = bodies - {body for _, body in self.order}
        assert came, f"{len(missing)} confirmed messages never came: {sorted(missing)[:5]}"

    def stop(self) -> None:
        """Returns when the last callback has ended."""
        self.future.cancel()
        with contextlib.suppress(exceptions.GoogleAPICallError):
            self.future.result(PATIENCE)


def torment(server: ServerProcess, publisher: Publisher, rng: random.Random) -> None:
    """Kill and restart, each time when something has been confirmed since the last time."""
    for _ in range(KILLS):
        progress = len(publisher.confirmed) + rng.randint(1, 400)
        until = monotonic() + int(PATIENCE * 1e6)
        while len(publisher.confirmed) < progress:
            assert monotonic() < until, f"nothing was confirmed for {PATIENCE} s; last failures: {publisher.failures[-3:]}"
            threading.Event().wait(0.002)
        server.kill()
        server.start()


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.timeout(120 + 15 * KILLS)
def test_nothing_confirmed_is_lost_when_the_server_is_killed_under_googles_client(tmp_path: Path) -> None:
    seed = int(os.environ.get("PENSTOCK_SEED", random.SystemRandom().getrandbits(32)))
    try:
        run(tmp_path, random.Random(seed))
    except BaseException as error:
        error.add_note(
            f"repeat: PENSTOCK_SEED={seed} PENSTOCK_SERVER_KILLS={KILLS} python -m pytest {Path(__file__).relative_to(ROOT)}"
        )
        raise


def run(data_dir: Path, rng: random.Random) -> None:
    # The same ports after each restart: the clients reconnect to them by themselves.
    with ServerProcess(data_dir) as probe:
        ports = {"port": probe.port, "grpc_port": probe.grpc_port}
    server = ServerProcess(data_dir, **ports).start()
    google = Google(server.grpc)
    try:
        topic = google.topic()
        plain = google.subscription(topic, enable_message_ordering=True, ack_deadline_seconds=10)
        exact = google.subscription(
            topic, enable_message_ordering=True, enable_exactly_once_delivery=True, ack_deadline_seconds=10
        )
        consumers = [Consumer(google, plain), Consumer(google, exact, exactly_once=True)]
        publisher = Publisher(google, topic)
        torment(server, publisher, rng)
        publisher.stop()
        confirmed = set(publisher.confirmed)
        assert len(confirmed) > KILLS
        for consumer in consumers:
            consumer.wait_for(confirmed)
            consumer.stop()
        check_order(consumers[0].order)
        check_order(consumers[1].order)
        assert not consumers[1].returned, f"acked with confirmation, and came again: {consumers[1].returned[:5]}"
        assert consumers[1].settled, "no ack was ever confirmed"
    finally:
        google.close()
        server.stop()
    assert "Traceback" not in server.log, server.log


def check_order(order: list[tuple[str, str]]) -> None:
    """First deliveries of a key come in the order in which they were published."""
    last: dict[str, int] = defaultdict(lambda: -1)
    seen: set[str] = set()
    for key, body in order:
        if body not in seen:
            seen.add(body)
            number = int(body.split()[1])
            assert number > last[key], f"{body!r} came first after {key} {last[key]}"
            last[key] = number
