"""Cursors: named positions of readers outside the broker, and what they keep in the log.

A cursor is not part of the event log: a reader of that log would hear of itself forever. It is a note beside it, and losing the
last of it does no harm, since a reader knows by itself where it continues.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from penstock.errors import ResourceExhausted
from penstock.journal.core.outline import EVENTS, StreamSpan
from penstock.values.descriptions import Cursor

MAX_CURSORS, MAX_OF_PROJECT, MAX_OF_TOKEN = 10_000, 5_000, 1_000

Place = tuple[int, int]
"""The number of a stream, and the next offset to read of it; the event log has the number 0."""


class StoredCursor(msgspec.Struct, array_like=True, frozen=True):
    """A cursor as it is kept: by numbers, so that a stream that was made again under its old name is not taken for it."""

    places: dict[str, Place]
    updated_at: int
    holds: bool = False
    owner: str = ""
    """The id of the token that made it; empty: no tokens are asked for, or it was made before this was kept."""

    def moved(self, places: Mapping[str, Place], now: int, holds: bool | None) -> StoredCursor:
        """Another position of some streams; the others stay, and so does `holds` where it is not said."""
        return StoredCursor({**self.places, **places}, now, self.holds if holds is None else holds, self.owner)

    def present(self, spans: Mapping[str, StreamSpan]) -> StoredCursor:
        """Without the streams that are no more."""
        kept = {name: place for name, place in self.places.items() if _is_of(spans.get(name), place)}
        return self if len(kept) == len(self.places) else msgspec.structs.replace(self, places=kept)

    def described(self, name: str, spans: Mapping[str, StreamSpan]) -> Cursor:
        offsets = {stream: offset for stream, (_, offset) in self.present(spans).places.items()}
        lag = {stream: max(spans[stream].latest - offset, 0) for stream, offset in offsets.items()}
        return Cursor(name, offsets, lag, self.updated_at, self.holds)


def check_room(bookmarks: Mapping[str, StoredCursor], name: str, owner: str) -> None:
    """ResourceExhausted if there is no room for a new cursor: in all, in its project, or for the token that makes it."""
    project = name.rpartition("/")[0]
    limits = [("there are", len(bookmarks), MAX_CURSORS)]
    if len(bookmarks) >= min(MAX_OF_PROJECT, MAX_OF_TOKEN):
        limits.append(("this project has", sum(other.rpartition("/")[0] == project for other in bookmarks), MAX_OF_PROJECT))
        if owner:
            limits.append(("this token has made", sum(one.owner == owner for one in bookmarks.values()), MAX_OF_TOKEN))
    for owned_by, count, most in limits:
        if count >= most:
            raise ResourceExhausted(f"{owned_by} {count} cursors, expected at most {most}", hint="delete unused ones")


def held(bookmarks: Iterable[StoredCursor]) -> dict[int, int]:
    """By stream number the offset from which on somebody waits to read; the event log has the number 0."""
    found: dict[int, int] = {}
    for bookmark in bookmarks:
        if bookmark.holds:
            for number, offset in bookmark.places.values():
                found[number] = min(found.get(number, offset), offset)
    return found


def _is_of(span: StreamSpan | None, place: Place) -> bool:
    return span is not None and span.number == place[0]


def event_span(earliest: int, latest: int) -> StreamSpan:
    """The event log as if it were a stream, under the number that no stream has."""
    return StreamSpan(EVENTS, 0, earliest, latest, 0)
