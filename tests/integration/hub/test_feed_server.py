"""The hub and the broker in one server: kill -9 loses nothing that was confirmed."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.testing.server import ServerProcess
from tests.integration.hub.feed_desk import in_loop
from tests.integration.hub.wire import Wire, member


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
                await wire.say("hub:ack", {"ackId": frame["metadata"]["ackId"]})


@pytest.mark.parametrize("lives", [1, pytest.param(4, marks=pytest.mark.long)])
def test_nothing_confirmed_is_lost_by_kill_9_for_a_durable_subscriber(tmp_path: Path, lives: int) -> None:
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

    for number in range(lives):
        server.start()
        in_loop(life(number, 200))
    with server:
        in_loop(life(lives, 0))

    assert len(confirmed) >= lives * 200
    assert set(confirmed) <= set(seen)
    firsts = [*dict.fromkeys(seen)]
    for number in range(lives):
        mine = [int(one.partition("-")[2]) for one in firsts if one.startswith(f"{number}-")]
        assert mine == sorted(mine)
