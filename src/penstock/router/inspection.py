"""What operators can see and change in a router."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import islice

from penstock.clock import Clock, steady
from penstock.errors import FailedPrecondition, NotFound, Unimplemented
from penstock.http.client.target import shown_target
from penstock.router.core.circuit import WINDOW
from penstock.router.core.config import PoolConfig, shown_uri
from penstock.router.core.message import RoutedMessage
from penstock.router.core.metrics import QueueMetrics
from penstock.router.core.snapshot import BreakerState, ForcedAck, InFlight, PoolState, QueueState, SentMessage, Snapshot
from penstock.router.core.warnings import Warnings
from penstock.router.feed import Feed
from penstock.router.lifecycle import RouterLifecycle
from penstock.router.router import Router

FLUSH_SECONDS = 5.0


class Inspection:
    """Implements what the monitoring API needs from a router."""

    def __init__(self, lifecycle: RouterLifecycle) -> None:
        self._lifecycle = lifecycle
        self._router: Router = lifecycle.router
        self.clock: Clock = self._router.clock
        self.warnings: Warnings = self._router.warnings
        self._steady = steady(self.clock)
        self._started_at = self._steady()

    def snapshot(self) -> Snapshot:
        """The present state; may be called in any thread."""
        lifecycle, router = self._lifecycle, self._router
        runners = [*router.runners.values(), *router.draining_runners]
        feeds = [*router.feeds.values()]
        steady_now = self._steady()
        offset = self.clock.now() - steady_now
        return Snapshot(
            is_enabled=lifecycle.is_enabled,
            is_ready=lifecycle.is_initialised and not lifecycle.is_stopping,
            started_at=self._started_at + offset,
            in_flight=len(router.tracker),
            default_pool_used=router.default_pool_used,
            pools=[
                PoolState(
                    code=pool.code,
                    concurrency=pool.concurrency,
                    rate_per_minute=pool.limit.per_minute if pool.limit is not None else None,
                    active=pool.active,
                    queued=pool.queued,
                    held=pool.held,
                    capacity=pool.capacity,
                    groups=len(pool.lanes),
                    ended_at=runner.ended_at + offset if runner.ended_at else 0,
                    metrics=runner.metrics,
                    is_draining=pool.is_draining,
                    is_paused=pool.is_paused,
                )
                for runner in runners
                for pool in [runner.pool]
            ],
            queues=[
                *(
                    QueueState(name=shown_uri(feed.config.name), metrics=feed.metrics, is_connected=feed.source.is_healthy)
                    for feed in feeds
                ),
                *(
                    QueueState(name=shown_uri(queue.name), metrics=QueueMetrics(self._started_at + offset), is_connected=False)
                    for queue in router.config.queues
                    if queue.name not in router.feeds
                ),
            ],
            consumers=[consumer for feed in feeds for consumer in feed.consumers()],
            breakers=[
                BreakerState(
                    name=name,
                    state=breaker.state,
                    succeeded=breaker.succeeded,
                    failed=breaker.failed,
                    rejected=breaker.rejected,
                    failure_rate=breaker.failure_rate,
                    buffered=breaker.buffered,
                    size=WINDOW,
                    paused_until=breaker.paused_until + offset if breaker.paused_until > steady_now else 0,
                    open_until=breaker.open_until + offset if breaker.open_until > steady_now else 0,
                    error=breaker.error,
                )
                for name, breaker in list(router.mediator.breakers.items())
            ],
            standby=lifecycle.election.status() if lifecycle.election is not None else None,
        )

    def in_flight(self, limit: int, *, message_id: str = "", pool: str = "", is_running: bool = False) -> list[InFlight]:
        """Messages in the router, oldest first."""
        part, code = message_id.lower(), pool.lower()
        found = (
            item
            for item in self._router.tracker
            if part in item.pointer.message_id.lower()
            and (not code or item.pointer.pool.lower() == code)
            and (item.started_at or not is_running)
        )
        return [self._shown(item) for item in islice(found, limit)]

    def find(self, message_id: str) -> InFlight | None:
        """The message with this id, its own or its queue's."""
        item = self._item(message_id)
        return None if item is None else self._shown(item)

    async def force_ack(self, message_id: str) -> ForcedAck | None:
        """Ack a message in the router, whatever the result of its call."""
        item = self._item(message_id)
        if item is None:
            return None
        shown = self._shown(item)
        self._router.force_ack(item)
        feed: Feed = item.origin
        with suppress(TimeoutError):  # a queue that cannot be reached gets it later
            async with asyncio.timeout(FLUSH_SECONDS):
                await feed.source.flush()
        return ForcedAck(shown, None if feed.source.is_healthy else "the queue is not reached at present")

    async def update_pool(self, code: str, concurrency: int | None, rate_per_minute: int | None) -> PoolConfig:
        """Change a pool until the next change of the configuration."""
        runner = self._router.runners.get(code)
        if runner is None:
            raise NotFound(f"pool {code}")
        pool = runner.pool
        rate = (pool.limit.per_minute if pool.limit is not None else None) if rate_per_minute is None else rate_per_minute or None
        config = PoolConfig(code, pool.concurrency if concurrency is None else concurrency, rate)
        self._router.update_pool(config)
        return config

    def pause_pool(self, code: str, *, is_paused: bool) -> bool:
        """Pause or resume a pool; False if it does not exist."""
        runner = self._router.runners.get(code)
        if runner is not None:
            runner.pool.is_paused = is_paused
            runner.run()
        return runner is not None

    def retry_now(self, message_id: str) -> bool:
        """Try a message now that waits for its next attempt; False if it does not wait for one."""
        item, now = self._item(message_id), self._steady()
        for runner in self._router.runners.values():
            if item is not None and runner.pool.hurry(item, now):
                runner.run()
                return True
        return False

    def reset_breaker(self, name: str) -> bool:
        breaker = self._router.mediator.breakers.get(name)
        if breaker is not None:
            breaker.reset()
        return breaker is not None

    async def refresh_depths(self) -> None:
        await self._router.refresh_depths()

    async def send(self, queue: str | None, body: bytes, group: str) -> SentMessage:
        feeds = self._router.feeds
        if not feeds:
            raise FailedPrecondition("the router has no queue", hint="give it a configuration with one")
        feed = next((feed for feed in feeds.values() if queue is None or queue in {feed.config.name, feed.config.uri}), None)
        if feed is None:
            raise NotFound(f"queue {queue}")
        send = getattr(feed.source, "send", None)
        if send is None:
            raise Unimplemented(f"the queue {shown_uri(feed.config.name)!r} cannot be written to from here")
        return SentMessage(await send(body, group), shown_uri(feed.config.name))

    async def reload(self) -> bool:
        """Fetch the configuration now and apply it; returns whether it changed."""
        return await self._lifecycle.reload()

    def _item(self, message_id: str) -> RoutedMessage | None:
        return self._router.tracker.find(message_id)

    def _shown(self, item: RoutedMessage) -> InFlight:
        offset = self.clock.now() - self._steady()
        return InFlight(
            message_id=item.pointer.message_id,
            broker_id=item.received.broker_id,
            queue=shown_uri(item.queue),
            pool=item.pointer.pool,
            group=item.pointer.group,
            target=shown_target(item.pointer.target),
            tracked_at=item.tracked_at + offset,
            seen_at=item.leased_at + offset,
            attempts=item.attempts,
            started_at=item.started_at + offset if item.started_at else 0,
            due=item.due + offset if item.due else 0,
            error=item.error,
        )
