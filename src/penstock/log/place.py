"""Where a server keeps its log, for readers on the same machine: they can open the directory and spare the server the work."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import msgspec

from penstock.journal.directory import FORMAT_FILE


class Place(msgspec.Struct, frozen=True):
    """A data directory. `mark` is the same wherever this very directory is seen, and nowhere else."""

    path: str | None = None
    mark: str | None = None


def place_of(data_dir: str | os.PathLike[str]) -> Place:
    """The place of a data directory; none when it cannot be seen from here."""
    path = Path(data_dir).absolute()
    with suppress(OSError):
        found = (path / FORMAT_FILE).stat()
        machine = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return Place(str(path), f"{machine}:{found.st_dev}:{found.st_ino}")
    return Place()
