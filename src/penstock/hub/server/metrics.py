"""The hub's numbers for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

from penstock.http.monitoring.samples import Metric, Sample
from penstock.hub.core.close_codes import CLOSES, SLOW_READER
from penstock.hub.core.hub import Hub
from penstock.hub.core.metrics import GONE
from penstock.hub.core.refusal import Code
from penstock.hub.feed import Feed

_REASONS = (GONE, *(close.reason for close in CLOSES))
_CODES: tuple[str, ...] = get_args(Code)


def _metric(name: str, help_: str, *labels: str) -> Metric:
    return Metric(f"penstock_hub_{name}", "counter" if name.endswith("_total") else "gauge", help_, labels)


_CONNECTIONS = _metric("connections", "Open connections.")
_ACTORS = _metric("actors", "Registered actors.")
_TOPICS = _metric("topics", "Topics and patterns that somebody connected subscribes to.")
_OPENED = _metric("connections_opened_total", "Connections that were made.")
_CLOSED = _metric("connections_closed_total", "Connections that ended, by why; gone: the client went without a word.", "reason")
_REFUSED = _metric("connections_refused_total", "Connections beyond what one address may have.")
_SLOW = _metric("slow_readers_total", "Connections that were ended because their client did not read.")
_RECEIVED = _metric("messages_received_total", "Frames that clients sent.")
_SENT = _metric("messages_sent_total", "Frames for clients: replies, and messages once for each subscriber.")
_ERRORS = _metric("errors_total", "Requests that were answered by hub:error, by code.", "code")
_RECOVERIES = _metric("recoveries_total", "Subscriptions with a position, by whether all they missed was sent.", "recovered")
_OVERSIZED = _metric("messages_oversized_total", "Messages of services that were too large to be forwarded.")
_MISSED = _metric("messages_missed_total", "Messages that left their log before they could be forwarded.")


def hub_samples(hub: Hub, feed: Feed | None, *, refused: int) -> Iterator[Sample]:
    """The numbers of a hub and of its logs. `refused` are connections that the door did not let in."""
    numbers, floor = hub.numbers, hub.floor
    yield Sample(_CONNECTIONS, (), len(floor.sessions))
    yield Sample(_ACTORS, (), len(floor.registry))
    yield Sample(_TOPICS, (), len(floor.table))
    yield Sample(_OPENED, (), numbers.opened)
    for reason in _REASONS:
        yield Sample(_CLOSED, (reason,), numbers.closed[reason])
    yield Sample(_REFUSED, (), refused)
    yield Sample(_SLOW, (), numbers.closed[SLOW_READER.reason])
    yield Sample(_RECEIVED, (), numbers.received)
    yield Sample(_SENT, (), numbers.sent)
    for code in _CODES:
        yield Sample(_ERRORS, (code,), numbers.errors[code])
    yield Sample(_RECOVERIES, ("true",), numbers.recovered)
    yield Sample(_RECOVERIES, ("false",), numbers.unrecovered)
    yield Sample(_OVERSIZED, (), 0 if feed is None else feed.oversized)
    yield Sample(_MISSED, (), 0 if feed is None else feed.missed)
