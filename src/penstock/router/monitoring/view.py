"""What the monitoring API needs from a router: the interface that `router.inspection` implements.

Everything but `snapshot` is called on the router's event loop. The names and targets that it returns may be shown to operators:
they contain no tokens, passwords or payloads.
"""

from __future__ import annotations

from typing import Protocol

from penstock.clock import Clock
from penstock.router.core.config import PoolConfig
from penstock.router.core.snapshot import ForcedAck, InFlight, SentMessage, Snapshot
from penstock.router.core.warnings import Warnings


class RouterView(Protocol):
    """A router as its operator sees it."""

    warnings: Warnings

    @property
    def clock(self) -> Clock:
        """The clock of the router."""

    def snapshot(self) -> Snapshot:
        """The present state. May be called in any thread: it copies what the loop may change meanwhile."""

    def in_flight(self, limit: int, *, message_id: str = "", pool: str = "", is_running: bool = False) -> list[InFlight]:
        """Messages in the router, oldest first, at most `limit`.

        Filters: the id contains `message_id`, the pool is `pool`, the delivery is running; each applies only if given. Both texts
        ignore case.
        """

    def find(self, message_id: str) -> InFlight | None:
        """The message with this id, its own or its queue's, if it is in the router."""

    async def force_ack(self, message_id: str) -> ForcedAck | None:
        """Ack a message in the router, whatever the result of its call; None if it is not there."""

    async def update_pool(self, code: str, concurrency: int | None, rate_per_minute: int | None) -> PoolConfig:
        """Change a pool until the next change of the configuration; NotFound if it does not exist.

        None leaves a value unchanged; a rate of 0 lifts the limit. Returns the values that now apply.
        """

    def pause_pool(self, code: str, *, is_paused: bool) -> bool:
        """Pause or resume a pool; False if it does not exist. Running deliveries finish."""

    def retry_now(self, message_id: str) -> bool:
        """Try a message now that waits for its next attempt; False if it does not wait for one."""

    def reset_breaker(self, name: str) -> bool:
        """Close a breaker and forget its calls; False if it does not exist."""

    async def refresh_depths(self) -> None:
        """Read the depth of every queue."""

    async def send(self, queue: str | None, body: bytes, group: str) -> SentMessage:
        """Put a message on the named queue (its name or its URI), or on the first if there is no name.

        NotFound for an unknown queue, FailedPrecondition if there is none, Unimplemented for a kind of queue that cannot be
        written to, Unavailable if it cannot be reached.
        """

    async def reload(self) -> bool:
        """Fetch the configuration now and apply it; returns whether it changed. Unavailable if it cannot be fetched."""
