"""The part of the proof that Google does: its own Pub/Sub client, unmodified, against a server of ours.

The client is configured with PUBSUB_EMULATOR_HOST alone. `server_chapter` prints and checks the results.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from google.api_core.exceptions import GoogleAPIError
from google.api_core.retry import Retry
from google.cloud import pubsub_v1

from penstock.clock import monotonic
from penstock.durations import SECOND
from proof.screen import ClaimFailed

PROJECT = "demo"
PATIENCE = 60.0  # seconds that a step waits at most for what must come sooner
ATTEMPTS = 5  # the fewest that Google's API takes for a dead-letter policy

Received = Any  # the client's own message; it ships no types


class Google:
    """A publisher and a subscriber of Google's, at a server. Use it as a context manager."""

    def __init__(self, address: str) -> None:
        os.environ["PUBSUB_EMULATOR_HOST"] = address
        # The client logs every connection that a killed server breaks. That is what is shown here, so it need not say it.
        logging.getLogger("google").addHandler(logging.NullHandler())
        # Its own pause before it tries again grows to a minute; nobody should have to watch that.
        retry = Retry(initial=0.1, multiplier=1.3, maximum=0.5)
        options = pubsub_v1.types.PublisherOptions(enable_message_ordering=True, retry=retry)
        self.publisher = pubsub_v1.PublisherClient(publisher_options=options)
        self.subscriber = pubsub_v1.SubscriberClient()

    def topic(self, name: str) -> str:
        """The full name of a new topic."""
        path: str = self.publisher.topic_path(PROJECT, name)
        self.publisher.create_topic(name=path, timeout=PATIENCE)
        return path

    def subscription(self, name: str, topic: str, **options: Any) -> str:  # Any: the client's own arguments
        """The full name of a new subscription."""
        path: str = self.subscriber.subscription_path(PROJECT, name)
        self.subscriber.create_subscription(request={"name": path, "topic": topic, **options}, timeout=PATIENCE)
        return path

    def dead_letter_policy(self, topic: str) -> dict[str, Any]:
        """Dead after the fewest attempts that the API allows."""
        return {"dead_letter_topic": topic, "max_delivery_attempts": ATTEMPTS}

    def receive(self, subscription: str, handle: Callable[[Received], None], is_all: Callable[[], bool]) -> bool:
        """Stream deliveries to `handle`, in threads of the client, until `is_all` says so; False when it never does."""
        done = threading.Event()

        def called(message: Received) -> None:
            handle(message)
            if is_all():
                done.set()

        stream = self.subscriber.subscribe(subscription, callback=called)
        is_done = done.wait(PATIENCE)
        stream.cancel()
        stream.result()
        return is_done

    def __enter__(self) -> Google:
        return self

    def __exit__(self, *_: object) -> None:
        self.publisher.stop()
        self.publisher.transport.close()
        self.subscriber.close()


class Load:
    """Publishes numbered messages under several keys, all at once, and remembers which were confirmed."""

    def __init__(self, google: Google, topic: str, keys: list[str]) -> None:
        self._google = google
        self._topic = topic
        self._keys = keys
        self._changed = threading.Condition()
        self.confirmed: list[str] = []
        self.failed: list[str] = []
        self.sent = 0

    def send(self, count: int) -> None:
        """Hand messages for each key to the client, which sends them in batches of its own."""
        for number in range(self.sent // len(self._keys), self.sent // len(self._keys) + count):
            for key in self._keys:
                self._google.publisher.publish(self._topic, b"%d" % number, ordering_key=key).add_done_callback(self._settled)
                self.sent += 1

    def wait(self, count: int) -> None:
        """Until enough were confirmed."""
        with self._changed:
            enough = self._changed.wait_for(lambda: len(self.confirmed) >= count or self.failed, PATIENCE)
        if not enough or self.failed:
            raise ClaimFailed(f"{count} messages are confirmed (found: {len(self.confirmed)}, failed: {self.failed[:1]})")

    def _settled(self, future: Any) -> None:  # Any: the client's own future
        error = future.exception()
        with self._changed:
            if error is None:
                self.confirmed.append(future.result())
            else:
                self.failed.append(f"{type(error).__name__}: {error}")
            self._changed.notify_all()


class Drain:
    """What came back from a subscription: ids, and by key the numbers in the order of their first arrival.

    A publish whose answer was lost with the server is sent again by the client, so a number may come twice, with two ids.
    """

    def __init__(self, wanted: Iterable[str]) -> None:
        self._lock = threading.Lock()
        self.missing = set(wanted)
        self.ids: set[str] = set()
        self.numbers: dict[str, list[int]] = defaultdict(list)
        self._seen: set[tuple[str, int]] = set()
        self.seconds = 0.0

    def take(self, google: Google, subscription: str) -> None:
        """Receive and ack until every wanted id came, or nothing more does."""
        started = monotonic()

        def handle(message: Received) -> None:
            number = int(message.data)
            with self._lock:
                self.missing.discard(message.message_id)
                self.ids.add(message.message_id)
                if (message.ordering_key, number) not in self._seen:
                    self._seen.add((message.ordering_key, number))
                    self.numbers[message.ordering_key].append(number)
            message.ack()

        google.receive(subscription, handle, lambda: not self.missing)
        self.seconds = (monotonic() - started) / SECOND

    @property
    def is_in_order(self) -> bool:
        """Whether the messages of each key first came as 0, 1, 2 and so on."""
        return all(numbers == list(range(len(numbers))) for numbers in self.numbers.values())


@contextmanager
def client_errors() -> Iterator[None]:
    """What the client raises is a claim that does not hold."""
    try:
        yield
    except GoogleAPIError as error:
        raise ClaimFailed(f"Google's client is served: {type(error).__name__}: {error}") from error
