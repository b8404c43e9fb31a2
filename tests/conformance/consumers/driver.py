"""What the suite knows of a way to consume: how to begin, take, settle and leave. Each API has a driver that fulfils it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

from penstock import Broker
from penstock.testing import ManualClock
from penstock.testing.server import LocalServer
from tests.conformance.consumers.place import DEADLINE, PLACES, Kind, Options, Place

PATIENCE = 20.0
"""Seconds after which what should have happened has not."""
WINDOW_BYTES = 64 * 1024
"""How much a broker keeps in memory; `NOT_IN_MEMORY` publishes several times as much."""
GRACE_SECONDS = 0.02
"""How long a server keeps what a lost consumer holds, in the tests that wait for that; see `conftest.short_grace`."""
AFTER_GRACE_SECONDS = 0.1
"""So long after a consumer has left, no grace period is left."""
ROUND_TRIPS = 3
TURNS = 20


class Taken(NamedTuple):
    """One delivery."""

    data: bytes
    attempt: int | None
    """None where the API does not say."""
    handle: Any


@dataclass
class Scene:
    """Where a driver plays."""

    project: str
    clock: ManualClock
    folder: Path
    find_server: Callable[[], LocalServer]
    options: Options = field(default_factory=Options)
    patience: float = PATIENCE
    token: str | None = None


class Consumer:
    """One consumer. Those that stream fill `arrived` by themselves; the others are asked by `take`."""

    def __init__(self, patience: float) -> None:
        self.patience = patience

    async def get(self, count: int = 1) -> list[Taken]:
        """The next deliveries, exactly `count`."""
        raise NotImplementedError

    async def ack(self, *taken: Taken) -> None:
        """Settle them. Returns when that is under way; whether it counted shows at the broker."""
        raise NotImplementedError

    async def nack(self, *taken: Taken) -> None:
        """Give them back for immediate redelivery."""
        raise NotImplementedError

    async def modify(self, seconds: int, *taken: Taken) -> None:
        """Set the deadline of deliveries to `seconds` from now."""
        raise NotImplementedError

    async def close(self) -> None:
        """Leave cleanly. Safe to call twice, and after `vanish`."""
        raise NotImplementedError

    async def vanish(self) -> None:
        """Leave as a process that was killed: no goodbye, and no second connection."""
        raise NotImplementedError


class Taker(Consumer):
    """A consumer that asks for messages, and may wait for them."""

    async def take(self, count: int = 1, *, wait: float) -> list[Taken]:
        """Up to `count` messages, waiting at most `wait` seconds for the first."""
        raise NotImplementedError

    async def get(self, count: int = 1) -> list[Taken]:
        found: list[Taken] = []
        try:
            async with asyncio.timeout(self.patience):
                while len(found) < count:
                    found += await self.take(count - len(found), wait=self.patience)
        except TimeoutError:
            raise AssertionError(f"only {[one.data for one in found]} within {self.patience} s, expected {count}") from None
        return found


class Streamer(Consumer):
    """A consumer to which messages come."""

    def __init__(self, patience: float) -> None:
        super().__init__(patience)
        self.arrived: list[Taken] = []
        """What came and was not asked for by `get`."""
        self.end: str | None = None
        """Why the server ended it, in the words of its API."""
        self._changed = asyncio.Event()

    def add(self, taken: Taken) -> None:
        self.arrived.append(taken)
        self._changed.set()

    def has_ended(self, reason: str) -> None:
        self.end = self.end or reason
        self._changed.set()

    async def get(self, count: int = 1) -> list[Taken]:
        await self.until(lambda: len(self.arrived) >= count, f"expected {count} deliveries")
        found, self.arrived = self.arrived[:count], self.arrived[count:]
        return found

    async def until(self, is_so: Callable[[], bool], what: str) -> None:
        """Return once something is so that a delivery or the end brings."""
        try:
            async with asyncio.timeout(self.patience):
                while not is_so():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            came = [one.data for one in self.arrived]
            raise AssertionError(f"{what} within {self.patience} s; came: {came}, end: {self.end}") from None


class Driver:
    """A way to consume, on a place of its own. Use it as an asynchronous context manager."""

    name: ClassVar[str]
    kind: ClassVar[Kind]
    is_remote: ClassVar[bool]
    """Whether it needs a server."""
    cannot: ClassVar[Mapping[str, str]] = {}
    """Which needs of promises (see `promise`) this way to consume does not meet, and why not."""
    after_recreation: ClassVar[str] = "continues"
    """What becomes of a consumer whose queue is deleted and created again, as documented: it `continues` or `ends`."""
    honours_late_acks: ClassVar[bool] = False
    """Whether the ack of a lease that has expired counts while nobody else has the message; else it is refused."""
    keeps_leases: ClassVar[bool] = False
    """Whether what a consumer held when it left is redelivered at its deadline, and not at once."""
    has_one_consumer: ClassVar[bool] = False
    """Whether a second consumer takes the place of the first."""
    most_held: ClassVar[int] = 1_000
    """How many messages a consumer gets before it has settled any."""
    longest_wait: ClassVar[float] = 0
    """Seconds that a take may wait at most, as documented."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.rest = AsyncExitStack()
        self.place: Place
        self.server: LocalServer

    @property
    def patience(self) -> float:
        return self.scene.patience

    async def __aenter__(self) -> Self:
        if self.is_remote:
            self.server = self.scene.find_server()
            self.broker, name = self.server.broker, f"{self.scene.project}/work"
        else:
            window = {"data_dir": self.scene.folder, "window_bytes": WINDOW_BYTES} if self.scene.options.on_disk else {}
            self.broker = Broker(clock=self.scene.clock, **window)  # type: ignore[arg-type]  # two options, or none
            self.rest.push_async_callback(asyncio.to_thread, self.broker.close)
            name = "work"
        self.place = self.make_place(name)
        await self.place.create()
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.rest.aclose()

    def make_place(self, name: str) -> Place:
        return PLACES[self.kind](self.broker, name, self.scene.options)

    async def open(self) -> None:
        """Prepare what consumers share."""

    async def make(self, *, max_messages: int | None, max_bytes: int | None) -> Consumer:
        """A consumer that has begun."""
        raise NotImplementedError

    # ── for the suite ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def consumer(self, *, max_messages: int | None = None, max_bytes: int | None = None) -> Any:
        """A consumer that has begun, and is closed at the end."""
        found = await self.make(max_messages=max_messages, max_bytes=max_bytes)
        self.rest.push_async_callback(found.close)
        return found

    async def settled(self) -> None:
        """Return when what was begun has happened: what has not come by then does not come by itself."""
        for _ in range(ROUND_TRIPS):
            if self.is_remote:
                await self.on_server(_turns())
            await _turns()

    async def on_server(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something on the loop of the server."""
        loop = self.server._loop
        assert loop is not None, "it serves"
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))

    async def recreate(self) -> None:
        """Delete the queue and create another one with the same name."""
        await (self.on_server(self.place.recreate()) if self.is_remote else self.place.recreate())

    async def after_grace(self) -> None:
        """Return when every grace period has passed that began before; see `conftest.short_grace`."""
        await (self.on_server(asyncio.sleep(AFTER_GRACE_SECONDS)) if self.is_remote else asyncio.sleep(AFTER_GRACE_SECONDS))
        await self.settled()

    async def let_deadlines_pass(self, seconds: float = DEADLINE + 15) -> None:
        """Let leases end that nobody extends; push keeps its own a little longer than the rest."""
        self.scene.clock.advance(seconds)
        await self.settled()

    async def until_retry(self) -> None:
        """Let the time pass that a nacked message waits for, where it does."""
        await self.settled()

    async def released(self) -> None:
        """Return when nothing is held by consumers that have left: at once, or when their deadlines are over."""
        if self.keeps_leases:
            # A server that notices late that a stream is gone leases to it once more.
            async with asyncio.timeout(self.patience):
                while (await self.place.counts()).in_flight:
                    await self.let_deadlines_pass()
        await self.place.until(lambda counts: counts.in_flight == 0, self.patience)

    async def nothing_is_held(self) -> None:
        """Assert that no message is leased, once everything that was begun has happened."""
        await self.settled()
        await self.place.until(lambda counts: counts.in_flight == 0, self.patience)


async def _turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


def bodies(count: int, size: int = 0) -> list[bytes]:
    """Bodies whose order is that of their bytes."""
    return [(b"%04d" % number).ljust(size, b".") for number in range(count)]


def data(taken: Sequence[Taken]) -> list[bytes]:
    return [one.data for one in taken]
