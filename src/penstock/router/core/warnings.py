"""Warnings for operators, kept for eight hours (specification 001, "Warning Types").

A warning that equals one of the last minute increases the count of that one, so a flood is a single entry. `Warn` is the
interface through which other parts of the router record warnings.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Final, Protocol

import msgspec

from penstock.durations import SECOND
from penstock.router.core.outcome import Severity

RETENTION: Final = 8 * 3600 * SECOND
MOST: Final = 1_000
SAME_WITHIN: Final = 60 * SECOND
MAX_TEXT: Final = 1_000
"""The length limit of a message in characters: it may quote text from outside."""


class Category(StrEnum):
    """What a warning is about."""

    CONFIG_SYNC_FAILED = "CONFIG_SYNC_FAILED"
    ROUTING = "ROUTING"
    QUEUE_FULL = "QUEUE_FULL"
    POOL_LIMIT = "POOL_LIMIT"
    PIPELINE_MAP_LEAK = "PIPELINE_MAP_LEAK"
    CONSUMER_RESTART = "CONSUMER_RESTART"
    CONSUMER_RESTART_FAILED = "CONSUMER_RESTART_FAILED"
    SHUTDOWN_CLEANUP_ERRORS = "SHUTDOWN_CLEANUP_ERRORS"
    PROCESSING = "PROCESSING"
    CONFIGURATION = "CONFIGURATION"
    QUEUE_BACKLOG = "QUEUE_BACKLOG"
    """More messages wait in a queue than should."""
    QUEUE_GROWING = "QUEUE_GROWING"
    """A queue receives more messages than are consumed."""
    QUEUE_VALIDATION = "QUEUE_VALIDATION"
    """A queue of the configuration cannot be used."""


class WarningRecord(msgspec.Struct, kw_only=True):
    """One warning. Others may read it; only `Warnings` changes it."""

    warning_id: str
    category: str
    severity: Severity
    message: str
    source: str
    first_at: int
    at: int
    """When it was last recorded."""
    count: int = 1
    is_acknowledged: bool = False


_Equal = tuple[str, str, str, str]


class Warnings:
    """The warnings of one router: the latest 1,000, none older than eight hours. All lists are newest first."""

    def __init__(self, most: int = MOST) -> None:
        self._kept: dict[str, WarningRecord] = {}
        """By id, in the order in which they were last recorded."""
        self._latest: dict[_Equal, WarningRecord] = {}
        self._most = most
        self._made = 0

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, category: str, severity: Severity, message: str, source: str, now: int) -> WarningRecord:
        """Record a warning, or count it in an equal one of the last minute that has not been acknowledged."""
        message = message if len(message) <= MAX_TEXT else f"{message[: MAX_TEXT - 1]}…"
        equal = (category, severity, message, source)
        found = self._latest.get(equal)
        if found is not None and now - found.at < SAME_WITHIN and not found.is_acknowledged:
            found.count += 1
            found.at = max(found.at, now)
            self._kept[found.warning_id] = self._kept.pop(found.warning_id)
            return found
        self._made += 1
        made = WarningRecord(
            warning_id=f"{now:x}-{self._made:x}",
            category=category,
            severity=severity,
            message=message,
            source=source,
            first_at=now,
            at=now,
        )
        self._kept[made.warning_id] = self._latest[equal] = made
        self._expire(now)
        while len(self._kept) > self._most:
            self._forget(next(iter(self._kept.values())))
        return made

    def all(self, now: int) -> list[WarningRecord]:
        return self._matching(now, lambda _: True)

    def unacknowledged(self, now: int) -> list[WarningRecord]:
        return self._matching(now, lambda warning: not warning.is_acknowledged)

    def by_severity(self, severity: Severity, now: int) -> list[WarningRecord]:
        """The warnings of exactly this severity."""
        return self._matching(now, lambda warning: warning.severity is severity)

    def active(self, span: int, now: int) -> list[WarningRecord]:
        """Unacknowledged warnings that were last recorded within this span."""
        return self._matching(now, lambda warning: not warning.is_acknowledged and now - warning.at <= span)

    def acknowledge(self, warning_id: str) -> bool:
        """Mark a warning as seen by an operator; False if it does not exist."""
        found = self._kept.get(warning_id)
        if found is None:
            return False
        found.is_acknowledged = True
        return True

    def acknowledge_all(self) -> int:
        """Mark all warnings as seen; returns how many were not marked before."""
        fresh = [warning for warning in self._kept.values() if not warning.is_acknowledged]
        for warning in fresh:
            warning.is_acknowledged = True
        return len(fresh)

    def clear(self) -> int:
        count = len(self._kept)
        self._kept.clear()
        self._latest.clear()
        return count

    def clear_older(self, hours: float, now: int) -> int:
        """Forget warnings that were last recorded more than `hours` ago; returns how many."""
        return self._forget_until(now - round(hours * 3600 * SECOND))

    def _matching(self, now: int, wanted: Callable[[WarningRecord], bool]) -> list[WarningRecord]:
        self._expire(now)
        return [warning for warning in reversed(self._kept.values()) if wanted(warning)]

    def _expire(self, now: int) -> None:
        self._forget_until(now - RETENTION)

    def _forget_until(self, instant: int) -> int:
        """Forget warnings last recorded at this instant or before. They are in that order, unless the clock was set back."""
        before = len(self._kept)
        while self._kept:
            oldest = next(iter(self._kept.values()))
            if oldest.at > instant:
                break
            self._forget(oldest)
        return before - len(self._kept)

    def _forget(self, warning: WarningRecord) -> None:
        del self._kept[warning.warning_id]
        equal = (warning.category, warning.severity, warning.message, warning.source)
        if self._latest.get(equal) is warning:
            del self._latest[equal]


class Warn(Protocol):
    """Records a warning; never waits, never fails. The caller passes no secrets."""

    def __call__(self, category: str, severity: Severity, message: str, /) -> None:
        """Record the category, such as `CONFIG_SYNC_FAILED`, the severity, and what happened."""
