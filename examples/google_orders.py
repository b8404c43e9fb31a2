"""Orders with Google's own Pub/Sub client against a Penstock server: ordering keys, a stream of deliveries, a dead letter.

    penstock serve
    PUBSUB_EMULATOR_HOST=127.0.0.1:8085 python examples/google_orders.py

Needs `pip install google-cloud-pubsub`. Nothing in it knows Penstock: it would run against Google's service as well.
"""

import queue
from contextlib import suppress
from typing import Any

from google.api_core.exceptions import AlreadyExists
from google.cloud import pubsub_v1

PROJECT = "shop"
ORDERED = pubsub_v1.types.PublisherOptions(enable_message_ordering=True)


def set_up(publisher: pubsub_v1.PublisherClient, subscriber: pubsub_v1.SubscriberClient) -> None:
    """Create what is missing. A message that failed five times goes to the topic of dead letters."""
    orders, dead = (publisher.topic_path(PROJECT, name) for name in ("orders", "orders-dead"))
    policy = {"dead_letter_topic": dead, "max_delivery_attempts": 5}
    for topic in (orders, dead):
        with suppress(AlreadyExists):
            publisher.create_topic(name=topic)
    for name, options in {
        "billing": {"topic": orders, "enable_message_ordering": True, "dead_letter_policy": policy},
        "triage": {"topic": dead},
    }.items():
        with suppress(AlreadyExists):
            subscriber.create_subscription(request={"name": subscriber.subscription_path(PROJECT, name), **options})


def main() -> None:
    """Publish four orders of two customers; one of them is not a number."""
    publisher, subscriber = pubsub_v1.PublisherClient(publisher_options=ORDERED), pubsub_v1.SubscriberClient()
    done: queue.SimpleQueue[str] = queue.SimpleQueue()

    def bill(message: Any) -> None:  # runs in a thread of the client
        try:
            done.put(f"billing: {message.ordering_key} pays {int(message.data)}")
        except ValueError:
            message.nack()
        else:
            message.ack()

    def triage(letter: Any) -> None:
        reason, attempts = letter.attributes["penstock.reason"], letter.attributes["penstock.attempts"]
        done.put(f"triage: {letter.data!r} of {letter.ordering_key}: {reason} after {attempts} attempts")
        letter.ack()

    with subscriber:
        set_up(publisher, subscriber)
        orders = publisher.topic_path(PROJECT, "orders")
        sent = [
            publisher.publish(orders, data, ordering_key=customer)
            for customer, data in [("ann", b"1200"), ("bob", b"twelve"), ("ann", b"300"), ("bob", b"500")]
        ]
        for future in sent:
            future.result(timeout=10)  # returns when the message is safe on disk

        streams = [
            subscriber.subscribe(subscriber.subscription_path(PROJECT, name), callback=handle)
            for name, handle in [("billing", bill), ("triage", triage)]
        ]
        printed: set[str] = set()
        while len(printed) < len(sent):
            line = done.get(timeout=20)
            if line not in printed:  # with a message of bob that failed, his later ones are delivered again, too
                print(line)
            printed.add(line)
        for stream in streams:
            stream.cancel()
            stream.result()
    publisher.stop()


if __name__ == "__main__":
    main()
