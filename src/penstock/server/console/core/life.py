"""The life of one message: its events in lanes, one for each queue or subscription, and a verdict over all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Literal, NamedTuple

import msgspec

from penstock.values.subscription import Explanation
from penstock.values.wording import count, span
from penstock.wire.reasons import details, ended_by, kept_by
from penstock.wire.results import TraceEvent

LaneState = Literal["waiting", "leased", "delayed", "paused", "dead", "done", "gone", "unknown"]
SegmentKind = Literal["waiting", "leased", "delayed", "dead"]
MIN_FOLD = 3
"""Equal events in a row that are folded."""

_RETURNED = frozenset({"nacked", "expired", "released"})
_ENDS = frozenset({"acked", "dropped", "evicted", "purged"})
_LEVELS: dict[LaneState, str] = {
    "dead": "bad",
    "delayed": "warn",
    "paused": "warn",
    "waiting": "warn",
    "leased": "ok",
    "done": "ok",
    "gone": "warn",
    "unknown": "warn",
}
_FIRST: tuple[LaneState, ...] = ("dead", "paused", "delayed", "waiting", "leased", "gone", "done", "unknown")
"""The order of lanes for a verdict: the one that needs attention first."""


class Segment(msgspec.Struct):
    """A part of a lane; without an end it still lasts."""

    kind: SegmentKind
    from_at: datetime
    to_at: datetime | None = None


class Tick(msgspec.Struct):
    """An attempt of a router."""

    at: datetime
    status: int | None
    level: str


class Lane(msgspec.Struct, kw_only=True):
    """What happened to the message in one queue or subscription."""

    kind: str
    name: str
    state: LaneState
    text: str
    is_ended: bool
    attempts: int
    until_at: datetime | None = None
    by: str | None = None
    consumer: str | None = None
    segments: list[Segment] = []
    ticks: list[Tick] = []


class LifeEvent(msgspec.Struct, kw_only=True):
    """One event."""

    at: datetime
    after_seconds: float | None
    kind: str
    lane: int | None
    where: str | None
    attempt: int | None
    who: str | None
    detail: dict[str, str]
    text: str


class Fold(msgspec.Struct):
    """A run of events that is shown as one line."""

    first: int
    count: int
    text: str


class SuggestedAction(msgspec.Struct):
    """The most useful action."""

    kind: str
    text: str
    message_id: str | None = None
    queue: str | None = None
    subscription: str | None = None


class Verdict(msgspec.Struct):
    """Where the message is, in one line."""

    state: LaneState
    level: str
    text: str
    action: SuggestedAction | None = None


class Where(NamedTuple):
    """A queue or subscription that the message is, was or could be in, and what it waits for there."""

    kind: str
    name: str
    why: Explanation | None


def ordered(events: Sequence[TraceEvent]) -> list[TraceEvent]:
    """By time: a router's attempt is logged a moment after it happened."""
    return sorted(events, key=lambda one: one.at)


def lanes(events: Sequence[TraceEvent], places: Sequence[Where], now: datetime) -> list[Lane]:
    """One lane for each place, in their order."""
    published = next((one.at for one in events if one.kind == "published"), None)
    return [_lane(place, [one for one in events if where_of(one) == place.name], published, now) for place in places]


def where_of(event: TraceEvent) -> str | None:
    """The lane of an event: a queue or subscription, or the queue of another server's router."""
    return event.subscription or (event.detail.get("queue") if event.kind == "attempted" else None)


def _lane(place: Where, events: Sequence[TraceEvent], published: datetime | None, now: datetime) -> Lane:
    fates = [one for one in events if one.kind != "attempted"]
    last = fates[-1] if fates else None
    attempts = max((one.attempt or 0 for one in events), default=0)
    ticks = [_tick(one) for one in events if one.kind == "attempted"]
    if place.kind == "router":
        text = f"tried {count(len(ticks), 'time')} by the router"
        return Lane(kind="router", name=place.name, state="unknown", text=text, is_ended=False, attempts=len(ticks), ticks=ticks)
    holder = last.consumer if last is not None and last.kind == "leased" else None
    state = _state(place.why, last)
    segments = [*_segments(fates, published if fates or place.why is not None else None)]
    if place.why is None:
        # Nothing else ends without an event of its own: only a seek or a purge of everything.
        if segments and segments[-1].to_at is None and state != "dead":
            segments[-1].to_at = last.at if last is not None else segments[-1].from_at
        text = ended_by(last)
        return Lane(
            kind=place.kind,
            name=place.name,
            state=state,
            text=text,
            is_ended=True,
            attempts=attempts,
            segments=segments,
            ticks=ticks,
        )
    if segments and segments[-1].kind == "waiting" and state == "delayed":
        segments[-1].kind = "delayed"
    return Lane(
        kind=place.kind,
        name=place.name,
        state=state,
        text=kept_by(place.why, now, holder),
        is_ended=False,
        attempts=attempts,
        until_at=place.why.until,
        by=place.why.by,
        consumer=holder,
        segments=segments,
        ticks=ticks,
    )


def _state(why: Explanation | None, last: TraceEvent | None) -> LaneState:
    if why is not None:
        known: dict[str | None, LaneState] = {"leased": "leased", "delayed": "delayed", "paused": "paused"}
        return known.get(why.reason, "waiting")
    match last.kind if last is not None else None:
        case "acked":
            return "done"
        case "dead_lettered":
            return "dead"
        case None:
            return "unknown"
        case _:
            return "gone"


