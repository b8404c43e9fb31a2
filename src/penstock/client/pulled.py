"""Settling what was pulled without a stream: what is asked for in one turn of the loop is one operation, run beside."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sized
from contextlib import suppress
from typing import Any, NamedTuple

from penstock import forks
from penstock.client.link import Link
from penstock.client.message import AckResponse, IncomingMessage, response_to
from penstock.errors import PenstockError, ServerUnreachable, Unavailable
from penstock.wire.frames import Nack
from penstock.wire.operations import Operations

log = logging.getLogger("penstock.client")


class Wish(NamedTuple):
    """What is to become of a delivery: an ack (`seconds` None), back it goes (0), or another deadline."""

    seconds: float | None = None
    requeue: bool = True
    error: str | None = None
    delay: float | None = None


ACK = Wish()


class Nobody:
    """Holds what was only looked at: it cannot be settled."""

    def begin(self, message: IncomingMessage) -> None:
        """Nobody works on it."""

    def ack(self, message: IncomingMessage) -> None:
        """Nothing to settle."""

    def nack(self, message: IncomingMessage, nack: Nack) -> None:
        """Nothing to give back."""

    def move(self, message: IncomingMessage, seconds: float) -> None:
        """No lease."""

    async def confirm(
        self, message: IncomingMessage, *, acks: list[int] | None = None, nack: Nack | None = None, seconds: float | None = None
    ) -> AckResponse:
        """There is no delivery."""
        return AckResponse.INVALID


class PullHolder:
    """Settles deliveries of one subscription by their ack ids."""

    def __init__(self, link: Link, name: str) -> None:
        self._link = link
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._wishes: dict[Wish, list[IncomingMessage]] = {}
        self._running: set[asyncio.Task[Any]] = set()
        forks.own(self, "client")

    def begin(self, message: IncomingMessage) -> None:
        """Its lease runs out by itself, and counts as a try, when nobody settles it."""

    def ack(self, message: IncomingMessage) -> None:
        """Settle it for good."""
        self._across(message, ACK)

    def nack(self, message: IncomingMessage, nack: Nack) -> None:
        """Give it back."""
        self._across(message, _back(nack))

    def move(self, message: IncomingMessage, seconds: float) -> None:
        """Give its lease another deadline."""
        self._across(message, Wish(seconds))

    async def confirm(
        self, message: IncomingMessage, *, acks: list[int] | None = None, nack: Nack | None = None, seconds: float | None = None
    ) -> AckResponse:
        """Settle it and say what became of it."""
        wish = ACK if acks else _back(nack) if nack is not None else Wish(seconds or 0)
        return await response_to(self._settle([message], wish))

    async def finish(self) -> None:
        """Return when everything that was asked for so far is done."""
        self._flush()
        if self._running:
            await asyncio.wait(self._running)

    async def _settle(self, messages: list[IncomingMessage], wish: Wish) -> Sized:
        """Do it; returns what failed."""
        ids = [message.ack_id for message in messages]
        if wish.seconds is None:
            return await self._link.call(Operations.acknowledge, self._name, ids)
        return await self._link.call(Operations.modify_ack_deadline, self._name, ids, wish.seconds)

    def _may_repeat(self, wish: Wish) -> bool:
        """Whether it does nothing twice: an ack id is of one delivery."""
        return True

    def _across(self, message: IncomingMessage, wish: Wish) -> None:
        if threading.get_ident() == self._thread:
            self._add(message, wish)
        else:
            with suppress(RuntimeError):  # the loop is closed: the lease will run out
                self._loop.call_soon_threadsafe(self._add, message, wish)

    def _add(self, message: IncomingMessage, wish: Wish) -> None:
        if not self._wishes:
            self._loop.call_soon(self._flush)
        self._wishes.setdefault(wish, []).append(message)

    def _flush(self) -> None:
        wishes, self._wishes = self._wishes, {}
        for wish, messages in wishes.items():
            task = self._loop.create_task(self._try(messages, wish))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _try(self, messages: list[IncomingMessage], wish: Wish) -> None:
        try:
            try:
                await self._settle(messages, wish)
            except Unavailable as error:
                if isinstance(error, ServerUnreachable) or not self._may_repeat(wish):
                    raise
                await self._settle(messages, wish)  # the connection was lost on the way
        except PenstockError as error:
            log.warning("%d messages of %r could not be settled: %s", len(messages), self._name, error)


class QueueHolder(PullHolder):
    """Settles deliveries of one work queue by their message ids, for the consumer that holds them."""

    def __init__(self, link: Link, name: str, consumer: str) -> None:
        super().__init__(link, name)
        self._consumer = consumer

    async def _settle(self, messages: list[IncomingMessage], wish: Wish) -> Sized:
        call, ids, seconds = self._link.call, [message.id for message in messages], wish.seconds
        if seconds is None:
            return await call(Operations.ack_messages, self._name, ids, self._consumer)
        if seconds:
            for one in ids:
                await call(Operations.extend_message, self._name, one, seconds, self._consumer)
            return ()
        return await call(Operations.nack_messages, self._name, ids, wish.requeue, wish.error, self._consumer, wish.delay)

    def _may_repeat(self, wish: Wish) -> bool:
        """Only an ack, after which the message does not come again: an id is of all its deliveries."""
        return wish == ACK


def _back(nack: Nack) -> Wish:
    return Wish(0, nack.requeue, nack.error, nack.delay)
