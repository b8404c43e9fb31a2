"""Where a message is, in words, and what a person might do about it."""

from datetime import UTC, datetime, timedelta

import pytest

from penstock.cli.bench import Result, percentile, report
from penstock.cli.explain import in_words
from penstock.cli.trace import timeline
from penstock.values.subscription import Explanation
from penstock.wire.reasons import NOT_HERE, State, advice, ended_by, kept_by
from penstock.wire.results import TraceEvent, Unsettled

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
LATER = NOW + timedelta(seconds=90)


@pytest.mark.parametrize(
    ("why", "consumer", "text"),
    [
        (Explanation("leased", LATER), "w-1", "held by w-1 until 2026-01-01 12:01:30.000 UTC (in 1m 30s)"),
        (Explanation("leased", LATER), None, "held by a consumer until 2026-01-01 12:01:30.000 UTC (in 1m 30s)"),
        (Explanation("leased", LATER), "\x1b[2J", "held by \\x1b[2J until 2026-01-01 12:01:30.000 UTC (in 1m 30s)"),
        (Explanation("key_blocked", by="06" * 15), None, f"waits behind message {'06' * 15} of the same ordering key"),
        (Explanation("key_blocked"), None, "waits behind its ordering key"),
        (Explanation("delayed", LATER), None, "delayed until 2026-01-01 12:01:30.000 UTC (in 1m 30s)"),
        (Explanation("paused"), None, "waits: deliveries are paused"),
        (Explanation("flow_limit"), None, "waits: consumers hold as much as the flow limit allows"),
        (Explanation(None), None, "ready: waits for a consumer to take it"),
        (Explanation("something new"), None, "something new"),
    ],
)
def test_what_keeps_a_message(why: Explanation, consumer: str | None, text: str) -> None:
    assert kept_by(why, NOW, consumer) == text


@pytest.mark.parametrize(
    ("kind", "detail", "text"),
    [
        ("acked", {}, "done: acked at 2026-01-01 12:00:00.000 UTC"),
        (
            "dead_lettered",
            {"reason": "max_attempts", "target": "graves", "error": "boom"},
            "dead: moved to topic graves at 2026-01-01 12:00:00.000 UTC, because max attempts (boom)",
        ),
        (
            "dead_lettered",
            {"reason": "ttl"},
            "dead: moved to the dead letters of the queue at 2026-01-01 12:00:00.000 UTC, because ttl",
        ),
        ("dropped", {"why": "ttl"}, "gone: dropped at 2026-01-01 12:00:00.000 UTC, because its time to live ran out"),
        ("dropped", {"why": "new"}, "gone: dropped at 2026-01-01 12:00:00.000 UTC, because new"),
        ("purged", {}, "gone: purged from the dead letters at 2026-01-01 12:00:00.000 UTC; it stays in the log"),
        ("nacked", {}, "settled after nacked at 2026-01-01 12:00:00.000 UTC, by a seek or a purge"),
    ],
)
def test_how_a_message_ended(kind: str, detail: dict[str, str], text: str) -> None:
    assert ended_by(TraceEvent(NOW, kind, detail=detail)) == text


def test_a_message_without_events_was_never_there() -> None:
    assert ended_by(None) == NOT_HERE


def test_a_timeline_tells_spans_not_instants() -> None:
    rows = timeline(
        [
            TraceEvent(NOW, "published", "orders"),
            TraceEvent(NOW, "leased", "orders", "billing", 1, "w-1", {"deadline": LATER.isoformat()}),
            TraceEvent(LATER, "nacked", "orders", "billing", 1, None, {"due": LATER.isoformat(), "error": "boom"}),
            TraceEvent(LATER, "nacked", "orders", "billing", 2, None, {"due": (LATER + (LATER - NOW)).isoformat()}),
        ]
    )
    assert [row[1:] for row in rows[1:]] == [
        ["", "published", "-", "-", "-", ""],
        ["+0 s", "leased", "billing", "1", "w-1", "for 1m 30s"],
        ["+1m 30s", "nacked", "billing", "1", "-", "error: boom"],
        ["+0 s", "nacked", "billing", "2", "-", "again after 1m 30s"],
    ]


