"""A broker with a feed, as a hub would use it: what is forwarded and delivered is noted, and can be waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Self

from penstock import Broker, MessageQueue
from penstock.broker.aio import AsyncBroker
from penstock.clock import Clock
from penstock.durations import DAY
from penstock.errors import PenstockError
from penstock.hub.broker.feed import BrokerTopicLogs
from penstock.hub.core.messages import Message, Position
from penstock.hub.core.rules import Binding, HubRules

ALICE = "@(browser/alice)"
SECONDS = 60


def said(topic: str, text: str = "x", *, name: str | None = None, expires_at: int | None = None) -> Message:
    """A message as a client publishes it."""
    data = f'"{text}"'.encode()
    return Message(
        type="note", sender=ALICE, data=data, message_id=name or text, published_at=0, expires_at=expires_at, topic=topic
    )


class Inbox:
    """What came, in order."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._changed = asyncio.Event()

    def take(self, messages: Sequence[Message]) -> None:
        self.messages += messages
        self._changed.set()

    @property
    def data(self) -> list[str]:
        return [message.data.decode().strip('"') for message in self.messages]

    def named(self, *names: str) -> list[Message]:
        """What came by these ids, the last of each."""
        found = {message.message_id: message for message in self.messages}
        return [found[name] for name in names]

    async def until(self, count: int) -> list[str]:
        """The data of what came, when there are so many."""
        while len(self.messages) < count:
            self._changed.clear()
            await self._changed.wait()
        return self.data


class Desk:
    """A broker on disk or in memory, and a feed that has begun. Use it as an asynchronous context manager."""

    def __init__(
        self,
        data_dir: Path | None,
        *bindings: Binding,
        clock: Clock | None = None,
        limits: HubRules | None = None,
        window_bytes: int = 1 << 20,
    ) -> None:
        self.broker = Broker(data_dir=data_dir, clock=clock, window_bytes=window_bytes)
        self.topics = MessageQueue(broker=self.broker)
        self.bindings = bindings or (Binding("orders/#", "orders"),)
        self.everything = Binding("#", "hub")
        self.inbox = Inbox()
        self.skipped: list[Binding] = []
        self.expired: list[tuple[str, str]] = []
        self._limits = limits or HubRules()

    async def __aenter__(self) -> Self:
        self.aio = AsyncBroker(self.broker)
        self.feed = BrokerTopicLogs(self.aio, limits=self._limits, retention=7 * DAY, expiry=31 * DAY)
        self.durable = self.feed.start(
            self.bindings,
            self.everything,
            forward=self._forward,
            skipped=self.skipped.append,
            expired=lambda address, pattern: self.expired.append((address, pattern)),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        self.feed.stop()
        self.aio.close()
        await asyncio.to_thread(self.broker.close)

    @property
    def binding(self) -> Binding:
        return self.bindings[0]

    def _forward(self, binding: Binding, messages: Sequence[Message]) -> None:
        # As the hub does: it is told where the log is by the messages alone.
        binding.next_offset = (messages[-1].position or Position("", -1)).offset + 1
        self.inbox.take(messages)

    async def append(self, message: Message, binding: Binding | None = None) -> Position:
        """Write a message; returns when it is safe."""
        done: asyncio.Future[Position | PenstockError] = asyncio.get_running_loop().create_future()
        self.feed.append(binding or self.binding, message, done.set_result)
        outcome = await done
        if isinstance(outcome, PenstockError):
            raise outcome
        return outcome

    async def until(self, is_so: Callable[[], bool]) -> None:
        """Return when something has become so for which nobody has an event: a turn of the loop later, or a few."""
        while not is_so():  # noqa: ASYNC110  # see above
            await asyncio.sleep(0.001)

    async def history(self, binding: Binding, start: int, stop: int) -> list[str] | None:
        """The data of a range, read part by part."""
        found: list[str] = []
        while start < stop:
            part = await self.feed.read(binding, start, stop)
            if part is None:
                return None
            found += [message.data.decode().strip('"') for message in part[0]]
            assert start < part[1] <= stop
            start = part[1]
        return found


def in_loop(scenario: Coroutine[Any, Any, None]) -> None:
    """Run a scenario to its end, which must come."""

    async def run() -> None:
        async with asyncio.timeout(SECONDS):
            await scenario

    asyncio.run(run())
