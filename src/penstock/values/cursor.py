"""Cursors as their readers see them."""

from __future__ import annotations

import msgspec


class Cursor(msgspec.Struct, frozen=True):
    """A named position of a reader outside the broker, and how far behind it is."""

    name: str
    offsets: dict[str, int]
    """The next offset to read, by stream; the event log is `EVENTS`."""
    lag: dict[str, int]
    updated_at: int
    holds: bool
    """Whether retention waits for it: what it has not read yet stays in the log."""
