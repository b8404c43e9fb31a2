"""Hub topics that are bound to a broker's topic: what services publish browsers see, and what browsers publish services see.

The binding is `orders/#=orders`; the log API, which is where Spark reads, has both.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator

import aiohttp
import pytest

from penstock import Message
from penstock.client import PubSub
from penstock.log.http import HttpLog
from penstock.testing.server import LocalServer
from tests.integration.hub.feed_desk import in_loop
from tests.integration.hub.wire import Json, Wire, member

BROWSER, OTHER = "@(browser/ui)", "@(browser/other)"
WAIT = 30.0


@pytest.fixture
def server() -> Iterator[LocalServer]:
    with LocalServer(hub_bind=("orders/#=orders",)) as running:
        yield running


async def listening(wire: Wire, pattern: str) -> Json:
    reply = await wire.ask("hub:subscribe", {"topic": pattern})
    assert reply["type"] == "hub:subscribed", reply
    found: Json = reply["payload"]
    return found


def test_what_a_service_publishes_is_seen_by_every_browser_that_subscribes(server: LocalServer) -> None:
    """By Penstock's client, and by the REST API that Google's clients use."""

    async def scene() -> None:
        async with member(server.url, BROWSER) as all_, member(server.url, OTHER) as some, PubSub(server.url) as client:
            await listening(all_, "orders/#")
            await listening(some, "orders/eu/+")
            placed = Message(b'{"id": 1}', {"hub.topic": "orders/eu/42", "hub.type": "order:placed"})
            await client.topic("orders").publish_many([placed, Message(b"no json", {"type": "raw"})])
            async with aiohttp.ClientSession() as http:
                body = {"messages": [{"data": base64.b64encode(b"[3]").decode(), "attributes": {"hub.topic": "orders/us"}}]}
                path = f"{server.url}/v1/projects/penstock/topics/orders:publish"
                async with http.post(path, json=body) as answer:
                    assert answer.status == 200

            frames = [await all_.next() for _ in range(3)]
            assert [(one["metadata"]["topic"], one["type"], one["payload"]) for one in frames] == [
                ("orders/eu/42", "order:placed", {"id": 1}),
                ("orders", "raw", {"base64": base64.b64encode(b"no json").decode()}),
                ("orders/us", "message", [3]),
            ]
            assert [one["metadata"]["offset"] for one in frames] == [0, 1, 2]
            assert {(one["from"], one["to"]) for one in frames} == {("@(penstock/orders)", BROWSER)}
            mine = await some.next()
            assert (mine["to"], mine["payload"], mine["metadata"]["offset"]) == (OTHER, {"id": 1}, 0)
            await some.nothing_more()

    in_loop(scene())


def test_what_a_browser_publishes_is_pulled_by_services_and_lies_in_the_log(server: LocalServer) -> None:
    async def scene() -> None:
        async with member(server.url, BROWSER) as browser, PubSub(server.url) as client:
            billing = await client.subscription("billing", topic="orders").create()
            await listening(browser, "orders/#")
            data = {"id": 7, "what": "тea ☕"}
            payload = {"topic": "orders/eu", "type": "order:placed", "data": data}
            reply = await browser.ask("hub:publish", payload, id="request-7", **{"from": BROWSER})
            assert reply["payload"]["position"]["offset"] == 0

            (message,) = await billing.pull(1, wait=WAIT)
            assert json.loads(message.data) == data
            wanted = {"hub.topic": "orders/eu", "hub.type": "order:placed", "hub.from": BROWSER, "hub.id": "request-7"}
            assert wanted.items() <= dict(message.attributes).items()
            message.ack()
            seen = await browser.expect("order:placed")
            assert (seen["payload"], seen["metadata"]["offset"]) == (data, 0)
            await browser.nothing_more()

    in_loop(scene())
    with HttpLog(server.url) as log:
        (span,) = log.spans(["orders"]).streams
        (row,) = [row for batch in log.messages(span, 0, span.latest) for row in batch.to_pylist()]
    assert json.loads(row["value"]) == {"id": 7, "what": "тea ☕"}
    assert {("hub.topic", "orders/eu"), ("hub.from", BROWSER)} <= {*dict(row["attributes"]).items()}


def test_both_come_in_one_order_and_who_returns_finds_both(server: LocalServer) -> None:
    async def scene() -> None:
        async with member(server.url, BROWSER) as browser, PubSub(server.url) as client:
            since = (await listening(browser, "orders/#"))["position"]
            for number in range(0, 20, 2):
                await client.topic("orders").publish_many([Message(str(number).encode())])
                await browser.ask("hub:publish", {"topic": "orders/eu", "type": "n", "data": number + 1})
            live = [await browser.next() for _ in range(20)]
        async with member(server.url, BROWSER) as browser:
            reply = await browser.ask("hub:subscribe", {"topic": "orders/#", "since": since})
            assert reply["payload"]["recovered"] is True
            again = [await browser.next() for _ in range(20)]
            await browser.nothing_more()
        for frames in (live, again):
            assert [one["payload"] for one in frames] == [*range(20)]
            assert [one["metadata"]["offset"] for one in frames] == [*range(20)]

    in_loop(scene())
