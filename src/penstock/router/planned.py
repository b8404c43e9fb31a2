"""Runs a planned batch: the router's rules and HTTP client for messages that another process leases and settles.

    messages ──route──> pools ──runner──> mediator ──> target
                                  └──> Endings: ack, dead, keep

No message waits here for its next attempt: a failed message is kept, with its group behind it, and leads the group in a later
batch. Calls are started for half of the time budget; one without an answer at its end is cancelled, and does not count.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

import msgspec

from penstock.clock import Clock, SystemClock, steady
from penstock.durations import FOREVER, SECOND
from penstock.errors import InvalidArgument
from penstock.http.client.transport import Failure, FailureKind, Transport
from penstock.router.core.circuit import Breaker, ExportedBreaker
from penstock.router.core.message import DEFAULT_GROUP, DEFAULT_POOL, Pointer, RoutedMessage, SourceMessage, parse
from penstock.router.core.outcome import DEFAULT_DELAY, Outcome, judge
from penstock.router.core.pool import Pool
from penstock.router.core.routing import route
from penstock.router.core.shares import PoolShare, limit_of
from penstock.router.core.tracker import Tracker
from penstock.router.mediator import Mediator
from penstock.router.options import RouterOptions
from penstock.router.records import Attempt, cut, plain_target
from penstock.router.runner import Runner

log = logging.getLogger("penstock.router")

MAX_ERROR = 1_000
MALFORMED = "malformed"
LOOK_SECONDS = 0.25
"""How often to check whether all remaining messages wait for a rate limit."""


class Dead(msgspec.Struct, frozen=True):
    """Messages that become dead letters for the same reason."""

    offsets: list[int]
    reason: str
    error: str
    attempts: int | None


class Released(msgspec.Struct, frozen=True):
    """Messages that are requeued."""

    offsets: list[int]
    delay: int


class Kept(msgspec.Struct, frozen=True, gc=False):
    """A message for a later batch: seconds until it is due, and its number of attempts."""

    offset: int
    delay: float
    attempts: int
    failures: int


Tried = tuple[int, str, str, str, int, int, int, int, str, str]
"""An attempt in the format of the log API."""


class Endings(msgspec.Struct):
    """The results for the messages of one queue, in the format of the log API."""

    ack: list[int] = []
    dead: list[Dead] = []
    release: list[Released] = []
    keep: list[Kept] = []
    attempts: list[Tried] = []

    def add(self, other: Endings) -> None:
        """Add the results of another task."""
        for name in self.__struct_fields__:
            getattr(self, name).extend(getattr(other, name))

    @property
    def settled(self) -> int:
        """The number of messages that are delivered or dead."""
        return len(self.ack) + sum(len(one.offsets) for one in self.dead)


class Drained(msgspec.Struct, array_like=True):
    """The results of a task."""

    endings: dict[int, Endings]
    """By the number of the queue."""
    breakers: dict[str, ExportedBreaker]
    """The breakers that made calls, or changed."""
    permits: dict[str, list[tuple[int, int]]]
    """By pool: the permits that were granted of its rate."""
    cut: int = 0
    """The number of calls that were cancelled."""


def routed(queue: int, name: str, offset: int, message_id: str, body: bytes) -> RoutedMessage:
    """A message of a batch; one that cannot be parsed has no target."""
    received = SourceMessage(message_id, body, offset)
    try:
        return RoutedMessage(parse(body), name, received, queue, queue)
    except InvalidArgument as error:
        return RoutedMessage(Pointer(message_id), name, received, queue, queue, error=str(error))


class PlannedRouter:
    """Delivers one batch of messages within its shares of the pools. Belongs to one event loop."""

    def __init__(
        self,
        shares: Iterable[PoolShare],
        breakers: Mapping[str, ExportedBreaker],
        options: RouterOptions,
        transport: Transport,
        *,
        elsewhere: frozenset[str] = frozenset(),
        clock: Clock | None = None,
    ) -> None:
        """`elsewhere`: pools whose messages are requeued, because another engine delivers them."""
        self._options, self._elsewhere = options, elsewhere
        self._clock = clock or SystemClock()
        self._steady = steady(self._clock)
        self._begun = now = self._steady()
        self._mediator = Mediator(
            transport, options, self._clock, {name: Breaker.restore(state, now) for name, state in breakers.items()}
        )
        self._shares = {share.code: share for share in shares}
        self._tracker = Tracker()
        self._endings: dict[int, Endings] = {}
        self._dead: dict[tuple[int, str, str, int | None], list[int]] = {}
        self._left = 0
        self._is_done = asyncio.Event()

    async def drain(self, items: Sequence[RoutedMessage], budget: float) -> Drained:
        """Deliver messages, in the given order within each group, and return the results after at most `budget` seconds."""
        now = self._begun
        pools = {code: self._pool(share, len(items)) for code, share in self._shares.items()}
        for queue, some in _by_queue(self._due(items)).items():
            routing = route(some, self._tracker, pools, lambda: pools[DEFAULT_POOL], now)
            for item in routing.requeued:
                self._of(item).ack.append(item.received.receipt)
            for item in routing.repeated:
                self._keep(item, DEFAULT_DELAY)
            self._endings.setdefault(queue, Endings())
        self._left = len(self._tracker)
        used = [pool for pool in pools.values() if pool.queued]
        runners = [
            Runner(
                pool,
                self._mediator,
                self,
                records=self,
                clock=self._clock,
                max_attempts=self._options.max_attempts,
                least_delay=0,
            )
            for pool in used
        ]
        for runner in runners:
            runner.run()
        end = now + int(budget * SECOND)
        await self._wait(used, now + int(budget * SECOND / 2))
        limited = {pool.code: pool.next_due for pool in used}
        for pool in used:
            pool.is_paused = True
        await self._wait(used, end)
        cut_off = self._cut_off()
        self._keep_rest(used, limited, cut_off)
        for (queue, reason, error, attempts), offsets in self._dead.items():
            self._endings[queue].dead.append(Dead(offsets, reason, error, attempts))
        now = self._steady()
        return Drained(
            self._endings,
            {
                name: breaker.export(now)
                for name, breaker in self._mediator.breakers.items()
                if breaker.succeeded or breaker.failed or breaker.epoch
            },
            {pool.code: pool.limit.export(now, self._begun) for pool in used if pool.limit is not None},
            len(cut_off),
        )

    # ── as `Settle` ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def ack(self, item: RoutedMessage, wall: int) -> None:
        self._ended(item).ack.append(item.received.receipt)

    def send_back(self, item: RoutedMessage, delay: int, *, has_failed: bool) -> bool:
        self._ended(item)
        self._keep(item, delay)
        return True

    def dead_letter(self, item: RoutedMessage, reason: str, outcome: Outcome, then: Callable[[bool], None]) -> None:
        self._ended(item)
        self._bury(item, reason, outcome.error, item.attempts)
        asyncio.get_running_loop().call_soon(then, True)  # later: the code that starts the next message is on the stack

    def holds(self, item: RoutedMessage) -> bool:
        return self._tracker.holds(item)

    def unexpected_error(self, item: RoutedMessage, error: Exception) -> Outcome:
        log.error("the delivery of message %r failed", item.pointer.message_id, exc_info=error)
        return judge(Failure(FailureKind.UNKNOWN, f"the delivery failed unexpectedly: {type(error).__name__}"), self._clock.now)

    def attempted(self, attempt: Attempt) -> None:
        item, came = attempt.item, attempt.came
        self._of(item).attempts.append(
            (
                item.received.receipt,
                cut(item.pointer.message_id),
                attempt.pool,
                plain_target(item.pointer.target),
                attempt.number,
                attempt.calls,
                came.status,
                attempt.duration,
                came.result.value,
                cut(came.error),
            )
        )

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _pool(self, share: PoolShare, capacity: int) -> Pool:
        is_strict = self._options.fifo == "strict"
        pool = Pool(share.code, share.concurrency, is_strict=is_strict, hold_limit=0, capacity=capacity)
        pool.limit = limit_of(share, self._begun)
        return pool

    def _due(self, items: Sequence[RoutedMessage]) -> list[RoutedMessage]:
        """Those to deliver: not unreadable, not for another engine, and due."""
        is_strict, now = self._options.fifo == "strict", self._begun
        waiting: dict[tuple[str, str], int] = {}
        chosen: list[RoutedMessage] = []
        elsewhere: dict[int, list[int]] = {}
        for item in items:
            pointer = item.pointer
            if not pointer.target:
                self._bury(item, MALFORMED, item.error, None)
            elif pointer.pool in self._elsewhere:
                elsewhere.setdefault(item.origin, []).append(item.received.receipt)
            else:
                key = (pointer.pool, pointer.group)
                until = max(item.due, waiting.get(key, 0))
                if until <= now:
                    item.due = 0
                    chosen.append(item)
                    continue
                if is_strict and pointer.group != DEFAULT_GROUP:
                    waiting[key] = until
                self._keep(item, (until - now) / SECOND)
        for queue, offsets in elsewhere.items():
            self._endings.setdefault(queue, Endings()).release.append(Released(offsets, DEFAULT_DELAY))
        return chosen

    def _of(self, item: RoutedMessage) -> Endings:
        found = self._endings.get(item.origin)
        if found is None:
            found = self._endings[item.origin] = Endings()
        return found

    def _ended(self, item: RoutedMessage) -> Endings:
        """Remove a message from the batch."""
        if self._tracker.remove(item):
            self._left -= 1
            if not self._left:
                self._is_done.set()
        return self._of(item)

    def _keep(self, item: RoutedMessage, delay: float) -> None:
        self._of(item).keep.append(Kept(item.received.receipt, delay, item.attempts, item.failures))

    def _bury(self, item: RoutedMessage, reason: str, error: str, attempts: int | None) -> None:
        self._of(item)
        self._dead.setdefault((item.origin, reason, error[:MAX_ERROR], attempts), []).append(item.received.receipt)

    async def _wait(self, pools: Sequence[Pool], until: int) -> None:
        """Return when nothing more can happen before an instant, and at the latest then."""
        while self._left and (now := self._steady()) < until:
            if all(not pool.active and (not pool.queued or pool.next_due >= until) for pool in pools):
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(min(LOOK_SECONDS, (until - now) / SECOND)):
                    await self._is_done.wait()

    def _cut_off(self) -> set[tuple[str, str]]:
        """Cancel the calls that still run; returns their groups."""
        groups: set[tuple[str, str]] = set()
        for item in [item for item in self._tracker if item.started_at]:
            if item.delivery is not None:
                item.delivery.cancel()
            item.attempts -= 1
            groups.add((item.pointer.pool, item.pointer.group))
            self._ended(item)
            self._keep(item, DEFAULT_DELAY)
        return groups

    def _keep_rest(self, pools: Sequence[Pool], limited: Mapping[str, int], cut_off: set[tuple[str, str]]) -> None:
        """Keep messages that were not started: behind a cancelled call until that is due, otherwise until the rate permits."""
        now = self._steady()
        for pool in pools:
            due = limited[pool.code]
            delay = 0 if due == FOREVER else max(due - now, 0) / SECOND
            for item in pool.drain():
                self._ended(item)
                self._keep(item, DEFAULT_DELAY if (item.pointer.pool, item.pointer.group) in cut_off else delay)


def _by_queue(items: Iterable[RoutedMessage]) -> dict[int, list[RoutedMessage]]:
    found: dict[int, list[RoutedMessage]] = {}
    for item in items:
        found.setdefault(item.origin, []).append(item)
    return found
