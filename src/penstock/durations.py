"""Instants and durations as whole microseconds; instants are counted from 1970 in UTC.

Nothing here reads a clock. The public API converts what users pass (seconds as a number, `timedelta`, aware `datetime`) to
microseconds once, with an error that names the argument.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from penstock.errors import InvalidArgument

SECOND = 1_000_000
DAY = 86_400 * SECOND

FOREVER = 1 << 62
"""An instant that never comes."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_LONGEST = 36_525 * DAY

type_error_hint = "durations are seconds (int or float) or a datetime.timedelta"


def micros(value: object, name: str, *, minimum: float = 0, maximum: float | None = None) -> int:
    """Microseconds of a duration given in seconds or as `timedelta`; bounds are in seconds and inclusive."""
    if type(value) is int:
        result = value * SECOND
    elif isinstance(value, timedelta):
        result = value // _MICROSECOND
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidArgument.of(name, value, _expected(minimum, maximum), hint=type_error_hint)
    elif isinstance(value, float) and not math.isfinite(value * SECOND):
        raise InvalidArgument.of(name, value, _expected(minimum, maximum))
    else:
        result = round(value * SECOND)
    if result < minimum * SECOND or (maximum is not None and result > maximum * SECOND) or result > _LONGEST:
        raise InvalidArgument.of(name, value, _expected(minimum, maximum))
    return result


def instant(value: object, name: str) -> int:
    """Microseconds since 1970 of an aware `datetime` or of a number of seconds since 1970."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise InvalidArgument.of(
                name, value, "a datetime with a time zone", hint="datetime.now(UTC), or value.replace(tzinfo=UTC)"
            )
        return (value - _EPOCH) // _MICROSECOND
    return micros(value, name, maximum=2 * _LONGEST // SECOND)


def to_datetime(at: int) -> datetime:
    """The aware UTC datetime of an instant, exact to the microsecond."""
    return _EPOCH + at * _MICROSECOND


_UNITS = {"ms": 0.001, "": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400}


def duration_seconds(value: object) -> float:
    """Parse 90, 1.5, "90", "500ms", "30s", "5m", "2h" or "30d" as seconds; ValueError for anything else."""
    if isinstance(value, str):
        return scaled(value, _UNITS)
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise ValueError
    return value


def scaled(text: str, units: Mapping[str, float]) -> float:
    """Parse a number with one of these units; ValueError for anything else."""
    found = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,6})?) ?([a-z]*)", text.strip(), re.ASCII)
    if found is None or found[2] not in units:
        raise ValueError
    return (float(found[1]) if "." in found[1] else int(found[1])) * units[found[2]]


def _expected(minimum: float, maximum: float | None) -> str:
    if maximum is None:
        return f"seconds, {minimum:.10g} or more"
    return f"seconds from {minimum:.10g} to {maximum:.10g}"
