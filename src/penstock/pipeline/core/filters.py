"""What filters on columns say about offsets: ranges that cannot hold a requested row are not read.

Filters only prune. Spark checks every row once more, so what is not understood here costs time, never a wrong row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from penstock.durations import FOREVER, instant
from penstock.errors import InvalidArgument
from penstock.ids import parse_message_id
from penstock.pipeline.core.planning import OffsetRange

MANY = 256
"""More values than these are not looked for one by one."""


class Condition(NamedTuple):
    """`column op value`; op is one of = in < <= > >=, the value of `in` a sequence."""

    column: str
    op: str
    value: Any  # whatever Spark's literals are in Python


@dataclass(frozen=True, slots=True)
class RowFilter:
    """What rows must be like, as far as it is known: None, and the widest range, where nothing is said."""

    streams: frozenset[str] | None = None
    keys: frozenset[str] | None = None
    offsets: frozenset[int] | None = None
    places: frozenset[tuple[int, int]] | None = None
    """(number of the stream, offset), out of message ids"""
    between: tuple[int, int] = (0, FOREVER)
    """Offsets, the second excluded."""
    since: int = 0
    until: int = FOREVER
    """Publish times in microseconds, the second excluded."""

    @property
    def is_nothing(self) -> bool:
        sets: tuple[frozenset[Any] | None, ...] = (self.streams, self.keys, self.offsets, self.places)
        return (
            self.since >= self.until
            or self.between[0] >= self.between[1]
            or any(known is not None and not known for known in sets)
        )


ANYTHING = RowFilter()


def wanted(conditions: Iterable[Condition], *, is_messages: bool) -> RowFilter:
    """What conditions, all of which must hold, say about rows. Of events, only the stream and the offset tell where they are."""
    readers = _MESSAGE_COLUMNS if is_messages else _EVENT_COLUMNS
    sets: dict[str, frozenset[Any]] = {}
    ranges = {"offset": (0, FOREVER), "publish_time": (0, FOREVER)}
    for column, op, value in conditions:
        read = readers.get(column)
        try:
            values = [] if read is None else [read(one) for one in (value if op == "in" else [value]) if one is not None]
        except (TypeError, InvalidArgument):
            continue  # a literal of a type that we do not know
        if read is None or (op != "in" and not values) or (op not in _EQUAL and column not in ranges):
            continue
        if column == "publish_time" or op not in _EQUAL:
            low, high = ranges[column]
            start, stop = _range(op, values)
            ranges[column] = max(low, start), min(high, stop)
        else:
            found = frozenset(one for one in values if one is not None)
            sets[column] = sets[column] & found if column in sets else found
    since, until = ranges["publish_time"]
    keys = sets.get("key")
    return RowFilter(
        streams=sets.get("stream"),
        keys=keys if keys is None or len(keys) <= MANY else None,
        offsets=sets.get("offset"),
        places=sets.get("message_id"),
        between=ranges["offset"],
        since=since,
        until=until,
    )


def prune(
    pieces: Iterable[OffsetRange], want: RowFilter, *, since: Mapping[str, int], until: Mapping[str, int]
) -> list[OffsetRange]:
    """The parts of pieces that may hold wanted rows. `since`, `until`: the offsets of the wanted times, by stream, if any are."""
    kept: list[OffsetRange] = []
    if want.is_nothing:
        return kept
    for piece in pieces:
        if want.streams is not None and piece.stream not in want.streams:
            continue
        start = max(piece.start, want.between[0], since.get(piece.stream, 0))
        stop = min(piece.stop, want.between[1], until.get(piece.stream, FOREVER))
        points = want.offsets
        if want.places is not None:
            here = frozenset(offset for number, offset in want.places if number == piece.number)
            points = here if points is None else points & here
        kept += [piece._replace(start=low, stop=high) for low, high in _runs(points, start, stop)]
    return kept


def _runs(points: frozenset[int] | None, start: int, stop: int) -> list[tuple[int, int]]:
    """The runs of neighbours among points in a range; the whole range for None, one range around very many points."""
    if points is None:
        return [(start, stop)] if start < stop else []
    inside = sorted(point for point in points if start <= point < stop)
    if len(inside) > MANY:
        return [(inside[0], inside[-1] + 1)]
    runs: list[tuple[int, int]] = []
    for point in inside:
        if runs and runs[-1][1] == point:
            runs[-1] = runs[-1][0], point + 1
        else:
            runs.append((point, point + 1))
    return runs


_EQUAL = frozenset({"=", "in"})


def _range(op: str, values: list[int]) -> tuple[int, int]:
    """The whole numbers that an operator allows, the end excluded."""
    if not values:
        return 0, 0
    match op:
        case "<":
            return 0, values[0]
        case "<=":
            return 0, values[0] + 1
        case ">":
            return values[0] + 1, FOREVER
        case ">=":
            return values[0], FOREVER
        case _:
            return min(values), max(values) + 1


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError
    return value


def _moment(value: object) -> int:
    if not isinstance(value, datetime):
        raise TypeError
    return instant(value, "publish_time")


def _address(value: object) -> tuple[int, int] | None:
    parsed = parse_message_id(_text(value))
    return parsed and parsed[1:]


_EVENT_COLUMNS: dict[str, Callable[[object], Any]] = {"stream": _text, "offset": _whole}
_MESSAGE_COLUMNS = _EVENT_COLUMNS | {"key": _text, "publish_time": _moment, "message_id": _address}
