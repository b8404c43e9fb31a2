"""Specification 001, "Response Handling", and the 28 published rows (facts A3), as one table.

Where the two differ, or a decision says otherwise, the row says so.
"""

from typing import NamedTuple

import pytest

from penstock.durations import SECOND
from penstock.http.client.transport import Answer, Failure, FailureKind
from penstock.router.core.outcome import (
    DEFAULT_DELAY,
    FAST_DELAY,
    MAX_DELAY,
    TRIES,
    Disposition,
    Health,
    Metric,
    Outcome,
    Result,
    Severity,
    judge,
    retry_after,
)

NOW = 1_767_225_600 * SECOND  # Thu, 01 Jan 2026 00:00:00 GMT


class Row(NamedTuple):
    """What is given, and what comes of it."""

    name: str
    given: Answer | Failure
    result: Result
    disposition: Disposition
    breaker: Health
    metric: Metric
    delay: int = DEFAULT_DELAY
    """Seconds until it is tried again."""
    is_retried: bool = False
    """Within the same attempt."""
    warning: Severity | None = None


SUCCESS = (Result.SUCCESS, Disposition.DELIVERED, Health.UP, Metric.SUCCEEDED)
DEFERRED = (Result.ERROR_PROCESS, Disposition.AGAIN, Health.UNKNOWN, Metric.TRANSIENT)
LIMITED = (Result.ERROR_PROCESS, Disposition.AGAIN, Health.UNKNOWN, Metric.THROTTLED)
REFUSED = (Result.ERROR_CONFIG, Disposition.UNDELIVERABLE, Health.UP, Metric.FAILED, DEFAULT_DELAY, False, Severity.ERROR)
NO_CALL = (Result.ERROR_CONFIG, Disposition.UNDELIVERABLE, Health.UNKNOWN, Metric.FAILED, DEFAULT_DELAY, False, Severity.ERROR)
DOWN = (Result.ERROR_PROCESS, Disposition.AGAIN, Health.DOWN, Metric.TRANSIENT, DEFAULT_DELAY, True)
REDIRECTED = (Result.ERROR_PROCESS, Disposition.AGAIN, Health.UP, Metric.TRANSIENT)
UNREACHED = (Result.ERROR_CONNECTION, Disposition.AGAIN, Health.DOWN, Metric.FAILED, DEFAULT_DELAY, True)

SPECIFICATION = [
    Row("200 ack=true", Answer(200, b'{"ack":true}'), *SUCCESS),
    Row("200 ack=false, delay provided", Answer(200, b'{"ack":false,"delaySeconds":90}'), *DEFERRED, 90),
    # The specification calls again at once what was deferred; the target has just said that it does not want that.
    Row("200 ack=false, no delay", Answer(200, b'{"ack":false}'), *DEFERRED),
    Row("200 JSON parse error", Answer(200, b"<html>"), *SUCCESS),
    Row("400", Answer(400), *REFUSED),  # decision 18: the target is up
    *(Row(f"401-499: {status}", Answer(status), *REFUSED) for status in range(401, 500) if status not in {404, 429}),
    Row("404", Answer(404), *REFUSED),
    # Decision 21: no second call within the attempt.
    Row("429 with Retry-After", Answer(429, b"", "120"), *LIMITED, 120),
    Row("429 without Retry-After", Answer(429), *LIMITED, 30),
    Row("501", Answer(501), *REFUSED[:-1], Severity.CRITICAL),
    *(Row(f"5xx: {status}", Answer(status), *DOWN) for status in range(500, 600) if status != 501),
    Row("503 with Retry-After", Answer(503, b"", "90"), *DOWN[:4], 90),
    # Unexpected: the specification retries everything that is neither 4xx nor 5xx. Decision 20 takes every 2xx as a success.
    *(Row(f"2xx: {status}", Answer(status), *SUCCESS) for status in range(201, 300)),
    *(Row(f"3xx: {status}", Answer(status), *REDIRECTED) for status in (300, 301, 302, 303, 304, 307, 308)),
    *(Row(f"unexpected: {status}", Answer(status), *DOWN) for status in (100, 101, 199, 600, 999)),
    Row("HttpConnectTimeoutException", Failure(FailureKind.CONNECT_TIMEOUT), *UNREACHED),
    Row("ConnectException", Failure(FailureKind.UNREACHABLE), *UNREACHED),
    Row("UnresolvedAddressException", Failure(FailureKind.UNRESOLVED), *UNREACHED),
    Row("HttpTimeoutException", Failure(FailureKind.TIMEOUT), *DOWN),
    Row("IOException", Failure(FailureKind.BROKEN), *UNREACHED),
    Row("any other exception", Failure(FailureKind.UNKNOWN), *DOWN),
]

