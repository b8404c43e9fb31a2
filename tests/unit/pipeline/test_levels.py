"""The rules of levels: samples of queues, pools and targets become a row for each window."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from penstock.pipeline.core.levels import Level, Sample, rows

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def sample(seconds: float, *levels: Level) -> Sample:
    return Sample(NOON + timedelta(seconds=seconds), [*levels])


def test_a_window_has_the_newest_the_most_and_the_differences_of_totals() -> None:
    before = sample(0, Level("pool", "p", retries=5, rate_limit_waits=7), Level("queue", "q", retries=9))
    samples = [
        sample(
            30, Level("pool", "p", ready=9, utilisation=1.0, retries=6, rate_limit_waits=7), Level("target", "t", is_open=True)
        ),
        sample(60, Level("pool", "p", ready=4, utilisation=0.5, retries=8, rate_limit_waits=9), Level("target", "t")),
    ]
    samples[1].levels.append(Level("queue", "q", ready=2, oldest_seconds=1.5, retries=2))
    samples[1].levels.append(Level("queue", "q", priority=9, ready=2))

    pool, queue, urgent, target = rows(samples, before)

    assert (pool["window_start"], pool["window_end"]) == (NOON, NOON + timedelta(minutes=1))
    assert (pool["ready"], pool["ready_max"], pool["utilisation"]) == (4, 9, 0.75)
    assert (pool["retries"], pool["rate_limit_waits"]) == (3, 2)
    assert (queue["priority"], queue["oldest_age_ms"]) == (None, 1500)
    assert queue["retries"] == 2, "the server was started again, and counts from nothing"
    assert (urgent["priority"], urgent["ready"], urgent["oldest_age_ms"]) == (9, 2, None)
    assert (target["open_ms"], pool["open_ms"]) == (30_000, 0)
