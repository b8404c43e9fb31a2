"""The same streams, on a broker in this process, in memory and on disk, and on a server behind a socket."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, ParamSpec, Self

from penstock import Broker
from penstock.client.message import IncomingMessage
from penstock.client.pubsub import PubSub
from penstock.client.subscription import Subscription
from penstock.client.topic import Topic
from penstock.clock import Clock
from penstock.journal.journal import Journal
from penstock.testing import ManualClock
from penstock.testing.server import LocalServer

P = ParamSpec("P")

PATIENCE = 20
"""Seconds after which something that should have happened has not."""
ROUND_TRIPS = 3
TURNS = 20


def in_loop(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Run an async test in a loop of its own, and not for ever."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(PATIENCE * 2):
                await test(*args, **kwargs)

        asyncio.run(bounded())

    return run


class Place:
    """Where a broker is. Its clock stands still unless it is opened with another one."""

    is_remote = False

    def __init__(self, data_dir: Path | None = None) -> None:
        self.clock = ManualClock()
        self.data_dir = data_dir
        self.is_real_time = False
        self.pubsub: PubSub

    def in_real_time(self) -> Self:
        """Let time pass by itself."""
        self.is_real_time = True
        return self

    def broker_clock(self) -> Clock | None:
        return None if self.is_real_time else self.clock

    async def __aenter__(self) -> Self:
        self.pubsub = self._client()
        await self.pubsub.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.pubsub.close()

    def _client(self) -> PubSub:
        return PubSub(data_dir=self.data_dir, clock=self.broker_clock())

    async def topic(self, name: str = "orders") -> Topic:
        """A topic that exists."""
        return await self.pubsub.topic(name).create(exist_ok=True)

    async def subscription(self, name: str = "billing", *, topic: str = "orders", **options: Any) -> tuple[Topic, Subscription]:
        """A topic and a subscription of it that both exist. A test waits for nothing at its end, unless it says so."""
        found = await self.topic(topic)
        subscription = found.subscription(name, **{"close_behavior": "nack", **options})
        return found, await subscription.create()

    async def settled(self) -> None:
        """Return when everything that was begun has happened: what has not come by then does not come."""
        for _ in range(ROUND_TRIPS):
            await self.pubsub.info()
            for _ in range(TURNS):
                await asyncio.sleep(0)

    async def advance(self, seconds: float, step: float | None = None) -> None:
        """Let time pass, in steps, and everything happen that it brings."""
        step = step or seconds
        while seconds > 0:
            self.clock.advance(min(step, seconds))
            seconds -= step
            await self.settled()

    def disturb(self) -> None:
        """Have every stream fail in a way that passes."""
        self.pubsub.link._service.feeds.stop()  # type: ignore[attr-defined]  # from inside: there is no such button


class Memory(Place):
    """A broker in memory."""


class Durable(Place):
    """A broker on a data directory."""


class OnPostgres(Place):
    """A broker on PostgreSQL."""

    def __init__(self, open_journal: Callable[[], Journal | None]) -> None:
        super().__init__()
        self._open_journal = open_journal

    async def __aexit__(self, *arguments: object) -> None:
        await super().__aexit__(*arguments)
        await asyncio.to_thread(self._broker.close)

    def _client(self) -> PubSub:
        self._broker = Broker(journal=self._open_journal(), clock=self.broker_clock())
        return PubSub(broker=self._broker)


class Remote(Place):
    """A project of its own on a server that other tests use, too. They also share its clock, unless it is real time."""

    is_remote = True

    def __init__(self, project: str, clock: ManualClock, find: Callable[[str], LocalServer]) -> None:
        super().__init__()
        self.clock = clock
        self.server: LocalServer
        self._project = project
        self._find = find

    async def __aenter__(self) -> Self:
        self.server = self._find("shared_server" if self.is_real_time else "manual_server")
        return await super().__aenter__()

    def _client(self) -> PubSub:
        return PubSub(self.server.url, project=self._project)

    def disturb(self) -> None:
        """Cut the connection."""
        self.pubsub.link._connection._transport.abort()  # type: ignore[attr-defined]  # from inside: there is no such button


class Inbox:
    """A handler that keeps what it gets, and can be waited for."""

    def __init__(self, *, ack: bool = True) -> None:
        self.messages: list[IncomingMessage] = []
        self.errors: list[Exception] = []
        self.closes = 0
        self._ack = ack
        self._changed = asyncio.Event()

    def __call__(self, message: IncomingMessage) -> None:
        self.messages.append(message)
        if self._ack:
            message.ack()
        self._changed.set()

    def listen(self, subscription: Subscription) -> Self:
        """Hear everything that a subscription tells."""
        subscription.on("message", self).on("error", self._failed).on("close", self._closed)
        return self

    @property
    def data(self) -> list[bytes]:
        return [message.data for message in self.messages]

    async def has(self, count: int) -> None:
        """Return when so many messages have come."""
        await self._until(lambda: len(self.messages) >= count)

    async def has_failed(self, count: int = 1) -> None:
        """Return when so many errors were told."""
        await self._until(lambda: len(self.errors) >= count)

    async def has_closed(self) -> None:
        """Return when the close was told."""
        await self._until(lambda: self.closes > 0)

    def _failed(self, error: Exception) -> None:
        self.errors.append(error)
        self._changed.set()

    def _closed(self) -> None:
        self.closes += 1
        self._changed.set()

    async def _until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not is_so():
                self._changed.clear()
                await self._changed.wait()


async def until(is_so: Callable[[], Awaitable[bool]]) -> None:
    """Return when a question that only asking answers is answered with yes."""
    async with asyncio.timeout(PATIENCE):
        while not await is_so():  # noqa: ASYNC110  # a broker tells nobody that its numbers have changed
            await asyncio.sleep(0.002)
