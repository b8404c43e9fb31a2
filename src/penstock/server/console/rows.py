"""Queues, subscriptions and topics as rows of a table: sorted and cut at the server, with reasons for the shown rows only."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from penstock.broker import backlog
from penstock.broker.aio import AsyncBroker
from penstock.broker.backlog import UnsettledMessage
from penstock.durations import SECOND, to_datetime
from penstock.server.console.core.status import Figures, state_of
from penstock.server.console.requests import ROWS, Limit, Offset, Text
from penstock.server.console.sampler import QueueRow, Row, TopicRow
from penstock.values.subscription import Explanation
from penstock.wire.reasons import kept_by

R = TypeVar("R", bound=Row)

Order = Literal["asc", "desc"]
QueueSort = Literal[
    "oldest", "name", "ready", "in_flight", "delayed", "dead", "backlog", "in_rate", "out_rate", "consumers", "topic"
]
TopicSort = Literal["name", "in_rate", "published", "subscriptions"]


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which rows, and in which order."""

    order: Order = "desc"
    filter: Text = ""
    offset: Offset = 0
    limit: Limit = ROWS


class QueueTable(Table, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which rows of queues."""

    sort: QueueSort = "oldest"


class SubscriptionTable(QueueTable, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which subscriptions: all, or those of one topic."""

    topic: Text = ""


class TopicTable(Table, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which rows of topics."""

    sort: TopicSort = "in_rate"


class Why(msgspec.Struct):
    """What blocks a message: a code, a sentence, and the consumer or message concerned."""

    reason: str
    text: str
    message_id: str
    until_at: datetime | None = None
    by: str | None = None
    consumer: str | None = None


class QueueLine(msgspec.Struct, kw_only=True):
    """A queue."""

    name: str
    oldest_seconds: float | None
    why: Why | None
    ready: int
    priorities: Sequence[tuple[int, int]]
    in_flight: int
    delayed: int
    dead: int
    backlog: int
    bytes: int
    in_rate: float | None
    out_rate: float | None
    consumers: int
    state: str


class SubscriptionLine(QueueLine, kw_only=True):
    """A subscription."""

    topic: str
    filter: str
    push: str | None
    ordered: bool
    detached: bool


class TopicLine(msgspec.Struct, kw_only=True):
    """A topic."""

    name: str
    in_rate: float | None
    published: int
    subscriptions: int
    retention_seconds: float | None
    created_at: datetime


class Listing(msgspec.Struct, kw_only=True):
    """A page of a table. `total` are all rows, `matched` those that pass the filter."""

    at: datetime
    total: int
    matched: int
    offset: int


class QueueListing(Listing, kw_only=True):
    """A page of queues."""

    rows: list[QueueLine]


class SubscriptionListing(Listing, kw_only=True):
    """A page of subscriptions."""

    rows: list[SubscriptionLine]


class TopicListing(Listing, kw_only=True):
    """A page of topics."""

    rows: list[TopicLine]


def page(rows: Sequence[R], table: Table, value: Callable[[R], Any]) -> tuple[int, list[R]]:
    """(how many match, the rows of the page). Rows without a value come last, equal ones by name."""
    wanted = table.filter.casefold()
    matched = [row for row in rows if wanted in row.name.casefold()] if wanted else [*rows]
    last = table.offset + table.limit
    known = [row for row in matched if value(row) is not None]
    unknown = sorted((row for row in matched if value(row) is None), key=lambda row: row.name)
    if isinstance(value(known[0]) if known else None, str):
        ordered = sorted(known, key=value, reverse=table.order == "desc")
    else:
        sign = -1 if table.order == "desc" else 1
        ordered = heapq.nsmallest(last, known, key=lambda row: (sign * value(row), row.name))
    return len(matched), [*ordered, *unknown][table.offset : last]


def queue_value(sort: QueueSort, now: int) -> Callable[[QueueRow], Any]:
    """The value to sort queues by."""
    if sort == "oldest":
        return lambda row: age(row, now)
    if sort in {"name", "in_rate", "out_rate"}:
        return lambda row: getattr(row, sort)
    if sort == "dead":
        return dead
    return lambda row: getattr(row.counters, sort)


def topic_value(sort: TopicSort) -> Callable[[TopicRow], Any]:
    """The value to sort topics by."""
    return (lambda row: getattr(row, sort)) if sort in {"name", "in_rate"} else lambda row: getattr(row.counters, sort)


def age(row: QueueRow, now: int) -> float | None:
    """How old the oldest unsettled message is, in seconds."""
    return None if row.oldest_at is None else max(now - row.oldest_at, 0) / SECOND


def dead(row: QueueRow) -> int:
    """Dead letters in the list of a queue; for a subscription, those that it has sent to a topic."""
    return row.counters.dead if row.counters.is_work_queue else row.counters.dead_lettered


def figures(row: QueueRow, now: int) -> Figures:
    """The numbers for the rules of the status."""
    found = row.counters
    return Figures(
        "queue" if found.is_work_queue else "subscription",
        row.name,
        found.ready,
        found.in_flight,
        found.backlog,
        dead(row),
        row.in_rate,
        row.out_rate,
        age(row, now),
        found.is_paused,
        found.is_detached,
    )


async def reasons(aio: AsyncBroker, rows: Sequence[QueueRow], now: int) -> dict[int, Why]:
    """What blocks the oldest message of each queue, by the queue's number; their ages become exact."""
    filled = {row.counters.number: row for row in rows if row.counters.backlog}
    found = await aio.call(backlog.oldest, aio.broker, [*filled]) if filled else {}
    for number, row in filled.items():
        row.oldest_at = found[number].message.publish_at if number in found else None
    return {number: why(one, filled[number], now) for number, one in found.items()}


def why(one: UnsettledMessage, row: QueueRow, now: int) -> Why:
    """What blocks a message of a queue."""
    is_taken = bool(row.counters.in_flight or row.out_rate)
    return explained(one.message_id, one.why, one.consumer, now, is_taken=is_taken)


def explained(message_id: str, found: Explanation, consumer: str | None, now: int, *, is_taken: bool) -> Why:
    """The same for an explanation; `is_taken`: consumers are active."""
    reason = found.reason or ("ready" if is_taken else "no_consumer")
    return Why(reason, kept_by(found, to_datetime(now), consumer), message_id, found.until, found.by, consumer)


def line(row: QueueRow, reason: Why | None, now: int) -> dict[str, Any]:
    """The fields that queues and subscriptions share."""
    found = row.counters
    return {
        "name": row.name,
        "oldest_seconds": _short(age(row, now)),
        "why": reason,
        "ready": found.ready,
        "priorities": found.priorities,
        "in_flight": found.in_flight,
        "delayed": found.delayed,
        "dead": dead(row),
        "backlog": found.backlog,
        "bytes": found.size,
        "in_rate": _short(row.in_rate),
        "out_rate": _short(row.out_rate),
        "consumers": found.consumers,
        "state": state_of(figures(row, now)),
    }


def topic_line(row: TopicRow) -> TopicLine:
    """A topic as a row."""
    found = row.counters
    retention = None if found.retention is None else found.retention / SECOND
    return TopicLine(
        name=row.name,
        in_rate=_short(row.in_rate),
        published=found.published,
        subscriptions=found.subscriptions,
        retention_seconds=retention,
        created_at=to_datetime(found.created_at),
    )


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


PeekLimit = Annotated[int, Meta(ge=1, le=50)]
