"""The state of each queue and of the whole: a word for each row, what needs attention, and one sentence for everything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal
from urllib.parse import quote

import msgspec

from penstock.values.wording import count, octets, span

Level = Literal["ok", "warn", "bad"]
State = Literal["paused", "stuck", "growing", "busy", "empty", "detached"]

STUCK_SECONDS = 10.0
"""A ready message that waits for this long means more than a worker between two polls."""
BAD_SECONDS = 600.0
GROWING_SECONDS = 10.0
GROWING_RATE = 0.5
"""Messages a second that arrive beyond those that leave, before a queue counts as growing."""
LAG_SECONDS = 0.5
MAX_ATTENTION = 50
_LOW_DISK, _NO_DISK = 0.05, 0.01


class Figures(msgspec.Struct, frozen=True):
    """The numbers of a queue or subscription."""

    kind: Literal["queue", "subscription"]
    name: str
    ready: int
    in_flight: int
    backlog: int
    dead: int
    in_rate: float | None
    out_rate: float | None
    oldest_seconds: float | None
    is_paused: bool = False
    is_detached: bool = False


class Attention(msgspec.Struct, frozen=True):
    """A problem that needs attention. `link` is its page."""

    level: Level
    kind: str
    name: str
    text: str
    link: str


class Status(msgspec.Struct, frozen=True):
    """The whole in one sentence."""

    level: Level
    text: str


class ServerFigures(msgspec.Struct, frozen=True):
    """The numbers of the server itself."""

    problem: str | None = None
    disk_free_bytes: int | None = None
    disk_total_bytes: int | None = None
    loop_lag_seconds: float = 0.0
    open_breakers: Sequence[str] = ()
    silent_cursors: Sequence[tuple[str, float]] = ()
    """Cursors that hold messages in the log, with the seconds since they were set."""


def state_of(row: Figures) -> State:
    """One word for a row."""
    if row.is_detached:
        return "detached"
    if row.is_paused:
        return "paused"
    if not row.backlog:
        return "empty"
    oldest, out = row.oldest_seconds or 0.0, row.out_rate or 0.0
    if row.ready and not row.in_flight and not out and oldest >= STUCK_SECONDS:
        return "stuck"
    gain = (row.in_rate or 0.0) - out
    if gain > max(GROWING_RATE, out / 10) and oldest >= GROWING_SECONDS:
        return "growing"
    return "busy"


def attention(rows: Iterable[Figures], server: ServerFigures) -> list[Attention]:
    """What needs attention, worst first, at most `MAX_ATTENTION`."""
    found = [(_urgency(one), -(age or 0.0), one) for one, age in [*_of_server(server), *_of_rows(rows)]]
    return [one for _, _, one in sorted(found, key=lambda item: item[:2])[:MAX_ATTENTION]]


def _urgency(one: Attention) -> int:
    return {"bad": 0, "warn": 1, "ok": 2}[one.level]


def _of_server(server: ServerFigures) -> Iterator[tuple[Attention, float | None]]:
    if server.problem is not None:
        text = f"the journal cannot write: {server.problem}"
        yield Attention("bad", "journal", "", text, "/console/settings"), float("inf")
    free, total = server.disk_free_bytes, server.disk_total_bytes
    if free is not None and total and free < _LOW_DISK * total:
        level: Level = "bad" if free < _NO_DISK * total else "warn"
        yield Attention(level, "disk", "", f"{octets(free)} of the disk are free", "/console/settings"), float("inf")
    if server.loop_lag_seconds > LAG_SECONDS:
        text = f"the server answers {span(server.loop_lag_seconds)} late: it is overloaded"
        yield Attention("warn", "server", "", text, "/console/overview"), None
    for name in server.open_breakers:
        yield Attention("bad", "breaker", name, "its breaker is open: no calls are made", "/console/router"), None
    for name, seconds in server.silent_cursors:
        text = f"cursor {name} holds the log, and was not set for {span(seconds)}"
        yield Attention("warn", "cursor", name, text, "/console/pipeline"), seconds


def _of_rows(rows: Iterable[Figures]) -> Iterator[tuple[Attention, float | None]]:
    for row in rows:
        link = f"/console/{row.kind}s/{quote(row.name, safe='')}"
        oldest = row.oldest_seconds or 0.0
        waiting = f"{count(row.ready, 'message')} wait{'s' if row.ready == 1 else ''}, the oldest for {span(oldest)}"
        match state_of(row):
            case "stuck":
                level: Level = "bad" if oldest >= BAD_SECONDS else "warn"
                yield Attention(level, row.kind, row.name, f"no consumer: {waiting}", link), oldest
            case "paused" if row.backlog:
                yield Attention("warn", row.kind, row.name, f"paused: {waiting}", link), oldest
            case "growing":
                gain = (row.in_rate or 0.0) - (row.out_rate or 0.0)
                text = f"grows by {gain:.1f} messages a second: {waiting}"
                yield Attention("warn", row.kind, row.name, text, link), oldest
        if row.dead and row.kind == "queue":
            link = f"/console/dead?source={quote(f'queue:{row.name}', safe='')}"
            yield Attention("warn", "dead", row.name, count(row.dead, "dead letter"), link), None


def status(rows: Sequence[Figures], found: Sequence[Attention], total: int) -> Status:
    """The sentence at the top. `rows` may omit empty queues; `total` counts them too."""
    states = Counter((row.kind, state_of(row)) for row in rows if row.backlog)
    parts = [one.text for one in found if one.kind in {"journal", "disk"}]
    for kind in ("queue", "subscription"):
        parts += [
            _some(states[kind, "stuck"], kind, "has no consumer", "have no consumer"),
            _some(states[kind, "growing"], kind, "grows", "grow"),
            _some(states[kind, "paused"], kind, "is paused", "are paused"),
        ]
    parts.append(_some(sum(one.kind == "breaker" for one in found), "breaker", "is open", "are open"))
    parts.append(_some(sum(one.kind == "cursor" for one in found), "silent cursor", "holds the log", "hold the log"))
    dead = sum(row.dead for row in rows if row.kind == "queue")
    parts.append(count(dead, "dead letter") if dead else "")
    level: Level = "bad" if any(one.level == "bad" for one in found) else "warn" if found else "ok"
    shown = ", ".join(part for part in parts if part)
    if level != "ok":
        return Status(level, f"{'Failing' if level == 'bad' else 'Degraded'}: {shown or found[0].text}")
    if not total:
        return Status("ok", "Healthy: there are no queues and subscriptions yet")
    return Status("ok", "Healthy: every queue and subscription is empty or being consumed")


def _some(number: int, noun: str, singular: str, plural: str) -> str:
    return f"{count(number, noun)} {singular if number == 1 else plural}" if number else ""
