"""The router: from queues through pools to targets. It routes batches, settles messages, and applies configurations.

    queue ──feed──> route ──> pool ──runner──> mediator ──> target
      ^                                  │
      └──────── ack, nack, dead_letter ──┘

The order of steps is kept in memory: a message is tracked from the moment it is routed until it is settled at its source.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from penstock.clock import Clock, SystemClock, steady
from penstock.durations import SECOND
from penstock.errors import InvalidArgument, PenstockError
from penstock.http.client.target import shown_target
from penstock.http.client.transport import Failure, FailureKind, Transport
from penstock.router.core.circuit import Breaker
from penstock.router.core.config import Changes, PoolConfig, QueueChange, QueueConfig, RouterConfig, changes, shown_uri
from penstock.router.core.group import GroupMoves
from penstock.router.core.message import DEFAULT_GROUP, DEFAULT_POOL, Pointer, RoutedMessage, SourceMessage, parse
from penstock.router.core.outcome import DEFAULT_DELAY, FAST_DELAY, Outcome, Severity, judge
from penstock.router.core.pool import DEFAULT_CONCURRENCY, GRACE, Pool
from penstock.router.core.routing import Routing, route
from penstock.router.core.tracker import AttemptCounts, Tracker
from penstock.router.core.warnings import Category, Warnings
from penstock.router.feed import Feed
from penstock.router.mediator import Mediator
from penstock.router.options import RouterOptions
from penstock.router.records import Records
from penstock.router.runner import Runner
from penstock.router.source import Source

log = logging.getLogger("penstock.router")

ROUTER = "QueueManager"
MEDIATOR = "HttpMediator"
POOL = "ProcessPool"
"""The sources of warnings, by the specification's names."""
MALFORMED = "malformed"
STOP_POLLING_SECONDS = 25.0
DRAIN_SECONDS = 30.0

OpenSource = Callable[[QueueConfig], Source]


