"""The types of the commands' arguments: functions of the text, for argparse's `type`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import penstock
from penstock.durations import SECOND, duration_seconds, micros
from penstock.errors import InvalidArgument

T = TypeVar("T")


def whole(minimum: int, maximum: int = 10**12) -> Callable[[str], int]:
    """A whole number within bounds."""
    limit = f", {minimum} or more" if maximum == 10**12 else f" from {minimum} to {maximum}"

    def read(text: str) -> int:
        if not (text.isascii() and text.isdecimal() and len(text) <= 15 and minimum <= int(text) <= maximum):
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number{limit}")
        return int(text)

    return read


def duration(text: str) -> float:
    """A duration: 90, 1.5, 500ms, 30s, 5m, 2h, 30d."""
    try:
        return duration_seconds(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration: seconds, or as in 500ms, 30s, 5m, 2h, 30d") from None


def optional(kind: Callable[[str], T]) -> Callable[[str], T | None]:
    """The value of `kind`, or None for `none`."""
    return lambda text: None if text == "none" else kind(text)


def size(text: str) -> int:
    """A size in bytes: 65536, 10MB, 64KiB."""
    from penstock.config.values import size_bytes  # noqa: PLC0415  # few commands need it, and it takes its time

    try:
        return size_bytes(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size: bytes, or as in 10MB, 64KiB") from None


def instant(text: str) -> datetime:
    """A date and time in ISO 8601; without a zone it is UTC."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 2026-01-31T12:00:00Z") from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def pair(text: str) -> tuple[str, str]:
    """(name, value) of `name=value`."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not name=value")
    return name, value


def add_backoff(parser: argparse.ArgumentParser) -> None:
    """The flags of a retry policy."""
    parser.add_argument(
        "--min-backoff", type=duration, metavar="DURATION", help="the delay before a failed message is first redelivered"
    )
    parser.add_argument(
        "--max-backoff", type=duration, metavar="DURATION", help="the longest such delay; each is twice the one before"
    )


def retry_policy(found: argparse.Namespace, there: penstock.RetryPolicy | None = None) -> penstock.RetryPolicy | None:
    """The policy of these flags; None if neither is given.

    A single flag changes only its half of the existing policy or of the default; the other half is adjusted if it would
    contradict.
    """
    low, high = found.min_backoff, found.max_backoff
    if low is None and high is None:
        return None
    there = there or penstock.RetryPolicy()
    if low is None:
        low = min(_seconds(there.minimum_backoff), high)
    return penstock.RetryPolicy(low, max(_seconds(there.maximum_backoff), low) if high is None else high)


def _seconds(backoff: float | timedelta) -> float:
    return micros(backoff, "backoff") / SECOND


def add_removal(parser: argparse.ArgumentParser, flag: str, effect: str) -> None:
    """A flag of an update that removes a setting."""
    parser.add_argument(flag, action="store_true", help=effect)


def check_changes(changes: Mapping[str, object], command: str) -> None:
    """InvalidArgument for an update without changes; the broker's own error has the names of the client's options."""
    if not changes:
        raise InvalidArgument("no change is given", hint=f"`penstock {command} --help` lists the flags")


def check_removal(found: argparse.Namespace, removal: str, *others: str) -> None:
    """InvalidArgument if a setting is both removed and given."""
    for other in others:
        if getattr(found, removal) and getattr(found, other) is not None:
            removed, given = (f"--{name.replace('_', '-')}" for name in (removal, other))
            raise InvalidArgument(f"{removed} and {given} are both given", hint="leave one of them out")
