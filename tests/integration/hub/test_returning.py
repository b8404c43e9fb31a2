"""Hundreds of clients that drop and return under load: each has every message once and in order, or was told that it has not.

PENSTOCK_RETURNERS is how many clients there are, PENSTOCK_SEED repeats their choices. One client that returns is in
`test_client.py`, and one that returns after kill -9 in `test_feed_server.py`.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import uvloop

from penstock.log.http import HttpLog
from penstock.testing.server import ServerProcess
from tests.integration.hub.crowd import joined
from tests.integration.hub.returning import Publisher, Returner
from tests.ports import free_port

pytestmark = [pytest.mark.long, pytest.mark.alone]

RETURNERS = int(os.environ.get("PENSTOCK_RETURNERS", "500"))
SECONDS = 8.0
ROOMS = 4
KEPT = [f"chat/room-{number}" for number in range(ROOMS)]
"""With history."""
PLAIN = [f"plain/room-{number}" for number in range(ROOMS)]
AWAITED = [f"awaited/room-{number}" for number in range(2)]
"""Without history, with durable subscriptions."""
PAUSES = {"plain/room-0": 1.5}
"""Where little is published, so that some who return have missed nothing."""
PAUSE = 0.05
TOPICS = (*KEPT, *PLAIN, *AWAITED)
PADDING = "x" * 4096
"""Makes what was missed more than is read from a log at once."""
KILLS = 2
PATIENCE = 60.0

Truth = dict[str, list[int]]


def cast(port: int, count: int, seed: int) -> list[Returner]:
    """Clients of every kind."""
    kinds = [(topic, [topic], False) for topic in KEPT] * 5 + [("chat/#", KEPT, False), ("chat/+", KEPT, False)]
    kinds += [(topic, [topic], False) for topic in (*PLAIN, *AWAITED)] * 2 + [("plain/#", PLAIN, False)]
    kinds += [(topic, [topic], True) for topic in (*AWAITED, KEPT[0])]
    kinds += [("awaited/#", AWAITED, True), ("chat/+", KEPT, True)]
    chosen = [kinds[number % len(kinds)] for number in range(count)]
    return [
        Returner(port, str(number), pattern, random.Random(f"{seed} {number}"), topics, durable=durable)
        for number, (pattern, topics, durable) in enumerate(chosen)
    ]


class Play:
    """All who publish and all who return, at one server."""

    def __init__(self, port: int, count: int, seed: int) -> None:
        self.returners = cast(port, count, seed)
        self.publishers = {
            topic: Publisher(port, topic, PAUSES.get(topic, PAUSE), PADDING if topic in KEPT else "") for topic in TOPICS
        }

    async def perform(self, load: Callable[[], Awaitable[None]], find: Callable[[], Awaitable[Truth]]) -> None:
        """Publish, drop and return while `load` lasts, then see what everybody has; `find` says what there was."""
        is_over = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            lives = [tasks.create_task(one.run(is_over)) for one in self.returners]
            async with asyncio.timeout(PATIENCE):
                for one in self.returners:
                    await one.subscribed.wait()
            work = [tasks.create_task(one.run()) for one in self.publishers.values()]
            await load()
            for publisher in self.publishers.values():
                publisher.is_over = True
            async with asyncio.timeout(PATIENCE):
                await asyncio.gather(*work)
                is_over.set()
                await asyncio.gather(*lives)
        truth = await find()
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*(one.finish(truth) for one in self.returners))
        print(f"{sum(len(one) for one in truth.values())} messages; recovered: {self.recoveries()}")
        assert [fault for one in self.returners for fault in one.check(truth)] == []
        assert [error for one in self.publishers.values() for error in one.errors] == []

    def recoveries(self, prefix: str = "") -> dict[bool, int]:
        """How often those who returned were told that they have missed nothing, and that they have."""
        mine = [one for one in self.returners if one.pattern.startswith(prefix)]
        return {answer: sum(one.recoveries[answer] for one in mine) for answer in (True, False)}


def in_log(url: str, stream: str) -> Truth:
    """The numbers that a log holds, by topic of the hub: read as services and Spark read it."""
    found: Truth = {topic: [] for topic in TOPICS}
    with HttpLog(url) as log:
        (span,) = log.spans([stream]).streams
        for batch in log.messages(span, span.earliest, span.latest):
            for row in batch.to_pylist():
                found[dict(row["attributes"])["hub.topic"]].append(json.loads(row["value"])["n"])
    return found


def seeded(scene: Callable[[int], None]) -> None:
    """Run with a seed that is told when it fails."""
    seed = int(os.environ.get("PENSTOCK_SEED", random.SystemRandom().getrandbits(32)))
    try:
        scene(seed)
    except BaseException as error:
        error.add_note(f"repeat: PENSTOCK_SEED={seed} PENSTOCK_RETURNERS={RETURNERS}")
        raise


@pytest.mark.timeout(300)
def test_who_returns_has_everything_or_was_told() -> None:
    def scene(seed: int) -> None:
        with ServerProcess(hub_history="chat") as server:
            play = Play(server.port, RETURNERS, seed)

            async def find() -> Truth:
                return {topic: [*range(one.sent)] for topic, one in play.publishers.items()}

            uvloop.run(play.perform(lambda: asyncio.sleep(SECONDS), find))
        assert all(one.confirmed == [*range(one.sent)] for one in play.publishers.values())
        kept, plain = play.recoveries("chat/"), play.recoveries("plain/")
        assert kept[False] == 0
        assert min(kept[True], plain[True], plain[False]) > 0

    seeded(scene)


@pytest.mark.timeout(300)
def test_who_returns_after_kill_9_has_everything_or_was_told(tmp_path: Path) -> None:
    def scene(seed: int) -> None:
        with ServerProcess(tmp_path, port=free_port(), hub_history="chat") as server:
            play = Play(server.port, RETURNERS // 4, seed)

            async def kill() -> None:
                for _ in range(KILLS):
                    await asyncio.sleep(SECONDS / KILLS)
                    server.kill()
                    await asyncio.to_thread(server.start)

            async def find() -> Truth:
                chat, awaited = await asyncio.gather(*(asyncio.to_thread(in_log, server.url, one) for one in ("hub.chat", "hub")))
                plain = {topic: [*range(play.publishers[topic].sent)] for topic in PLAIN}
                return {**{topic: chat[topic] for topic in KEPT}, **{topic: awaited[topic] for topic in AWAITED}, **plain}

            uvloop.run(play.perform(kill, find))
            truth = uvloop.run(find())
        for topic in (*KEPT, *AWAITED):
            assert {*play.publishers[topic].confirmed} <= {*truth[topic]}, topic
        assert play.recoveries("chat/")[False] == 0

    seeded(scene)


def test_a_durable_subscription_that_comes_and_goes_changes_nothing_for_others(tmp_path: Path) -> None:
    """While there is one, what is published goes through a log; before and after it does not. The order stays."""

    async def scene(port: int) -> tuple[list[int], int]:
        seen: list[int] = []
        everything = asyncio.Event()
        watcher = await joined(port, "@(test/watcher)", lambda frame: seen.append(frame.payload["n"]))
        await watcher.ask("hub:subscribe", topic="awaited/x")
        durable = await joined(port, "@(test/durable)")
        publisher = Publisher(port, "awaited/x", 0.001)
        work = asyncio.create_task(publisher.run())
        for _ in range(20):
            await durable.ask("hub:subscribe", topic="awaited/x", durable=True)
            await asyncio.sleep(0.02)
            await durable.ask("hub:unsubscribe", topic="awaited/x")
            await asyncio.sleep(0.02)
        publisher.is_over = True
        async with asyncio.timeout(PATIENCE):
            await work
            watcher.heard = lambda frame: seen.append(frame.payload["n"]) if "n" in frame.payload else everything.set()
            last = await joined(port, "@(test/last)")
            last.publish("awaited/x", {})
            await everything.wait()
        for client in (watcher, durable, last):
            client.drop()
        return seen, publisher.sent

    with ServerProcess(tmp_path) as server:
        seen, sent = uvloop.run(scene(server.port))
    assert seen == [*range(sent)]
