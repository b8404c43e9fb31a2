"""What a router is to do: its queues and its pools, as the configuration endpoint or a file says."""

from __future__ import annotations

import msgspec

DEFAULT_VISIBILITY = 120
"""Seconds that a message is hidden after it was handed out, where the configuration does not say."""


class PoolConfig(msgspec.Struct, frozen=True):
    """A process pool."""

    code: str
    concurrency: int = 1
    rate_per_minute: int | None = None
    """None: as fast as the concurrency allows."""


class QueueConfig(msgspec.Struct, frozen=True):
    """A queue to take messages from."""

    name: str
    """What it is called in this router; its URI where the configuration gives no name."""
    uri: str
    connections: int = 1
    """How many polls at a time."""
    visibility_timeout: int = DEFAULT_VISIBILITY
    """Seconds."""


class RouterConfig(msgspec.Struct, frozen=True):
    """All of it."""

    queues: tuple[QueueConfig, ...] = ()
    pools: tuple[PoolConfig, ...] = ()
