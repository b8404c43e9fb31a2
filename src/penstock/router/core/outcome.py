"""The outcome of a call, and what follows from it: one table (specification 001, "Response Handling" and "Outcome Handling").

    answer or failure ──judge──> Outcome ──┬── delivered      ack at the source
                                           ├── undeliverable  kept as a dead letter, then ack
                                           └── again          retried after a delay

A retryable outcome may be retried at once, inside the same attempt (1 s, 2 s, 3 s); what `again` means after that depends on the
order of the pool (see `pool`). A permanent failure always warns; a retry never does.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

import msgspec

from penstock.durations import SECOND
from penstock.http.client.transport import Answer, Failure, FailureKind

DEFAULT_DELAY: Final = 30
"""Seconds until a message is redelivered, unless the target asks for another delay."""
FAST_DELAY: Final = 10
"""The same for a message that was not tried because an earlier one of its group had failed."""
MAX_DELAY: Final = 43_200
TRIES: Final = 3
"""Calls in one attempt."""


class Result(StrEnum):
    """The specification's results."""

    SUCCESS = "SUCCESS"
    ERROR_PROCESS = "ERROR_PROCESS"
    ERROR_CONFIG = "ERROR_CONFIG"
    ERROR_CONNECTION = "ERROR_CONNECTION"


class Disposition(StrEnum):
    """What to do with the message."""

    DELIVERED = "delivered"
    UNDELIVERABLE = "undeliverable"
    AGAIN = "again"


class Health(StrEnum):
    """What a call says about its target."""

    UP = "up"
    DOWN = "down"
    UNKNOWN = "unknown"


class Metric(StrEnum):
    """How a pool counts it."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TRANSIENT = "transient"
    THROTTLED = "throttled"
    NONE = "none"


class Severity(StrEnum):
    """The severity of a warning."""

    INFO = "INFO"
    WARN = "WARN"
    ERROR = "ERROR"
    CRITICAL = "CRITICAL"


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """The outcome of a call."""

    result: Result
    disposition: Disposition
    health: Health
    metric: Metric
    status: int = 0
    """0 if there was no answer."""
    delay: int = 0
    """Seconds that the target asked for; 0 if it did not."""
    is_retryable: bool = False
    """Whether the same attempt may call again."""
    is_deferral: bool = False
    """Whether the target, or its breaker, only asks for a later attempt: that does not count towards `max_attempts`."""
    is_pause: bool = False
    """Whether the target asks for no calls at all during `delay`."""
    warning: Severity | None = None
    error: str = ""

    @property
    def effective_delay(self) -> int:
        """Seconds until the message is retried."""
        return min(max(self.delay, 1), MAX_DELAY) if self.delay else DEFAULT_DELAY


class _Reply(msgspec.Struct, rename="camel"):
    """The fields of an answer that are used. Others are ignored."""

    ack: bool | None = None
    delay_seconds: Any = None  # a target that sends an invalid value still did not accept the message


_decode_reply = msgspec.json.Decoder(_Reply).decode

DELIVERED: Final = {
    status: Outcome(Result.SUCCESS, Disposition.DELIVERED, Health.UP, Metric.SUCCEEDED, status) for status in range(200, 300)
}

_CALLS_ONCE: Final = {FailureKind.MALFORMED, FailureKind.UNSUPPORTED, FailureKind.NOT_ALLOWED}
_NO_CONNECTION: Final = {FailureKind.CONNECT_TIMEOUT, FailureKind.UNREACHABLE, FailureKind.UNRESOLVED, FailureKind.BROKEN}


def judge(found: Answer | Failure, now: Callable[[], int]) -> Outcome:
    """The outcome of a call. `now` returns wall-clock time; it is called for answers that contain a date."""
    if type(found) is Answer:
        status = found.status
        if 200 <= status < 300:
            return DELIVERED[status] if not found.body else _accepted(found)
        return _refused(found, now)
    assert type(found) is Failure
    return _failed(found)


def _accepted(answer: Answer) -> Outcome:
    """2xx. A message is deferred only if the body asks for it; a body without that field, or that is not JSON, is a success."""
    try:
        reply = _decode_reply(answer.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return DELIVERED[answer.status]
    if reply.ack is not False:
        return DELIVERED[answer.status]
    return Outcome(
        Result.ERROR_PROCESS,
        Disposition.AGAIN,
        Health.UNKNOWN,
        Metric.TRANSIENT,
        answer.status,
        _seconds(reply.delay_seconds),
        is_deferral=True,
        error="the target did not acknowledge the message",
    )


def _seconds(value: object) -> int:
    """The delay that a target asks for in seconds; 0 if the value is not valid."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 1:
        return 0
    return int(min(value, MAX_DELAY))


