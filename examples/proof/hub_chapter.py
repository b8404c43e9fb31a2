"""The hub's part of the proof: who hears what, what is not lost, and how browsers and services meet."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from pathlib import Path

from penstock import PubSub
from penstock.client import HubClient, HubMessage, HubMessages, Position
from proof.screen import Screen
from proof.server_chapter import missing_extras, serving

OPTIONS = {"hub_history": "chat", "hub_bind": "orders/#=orders"}
LISTENERS = 20
EACH = 10  # messages of a round
PATIENCE = 30.0  # seconds that a step waits at most for what must come sooner
AWAY = "@(demo/away)"


class HubDemo:
    """The steps, over one server that is killed before the last."""

    def __init__(self, screen: Screen, directory: Path) -> None:
        self.screen = screen
        self.directory = directory

    def run(self) -> None:
        """All steps, in order; none where libraries are missing."""
        if missing_extras():
            return  # the server's own steps have said it
        logging.getLogger("penstock").addHandler(logging.NullHandler())  # a gap is logged there too; here it is shown
        data = self.directory / "data"
        with serving(data, **OPTIONS) as server:
            asyncio.run(self._first_life(server.url))
            server.kill()
        with serving(data, **OPTIONS) as server:
            asyncio.run(self.resume(server.url))

    async def _first_life(self, url: str) -> None:
        await self.spread(url)
        await self.recover(url)
        await self.bridge(url)
        async with HubClient(url, address=AWAY) as client, client.subscribe("jobs/#", durable=True):
            pass  # the subscription stays when the client goes
        async with HubClient(url) as client:
            for number in range(EACH):
                await client.publish("jobs/print", number)

    async def spread(self, url: str) -> None:
        """One publishes, many hear it."""
        screen = self.screen
        screen.step("The hub: one publishes, many hear it at once")
        screen.say(f"{LISTENERS} WebSocket clients subscribe to 'chat/#' or 'chat/+/news', one publishes:")
        async with AsyncExitStack() as stack:
            heard: list[HubMessages] = []
            for number in range(LISTENERS):
                client = await stack.enter_async_context(HubClient(url, address=f"@(demo/reader-{number})"))
                heard.append(await stack.enter_async_context(client.subscribe("chat/#" if number % 2 else "chat/+/news")))
            writer = await stack.enter_async_context(HubClient(url, address="@(demo/writer)"))
            answer = [await writer.publish("chat/room/news", {"line": number}, type="line") for number in range(EACH)][-1]
            found = [await _some(messages, EACH) for messages in heard]
            first = found[0][0]
            screen.say(f"  {first.sender} to {first.topic}: {first.type} {first.data}")
            screen.proves(
                f"each of {LISTENERS} clients heard all {EACH} messages, once and in order",
                all([one.data for one in messages] == [{"line": number} for number in range(EACH)] for messages in found),
            )
            screen.proves(
                "the publisher learns how many there were", answer.subscriber_count == LISTENERS, answer.subscriber_count
            )
            screen.proves("who sent it is stamped by the hub", {one.sender for one in found[0]} == {"@(demo/writer)"})

    async def recover(self, url: str) -> None:
        """What was missed comes first."""
        screen = self.screen
        screen.step("A client was away: it gets exactly what it missed")
        async with HubClient(url) as writer:
            async with HubClient(url) as client, client.subscribe("chat/desk") as messages:
                await writer.publish("chat/desk", "seen")
                await _some(messages, 1)
                since = messages.position
            for number in range(EACH):
                await writer.publish("chat/desk", number)
            async with HubClient(url) as client, client.subscribe("chat/desk", since=since) as messages:
                await writer.publish("chat/desk", "live")
                found = await _some(messages, EACH + 1)
            screen.say(f"It returns with its last position, offset {since.offset if since else since}, and hears:")
            screen.say(f"  {[one.data for one in found]}")
            screen.proves(
                "everything it missed, once and in order, and then what is new",
                [one.data for one in found] == [*range(EACH), "live"] and not any(one.gap for one in found),
            )
            lost = Position("another-history", 0)
            async with HubClient(url) as client, client.subscribe("chat/desk", since=lost) as messages:
                await writer.publish("chat/desk", "after")
                [one] = await _some(messages, 1)
            screen.proves("one whose position is unknown is notified of a gap", one.gap is not None, one)

    async def bridge(self, url: str) -> None:
        """The same messages for browsers and for services."""
        screen = self.screen
        screen.step("Hub topics and the broker's topics are bound both ways")
        screen.say("penstock serve --hub-bind 'orders/#=orders'")
        async with PubSub(url) as service, HubClient(url, address="@(demo/browser)") as browser:
            topic = service.topic("orders")
            subscription = await topic.subscription("billing").create(exist_ok=True)
            async with browser.subscribe("orders/#") as messages:
                await topic.publish_message(b'{"order": 1}')
                [seen] = await _some(messages, 1)
                screen.proves("a browser sees what a service publishes", seen.data == {"order": 1}, seen)
                await browser.publish("orders/eu", {"order": 2}, type="order:created")
                _, pulled = [message for _ in range(2) for message in await subscription.pull(wait=PATIENCE)]
            screen.say(f"  {pulled.data.decode()}  {pulled.attributes['hub.topic']}  {pulled.attributes['hub.from']}")
            screen.proves(
                "a service, and Spark, see what a browser publishes", pulled.attributes["hub.type"] == "order:created", pulled
            )

    async def resume(self, url: str) -> None:
        """A durable subscription outlives its client and the server."""
        screen = self.screen
        screen.step("A durable subscription outlives its client, and kill -9 of the server")
        async with HubClient(url, address=AWAY) as client, client.subscribe("jobs/#", durable=True) as messages:
            found = await _some(messages, EACH)
            await client.ack(*found)
        screen.proves(
            f"the {EACH} messages that came while the actor was away were waiting, in order",
            [one.data for one in found] == [*range(EACH)],
            [one.data for one in found],
        )


async def _some(messages: HubMessages, number: int) -> list[HubMessage]:
    """This many messages, or TimeoutError."""
    async with asyncio.timeout(PATIENCE):
        return [await messages.get() for _ in range(number)]
