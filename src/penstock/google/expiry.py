"""The expiry of unused subscriptions and of snapshots."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from functools import partial

from penstock.broker import lookup
from penstock.broker.catalog import Catalog
from penstock.broker.descriptions import subscription_spec
from penstock.errors import PenstockError
from penstock.google.core.fields import DAYS
from penstock.google.core.subscriptions import expires_after
from penstock.google.resources import Resources
from penstock.journal.core.events import Event
from penstock.values import resource_names as names

log = logging.getLogger("penstock.pubsub")

INTERVAL_SECONDS = 60.0


class ExpirySweeper:
    """Checks everything once a minute. `sweep` does it at once."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop. Can be called twice."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def sweep(self) -> None:
        resources = self._resources
        if resources.broker.is_retention_held():
            return
        now = resources.broker.clock.now()
        # All live for at least a day without use, so most need no closer check.
        idle = [one.name for one in lookup.subscriptions(resources.broker) if now - resources.last_use(one) >= DAYS]
        over = [one.name for one in lookup.snapshots(resources.broker) if one.expires_at and one.expires_at <= now]
        for key in over:
            log.info("snapshot %r has expired", key)
            await resources.delete(resources.name(names.SNAPSHOTS, key), partial(self._forget, key))
        for key in idle:
            if self._has_expired(key, now):
                log.info("subscription %r was not used for its whole expiration time and is deleted", key)
                await resources.delete(resources.name(names.SUBSCRIPTIONS, key), partial(self._delete, key), tell=key)
            await asyncio.sleep(0)

    def _has_expired(self, key: str, now: int) -> bool:
        queue = lookup.find_subscription(self._resources.broker, key)
        if queue is None or not subscription_spec(queue).form:
            return False
        life = expires_after(self._resources.form_of(queue))
        return life is not None and now - self._resources.last_use(queue) >= life

    @staticmethod
    def _forget(key: str, catalog: Catalog, now: int) -> Event | None:
        return catalog.delete_snapshot(key, now) if key in catalog.snapshots else None

    def _delete(self, key: str, catalog: Catalog, now: int) -> Event | None:
        return catalog.delete_queue(catalog.subscription(key), now) if self._has_expired(key, now) else None

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_SECONDS)
            try:
                await self.sweep()
            except PenstockError as error:
                log.warning("expired resources could not be deleted, will retry: %s", error)