def _refused(answer: Answer, now: Callable[[], int]) -> Outcome:
    status, error = answer.status, f"the target answered with status {answer.status}"
    if status == 429:
        return Outcome(
            Result.ERROR_PROCESS,
            Disposition.AGAIN,
            Health.UNKNOWN,
            Metric.THROTTLED,
            status,
            retry_after(answer.retry_after, now()),
            is_deferral=True,
            is_pause=True,
            error=error,
        )
    if 300 <= status < 400:
        error = f"{error}: redirects are not followed"
        return Outcome(Result.ERROR_PROCESS, Disposition.AGAIN, Health.UP, Metric.TRANSIENT, status, error=error)
    if status == 503 and answer.retry_after:
        return Outcome(
            Result.ERROR_PROCESS,
            Disposition.AGAIN,
            Health.DOWN,
            Metric.TRANSIENT,
            status,
            retry_after(answer.retry_after, now()),
            is_pause=True,
            error=error,
        )
    if status == 501 or 400 <= status < 500:
        severity = Severity.CRITICAL if status == 501 else Severity.ERROR
        return Outcome(
            Result.ERROR_CONFIG, Disposition.UNDELIVERABLE, Health.UP, Metric.FAILED, status, warning=severity, error=error
        )
    return Outcome(Result.ERROR_PROCESS, Disposition.AGAIN, Health.DOWN, Metric.TRANSIENT, status, is_retryable=True, error=error)


def _failed(failure: Failure) -> Outcome:
    kind, error = failure.kind, failure.text or failure.kind.value
    if kind in _CALLS_ONCE:
        return Outcome(
            Result.ERROR_CONFIG,
            Disposition.UNDELIVERABLE,
            Health.UNKNOWN,
            Metric.FAILED,
            warning=Severity.ERROR,
            error=error,
        )
    if kind is FailureKind.CIRCUIT_OPEN:
        return Outcome(Result.ERROR_CONNECTION, Disposition.AGAIN, Health.UNKNOWN, Metric.NONE, is_deferral=True, error=error)
    if kind is FailureKind.CANCELLED:
        return Outcome(Result.ERROR_PROCESS, Disposition.AGAIN, Health.UNKNOWN, Metric.NONE, is_deferral=True, error=error)
    if kind in _NO_CONNECTION:
        return Outcome(Result.ERROR_CONNECTION, Disposition.AGAIN, Health.DOWN, Metric.FAILED, is_retryable=True, error=error)
    return Outcome(Result.ERROR_PROCESS, Disposition.AGAIN, Health.DOWN, Metric.TRANSIENT, is_retryable=True, error=error)


def retry_after(text: str | None, now: int) -> int:
    """Seconds that a Retry-After header asks for: a number or an HTTP date; 30 without one, always within 1 to 43,200."""
    if not text:
        return DEFAULT_DELAY
    text = text.strip()
    if text.isascii() and text.isdigit():
        return min(max(int(text[:10]), 1), MAX_DELAY)
    moment = _moment(text)
    if moment is None:
        return DEFAULT_DELAY
    return min(max(round(moment - now / SECOND), 1), MAX_DELAY)


_DATE: Final = re.compile(r"[A-Za-z]{3}, (\d\d) ([A-Z][a-z]{2}) (\d{4}) (\d\d):(\d\d):(\d\d) GMT")
_MONTHS: Final = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]


def _moment(text: str) -> float | None:
    """An HTTP date as seconds since 1970; None for other text."""
    found = _DATE.fullmatch(text)
    if found is None or found[2] not in _MONTHS:
        return None
    day, year, hour, minute, second = (int(found[number]) for number in (1, 3, 4, 5, 6))
    try:
        return datetime(year, _MONTHS.index(found[2]) + 1, day, hour, minute, second, tzinfo=UTC).timestamp()
    except ValueError:
        return None
