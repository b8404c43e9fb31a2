"""What the core remembers by itself: publishes it has heard, positions of topics; and how deep a JSON text is nested."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.durations import SECOND
from penstock.hub.core.messages import Position, Published
from penstock.hub.core.nesting import is_deeper
from penstock.hub.core.positions import Positions
from penstock.hub.core.repeats import Seen

ANSWER = Published("x", 1, delivered=True, timestamp=0)


# --- seen ---------------------------------------------------------------------------------------------------------------------


def test_a_publish_is_remembered_for_a_while(subtests: pytest.Subtests) -> None:
    rows: list[tuple[int, bool]] = [(0, True), (10, True), (59, True), (60, False), (-1, False)]
    for wait, is_known in rows:
        with subtests.test(wait=wait):
            seen = Seen(60 * SECOND, 10)
            seen.note(("a", "s", "1", 0), 100 * SECOND, ANSWER)

            heard = seen.find(("a", "s", "1", 0), (100 + wait) * SECOND)

            assert (heard is not None) is is_known
            assert seen.find(("b", "s", "1", 0), 100 * SECOND) is None


def test_the_oldest_is_forgotten_when_there_are_too_many() -> None:
    seen = Seen(60 * SECOND, 2)
    for name in ("1", "2", "1", "3"):
        seen.note(("a", "s", name, 0), 0)

    assert len(seen) == 2
    assert [name for name in "123" if seen.find(("a", "s", name, 0), 0)] == ["1", "3"]


def test_what_is_too_old_is_forgotten_whenever_something_is_noted() -> None:
    seen = Seen(60 * SECOND, 100)
    for at in (0, 10, 50, 70):
        seen.note(("a", "s", str(at), 0), at * SECOND)

    assert len(seen) == 2
    seen.note(("a", "s", "back", 0), 20 * SECOND)
    assert len(seen) == 1, "instants that lie in the future are none: the clock was set back"


def test_a_hub_may_remember_nothing() -> None:
    seen = Seen(60 * SECOND, 0)
    seen.note(("a", "s", "1", 0), 0)

    assert (len(seen), seen.find(("a", "s", "1", 0), 0)) == (0, None)


def test_what_is_forgotten_is_handed_out_once() -> None:
    seen = Seen(60 * SECOND, 2)
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


# --- depth --------------------------------------------------------------------------------------------------------------------


def test_the_depth_of_a_text(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, int]] = [
        ("1", 0),
        ('"[[[["', 0),
        ('"\\"[[[["', 0),
        ('"\\\\"', 0),
        ("[]", 1),
        ("{}", 1),
        ('{"[": "]"}', 1),
        ("[[],[],{}]", 2),
        ('[{"a":[1,"]"]}]', 3),
        ("[" * 50 + "]" * 50, 50),
    ]
    for text, depth in rows:
        with subtests.test(text=text):
            assert not is_deeper(text.encode(), depth)
            assert depth == 0 or is_deeper(text.encode(), depth - 1)


json_values = st.recursive(
    st.none() | st.integers(0, 9) | st.text(alphabet='[]{}"\\a', max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(alphabet='[]"\\', max_size=3), inner, max_size=3),
    max_leaves=20,
)


def depth_of(value: object) -> int:
    if isinstance(value, list):
        return 1 + max(map(depth_of, value), default=0)
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    return 0


@given(value=json_values, limit=st.integers(0, 6))
def test_the_depth_is_that_of_the_value(value: object, limit: int) -> None:
    assert is_deeper(json.dumps(value).encode(), limit) is (depth_of(value) > limit)
