"""The log of a topic, read by offset: what is in memory at once, the rest from the journal."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.broker.aio import AsyncBroker
from penstock.broker.core.stream import Stream
from penstock.broker.window import read
from penstock.errors import PenstockError
from penstock.journal.journal import Journal
from penstock.values.message import StoredMessage

PART_MESSAGES = 256
PART_BYTES = 256 * 1024
"""So much is taken from a log at once: less than may wait for one connection, so that one that reads is never cut off for it."""


def resident(stream: Stream, start: int, stop: int) -> list[StoredMessage]:
    """The first messages of a range that is in memory; none when the first is not. Call it with the broker's lock held."""
    return stream.pages.span(start, min(stop, start + PART_MESSAGES))


async def loaded(aio: AsyncBroker, stream: Stream, start: int, stop: int) -> list[StoredMessage]:
    """The first messages of a range, from the journal; none when it does not hold the first."""
    return await aio.call(_load, aio.broker.journal, stream.number, start, min(stop, start + PART_MESSAGES))


def _load(journal: Journal, stream: int, start: int, stop: int) -> list[StoredMessage]:
    found: list[StoredMessage] = []
    size = 0
    for first, messages in read(journal, stream, start, stop):
        if first != start + len(found):
            break  # there is a hole
        found += messages
        size += sum(message.size for message in messages)
        if size > PART_BYTES:
            break
    return found


def part(messages: Sequence[StoredMessage]) -> int:
    """How many of these messages are taken at once: one in any case."""
    size = 0
    for count, message in enumerate(messages[:PART_MESSAGES]):
        size += message.size
        if size > PART_BYTES and count:
            return count
    return min(len(messages), PART_MESSAGES)


def why(error: BaseException) -> str:
    """What a line of the server's log may say of an error: an unforeseen one has a text that may hold a payload."""
    return str(error) if isinstance(error, PenstockError) else type(error).__name__
