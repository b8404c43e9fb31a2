"""Names of topics, patterns of subscriptions, what covers what, and the words of the refusals."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.hub.core.refusal import Refusal
from penstock.hub.core.topic import checked_pattern, checked_topic, covers, has_wildcard, is_pattern, is_topic, overlaps

TOPICS = (
    "a",
    "system/events",
    "Debug/error-logs/under_score/42",
    "-",
    "_",
    "/",
    "/a",
    "a/",
    "a//b",
    "///",
    "a" * 256,
    "/" * 256,
)
PATTERNS = (
    "+",
    "#",
    "/+",
    "+/",
    "/#",
    "+/#",
    "a/+",
    "a/#",
    "+/b",
    "a/+/c",
    "a//+",
    "a//#",
    "+/+/+",
    "+/" * 9 + "+",  # 10 levels
    "+/" * 9 + "#",
    "a" * 254 + "/+",  # 256 characters
    "a" * 254 + "/#",
)
NEITHER = (
    "",
    "a" * 257,
    "/" * 257,
    "a" * 255 + "/+",  # 257 characters
    "a" * 255 + "/#",
    "a+",
    "+a",
    "++",
    "a#",
    "#a",
    "##",
    "#/a",
    "a/#/b",
    "#/#",
    "a/b+/c",
    "system/*",
    "analytics.pageviews",
    "a b",
    " a",
    "a ",
    "a\n",
    "\na",
    "a\x00",
    "a\\b",
    "hub:events",
    "@(a/b)",
    "é",
    "٣",  # a digit, but not one of ours
    "\uff41",  # a letter, the same
    "\ud800",
    None,
    True,
    7,
    b"a",
    ["a"],
    {"a": 1},
)


def shown(value: object) -> str:
    return ascii(value)[:24]


def test_a_topic_may_be_published_and_subscribed_to(subtests: pytest.Subtests) -> None:
    for topic in TOPICS:
        with subtests.test(topic=topic):
            assert is_topic(topic)
            assert is_pattern(topic)
            assert not has_wildcard(topic)
            assert checked_topic(topic) == topic
            assert checked_pattern(topic) == topic


def test_a_pattern_may_be_subscribed_to_only(subtests: pytest.Subtests) -> None:
    for pattern in PATTERNS:
        with subtests.test(pattern=pattern):
            assert not is_topic(pattern)
            assert is_pattern(pattern)
            assert has_wildcard(pattern)
            assert checked_pattern(pattern) == pattern

            with pytest.raises(Refusal) as caught:
                checked_topic(pattern)

            assert (caught.value.code, caught.value.message, caught.value.reason) == (
                "internal_error",
                "topic is required",
                "wildcard_topic",
            )
            assert caught.value.resolution == "publish to one topic; + and # are for subscriptions only"
            assert caught.value.details == {"reason": "wildcard_topic", "retryable": False, "topic": pattern}


def test_what_is_neither_is_refused_in_the_words_of_the_specification(subtests: pytest.Subtests) -> None:
    checks: list[Callable[[object], str]] = [checked_topic, checked_pattern]
    for check in checks:
        for name in NEITHER:
            with subtests.test(check=check, name=name):
                assert not is_topic(name)
                assert not is_pattern(name)

                with pytest.raises(Refusal, match=r"^topic is required$") as caught:
                    check(name)

                assert caught.value.code == "internal_error"
                assert (
                    caught.value.reason
                    == caught.value.details["reason"]
                    == ("missing_topic" if name is None else "invalid_topic")
                )
                assert not caught.value.retryable
                assert caught.value.resolution.startswith("send a topic of 1 to 256 letters, digits, / _ and -")


def test_a_pattern_of_too_many_levels_is_refused(subtests: pytest.Subtests) -> None:
    rows: list[str] = ["+/" * 10 + "+", "a/" * 10 + "#", "/" * 10 + "+", "+/" * 127 + "+"]
    for pattern in rows:
        with subtests.test(pattern=pattern):
            with pytest.raises(Refusal, match=r"^topic is required$") as caught:
                checked_pattern(pattern)

            assert caught.value.code == "internal_error"
            assert caught.value.resolution == "subscribe to a pattern of at most 10 levels; # covers all further ones"
            assert caught.value.details == {"reason": "too_many_levels", "retryable": False, "topic": pattern}


def test_a_topic_may_have_any_number_of_levels() -> None:
    deep = "a/" * 127 + "a"

    assert checked_pattern(deep) == checked_topic(deep) == deep


def test_a_subscriber_is_told_of_wildcards_and_a_publisher_is_not() -> None:
    resolutions = []
    for check in (checked_pattern, checked_topic):
        with pytest.raises(Refusal) as caught:
            check("a b")
        resolutions.append(caught.value.resolution)

    assert ["#" in each for each in resolutions] == [True, False]


def test_a_refusal_repeats_a_name_as_far_as_it_shows_what_is_wrong(subtests: pytest.Subtests) -> None:
    rows: list[tuple[object, dict[str, str]]] = [
        ("a b", {"topic": "a b"}),
        ("x" * 100_000, {"topic": "x" * 257}),
        (None, {}),
        (7, {}),
        (["secret"], {}),
    ]
    for name, told in rows:
        with subtests.test(name=name):
            with pytest.raises(Refusal) as caught:
                checked_pattern(name)

            assert {key: value for key, value in caught.value.details.items() if key not in ("reason", "retryable")} == told


def test_a_pattern_covers_a_topic(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, str, bool]] = [
        ("a", "a", True),
        ("a", "A", False),
        ("a", "ab", False),
        ("a", "a/b", False),
        ("a/b", "a", False),
        ("+", "a", True),
        ("+", "a/b", False),
        ("+", "/", False),
        ("+/+", "/", True),
        ("a/+", "a", False),
        ("a/+", "a/", True),
        ("a/+", "a/b", True),
        ("a/+", "a/b/c", False),
        ("a/+/c", "a//c", True),
        ("+/b", "a/b", True),
        ("+/b", "/b", True),
        ("+/b", "b", False),
        ("#", "a", True),
        ("#", "/a//b/", True),
        ("a/#", "a", True),
        ("a/#", "a/", True),
        ("a/#", "a/b/c", True),
        ("a/#", "ab", False),
        ("a/#", "b/a", False),
        ("a/+/#", "a", False),
        ("a/+/#", "a/b", True),
        ("a/+/#", "a/b/c/d", True),
        ("/#", "/a", True),
        ("/#", "a", False),
    ]
    for pattern, other, expected in rows:
        with subtests.test(pattern=pattern, other=other):
            assert covers(pattern, other) is expected
            assert overlaps(pattern, other) is expected
            assert overlaps(other, pattern) is expected


def test_a_pattern_covers_all_that_another_covers(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, str, bool]] = [
        ("#", "#", True),
        ("#", "+", True),
        ("#", "a/+/#", True),
        ("+/#", "#", True),
        ("+/+/#", "#", False),
        ("a/#", "#", False),
        ("+", "#", False),
        ("+", "+", True),
        ("a", "+", False),
        ("a", "a/#", False),
        ("+", "a/#", False),
        ("+/#", "a/#", True),
        ("a/#", "a/#", True),
        ("a/#", "a/+", True),
        ("a/#", "a/b/#", True),
        ("a/#", "+/b", False),
        ("a/b/#", "a/#", False),
        ("a/+/#", "a/#", False),
        ("a/+/#", "a/b/#", True),
        ("a/+", "a/b/#", False),
        ("a/+/c", "a/+/c", True),
        ("a/+/c", "a/b/+", False),
    ]
    for pattern, other, expected in rows:
        with subtests.test(pattern=pattern, other=other):
            assert covers(pattern, other) is expected


def test_patterns_overlap_when_a_topic_is_covered_by_both(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, str, bool]] = [
        ("a/+", "+/b", True),
        ("a/+", "b/+", False),
        ("a/+/c", "a/b/+", True),
        ("a/+/c", "a/b/d", False),
        ("a/+", "a/+/c", False),
        ("a/#", "+/b", True),
        ("a/#", "b/#", False),
        ("a/#", "a/b/#", True),
        ("a/b/#", "a/+", True),
        ("a/b/#", "a", False),
        ("a/#", "+", True),
        ("a/b", "a/b/#", True),
        ("#", "a/+/c", True),
        ("#", "#", True),
        ("+", "+/+", False),
    ]
    for one, other, expected in rows:
        with subtests.test(one=one, other=other):
            assert overlaps(one, other) is expected
            assert overlaps(other, one) is expected