PUBLISHED = [
    Row("2xx, empty", Answer(200), *SUCCESS),
    Row("2xx, status kept", Answer(201, b"created"), *SUCCESS),
    Row("202, empty", Answer(202), *SUCCESS),
    Row("204, empty", Answer(204), *SUCCESS),
    Row("2xx, not JSON", Answer(200, b"OK"), *SUCCESS),
    Row("2xx, no ack", Answer(200, b'{"message":"taken"}'), *SUCCESS),
    Row("2xx, ack:true", Answer(200, b'{"ack":true,"message":""}'), *SUCCESS),
    # Published: a delay of 0. The specification's "no delay" is 30 s (effective delay of null or 0).
    Row("200 ack:false", Answer(200, b'{"ack":false,"message":"later"}'), *DEFERRED),
    Row("200 ack:false, delaySeconds", Answer(200, b'{"ack":false,"delaySeconds":60}'), *DEFERRED, 60),
    # Published: the rest of the group is suppressed for a while. That is no part of the specification: it is a success alone.
    Row("200 ack:true + flushGroup", Answer(200, b'{"ack":true,"flushGroup":true}'), *SUCCESS),
    Row("published 400", Answer(400), *REFUSED),
    Row("published 401", Answer(401), *REFUSED),
    Row("published 403", Answer(403), *REFUSED),
    Row("published 404", Answer(404), *REFUSED),
    Row("published 418", Answer(418), *REFUSED),
    Row("published 501", Answer(501), *REFUSED[:-1], Severity.CRITICAL),
    # Published: undeliverable. Decision 20 follows the specification.
    Row("3xx not followed", Answer(302), *REDIRECTED),
    Row("429, Retry-After integer", Answer(429, b"", "7"), *LIMITED, 7),
    Row("429, Retry-After absent", Answer(429), *LIMITED, 30),
    # Published: 30 s. Decision 21 reads the date.
    Row("429, Retry-After HTTP date", Answer(429, b"", "Thu, 01 Jan 2026 00:01:30 GMT"), *LIMITED, 90),
    # Published: rejected after its budget. The specification always nacks; `max_attempts` is the budget where one is wanted.
    Row("published 500", Answer(500), *DOWN),
    Row("published 502", Answer(502), *DOWN),
    Row("published 503", Answer(503), *DOWN),
    Row("published 504", Answer(504), *DOWN),
    # Published: ErrorConnection. The specification's "unexpected" row is ERROR_PROCESS; both come again after 30 s.
    Row("1xx", Answer(100), *DOWN),
    Row("connection refused", Failure(FailureKind.UNREACHABLE), *UNREACHED),
    Row("malformed target URL", Failure(FailureKind.MALFORMED), *NO_CALL),
    Row("unsupported mediationType", Failure(FailureKind.UNSUPPORTED), *NO_CALL),
    Row(
        "breaker open", Failure(FailureKind.CIRCUIT_OPEN), Result.ERROR_CONNECTION, Disposition.AGAIN, Health.UNKNOWN, Metric.NONE
    ),
]

OWN = [
    Row("decision 28: not allowed", Failure(FailureKind.NOT_ALLOWED), *NO_CALL),
    Row("the router stops", Failure(FailureKind.CANCELLED), Result.ERROR_PROCESS, Disposition.AGAIN, Health.UNKNOWN, Metric.NONE),
    Row("ack is no boolean", Answer(200, b'{"ack":"no"}'), *SUCCESS),
    Row("ack is null", Answer(200, b'{"ack":null}'), *SUCCESS),
    Row("a list", Answer(200, b"[false]"), *SUCCESS),
    Row("not UTF-8", Answer(200, b'{"ack":"\xff'), *SUCCESS),
    Row("nested too deep", Answer(200, b"[" * 65_000), *SUCCESS),
    Row("other 2xx may defer", Answer(202, b'{"ack":false}'), *DEFERRED),
    Row("delay as text", Answer(200, b'{"ack":false,"delaySeconds":"90"}'), *DEFERRED),
    Row("delay true", Answer(200, b'{"ack":false,"delaySeconds":true}'), *DEFERRED),
    Row("delay null", Answer(200, b'{"ack":false,"delaySeconds":null}'), *DEFERRED),
    Row("delay 0", Answer(200, b'{"ack":false,"delaySeconds":0}'), *DEFERRED),
    Row("delay negative", Answer(200, b'{"ack":false,"delaySeconds":-5}'), *DEFERRED),
    Row("delay with a fraction", Answer(200, b'{"ack":false,"delaySeconds":2.9}'), *DEFERRED, 2),
    Row("delay above the limit", Answer(200, b'{"ack":false,"delaySeconds":43201}'), *DEFERRED, 43_200),
    Row("delay beyond all bounds", Answer(200, b'{"ack":false,"delaySeconds":1e300}'), *DEFERRED, 43_200),
]


