"""The copy of a message that ActiveMQ's scheduler keeps until it is due: what is written into it, and read from it again."""

from __future__ import annotations

from typing import Final

from penstock.durations import SECOND
from penstock.router.core.message import Received
from penstock.router.core.outcome import MAX_DELAY
from penstock.router.sources.stomp_frames import escape, headers, unescape

MARK: Final = "\npenstock-"
"""Is in the head of every copy."""
ID: Final = "penstock-id"
"""The message's id before it was copied."""
_COUNT: Final = "penstock-count"
_DUE: Final = "penstock-due"
"""When it may be handed out, in microseconds since 1970."""
_SCHEDULED: Final = "scheduledJobId"
"""What the server's scheduler adds; a message that has it is not scheduled again, so no copy may keep it."""
_NOT_COPIED: Final = {
    *("ack", "content-length", "destination", "message-id", "receipt", "redelivered", "subscription", "timestamp", "transaction"),
    *(ID, _COUNT, _DUE, _SCHEDULED, "persistent", "AMQ_SCHEDULED_DELAY"),
}


def copied(received: Received, head: str, due: int, now: int) -> dict[str, str]:
    """The headers of a copy: those of the message, and ours."""
    original = headers(head)
    fields = {name: value for name, value in original.items() if name not in _NOT_COPIED}
    if "content-length" in original:  # one without is text, and stays so
        fields["content-length"] = str(len(received.body))
    return fields | {
        "persistent": "true",
        "AMQ_SCHEDULED_DELAY": str(max(due - now, 0) // 1000),
        ID: escape(received.broker_id),
        _COUNT: str(received.count),
        _DUE: str(due),
    }


def recognize(received: Received, head: str, now: int) -> int:
    """Give a copy the id and the count of its message. Returns when it is due if nobody scheduled it; 0 otherwise."""
    found = headers(head)
    if original := found.get(ID):
        received.broker_id = unescape(original)
    received.count += _number(found, _COUNT, 1) - 1
    return 0 if _SCHEDULED in found else min(_number(found, _DUE, 0), now + MAX_DELAY * SECOND)


def _number(found: dict[str, str], name: str, otherwise: int) -> int:
    """The number in a header that anybody may have written."""
    text = found.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else otherwise
