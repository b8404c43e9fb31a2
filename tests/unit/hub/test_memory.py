"""What the hub keeps in memory: recent publishes, positions of topics."""

from __future__ import annotations

import pytest

from penstock.durations import SECOND
from penstock.hub.core.memory import Positions, RecentPublishes
from penstock.hub.core.messages import Position, Published

ANSWER = Published("x", 1, delivered=True, timestamp=0)


# --- seen ---------------------------------------------------------------------------------------------------------------------


def test_a_publish_is_remembered_for_a_while(subtests: pytest.Subtests) -> None:
    rows: list[tuple[int, bool]] = [(0, True), (10, True), (59, True), (60, False), (-1, False)]
    for wait, is_known in rows:
        with subtests.test(wait=wait):
            seen = RecentPublishes(60 * SECOND, 10)
            seen.note(("a", "s", "1", 0), 100 * SECOND, ANSWER)

            heard = seen.find(("a", "s", "1", 0), (100 + wait) * SECOND)

            assert (heard is not None) is is_known
            assert seen.find(("b", "s", "1", 0), 100 * SECOND) is None


def test_the_oldest_is_forgotten_when_there_are_too_many() -> None:
    seen = RecentPublishes(60 * SECOND, 2)
    for name in ("1", "2", "1", "3"):
        seen.note(("a", "s", name, 0), 0)

    assert len(seen) == 2
    assert [name for name in "123" if seen.find(("a", "s", name, 0), 0)] == ["1", "3"]


def test_what_is_too_old_is_forgotten_whenever_something_is_noted() -> None:
    seen = RecentPublishes(60 * SECOND, 100)
    for at in (0, 10, 50, 70):
        seen.note(("a", "s", str(at), 0), at * SECOND)

    assert len(seen) == 2
    seen.note(("a", "s", "back", 0), 20 * SECOND)
    assert len(seen) == 1, "instants that lie in the future are none: the clock was set back"


def test_a_hub_may_remember_nothing() -> None:
    seen = RecentPublishes(60 * SECOND, 0)
    seen.note(("a", "s", "1", 0), 0)

    assert (len(seen), seen.find(("a", "s", "1", 0), 0)) == (0, None)


def test_what_is_forgotten_is_handed_out_once() -> None:
    seen = RecentPublishes(60 * SECOND, 2)
    heard = seen.note(("a", "s", "1", 0), 0)

    assert seen.forget(("a", "s", "1", 0)) is heard
    assert seen.forget(("a", "s", "1", 0)) is None


# --- positions ----------------------------------------------------------------------------------------------------------------


def test_the_topic_that_was_used_longest_ago_is_forgotten() -> None:
    positions = Positions("E", 2)
    positions.next("a")
    positions.next("b")
    assert positions.last("a") == Position("E.1", 0)

    positions.last("c")

    assert (len(positions), positions.peek("b")) == (2, None)
    assert positions.next("a") == Position("E.1", 1)
    assert positions.next("b") == Position("E.4", 0)


def test_after_a_position_of_a_log_a_topic_begins_anew() -> None:
    positions = Positions("E", 2)
    positions.next("a")

    positions.note("a", Position("log", 7))

    assert (positions.peek("a"), positions.last("a")) == (Position("log", 7), Position("log", 7))
    assert positions.next("a") == Position("E.2", 0)
    assert positions.next("a") == Position("E.2", 1)
