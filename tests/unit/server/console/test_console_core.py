"""What the console computes: rates, the status, groups of dead letters, how deliveries ended, and the life of a message."""

from datetime import UTC, datetime, timedelta

import pytest

from penstock.durations import SECOND
from penstock.server.console.core.dead_letters import HOUR, Letter, fails_again, grouped, signature
from penstock.server.console.core.life import Where, folds, lanes, life_events, ordered, verdict
from penstock.server.console.core.samples import KEPT, STEP_SECONDS, Series, Totals, smoothed
from penstock.server.console.core.status import MAX_ATTENTION, Figures, ServerFigures, attention, state_of, status
from penstock.server.console.core.tasks import Deliveries, TaskLine, by_task
from penstock.values.subscription import Explanation
from penstock.wire.results import TraceEvent

START = datetime(2026, 5, 3, 12, 0, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def figures(**changes: object) -> Figures:
    known: dict[str, object] = {
        "kind": "queue",
        "name": "mail",
        "ready": 0,
        "in_flight": 0,
        "backlog": 0,
        "dead": 0,
        "in_rate": 0.0,
        "out_rate": 0.0,
        "oldest_seconds": None,
    }
    return Figures(**(known | changes))  # type: ignore[arg-type]  # the tests name fields


# ── rates ────────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_first_rate_is_what_happened_and_later_ones_follow_it() -> None:
    assert smoothed(None, 30, 3) == 10
    later = smoothed(10, 0, 1)
    assert 0 < later < 10
    assert smoothed(0.001, 0, 1) == 0


def test_a_counter_that_fell_counts_as_nothing() -> None:
    assert smoothed(None, -5, 1) == 0


def test_a_series_has_rates_of_equal_steps_and_gaps_where_nobody_sampled() -> None:
    series = Series()
    series.add(Totals(published=100, acked=50, backlog=50), 1000.0)
    assert not series.is_due(1000.0 + STEP_SECONDS - 0.1)
    series.add(Totals(published=150, acked=60, backlog=90), 1005.0)
    series.add(Totals(published=150, acked=70, backlog=80), 1020.0)

    assert [*series.in_rates] == [None, 10.0, None, None, 0.0]
    assert [*series.out_rates] == [None, 2.0, None, None, round(10 / 15, 3)]
    assert [*series.backlog] == [50, 90, None, None, 80]
    assert series.end == 1020.0


def test_a_series_keeps_half_an_hour_and_no_more() -> None:
    series = Series()
    for step in range(KEPT + 10):
        series.add(Totals(published=step), float(1 + step * STEP_SECONDS))
    assert len(series.in_rates) == len(series.out_rates) == len(series.backlog) == KEPT == 360


def test_a_long_silence_fills_a_series_with_gaps_and_not_beyond_it() -> None:
    series = Series()
    series.add(Totals(), 1.0)
    series.add(Totals(), 1_000_000.0)
    assert len(series.in_rates) == KEPT
    assert set([*series.in_rates][:-1]) == {None}


# ── status ───────────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("state", "changes"),
    [
        ("empty", {}),
        ("paused", {"is_paused": True, "backlog": 3, "ready": 3}),
        ("detached", {"is_detached": True}),
        ("stuck", {"backlog": 3, "ready": 3, "oldest_seconds": 60.0}),
        ("busy", {"backlog": 3, "ready": 3, "oldest_seconds": 1.0}),
        ("busy", {"backlog": 3, "ready": 2, "in_flight": 1, "oldest_seconds": 60.0}),
        ("growing", {"backlog": 300, "ready": 299, "in_flight": 1, "oldest_seconds": 60.0, "in_rate": 9.0, "out_rate": 2.0}),
    ],
)
def test_every_row_has_one_word(state: str, changes: dict[str, object]) -> None:
    assert state_of(figures(**changes)) == state


def test_the_worst_comes_first_and_the_sentence_counts() -> None:
    rows = [
        figures(name="a", backlog=1, ready=1, oldest_seconds=20.0),
        figures(name="b", backlog=5, ready=5, oldest_seconds=4000.0),
        figures(name="c d", dead=12),
        figures(name="e", kind="subscription", backlog=2, ready=2, is_paused=True, oldest_seconds=9.0),
    ]
    found = attention(rows, ServerFigures(open_breakers=["https://hooks.example"]))

    assert [one.level for one in found] == ["bad", "bad", "warn", "warn", "warn"]
    assert found[0].name == "b"
    assert found[0].text == "no consumer: 5 messages wait, the oldest for 1h 06m"
    assert {one.link for one in found} >= {"/console/queues/b", "/console/dead?source=queue%3Ac%20d", "/console/router"}
    said = status(rows, found, 4)
    assert said.level == "bad"
    assert said.text == ("Failing: 2 queues have no consumer, 1 subscription is paused, 1 breaker is open, 12 dead letters")


