"""Durations and instants of protobuf as whole microseconds, checked."""

from __future__ import annotations

from typing import Any

from penstock.errors import InvalidArgument
from penstock.google import messages

SECONDS = 1_000_000
MINUTES = 60 * SECONDS
HOURS = 60 * MINUTES
DAYS = 24 * HOURS

MIN_RETENTION = 10 * MINUTES
MAX_RETENTION = 31 * DAYS

LONGEST = 315_576_000_000 * SECONDS  # ten thousand years, where a Duration ends
_LATEST_SECOND = 253_402_300_799  # the end of the year 9999, where the API's instants end
_NANOS = 1_000_000_000


def period(value: Any, name: str, *, minimum: int, maximum: int = LONGEST) -> int:
    """The microseconds of a Duration within bounds, both inclusive."""
    nanos = value.seconds * _NANOS + value.nanos
    mixed = value.nanos * value.seconds < 0 or abs(value.nanos) >= _NANOS
    if mixed or not minimum * 1000 <= nanos <= maximum * 1000:
        bounds = f"{spoken(minimum)} or more" if maximum == LONGEST else f"from {spoken(minimum)} to {spoken(maximum)}"
        raise InvalidArgument.of(name, f"{nanos / _NANOS:.15g}s", bounds)
    return int(nanos // 1000)


def instant(value: Any, name: str) -> int:
    """The microseconds since 1970 of a Timestamp."""
    if not 0 <= value.nanos < _NANOS or not -62_135_596_800 <= value.seconds <= _LATEST_SECOND:
        raise InvalidArgument.of(name, f"{value.seconds}s {value.nanos}ns", "an instant of the years 1 to 9999")
    return int(value.seconds * SECONDS + value.nanos // 1000)


def timestamp(micros: int) -> Any:
    """The Timestamp of so many microseconds since 1970."""
    made = messages.Timestamp()
    made.FromMicroseconds(micros)
    return made


def spoken(micros: int) -> str:
    """A length of time in its largest whole unit."""
    for unit, size in (("days", DAYS), ("hours", HOURS), ("minutes", MINUTES)):
        if micros >= size and micros % size == 0:
            return f"{micros // size} {unit}"
    return f"{micros / SECONDS:g} seconds"
