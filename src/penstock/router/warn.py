"""How a part of the router warns its operator: the port behind which the router keeps its warnings."""

from __future__ import annotations

from typing import Protocol

from penstock.router.core.outcome import Severity


class Warn(Protocol):
    """Takes a warning; never waits, never fails. Secrets are not among what it is told."""

    def __call__(self, category: str, severity: Severity, message: str, /) -> None:
        """The warning's kind, such as `CONFIG_SYNC_FAILED`, how bad it is, and what happened."""
