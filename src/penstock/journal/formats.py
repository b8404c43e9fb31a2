"""Formats of a data directory: which one this version writes, and how it makes that of an older one.

The number is in the file `FORMAT` and in the table `meta`; the latter counts. A change of what is stored that an older version
would not understand gets a new number, and a step in `STEPS` that makes it of the one before.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from penstock.errors import CorruptLog, UnsupportedFormat

if TYPE_CHECKING:
    import apsw  # a broker in memory needs no SQLite

FORMAT = 1
STEPS: Mapping[int, Callable[[apsw.Connection], None]] = {}
"""What makes format N + 1 of format N, by N. All steps and the new number are one transaction."""

_TEXT = re.compile(r"penstock data directory, format ([1-9][0-9]{0,99})\n")


def text(number: int) -> str:
    """What `FORMAT` says."""
    return f"penstock data directory, format {number}\n"


def check_text(path: str, file: str, found: str) -> None:
    """Refuse what is no format, and a format that this version cannot read."""
    match = _TEXT.fullmatch(found)
    if match is None:
        raise CorruptLog(path, file, f"it says {found[:60]!r}, this version reads {text(FORMAT)!r}")
    check_number(path, int(match[1]))


def check_number(path: str, found: object) -> int:
    """The format in `meta`, if this version reads it or can make its own of it."""
    if type(found) is not int or not (found >= FORMAT or found in STEPS):
        raise CorruptLog(path, "meta", f"format is {found!r}, this version reads {FORMAT}")
    if found > FORMAT:
        raise UnsupportedFormat(path, found, FORMAT)
    return found


def migrate(database: apsw.Connection, found: int) -> None:
    """Make the present format of an older one, within a transaction of the caller."""
    for number in range(found, FORMAT):
        STEPS[number](database)
    database.execute("UPDATE meta SET value = ? WHERE name = 'format'", (FORMAT,))
