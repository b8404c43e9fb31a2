"""The content of `penstock top`: rates from two overviews, and their layout in lines. It reads no clock and no terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING

from penstock.cli.output import clipped, short
from penstock.values.wording import printable, span

if TYPE_CHECKING:
    from penstock.wire.results import Overview

MIN_NAME = 16
GAP = "  "


class Sort(StrEnum):
    """The order of rows."""

    BACKLOG = "backlog"
    RATE = "rate"
    AGE = "age"
    NAME = "name"


@dataclass(frozen=True, slots=True)
class Flow:
    """The rates of a subscription or work queue between two moments. None if a rate is unknown: there is nothing to compare."""

    name: str
    kind: str
    """`subscription` or `queue`."""
    topic: str | None
    backlog: int
    delayed: int
    in_flight: int
    oldest: float
    delivered: float | None
    acked: float | None
    nacked: float | None
    dead: int
    note: str = ""
    """`paused`, `detached`."""


@dataclass(frozen=True, slots=True)
class Source:
    """The rates of a topic between two moments."""

    name: str
    published: float | None
    total: int


@dataclass(frozen=True, slots=True)
class Sample:
    """All rates between two moments."""

    at: datetime
    sources: tuple[Source, ...]
    flows: tuple[Flow, ...]

    def of(self, kind: str) -> tuple[Flow, ...]:
        """The rates of one kind."""
        return tuple(flow for flow in self.flows if flow.kind == kind)


def sample(before: Overview | None, after: Overview) -> Sample:
    """The rates per second between two overviews."""
    seconds = (after.at - before.at).total_seconds() if before is not None else 0.0

    def rate(old: int | None, new: int) -> float | None:
        # A count that fell belongs to a new resource of the same name, or another server: its rate is unknown.
        return (new - old) / seconds if old is not None and seconds > 0 and new >= old else None

    topics = before.topics if before is not None else {}
    subscriptions = {one.name: one.stats for one in before.subscriptions} if before is not None else {}
    queues = {one.queue: one for one in before.queues} if before is not None else {}
    flows = []
    for one in after.subscriptions:
        new, old = one.stats, subscriptions.get(one.name)
        flows.append(
            Flow(
                one.name,
                "subscription",
                one.topic,
                new.backlog,
                new.delayed,
                new.in_flight,
                new.oldest_age_seconds,
                rate(old.delivered_total if old else None, new.delivered_total),
                rate(old.acked_total if old else None, new.acked_total),
                rate(old.nacked_total if old else None, new.nacked_total),
                new.dead_lettered_total,
                "detached" if one.detached else "paused" if one.paused else "",
            )
        )
    for queue in after.queues:
        past = queues.get(queue.queue)
        flows.append(
            Flow(
                queue.queue,
                "queue",
                None,
                queue.depth + queue.delayed + queue.in_flight,
                queue.delayed,
                queue.in_flight,
                queue.oldest_message_age_secs,
                rate(past.consumed_total if past else None, queue.consumed_total),
                rate(past.acked_total if past else None, queue.acked_total),
                rate(past.nacked_total if past else None, queue.nacked_total),
                queue.dead_letters,
                "paused" if queue.paused else "",
            )
        )
    sources = tuple(Source(name, rate(topics.get(name), total), total) for name, total in after.topics.items())
    return Sample(after.at, sources, tuple(flows))


_ORDERS: Mapping[Sort, Callable[[Flow], tuple[float, str]]] = {
    Sort.BACKLOG: lambda flow: (-flow.backlog, flow.name),
    Sort.RATE: lambda flow: (-(flow.delivered or 0), flow.name),
    Sort.AGE: lambda flow: (-flow.oldest, flow.name),
    Sort.NAME: lambda flow: (0, flow.name),
}


def ordered(found: Sample, sort: Sort) -> Sample:
    """The same in the requested order; topics by rate unless by name."""
    by_rate = sort is not Sort.NAME
    sources = sorted(found.sources, key=lambda one: (-(one.published or 0) if by_rate else 0, one.name))
    return replace(found, sources=tuple(sources), flows=tuple(sorted(found.flows, key=_ORDERS[sort])))


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. Those with the highest `rank` are dropped first on a narrow screen."""

    title: str
    cells: tuple[str, ...]
    rank: int = 0