def state(**numbers: int) -> State:
    names = ("ready", "delayed", "in_flight", "backlog", "backlog_bytes", "delivered", "acked", "nacked", "expired", "dead")
    return State(oldest_age=90, **{"discarded": 0, **dict.fromkeys(names, 0), **numbers})


def unsettled(reason: str | None, *, by: str | None = None, attempts: int = 0) -> Unsettled:
    return Unsettled("05" * 15, NOW, "", attempts, Explanation(reason, by=by))


@pytest.mark.parametrize(
    ("found", "oldest", "said"),
    [
        (state(), [], None),
        (state(backlog=1), [unsettled("paused")], "penstock subscription resume billing"),
        (state(backlog=1), [unsettled(None)], "penstock pull billing --follow"),
        (state(backlog=2, in_flight=1), [unsettled(None)], "messages arrive faster than consumers take them"),
        (state(backlog=1, in_flight=1), [unsettled("flow_limit")], "raise the limit"),
        (state(backlog=1, in_flight=1), [unsettled("key_blocked", by="04" * 15)], f"penstock trace {'04' * 15}"),
        (state(backlog=1, delayed=1), [unsettled("delayed", attempts=2)], f"penstock trace {'05' * 15}"),
        (state(backlog=1, delayed=1), [unsettled("delayed")], None),  # it was published for later: nothing is wrong
        (state(expired=11), [], "ask for a longer ack deadline"),
        (state(expired=11, acked=1_000), [], None),
        (state(unburied=1), [], "create the dead-letter topic"),
    ],
)
def test_advice(found: State, oldest: list[Unsettled], said: str | None) -> None:
    given = list(advice("billing", found, oldest))
    assert len(given) == (said is not None)
    assert said is None or said in given[0]


def test_advice_for_a_queue_names_the_commands_of_queues() -> None:
    [given] = advice("tasks", state(backlog=1), [unsettled(None)], is_queue=True)
    assert "penstock queue consume tasks" in given


def test_the_numbers_are_sentences() -> None:
    assert list(in_words(state())) == [
        "no messages wait: every message is settled",
        "so far 0 deliveries: 0 acked, 0 nacked, 0 not settled in time, 0 dead-lettered",
    ]
    assert list(in_words(state(backlog=1, ready=1, backlog_bytes=2_048, delivered=1, discarded=2))) == [
        "1 message not settled (2.0 KiB): 1 to be delivered, 0 delayed, 0 with consumers",
        "the oldest was published 1m 30s ago",
        "so far 1 delivery: 0 acked, 0 nacked, 0 not settled in time, 0 dead-lettered",
        "2 messages discarded, because there was no room",
    ]


@pytest.mark.parametrize(
    ("values", "share", "found"),
    [([], 0.5, None), ([3], 0.99, 3), ([1, 2, 3, 4], 0.5, 2), ([4, 3, 2, 1], 0.95, 4), (list(range(1, 101)), 0.95, 95)],
)
def test_a_percentile_is_one_of_the_values(values: list[float], share: float, found: float | None) -> None:
    assert percentile(values, share) == found


def test_a_report_of_measurements() -> None:
    lines = report([Result("publish", 1_000, 2, 50_000, 0.001, 0.002, 0.003), Result("consume", 1_000, 1, 100_000)]).splitlines()
    assert lines[:3] == [
        "         MESSAGES  SECONDS  MESSAGES/s   BYTES/s   P50   P95   P99",
        "publish     1,000      2.0         500  48.8 KiB  1 ms  2 ms  3 ms",
        "consume     1,000      1.0       1,000  97.7 KiB     -     -     -",
    ]