class Router:
    """One router. Create it inside the running loop; `apply` gives it a configuration, `stop` stops it cleanly."""

    def __init__(
        self,
        open_source: OpenSource,
        transport: Transport,
        records: Records,
        options: RouterOptions | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.options = options or RouterOptions()
        self.clock = clock or SystemClock()
        self.warnings = Warnings()
        self.tracker = Tracker()
        self.config = RouterConfig()
        """The part of the configuration that this process works on; the rest is left to Spark."""
        self.feeds: dict[str, Feed] = {}
        self.runners: dict[str, Runner] = {}
        self.draining_runners: list[Runner] = []
        self.draining_feeds: list[Feed] = []
        self.may_poll: Callable[[], bool] = lambda: True
        """Checked before every poll: a router that may not be the primary any more consumes nothing."""
        self.default_pool_used = 0
        """Messages whose own pool does not exist."""
        self.given_back = 0
        """Messages that were returned from pools that were drained."""
        self.mediator = Mediator(transport, self.options, self.clock)
        self.mediator.changed = self._breaker_changed
        self._open_source = open_source
        self._records = records
        self._steady = steady(self.clock)
        self._pools: dict[str, Pool] = {}
        self._group_moves = GroupMoves()
        self._batch = 0
        self._lock = asyncio.Lock()
        self._dead_letter_tasks: set[asyncio.Task[None]] = set()
        self._attempt_counts = AttemptCounts()
        self._elsewhere: frozenset[str] = frozenset()
        """The codes of pools that Spark delivers."""

    # ── routing ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    def route(self, feed: Feed, batch: Sequence[SourceMessage]) -> None:
        now = self._steady()
        self._batch += 1
        name, number = feed.config.name, self._batch
        feed.metrics.received(len(batch), self.clock.now())
        items: list[RoutedMessage] = []
        for received in batch:
            try:
                items.append(RoutedMessage(parse(received.body), name, received, feed, number, now, now))
            except InvalidArgument as error:
                self._malformed(feed, received, error)
        if self._elsewhere:
            items = self._leave(feed, items, now)
        if not items:
            return
        self._attempt_counts.recall(items)
        if self._group_moves:
            items = self._in_turn(feed, items, now)
            if not items:
                return
        routing = route(items, self.tracker, self._pools, self._default_pool, now)
        feed.in_flight += routing.accepted
        for code, pool in routing.pools.items():
            feed.fed(pool.code, now)
            runner = self.runners[code]
            runner.metrics.submitted += routing.taken[code]
            runner.run()
        if routing.accepted < len(items):
            self._settle_rest(feed, routing, now)
        if routing.unknown:
            self._warn_of_unknown(routing)

    def tracked(self, queue: str) -> list[RoutedMessage]:
        """The messages of a queue that are in the router, oldest first."""
        return self.tracker.of_queue(queue)

    def _settle_rest(self, feed: Feed, routing: Routing, now: int) -> None:
        source, wall = feed.source, self.clock.now()
        for item in routing.redelivered:
            if item.origin is not feed:  # its queue was opened again meanwhile: the feed with the new receipt settles it
                item.origin.in_flight -= 1
                item.origin, feed.in_flight = feed, feed.in_flight + 1
            # Its lease is renewed with the new receipt: the message in the router continues.
            source.extend(item.received, round(source.lease_seconds or DEFAULT_DELAY))
        for item in routing.requeued:
            source.ack(item.received)
        for item in routing.repeated:
            source.nack(item.received, DEFAULT_DELAY)
        is_strict = self.options.fifo == "strict"
        for pool, item in routing.refused:
            self._refuse(feed, pool, item, self.runners[pool.code].refusal() if is_strict else DEFAULT_DELAY, now)
        for pool, item in routing.waiting:
            self._refuse(feed, pool, item, DEFAULT_DELAY, now)
        feed.metrics.deferred(len(routing.refused) + len(routing.waiting) + len(routing.repeated), wall)
        for code, count in routing.full.items():
            feed.fed(code, now)
            self.warn(Category.QUEUE_FULL, Severity.WARN, f"pool {code!r} is full: messages return to their queue", ROUTER)
            log.debug("pool %r had no room for %d messages of %r", code, count, feed.config.name)

    def _refuse(self, feed: Feed, pool: Pool, item: RoutedMessage, delay: int, now: int) -> None:
        pool.sent_back(item, now + delay * SECOND)
        getattr(feed.source, "refuse", feed.source.nack)(item.received, delay)
        self._attempt_counts.keep(item)

    def _leave(self, feed: Feed, items: list[RoutedMessage], now: int) -> list[RoutedMessage]:
        """Those whose pool is delivered here; the others return to their queue."""
        for item in [item for item in items if item.pointer.pool in self._elsewhere]:
            items.remove(item)
            getattr(feed.source, "refuse", feed.source.nack)(item.received, DEFAULT_DELAY)
            text = f"pool {item.pointer.pool!r} has the engine spark: its messages of {feed.config.name!r} return to it"
            self.warn(Category.ROUTING, Severity.WARN, f"{text}; put them on a queue with the engine spark", ROUTER)
        return items

    def _in_turn(self, feed: Feed, items: list[RoutedMessage], now: int) -> list[RoutedMessage]:
        """Those that need not wait for messages of their group in another pool; the others return to their queue."""
        behind = [
            item for item in items if self._group_moves.is_behind(item, self.tracker.holds) and self.tracker.seen(item) is None
        ]
        for item in behind:
            self._refuse(feed, self._pool_of(item), item, FAST_DELAY, now)
        feed.metrics.deferred(len(behind), self.clock.now())
        others = set(map(id, behind))
        return [item for item in items if id(item) not in others]

    def _pool_of(self, item: RoutedMessage) -> Pool:
        found = self._pools.get(item.pointer.pool)
        return found if found is not None else self._default_pool()

    def _warn_of_unknown(self, routing: Routing) -> None:
        for code, count in routing.unknown.items():
            if code != DEFAULT_POOL:
                self.default_pool_used += count
                text = f"no pool {code!r} is configured: its messages go to {DEFAULT_POOL}"
                self.warn(Category.ROUTING, Severity.WARN, text, ROUTER)

    def _default_pool(self) -> Pool:
        found = self._pools.get(DEFAULT_POOL)
        return found if found is not None else self._add_pool(PoolConfig(DEFAULT_POOL, DEFAULT_CONCURRENCY)).pool

    def _malformed(self, feed: Feed, received: SourceMessage, error: InvalidArgument) -> None:
        item = RoutedMessage(Pointer(received.broker_id, "", ""), feed.config.name, received, feed)
        self.warn(Category.CONFIGURATION, Severity.ERROR, f"a message of {feed.config.name!r} cannot be read: {error}", ROUTER)
        self._dead_letter(
            item, MALFORMED, str(error), lambda is_kept: None if is_kept else feed.source.nack(received, DEFAULT_DELAY)
        )

    # ── settling ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def ack(self, item: RoutedMessage, wall: int) -> None:
        """A message is finished: it leaves the router and its queue."""
        if self.tracker.remove(item):
            feed: Feed = item.origin
            feed.in_flight -= 1
            feed.metrics.consumed(wall)
            feed.source.ack(item.received)

    def send_back(self, item: RoutedMessage, delay: int, *, has_failed: bool = False) -> bool:
        """Requeue a message; it is redelivered after `delay` seconds. False if its queue could not be reached.

        `has_failed`: whether an attempt failed. Otherwise the message was not tried, or its target asked for a later attempt: a
        queue that counts attempts (`source.CountsAttempts`) does not count this one.
        """
        if not self.tracker.remove(item):
            return True
        feed: Feed = item.origin
        feed.in_flight -= 1
        if has_failed:
            feed.metrics.failed(self.clock.now())
        else:
            feed.metrics.deferred(1, self.clock.now())
        self._attempt_counts.keep(item)
        if self._group_moves and (back := self._group_moves.sent_back(item, self._steady() + delay * SECOND + GRACE)):
            self._pool_of(item).wait_for(item.pointer.group, back)
        try:
            refuse = None if has_failed or not delay else getattr(feed.source, "refuse", None)
            (refuse or feed.source.nack)(item.received, delay)
        except Exception as error:  # after any error: the messages that return with it must still return
            log.warning("a message could not be released to %r", feed.config.name, exc_info=error)
            return False
        return True

    def force_ack(self, item: RoutedMessage) -> None:
        """An operator removes a message: it is acked, no new delivery starts, and it is not retried if its running call fails."""
        self.ack(item, self.clock.now())
        for code in (item.pointer.pool, DEFAULT_POOL):  # it may have arrived before its own pool existed
            runner = self.runners.get(code)
            if runner is not None and runner.pool.drop(item, self._steady()):
                runner.run()
                return

    def holds(self, item: RoutedMessage) -> bool:
        """Whether a message is in the router; if not, an operator has removed it."""
        return self.tracker.holds(item)

    def unexpected_error(self, item: RoutedMessage, error: Exception) -> Outcome:
        """The delivery of a message failed unexpectedly: it is retried, and the error is reported."""
        log.error("the delivery of message %r failed", item.pointer.message_id, exc_info=error)
        text = f"{shown_target(item.pointer.target)}: a delivery failed unexpectedly: {type(error).__name__}"
        self.warn(Category.PROCESSING, Severity.WARN, text, POOL)
        return judge(Failure(FailureKind.UNKNOWN, f"the delivery failed unexpectedly: {type(error).__name__}"), self.clock.now)

    def dead_letter(self, item: RoutedMessage, reason: str, outcome: Outcome, then: Callable[[bool], None]) -> None:
        """A message cannot be delivered: it is kept as a dead letter, then acked at its queue."""
        # Without the message's id, so that a thousand messages refused by a target are one warning, with a count.
        target = shown_target(item.pointer.target)
        if outcome.warning is not None:
            self.warn(Category.CONFIGURATION, outcome.warning, f"{target}: {outcome.error}", MEDIATOR)
        else:
            text = f"{target}: a message is dead after {item.attempts} attempts: {outcome.error}"
            self.warn(Category.PROCESSING, Severity.ERROR, text, POOL)
        log.debug("message %r is dead: %s", item.pointer.message_id, outcome.error)
        self._dead_letter(item, reason, outcome.error, then)

    def _dead_letter(self, item: RoutedMessage, reason: str, error: str, then: Callable[[bool], None]) -> None:
        task = asyncio.create_task(self._keep_dead(item, reason, error, then))
        self._dead_letter_tasks.add(task)
        task.add_done_callback(self._dead_letter_tasks.discard)

    async def _keep_dead(self, item: RoutedMessage, reason: str, error: str, then: Callable[[bool], None]) -> None:
        feed: Feed = item.origin
        own: Callable[[SourceMessage, str, str, int], Awaitable[None]] | None = getattr(feed.source, "dead_letter", None)
        try:
            if own is None:
                await self._records.dead_letter(item, reason, error)
            else:
                await own(item.received, reason, error, item.attempts)
        except Exception as problem:  # after any error, neither the message nor its worker may be lost
            said = str(problem) if isinstance(problem, PenstockError) else type(problem).__name__
            log.debug("a dead letter could not be kept", exc_info=problem)
            text = f"a dead letter of {feed.config.name!r} could not be kept: {said}"
            self.warn(Category.PROCESSING, Severity.CRITICAL, text, ROUTER)
            then(False)  # a message is acked only after it is stored safely
            return
        feed = item.origin  # its queue may have been opened again meanwhile
        is_tracked = self.tracker.remove(item)
        feed.in_flight -= is_tracked
        if is_tracked or reason == MALFORMED:  # otherwise an operator has removed it meanwhile
            feed.metrics.consumed(self.clock.now())
            feed.metrics.dead_lettered(reason)
            if own is None:
                feed.source.ack(item.received)
        then(True)

    def warn(self, category: str, severity: Severity, message: str, source: str) -> None:
        """Record a warning, and log it the first time."""
        if self.warnings.add(category, severity, message, source, self.clock.now()).count == 1:
            log.log(_LEVELS[severity], "%s: %s", category, message)

    def _breaker_changed(self, target: str, breaker: Breaker) -> None:
        log.warning("the circuit breaker of %s is %s", self.mediator.breaker_name(target), breaker.state)

    # ── configuration ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def apply(self, new: RouterConfig) -> Changes:
        """Apply a configuration (specification 001, "What Gets Applied"), while messages flow."""
        async with self._lock:
            spark, new = new.of("spark"), new.of("local")
            elsewhere = frozenset(pool.code for pool in spark.pools)
            if elsewhere and elsewhere != self._elsewhere:
                named = [*(f"pool {pool.code}" for pool in spark.pools), *(f"queue {queue.name}" for queue in spark.queues)]
                log.info("left to penstock pipeline route (engine spark): %s", ", ".join(named))
            self._elsewhere = elsewhere
            found = changes(self.config, new)
            before = self.runners.copy()
            for pool in found.pools_removed:
                self._drain_pool(pool.code)
            for change in found.pools_changed:
                self.update_pool(change.new)
            added = {pool.code for pool in found.pools_added}
            for pool in new.pools:
                # Also a pool that exceeded the limit before: others may have been removed.
                if pool.code in added or pool.code not in self.runners:
                    self._admit_pool(pool)
            self._note_moves({code for code in before.keys() | added if self.runners.get(code) is not before.get(code)})
            drained = (*found.queues_removed, *(change.old for change in found.queues_changed))
            await asyncio.gather(*(self._drain_feed(queue.name) for queue in drained))
            for queue in (*(change.new for change in found.queues_changed), *found.queues_added):
                await self._take_up(queue)
            self.config = new
            return found

    async def _take_up(self, config: QueueConfig) -> None:
        """Poll a queue of the configuration, never with two sources at a time: messages of both would lose their order."""
        before = [feed for feed in self.draining_feeds if feed.config.name == config.name or feed.config.uri == config.uri]
        kept = [feed for feed in before if not feed.is_closing and not QueueChange(feed.config, config).has_to_be_opened]
        if kept:
            self.draining_feeds.remove(kept[-1])
            self.feeds[config.name] = kept[-1]
            await kept[-1].change(config, STOP_POLLING_SECONDS)
        else:
            self.add_feed(config, before)

    def _note_moves(self, codes: set[str]) -> None:
        """Messages in the router stay in their pool, though new ones of their groups go to another: keep their order."""
        if codes and self.options.fifo == "strict":
            is_default = DEFAULT_POOL in codes
            self._group_moves.add(
                item
                for item in self.tracker
                if item.pointer.group != DEFAULT_GROUP
                and (item.pointer.pool in codes or (is_default and item.pointer.pool not in self._pools))
            )

    def update_pool(self, config: PoolConfig) -> None:
        runner = self.runners.get(config.code)
        if runner is None:
            self._admit_pool(config)
        else:
            runner.pool.update(config.concurrency, config.rate_per_minute)
            runner.run()

    def add_feed(self, config: QueueConfig, before: Sequence[Feed] = ()) -> None:
        """Open a queue and poll it, after the feeds `before` it are closed.

        A queue that cannot be opened causes a warning, and the others continue.
        """
        try:
            source = self._open_source(config)
        except Exception as error:  # any error, see above
            said = str(error) if isinstance(error, PenstockError) else type(error).__name__
            log.debug("the queue %r cannot be opened", config.name, exc_info=error)
            text = f"the queue {shown_uri(config.name)!r} cannot be used: {said}"
            self.warn(Category.QUEUE_VALIDATION, Severity.ERROR, text, ROUTER)
            return
        feed = self.feeds[config.name] = Feed(config, source, self, self.clock, self.options.large_batch, before=before)
        for one in before:
            one.is_closing = True
        feed.start()

    def _admit_pool(self, config: PoolConfig) -> None:
        if config.code in self.runners:  # the default pool, created when it was needed
            self.update_pool(config)
            return
        count, options = len(self.runners), self.options
        if count >= options.max_pools:
            text = f"pool {config.code!r} is not made: there are {count} pools, the limit is {options.max_pools}"
            self.warn(Category.POOL_LIMIT, Severity.CRITICAL, text, ROUTER)
            return
        if count >= options.pool_warning_threshold:
            text = f"there are {options.pool_warning_threshold} pools or more, the limit is {options.max_pools}"
            self.warn(Category.POOL_LIMIT, Severity.WARN, text, ROUTER)
        made = self._add_pool(config).pool
        if DEFAULT_POOL in self._pools:  # it may be this pool's messages that the default pool waits for
            for group, ahead in self._pools[DEFAULT_POOL].awaited().items():
                made.wait_for(group, ahead)

    def _add_pool(self, config: PoolConfig) -> Runner:
        pool = Pool(
            config.code,
            config.concurrency,
            config.rate_per_minute,
            is_strict=self.options.fifo == "strict",
            hold_limit=round(self.options.hold_limit * SECOND),
        )
        runner = Runner(
            pool, self.mediator, self, records=self._records, clock=self.clock, max_attempts=self.options.max_attempts
        )
        self._pools[config.code], self.runners[config.code] = pool, runner
        return runner

    def _drain_pool(self, code: str) -> None:
        runner = self.runners.pop(code, None)
        if runner is None:
            return
        del self._pools[code]
        awaited = runner.pool.awaited(self._steady())
        waiting = runner.pool.drain()
        for group, ahead in awaited.items():
            self._default_pool().wait_for(group, ahead)
        for item in waiting:
            self.send_back(item, 0)
        self.given_back += len(waiting)
        if waiting:
            log.info("pool %r is drained: %d messages returned to their queues", code, len(waiting))
        self.draining_runners.append(runner)

    async def _drain_feed(self, name: str) -> None:
        feed = self.feeds.pop(name, None)
        if feed is not None:
            self.draining_feeds.append(feed)
            await feed.stop_polling(STOP_POLLING_SECONDS)

    # ── what is done now and then ────────────────────────────────────────────────────────────────────────────────────────

    async def restart_unhealthy(self) -> None:
        """Restart the feeds without a successful poll for a minute (specification 001, "Consumer Health Check").

        Queues that could not be opened are tried again too.
        """
        async with self._lock:
            for queue in self.config.queues:
                if queue.name not in self.feeds:
                    await self._take_up(queue)
            for name, feed in list(self.feeds.items()):
                if feed.is_polling(self.clock.now()):
                    continue
                said = f" ({feed.trouble})" if feed.trouble is not None else ""
                text = f"no poll of the queue {shown_uri(name)!r} succeeded for a minute{said}: its consumer is restarted"
                self.warn(Category.CONSUMER_RESTART, Severity.WARN, text, ROUTER)
                if feed.trouble is not None:
                    # Its source works, and knows which acks its server may have missed: with another source these would be lost.
                    await feed.change(feed.config, STOP_POLLING_SECONDS)
                    continue
                await self._drain_feed(name)
                self.add_feed(feed.config, [feed])
                if name in self.feeds:
                    self.feeds[name].polled_at, self.feeds[name].since = feed.polled_at, feed.since
                else:
                    text = f"the consumer of the queue {shown_uri(name)!r} could not be restarted"
                    self.warn(Category.CONSUMER_RESTART_FAILED, Severity.CRITICAL, text, ROUTER)

    async def clean_up(self) -> None:
        """Remove pools and feeds that are drained, and unused groups and breakers."""
        async with self._lock:
            self.draining_runners = [runner for runner in self.draining_runners if not runner.pool.is_drained]
            ended = [feed for feed in self.draining_feeds if not feed.in_flight]
            await asyncio.gather(*(feed.close() for feed in ended))
            # Not earlier: if its closing is cancelled, because the router stops, it is closed then.
            self.draining_feeds = [feed for feed in self.draining_feeds if feed not in ended]
        self.tracker.forget_empty()
        self._group_moves.forget(self.tracker.holds)
        now = self._steady()
        for runner in self.runners.values():
            runner.pool.sweep(now)
        self.mediator.forget_idle(now)

    def check_for_leaks(self) -> None:
        """Warn of more messages in the router than its pools can hold (specification 001, "Leak Detection")."""
        # The specification's limit is less than pools hold: it ignores the minimum capacity of each, and running calls.
        pools = [runner.pool for runner in (*self.runners.values(), *self.draining_runners)]
        capacity = sum(max(pool.capacity + pool.concurrency, pool.queued + pool.active) for pool in pools)
        if len(self.tracker) > capacity:
            text = f"more messages are tracked than the pools can hold ({capacity}): some were never settled"
            self.warn(Category.PIPELINE_MAP_LEAK, Severity.WARN, text, ROUTER)

    async def refresh_depths(self) -> None:
        await asyncio.gather(*(self._refresh_depth(feed) for feed in list(self.feeds.values())))

    async def _refresh_depth(self, feed: Feed) -> None:
        try:
            depth = await feed.source.depth()
        except PenstockError as error:
            log.debug("the depth of %r is not known: %s", feed.config.name, error)
            return
        if depth is not None:
            for found in feed.metrics.depth(depth.pending, depth.not_visible, self.clock.now()):
                self.warn(found.category, found.severity, found.message, feed.config.name)

    # ── stopping ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def stop(self, drain_seconds: float = DRAIN_SECONDS) -> None:
        """Stop in four steps (specification 001, "Graceful Shutdown"). Safe to call twice.

        Messages that wait in pools return to their queue after all running deliveries have ended, in the order in which they
        arrived: a message that fails now must not come after those that follow it.
        """
        async with self._lock:
            self.mediator.is_stopping = True
            feeds = [*self.feeds.values(), *self.draining_feeds]
            poll_seconds = min(STOP_POLLING_SECONDS, drain_seconds)
            stopped = await asyncio.gather(*(feed.stop_polling(poll_seconds) for feed in feeds))
            if not all(stopped):
                log.warning("%d polls did not end in time", stopped.count(False))
            runners = [*self.runners.values(), *self.draining_runners]
            for runner in runners:
                runner.stop()
            await self._wait_for_calls(runners, drain_seconds)
            for item in self.tracker:
                if item.delivery is not None:
                    item.delivery.cancel()
            if self._dead_letter_tasks:
                await asyncio.wait(self._dead_letter_tasks, timeout=drain_seconds)
            self._give_back()
            await asyncio.gather(*(feed.close() for feed in feeds))
            self.feeds, self.runners, self._pools = {}, {}, {}
            self.draining_feeds, self.draining_runners = [], []
            self.config, self._group_moves = RouterConfig(), GroupMoves()
            self.mediator.is_stopping = False
            await self._records.flush()

    async def _wait_for_calls(self, runners: Sequence[Runner], seconds: float) -> None:
        if runners:
            _, late_ones = await asyncio.wait([asyncio.create_task(runner.idle()) for runner in runners], timeout=seconds)
            for task in late_ones:
                task.cancel()
        late = sum(runner.pool.active for runner in runners)
        if late:
            log.warning("%d calls did not end within %g s and are cut off", late, seconds)

    def _give_back(self) -> None:
        errors = sum(not self.send_back(item, 0) for item in list(self.tracker))
        if errors:
            text = f"{errors} messages could not be released to their queues; they are redelivered by themselves"
            self.warn(Category.SHUTDOWN_CLEANUP_ERRORS, Severity.WARN, text, ROUTER)


_LEVELS = {
    Severity.INFO: logging.INFO,
    Severity.WARN: logging.WARNING,
    Severity.ERROR: logging.ERROR,
    Severity.CRITICAL: logging.CRITICAL,
}
