"""A small shop's messages: what the console is tested with, and what its pictures show."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from penstock import DeadLetterPolicy, Message, MessageQueue, QueueConfig, QueueManager, RetryPolicy, SubscriptionOptions
from penstock.broker.broker import Broker

FULL = "SMTP 550 mailbox {} unavailable"
BROKEN = "cannot identify image file 'upload-{}.png'"


@dataclass
class Shop:
    """The shop's queues and topics at a broker, and the messages that tests look at."""

    queues: QueueManager
    topics: MessageQueue
    dead_mail: str = ""
    """A mail that died after its retries."""
    blocked_order: str = ""
    """An order that waits behind another one of the same customer."""


def _mail(number: int) -> str:
    # The number of the order is larger than what a browser's numbers can hold.
    return json.dumps({"to": f"customer-{number}@shop.example", "template": "welcome", "order": 9007199254740993 + number})


def _use_up(queues: QueueManager, queue: str, error: str, advance: Callable[[float], None]) -> str:
    """Let the next message of a queue fail until it is dead; its id."""
    while True:
        message = queues.consume(queue, "worker-1")
        assert message is not None, "there is one"
        advance(2)
        if queues.nack(queue, message.message_id, consumer_id="worker-1", error=error).action == "dead_lettered":
            return message.message_id
        advance(45)


def fill(broker: Broker, advance: Callable[[float], None] = lambda _: None, backoff: float = 0) -> Shop:
    """Everything that the pages show. `advance` moves a clock that stands still otherwise; `backoff` is before each retry."""
    shop = Shop(QueueManager(broker=broker), MessageQueue(broker=broker))
    queues, topics = shop.queues, shop.topics
    retries = QueueConfig(max_retries=2, retry_policy=RetryPolicy(backoff, 2 * backoff))

    queues.create("mail", retries)
    for number in range(4):
        queues.publish("mail", _mail(number), priority=5, headers={"tenant": "eu" if number % 2 else "us", "kind": "welcome"})
        shop.dead_mail = _use_up(queues, "mail", FULL.format(number), advance)
    for number in range(40):
        queues.publish("mail", _mail(100 + number), priority=(0, 5, 9)[number % 3])
        advance(1)

    queues.create("thumbnails", retries)
    for number in range(2):
        queues.publish("thumbnails", json.dumps({"image": f"upload-{number}.png"}))
        _use_up(queues, "thumbnails", BROKEN.format(number), advance)
    for number in range(12):
        queues.publish("thumbnails", {"v": 1, "task": "make_thumbnail", "args": [f"upload-{number}.png", 320]})
    for _ in range(5):
        message = queues.consume("thumbnails", "worker-2")
        assert message is not None
        advance(0.2)
        queues.ack("thumbnails", message.message_id, consumer_id="worker-2")
    queues.consume_many("thumbnails", "worker-2", max_messages=3, ack_deadline=600)

    queues.create("invoices")
    for number in range(8):
        queues.publish("invoices", json.dumps({"invoice": number}))
    queues.pause("invoices")
    queues.create("reports")

    topics.register_topic("orders")
    topics.register_topic("failed-orders")
    topics.register_subscription(
        "billing",
        "orders",
        SubscriptionOptions(message_ordering=True, dead_letter_policy=DeadLetterPolicy("failed-orders", 5)),
    )
    topics.register_subscription("shipping", "orders", SubscriptionOptions(filter='attributes.country = "NZ"'))
    orders = [
        Message(
            json.dumps({"order": number, "items": [{"sku": "b-1", "count": number}]}).encode(),
            {"country": "NZ" if number % 2 else "DE"},
            ordering_key=f"customer-{number % 3}",
        )
        for number in range(12)
    ]
    ids = topics.publish("orders", orders)
    topics.pull("billing", 3)
    shop.blocked_order = ids[3]
    return shop
