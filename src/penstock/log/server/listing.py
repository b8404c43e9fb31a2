"""Which streams there are, and what of them can be read."""

from __future__ import annotations

from penstock.broker.log_view import select
from penstock.log.log import EventSpan, Spans
from penstock.log.server.scope import Scope


def spans(scope: Scope, names: list[str], pattern: str | None) -> Spans:
    """The named streams, those of a pattern, or all that the caller may read."""
    return Spans(select(scope, names or None, pattern), EventSpan(*scope.event_range()))
