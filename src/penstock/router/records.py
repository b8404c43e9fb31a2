"""The records of a router: attempts, for the event log, and dead letters. A server or the command writes them to a broker."""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

from penstock.router.core.config import shown_uri
from penstock.router.core.message import RoutedMessage
from penstock.router.core.outcome import Outcome

MAX_TEXT: Final = 500
"""The length limit of an id, a target or an error in the record of an attempt, in characters."""


class Attempt(msgspec.Struct, frozen=True, gc=False):
    """One attempt to deliver a message, with all its calls. One is created for every message, so it refers rather than copies."""

    item: RoutedMessage
    pool: str
    number: int
    """The number of this attempt by this router, from 1."""
    calls: int
    came: Outcome
    """The outcome."""
    duration: int
    """Microseconds."""
    at: int
    """When it ended."""

    @property
    def queue(self) -> str:
        """The name of the queue that the message came from."""
        return self.item.queue

    @property
    def message_id(self) -> str:
        return self.item.pointer.message_id

    @property
    def target(self) -> str:
        return self.item.pointer.target

    @property
    def outcome(self) -> str:
        """`SUCCESS`, `ERROR_PROCESS`, `ERROR_CONFIG` or `ERROR_CONNECTION`."""
        return self.came.result

    @property
    def status(self) -> int:
        """The status of the last answer; 0 if there was none."""
        return self.came.status

    @property
    def error(self) -> str:
        """The error; empty if there was none."""
        return self.came.error


class AttemptRecords(Protocol):
    """Where attempts are recorded."""

    def attempted(self, attempt: Attempt) -> None:
        """Record an attempt soon: attempts of one turn of the loop are written together. Never waits."""


class Records(AttemptRecords, Protocol):
    """Where the router records what it did."""

    async def dead_letter(self, item: RoutedMessage, reason: str, error: str) -> None:
        """Keep a message that cannot be delivered, with the reason and the number of attempts; returns when it is stored safely.

        The caller acks the message at its source only after that.
        """

    async def flush(self) -> None:
        """Return when all recorded attempts are written."""


def plain_target(target: str) -> str:
    """A target as it may be recorded: without query, fragment and user."""
    if "?" in target or "#" in target:
        target = target.partition("?")[0].partition("#")[0]
    if "@" in target:
        target = shown_uri(target).replace("***@", "")
    return cut(target)


def cut(text: str) -> str:
    """The start of a text, as it is recorded."""
    return text if len(text) <= MAX_TEXT else text[:MAX_TEXT]