def body(found: Sample, width: int) -> list[str]:
    """The tables, as lines of at most `width` characters."""
    lines: list[str] = []
    for kind in ("subscription", "queue"):
        flows = found.of(kind)
        if flows:
            lines += [*_table(_flow_columns(kind, flows), width), ""]
    if found.sources:
        columns = [
            Column("TOPIC", tuple(one.name for one in found.sources)),
            Column("PUBLISHED/s", tuple(_rate(one.published) for one in found.sources)),
            Column("PUBLISHED", tuple(short(one.total) for one in found.sources), 1),
        ]
        lines += [*_table(columns, width), ""]
    return lines[:-1] or ["nothing here yet: penstock topic create NAME, penstock queue create NAME"]


def _flow_columns(kind: str, flows: Sequence[Flow]) -> list[Column]:
    def column(title: str, cell: Callable[[Flow], str], rank: int = 0) -> Column:
        return Column(title, tuple(map(cell, flows)), rank)

    return [
        column(kind.upper(), lambda flow: f"{flow.name} ({flow.note})" if flow.note else flow.name),
        column("BACKLOG", lambda flow: short(flow.backlog)),
        column("DELAYED", lambda flow: short(flow.delayed), 5),
        column("IN FLIGHT", lambda flow: short(flow.in_flight), 3),
        column("OLDEST", lambda flow: span(round(flow.oldest, 1)) if flow.backlog else "-", 1),
        column("DELIVERED/s", lambda flow: _rate(flow.delivered)),
        column("ACKED/s", lambda flow: _rate(flow.acked), 2),
        column("NACKED/s", lambda flow: _rate(flow.nacked), 4),
        column("DEAD", lambda flow: short(flow.dead), 6),
    ]


def _table(columns: Sequence[Column], width: int) -> list[str]:
    """The first column is as wide as its names, if there is room; numbers are aligned to the right."""
    kept = list(columns)
    names = [printable(cell) for cell in columns[0].cells]
    least = min(max(map(len, [columns[0].title, *names])), MIN_NAME)
    while len(kept) > 1 and least + sum(_width(one) + len(GAP) for one in kept[1:]) > width:
        kept.remove(max(kept[1:], key=lambda one: one.rank))
    numbers = sum(_width(one) + len(GAP) for one in kept[1:])
    room = max(width - numbers, 1)
    longest = min(max(map(len, [columns[0].title, *names])), room)
    lines = []
    for index, name in enumerate([columns[0].title, *names]):
        cells = [(one.title, *one.cells)[index].rjust(_width(one)) for one in kept[1:]]
        lines.append(GAP.join([clipped(name, longest).ljust(longest), *cells])[:width].rstrip())
    return lines


def _width(column: Column) -> int:
    return max(map(len, [column.title, *column.cells]))


def _rate(value: float | None) -> str:
    return "-" if value is None else short(value)


def totals(found: Sample, width: int) -> str:
    """The totals in one line: as many as fit."""

    def added(values: Sequence[float | None]) -> str:
        known = [value for value in values if value is not None]
        return short(sum(known)) if known or not values else "-"

    line = f"backlog {short(sum(one.backlog for one in found.flows))}"
    for part in (
        f"in flight {short(sum(one.in_flight for one in found.flows))}",
        f"published {added([one.published for one in found.sources])}/s",
        f"delivered {added([one.delivered for one in found.flows])}/s",
        f"acked {added([one.acked for one in found.flows])}/s",
    ):
        if len(line) + len(GAP) + len(part) > width:
            break  # a shorter total after it would make the line jump
        line += GAP + part
    return line


def frame(heading: Sequence[str], lines: Sequence[str], keys: str, size: tuple[int, int], top: int) -> tuple[list[str], int]:
    """A whole screen: the heading, the part of `lines` from `top`, a line of keys.

    Returns exactly as many lines as the screen has, and the corrected `top`.
    """
    width, height = size
    # A low screen drops the empty line first, then the keys, then the heading.
    spare = height - len(heading) - 1
    above = [*heading, ""] if spare > 4 else [*heading] if spare > 0 else []
    below = 1 if spare > 0 else 0
    room = height - len(above) - below
    top = max(0, min(top, len(lines) - room))
    shown = lines[top : top + room]
    hidden = len(lines) - top - len(shown)
    more = f"{f' ↓{hidden}' if hidden else ''}{f' ↑{top}' if top else ''}"
    screen = [*above, *shown, *[""] * (room - len(shown))]
    screen += [clipped(keys, width - len(more)) + more] * below
    return [clipped(line, width) for line in screen], top
