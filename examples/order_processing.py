"""A shop: orders come in per customer, in order; invoices and mails are made by a worker; what fails is found and repaired.

    python examples/order_processing.py                            everything in this process, in memory
    python examples/order_processing.py http://127.0.0.1:8085      the same on a server (`penstock serve`)

Topic `orders` ──> subscription `fulfilment` (one event of a customer at a time) ──> tasks `invoice` and `mail` in work queues
                        └── an event that cannot be read ──> topic `orders-unreadable`
"""

import asyncio
import logging
import sys
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from penstock import DeadLetterPolicy, IncomingMessage, PubSub, SubscriptionOptions, Worker
from penstock.worker import Reject, Retry

EVENTS = [
    ("ann", {"event": "placed", "order": 1, "cents": 1200}),
    ("bob", {"event": "placed", "order": 2, "cents": -5}),  # a mistake: no invoice can be made of it
    ("ann", {"event": "paid", "order": 1}),
    ("cid", "not an event at all"),
    ("bob", {"event": "paid", "order": 2}),
    ("ann", {"event": "shipped", "order": 1}),
    ("bob", {"event": "shipped", "order": 2}),
]


class Shop:
    """What the shop knows, and what it does when something happens."""

    def __init__(self, pubsub: PubSub) -> None:
        self.pubsub = pubsub
        self.prices: dict[int, int] = {}
        self.history: dict[str, list[str]] = defaultdict(list)
        self.invoices: list[str] = []
        self.mails: list[str] = []
        self.errors: list[Exception] = []
        self.worker = Worker(pubsub=pubsub, concurrency=4)
        self._mail_tries: dict[str, int] = defaultdict(int)

        @self.worker.task("invoices", max_retries=3, backoff=(0.01, 1), time_limit=10)
        def invoice(customer: str, order: int, cents: int) -> None:  # blocking work: it runs in a thread
            if cents < 0:
                raise Reject(f"order {order} has a price of {cents} cents")
            self.invoices.append(f"{customer}: order {order}, {cents / 100:.2f}")

        @self.worker.task("mails", max_retries=3, backoff=(0.01, 1))
        async def mail(customer: str, text: str) -> None:
            self._mail_tries[text] += 1
            if self._mail_tries[text] == 1:
                raise Retry("the mail server is busy", delay=0.01)
            self.mails.append(f"{customer}: {text}")

        self.invoice, self.mail = invoice, mail

    async def handle(self, message: IncomingMessage) -> None:
        """An event of a customer. The next one of the same customer comes when this one is acked."""
        event = message.json()
        customer, order = message.ordering_key, event["order"]
        self.history[customer].append(f"{event['event']} {order}")
        match event["event"]:
            case "placed":
                self.prices[order] = event["cents"]
            case "paid":
                await self.invoice.send(customer, order, self.prices[order])
            case "shipped":
                await self.mail.send(customer, f"order {order} is on its way")
        message.ack()


@asynccontextmanager
async def shop_on(pubsub: PubSub) -> AsyncIterator[Shop]:
    """The shop at work: what it needs exists, its subscription is open, its worker runs."""
    orders = await pubsub.topic("orders").create(exist_ok=True)
    unreadable = await pubsub.topic("orders-unreadable").create(exist_ok=True)
    await unreadable.subscription("triage").create(exist_ok=True)
    fulfilment = orders.subscription("fulfilment", message_ordering=True)
    await fulfilment.create(
        SubscriptionOptions(message_ordering=True, dead_letter_policy=DeadLetterPolicy("orders-unreadable", 2)), exist_ok=True
    )
    shop = Shop(pubsub)
    fulfilment.on("message", shop.handle)
    fulfilment.on("error", shop.errors.append)  # the message returns; the second time it dies
    await shop.worker.start()
    fulfilment.open()
    try:
        yield shop
    finally:
        await fulfilment.close()
        await shop.worker.stop()


async def settled(pubsub: PubSub) -> None:
    """Return when nothing waits and nothing is worked on."""
    while True:
        overview = await pubsub.overview()
        backlog = sum(one.stats.backlog for one in overview.subscriptions if one.name == "fulfilment")
        if backlog + sum(queue.depth + queue.delayed + queue.in_flight for queue in overview.queues) == 0:
            return
        await asyncio.sleep(0.01)


async def main(server: str | None) -> None:
    """Let a day pass in the shop."""
    async with PubSub(server) as pubsub, shop_on(pubsub) as shop:
        orders = pubsub.topic("orders")
        await asyncio.gather(*(orders.publish_json(event, ordering_key=customer) for customer, event in EVENTS))
        await settled(pubsub)
        for customer in sorted(shop.history):
            print(f"{customer}: {', '.join(shop.history[customer])}")
        print("invoices:", *sorted(shop.invoices), sep="\n  ")
        print("mails:", *sorted(shop.mails), sep="\n  ")

        [lost] = await pubsub.subscription("triage").pull(wait=10)
        print(f"unreadable: {lost.data.decode()} ({lost.attributes['penstock.reason']}; {len(shop.errors)} tries)")
        await lost.ack_with_response()

        invoices = pubsub.queue("invoices")
        for letter in await invoices.dead_letters():
            print(f"dead: {letter.last_error}")
            _, order, cents = letter.message.payload["args"]
            await shop.invoice.send("bob", order, -cents)  # what was meant
        await invoices.purge_dead_letters()
        await settled(pubsub)
        print("repaired:", max(shop.invoices))


if __name__ == "__main__":
    logging.basicConfig(level=logging.CRITICAL)  # a worker logs every task; here the story is printed
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else None))
