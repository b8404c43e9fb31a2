"""The journal: what a broker writes down, and the port that every way of writing it down fulfils.

A journal keeps three things: the messages of every stream in chunks, the event log, and one checkpoint of the whole state.
`penstock.testing.conformance.check_journal` holds every implementation to this contract.
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
    """What is written together or not at all."""

    at: int
    appends: list[Append]
    events: list[Event]


@runtime_checkable
class ImmediateJournal(Protocol):
    """One more ability of a journal that costs nothing to write to: things are taken one by one, without a commit."""

    def keep(self, stream: int, first: int, batch: Batch) -> None:
        """Store messages of a stream."""

    def note(self, event: Event) -> None:
        """Store an event."""


class StagedFiles(Protocol):
    """Copies of the files of Spark writes that wait for their commit. They survive the node. Each call raises Unavailable."""

    def keep(self, name: str, file: Path, info: bytes | None = None) -> None:
        """Store a file under a name, for the one before, with what is known of it."""

    def infos(self) -> dict[str, bytes | None]:
        """All names, each with what is known of it."""

    def fetch(self, name: str, file: Path) -> bool:
        """Write what is stored under a name to a file; False if there is nothing."""

    def drop(self, folder: str) -> None:
        """Remove everything whose name is in a folder."""


@runtime_checkable
class RemoteJournal(Protocol):
    """One more ability, of a journal whose database can be lost in the middle of a commit."""

    @property
    def staged(self) -> StagedFiles:
        """What is staged for Spark writes."""

    alive_at: int
    """When the database last answered, on the monotonic clock."""

    @property
    def trouble(self) -> str | None:
        """What is wrong with the connection, or with a commit that waits for long; None if nothing is."""

    def is_stored(self) -> bool:
        """After JournalUncertain: whether the commit is stored for good. JournalUncertain while that cannot be known.

        LogLost: another owner has the log, and this journal will never know.
        """


@runtime_checkable
class FileJournal(Protocol):
    """One more ability, of a durable journal: small files that lie beside the log, each replaced as a whole."""

    path: str

    def read_file(self, name: str) -> bytes | None:
        """What is in a file; None if there is none."""

    def write_file(self, name: str, content: bytes) -> None:
        """Replace a file; on disk when it returns. On JournalUnavailable it may be the old one or the new one, as a whole."""


class ReadableJournal(Protocol):
    """Reading, which any thread may do at any time."""

    is_durable: bool

    def streams(self) -> list[int]:
        """The numbers of the streams that have messages here."""

    def earliest(self, stream: int) -> int | None:
        """The offset from which on every message of a stream is here; None when there is none.

        Before it there may be chunks that somebody held when their neighbours were removed.
        """

    def summaries(self, stream: int, start: int, stop: int) -> Iterator[Summary]:
        """The stored chunks that overlap a range of offsets, in order, unread."""

    def read(self, stream: int, start: int, stop: int) -> Iterator[tuple[Summary, Chunk]]:
        """The stored chunks that overlap a range of offsets, in order, verified. What retention removed is not there."""

    def read_events(self, start: int, stop: int) -> Iterator[tuple[int, Event]]:
        """The records of the event log that overlap a range, each with the offset of its first event."""

    def event_range(self) -> tuple[int, int]:
        """The offsets of the oldest event kept and of the next one to come."""

    def close(self) -> None:
        """Finish. Safe to call twice."""


class Journal(ReadableJournal, Protocol):
    """The port. One thread appends, trims and checkpoints; any thread reads."""

    def load(self) -> tuple[State, Iterable[Event]]:
        """The last checkpoint, and every event since; an empty state for a new journal. Called once, first."""

    def append(self, commit: Commit) -> None:
        """Store a commit. On return it survives power loss (where `is_durable`); on JournalUnavailable nothing of it is stored.

        An empty commit is a probe: it succeeds only when writing does. On JournalUncertain it is stored as a whole or not at all:
        nothing else may be written until `is_stored` of the `RemoteJournal` has returned which.
        """

    def checkpoint(self, state: State) -> None:
        """Replace the checkpoint by the state as of the last commit; events before it are no longer needed to start."""

    def trim(self, stream: int, chunks: list[int]) -> None:
        """Remove chunks, named by their first offsets."""

    def trim_events(self, before: int) -> None:
        """Remove the events that happened before an instant and before the checkpoint, but none that is held."""

    def hold_events(self, start: int | None) -> None:
        """Keep the events from an offset on, however old or many they are, until told otherwise; None: hold none."""
