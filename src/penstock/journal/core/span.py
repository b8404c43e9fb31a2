"""What there is of a stream, and what it is called where all streams stand side by side."""

from __future__ import annotations

import msgspec

from penstock.journal.core.checkpoint import QUEUE, TOPIC

EVENTS = "_penstock.events"
"""What stands for the event log where a stream's name is expected: in offsets and cursors."""


class StreamSpan(msgspec.Struct, frozen=True):
    """What there is of a stream: the offsets from `earliest` up to, not including, `latest`."""

    stream: str
    """Its name in the log: a topic's as it is, `queue:NAME` for a work queue."""
    number: int
    earliest: int
    latest: int
    published_at: int
    """When the last message was published, in microseconds; 0 when there was none."""


def stream_name(kind: str, name: str) -> str:
    """The name of a stream in the log: one for each, though a topic and a work queue may have the same."""
    return name if kind == TOPIC and not name.startswith((f"{TOPIC}:", f"{QUEUE}:")) else f"{kind}:{name}"
