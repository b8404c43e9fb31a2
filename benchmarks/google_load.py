"""Load from Google's own client, as a user writes it: `PublisherClient` and `SubscriberClient` with their defaults.

It runs in a process of its own, so that its processor time can be told from the server's; its last line is JSON.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

from benchmarks.process import Meter
from benchmarks.row import PAYLOAD

PROJECT = "bench"
DEADLINE = 120


def publish_and_subscribe(address: str, pid: int, number: int) -> dict[str, float]:
    """Publish so many messages while a subscriber takes and acks them."""
    os.environ["PUBSUB_EMULATOR_HOST"] = address
    from google.cloud import pubsub_v1

    publisher, subscriber = pubsub_v1.PublisherClient(), pubsub_v1.SubscriberClient()
    name = f"load-{os.getpid()}"
    topic, subscription = publisher.topic_path(PROJECT, name), subscriber.subscription_path(PROJECT, name)
    publisher.create_topic(name=topic)
    subscriber.create_subscription(name=subscription, topic=topic, ack_deadline_seconds=60)
    seen: set[str] = set()
    lock, arrived = threading.Lock(), threading.Condition()

    def callback(message: Any) -> None:
        message.ack()
        with lock:
            seen.add(message.message_id)
            is_enough = len(seen) in (number // 10, number + number // 10)
        if is_enough:
            with arrived:
                arrived.notify()

    def send(count: int, total: int) -> None:
        futures = [publisher.publish(topic, b"x" * PAYLOAD) for _ in range(count)]
        for future in futures:
            future.result(DEADLINE)
        with arrived:
            if not arrived.wait_for(lambda: len(seen) >= total, DEADLINE):
                raise RuntimeError(f"{len(seen)} messages came, expected {total}")

    pull = subscriber.subscribe(subscription, callback)
    # The first tenth makes connections and threads.
    send(number // 10, number // 10)
    meter = Meter(pid)
    send(number, number + number // 10)
    found = meter.read(number)
    pull.cancel()
    pull.result(DEADLINE)
    subscriber.delete_subscription(subscription=subscription)
    publisher.delete_topic(topic=topic)
    return found


def main() -> None:
    print(json.dumps(publish_and_subscribe(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))


if __name__ == "__main__":
    main()