def test_without_anything_to_look_at_all_is_well() -> None:
    assert status([], attention([], ServerFigures()), 0).text == "Healthy: there are no queues and subscriptions yet"
    rows = [figures()]
    assert status(rows, attention(rows, ServerFigures()), 1).level == "ok"


def test_a_journal_that_cannot_write_and_a_full_disk_come_first() -> None:
    server = ServerFigures(problem="no space left", disk_free_bytes=1, disk_total_bytes=10**9, loop_lag_seconds=2.0)
    found = attention([], server)
    assert [one.kind for one in found] == ["journal", "disk", "server"]
    assert status([], found, 1).text.startswith("Failing: the journal cannot write: no space left, 1 B of the disk are free")


def test_the_list_of_what_needs_attention_is_bounded() -> None:
    rows = [figures(name=f"q{number}", dead=1) for number in range(1000)]
    assert len(attention(rows, ServerFigures())) == MAX_ATTENTION


# ── dead letters ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("SMTP 550 mailbox 7 full", "SMTP … mailbox … full"),
        ("no route to 'host a'", "no route to …"),
        ('KeyError: "customer-7"', "KeyError: …"),
        ("timeout after 30s at 2026-05-03T12:00:00", "timeout after … at …"),
        ("order 0a1b2c3d not found", "order … not found"),
        ("", ""),
        ("plain words stay", "plain words stay"),
    ],
)
def test_an_errors_signature_has_nothing_of_the_single_message(error: str, expected: str) -> None:
    assert signature(error) == expected


def test_the_signature_of_a_hostile_error_is_short_and_fast() -> None:
    assert len(signature("'" * 1_000_000)) <= 300
    assert len(signature("1 " * 1_000_000)) <= 300


def letter(offset: int, error: str | None, died: int, reason: str = "max_retries_exceeded") -> Letter:
    return Letter(offset, 0, reason, died, 4, error)


def test_letters_that_died_of_the_same_are_one_group() -> None:
    now = 100 * HOUR + SECOND
    found = grouped(
        [
            letter(1, "SMTP 550 for 1", now - 3 * HOUR),
            letter(2, "SMTP 550 for 2", now - 2 * HOUR),
            letter(3, "boom", now - HOUR, "explicit_nack"),
            letter(4, "SMTP 551 for 3", now),
            letter(5, "SMTP 551 for 4", now),
        ],
        moved={2, 5},
    )
    assert [(group.reason, group.signature, group.count, group.again) for group in found] == [
        ("max_retries_exceeded", "SMTP … for …", 4, 2),
        ("explicit_nack", "boom", 1, 0),
    ]
    first = found[0]
    assert [one.offset for one in first.newest] == [2, 4, 5]
    assert first.example == "SMTP 551 for 4"
    assert (first.first, first.last) == (now - 3 * HOUR, now)
    assert first.trend(now) == [0] * 20 + [1, 1, 0, 2]
    assert found[0].id != found[1].id


def test_a_redrive_stops_when_more_than_half_of_the_first_twenty_die_again() -> None:
    assert not fails_again(10, 20)
    assert fails_again(11, 20)
    assert not fails_again(5, 5)
    assert fails_again(11, 500)


# ── the life of a message ────────────────────────────────────────────────────────────────────────────────────────────────────


def event(kind: str, seconds: float, where: str | None = "mail", **more: object) -> TraceEvent:
    detail = more.pop("detail", {})
    return TraceEvent(at(seconds), kind, "mail", where, detail=detail, is_task=True, **more)  # type: ignore[arg-type]  # as above


def test_a_message_that_was_retried_and_died() -> None:
    events = [
        event("published", 0, None),
        event("leased", 1, attempt=1, consumer="w1"),
        event("nacked", 2, attempt=1, detail={"due": at(5).isoformat(), "error": "SMTP 550"}),
        event("leased", 7, attempt=2, consumer="w1"),
        event("dead_lettered", 8, attempt=2, detail={"reason": "max_retries_exceeded", "error": "SMTP 550"}),
    ]
    [lane] = lanes(events, [Where("queue", "mail", None)], at(100))

    assert (lane.state, lane.is_ended, lane.attempts) == ("dead", True, 2)
    assert [(one.kind, one.from_at, one.to_at) for one in lane.segments] == [
        ("waiting", at(0), at(1)),
        ("leased", at(1), at(2)),
        ("delayed", at(2), at(5)),
        ("waiting", at(5), at(7)),
        ("leased", at(7), at(8)),
        ("dead", at(8), None),
    ]
    said = verdict([lane], events)
    assert (said.state, said.level, said.text) == ("dead", "bad", "Dead in mail after 2 attempts: SMTP 550")
    assert said.action is not None
    assert (said.action.kind, said.action.queue) == ("redrive", "mail")


