"""The warning service: eight hours, a thousand at most, and a flood is one line (specification 001, "Warning Types")."""

import re

import pytest

from penstock.durations import SECOND
from penstock.router.core.outcome import Severity
from penstock.router.core.warnings import MAX_TEXT, RETENTION, SAME_WITHIN, Category, Warnings

NOW = 1_700_000_000 * SECOND
HOUR = 3600 * SECOND

WARNING_TYPES = """CONFIG_SYNC_FAILED ROUTING QUEUE_FULL POOL_LIMIT PIPELINE_MAP_LEAK CONSUMER_RESTART CONSUMER_RESTART_FAILED
SHUTDOWN_CLEANUP_ERRORS PROCESSING CONFIGURATION""".split()
"""Without GROUP_THREAD_*: groups have no threads; SEMAPHORE_RELEASE_FAILED: workers are a number that one thread counts;
MEDIATOR_NULL_RESULT: `judge` returns an outcome for everything."""


def add(warnings: Warnings, text: str, now: int = NOW, severity: Severity = Severity.WARN, source: str = "router") -> str:
    return warnings.add(Category.ROUTING, severity, text, source, now).warning_id


def texts(warnings: Warnings, now: int = NOW) -> list[str]:
    return [warning.message for warning in warnings.all(now)]


def test_every_warning_code_of_the_specification_that_can_occur_is_a_category() -> None:
    assert {*WARNING_TYPES, "QUEUE_BACKLOG", "QUEUE_GROWING", "QUEUE_VALIDATION"} == {*Category}


def test_the_newest_comes_first_and_knows_who_gave_it_and_when() -> None:
    warnings = Warnings()
    add(warnings, "first", NOW)
    made = warnings.add(Category.CONFIGURATION, Severity.CRITICAL, "second", "mediator", NOW + 1)

    assert texts(warnings, NOW + 1) == ["second", "first"]
    assert (made.category, made.severity, made.source) == ("CONFIGURATION", Severity.CRITICAL, "mediator")
    assert (made.first_at, made.at, made.count, made.is_acknowledged) == (NOW + 1, NOW + 1, 1, False)


def test_a_flood_of_equal_warnings_is_one_that_counts_them() -> None:
    warnings = Warnings()
    add(warnings, "other", NOW + 1)
    for number in range(200_000):
        add(warnings, "no pool X", NOW + number * 100)

    (flood, other) = warnings.all(NOW + 20 * SECOND)
    assert (flood.message, flood.count, other.count) == ("no pool X", 200_000, 1)
    assert (flood.first_at, flood.at) == (NOW, NOW + 199_999 * 100)


@pytest.mark.parametrize(("later", "kept"), [(SAME_WITHIN - 1, 1), (SAME_WITHIN, 2), (SAME_WITHIN + 1, 2)])
def test_equal_warnings_are_counted_together_within_a_minute_of_the_one_before(later: int, kept: int) -> None:
    warnings = Warnings()
    add(warnings, "no pool X", NOW)
    add(warnings, "no pool X", NOW + later)

    assert len(warnings) == kept


def test_what_differs_in_category_severity_source_or_text_is_not_equal() -> None:
    warnings = Warnings()
    for category in (Category.ROUTING, Category.QUEUE_FULL):
        for severity in (Severity.WARN, Severity.ERROR):
            for source in ("a", "b"):
                for text in ("x", "y"):
                    warnings.add(category, severity, text, source, NOW)

    assert len(warnings) == 16


def test_a_repeated_warning_that_was_acknowledged_is_shown_again() -> None:
    warnings = Warnings()
    first = add(warnings, "no pool X", NOW)
    assert warnings.acknowledge(first)
    add(warnings, "no pool X", NOW + 1)

    assert [(warning.count, warning.is_acknowledged) for warning in warnings.all(NOW + 1)] == [(1, False), (1, True)]


