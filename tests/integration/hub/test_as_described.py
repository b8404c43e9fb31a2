"""What a real hub says is what its AsyncAPI document says it says: every reply, and every forwarded message."""

import asyncio
import json
from typing import Any

import aiohttp
import jsonschema_rs
import pytest

from penstock.hub.core.messages import COMMANDS, REPLIES
from penstock.hub.server.asyncapi import REPLIES_TO, asyncapi
from penstock.testing.server import LocalServer
from tests.integration.hub.wire import Json, Wire, connected, member, opened
from tests.node.modules import INSTALL_SECONDS, node_modules

OPEN = {"Envelope", "ForwardedMetadata"}
"""Schemas of objects to which others add their own."""
UI, AGENT = "@(browser/ui)", "@(agent/billing)"


class Described:
    """The messages of a document, and which of them were seen."""

    def __init__(self, document: Json) -> None:
        schemas = {
            name: {**schema, "additionalProperties": False} if name not in OPEN and "properties" in schema else schema
            for name, schema in document["components"]["schemas"].items()
        }
        components = {**document["components"], "schemas": schemas}
        self._checks = {
            name: jsonschema_rs.Draft7Validator({"allOf": [message["payload"]], "components": components})
            for name, message in components["messages"].items()
        }
        self.seen: set[str] = set()

    def check(self, frame: Json, *names: str) -> Json:
        """The frame, which is one of these messages and has no field in its payload that is not described."""
        valid = [name for name in names if self._checks[name].is_valid(frame)]
        assert valid, f"{frame} is none of {names}"
        self.seen.add(valid[0])
        return frame

    async def ask(self, wire: Wire, kind: str, payload: Any = None, **envelope: Any) -> Json:
        """Ask for something that is described, and check the answer."""
        self.check({"type": kind, "payload": payload, **envelope}, COMMANDS[kind].__name__)
        return self.check(await wire.ask(kind, payload, **envelope), *(reply.__name__ for reply in REPLIES_TO[kind]))


async def converse(url: str) -> set[str]:
    async with aiohttp.ClientSession() as session, session.get(f"{url}/asyncapi.json") as response:
        described = Described(await response.json())
    ask, check = described.ask, described.check
    async with opened(url) as wire, member(url, AGENT) as agent:
        await ask(wire, "hub:connect", {"version": "1.0"})
        check(await wire.ask("hub:connect", {}), "Error")
        registered = await ask(wire, "hub:register", {"actorAddress": UI, "capabilities": ["ui"], "metadata": {"room": 7}})
        await ask(wire, "hub:renew", {"renewalToken": registered["payload"]["renewalToken"]})
        await ask(wire, "hub:heartbeat", {"timestamp": 1})
        await ask(wire, "hub:discover", {"pattern": "agent"})
        await ask(wire, "hub:list_actors")
        # A topic without a log, one with, and what was missed of it.
        await ask(wire, "hub:subscribe", {"topic": "plain/#", "presence": True})
        await ask(agent, "hub:subscribe", {"topic": "plain/#"})
        check(await wire.expect("hub:presence"), "PresenceNews")
        await ask(agent, "hub:publish", {"topic": "plain/a", "type": "said", "data": [1]})
        check(await wire.expect("said"), "Forwarded")
        first = await ask(wire, "hub:subscribe", {"topic": "chat/lobby"})
        published = await ask(agent, "hub:publish", {"topic": "chat/lobby", "type": "kept", "data": None})
        assert published["payload"]["position"]["epoch"] == first["payload"]["position"]["epoch"]
        check(await wire.expect("kept"), "Forwarded")
        await ask(agent, "hub:subscribe", {"topic": "chat/lobby", "since": first["payload"]["position"]})
        check(await agent.expect("kept"), "Forwarded")
        await ask(wire, "hub:subscribe", {"topic": "bills/#", "durable": True})
        await ask(agent, "hub:publish", {"topic": "bills/1", "type": "bill"})
        bill = check(await wire.expect("bill"), "Forwarded")
        await ask(wire, "hub:ack", {"ackId": bill["metadata"]["ackId"]})
        await ask(wire, "hub:list_topics", {"prefix": "plain"})
        await ask(wire, "hub:topic_info", {"topic": "chat/lobby"})
        await ask(wire, "hub:topic_info", {"topic": "plain/a"})
        await ask(wire, "hub:presence", {"topic": "plain/#"})
        await ask(wire, "hub:unsubscribe", {"topic": "plain/#"})
        # Direct messages.
        await ask(wire, "hub:send", {"to": AGENT, "type": "asked", "data": {}}, metadata={"mine": 1})
        check(await agent.expect("asked"), "Forwarded")
        await ask(wire, "hub:send", {"to": "@(no/body)", "type": "asked"})
        await ask(wire, "hub:broadcast", {"type": "all", "data": "x"})
        check(await agent.expect("all"), "Forwarded")
        for kind in ("hub:pause", "hub:resume", "hub:queue_stats", "hub:metrics"):
            await ask(wire, kind, {})
        check(await wire.ask("hub:refresh_token", {"token": "x"}), "TokenRefreshed")
        # How it ends.
        await ask(wire, "hub:unregister")
        await ask(wire, "hub:disconnect")
        async with member(url, AGENT):
            check(await agent.expect("hub:disconnect"), "Disconnecting")
    async with connected(url) as wire:
        await wire.socket.send_bytes(b"{}")
        check(await wire.next(), "Error")
    return described.seen


def test_everything_that_a_hub_says_is_as_described() -> None:
    with LocalServer(hub_history=("chat",)) as server:
        seen = asyncio.run(converse(server.url))

    assert {kind.__name__ for kind in REPLIES} - seen == set()


@pytest.mark.timeout(INSTALL_SECONDS + 60)
def test_the_document_is_one_by_asyncapis_own_schema() -> None:
    document = asyncapi("1", "http://localhost")
    schema = node_modules() / "@asyncapi" / "specs" / "schemas" / f"{document['asyncapi']}-without-$id.json"

    faults = jsonschema_rs.validator_for(json.loads(schema.read_text())).iter_errors(document)

    assert [(fault.instance_path, fault.message) for fault in faults] == []
