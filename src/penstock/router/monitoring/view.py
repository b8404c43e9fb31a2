"""What the monitoring API asks of a router: the port that `router.router` fulfils.

Everything but `snapshot` is called on the router's event loop. Names and targets that it gives may be shown to an operator:
tokens, passwords and payloads are not among them.
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
        """What its time is read from."""

    def snapshot(self) -> Snapshot:
        """What is true now. Called in any thread: it copies what the loop may change while it looks."""

    def in_flight(self, limit: int, *, message_id: str = "", pool: str = "", is_running: bool = False) -> list[InFlight]:
        """Messages in the router, oldest first, at most `limit`.

        Only those whose id contains `message_id`, of the pool `pool`, whose delivery is being tried; each if it is given. Neither
        text minds case.
        """

    def find(self, message_id: str) -> InFlight | None:
        """The message with this id, its own or its queue's, if it is in the router."""

    async def force_ack(self, message_id: str) -> ForcedAck | None:
        """Ack a message that is in the router, whatever becomes of its call; None when it is not there."""

    async def update_pool(self, code: str, concurrency: int | None, rate_per_minute: int | None) -> PoolConfig:
        """Change a pool until the next change of the configuration; NotFound when there is none.

        None leaves a value as it is; a rate of 0 lifts the limit. Returns what is true now.
        """

    def pause_pool(self, code: str, *, is_paused: bool) -> bool:
        """Pause or resume a pool; False if there is none of that code. What runs is finished."""

    def retry_now(self, message_id: str) -> bool:
        """Try a message now that is kept back until its next attempt; False when that does not keep it back."""

    def reset_breaker(self, name: str) -> bool:
        """Close a breaker and forget its calls; False when there is none of that name."""

    async def refresh_depths(self) -> None:
        """Ask every queue how much it holds."""

    async def send(self, queue: str | None, body: bytes, group: str) -> SentMessage:
        """Put a message on a queue: the named one (its name or its URI), or without a name the first.

        NotFound for an unknown queue, FailedPrecondition when there is none, Unimplemented for one of a kind that cannot be
        written to, Unavailable when it is not reached.
        """

    async def reload(self) -> bool:
        """Fetch the configuration now and apply it; whether it had changed. Unavailable when it cannot be had."""
