"""Sending to one place: gathers messages into requests, tries again what may be tried again, and says what became of each.

The rules are in `core/batching.py`. A message costs one future, a batch one task.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from penstock.client.core.batching import Batch, Batching, Patience
from penstock.client.publish_options import PublishOptions
from penstock.clock import monotonic
from penstock.durations import SECOND
from penstock.errors import InvalidArgument, PenstockError, PublishingPaused, Unavailable

if TYPE_CHECKING:
    from penstock.client.pubsub import PubSub

log = logging.getLogger("penstock.client")

Ticket: TypeAlias = "asyncio.Future[Any]"  # an id; of an explicit batch a list of them

M = TypeVar("M")


class Sender(ABC, Generic[M]):
    """The publishing side of a topic or of a work queue. Belongs to the event loop of its client."""

    noun: str
    """What people call where it sends to."""
    divisible: tuple[type[PenstockError], ...] = (InvalidArgument,)
    """Errors that may be one message's alone: the others of its batch are sent without it."""
    level = logging.WARNING
    """How loud failures are logged: whoever published may not be waiting for the result."""

    def __init__(self, pubsub: PubSub, name: str) -> None:
        self._pubsub = pubsub
        self._name = name
        self._options = PublishOptions()
        self._batching: Batching[M, Ticket] = Batching(self._options.limits)
        self._sending: dict[Batch[M, Ticket], asyncio.Task[None]] = {}
        self._is_due = False
        self._loop: asyncio.AbstractEventLoop | None = None
        """The loop it belongs to. Asking for the running one costs as much as all the rest of publishing a message."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0
        self._flushes: list[tuple[set[Batch[M, Ticket]], asyncio.Future[None]]] = []
        self._in_line: list[asyncio.Future[None]] = []
        """Who waits for room."""

    @property
    def options(self) -> PublishOptions:
        """What it was told."""
        return self._options

    def set_options(self, options: PublishOptions) -> None:
        """Live by other options from the next message on."""
        if not isinstance(options, PublishOptions):
            raise InvalidArgument.of("options", options, "a PublishOptions")
        self._options = options
        self._batching.limits = options.limits
        self._wake_line()

    # ── publishing ───────────────────────────────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    async def _store(self, messages: list[M]) -> list[str]:
        """Send messages, all or none; returns their ids when they are safe."""

    def _add(self, key: str, message: M, size: int, *, is_marked: bool) -> asyncio.Future[str]:
        """Have a checked message sent; the future gives its id. Raises where nothing can be published at all."""
        self._pubsub.check_open()
        loop = self._loop or self._begin()
        future: asyncio.Future[str] = loop.create_future()
        try:
            is_due = self._batching.add(key, message, future, size=size, now=monotonic(), is_marked=is_marked)
        except PublishingPaused as error:
            fail(future, error)  # as those do that were in line when it was paused
            return future
        if is_due and not self._is_due:
            self._is_due = True
            loop.call_soon(self._pump)
        return future

    async def flow_controlled(self) -> None:
        """Return when flow control leaves room for a message."""
        while self._batching.lacking() is not None:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._in_line.append(turn)
            await turn

    async def flush(self) -> None:
        """Send everything now, and return when all of it is confirmed or has failed."""
        self._batching.flush()
        if not self._batching.unsettled:
            return
        self._pump()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._flushes.append((set(self._batching.unsettled), done))
        await done

    async def close(self) -> None:
        """Flush, and give up what is not confirmed in time. Safe to call twice."""
        seconds = self._options.give_up_seconds
        try:
            async with asyncio.timeout(seconds):
                await self.flush()
        except TimeoutError:
            error = Unavailable(f"the client was closed, and could not publish it in {seconds:g} s; it may or may not be stored")
            sending = [*self._sending.values()]
            for batch in [*self._batching.abandon(), *self._sending]:
                self._give_up(batch, error)
            for task in sending:
                task.cancel()
            await asyncio.gather(*sending, return_exceptions=True)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._loop, self._is_due = None, False

    # ── sending ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _begin(self) -> asyncio.AbstractEventLoop:
        """Belong to the running loop until the client is closed."""
        self._loop = asyncio.get_running_loop()
        return self._loop

    def _soon(self) -> None:
        """Pump at the end of the next turn: who has just been told of an id publishes again before that, into the same batch."""
        if not self._is_due and self._loop is not None:
            self._is_due = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Send what is to be sent, and come back when the next batch has gathered for long enough."""
        self._is_due = False
        loop, now = self._loop, monotonic()
        if loop is None:
            return  # closed in the meantime
        while (batch := self._batching.take(now)) is not None:
            self._sending[batch] = loop.create_task(self._send(batch))
        due = self._batching.next_due()
        if due is not None and (self._timer is None or due < self._timer_at):
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = due
            # Rounded up: a timer that rings too early would find nothing to do.
            self._timer = loop.call_later((due - now + 1) / SECOND, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._pump()

    async def _send(self, batch: Batch[M, Ticket]) -> None:
        """See a batch through: afterwards each of its tickets is done."""
        seconds = self._options.give_up_seconds
        patience = Patience(monotonic() + round(seconds * SECOND))
        try:
            async with asyncio.timeout(seconds):
                results = await self._published(batch, batch.messages, patience)
        except TimeoutError:
            unknown = Unavailable(f"no answer came in {seconds:g} s; it may or may not be stored")
            self._failed(batch, patience.refusal or unknown)
        except PenstockError as error:
            self._failed(batch, error)
        except asyncio.CancelledError:  # the loop ends
            for ticket in batch.tickets:
                ticket.cancel()
            raise
        except Exception as error:  # noqa: BLE001  # the top of a service: whatever it was, who waits for the ids must hear of it
            self._failed(batch, error)
        else:
            self._succeeded(batch, results)
        finally:
            del self._sending[batch]
            self._batching.settle(batch)
            self._settled(batch)

    async def _published(self, batch: Batch[M, Ticket], messages: list[M], patience: Patience) -> list[str | PenstockError]:
        """The id of each message, or what is wrong with it. Raises what all of them fail with."""
        while True:
            patience.refusal = None
            try:
                return [*await self._store(messages)]
            except self.divisible as error:
                if batch.is_explicit or batch.keys:
                    raise
                if len(messages) == 1:
                    return [error]
                break
            except PenstockError as error:
                pause = patience.pause(error, monotonic())
                if pause is None:
                    raise
                await asyncio.sleep(pause / SECOND)
        # One of them is bad, and the others have nothing to do with it: halves are sent until it is alone.
        middle = len(messages) // 2
        results: list[str | PenstockError] = []
        for half in (messages[:middle], messages[middle:]):
            try:
                results += await self._published(batch, half, patience)
            except PenstockError as error:
                results += [error] * len(half)
        return results

    # ── what became of it ────────────────────────────────────────────────────────────────────────────────────────────────

    def _succeeded(self, batch: Batch[M, Ticket], results: list[str | PenstockError]) -> None:
        if batch.is_explicit:
            if not batch.tickets[0].done():
                batch.tickets[0].set_result(results)
            return
        errors: list[PenstockError] = []
        for ticket, result in zip(batch.tickets, results, strict=True):
            if isinstance(result, PenstockError):
                errors.append(result)
                fail(ticket, result)
            elif not ticket.done():
                ticket.set_result(result)
        if errors:
            log.log(self.level, "%d messages for %s %s were refused: %s", len(errors), self.noun, self._name, errors[0])

    def _failed(self, batch: Batch[M, Ticket], error: Exception) -> None:
        """Tell who waits. Once in the log as well: nobody may be waiting."""
        keys = batch.keys
        log.log(
            self.level,
            "%d messages for %s %s could not be published: %s",
            len(batch.messages),
            self.noun,
            self._name,
            error,
            exc_info=None if isinstance(error, PenstockError) else error,
        )
        for ticket in batch.tickets:
            fail(ticket, error)
        for stopped, key in self._batching.pause(keys):
            self._give_up(stopped, PublishingPaused(key))
        if keys:
            shown = ", ".join(map(repr, keys[:3])) + (", …" if len(keys) > 3 else "")
            log.warning("publishing to %s %s is paused for ordering key %s", self.noun, self._name, shown)

    def _give_up(self, batch: Batch[M, Ticket], error: PenstockError) -> None:
        for ticket in batch.tickets:
            fail(ticket, error)
        self._settled(batch)

    def _settled(self, batch: Batch[M, Ticket]) -> None:
        for waiting, done in self._flushes:
            waiting.discard(batch)
            if not waiting and not done.done():
                done.set_result(None)
        if self._flushes:
            self._flushes = [(waiting, done) for waiting, done in self._flushes if waiting and not done.done()]
        self._wake_line()
        if self._batching.unsettled:
            self._soon()

    def _wake_line(self) -> None:
        """Have those look again who wait for room: each one sees what those before it have taken."""
        if self._in_line and self._batching.lacking() is None:
            in_line, self._in_line = self._in_line, []
            for turn in in_line:
                if not turn.done():
                    turn.set_result(None)


def fail(ticket: Ticket, error: Exception) -> None:
    """Tell whoever waits."""
    if not ticket.done():
        ticket.set_exception(error)
        ticket.exception()  # looked at: the log has it, and a line for each message would say nothing more
