"""Settling what was pulled one by one, without a stream: each ack is an operation of its own, run beside."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Coroutine
from typing import Any

from penstock.api.frames import Nack
from penstock.api.operations import Operations
from penstock.client.link import Link
from penstock.client.message import AckResponse, IncomingMessage
from penstock.errors import FailedPrecondition, PenstockError, PermissionDenied

log = logging.getLogger("penstock.client")


class PullHolder:
    """Settles deliveries of one subscription by their ack ids."""

    def __init__(self, link: Link, subscription: str) -> None:
        self._link = link
        self._subscription = subscription
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._running: set[asyncio.Task[Any]] = set()

    def ack(self, message: IncomingMessage) -> None:
        """Settle it for good."""
        self._beside(self._settle(message, None))

    def nack(self, message: IncomingMessage, nack: Nack) -> None:
        """Give it back."""
        self._beside(self._settle(message, 0))

    def move(self, message: IncomingMessage, seconds: float) -> None:
        """Give its lease another deadline."""
        self._beside(self._settle(message, seconds))

    async def confirm(
        self, message: IncomingMessage, *, acks: list[int] | None = None, nack: Nack | None = None, seconds: float | None = None
    ) -> AckResponse:
        """Settle it and say what became of it."""
        try:
            failed = await self._settle(message, None if acks else seconds or 0)
        except PermissionDenied:
            return AckResponse.PERMISSION_DENIED
        except FailedPrecondition:
            return AckResponse.FAILED_PRECONDITION
        except PenstockError:
            return AckResponse.OTHER
        return AckResponse.INVALID if failed else AckResponse.SUCCESS

    async def _settle(self, message: IncomingMessage, seconds: float | None) -> list[str]:
        if seconds is None:
            return await self._link.call(Operations.acknowledge, self._subscription, [message.ack_id])
        return await self._link.call(Operations.modify_ack_deadline, self._subscription, [message.ack_id], seconds)

    def _beside(self, work: Coroutine[Any, Any, list[str]]) -> None:
        if threading.get_ident() == self._thread:
            self._run(work)
        else:
            self._loop.call_soon_threadsafe(self._run, work)

    def _run(self, work: Coroutine[Any, Any, list[str]]) -> None:
        task = self._loop.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[list[str]]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("a message of %r could not be settled: %s", self._subscription, error)