def test_response_handling_and_the_published_outcomes(subtests: pytest.Subtests) -> None:
    for row in [*SPECIFICATION, *PUBLISHED, *OWN]:
        with subtests.test(row.name):
            outcome = judge(row.given, lambda: NOW)

            assert outcome.result is row.result
            assert outcome.disposition is row.disposition
            assert outcome.health is row.breaker
            assert outcome.metric is row.metric
            assert outcome.effective_delay == row.delay
            assert outcome.is_retryable is row.is_retried
            assert outcome.warning is row.warning
            assert outcome.status == (row.given.status if isinstance(row.given, Answer) else 0)
            assert bool(outcome.error) is (outcome.result is not Result.SUCCESS)
            assert (outcome.warning is not None) is (outcome.disposition is Disposition.UNDELIVERABLE)


def test_published_outcomes_are_all_there() -> None:
    assert len(PUBLISHED) >= 28


def test_response_handling_the_text_of_a_failure_is_kept() -> None:
    assert judge(Failure(FailureKind.BROKEN, "reset by peer"), int).error == "reset by peer"
    assert judge(Failure(FailureKind.BROKEN), int).error == "broken"
    assert judge(Answer(503), int).error == "the target answered with status 503"


def test_mediation_outcome_effective_delay_is_clamped_and_30_when_there_is_none(subtests: pytest.Subtests) -> None:
    for delay, effective in [(0, 30), (1, 1), (30, 30), (43_199, 43_199), (43_200, 43_200), (43_201, 43_200), (-1, 1)]:
        with subtests.test(delay=delay):
            outcome = Outcome(Result.ERROR_PROCESS, Disposition.AGAIN, Health.DOWN, Metric.TRANSIENT, delay=delay)

            assert outcome.effective_delay == effective


def test_decision_21_retry_after_is_seconds_or_a_date_30_if_absent_and_clamped(subtests: pytest.Subtests) -> None:
    for text, seconds in [
        (None, 30),
        ("", 30),
        ("0", 1),
        ("1", 1),
        (" 17 ", 17),
        ("43200", 43_200),
        ("43201", 43_200),
        ("9" * 5_000, 43_200),  # Python refuses to read so many digits: only the first ones are looked at
        ("-5", 30),
        ("+5", 30),
        ("1.5", 30),
        ("1e3", 30),
        ("٣", 30),  # a digit, though none of HTTP's
        ("²", 30),
        ("soon", 30),
        ("Thu, 01 Jan 2026 00:00:45 GMT", 45),
        ("Thu, 01 Jan 2026 00:00:00 GMT", 1),
        ("Wed, 31 Dec 2025 23:00:00 GMT", 1),  # in the past
        ("Fri, 02 Jan 2026 12:00:00 GMT", 43_200),
        ("Thu, 01 Jan 2026 00:00:45 CET", 30),
        ("Thu, 01 Foo 2026 00:00:45 GMT", 30),
        ("Thu, 31 Feb 2026 00:00:45 GMT", 30),
        ("Thu, 01 Jan 0000 00:00:45 GMT", 30),
        ("Thu, 01 Jan 2026 25:00:45 GMT", 30),
        ("Thursday, 01-Jan-26 00:00:45 GMT", 30),
        ("Thu, 01 Jan 2026 00:00:45 GMT\r\nx", 30),
    ]:
        with subtests.test(text=text):
            assert retry_after(text, NOW) == seconds


def test_decision_20_every_2xx_succeeds_and_only_ack_false_defers() -> None:
    for status in range(200, 300):
        for said in (b"", b"OK", b"{}", b'{"ack":true}', b'{"message":"x","unknown":1}'):
            assert judge(Answer(status, said), int).result is Result.SUCCESS, (status, said)
        assert judge(Answer(status, b'{"ack":false}'), int).disposition is Disposition.AGAIN, status


def test_decision_28_a_target_that_may_not_be_called_is_undeliverable_and_says_nothing_of_its_health() -> None:
    outcome = judge(Failure(FailureKind.NOT_ALLOWED, "127.0.0.1 is a loopback address"), int)

    assert (outcome.disposition, outcome.health, outcome.is_retryable) == (Disposition.UNDELIVERABLE, Health.UNKNOWN, False)


def test_internal_constants_of_the_outcome_table() -> None:
    assert (DEFAULT_DELAY, FAST_DELAY, MAX_DELAY, TRIES) == (30, 10, 43_200, 3)