def test_a_message_that_was_done() -> None:
    events = [event("published", 0, None), event("leased", 0.01, attempt=1), event("acked", 0.031, attempt=1)]
    found = lanes(events, [Where("queue", "mail", None)], at(9))
    assert verdict(found, events).text == "Done in mail, 31 ms after it was published"
    assert found[0].segments[-1].to_at == at(0.031)


def test_a_message_behind_its_key_names_the_blocker() -> None:
    events = [event("published", 0, None)]
    found = lanes(events, [Where("subscription", "billing", Explanation("key_blocked", None, "0a3"))], at(9))
    said = verdict(found, events, "customer-7")
    assert said.text == "Waiting in billing: behind message 0a3 of key customer-7"
    assert said.action is not None
    assert (said.action.kind, said.action.message_id) == ("open", "0a3")


def test_the_verdict_is_about_the_lane_to_look_at_first() -> None:
    events = [event("published", 0, None), event("acked", 1, "a"), event("leased", 2, "b", consumer="w")]
    places = [
        Where("subscription", "a", None),
        Where("subscription", "b", Explanation("leased", at(30))),
        Where("subscription", "c", Explanation("paused")),
    ]
    found = lanes(events, places, at(3))
    assert [lane.state for lane in found] == ["done", "leased", "paused"]
    said = verdict(found, events)
    assert said.text == "Waiting in c: deliveries are paused. Done in 1 of 3"
    assert said.action is not None
    assert said.action.kind == "resume"


def test_runs_of_the_same_event_fold_and_a_change_of_status_does_not() -> None:
    events = [
        event("published", 0, None),
        *(event("extended", number) for number in range(1, 41)),
        *(event("attempted", 50 + number, detail={"status": "503"}) for number in range(17)),
        *(event("attempted", 80 + number, detail={"status": "200"}) for number in range(2)),
    ]
    found = lanes(ordered(events), [Where("queue", "mail", Explanation(None))], at(99))
    rows = life_events(events, found)

    assert [(fold.first, fold.count, fold.text) for fold in folds(rows)] == [
        (1, 40, "extended × 40"),
        (41, 17, "attempted × 17, all 503"),
    ]
    assert [tick.level for tick in found[0].ticks] == ["bad"] * 17 + ["ok"] * 2
    assert rows[1].after_seconds == 1.0
    assert {row.lane for row in rows[1:]} == {0}


def test_nothing_is_known_of_a_message_that_no_lane_has() -> None:
    assert verdict([], []).state == "unknown"


# ── how deliveries ended ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_deliveries_are_grouped_by_task_with_the_time_from_lease_to_end() -> None:
    found = Deliveries(100, 0)
    for second in range(20, 0, -1):  # newest first, as they are read: message 1 took a second, message 20 twenty
        found.reach((100 + second) * SECOND)
        found.end(1, [second], "done")
    found.reach(100 * SECOND)
    found.lease(1, range(1, 21))
    found.end(1, [30], "dead")
    found.reach(98 * SECOND)
    found.lease(1, [30])
    found.end(1, [30], "failed")
    found.reach(96 * SECOND)
    found.lease(1, [30])
    found.end(2, [0], "done")  # its lease is not in the log any more

    tasks = {(1, 30): "send", (2, 0): None}
    send, other, resize = by_task((f"q{one.queue}", tasks.get((one.queue, one.offset), "resize"), one) for one in found.ended)
    assert send == TaskLine("send", "q1", done=0, failed=2, dead=1, p50_seconds=2.0, p95_seconds=2.0)
    assert other == TaskLine(None, "q2", done=1, failed=0, dead=0, p50_seconds=None, p95_seconds=None)
    assert resize == TaskLine("resize", "q1", done=20, failed=0, dead=0, p50_seconds=10.0, p95_seconds=19.0)


def test_the_newest_deliveries_are_bounded_by_number_and_time_and_wait_for_their_leases() -> None:
    few = Deliveries(2, 0)
    few.reach(9)
    few.end(1, [3, 2, 1], "done")
    assert ([one.offset for one in few.ended], few.since, few.is_complete) == ([3, 2], 9, False)
    few.lease(1, [2, 3])
    assert few.is_complete

    recent = Deliveries(100, 50)
    recent.reach(50)
    recent.end(1, [1], "done")
    assert not recent.is_complete
    recent.reach(49)
    recent.end(1, [0], "done")
    assert ([one.offset for one in recent.ended], recent.since, recent.is_complete) == ([1], 50, False)
    recent.lease(1, [1])
    assert recent.is_complete
