"""Runs a pool: takes messages from its core, has them delivered, and applies the outcomes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Protocol

from penstock.clock import Clock, steady
from penstock.durations import FOREVER, SECOND
from penstock.router.core.message import RoutedMessage
from penstock.router.core.metrics import PoolMetrics
from penstock.router.core.outcome import DEFAULT_DELAY, FAST_DELAY, Disposition, Metric, Outcome
from penstock.router.core.pool import Pool
from penstock.router.mediator import Mediator
from penstock.router.records import Attempt, AttemptRecords

SKEW_KEPT = SECOND // 10
LONGEST_REFUSAL = 10
"""A message that a full pool had no room for is redelivered after at most this many seconds."""


class Settle(Protocol):
    """Settles messages: the router."""

    def ack(self, item: RoutedMessage, wall: int) -> None:
        """A message is delivered. `wall` is the present time."""

    def send_back(self, item: RoutedMessage, delay: int, *, has_failed: bool) -> bool:
        """Requeue a message; it is redelivered after `delay` seconds. False if the queue could not be reached.

        `has_failed`: whether an attempt failed. Otherwise the message was not tried, or its target asked for a later attempt.
        """

    def dead_letter(self, item: RoutedMessage, reason: str, outcome: Outcome, then: Callable[[bool], None]) -> None:
        """A message is dead; `then` is called when it is stored and acked, or with False if it could not be stored."""

    def holds(self, item: RoutedMessage) -> bool:
        """Whether a message is in the router; if not, an operator has removed it."""

    def unexpected_error(self, item: RoutedMessage, error: Exception) -> Outcome:
        """The outcome of a delivery that failed unexpectedly."""


class Runner:
    """Runs one pool. Belongs to one event loop."""

    def __init__(
        self,
        pool: Pool,
        mediator: Mediator,
        settle: Settle,
        *,
        records: AttemptRecords,
        clock: Clock,
        max_attempts: int | None = None,
        least_delay: int = DEFAULT_DELAY,
    ) -> None:
        """`least_delay`: the shortest delay, in seconds, with which messages of a strict group return to their queue."""
        self.pool = pool
        self.metrics = PoolMetrics()
        self.is_stopped = False
        """No delivery is started any more, and failed messages stay in place until they are released."""
        self._mediator = mediator
        self._settle = settle
        self._records = records
        self._clock = clock
        self._steady = steady(clock)
        self._max_attempts = max_attempts
        self._least_delay = least_delay
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = FOREVER
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._gap = 0
        """The time from one message to the next, in microseconds: a moving average."""
        self.ended_at = 0
        """When an attempt last ended (steady time); 0 if none has."""
        self._marked_at = 0
        """When a message ended, or when the first one was started after an idle time."""
        self._idle = asyncio.Event()
        self._refused = 0
        self._limited = 0
        """How many waits for the rate limit are in the metrics."""
        self._skew = self._skew_until = 0
        """Wall-clock time minus steady time, updated at each event."""

    def run(self) -> None:
        self._run(self._steady())

    def _run(self, now: int) -> None:
        pool = self.pool
        if self.is_stopped:
            if not pool.active:
                self._idle.set()
            return
        if not pool.active:
            self._marked_at = now
        while pool.active < pool.concurrency and (item := pool.take(now)) is not None:
            try:
                outcome = self._mediator.deliver(item, self._ended, now)
            except Exception as error:  # noqa: BLE001  # after any error the other messages continue, and this one is retried
                outcome = self._settle.unexpected_error(item, error)
            if outcome is not None:
                try:
                    self._follow(item, 0, outcome, now)
                except Exception as error:  # noqa: BLE001  # as above
                    self._recover(item, error, now)
        if pool.passed_over:
            self._return_skipped()
        if pool.limited > self._limited:
            self.metrics.limited(pool.limited - self._limited, self._clock.now())
            self._limited = pool.limited
        if pool.active < pool.concurrency and (due := pool.next_due) != FOREVER:
            self._arm(due, now)
        if self._waiting:
            self._wake()

    def stop(self) -> None:
        self.is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
        self._wake(is_all=True)
        if not self.pool.active:
            self._idle.set()

    async def idle(self) -> None:
        """Return when it is stopped and no delivery is running."""
        await self._idle.wait()

    def has_room(self, wanted: int) -> bool:
        """Whether there is room for this many messages, or for half of the pool's capacity."""
        return self.pool.room >= min(wanted, self.pool.capacity // 2)

    async def room(self, wanted: int, seconds: float) -> bool:
        """Wait until there is room for this many messages; False if there is none after that time."""
        if self.has_room(wanted):
            return True
        wanted = min(wanted, self.pool.capacity // 2)
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append((wanted, future))
        try:
            async with asyncio.timeout(seconds):
                await future
        except TimeoutError:
            return False
        return True

    def refusal(self) -> int:
        """Seconds after which a message without room may be redelivered: an estimate of when there is room."""
        gap = max(self._gap, self._steady() - self._marked_at if self.pool.active else 0)
        seconds = min(max(self.pool.queued * gap // SECOND, 1), LONGEST_REFUSAL)
        self._refused += 1
        # Spread over the last quarter: thousands that returned together should not arrive together.
        return seconds - self._refused % (seconds // 4 + 1)

    def _ended(self, item: RoutedMessage, calls: int, outcome: Outcome, now: int) -> None:
        try:
            self._follow(item, calls, outcome, now)
        except Exception as error:  # noqa: BLE001  # as above
            self._recover(item, error, now)
        self._run(now)

    def _recover(self, item: RoutedMessage, error: Exception, now: int) -> None:
        """Applying an outcome failed: neither a worker nor a message may be lost."""
        self._settle.unexpected_error(item, error)
        if item.started_at:  # it still has its worker
            self._try_again(item, DEFAULT_DELAY, now, has_failed=True)

    def _follow(self, item: RoutedMessage, calls: int, outcome: Outcome, now: int) -> None:
        pool = self.pool
        duration = now - item.started_at
        if now >= self._skew_until:
            self._skew, self._skew_until = self._clock.now() - now, now + SKEW_KEPT
        wall = now + self._skew
        self.metrics.finished(outcome.metric, duration, wall)
        self._gap += (now - self._marked_at - self._gap) // 8
        self._marked_at = self.ended_at = now
        item.error = outcome.error
        if not calls and outcome.metric is Metric.NONE:
            item.attempts -= 1  # no call was made, so there is nothing to record
            self._try_again(item, outcome.effective_delay, now, has_failed=False, was_called=False)
            return
        self._records.attempted(Attempt(item, pool.code, item.attempts, calls, outcome, duration, wall))
        if outcome.disposition is Disposition.DELIVERED:
            pool.finish(item, now)
            self._settle.ack(item, wall)
            return
        self.metrics.errored(outcome.result)
        item.failures += not outcome.is_deferral
        if not self._settle.holds(item):
            pool.finish(item, now)
        elif outcome.disposition is Disposition.UNDELIVERABLE:
            self._settle.dead_letter(item, "undeliverable", outcome, partial(self._dead_lettered, item))
        elif self._max_attempts is not None and item.failures >= self._max_attempts:
            self._settle.dead_letter(item, "max_attempts", outcome, partial(self._dead_lettered, item))
        else:
            self._try_again(item, outcome.effective_delay, now, has_failed=not outcome.is_deferral)

    def _try_again(self, item: RoutedMessage, delay: int, now: int, *, has_failed: bool, was_called: bool = True) -> None:
        if self.is_stopped or not self._settle.holds(item):
            self.pool.finish(item, now)
            return
        back = self.pool.retry(item, delay * SECOND, now, was_called=was_called)[1]
        if self.pool.is_strict(item.pointer.group) and not self.pool.is_draining:
            # There was no room for it here: it is redelivered after the held messages, and blocks none behind it.
            delay = max(delay, self._least_delay)
        for one in back:
            self._settle.send_back(one, delay, has_failed=has_failed and one is item)

    def _dead_lettered(self, item: RoutedMessage, is_kept: bool) -> None:
        now = self._steady()
        if is_kept:
            self.pool.finish(item, now)
        else:
            self._try_again(item, DEFAULT_DELAY, now, has_failed=True)
        self._run(now)

    def _return_skipped(self) -> None:
        passed, self.pool.passed_over = self.pool.passed_over, []
        for item in passed:
            self._settle.send_back(item, FAST_DELAY, has_failed=False)

    def _arm(self, due: int, now: int) -> None:
        if self._timer is not None:
            if self._timer_due <= due and self._timer_due > now:
                return
            self._timer.cancel()
        self._timer_due = due
        self._timer = self._loop.call_later(max(due - now, 0) / SECOND, self._rung)

    def _rung(self) -> None:
        self._timer, self._timer_due = None, FOREVER
        self.run()

    def _wake(self, *, is_all: bool = False) -> None:
        room = self.pool.room
        still: list[tuple[int, asyncio.Future[None]]] = []
        for wanted, future in self._waiting:
            if future.done():
                continue
            if is_all or room >= wanted:
                future.set_result(None)
            else:
                still.append((wanted, future))
        self._waiting = still
