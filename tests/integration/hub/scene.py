"""A real server for the scenarios of the specification: its clock stands still, and every name in it is used once.

    async with scene.actor("alice") as alice, scene.actor("bob", ORIGINAL) as bob:
        await alice.subscribe(topic)
        count = await bob.publish(topic, {"n": 1})

An actor says what a client of its dialect says, in the envelope of that dialect. Scenarios that hold in both are run in both;
in the original's dialect they belong to the long ring, because `test_original_dialect.py` covers its translation.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, ParamSpec
from uuid import uuid4

import pytest

from penstock.durations import SECOND
from penstock.testing import ManualClock
from penstock.testing.server import LocalServer
from tests.integration.hub.wire import Json, Wire, opened

P = ParamSpec("P")

HUB = "@(cloudflare/signal-hub)"
UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[1-8][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
SPECIFICATION, ORIGINAL = "specification", "original"
SECONDS = 60.0

both = pytest.mark.parametrize("dialect", [SPECIFICATION, pytest.param(ORIGINAL, marks=pytest.mark.long)])


class Actor(Wire):
    """A client with an address, in the specification's dialect."""

    dialect = SPECIFICATION
    address = ""
    """Empty before it is registered."""
    session_id = ""
    renewal_token = ""

    async def ask(self, kind: str, payload: object = None, **envelope: object) -> Json:
        """Send a request; returns the hub's reply to it, which may be hub:error.

        In the original's dialect a message that somebody publishes and receives answers to the same id: it is not the reply.
        """
        asked = {"id": str(uuid4()), "pattern": "ask", **envelope}
        await self.say(kind, payload, **asked)
        return await self._first(
            lambda frame: frame.get("correlationId") == asked["id"] and frame["from"] == HUB, f"a reply to {kind}"
        )

    async def connect(self, token: str | None = None, *, resume: str | None = None, **envelope: object) -> Json:
        """hub:connect; returns the reply."""
        given = {"version": "1.0", "jwt": token, "resume": resume}
        return await self.ask("hub:connect", {name: value for name, value in given.items() if value is not None}, **envelope)

    async def register(self, address: str, **payload: object) -> Json:
        """hub:register; returns the reply."""
        self.address = address
        reply = await self.ask("hub:register", {"actorAddress": address, "capabilities": ["test"], **payload})
        self.renewal_token = reply["payload"].get("renewalToken", self.renewal_token)
        return reply

    async def subscribe(self, topic: str, **payload: object) -> Json:
        """The payload of hub:subscribed."""
        reply = await self.ask("hub:subscribe", {"topic": topic, **payload})
        assert reply["type"] == "hub:subscribed", reply
        found: Json = reply["payload"]
        return found

    async def unsubscribe(self, topic: str) -> None:
        """End a subscription; returns when it is over."""
        reply = await self.ask("hub:unsubscribe", {"topic": topic})
        assert reply["type"] == "hub:unsubscribed", reply

    async def unregister(self) -> None:
        """End the registration; returns when it is over."""
        reply = await self.ask("hub:unregister", {"actorAddress": self.address})
        assert reply["type"] == "hub:unregistered", reply

    async def publish(self, topic: str, data: object = None, **envelope: object) -> int:
        """Publish something of type `said`; returns to how many it was sent."""
        reply = await self.ask("hub:publish", {"topic": topic, "type": "said", "data": data}, **envelope)
        assert reply["type"] in {"hub:delivery_ack", "hub:published"}, reply
        found: int = reply["payload"]["subscriberCount"]
        return found

    async def refused(self, kind: str, payload: object = None, **envelope: object) -> Json:
        """The payload of the error that a request is answered with. Whoever is refused is told what to do."""
        reply = await self.ask(kind, payload, **envelope)
        assert (reply["type"], reply["from"]) == ("hub:error", HUB), reply
        error: Json = reply["payload"]
        assert error["resolution"]
        assert isinstance(error["details"]["retryable"], bool)
        return error

    async def topics(self, prefix: str) -> dict[str, int]:
        """The topics that have subscribers, and how many."""
        reply = await self.ask("hub:list_topics", {"prefix": prefix})
        assert reply["type"] == "hub:topic_list", reply
        return {one["topic"]: one["subscriberCount"] for one in reply["payload"]["topics"]}

    async def until_topics(self, prefix: str, wanted: dict[str, int]) -> None:
        """Wait until the server has noticed the end of another connection. A test's own time limit ends it."""
        while await self.topics(prefix) != wanted:
            pass


