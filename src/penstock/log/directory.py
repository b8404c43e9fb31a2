"""The log of a broker's data directory on this machine, read without the broker, also while the broker writes to it.

It sees what is on disk: a publish as soon as it is confirmed, other events within 100 ms.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from penstock.broker import log_view
from penstock.broker.log_view import LogNames, kind_of, names_of, not_found
from penstock.errors import CorruptLog
from penstock.journal.core.events import Event
from penstock.journal.core.outline import Outline, StreamSpan, decode, stream_name
from penstock.journal.journal import ReadableJournal
from penstock.journal.readonly import CHANCES, ReadOnlyJournal
from penstock.log.log import EventSpan, Spans
from penstock.values.projects import Projects, check_project

if TYPE_CHECKING:
    import pyarrow as pa


class DirectoryLog:
    """A `Log` over a data directory. Safe to use from many threads. Close it, or use it as a context manager.

    `project`: the streams of that project, under their names in it. Without a project, those of a server's default project, whose
    names are stored without a project; the events are then those of all projects.
    """

    def __init__(self, path: str | os.PathLike[str], *, project: str | None = None) -> None:
        self._project = None if project is None else check_project(project)
        self._projects = Projects()
        self._view = JournalView(ReadOnlyJournal(path), self._shown)

    def spans(self, names: Sequence[str] | None = None, pattern: str | None = None) -> Spans:
        """The ranges that can be read now. Cheap if nothing was written since the last call."""
        return Spans(log_view.select(self._view, names, pattern), EventSpan(*self._view.event_range()))

    def offsets_at(self, times: Mapping[str, int]) -> dict[str, int]:
        """For every stream the first offset published at or after a time (microseconds); its end if there is none."""
        return log_view.offsets_at(self._view, times)

    def offsets_for(self, starts: Mapping[str, int], max_bytes: int) -> dict[str, int]:
        """How far a reader gets from `starts` within `max_bytes`, which are shared fairly between the streams."""
        return log_view.offsets_for(self._view, starts, max_bytes)

    def sizes_after(self, starts: Mapping[str, int]) -> dict[str, int]:
        """The approximate number of bytes of each stream from an offset to its end."""
        return log_view.sizes_after(self._view, starts)

    def messages(
        self, span: StreamSpan, start: int, stop: int, *, columns: Sequence[str] | None = None, keys: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The messages of a range, in order; `keys`: only those with one of these ordering keys."""
        from penstock.log.arrow import message_parts  # noqa: PLC0415  # an extra, which planning does without

        return (batch for batch, _ in message_parts(self._view, span, start, stop, columns=columns, keys=keys))

    def events(self, start: int, stop: int, *, streams: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The events of a range, or those of some streams."""
        from penstock.log.arrow import event_parts  # noqa: PLC0415  # an extra, which planning does without

        return (batch for batch, _ in event_parts(self._view, start, stop, streams=self._wanted(streams)))

    def dead_letters(self, start: int, stop: int, *, streams: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The dead letters of a range of the event log, with their payloads."""
        from penstock.log.arrow import dead_letter_parts  # noqa: PLC0415  # an extra, which planning does without

        return (batch for batch, _ in dead_letter_parts(self._view, start, stop, streams=self._wanted(streams)))

    def close(self) -> None:
        """Close the files. Safe to call twice."""
        self._view.journal.close()

    def _wanted(self, streams: Sequence[str] | None) -> dict[int, str] | None:
        """The numbers of the streams whose events are requested, with the names to show; None for all."""
        if streams is None and self._project is None:
            return None
        stored = self._view.names().streams
        shown = {number: self._shown(*kind_of(name)) for number, name in stored.items()}
        known = LogNames({number: name for number, name in shown.items() if name is not None}, {}, {})
        return known.streams if streams is None else known.numbers(streams)

    def _shown(self, kind: str, name: str) -> str | None:
        """The name of a stream in this project; None if it belongs to another project."""
        project, plain = self._projects.split(name)
        return stream_name(kind, plain) if project == (self._project or self._projects.default) else None

    def __enter__(self) -> DirectoryLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class FollowedJournal(ReadableJournal, Protocol):
    """A journal that another process writes."""

    path: str

    def version(self) -> object:
        """A value that changes whenever something new can be read, and only then."""

    def stored_checkpoint(self) -> tuple[int, bytes | None]:
        """The offset of the first event after the checkpoint, and the checkpoint; None if there is none."""

    def events_since(self, start: int, stop: int) -> Iterator[Event]:
        """The events between two offsets; CorruptLog if some are missing."""


class JournalView:
    """A `LogView` that follows a journal: it reads the outline of the checkpoint, and the events since.

    `shown` returns the name of a stream in this view, or None if it is not visible here.
    """

    def __init__(self, journal: FollowedJournal, shown: Callable[[str, str], str | None] = stream_name) -> None:
        self.journal = journal
        self._shown = shown
        self._lock = threading.Lock()
        self._version: object = None
        self._ends = (0, 0)
        self._outline = Outline()
        self._numbers: dict[str, int] | None = None
        """The streams by their names in this view; None while there is no outline."""
        self._spans: dict[int, StreamSpan] = {}
        """The spans requested since the last write to the journal."""

    def spans(self) -> list[StreamSpan]:
        with self._lock:
            return [self._span(name, number) for name, number in self._follow().items()]

    def span(self, name: str) -> StreamSpan:
        stream = stream_name(*kind_of(name))
        with self._lock:
            number = self._follow().get(stream)
            if number is None:
                raise not_found(name)
            return self._span(stream, number)

    def event_range(self) -> tuple[int, int]:
        with self._lock:
            self._follow()
            return self._ends

    def sync(self) -> None:
        """Nothing to do: everything stored can be read."""

    def names(self) -> LogNames:
        with self._lock:
            self._follow()
            return names_of(self._outline.streams.values(), self._outline.queues.values(), self._outline.deleted_resources)

    def _span(self, name: str, number: int) -> StreamSpan:
        span = self._spans.get(number)
        if span is None:
            stream, earliest = self._outline.streams[number], self.journal.earliest(number)
            latest = stream.next_offset
            earliest = latest if earliest is None else min(earliest, latest)
            span = self._spans[number] = StreamSpan(name, number, earliest, latest, stream.published_at)
        return span

    def _follow(self) -> dict[str, int]:
        """Read what was written since the last call; returns the streams by name. Call it with the lock held."""
        # Read first: writes during the following reads are found by the next call.
        version = self.journal.version()
        if self._numbers is not None and version == self._version:
            return self._numbers
        known, self._numbers = self._numbers, None
        for chance in range(CHANCES):
            try:
                self._numbers = self._read_on(known)
            except CorruptLog:
                # Retention may have removed events in the meantime: then the checkpoint is newer.
                known = None
                if chance + 1 == CHANCES:
                    raise
            else:
                break
        self._version = version
        self._spans.clear()
        assert self._numbers is not None, "read, or raised"
        return self._numbers

    def _read_on(self, known: dict[str, int] | None) -> dict[str, int]:
        """Update the outline with the events since the last call or, if nothing is known, from the checkpoint on."""
        oldest, latest = self.journal.event_range()
        since = self._ends[1]
        if known is None:
            since, body = self.journal.stored_checkpoint()
            try:
                self._outline = Outline() if body is None else decode(body)
            except msgspec.MsgspecError as error:
                raise CorruptLog(self.journal.path, "the checkpoint", str(error)) from error
        has_new_names = self._outline.follow(self.journal.events_since(since, latest))
        self._ends = (oldest, latest)
        if known is not None and not has_new_names:
            return known
        shown = ((self._shown(stream.kind, stream.name), stream.number) for stream in self._outline.streams.values())
        return {name: number for name, number in shown if name is not None}
