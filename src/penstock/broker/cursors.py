"""The broker's cursors: in memory, and with a durable journal as one small file beside the log.

Lock order: the broker's lock, then the cursors'; no call of the broker is made under the latter.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from penstock.broker.core.cursor import Place, StoredCursor, check_room, event_span, held
from penstock.broker.core.stream import Stream
from penstock.broker.log_view import BrokerLog
from penstock.errors import CorruptLog, CursorNotFound, InvalidArgument, OutOfRange
from penstock.journal.core.outline import EVENTS, StreamSpan
from penstock.journal.core.ranges import Ranges
from penstock.journal.journal import FileJournal
from penstock.values.descriptions import Cursor
from penstock.values.message import check_name

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

FILE = "cursors"
_HEAD = b"penstock cursors, format 1, crc "
_decode = msgspec.json.Decoder(dict[str, StoredCursor]).decode


class CursorOwner(NamedTuple):
    """The caller that sets a cursor. `check_hold` raises an error if it may not hold all of these streams, given by name."""

    token_id: str
    check_hold: Callable[[Iterable[str]], None]


ANY_HOLDER = CursorOwner("", lambda _: None)
"""The caller without authentication."""


class Cursors:
    """All cursors of a broker. Thread-safe; `advance` and `delete` return when the change is on disk."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._view = BrokerLog(broker)
        self._journal = broker.journal if isinstance(broker.journal, FileJournal) else None
        self._lock = threading.Lock()
        self._pen = threading.Lock()
        """Held by the writer of the file: taken before the lock, never under it."""
        self._bookmarks = {} if self._journal is None else load(self._journal.path, self._journal.read_file(FILE))
        self._changes = self._written = 0
        self._held: dict[int, int] = {}
        self._hold()

    def all(self) -> list[Cursor]:
        """Every cursor with its lag, by name."""
        spans = self._spans()
        with self._lock:
            bookmarks = sorted(self._bookmarks.items())
        return [bookmark.described(name, spans) for name, bookmark in bookmarks]

    def get(self, name: str) -> Cursor:
        """One cursor; CursorNotFound if there is none with this name."""
        with self._lock:
            bookmark = self._bookmarks.get(name)
        if bookmark is None:
            raise CursorNotFound(check_name(name, "cursor"))
        return bookmark.described(name, self._spans(bookmark.places))

    def advance(
        self, name: str, offsets: Mapping[str, int], now: int, holds: bool | None = None, *, caller: CursorOwner = ANY_HOLDER
    ) -> Cursor:
        """Set the next offset to read of some streams (`EVENTS` is one), forward or back; the others stay.

        The cursor is created if it is new. NotFound for a missing stream, OutOfRange for an offset beyond its end,
        ResourceExhausted for a new cursor if there are too many, and the errors of the caller's check if it holds.
        """
        name = check_name(name, "cursor")
        if holds is not None and type(holds) is not bool:
            raise InvalidArgument.of("holds", holds, "true or false")
        places = {stream: self._place(stream, offset) for stream, offset in offsets.items()}
        with self._lock:
            known = self._bookmarks.get(name)
            if known is None:
                check_room(self._bookmarks, name, caller.token_id)
            moved = (known or StoredCursor({}, now, owner=caller.token_id)).moved(places, now, holds)
            if moved.holds or (known is not None and known.holds):
                caller.check_hold(moved.places)
            self._bookmarks[name] = moved
            # If only the time is new, the file is not written yet.
            is_news = known is None or (moved.places, moved.holds) != (known.places, known.holds)
            self._changes += is_news
            mine = self._changes
            if is_news:
                self._hold()
        self._write(mine)
        return moved.described(name, self._spans(moved.places))

    def delete(self, name: str, *, caller: CursorOwner = ANY_HOLDER) -> None:
        """Delete a cursor and release the log that it held; CursorNotFound if there is none with this name."""
        with self._lock:
            known = self._bookmarks.get(name)
            if known is None:
                raise CursorNotFound(check_name(name, "cursor"))
            if known.holds:
                caller.check_hold(known.places)
            del self._bookmarks[name]
            self._changes += 1
            mine = self._changes
            self._hold()
        self._write(mine)

    def held(self, stream: Stream) -> Ranges:
        """The offsets of a stream that stay in the log because a cursor holds them."""
        start = self._held.get(stream.number)
        return [(start, stream.next_offset)] if start is not None and start < stream.next_offset else []

    def holding(self) -> dict[str, int]:
        """The cursors that hold the log, with the time of their last change: an abandoned one holds it forever."""
        with self._lock:
            return {name: bookmark.updated_at for name, bookmark in self._bookmarks.items() if bookmark.holds}

    def _hold(self) -> None:
        """Compute what is held. Call it with the lock held."""
        self._held = held(self._bookmarks.values())
        self._broker.journal.hold_events(self._held.get(0))

    def _place(self, stream: str, offset: int) -> Place:
        span = self._span(stream)
        if type(offset) is not int or offset < 0:
            raise InvalidArgument.of(f"offsets[{stream!r}]", offset, "an offset, a whole number from 0 on")
        if offset > span.latest:
            raise OutOfRange(stream, offset, span.earliest, span.latest)
        return span.number, offset

    def _span(self, stream: str) -> StreamSpan:
        return event_span(*self._view.event_range()) if stream == EVENTS else self._view.span(stream)

    def _spans(self, streams: Mapping[str, Place] | None = None) -> dict[str, StreamSpan]:
        """All streams by name, or those of the given ones that exist."""
        spans = {span.stream: span for span in self._view.spans() if streams is None or span.stream in streams}
        return {**spans, EVENTS: event_span(*self._view.event_range())}

    def _write(self, change: int) -> None:
        """Return when a change is on disk. Callers that come while the file is written often share one write."""
        if self._journal is None:
            return
        with self._pen:
            if self._written >= change:
                return
            spans = self._spans()
            with self._lock:
                # Deleted streams are dropped here.
                self._bookmarks = {name: bookmark.present(spans) for name, bookmark in self._bookmarks.items()}
                body, changes = msgspec.json.encode(self._bookmarks), self._changes
            self._journal.write_file(FILE, _HEAD + b"%08x\n" % zlib.crc32(body) + body)
            self._written = changes


def load(path: str, raw: bytes | None) -> dict[str, StoredCursor]:
    """The cursors in the file of the journal at `path`, by name; none if there is no file. CorruptLog if it is damaged."""
    if raw is None:
        return {}
    head, _, body = raw.partition(b"\n")
    if head != _HEAD + b"%08x" % zlib.crc32(body):
        problem = "the checksum does not match" if head.startswith(_HEAD) else f"it begins with {raw[:40]!r}"
        raise _damaged(path, problem)
    try:
        return _decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _damaged(path, str(error)) from error


def _damaged(path: str, problem: str) -> CorruptLog:
    error = CorruptLog(path, FILE, problem)
    error.hint = f"move {FILE} away: readers set their cursors again, but until then the log does not keep what they held"
    return error
