"""Which streams there are, and what of them can be read."""

from __future__ import annotations

from penstock.broker.log import select
from penstock.doors.log.scope import Scope
from penstock.log.log import EventSpan, Spans


def spans(scope: Scope, names: list[str], pattern: str | None) -> Spans:
    """The named streams, those of a pattern, or all that the caller may read."""
    return Spans(select(scope, names or None, pattern), EventSpan(*scope.event_range()))
