"""Where a message is, in words: what keeps it, or how it ended."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from penstock.cli.output import moment, printable, span

if TYPE_CHECKING:
    from penstock import Explanation
    from penstock.wire.results import TraceEvent

NOT_HERE = "not here: filtered out, published before this began, or passed over by a seek"
_DROPPED = {
    "ttl": "its time to live ran out",
    "retention": "it was older than messages are kept",
    "overflow": "there was no room for it",
    "purge": "everything was purged",
}


_DIED = {
    "explicit_nack": "a consumer rejected it",
    "max_retries_exceeded": "its retries were used up",
    "ttl_expired": "its time to live ran out",
}


def kept_by(why: Explanation, now: datetime, consumer: str | None = None) -> str:
    """What keeps an unsettled message from being delivered."""
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
    """How a message that is settled came to its end, told by its last event in that place."""
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
    return _DIED.get(reason, reason.replace("_", " ")) + error
