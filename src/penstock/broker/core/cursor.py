"""Cursors: named positions of readers outside the broker, and what they hold in the log.

A cursor is not part of the event log: a reader of that log would read about its own cursor forever. It is stored beside the log.
Losing its last change does no harm, since readers keep their position themselves.
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
    """A cursor as it is stored: with numbers of streams, so that a recreated stream is not confused with the old one."""

    places: dict[str, Place]
    updated_at: int
    holds: bool = False
    owner: str = ""
    """The id of the token that created it; empty without authentication, or if it was created before this was stored."""

    def moved(self, places: Mapping[str, Place], now: int, holds: bool | None) -> StoredCursor:
        """Change the position of some streams; the other streams stay, and so does `holds` if it is None."""
        return StoredCursor({**self.places, **places}, now, self.holds if holds is None else holds, self.owner)

    def present(self, spans: Mapping[str, StreamSpan]) -> StoredCursor:
        """Drop streams that do not exist any more."""
        kept = {name: place for name, place in self.places.items() if _is_of(spans.get(name), place)}
        return self if len(kept) == len(self.places) else msgspec.structs.replace(self, places=kept)

    def described(self, name: str, spans: Mapping[str, StreamSpan]) -> Cursor:
        offsets = {stream: offset for stream, (_, offset) in self.present(spans).places.items()}
        lag = {stream: max(spans[stream].latest - offset, 0) for stream, offset in offsets.items()}
        return Cursor(name, offsets, lag, self.updated_at, self.holds)


def check_room(bookmarks: Mapping[str, StoredCursor], name: str, owner: str) -> None:
    """ResourceExhausted if there is no room for a new cursor: in all, in its project, or for the token that creates it."""
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
    """By stream number, the offset from which on a cursor holds the log; the event log has the number 0."""
    found: dict[int, int] = {}
    for bookmark in bookmarks:
        if bookmark.holds:
            for number, offset in bookmark.places.values():
                found[number] = min(found.get(number, offset), offset)
    return found


def _is_of(span: StreamSpan | None, place: Place) -> bool:
    return span is not None and span.number == place[0]


def event_span(earliest: int, latest: int) -> StreamSpan:
    """The number of the event log, which no stream has."""
    return StreamSpan(EVENTS, 0, earliest, latest, 0)
