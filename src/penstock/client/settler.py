"""Acks, nacks and deadlines on their way: gathered for one turn of the loop, sent together, kept until they have arrived."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import ParamSpec

from penstock.api.frames import Nack
from penstock.client.core.holdings import Holdings
from penstock.client.link import Channel
from penstock.client.message import AckResponse, IncomingMessage
from penstock.clock import Clock
from penstock.durations import SECOND
from penstock.errors import FailedPrecondition, PenstockError, PermissionDenied

P = ParamSpec("P")


class Settler:
    """Settles what one stream holds, through whichever of its channels is open. Without one it waits."""

    def __init__(self, holdings: Holdings[IncomingMessage], clock: Clock, on_change: Callable[[], None]) -> None:
        self._clock = clock
        self._holdings = holdings
        self._on_change = on_change
        """Called when something was let go of."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._channel: Channel | None = None
        self._acks: list[int] = []
        self._nacks: list[Nack] = []
        self._deadlines: dict[float, list[int]] = {}
        self._is_due = False

    def use(self, channel: Channel | None) -> None:
        """Settle through this channel from now on; None while there is none."""
        before, self._channel = self._channel, channel
        if before is not None and before is not channel:
            self._acks += before.unconfirmed()
        if channel is not None:
            self._soon()

    @property
    def pending(self) -> list[int]:
        """Receipts of what was settled here and may not have arrived yet."""
        return [*self._acks, *(nack.receipt for nack in self._nacks)]

    def ack(self, message: IncomingMessage) -> None:
        """Settle it for good."""
        if threading.get_ident() == self._thread:
            self._ack(message.receipt)
        else:
            self._across(self._ack, message.receipt)

    def nack(self, message: IncomingMessage, nack: Nack) -> None:
        """Give it back."""
        self._across(self._nack, nack)

    def move(self, message: IncomingMessage, seconds: float) -> None:
        """Give its lease another deadline."""
        self._across(self._move, message, seconds)

    def extend(self, receipts: list[int], seconds: float) -> None:
        """Give leases another deadline."""
        self._deadlines.setdefault(seconds, []).extend(receipts)
        self._soon()

    async def confirm(
        self, message: IncomingMessage, *, acks: list[int] | None = None, nack: Nack | None = None, seconds: float | None = None
    ) -> AckResponse:
        """Settle one delivery and say what became of it."""
        channel = self._channel
        if seconds is None or not seconds:
            self._holdings.settle(message.receipt)
            self._on_change()
        else:
            message.deadline = self._clock.now() + round(seconds * SECOND)
        if channel is None:
            return AckResponse.OTHER
        self.flush()
        deadlines = [] if seconds is None else [([message.receipt], seconds)]
        try:
            failed = await channel.confirm(acks or [], [nack] if nack is not None else [], deadlines)
        except PermissionDenied:
            return AckResponse.PERMISSION_DENIED
        except FailedPrecondition:
            return AckResponse.FAILED_PRECONDITION
        except PenstockError:
            return AckResponse.OTHER
        return AckResponse.INVALID if failed else AckResponse.SUCCESS

    def flush(self) -> None:
        """Send everything now."""
        self._is_due = False
        channel = self._channel
        if channel is None or not (self._acks or self._nacks or self._deadlines):
            return
        acks, nacks, deadlines = self._acks, self._nacks, self._deadlines
        self._acks, self._nacks, self._deadlines = [], [], {}
        channel.settle(acks, nacks, [(receipts, seconds) for seconds, receipts in deadlines.items()])
        self._on_change()

    def _ack(self, receipt: int) -> None:
        self._acks.append(receipt)
        self._let_go(receipt)

    def _nack(self, nack: Nack) -> None:
        self._nacks.append(nack)
        self._let_go(nack.receipt)

    def _move(self, message: IncomingMessage, seconds: float) -> None:
        if seconds:
            message.deadline = self._clock.now() + round(seconds * SECOND)
            self.extend([message.receipt], seconds)
        else:
            self._nack(Nack(message.receipt))

    def _let_go(self, receipt: int) -> None:
        if self._holdings.settle(receipt):
            self._on_change()
        if not self._is_due:
            self._soon()

    def _soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self.flush)

    def _across(self, function: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call it in the loop's thread."""
        if threading.get_ident() == self._thread:
            function(*args, **kwargs)
        else:
            with suppress(RuntimeError):  # the loop is closed: nobody holds anything any more
                self._loop.call_soon_threadsafe(lambda: function(*args, **kwargs))
