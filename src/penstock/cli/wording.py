"""Numbers, spans and instants as people read them."""

from __future__ import annotations

from datetime import datetime

_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60))


def count(number: int, noun: str, plural: str | None = None) -> str:
    """`1 message`, `1,200 messages`."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def short(number: float) -> str:
    """A number in at most six characters: `950`, `12,034`, `1.23M`; below ten with a decimal, when it has one."""
    if abs(number) < 9.95 and number != int(number):
        return f"{number:.1f}"
    if abs(number) < 99_999.5:
        return f"{number:,.0f}"
    for unit, size in (("k", 10**3), ("M", 10**6)):
        if abs(number) < 999.5 * size:
            return f"{number / size:.3g}{unit}"
    return f"{number / 10**9:.3g}G"


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
    # What would be rounded up to the next unit is written in the next unit.
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
    """An instant in UTC, to the millisecond."""
    return f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03d} UTC"


def clipped(text: str, width: int) -> str:
    """A text in so many characters; what does not fit is an ellipsis."""
    return text if len(text) <= width else f"{text[: max(width - 1, 0)]}…"[:width]