def _segments(events: Sequence[TraceEvent], published: datetime | None) -> Iterator[Segment]:
    """Waiting, leased, delayed, dead, one after the other."""
    current = Segment("waiting", published) if published is not None else None
    for one in events:
        if one.kind in {"extended", "stranded"}:
            continue
        following = _after(one)
        if following is None and one.kind not in _ENDS:
            continue
        if current is not None:
            if current.kind == "delayed" and current.to_at is not None and current.to_at < one.at:
                yield current
                current = Segment("waiting", current.to_at)
            current.to_at = one.at
            yield current
        current = following
    if current is not None:
        yield current


def _after(event: TraceEvent) -> Segment | None:
    """The segment that starts with an event; None if one ends, or nothing changes."""
    if event.kind == "leased":
        return Segment("leased", event.at)
    if event.kind in _RETURNED:
        due = datetime.fromisoformat(event.detail["due"]) if "due" in event.detail else event.at
        return Segment("delayed", event.at, due) if due > event.at else Segment("waiting", event.at)
    if event.kind == "redriven":
        return Segment("waiting", event.at)
    return Segment("dead", event.at) if event.kind == "dead_lettered" else None


def _tick(event: TraceEvent) -> Tick:
    status = event.detail.get("status", "")
    number = int(status) if status.isdecimal() and status != "0" else None
    return Tick(event.at, number, "ok" if number is not None and 200 <= number < 300 else "bad")


def life_events(events: Sequence[TraceEvent], found: Sequence[Lane]) -> list[LifeEvent]:
    """The events as rows of a table."""
    index = {lane.name: number for number, lane in enumerate(found)}
    rows = []
    before: datetime | None = None
    for one in events:
        after = None if before is None else round((one.at - before).total_seconds(), 6)
        where = where_of(one)
        lane = None if where is None else index.get(where)
        rows.append(
            LifeEvent(
                at=one.at,
                after_seconds=after,
                kind=one.kind,
                lane=lane,
                where=where,
                attempt=one.attempt,
                who=one.consumer,
                detail=one.detail,
                text=", ".join(details(one)),
            )
        )
        before = one.at
    return rows


def folds(events: Sequence[LifeEvent]) -> list[Fold]:
    """Runs of equal events in the same lane; attempts are equal if their status is."""
    found = []
    first = 0
    for index in range(1, len(events) + 1):
        if index < len(events) and _sameness(events[index]) == _sameness(events[first]):
            continue
        if index - first >= MIN_FOLD:
            found.append(Fold(first, index - first, _folded(events[first], index - first)))
        first = index
    return found


def _sameness(event: LifeEvent) -> tuple[object, ...]:
    return event.kind, event.lane, event.detail.get("status"), event.detail.get("error")


def _folded(event: LifeEvent, number: int) -> str:
    what = event.detail.get("status")
    error = event.detail.get("error")
    suffix = f", all {what}" if what else ""
    return f"{event.kind} × {number:,}{suffix}" + (f": {error}" if error else "")


def verdict(found: Sequence[Lane], events: Sequence[TraceEvent], key: str = "") -> Verdict:
    """Where the message is, in one line, and what to do about it."""
    if not found:
        return Verdict("unknown", "warn", "No queue and no subscription has it")
    lane = min(found, key=lambda one: _FIRST.index(one.state))
    if all(one.state == "done" for one in found) and events:
        seconds = (max(one.at for one in events if one.kind == "acked") - events[0].at).total_seconds()
        everywhere = f" in all {len(found)} subscriptions" if len(found) > 1 else f" in {lane.name}"
        return Verdict("done", "ok", f"Done{everywhere}, {span(seconds)} after it was published")
    text = _verdict_text(lane, events, key)
    done = sum(one.state == "done" for one in found)
    if done and len(found) > 1:
        text += f". Done in {done} of {len(found)}"
    return Verdict(lane.state, _LEVELS[lane.state], text, _action(lane))


def _verdict_text(lane: Lane, events: Sequence[TraceEvent], key: str) -> str:
    match lane.state:
        case "dead":
            letter = next((one for one in reversed(events) if one.kind == "dead_lettered" and where_of(one) == lane.name), None)
            detail: Mapping[str, str] = letter.detail if letter is not None else {}
            why = detail.get("error") or detail.get("reason", "").replace("_", " ")
            return f"Dead in {lane.name} after {count(lane.attempts, 'attempt')}" + (f": {why}" if why else "")
        case "waiting" if lane.by is not None:
            return f"Waiting in {lane.name}: behind message {lane.by}" + (f" of key {key}" if key else "")
        case "waiting" | "paused":
            return f"Waiting in {lane.name}: {lane.text.removeprefix('waits: ').removeprefix('ready: ')}"
        case "delayed":
            return f"Delayed in {lane.name}: {lane.text.removeprefix('delayed ')}"
        case "leased":
            return f"In progress in {lane.name}: {lane.text}"
        case "unknown" if lane.kind == "router":
            return f"Known only to the router: {lane.text}"
        case _:
            return f"Gone from {lane.name}: {lane.text.removeprefix('gone: ')}"


def _action(lane: Lane) -> SuggestedAction | None:
    place = {"queue": lane.name} if lane.kind == "queue" else {"subscription": lane.name}
    match lane.state:
        case "dead" if lane.kind == "queue":
            return SuggestedAction("redrive", "Redrive", **place)
        case "paused":
            return SuggestedAction("resume", f"Resume {lane.name}", **place)
        case "waiting" if lane.by is not None:
            return SuggestedAction("open", "Open blocker", message_id=lane.by)
        case _:
            return None
