"""Values as text, the same in the terminal and in the console: counts, sizes, durations, times, and text made safe to print."""

from __future__ import annotations

import re
from datetime import datetime

_UNSHOWN = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")
_UNSHOWN_BUT_LINES = re.compile(_UNSHOWN.pattern.replace(r"\x0a-", r"\x0b-"))
_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60))


def printable(text: str, *, keep_lines: bool = False) -> str:
    """Text that cannot move the cursor, change colours or hide its content."""
    return (_UNSHOWN_BUT_LINES if keep_lines else _UNSHOWN).sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def count(number: int, noun: str, plural: str | None = None) -> str:
    """`1 message`, `1,200 messages`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def octets(number: float) -> str:
    """`512 B`, `1.5 KiB`, `12.0 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1_024:
            return f"{number:.0f} B" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1_024
    return f"{number:.1f} TiB"


def span(seconds: float) -> str:
    """`85 µs`, `1.2 ms`, `4.0 s`, `3m 05s`, `2h 10m`, `5d 3h`: the two largest units."""
    if seconds < 0:
        return "-" + span(-seconds)
    if seconds == 0:
        return "0 s"
    # A value that would round up to the next unit is written in the next unit.
    if seconds < 0.000_999_5:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 0.999_5:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    parts = []
    for unit, size in _UNITS:
        number, whole = divmod(whole, size)
        parts.append((number, unit))
    parts.append((whole, "s"))
    first = next(index for index, (number, _) in enumerate(parts) if number)
    (large, unit), (small, below) = parts[first], parts[first + 1]
    return f"{large}{unit} {small:02d}{below}" if below != "h" else f"{large}{unit} {small}{below}"


def moment(at: datetime) -> str:
    """A time in UTC, to the millisecond."""
    return f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03d} UTC"
