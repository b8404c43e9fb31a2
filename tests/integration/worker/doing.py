"""Waiting for a worker to have done something."""

from __future__ import annotations

from collections.abc import Callable

from penstock import PubSub, Worker
from tests.integration.client.quiet import until

Make = Callable[[], PubSub]


async def done(worker: Worker, **wanted: int) -> None:
    """Return when the worker has done so much."""
    await until(lambda: all(getattr(worker.stats, name) >= value for name, value in wanted.items()), f"{wanted}")
