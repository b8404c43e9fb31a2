"""The hub and the broker in one server: what one door takes in comes out at the other, and a crash loses nothing confirmed."""

from __future__ import annotations

import base64
from pathlib import Path

import aiohttp

from penstock import Message
from penstock.client import PubSub
from penstock.testing.server import LocalServer, ServerProcess
from tests.integration.hub.feed_desk import in_loop
from tests.integration.hub.wire import Wire, member

TOPIC = "/v1/projects/penstock/topics/orders"
LIVES = 2


def test_what_services_publish_reaches_browsers_and_what_browsers_publish_reaches_services() -> None:
    async def scenario(server: LocalServer) -> None:
        async with member(server.url, "@(browser/ui)") as wire, aiohttp.ClientSession() as http, PubSub(server.url) as client:
            await wire.ask("hub:subscribe", {"topic": "orders/#"})
            billing = await client.subscription("billing", topic="orders").create()
            body = {"messages": [{"data": base64.b64encode(b'{"n": 1}').decode(), "attributes": {"hub.type": "order:new"}}]}
            async with http.post(f"{server.url}{TOPIC}:publish", json=body) as answer:
                assert answer.status == 200
            await client.topic("orders").publish_many([Message(b"\x00\x01", {"type": "blob", "hub.topic": "orders/eu"})])

            first, second = await wire.next(), await wire.next()
            assert (first["type"], first["from"], first["payload"]) == ("order:new", "@(penstock/orders)", {"n": 1})
            assert (first["metadata"]["topic"], first["metadata"]["offset"]) == ("orders", 0)
            assert (second["type"], second["payload"]) == ("blob", {"base64": "AAE="})
            assert (second["metadata"]["topic"], second["metadata"]["offset"]) == ("orders/eu", 1)

            reply = await wire.ask("hub:publish", {"topic": "orders/us", "type": "order:new", "data": {"n": 3}})
            assert reply["payload"]["position"]["offset"] == 2
            got = [message for _ in range(3) for message in await billing.pull(1, wait=5)]
            assert (got[-1].data, got[-1].attributes["hub.topic"]) == (b'{"n": 3}', "orders/us")

    with LocalServer(hub_bind=("orders/#=orders",)) as server:
        in_loop(scenario(server))


def test_a_server_without_durable_subscriptions_has_no_topic_of_the_hubs() -> None:
    with LocalServer() as server:
        assert not server.broker.catalog.topics


async def publishing(url: str, life: int, confirmed: list[str], kill: int, server: ServerProcess) -> None:
    """Publish without waiting for each, note what is confirmed, and kill the server in the middle of it."""
    async with member(url, "@(service/shop)") as wire:
        for number in range(2 * kill):
            await wire.say("hub:publish", {"topic": "orders/eu", "type": "n", "data": f"{life}-{number}"}, id=f"{life}-{number}")
        try:
            while True:
                frame = await wire.next()
                if frame["type"] == "hub:delivery_ack":
                    confirmed.append(frame["payload"]["messageId"])
                    if len(confirmed) % kill == 0:
                        server.kill()
        except AssertionError:
            return  # the connection is gone


async def taken(wire: Wire, seen: list[str], wanted: set[str]) -> None:
    """Take what a durable subscription brings until everything wanted has come; half of it is acknowledged."""
    while not wanted <= set(seen):
        frame = await wire.next()
        if frame["type"] == "n":
            seen.append(frame["payload"])
            if len(seen) % 2:
                await wire.say("hub:ack", {"messageId": frame["metadata"]["messageId"]})


def test_nothing_confirmed_is_lost_by_kill_9_for_a_durable_subscriber(tmp_path: Path) -> None:
    confirmed: list[str] = []
    seen: list[str] = []
    server = ServerProcess(tmp_path, hub_history="orders")

    async def life(number: int, kill: int) -> None:
        async with member(server.url, "@(browser/ui)") as wire:
            reply = await wire.ask("hub:subscribe", {"topic": "orders/#", "durable": True})
            assert reply["type"] == "hub:subscribed", reply
            await taken(wire, seen, set(confirmed))
        if kill:
            await publishing(server.url, number, confirmed, kill, server)

    for number in range(LIVES):
        server.start()
        in_loop(life(number, 200))
    with server:
        in_loop(life(LIVES, 0))

    assert len(confirmed) >= LIVES * 200
    assert set(confirmed) <= set(seen)
    firsts = [*dict.fromkeys(seen)]
    for number in range(LIVES):
        mine = [int(one.partition("-")[2]) for one in firsts if one.startswith(f"{number}-")]
        assert mine == sorted(mine)