@pytest.mark.parametrize(("age", "count"), [(RETENTION - 1, 1), (RETENTION, 0), (RETENTION + 1, 0)])
def test_a_warning_expires_after_eight_hours(age: int, count: int) -> None:
    warnings = Warnings()
    add(warnings, "old")

    assert len(warnings.all(NOW + age)) == count


def test_the_oldest_gives_way_when_there_are_a_thousand() -> None:
    warnings = Warnings()
    for number in range(1_001):
        add(warnings, f"warning {number}", NOW + number)

    kept = texts(warnings, NOW + 2000)
    assert (len(kept), kept[0], kept[-1]) == (1_000, "warning 1000", "warning 1")
    assert not warnings.acknowledge(add(Warnings(), "never kept here"))


def test_one_that_is_given_again_is_not_the_oldest() -> None:
    warnings = Warnings(most=2)
    for text in ("a", "b", "a", "c"):
        add(warnings, text)

    assert texts(warnings) == ["c", "a"]


def test_forgotten_warnings_leave_nothing_behind() -> None:
    warnings = Warnings(most=3)
    for number in range(100):
        add(warnings, f"warning {number}", NOW + number)
    assert len(warnings._latest) == 3
    warnings.all(NOW + RETENTION + 200)
    assert (len(warnings), len(warnings._latest)) == (0, 0)


def test_they_are_asked_for_by_severity_and_by_whether_somebody_saw_them() -> None:
    warnings = Warnings()
    low, high = add(warnings, "low"), add(warnings, "high", severity=Severity.CRITICAL)
    warnings.acknowledge(low)

    assert [warning.warning_id for warning in warnings.unacknowledged(NOW)] == [high]
    assert [warning.warning_id for warning in warnings.by_severity(Severity.WARN, NOW)] == [low]
    assert warnings.by_severity(Severity.INFO, NOW) == []
    assert warnings.acknowledge_all() == 1
    assert warnings.unacknowledged(NOW) == []
    assert not warnings.acknowledge("unknown")


@pytest.mark.parametrize(("age", "count"), [(30 * 60 * SECOND, 1), (30 * 60 * SECOND + 1, 0)])
def test_an_active_warning_is_young_and_not_acknowledged(age: int, count: int) -> None:
    warnings = Warnings()
    add(warnings, "active", NOW)
    warnings.acknowledge(add(warnings, "seen", NOW))

    assert len(warnings.active(30 * 60 * SECOND, NOW + age)) == count


def test_clearing_takes_all_or_those_that_are_old() -> None:
    warnings = Warnings()
    for hours in (0, 1, 2, 3):
        add(warnings, f"{hours} h", NOW + hours * HOUR)

    assert warnings.clear_older(2, NOW + 3 * HOUR) == 2
    assert texts(warnings, NOW + 3 * HOUR) == ["3 h", "2 h"]
    assert warnings.clear() == 2
    assert (warnings.clear(), texts(warnings)) == (0, [])
    add(warnings, "3 h", NOW + 3 * HOUR)
    assert [warning.count for warning in warnings.all(NOW + 3 * HOUR)] == [1]


def test_a_clock_that_is_set_back_breaks_nothing() -> None:
    warnings = Warnings()
    add(warnings, "later", NOW + HOUR)
    add(warnings, "later", NOW)
    add(warnings, "earlier", NOW)

    assert texts(warnings) == ["earlier", "later"]


def test_a_text_of_megabytes_is_cut() -> None:
    warnings = Warnings()
    add(warnings, "x" * 5_000_000)
    add(warnings, "x" * 4_000_000)

    (kept,) = warnings.all(NOW)
    assert (len(kept.message), kept.message[-1], kept.count) == (MAX_TEXT, "…", 2)


def test_the_ids_are_fit_for_a_path() -> None:
    assert re.fullmatch(r"[0-9a-f]+-[0-9a-f]+", add(Warnings(), "x"))
