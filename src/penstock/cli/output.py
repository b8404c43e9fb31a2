"""The one place that writes to the terminal: results to the standard output, everything else to the standard error."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TextIO

_UNSHOWN = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_UNSHOWN_BUT_LINES = re.compile(_UNSHOWN.pattern.replace(r"\x0a-", r"\x0b-"))
_NUMBER = re.compile(r"-|[0-9][0-9,.]*")
_STYLES = {"faint": "2", "red": "31", "yellow": "33", "cyan": "36"}


def say(text: str) -> None:
    """A line of what was asked for."""
    _write(sys.stdout, text)


def complain(text: str) -> None:
    """A line about what went wrong, or what to know beside the result."""
    _write(sys.stderr, text)


def say_json(value: object) -> None:
    """What was asked for, as one document."""
    say(_json(value, indent=2))


def say_json_line(value: object) -> None:
    """One of a stream of things, as a document on one line."""
    say(_json(value))


def say_bytes(data: bytes) -> None:
    """Bytes as they are, and the end of a line."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data + b"\n")
    sys.stdout.flush()


def redraw(text: str) -> None:
    """Replace the last line of the standard error, which is a terminal."""
    sys.stderr.write(f"\r{text}\x1b[K")
    sys.stderr.flush()


def redraw_lines(lines: Sequence[str], drawn: int) -> None:
    """Replace the last lines of the standard error, which is a terminal: `drawn` of them are there."""
    up = f"\x1b[{drawn}A" if drawn else ""
    sys.stderr.write(f"{up}\r" + "".join(f"{printable(line)}\x1b[K\n" for line in lines) + "\x1b[J")
    sys.stderr.flush()


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows as columns of equal width, two spaces apart; the first row is the heading. Columns of numbers stand to the right."""
    columns = [[printable(cell) for cell in column] for column in zip(*rows, strict=True)]
    aligned = []
    for column in columns:
        width = max(map(len, column))
        is_number = len(column) > 1 and all(_NUMBER.fullmatch(cell) for cell in column[1:])
        aligned.append([cell.rjust(width) if is_number else cell.ljust(width) for cell in column])
    return "\n".join("  ".join(row).rstrip() for row in zip(*aligned, strict=True))


def facts(values: Mapping[str, object]) -> str:
    """One thing: a line for each of its values."""
    width = max(map(len, values))
    return "\n".join(f"{name:<{width}}  {printable(shown(value))}" for name, value in values.items())


def shown(value: object) -> str:
    """A value in a table."""
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
    """An instant, to the second."""
    return f"{at:%Y-%m-%d %H:%M:%S}"


def printable(text: str, *, keep_lines: bool = False) -> str:
    """Text that cannot move the cursor, change colours or hide what it says, whoever wrote it."""
    return (_UNSHOWN_BUT_LINES if keep_lines else _UNSHOWN).sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def paint(text: str, style: str) -> str:
    """Text in a style, when the standard output is a terminal that wants colours."""
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if has_colours() else text


def has_colours() -> bool:
    """Whether the standard output shows colours: a terminal, unless NO_COLOR says otherwise."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _json(value: object, indent: int | None = None) -> str:
    """A value as JSON, which is UTF-8 or else ASCII."""
    import msgspec  # noqa: PLC0415  # `--help` needs none of it

    is_utf8 = (sys.stdout.encoding or "utf-8").lower().replace("-", "") == "utf8"
    return json.dumps(msgspec.to_builtins(value), indent=indent, ensure_ascii=not is_utf8)


def _write(stream: TextIO, text: str) -> None:
    # A terminal or a pipe may know ASCII alone; what it cannot show is written as \xNN, not refused.
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
    stream.flush()
