"""Patterns of addresses: what they match, what is refused and how, and that none of them takes long."""

from __future__ import annotations

import functools
import random
import time
import tracemalloc
import uuid

import pytest

from penstock.hub.core.discovery import MAX_COUNT, MAX_NESTING, MAX_PATTERN, MAX_SIZE, MAX_WORK, glob_matcher, regex_matcher
from penstock.hub.core.refusal import Refusal

ADDRESS = "@(browser/client-7)"


@functools.cache
def addresses(count: int) -> list[str]:
    """Addresses of many lengths, the longest that are usual among them."""
    chance = random.Random(7)
    kinds = ["browser", "node", "worker"]
    return [f"@({chance.choice(kinds)}/{uuid.UUID(int=chance.getrandbits(128))})" for _ in range(count)]


def test_a_regular_expression_matches_as_in_a_browser(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, list[str], list[str]]] = [
        ("", ["", "a", ADDRESS], []),
        ("browser", [ADDRESS, "browser"], ["", "brows", "Browser"]),
        (r"^@\(browser/.*\)$", [ADDRESS, "@(browser/)"], ["x" + ADDRESS, ADDRESS + "x", "@(node/x)"]),
        ("^a", ["a", "ab"], ["", "ba"]),
        ("a$", ["a", "ba"], ["", "ab", "a\n"]),
        ("^$", [""], ["a", "\n"]),
        ("$^", [""], ["a"]),
        ("^", ["", "a"], []),
        ("$", ["", "a"], []),
        ("a^", [], ["", "a", "aa"]),
        ("$a", [], ["", "a", "aa"]),
        ("(^a|b)c$", ["ac", "bc", "xbc"], ["xac", "acx", "bcx"]),
        ("x*^a", ["a"], ["xa"]),
        ("(^)*a($)*", ["a", "xax"], ["", "x"]),
        ("(^|,)b(,|$)", ["b", "b,c", "a,b", "a,b,c"], ["ab", "bc", "a,bc"]),
        ("^a{16}$", ["a" * 16], ["a" * 15, "a" * 17, "a" * 16 + "b"]),
        ("a|b", ["a", "b", "xb"], ["", "c"]),
        ("a|", ["", "c"], []),
        ("^(a|b|)c$", ["ac", "bc", "c"], ["abc", ""]),
        ("()", ["", "a"], []),
        ("^(?:ab)+$", ["ab", "abab"], ["", "aba"]),
        ("^ab*c$", ["ac", "abbbc"], ["abb", "bc"]),
        ("^ab+c$", ["abc", "abbbc"], ["ac"]),
        ("^ab?c$", ["ac", "abc"], ["abbc"]),
        ("^a{2}$", ["aa"], ["a", "aaa"]),
        ("^a{2,}$", ["aa", "aaaaa"], ["", "a"]),
        ("^a{0,}$", ["", "aaaaa"], ["b"]),
        ("^a{2,4}$", ["aa", "aaa", "aaaa"], ["a", "aaaaa"]),
        ("^a{0}b$", ["b"], ["ab"]),
        ("^(a|bb){2}$", ["aa", "abb", "bba", "bbbb"], ["a", "bb", "aaa"]),
        ("^a*?b+?c??d{1,2}?$", ["bd", "aabbcdd"], ["ad"]),
        ("^.$", ["a", "é", "😀"], ["", "\n", "\r", "\u2028", "\u2029", "ab"]),
        ("^[a-c]$", ["a", "b", "c"], ["d", "-", ""]),
        ("^[^a-cx]$", ["d", "-", "\n"], ["a", "c", "x", ""]),
        ("^[^a-zb-c]$", ["-", "0"], ["a", "c", "d", "z"]),
        ("^[-a]$", ["-", "a"], ["b"]),
        ("^[a-]$", ["-", "a"], ["b"]),
        (r"^[a\-z]$", ["a", "-", "z"], ["b"]),
        ("^[a^]$", ["a", "^"], ["b"]),
        (r"^[\]\\[]$", ["]", "\\", "["], ["a"]),
        ("^[.*(]$", [".", "*", "("], ["a"]),
        (r"^[\d_]+$", ["0_9"], ["a", "\u0663"]),
        (r"^[^\d\w]$", ["-"], ["0", "a", "_"]),
        (r"^[\D]$", ["a"], ["1"]),
        (r"^\d\D$", ["1a"], ["11", "a1"]),
        (r"^\w\W$", ["_-", "a-", "9-"], ["--", "aa", "é-"]),
        (r"^\s\S$", [" a", "\ta", "\u00a0a", "\ufeffa", "\u3000a"], ["aa", "  "]),
        (r"^\(\)\.\-\/\[\{\*\\\$$", ["().-/[{*\\$"], ["()x-/[{*\\$"]),
        ("^]}$", ["]}"], ["]"]),
        ("^[^\x00-\U0010ffff]$", [], ["a"]),
        ("^[b-ca-z]x$", ["ax", "zx"], ["-x"]),
    ]
    for pattern, matching, others in rows:
        with subtests.test(pattern=pattern):
            matches = regex_matcher(pattern)

            assert [text for text in matching if not matches(text)] == []
            assert [text for text in others if matches(text)] == []


