"""The only module that writes to the terminal: results to the standard output, everything else to the standard error.

Also the text form of values: tables, numbers, durations, times, and the progress of long operations.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Self, TextIO

from penstock.clock import monotonic
from penstock.durations import SECOND
from penstock.values.wording import printable, span

_NUMBER = re.compile(r"-|[0-9][0-9,.]*")
_STYLES = {"bold": "1", "faint": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_COLUMNS = {"DEAD": "red", "DEAD-LETTERED": "red", "ERROR": "red", "REASON": "yellow", "STATE": "yellow"}
"""Columns whose cells have a colour, by their heading."""
_PLAIN = frozenset({"", "-", "0", "open", *_COLUMNS})
INTERVAL = SECOND // 10
"""The interval between two updates of a progress line."""
BAR = 30


def say(text: str) -> None:
    """Print a line of the result."""
    _write(sys.stdout, text)


def complain(text: str) -> None:
    """Print a line about an error, or a remark beside the result."""
    _write(sys.stderr, printable(text, keep_lines=True))


def say_json(value: object) -> None:
    """Print the result as one JSON document."""
    say(_json(value, indent=2))


def say_json_line(value: object) -> None:
    """Print an item of a stream as a JSON document on one line."""
    say(_json(value))


def say_bytes(data: bytes) -> None:
    """Print bytes unchanged, and a newline."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data + b"\n")
    sys.stdout.flush()


def redraw(text: str) -> None:
    """Replace the last line of the standard error, which must be a terminal."""
    sys.stderr.write(f"\r{text}\x1b[K")
    sys.stderr.flush()


def redraw_lines(lines: Sequence[str], drawn: int) -> None:
    """Replace the last lines of the standard error, which must be a terminal: `drawn` of them exist."""
    up = f"\x1b[{drawn}A" if drawn else ""
    sys.stderr.write(f"{up}\r" + "".join(f"{printable(line)}\x1b[K\n" for line in lines) + "\x1b[J")
    sys.stderr.flush()


def table(rows: Sequence[Sequence[str]], *, has_heading: bool = True) -> str:
    """Rows as columns of equal width, two spaces apart; the first row is the heading.

    The first column is a name, and columns of numbers are aligned to the right. On a terminal the
    heading is bold, and values that need attention are coloured.
    """
    columns = [[printable(cell) for cell in column] for column in zip(*rows, strict=True)]
    aligned = []
    for index, column in enumerate(columns):
        width = max(map(len, column))
        is_number = index > 0 and len(column) > 1 and all(_NUMBER.fullmatch(cell) for cell in column[1:])
        cells = [cell.rjust(width) if is_number else cell.ljust(width) for cell in column]
        style = _COLUMNS.get(column[0])
        aligned.append([paint(cell, style) if style and cell.strip() not in _PLAIN else cell for cell in cells])
    heading, *others = ["  ".join(row).rstrip() for row in zip(*aligned, strict=True)]
    return "\n".join([paint(heading, "bold") if has_heading else heading, *others])


def facts(values: Mapping[str, object]) -> str:
    """One resource: a line for each of its values."""
    width = max(map(len, values))
    return "\n".join(f"{name:<{width}}  {printable(text_of(value))}" for name, value in values.items())


def text_of(value: object) -> str:
    """The text of a value in a table."""
    match value:
        case None | "" | ():
            return "-"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.3f}".rstrip("0").rstrip(".")
        case datetime():
            return when(value)
        case _:
            return str(value)


def when(at: datetime) -> str:
    """A time, to the second."""
    return f"{at:%Y-%m-%d %H:%M:%S}"


def paint(text: str, style: str) -> str:
    """Text in a style, if the standard output is a terminal that supports colours."""
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if has_colours() else text


def has_colours() -> bool:
    """Whether the standard output shows colours: a terminal, unless NO_COLOR is set."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _json(value: object, indent: int | None = None) -> str:
    """A value as JSON, in UTF-8 or otherwise ASCII."""
    import msgspec  # noqa: PLC0415  # `--help` needs none of it

    is_utf8 = (sys.stdout.encoding or "utf-8").lower().replace("-", "") == "utf8"
    return json.dumps(msgspec.to_builtins(value), indent=indent, ensure_ascii=not is_utf8)


def _write(stream: TextIO, text: str) -> None:
    # The output may support only ASCII; other characters are written as \\xNN instead of failing.
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
    stream.flush()


def short(number: float) -> str:
    """A number in at most six characters: `950`, `12,034`, `1.23M`; below ten with one decimal, if it has any."""
    if abs(number) < 9.95 and number != int(number):
        return f"{number:.1f}"
    if abs(number) < 99_999.5:
        return f"{number:,.0f}"
    for unit, size in (("k", 10**3), ("M", 10**6)):
        if abs(number) < 999.5 * size:
            return f"{number / size:.3g}{unit}"
    return f"{number / 10**9:.3g}G"


def clipped(text: str, width: int) -> str:
    """A text cut to this many characters, with an ellipsis."""
    return text if len(text) <= width else f"{text[: max(width - 1, 0)]}…"[:width]


class Progress:
    """Counts progress, and shows it if the standard error is a terminal. The end of the `with` block removes the line."""

    def __init__(self, label: str, total: int | None = None) -> None:
        self._label, self._total = label, total
        self._is_shown = sys.stderr.isatty()
        self._begun = monotonic()
        self._drawn = self._begun
        """Operations shorter than one interval show nothing."""
        self.done = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._is_shown and self._drawn != self._begun:
            redraw("")

    @property
    def seconds(self) -> float:
        """The seconds since the start."""
        return (monotonic() - self._begun) / SECOND

    @property
    def rate(self) -> float:
        """The average number per second."""
        return self.done / max(self.seconds, 1e-6)

    def reach(self, done: int, total: int) -> None:
        """Show that `done` of `total` are done."""
        self._total = total
        self.advance(done - self.done)

    def advance(self, count: int) -> None:
        """Add this many."""
        self.done += count
        now = monotonic()
        if self._is_shown and now - self._drawn >= INTERVAL:
            self._drawn = now
            width = shutil.get_terminal_size().columns - 1
            redraw(progress_line(self._label, self.done, self._total, self.seconds, width))


def progress_line(label: str, done: int, total: int | None, seconds: float, width: int) -> str:
    """The progress line in at most this many characters: the bar is dropped first if there is no room."""
    rate = done / max(seconds, 1e-6)
    if not total:
        return f"{label}  {done:,}  {short(rate)}/s"[:width]
    share = min(done / total, 1)
    left = span((total - done) / rate) if rate and done < total else "0 s"
    numbers = f"{share:4.0%}  {done:,} of {total:,}  {short(rate)}/s  {left} left"
    filled = round(share * BAR)
    full = f"{label}  [{'#' * filled}{'.' * (BAR - filled)}]  {numbers}"
    return full if len(full) <= width else f"{label}  {numbers}"[:width]
