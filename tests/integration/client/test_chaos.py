"""Chaos: the network fails at random and the server is killed at random, under load, and every promise is kept.

Promised are: what was confirmed is delivered; what was published once is stored once; what was acked for certain never comes
again; the messages of a key come in their order, one at a time; a client that is cut off over and over does not grow.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import tracemalloc
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from penstock import FlowControl, PubSub
from penstock.client.links import remote
from penstock.client.message import AckResponse, IncomingMessage
from penstock.clock import monotonic
from penstock.durations import SECOND
from penstock.errors import PenstockError
from penstock.testing.proxy import FaultyProxy
from penstock.testing.server import ServerProcess
from tests.integration.client.quiet import run, until

SECONDS = float(os.environ.get("PENSTOCK_CHAOS_SECONDS", "10"))
PATIENCE = 120.0
KEYS = 8
STRAYS = 4
"""How many publish without a key."""
BURST = 8
"""How many publishes of one publisher are on their way at once."""
AHEAD = 300
"""How far a publisher runs ahead of the consumers, so that the end does not take longer than the chaos."""
DEADLINE = 4.0
FLUSH = SECOND
"""Acks reach the disk within 0.05 s; a failing network may tell of them later."""
GROWTH = 1_000_000
ROOT = Path(__file__).parents[3]


@dataclass
class Publisher:
    """Publishes numbers, with one key or without, and notes what was confirmed."""

    pubsub: PubSub
    key: str
    name: str
    tried: dict[str, str | None]
    """The id of everything that was ever published, by its text; None until it is confirmed."""
    failures: list[PenstockError]
    ledgers: list[Ledger]

    async def run(self, over: asyncio.Event) -> None:
        topic, number = self.pubsub.topic("chaos"), 0
        while not over.is_set():
            if number - min(ledger.last[self.name] for ledger in self.ledgers) > AHEAD:
                await asyncio.sleep(0.01)
                continue
            texts = [f"{self.name} {number + index}" for index in range(BURST)]
            number += BURST
            self.tried |= dict.fromkeys(texts)
            publishing = [asyncio.ensure_future(topic.publish_message(text.encode(), ordering_key=self.key)) for text in texts]
            for text, answer in zip(texts, await asyncio.gather(*publishing, return_exceptions=True), strict=True):
                if isinstance(answer, str):
                    self.tried[text] = answer[:9] + answer[9:]  # a copy: what is noted here is not the client's
                else:
                    assert isinstance(answer, PenstockError), answer
                    self.failures.append(answer)
                    topic.resume_publishing(self.key)
            await asyncio.sleep(0.01)


@dataclass
class Ledger:
    """What the consumers of one subscription have seen, and what that says of the promises."""

    name: str
    is_exact: bool
    tried: dict[str, str | None]
    chance: random.Random
    deliveries: int = 0
    ids: dict[str, str] = field(default_factory=dict)
    """The id under which each text came."""
    last: dict[str, int] = field(default_factory=lambda: defaultdict(lambda: -1))
    """The highest number of each publisher that has come."""
    first: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    """Numbers of each key that have come."""
    unsettled: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    """Numbers of each key that have come, and that nobody has tried to ack yet."""
    certain: dict[str, int] = field(default_factory=dict)
    """When an ack was confirmed, by id."""
    returned: list[tuple[str, int]] = field(default_factory=list)
    """(id, when its ack was confirmed) of what came all the same."""
    answers: Counter[str] = field(default_factory=Counter)
    wrongs: list[str] = field(default_factory=list)
    is_draining: bool = False
    """Whether everything is acked from now on."""

    async def take(self, message: IncomingMessage) -> None:
        """Work on a message: mostly ack it, sometimes nack it, seldom forget it."""
        text = message.data.decode()
        self._note(message, text)
        fate = self.chance.random() if not self.is_draining else 1.0
        if fate < 0.002:
            self.answers["forgotten"] += 1
            return
        if fate < 0.1:
            await asyncio.sleep(self.chance.random() / 20)
        if fate < 0.03:
            self.answers["nacked"] += 1
            message.nack()
            return
        owner, number = text.split()
        self.unsettled[owner].discard(int(number))
        if not self.is_exact and fate < 0.6:
            message.ack()
            return
        answer = await message.ack_with_response()
        self.answers[answer.name] += 1
        if answer is AckResponse.SUCCESS:
            self.certain[message.id] = monotonic()

    def _note(self, message: IncomingMessage, text: str) -> None:
        self.deliveries += 1
        if text not in self.tried:
            self.wrongs.append(f"{text!r} came and was never published")
        if self.ids.setdefault(text, message.id) != message.id:
            self.wrongs.append(f"{text!r} was stored twice, as {self.ids[text]} and {message.id}")
        if message.id in self.certain:
            self.returned.append((message.id, self.certain[message.id]))
        owner, number = text.split(maxsplit=1)[0], int(text.split()[1])
        is_new, last = number not in self.first[owner], self.last[owner]
        self.first[owner].add(number)
        self.last[owner] = max(last, number)
        if message.ordering_key and is_new:
            if number < last:
                self.wrongs.append(f"{text!r} came first after {last} of its key")
            if earlier := self.unsettled[owner]:
                self.wrongs.append(f"{text!r} came while {sorted(earlier)[:3]} of its key were unsettled")
            self.unsettled[owner].add(number)

    def check(self, kills: list[int]) -> None:
        """Whether every promise was kept."""
        confirmed = {text: known for text, known in self.tried.items() if known is not None}
        assert not self.wrongs, f"{self.name}: {len(self.wrongs)} wrongs: {self.wrongs[:5]}"
        other = [text for text, known in confirmed.items() if self.ids[text] != known]
        assert not other, f"{self.name}: came under another id than was confirmed: {other[:5]}"
        undone = [
            message_id
            for message_id, when in self.returned
            if self.is_exact or not any(abs(kill - when) < FLUSH for kill in kills)
        ]
        assert not undone, f"{self.name}: {len(undone)} were acked for certain, and came again: {undone[:5]}"
        assert self.certain, f"{self.name}: no ack was ever confirmed"


async def torment(
    server: ServerProcess, proxy: FaultyProxy, chance: random.Random, kills: list[int], calm: asyncio.Event
) -> None:
    """Kill the server, or seldom stop it in good order, and start it again, on another port, a while later."""
    while not calm.is_set():
        await asyncio.sleep(1 + 4 * chance.random())
        if chance.random() < 0.75:
            kills.append(monotonic())
            await asyncio.to_thread(server.kill)
        else:
            await asyncio.to_thread(server.stop)
        await asyncio.sleep(chance.random() ** 3)
        await asyncio.to_thread(server.start)
        proxy.target = ("127.0.0.1", server.native_port)


def weight() -> tracemalloc.Snapshot:
    """What the client's code holds."""
    gc.collect()
    mine = [tracemalloc.Filter(True, "*/penstock/client/*"), tracemalloc.Filter(True, "*/penstock/api/*")]
    return tracemalloc.take_snapshot().filter_traces(mine)


