"""What the router writes down: attempts, for the event log, and dead letters. `server` and the command give it a broker's."""

from __future__ import annotations

from typing import Final, Protocol

import msgspec

from penstock.router.core.config import shown_uri
from penstock.router.core.message import RoutedMessage
from penstock.router.core.outcome import Outcome

MAX_TEXT: Final = 500
"""Characters of an id, a target or an error that is written down for each attempt."""


class Attempt(msgspec.Struct, frozen=True, gc=False):
    """One try to deliver a message: all its calls together. It is made for every message, so it points rather than copies."""

    item: RoutedMessage
    pool: str
    number: int
    """The how manyth try of this router it was, from 1."""
    calls: int
    came: Outcome
    """What it came to."""
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
        """Of the last answer; 0: there was none."""
        return self.came.status

    @property
    def error(self) -> str:
        """What went wrong; no text when nothing did."""
        return self.came.error


class AttemptRecords(Protocol):
    """Where attempts are written down."""

    def attempted(self, attempt: Attempt) -> None:
        """Write an attempt down, soon: attempts of one turn of the loop are written together. Never waits."""


class Records(AttemptRecords, Protocol):
    """Where the router writes down what it did."""

    async def dead_letter(self, item: RoutedMessage, reason: str, error: str) -> None:
        """Keep a message that cannot be delivered, with why and after how many attempts; returns when that is safe.

        The message is acked at its source after that, not before.
        """

    async def flush(self) -> None:
        """Return when everything told so far is written."""


def plain_target(target: str) -> str:
    """A target as it may be written down: without query, fragment and user."""
    if "?" in target or "#" in target:
        target = target.partition("?")[0].partition("#")[0]
    if "@" in target:
        target = shown_uri(target).replace("***@", "")
    return cut(target)


def cut(text: str) -> str:
    """The beginning of a text that is written down."""
    return text if len(text) <= MAX_TEXT else text[:MAX_TEXT]
