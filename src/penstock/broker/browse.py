"""Browse and search messages of a stream in bounded steps, newest or oldest first. Consumers do not use it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from penstock.broker.window import read
from penstock.journal.journal import ReadableJournal
from penstock.values.message import StoredMessage

BLOCK = 512
"""How many offsets are looked up at once."""


class BrowseStep(NamedTuple):
    """The result of one step. `to` is the last offset that it examined, None if there was none."""

    found: list[tuple[int, StoredMessage]]
    is_end: bool
    messages: int
    size: int
    to: int | None
    to_at: int | None


def browse(
    journal: ReadableJournal,
    stream: int,
    start: int,
    stop: int,
    *,
    newest_first: bool,
    most: int,
    max_bytes: int,
    matches: Callable[[StoredMessage], bool] | None = None,
) -> BrowseStep:
    """Messages of a range of offsets: at most `most` that match, after examining about `max_bytes`. It may read the disk."""
    found: list[tuple[int, StoredMessage]] = []
    looked = size = 0
    last: int | None = None
    at: int | None = None
    for offset, message in _messages(journal, stream, start, stop, newest_first=newest_first):
        if len(found) >= most or size >= max_bytes:
            return BrowseStep(found, False, looked, size, last, at)
        last, at = offset, message.publish_at
        looked += 1
        size += message.size
        if matches is None or matches(message):
            found.append((offset, message))
    return BrowseStep(found, True, looked, size, last, at)


def _messages(
    journal: ReadableJournal, stream: int, start: int, stop: int, *, newest_first: bool
) -> Iterator[tuple[int, StoredMessage]]:
    blocks = range(start, stop, BLOCK)
    for low in reversed(blocks) if newest_first else blocks:
        high = min(low + BLOCK, stop)
        chunks = [*journal.summaries(stream, low, high)]
        for chunk in reversed(chunks) if newest_first else chunks:
            # One chunk at a time: the messages of a block may be larger than memory.
            begin, end = max(low, chunk.first), min(high, chunk.first + chunk.count)
            for first, messages in read(journal, stream, begin, end):
                numbered = [*enumerate(messages, first)]
                yield from reversed(numbered) if newest_first else numbered