@asynccontextmanager
async def clients(proxy: FaultyProxy, count: int) -> AsyncIterator[list[PubSub]]:
    async with AsyncExitStack() as stack:
        made = [PubSub(f"penstock://{proxy.address}", ping_seconds=0.25, give_up_seconds=PATIENCE) for _ in range(count)]
        yield [await stack.enter_async_context(pubsub) for pubsub in made]


async def chaos(server: ServerProcess, proxy: FaultyProxy, seed: int) -> str:
    chance = random.Random(seed)
    tried: dict[str, str | None] = {}
    failures: list[PenstockError] = []
    kills: list[int] = []
    async with clients(proxy, 3) as (publishing, *consuming):
        topic = await publishing.topic("chaos").create()
        ledgers = [Ledger("plain", False, tried, random.Random(seed + 1)), Ledger("exact", True, tried, random.Random(seed + 2))]
        flow = FlowControl(max_messages=200)
        for ledger in ledgers:
            await topic.subscription(ledger.name, message_ordering=True, exactly_once=ledger.is_exact).create()
            for pubsub in consuming:
                subscription = pubsub.subscription(ledger.name, ack_deadline=DEADLINE, flow_control=flow, max_streams=2)
                subscription.on("message", ledger.take).on("error", lambda error: None).open()
        names = [(f"key-{number}", f"key-{number}") for number in range(KEYS)]
        names += [("", f"stray-{number}") for number in range(STRAYS)]
        over = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for key, name in names:
                group.create_task(Publisher(publishing, key, name, tried, failures, ledgers).run(over))
            proxy.misbehave(seed, every=0.8)
            calm = asyncio.Event()
            storm = group.create_task(torment(server, proxy, chance, kills, calm))
            await asyncio.sleep(SECONDS / 5)
            before = weight()
            await asyncio.sleep(SECONDS - SECONDS / 5)
            calm.set()
            await storm
            faults = len(proxy.faults)
            proxy.heal()
            proxy.cut()
            over.set()
            for ledger in ledgers:
                ledger.is_draining = True
        confirmed = {text for text, known in tried.items() if known is not None}
        for ledger in ledgers:
            what = f"all that was confirmed, in {ledger.name}"
            await until(partial(_has_all, ledger.ids, confirmed), what, patience=PATIENCE)
            while (await publishing.subscription(ledger.name).stats()).backlog:  # noqa: ASYNC110  # it is the server's
                await asyncio.sleep(0.05)
            ledger.check(kills)
        where = weight().compare_to(before, "lineno")
        grown = sum(line.size_diff for line in where)
        assert grown < GROWTH, f"the client grew by {grown} bytes: {[*map(str, where[:5])]}"
        for pubsub in consuming:
            for ledger in ledgers:
                stream = pubsub.subscription(ledger.name).stream
                await until(partial(lambda one: not one.in_flight, stream), "nothing in flight")
    plain, exact = ledgers
    return (
        f"chaos {SECONDS:g} s, seed {seed}: {len(kills)} kills, {faults} faults, {proxy.accepted} connections; "
        f"{len(confirmed)} of {len(tried)} publishes confirmed ({len(failures)} failed), stored once each; "
        f"deliveries {plain.deliveries} + {exact.deliveries}, repeated {plain.deliveries - len(plain.ids)} + "
        f"{exact.deliveries - len(exact.ids)}, certain acks undone by a kill {len(plain.returned)} + {len(exact.returned)}; "
        f"answers {dict(plain.answers)} + {dict(exact.answers)}; client grew by {grown / 1000:.0f} kB"
    )


def _has_all(ids: dict[str, str], wanted: set[str]) -> bool:
    return len(ids) >= len(wanted) and wanted <= ids.keys()


@pytest.mark.long
@pytest.mark.timeout(SECONDS + 3 * PATIENCE)
def test_nothing_is_lost_doubled_or_overtaken_when_network_and_server_fail_at_random(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "CONNECT_SECONDS", 1.0)  # a greeting that was swallowed would stop a client for half of the test
    seed = int(os.environ.get("PENSTOCK_SEED", random.SystemRandom().getrandbits(32)))

    async def scenario() -> None:
        print(await chaos(server, proxy, seed))

    server = ServerProcess(tmp_path)
    tracemalloc.start()
    try:
        with server, FaultyProxy("127.0.0.1", server.native_port) as proxy:
            run(scenario, patience=SECONDS + 2 * PATIENCE)
    except BaseException as error:
        error.add_note(
            f"repeat: PENSTOCK_SEED={seed} PENSTOCK_CHAOS_SECONDS={SECONDS:g} python -m pytest {Path(__file__).relative_to(ROOT)}"
        )
        raise
    finally:
        tracemalloc.stop()
    assert "Traceback" not in server.log, server.log