class OriginalActor(Actor):
    """A client that was written for the original implementation: it sends the whole envelope, and connects by metadata."""

    dialect = ORIGINAL

    async def say(self, kind: str, payload: object = None, **envelope: object) -> None:
        """Send a message with all fields, each with what that client puts there unless told."""
        whole: Json = {
            "id": str(uuid4()),
            "from": self.address or "@(browser/somebody)",
            "to": HUB,
            "pattern": "tell",
            "correlationId": None,
            "timestamp": 1_767_225_600_000,
            "metadata": {},
            "ttl": None,
            "signature": None,
        }
        await super().say(kind, payload, **(whole | envelope))

    async def ask(self, kind: str, payload: object = None, **envelope: object) -> Json:
        """Every answer is a whole envelope."""
        reply = await super().ask(kind, payload, **envelope)
        check_envelope(reply)
        return reply

    async def connect(self, token: str | None = None, *, resume: str | None = None, **envelope: object) -> Json:
        metadata = {
            "protocolVersion": "0.1.0",
            "capabilities": ["test"],
            "clientMetadata": {"userAgent": "a test", "platform": "here"},
            **({} if token is None else {"authToken": f"bearer {token}"}),
            **({} if resume is None else {"resume": resume}),
        }
        return await self.ask("hub:connect", None, **{"metadata": metadata, "ttl": 5000, **envelope})

    async def unsubscribe(self, topic: str) -> None:
        """There is no answer: whatever is answered next comes after it."""
        await self.say("hub:unsubscribe", {"topic": topic})
        await self.ask("hub:heartbeat", {"timestamp": 1})

    async def unregister(self) -> None:
        await self.say("hub:unregister", {"actorAddress": self.address})
        await self.ask("hub:heartbeat", {"timestamp": 1})


KINDS: dict[str, type[Actor]] = {SPECIFICATION: Actor, ORIGINAL: OriginalActor}


def check_envelope(frame: Json) -> None:
    """That a frame is what the original's clients take for one: strict about every field, those that are null included."""
    fields = {"id", "from", "to", "type", "payload", "pattern", "correlationId", "timestamp", "metadata", "ttl", "signature"}
    assert set(frame) == fields, frame
    assert re.fullmatch(UUID, frame["id"])
    assert frame["pattern"] == "tell"
    assert frame["correlationId"] is None or re.fullmatch(UUID, frame["correlationId"]), frame
    assert type(frame["timestamp"]) is int
    assert isinstance(frame["metadata"], dict)
    assert frame["ttl"] is None or (type(frame["ttl"]) is int and frame["ttl"] > 0)
    assert frame["signature"] is None


class Scene:
    """Where a scenario happens."""

    def __init__(self, server: LocalServer, clock: ManualClock) -> None:
        self.url = server.url
        self.clock = clock
        self._server = server
        self._numbers = itertools.count(1)

    @property
    def ms(self) -> int:
        """The present as it is on the wire."""
        return self.clock.now() * 1000 // SECOND

    def topic(self, name: str = "events") -> str:
        """A topic that no other scenario has."""
        return f"case-{next(self._numbers)}/{name}"

    def address(self, name: str) -> str:
        """An address that no other scenario has."""
        return f"@(browser/{name}-{next(self._numbers)})"

    async def stop(self) -> None:
        """Stop the server; returns when it has ended."""
        await asyncio.to_thread(self._server.stop)

    @asynccontextmanager
    async def stranger(self, dialect: str = SPECIFICATION) -> AsyncIterator[Actor]:
        """A connection that has said nothing yet."""
        async with opened(self.url) as wire:
            yield KINDS[dialect](wire.socket)

    @asynccontextmanager
    async def session(
        self, dialect: str = SPECIFICATION, *, token: str | None = None, resume: str | None = None
    ) -> AsyncIterator[Actor]:
        """A connection after hub:connect."""
        async with self.stranger(dialect) as actor:
            reply = await actor.connect(token, resume=resume)
            assert reply["type"] == "hub:connected", reply
            actor.session_id = reply["payload"]["sessionId"]
            yield actor

    @asynccontextmanager
    async def actor(
        self,
        name: str,
        dialect: str = SPECIFICATION,
        *,
        address: str | None = None,
        resume: str | None = None,
        **payload: Any,
    ) -> AsyncIterator[Actor]:
        """An actor that is registered. Any: further fields of hub:register."""
        async with self.session(dialect, resume=resume) as actor:
            reply = await actor.register(address or self.address(name), **payload)
            assert reply["type"] == "hub:registered", reply
            yield actor


@contextmanager
def scene_of(**settings: Any) -> Iterator[Scene]:
    """A server with these settings. Any: they are of all kinds."""
    clock = ManualClock()
    with LocalServer(clock=clock, **settings) as server:
        yield Scene(server, clock)


def scenario(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """A test that is a coroutine, and does not wait for ever."""

    @functools.wraps(test)
    def run(*args: P.args, **named: P.kwargs) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(SECONDS):
                await test(*args, **named)

        asyncio.run(bounded())

    return run
