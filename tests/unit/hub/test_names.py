"""Addresses of actors, names of topics, patterns of subscriptions, what covers what, and the text of the refusals."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.hub.core.names import (
    EVERYONE,
    HUB,
    MAX_ADDRESS,
    address_of,
    checked_pattern,
    checked_topic,
    covers,
    has_wildcard,
    is_address,
    is_pattern,
    is_topic,
    overlaps,
)
from penstock.hub.core.refusal import Refusal

LONGEST = f"@(a/{'b' * (MAX_ADDRESS - 5)})"


def test_an_address_is_a_kind_and_a_name_in_lower_case(subtests: pytest.Subtests) -> None:
    rows: list[str] = [
        "@(browser/client-ui)",
        "@(a/b)",
        "@(0/1)",
        "@(-/-)",
        "@(browser/8b0f0f3e-6f9e-4d53-9a0c-0c6c1d6a9f11)",
        HUB,
        EVERYONE,
        LONGEST,
    ]
    for text in rows:
        with subtests.test(text=text):
            assert is_address(text)


def test_anything_else_is_none(subtests: pytest.Subtests) -> None:
    rows: list[str] = [
        "",
        "@",
        "@()",
        "@(/)",
        "@(a/)",
        "@(/b)",
        "@(broadcast)",
        "@(a/b/c)",
        "@(a/b",
        "(a/b)",
        "a/b",
        "@(a/b) ",
        " @(a/b)",
        "@(a/b)\n",
        "@(A/b)",
        "@(a/B)",
        "@(a_b/c)",
        "@(a/b.c)",
        "@(a/ b)",
        "@(\u00e4/b)",
        "@(\u0661/b)",
        "@(a/\ud800)",
        "@(a\0/b)",
        "@(@(a/b))",
        f"@(a/{'b' * (MAX_ADDRESS - 4)})",
        "@(" + "a" * 100_000,
    ]
    for text in rows:
        with subtests.test(text=text):
            assert not is_address(text)


def test_the_longest_address_is_as_long_as_may_be() -> None:
    assert len(LONGEST) == MAX_ADDRESS


def test_what_a_token_names_is_made_an_address_and_nothing_is_repaired(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, str]] = [
        ("browser/ui", "@(browser/ui)"),
        ("@(browser/ui)", "@(browser/ui)"),
        ("", "@()"),
        ("@(browser/ui", "@(browser/ui"),
        ("@browser/ui", "@(@browser/ui)"),
    ]
    for named, address in rows:
        with subtests.test(named=named):
            assert address_of(named) == address


@given(st.from_regex(r"[a-z0-9-]{1,20}/[a-z0-9-]{1,20}", fullmatch=True))
def test_every_kind_and_name_is_an_address_and_stays_it(named: str) -> None:
    address = address_of(named)

    assert is_address(address)
    assert address_of(address) == address


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
