"""What the router writes down: attempts, for the event log, and dead letters. `server` and the command give it a broker's."""

from __future__ import annotations

from typing import Protocol

import msgspec

from penstock.router.core.message import Item


class Attempt(msgspec.Struct, frozen=True, gc=False):
    """One try to deliver a message: all its calls together."""

    at: int
    """When it ended."""
    queue: str
    pool: str
    message_id: str
    broker_id: str
    target: str
    number: int
    """The how manyth try of this router it was, from 1."""
    calls: int
    status: int
    """Of the last answer; 0: there was none."""
    duration: int
    """Microseconds."""
    outcome: str
    """`SUCCESS`, `ERROR_PROCESS`, `ERROR_CONFIG` or `ERROR_CONNECTION`."""
    error: str = ""


class Records(Protocol):
    """Where the router writes down what it did."""

    def attempted(self, attempt: Attempt) -> None:
        """Write an attempt down, soon: attempts of one turn of the loop are written together. Never waits."""

    async def bury(self, item: Item, reason: str, error: str) -> None:
        """Keep a message that cannot be delivered, with why and after how many attempts; returns when that is safe.

        The message is acked at its source after that, not before.
        """

    async def flush(self) -> None:
        """Return when everything told so far is written."""


class NoRecords:
    """Writes nothing down: for a router in a test of something else."""

    def attempted(self, attempt: Attempt) -> None:
        """Forget it."""

    async def bury(self, item: Item, reason: str, error: str) -> None:
        """Forget it."""

    async def flush(self) -> None:
        """Nothing to wait for."""
