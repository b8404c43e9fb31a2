"""What another process may ask of a log. The port: `http.py` asks a server's log API, `directory.py` reads a data directory.

Offsets are dense and never change their message, so the same range always gives the same rows. A stream is known by its name and
its number: a stream that was deleted and created again has the name of the old one, another number, and offsets that begin at 0.
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
    """What there is of the event log."""

    earliest: int
    latest: int


class Spans(msgspec.Struct, frozen=True):
    """All that can be read, as of one moment."""

    streams: list[StreamSpan]
    events: EventSpan


class Staged(msgspec.Struct, frozen=True):
    """A part of a write that waits for its commit."""

    part: str
    rows: int
    bytes: int


class Committed(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a commit did. `is_repeat`: this batch of this query had been published before, and nothing was added."""

    rows: int
    is_repeat: bool
    note: str = ""
    """That of the commit that published the batch."""


class Leases(msgspec.Struct, frozen=True):
    """A planned batch. Without rows nothing is deliverable, and nothing was planned."""

    batch: int
    rows: int
    fresh: int
    """How many of them no batch of the query had before."""
    bytes: int
    cuts: list[int]
    """Offsets between which the messages can be read in parts of the same size."""
    wait: float
    """Seconds until the first of them may be tried; 0 if any of them is new."""
    is_repeat: bool
    """Whether the batch was planned before."""


class SettledBatch(msgspec.Struct, frozen=True):
    """What a settlement did. `is_repeat`: the batch was settled before, and nothing was done."""

    settled: int
    missed: int
    """Messages that were named and not held any more: their leases had expired."""
    carried: int
    """Messages that stay in the query's hands, for the next batch."""
    is_repeat: bool


class RedriveProgress(msgspec.Struct, frozen=True):
    """How far a redrive is in one queue. `is_repeat`: the letters of the call had been dealt with before."""

    redriven: int
    """How many letters it has requeued there, all calls together."""
    is_repeat: bool


class Log(Protocol):
    """Reading. Every method may be called from any process that can reach the log; none keeps state between calls.

    What fails for a moment (`Unavailable`) is tried again inside; what is raised is final. OutOfRange: retention has removed a
    part of what was asked for. NotFound: there is no such stream. StreamReplaced: the stream is not the one of that number.
    """

    def spans(self, names: Sequence[str] | None = None, pattern: str | None = None) -> Spans:
        """What can be read: the named streams (NotFound for one that is missing), those that match a pattern wholly, or all."""

    def offsets_at(self, times: Mapping[str, int]) -> dict[str, int]:
        """For every stream the first offset published at or after an instant (microseconds); its end when there is none.

        `EVENTS` is a stream here.
        """

    def offsets_for(self, starts: Mapping[str, int], max_bytes: int) -> dict[str, int]:
        """How far a reader gets from `starts` with this many bytes, shared fairly between the streams; at least one message."""

    def sizes_after(self, starts: Mapping[str, int]) -> dict[str, int]:
        """About how many bytes each stream has from an offset to its end; `EVENTS` is a stream here."""

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
        """Let go of connections. Safe to call twice."""


class WritableLog(Log, Protocol):
    """Also positions and writes, which need a server."""

    def cursors(self) -> list[Cursor]:
        """All cursors with their lag."""

    def advance(self, cursor: str, offsets: Mapping[str, int], *, holds: bool | None = None) -> None:
        """Set a cursor, made if it is new. Streams that are not named keep their offset; `holds` None keeps what it was."""

    def delete_cursor(self, cursor: str) -> None:
        """Forget a cursor."""

    def stage(self, write: str, part: str, batches: Iterable[pa.RecordBatch], *, stream: str | None = None) -> Staged:
        """Store rows that are to be published, checked as a publish is; a part that is staged again replaces the one before.

        Columns: `value` (binary or string); optional `key`, `attributes`, `priority`, `ttl` (seconds), `deliver_at` (timestamp),
        and `stream`, where each row says its own. `stream` is that of the rows that do not.
        """

    def commit(self, write: str, parts: Sequence[str], *, query: str | None = None, batch: int = 0, note: str = "") -> Committed:
        """Publish the parts, in this order, all or nothing, once for each (query, batch) whatever was staged before or after.

        Without a query it is published once, and the server does not remember it: a write that is staged again is another one.
        `note` is kept with the last batch of a query, and returned to those who commit that batch again.
        From the moment it begins it is the server's affair: it is finished after a crash of either side.
        """

    def abort(self, write: str) -> None:
        """Forget what was staged for a write that has not been committed. Safe to call twice."""
