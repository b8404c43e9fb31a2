"""The data directory of a server, for readers on the same machine: they can read it directly, without load for the server."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import msgspec

from penstock.journal.directory import FORMAT_FILE


class Place(msgspec.Struct, frozen=True):
    """A data directory. `mark` identifies it: it is equal for all processes that see the same directory, and only for these."""

    path: str | None = None
    mark: str | None = None


def place_of(data_dir: str | os.PathLike[str]) -> Place:
    """The place of a data directory; empty if it is not visible from here."""
    path = Path(data_dir).absolute()
    with suppress(OSError):
        found = (path / FORMAT_FILE).stat()
        machine = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return Place(str(path), f"{machine}:{found.st_dev}:{found.st_ino}")
    return Place()
