"""Clients that drop and return while others publish, and what each of them must have in the end.

Everybody publishes numbers: 0, 1, 2, … to a topic of its own. What a client has received of a topic is compared with all there
was (`truth`): nothing twice, nothing out of order, and nothing missing but where the hub said so.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

from tests.integration.hub.crowd import Client, Heard, Json, joined

ACKED_OF_TEN = 7
"""Of what a durable subscription brings; the rest comes again, to whoever returns."""
BUFFER = 16 * 1024
"""How much the system takes in for a client that does not read: little, so that what was missed is more."""
LAST_SECONDS = 30.0
"""How long who returns for the last time waits for what it misses."""
WINDOW = 50
"""How many publishes may be without their answer."""


class Publisher:
    """Publishes numbers to one topic, and goes on with the next when the server comes back: none is sent twice."""

    def __init__(self, port: int, topic: str, pause: float, padding: str = "") -> None:
        self._port, self._topic, self._pause, self._padding = port, topic, pause, padding
        self._address = f"@(publisher/{topic.replace('/', '-')})"
        self.sent = 0
        self.confirmed: list[int] = []
        self.is_over = False
        self.errors: list[Json] = []

    async def run(self) -> None:
        """Publish until `is_over`, and then until everything is confirmed."""
        while True:
            waiting: list[int] = []
            with suppress(ConnectionError):
                client = await joined(self._port, self._address)
                self.errors = client.errors
                client.confirmed = lambda _, waiting=waiting: self.confirmed.append(waiting.pop(0))  # type: ignore[misc]
                try:
                    await self._publish(client, waiting)
                finally:
                    client.drop()
                if not client.over.done():
                    return
            await asyncio.sleep(0.1)

    async def _publish(self, client: Client, waiting: list[int]) -> None:
        while not client.over.done():
            if not self.is_over and len(waiting) < WINDOW:
                waiting.append(self.sent)
                client.publish(self._topic, {"n": self.sent, "padding": self._padding})
                self.sent += 1
            elif self.is_over and not waiting:
                return
            await asyncio.sleep(self._pause)


@dataclass
class Returner:
    """One who subscribes, drops at any moment, and returns with the last position."""

    port: int
    name: str
    pattern: str
    random: Random
    topics: Sequence[str]
    """All that the pattern covers."""
    durable: bool = False
    seen: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """The numbers that came, by topic."""
    gaps: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    """By topic, after how many numbers it was told that something is missing."""
    since: Json | None = None
    recoveries: dict[bool, int] = field(default_factory=lambda: {True: 0, False: 0})
    faults: list[str] = field(default_factory=list)
    subscribed: asyncio.Event = field(default_factory=asyncio.Event)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._client: Client | None = None
        self._acked_of_ten = ACKED_OF_TEN

    @property
    def has_history(self) -> bool:
        return self.durable or self.pattern.startswith("chat/")

    @property
    def is_wild(self) -> bool:
        return self.pattern.endswith(("#", "+"))

    # --- lives ----------------------------------------------------------------------------------------------------------------

    async def run(self, is_over: asyncio.Event) -> None:
        """Live many lives, each until some moment."""
        with suppress(ConnectionError):
            await self._live(self.random.uniform(1, 3))
        while not is_over.is_set():
            with suppress(ConnectionError):
                if self.random.random() < 0.3:
                    await self._look_in(self.random.uniform(0, 0.02))
                else:
                    await self._live(self.random.uniform(0.2, 3))
            await asyncio.sleep(self.random.uniform(0, 1 if self.random.random() < 0.8 else 4))

    async def _live(self, seconds: float) -> None:
        client = await self._joined()
        try:
            asked = asyncio.create_task(client.ask("hub:subscribe", **self._effect()))
            if self.since is not None and self.random.random() < 0.4:
                # What was missed cannot all be written now, and more is published meanwhile.
                client.hold()
                await asyncio.sleep(self.random.uniform(0.1, 1))
                client.go_on()
            await asked
            self.subscribed.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await asyncio.shield(client.over)
        finally:
            client.drop()

    async def _look_in(self, seconds: float) -> None:
        """Be gone again before all that was missed has come, or before there is an answer at all."""
        client = await self._joined()
        client.send({"type": "hub:subscribe", "payload": self._effect()})
        await asyncio.sleep(seconds)
        client.drop()

    async def finish(self, truth: dict[str, list[int]]) -> None:
        """Return for the last time, and stay until everything has come; `check` says what has not."""
        self._acked_of_ten = 10  # who leaves too much unacknowledged gets no more
        client = await self._joined()
        try:
            await client.ask("hub:subscribe", **self._effect())
            with suppress(TimeoutError):
                async with asyncio.timeout(LAST_SECONDS):
                    while self.has_history and not all(self._has(topic, truth[topic]) for topic in self.topics):
                        self.changed.clear()
                        await self.changed.wait()
        finally:
            client.drop()

    def _has(self, topic: str, wanted: Sequence[int]) -> bool:
        return not wanted or (bool(self.seen[topic]) and max(self.seen[topic]) >= wanted[-1])

    async def _joined(self) -> Client:
        client = await joined(self.port, f"@(returner/{self.name})", self._heard, buffer=BUFFER)
        client.told = self._told
        self._client = client
        return client

    def _effect(self) -> Json:
        effect: Json = {"topic": self.pattern}
        if self.durable:
            return {**effect, "durable": True}
        return effect if self.since is None else {**effect, "since": self.since}

    # --- what comes -----------------------------------------------------------------------------------------------------------

    def _told(self, frame: Heard) -> None:
        if frame.type == "hub:error":
            self.faults.append(str(frame.payload))
        if frame.type != "hub:subscribed" or self.durable:
            return
        recovered, position = frame.payload.get("recovered"), frame.payload.get("position")
        if recovered is None:
            self.since = position
        else:
            self.recoveries[recovered] += 1
        if recovered is not None and not (self.has_history or self.is_wild) and recovered != (position == self.since):
            self.faults.append(f"recovered: {recovered} at {position}, asked for {self.since}")
        if recovered is False or position is None:  # who has no position, on a pattern without history, knows what that means
            self.since = position or self.since
            for topic in self.topics:
                self.gaps[topic].add(len(self.seen[topic]))

    def _heard(self, frame: Heard) -> None:
        assert frame.metadata is not None
        topic = frame.metadata.topic
        self.seen[topic].append(frame.payload["n"])
        self.since = frame.position
        if self.durable and self.random.randrange(10) < self._acked_of_ten and self._client is not None:
            self._client.send({"type": "hub:ack", "payload": {"ackId": frame.metadata.ack_id}})
        self.changed.set()

    # --- what was to come -----------------------------------------------------------------------------------------------------

    def check(self, truth: dict[str, list[int]]) -> list[str]:
        """What is wrong with what it has, given everything there was."""
        faults = [f"{self.name}: {fault}" for fault in self.faults]
        for topic in self.topics:
            check = self._at_least_once if self.durable else self._exactly_once
            faults += [f"{self.name} on {topic}: {fault}" for fault in check(topic, truth[topic])]
        strange = self.seen.keys() - {*self.topics}
        return faults + [f"{self.name} has messages of {topic}" for topic in strange]

    def _at_least_once(self, topic: str, truth: list[int]) -> list[str]:
        firsts = [*dict.fromkeys(self.seen[topic])]
        return [] if firsts == truth else [f"has {_differing(firsts, truth)}"]

    def _exactly_once(self, topic: str, truth: list[int]) -> list[str]:
        place = {number: index for index, number in enumerate(truth)}
        gaps, seen, at = self.gaps[topic], self.seen[topic], -1
        for index, number in enumerate(seen):
            found = place.get(number)
            if found is None:
                return [f"has {number}, which is not in the log"]
            if found <= at:
                return [f"has {number} after {truth[at]}"]
            if found > at + 1 and index not in gaps:
                return [f"misses {truth[at + 1 : found]} silently, at {index}"]
            at = found
        if at < len(truth) - 1 and len(seen) not in gaps:
            return [f"misses {truth[at + 1 :]} silently, at the end"]
        return []


def _differing(found: list[int], wanted: list[int]) -> str:
    at = next(
        (at for at, pair in enumerate(zip(found, wanted, strict=False)) if pair[0] != pair[1]), min(len(found), len(wanted))
    )
    return f"{found[at : at + 5]} instead of {wanted[at : at + 5]} at {at} of {len(found)} and {len(wanted)}"
