"""Orders go to a queue, a router delivers them to the HTTP target in this program, and what it refuses is a dead letter.

Start a router first, then this:

    penstock router run --config config.json --allow 127.0.0.1
    python orders.py http://127.0.0.1:8095
"""

import asyncio
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from penstock import PubSub

PRICES = {"ann-1": 1200, "ann-2": 300, "bob-1": -5, "ann-3": 0, "bob-2": 700}
SEEN: list[tuple[str, int]] = []


class Shop(BaseHTTPRequestHandler):
    """Is told the id of an order, looks it up, and answers with 200 when it is done, with 400 when it never will be."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Take an order."""
        order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["messageId"]
        status = 400 if PRICES[order] < 0 else 200
        SEEN.append((order, status))
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing of every request."""


async def main(server: str) -> None:
    """Send the orders, and wait until the router has dealt with all of them."""
    shop = ThreadingHTTPServer(("127.0.0.1", 0), Shop)
    threading.Thread(target=shop.serve_forever, daemon=True).start()
    async with PubSub(server) as pubsub:
        queue = await pubsub.queue("orders").create(exist_ok=True)
        for order in PRICES:
            await queue.publish(
                {
                    "id": order,
                    "poolCode": "HOOKS",
                    "mediationTarget": f"http://127.0.0.1:{shop.server_port}/orders",
                    "messageGroupId": order.partition("-")[0],  # the orders of a customer are delivered in order
                }
            )
        while (stats := await queue.stats()).acked_total + stats.dead_letters < len(PRICES):  # noqa: ASYNC110  # no event reports it
            await asyncio.sleep(0.05)
        for customer in ("ann", "bob"):
            print(f"{customer}:", ", ".join(f"{order} {status}" for order, status in SEEN if order.startswith(customer)))
        for letter in await queue.dead_letters():
            print(f"dead: {letter.message.payload['id']}: {letter.reason}, {letter.last_error}")
    shop.shutdown()


asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8095"))