def test_what_is_not_supported_is_refused_with_its_place(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, int, str]] = [
        ("a)", 1, "a ) without its ("),
        ("x(a", 1, "a ( without its )"),
        ("x[a", 1, "a [ without its ]"),
        ("x[a-", 1, "a [ without its ]"),
        ("x[", 1, "a [ without its ]"),
        ("x[]", 1, "an empty set"),
        ("x[^]", 1, "an empty set"),
        ("[z-a]", 1, "a range"),
        (r"[a-\d]", 1, "a range"),
        (r"[\w-z]", 1, "a range"),
        ("*a", 0, "a repetition of nothing"),
        ("a|+", 2, "a repetition of nothing"),
        ("(?", 0, "looks around"),
        ("({2})", 1, "a repetition of nothing"),
        ("a**", 2, "a repetition of a repetition"),
        ("a*?+", 3, "a repetition of a repetition"),
        ("a{2}{3}", 4, "a repetition of a repetition"),
        ("^*", 0, "a repetition of an anchor"),
        ("a$+", 1, "a repetition of an anchor"),
        ("a{", 1, "no count"),
        ("a{x}", 1, "no count"),
        ("a{,3}", 1, "no count"),
        ("a{1", 1, "no count"),
        ("a{1,2", 1, "no count"),
        ("a{1,x}", 1, "no count"),
        ("a{\u0663}", 1, "no count"),
        ("a{3,2}", 1, "second number is below"),
        (f"a{{{MAX_COUNT + 1}}}", 1, f"beyond {MAX_COUNT}"),
        ("a{99999999999999999999}", 1, f"beyond {MAX_COUNT}"),
        (r"(a)\1", 3, r"\1"),
        (r"a\b", 1, r"\b"),
        (r"\p{L}", 0, r"\p"),
        (r"[\b]", 1, r"\b"),
        (r"\u0041", 0, r"\u"),
        (r"\_", 0, r"\_"),
        (r"\é", 0, r"\é"),
        ("a\\", 1, "before nothing"),
        ("[\\", 1, "before nothing"),
        ("(?=a)", 0, "looks around"),
        ("(?!a)", 0, "looks around"),
        ("(?<=a)", 0, "looks around"),
        ("(?<n>a)", 0, "has a name"),
        ("(?i)a", 0, "looks around"),
        ("(" * (MAX_NESTING + 1) + ")" * (MAX_NESTING + 1), MAX_NESTING, "deep"),
        ("(a{1,50}){1,50}", 0, f"more than {MAX_SIZE}"),
        ("(()*){64}(((){64}){64}){64}", 10, f"more than {MAX_SIZE}"),
        ("(a{64}){8}|b", 0, f"more than {MAX_SIZE}"),
        ("(a{64}){8}b", 0, f"more than {MAX_SIZE}"),
        ("x" * 200 + "[" * 20, 200, "a [ without its ]"),
    ]
    for pattern, position, what in rows:
        with subtests.test(pattern=pattern):
            with pytest.raises(Refusal) as caught:
                regex_matcher(pattern)

            refusal = caught.value
            assert (refusal.code, refusal.reason, refusal.retryable) == ("internal_error", "invalid_pattern", False)
            assert refusal.details["position"] == position
            assert what in refusal.message
            assert f"character {position + 1}" in refusal.message
            assert "supported are" in refusal.resolution


def test_a_pattern_has_a_length() -> None:
    for make in (regex_matcher, glob_matcher):
        make("a" * MAX_PATTERN)

        with pytest.raises(Refusal, match="257 characters") as caught:
            make("a" * (MAX_PATTERN + 1))
        assert caught.value.reason == "invalid_pattern"


def test_what_is_just_within_the_bounds_is_understood() -> None:
    assert regex_matcher("(" * MAX_NESTING + "a" + ")" * MAX_NESTING)("a")
    assert regex_matcher("()" * (MAX_NESTING + 1))("a")
    assert regex_matcher("(a{64}){4}")("a" * 256)
    assert not regex_matcher("(a{64}){4}")("a" * 255)
    assert not regex_matcher("(a{64}){8}")("a" * 256)


