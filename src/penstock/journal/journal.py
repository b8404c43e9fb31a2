"""The journal: what a broker stores, and the interface of all implementations.

A journal stores three things: the messages of every stream in chunks, the event log, and one checkpoint of the whole state.
`penstock.testing.conformance.check_journal` checks that an implementation fulfils this contract.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol, runtime_checkable

import msgspec

from penstock.journal.core.checkpoint import State
from penstock.journal.core.chunk import Chunk, Summary
from penstock.journal.core.events import Event
from penstock.values.message import Batch

DATABASES = ("postgresql://", "postgres://")


def is_database(place: object) -> bool:
    """Whether the place of a log is the address of a database, and not a directory."""
    return isinstance(place, str) and place.startswith(DATABASES)


class Append(msgspec.Struct, gc=False):
    """Messages to append to a stream, from offset `first` on."""

    stream: int
    first: int
    at: int
    batch: Batch


class Commit(msgspec.Struct, gc=False):
    """What is written as a whole or not at all."""

    at: int
    appends: list[Append]
    events: list[Event]


@runtime_checkable
class ImmediateJournal(Protocol):
    """A further interface, of a journal that is cheap to write to: it stores messages and events singly, without a commit."""

    def keep(self, stream: int, first: int, batch: Batch) -> None:
        """Store messages of a stream."""

    def note(self, event: Event) -> None:
        """Store an event."""


class StagedFiles(Protocol):
    """Copies of the files of Spark writes that wait for their commit. They survive the node. Each call may raise Unavailable."""

    def keep(self, name: str, file: Path, info: bytes | None = None) -> None:
        """Store a file under a name, with its metadata. It replaces an earlier one."""

    def infos(self) -> dict[str, bytes | None]:
        """All names with their metadata."""

    def fetch(self, name: str, file: Path) -> bool:
        """Write the content stored under a name to a file; False if there is none."""

    def drop(self, folder: str) -> None:
        """Remove all files of a folder."""


@runtime_checkable
class RemoteJournal(Protocol):
    """A further interface, of a journal whose connection can be lost in the middle of a commit."""

    @property
    def staged(self) -> StagedFiles:
        """The staged files of Spark writes."""

    alive_at: int
    """When the database last answered, on the monotonic clock."""

    @property
    def trouble(self) -> str | None:
        """The problem of the connection, or of a commit that has been waiting for long; None if there is none."""

    def is_stored(self) -> bool:
        """After JournalUncertain: whether the commit is durably stored. JournalUncertain while this is not known.

        LogLost: another node owns the log, and this journal will never know.
        """


@runtime_checkable
class FileJournal(Protocol):
    """A further interface, of a durable journal: small files beside the log, each replaced as a whole."""

    path: str

    def read_file(self, name: str) -> bytes | None:
        """The content of a file; None if it does not exist."""

    def write_file(self, name: str, content: bytes) -> None:
        """Replace a file; on disk on return. After JournalUnavailable it is either the complete old or the complete new one."""


class ReadableJournal(Protocol):
    """Reading, by any thread at any time."""

    is_durable: bool

    def streams(self) -> list[int]:
        """The numbers of the streams that have messages here."""

    def earliest(self, stream: int) -> int | None:
        """The offset from which on the journal has every message of a stream; None if it has none.

        Before it there may be chunks that were held when their neighbours were removed.
        """

    def summaries(self, stream: int, start: int, stop: int) -> Iterator[Summary]:
        """The summaries of the stored chunks that overlap a range of offsets, in order; their bodies are not read."""

    def read(self, stream: int, start: int, stop: int) -> Iterator[tuple[Summary, Chunk]]:
        """The stored chunks that overlap a range of offsets, in order, verified; without those that retention has removed."""

    def read_events(self, start: int, stop: int) -> Iterator[tuple[int, Event]]:
        """The records of the event log that overlap a range, each with the offset of its first event."""

    def event_range(self) -> tuple[int, int]:
        """The offsets of the oldest stored event and of the next new one."""

    def close(self) -> None:
        """Close the journal. Safe to call twice."""


class Journal(ReadableJournal, Protocol):
    """The interface. One thread appends, trims and checkpoints; any thread reads."""

    def load(self) -> tuple[State, Iterable[Event]]:
        """The last checkpoint, and every event since; an empty state for a new journal. Called once, before anything else."""

    def append(self, commit: Commit) -> None:
        """Store a commit. On return it survives a power loss (if `is_durable`); on JournalUnavailable nothing of it is stored.

        An empty commit is a probe: it succeeds only if writing works. On JournalUncertain it is stored as a whole or not at all:
        nothing else may be written until `is_stored` of the `RemoteJournal` has returned which of the two.
        """

    def checkpoint(self, state: State) -> None:
        """Replace the checkpoint by the state as of the last commit. Earlier events are then no longer needed for a start."""

    def trim(self, stream: int, chunks: list[int]) -> None:
        """Remove chunks, given by their first offsets."""

    def trim_events(self, before: int) -> None:
        """Remove the events that are older than `before` and than the checkpoint, except those that are held."""

    def hold_events(self, start: int | None) -> None:
        """Hold the events from an offset on, whatever their age and number, until the next call; None to hold none."""
