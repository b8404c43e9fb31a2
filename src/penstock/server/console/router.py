"""The page of the router."""

from __future__ import annotations

from penstock.router.core.circuit import State
from penstock.router.monitoring.view import RouterView


def open_breakers(view: RouterView) -> list[str]:
    """The targets to which nothing is sent."""
    return [breaker.name for breaker in view.snapshot().breakers if breaker.state == State.OPEN]
