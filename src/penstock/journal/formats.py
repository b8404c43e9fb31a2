"""Formats of a data directory: the format that this version writes, and the migrations from older ones.

The number is in the file `FORMAT` and in the table `meta`; the latter is authoritative. A change of the stored data that an older
version could not read gets a new number, and a migration from the previous format in `STEPS`.
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
"""The migrations from format N to N + 1, by N. All steps and the new number are one transaction."""

_TEXT = re.compile(r"penstock data directory, format ([1-9][0-9]{0,99})\n")


def text(number: int) -> str:
    """The content of the file `FORMAT`."""
    return f"penstock data directory, format {number}\n"


def check_text(path: str, file: str, found: str) -> None:
    """Refuse an invalid format, and one that this version cannot read."""
    match = _TEXT.fullmatch(found)
    if match is None:
        raise CorruptLog(path, file, f"its content is {found[:60]!r}, this version reads {text(FORMAT)!r}")
    check_number(path, int(match[1]))


def check_number(path: str, found: object) -> int:
    """The format in `meta`, if this version can read or migrate it."""
    if type(found) is not int or not (found >= FORMAT or found in STEPS):
        raise CorruptLog(path, "meta", f"format is {found!r}, this version reads {FORMAT}")
    if found > FORMAT:
        raise UnsupportedFormat(path, found, FORMAT)
    return found


def migrate(database: apsw.Connection, found: int) -> None:
    """Migrate an older format to the current one, in a transaction of the caller."""
    for number in range(found, FORMAT):
        STEPS[number](database)
    database.execute("UPDATE meta SET value = ? WHERE name = 'format'", (FORMAT,))