def test_a_glob_matches_from_end_to_end(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, list[str], list[str]]] = [
        ("*", ["", "a", ADDRESS], []),
        ("", [""], ["a"]),
        (ADDRESS, [ADDRESS], ["", ADDRESS + "x"]),
        ("@(browser/*", [ADDRESS], ["x" + ADDRESS, "@(node/x)"]),
        ("*)", [ADDRESS, ")"], ["a"]),
        ("@(*/client-*)", [ADDRESS], ["@(browser/client)"]),
        ("a*a", ["aa", "aba"], ["a", "ab", ""]),
        ("ab*ba", ["abba", "abxba"], ["aba"]),
        ("*a*b*", ["ab", "xaxbx"], ["ba", "a"]),
        ("a*bc*c", ["abcc", "axbcxc"], ["abc"]),
        ("**a**", ["a", "xax"], ["", "x"]),
        ("a.c", ["a.c"], ["abc"]),
        ("[a-z]*(+)?", ["[a-z](+)?"], ["a"]),
    ]
    for pattern, matching, others in rows:
        with subtests.test(pattern=pattern):
            matches = glob_matcher(pattern)

            assert [text for text in matching if not matches(text)] == []
            assert [text for text in others if matches(text)] == []


def test_patterns_that_hang_others_are_as_fast_as_any(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, str, bool]] = [
        ("(a+)+$", "a" * 5_000 + "b", False),
        ("^(a+)+$", "a" * 5_000 + "b", False),
        ("(a|a)*b", "a" * 5_000, False),
        ("(a|aa)+$", "a" * 5_000 + "!", False),
        ("(.*)*x", "a" * 5_000, False),
        ("^(.*a){20}$", "a" * 5_000 + "b", False),
        ("(([a-z])+.)+[A-Z]([a-z])+$", "a" * 5_000, False),
        ("^(([a-z0-9])+)*-$", "a0" * 2_500, False),
        ("(x+x+)+y", "x" * 5_000, False),
        ("a?" * 64 + "a" * 64, "a" * 64, True),
        ("((((((((a*)*)*)*)*)*)*)*)*b", "a" * 5_000, False),
        ("(" * MAX_NESTING + "a{0,64}" + ")*" * MAX_NESTING + "b", "a" * 5_000, False),
        ("((.?){64}){7}x", "a" * 5_000, False),
        ("(.{0,60}){8}[xy]", "a" * 5_000, False),
    ]
    for pattern, text, answer in rows:
        with subtests.test(pattern=pattern):
            begin = time.process_time()

            assert regex_matcher(pattern)(text) is answer

            assert time.process_time() - begin < 2  # it takes milliseconds; trying every way would take longer than the universe


def test_a_pattern_that_leads_to_ever_new_states_is_refused_in_time(subtests: pytest.Subtests) -> None:
    for pattern in ("a.{30}b", "a.{60}(.{0,60}){7}$", "[0-9a-f]*a[0-9a-f-]{15,60}[xy]", "(a.{20}|b.{20}|c.{20}|d.{20}){4}$"):
        with subtests.test(pattern=pattern):
            texts = addresses(50_000)
            begin = time.process_time()

            with pytest.raises(Refusal) as caught:
                sum(map(regex_matcher(pattern), texts))

            assert caught.value.reason == "pattern_too_costly"
            assert time.process_time() - begin < 5  # some 50 ms on an idle machine


def test_a_text_of_ever_new_characters_is_refused_too() -> None:
    with pytest.raises(Refusal, match="too much work"):
        regex_matcher("[ab]$")("".join(map(chr, range(MAX_WORK + 1))))


def test_its_states_do_not_fill_the_memory() -> None:
    texts = addresses(20_000)
    tracemalloc.start()
    try:
        with pytest.raises(Refusal, match="too much work"):
            sum(map(regex_matcher("(a.{20}|b.{20}|c.{20}|d.{20}){4}$"), texts))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 6 * 1024 * 1024


def test_many_addresses_are_searched_at_once(subtests: pytest.Subtests) -> None:
    for pattern in ("browser", r"^@\(browser/", r"^@\((browser|node)/", r"^@\(node/.*[0-7]\)$", r"\d\d\d-[a-f]+", ".*"):
        with subtests.test(pattern=pattern):
            texts = addresses(50_000)
            begin = time.process_time()

            assert any(map(regex_matcher(pattern), texts))
            assert sum(map(regex_matcher(pattern), texts))

            assert time.process_time() - begin < 3  # each 20 to 100 ms on an idle machine
