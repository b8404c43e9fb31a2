"""The interface of a log for other processes: `http.py` uses a server's log API, `directory.py` reads a data directory.

Offsets are dense and always belong to the same message, so the same range always gives the same rows. A stream is identified by
its name and its number: one that is deleted and created again has the same name, another number, and offsets that begin at 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from penstock.journal.core.checkpoint import QUEUE, TOPIC
from penstock.journal.core.outline import EVENTS, StreamSpan, stream_name
from penstock.values.descriptions import Cursor

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "EVENTS",
    "QUEUE",
    "TOPIC",
    "Committed",
    "Cursor",
    "EventSpan",
    "Leases",
    "Log",
    "SettledBatch",
    "Spans",
    "Staged",
    "StreamSpan",
    "WritableLog",
    "stream_name",
]


class EventSpan(msgspec.Struct, frozen=True):
    """The available range of the event log."""

    earliest: int
    latest: int


class Spans(msgspec.Struct, frozen=True):
    """All ranges that can be read, as of one moment."""

    streams: list[StreamSpan]
    events: EventSpan


class Staged(msgspec.Struct, frozen=True):
    """A part of a write that waits for its commit."""

    part: str
    rows: int
    bytes: int


class Committed(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of a commit. `is_repeat`: this batch of this query was published before, and nothing was added."""

    rows: int
    is_repeat: bool
    note: str = ""
    """The note of the commit that published the batch."""


class Leases(msgspec.Struct, frozen=True):
    """A planned batch. Without rows no message is available, and no batch was planned."""

    batch: int
    rows: int
    fresh: int
    """The number of messages that were in no batch of the query before."""
    bytes: int
    cuts: list[int]
    """Offsets that divide the messages into parts of the same size for reading."""
    wait: float
    """Seconds until the first of them may be delivered; 0 if any of them is new."""
    is_repeat: bool
    """Whether the batch was planned before."""


class SettledBatch(msgspec.Struct, frozen=True):
    """The result of a settlement. `is_repeat`: the batch was settled before, and nothing was done."""

    settled: int
    missed: int
    """Messages that were named, but not leased any more: their leases had expired."""
    carried: int
    """Messages that stay leased by the query, for the next batch."""
    is_repeat: bool


class RedriveProgress(msgspec.Struct, frozen=True):
    """The progress of a redrive in one queue. `is_repeat`: all letters of the call were processed by an earlier call."""

    redriven: int
    """The number of letters that it has requeued there, in all calls."""
    is_repeat: bool


class Log(Protocol):
    """Reading. Every method may be called from any process that can reach the log; none keeps state between calls.

    Temporary failures (`Unavailable`) are retried internally; errors that are raised are final. OutOfRange: retention has removed
    a part of the range. NotFound: the stream does not exist. StreamReplaced: the stream has another number.
    """

    def spans(self, names: Sequence[str] | None = None, pattern: str | None = None) -> Spans:
        """The ranges that can be read: of the named streams (NotFound for a missing one), of those that match, or of all.

        A pattern must match the full name.
        """

    def offsets_at(self, times: Mapping[str, int]) -> dict[str, int]:
        """For every stream the first offset published at or after a time (microseconds); its end if there is none.

        `EVENTS` is a stream here.
        """

    def offsets_for(self, starts: Mapping[str, int], max_bytes: int) -> dict[str, int]:
        """How far a reader gets from `starts` within `max_bytes`, shared fairly between the streams; at least one message."""

    def sizes_after(self, starts: Mapping[str, int]) -> dict[str, int]:
        """The approximate number of bytes of each stream from an offset to its end; `EVENTS` is a stream here."""

    def messages(
        self, span: StreamSpan, start: int, stop: int, *, columns: Sequence[str] | None = None, keys: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The messages of a range, with the schema `penstock.log.arrow.MESSAGES` or some columns of it, in order.

        `keys`: only those with one of these ordering keys. Closing the iterator ends the read.
        """

    def events(self, start: int, stop: int, *, streams: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The events of a range (schema `EVENTS` of `penstock.log.arrow`), or those of some streams."""

    def dead_letters(self, start: int, stop: int, *, streams: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The dead letters of a range of the event log, with their payloads (schema `DEAD_LETTERS`)."""

    def close(self) -> None:
        """Close the connections. Safe to call twice."""


class WritableLog(Log, Protocol):
    """A log with positions of readers and writes, which need a server."""

    def cursors(self) -> list[Cursor]:
        """All cursors with their lag."""

    def advance(self, cursor: str, offsets: Mapping[str, int], *, holds: bool | None = None) -> None:
        """Set a cursor; it is created if it is new. Other streams keep their offsets; `holds` None keeps the setting."""

    def delete_cursor(self, cursor: str) -> None:
        """Delete a cursor."""

    def stage(self, write: str, part: str, batches: Iterable[pa.RecordBatch], *, stream: str | None = None) -> Staged:
        """Store rows that are to be published, checked like a publish. Staging a part again replaces it.

        Columns: `value` (binary or string); optional `key`, `attributes`, `priority`, `ttl` (seconds), `deliver_at` (timestamp),
        and `stream`, for the stream of each row. The parameter `stream` is for rows without one.
        """

    def commit(self, write: str, parts: Sequence[str], *, query: str | None = None, batch: int = 0, note: str = "") -> Committed:
        """Publish the parts, in this order, all or nothing, once for each (query, batch), whatever else is staged for it.

        Without a query it is published once, and the server does not remember it: a write that is staged again is another one.
        `note` is stored with the last batch of a query, and returned if that batch is committed again.
        Once the commit is decided, the server finishes it, also after a crash of either side.
        """

    def abort(self, write: str) -> None:
        """Remove the staged parts of a write that has not been committed. Safe to call twice."""
