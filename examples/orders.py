"""Orders: one topic, two subscriptions, and a place for what cannot be processed.

Run it twice: `python examples/orders.py [DATA_DIRECTORY]`. Without a directory it works in memory.
"""

import sys

from penstock import DeadLetterPolicy, Message, MessageQueue, SubscriptionOptions


def set_up(queue: MessageQueue) -> None:
    """Create what is missing. The dead-letter topic needs a subscription of its own, or dead letters stay where they are."""
    for topic in ("orders", "orders-dead"):
        if not queue.topic_exists(topic):
            queue.register_topic(topic)
    wanted = {
        "shipping": ("orders", SubscriptionOptions(message_ordering=True)),
        "billing": (
            "orders",
            SubscriptionOptions(
                filter='NOT attributes.kind = "gift"',
                dead_letter_policy=DeadLetterPolicy(dead_letter_topic="orders-dead", max_delivery_attempts=3),
            ),
        ),
        "triage": ("orders-dead", SubscriptionOptions()),
    }
    for name, (topic, options) in wanted.items():
        if not queue.subscription_exists(name):
            queue.register_subscription(name, topic, options)


def bill(message: bytes) -> None:
    """Fails for what is not a number of cents."""
    print(f"billing: charged {int(message)} cents")


def work_off_billing(queue: MessageQueue) -> None:
    """Bill until nothing is left: acked when it worked, nacked when it did not, dead after the third time."""
    while batch := queue.pull("billing", max_messages=10):
        for message in batch:
            try:
                bill(message.data)
            except ValueError as error:
                print(f"billing: delivery {message.delivery_attempt} failed: {error}")
                queue.nack(message.ack_id)
            else:
                queue.ack(message.ack_id)


def main() -> None:
    """Publish three orders and let everybody do their part."""
    data_dir = sys.argv[1] if len(sys.argv) > 1 else None
    with MessageQueue(data_dir=data_dir) as queue:
        set_up(queue)
        queue.publish(
            "orders",
            [
                Message(data=b"1200", ordering_key="ann"),
                Message(data=b"twelve", ordering_key="bob"),
                Message(data=b"0", attributes={"kind": "gift"}, ordering_key="ann"),
            ],
        )

        work_off_billing(queue)

        while batch := queue.pull("shipping", max_messages=10):
            print("shipping: " + ", ".join(f"{message.ordering_key} {message.data.decode()}" for message in batch))
            queue.ack_many([message.ack_id for message in batch])

        for letter in queue.pull("triage", max_messages=10):
            why = {key.removeprefix("penstock."): value for key, value in letter.attributes.items()}
            print(f"triage: {letter.data!r} from {why['source']}: {why['reason']} after {why['attempts']} attempts")
            queue.ack(letter.ack_id)


if __name__ == "__main__":
    main()
