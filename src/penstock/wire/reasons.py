"""Where a message is, as text: what it waits for, how it ended, and what to do about a backlog."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from penstock.durations import SECOND
from penstock.values.queue import EXPLICIT_NACK, MAX_RETRIES_EXCEEDED, TTL_EXPIRED
from penstock.values.subscription import Explanation
from penstock.values.wording import moment, printable, span
from penstock.wire.results import TraceEvent, Unsettled

NOT_HERE = "not here: filtered out, published before this began, or passed over by a seek"
_DROPPED = {
    "ttl": "its time to live ran out",
    "retention": "it was older than messages are kept",
    "overflow": "there was no room for it",
    "purge": "everything was purged",
}


_DIED = {
    EXPLICIT_NACK: "a consumer rejected it",
    MAX_RETRIES_EXCEEDED: "its retries were used up",
    TTL_EXPIRED: "its time to live ran out",
}


@dataclass(frozen=True, slots=True)
class State:
    """A subscription or work queue in numbers: what both have."""

    ready: int
    delayed: int
    in_flight: int
    backlog: int
    backlog_bytes: int
    oldest_age: float
    delivered: int
    acked: int
    nacked: int
    expired: int
    dead: int
    discarded: int
    unburied: int = 0
    """How often a message could not be dead-lettered, because no subscription would have received it."""


def kept_by(why: Explanation, now: datetime, consumer: str | None = None) -> str:
    """Why an unsettled message is not delivered."""
    until = f" until {moment(why.until)} (in {span((why.until - now).total_seconds())})" if why.until is not None else ""
    match why.reason:
        case "leased":
            return f"held by {printable(consumer)}{until}" if consumer else f"held by a consumer{until}"
        case "key_blocked":
            return f"waits behind message {why.by} of the same ordering key" if why.by else "waits behind its ordering key"
        case "delayed":
            return f"delayed{until}"
        case "paused":
            return "waits: deliveries are paused"
        case "flow_limit":
            return "waits: consumers hold as much as the flow limit allows"
        case None:
            return "ready: waits for a consumer to take it"
        case other:
            return other


def ended_by(last: TraceEvent | None) -> str:
    """How a message was settled in a place, by its last event there."""
    if last is None:
        return NOT_HERE
    at, detail = moment(last.at), {key: printable(value) for key, value in last.detail.items()}
    match last.kind:
        case "acked":
            return f"done: acked at {at}"
        case "dead_lettered":
            where = f"topic {detail['target']}" if "target" in detail else "the dead letters of the queue"
            return f"dead: moved to {where} at {at}, because {_reason(detail)}"
        case "dropped":
            return f"gone: dropped at {at}, because {_DROPPED.get(detail.get('why', ''), detail.get('why', '?'))}"
        case "evicted" | "purged":
            return f"gone: {last.kind} from the dead letters at {at}; it stays in the log"
        case kind:
            return f"settled after {printable(kind)} at {at}, by a seek or a purge"


def _reason(detail: dict[str, str]) -> str:
    error = f" ({detail['error']})" if detail.get("error") else ""
    reason = detail.get("reason", "?")
    return died_of(reason) + error


def details(event: TraceEvent) -> Iterator[str]:
    """The details of an event. Times are shown relative to the event."""
    for key, value in event.detail.items():
        if key == "duration" and value.isdecimal():
            yield f"took {span(int(value) / SECOND)}"
        elif key not in {"deadline", "due"}:
            yield f"{key}: {value}"
        elif (later := (datetime.fromisoformat(value) - event.at).total_seconds()) > 0:
            yield f"{'for' if key == 'deadline' else 'again after'} {span(later)}"


def died_of(reason: str) -> str:
    return _DIED.get(reason, reason.replace("_", " "))


def advice(name: str, state: State, oldest: Sequence[Unsettled], *, is_queue: bool = False) -> Iterator[str]:
    """What to do about a backlog, most likely causes first."""
    reasons: dict[str | None, list[Unsettled]] = defaultdict(list)
    for one in oldest:
        reasons[one.explanation.reason].append(one)
    kind = "queue" if is_queue else "subscription"
    if reasons["paused"]:
        yield f"deliveries are paused: penstock {kind} resume {name}"
    if reasons[None] and not state.in_flight:
        follow = f"penstock queue consume {name}" if is_queue else f"penstock pull {name} --follow"
        yield f"no consumer takes messages: start one, or receive them here: {follow}"
    elif reasons[None]:
        yield "messages arrive faster than consumers take them: add consumers, or let each hold more (flow control)"
    if reasons["flow_limit"]:
        yield "consumers hold as much as the flow limit allows: let them settle faster, or raise the limit"
    blockers = list(dict.fromkeys(one.explanation.by for one in reasons["key_blocked"] if one.explanation.by is not None))
    if blockers:
        more = f", and {len(blockers) - 1:,} more" if len(blockers) > 1 else ""
        yield f"an ordering key waits for its first message: see penstock trace {blockers[0]}{more}"
    if delayed := [one for one in reasons["delayed"] if one.delivery_attempt]:
        yield f"failed messages wait for their next try: see why with penstock trace {delayed[0].message_id}"
    if state.expired > max(10, state.acked // 10):
        yield "many deliveries are not settled in time: ask for a longer ack deadline, or let consumers hold fewer"
    if state.unburied:
        yield "messages could not be dead-lettered: create the dead-letter topic, with a subscription"
