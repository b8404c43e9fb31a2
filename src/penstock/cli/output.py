"""The one place that writes to the terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TextIO


def say(text: str) -> None:
    """A line of what was asked for."""
    _write(sys.stdout, text)


def complain(text: str) -> None:
    """A line about what went wrong, or what to know beside the result."""
    _write(sys.stderr, text)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows as columns of equal width, two spaces apart."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "\n".join(lines)


def _write(stream: TextIO, text: str) -> None:
    # A terminal or a pipe may know ASCII alone; what it cannot show is written as \xNN, not refused.
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
    stream.flush()
