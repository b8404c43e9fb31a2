"""kill -9 of the server under Google's unmodified client: nothing confirmed is lost, no key overtaken, no ack undone."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import threading
from collections import defaultdict
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from google.api_core import exceptions
from google.api_core.retry import Retry, if_exception_type
from google.cloud import pubsub_v1
from google.cloud.pubsub_v1.subscriber.exceptions import AcknowledgeError
from google.cloud.pubsub_v1.types import BatchSettings, FlowControl, PublisherOptions

from penstock.clock import monotonic
from penstock.testing.server import ServerProcess
from tests.integration.google.real_client import Google, eager
from tests.ports import free_port

KILLS = int(os.environ.get("PENSTOCK_SERVER_KILLS", "2"))
KEYS = 5
SOON = Retry(
    predicate=if_exception_type(exceptions.ServiceUnavailable, exceptions.Aborted, exceptions.DeadlineExceeded),
    initial=0.05,
    multiplier=1.5,
    maximum=0.5,
    timeout=60,
)
"""The client's own retries wait up to a minute by default, at each restart."""
ROOM = 200
"""How many publishes may be without their answer."""
PATIENCE = 90.0
ROOT = Path(__file__).parents[2]


class Publisher:
    """Publishes numbers with ordering keys until it is told to stop, and notes what was confirmed."""

    def __init__(self, google: Google, topic: str) -> None:
        self._topic = topic
        self._client = eager(
            pubsub_v1.PublisherClient,
            google.host,
            batch_settings=BatchSettings(max_messages=20, max_latency=0.005),
            publisher_options=PublisherOptions(enable_message_ordering=True, retry=SOON),
        )
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._room = threading.Semaphore(ROOM)
        self.confirmed: dict[str, str] = {}
        """Message id by body."""
        self.failures: list[BaseException] = []
        self._paused: set[str] = set()
        self._threads = [threading.Thread(target=self._publish, args=(f"key-{number}",)) for number in range(KEYS)]
        for thread in self._threads:
            thread.start()

    def _publish(self, key: str) -> None:
        sent = 0
        while not self._over.is_set():
            # After a failure the client holds the key back until it is told to go on, and refuses what comes meanwhile.
            if key in self._paused:
                self._paused.discard(key)
                self._client.resume_publish(self._topic, key)
            body = f"{key} {sent}"
            sent += 1
            self._room.acquire()
            future = self._client.publish(self._topic, body.encode(), ordering_key=key)
            future.add_done_callback(functools.partial(self._done, key, body))

    def _done(self, key: str, body: str, future: Future[str]) -> None:
        error = future.exception()
        with self._lock:
            if error is None:
                self.confirmed[body] = future.result()
            else:
                self.failures.append(error)
                self._paused.add(key)
        self._room.release()

    def stop(self) -> None:
        """Returns when every publish has its answer."""
        self._over.set()
        for thread in self._threads:
            thread.join(PATIENCE)
        for _ in range(ROOM):
            assert self._room.acquire(timeout=PATIENCE), "a publish never got its answer"
        self._client.stop()
        self._client.transport.close()


class Consumer:
    """Receives, acknowledges and notes; on an exactly-once subscription it notes what was confirmed."""

    def __init__(self, google: Google, subscription: str, *, exactly_once: bool = False) -> None:
        self._bell = threading.Condition()
        self._exactly_once = exactly_once
        self.order: list[tuple[str, str]] = []
        """(key, body) of each delivery, in the order they came."""
        self.settled: set[str] = set()
        """Message ids whose ack was confirmed. Ids, not bodies: a publish that is tried again may be stored twice."""
        self.returned: list[str] = []
        """Message ids that came again after their ack was confirmed."""
        # What a killed server had delivered comes again when its lease ends: soon, where the client would ask for a minute.
        flow = FlowControl(max_messages=100, min_duration_per_lease_extension=10, max_duration_per_lease_extension=10)
        self._client = eager(pubsub_v1.SubscriberClient, google.host)
        self.future = self._client.subscribe(subscription, self._receive, flow_control=flow, await_callbacks_on_shutdown=True)

    def _receive(self, message: Any) -> None:
        body = message.data.decode()
        with self._bell:
            self.order.append((message.ordering_key, body))
            if message.message_id in self.settled:
                self.returned.append(message.message_id)
            self._bell.notify_all()
        if not self._exactly_once:
            message.ack()
            return
        answer = message.ack_with_response()
        answer.add_done_callback(lambda done: self._confirmed(message.message_id, done))

    def _confirmed(self, message_id: str, answer: Any) -> None:
        with contextlib.suppress(AcknowledgeError):
            answer.result()
            with self._bell:
                self.settled.add(message_id)

    def wait_for(self, bodies: set[str]) -> None:
        """Return when all of these have come."""
        with self._bell:
            # The more often it was cut off, the longer Google's client waits before it connects again.
            came = self._bell.wait_for(lambda: bodies <= {body for _, body in self.order}, PATIENCE + 5 * KILLS)
            missing = bodies - {body for _, body in self.order}
        assert came, f"{len(missing)} confirmed messages never came: {sorted(missing)[:5]}"

    def stop(self) -> None:
        """Returns when the last callback has ended."""
        self.future.cancel()
        with contextlib.suppress(exceptions.GoogleAPICallError):
            self.future.result(PATIENCE)
        self._client.close()


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


@pytest.mark.timeout(240 + 30 * KILLS)
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
    server = ServerProcess(data_dir, port=free_port(), grpc_port=free_port()).start()
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
