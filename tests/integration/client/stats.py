"""Waiting for a work queue to be in some state."""

from __future__ import annotations

import asyncio

from penstock.client.queue import WorkQueue


async def stats_are(queue: WorkQueue, **wanted: object) -> None:
    """Return when the queue's numbers are as they should be."""
    async with asyncio.timeout(60):
        while True:
            stats = await queue.stats()
            if all(getattr(stats, name) == value for name, value in wanted.items()):
                return
            await asyncio.sleep(0.005)
