"""JSON texts that not every client can read: their nesting, their numbers."""

from __future__ import annotations

import json
import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.hub.core.json_limits import has_huge_number, is_deeper


def test_a_number_that_some_parsers_give_up_at_is_found(subtests: pytest.Subtests) -> None:
    rows: list[str] = [
        "1e999",
        "-1E+999",
        "[1e309]",
        '{"a":{"b":[1,2,1.5e400]}}',
        "9" * 5_000,
        "[-" + "9" * 5_000 + "]",
        "9" * 250 + "e99",
        "1e0999",
    ]
    for text in rows:
        with subtests.test(text=text):
            assert has_huge_number(text.encode())


def test_others_are_not(subtests: pytest.Subtests) -> None:
    rows: list[str] = [
        "1e308",
        "1e-999",
        '"1e999"',
        '"' + "9" * 5_000 + '"',
        "0." + "9" * 300,
        "9" * 100,
        "1e007",
        '{"e000":1}',
        "null",
        '"e+999"',
    ]
    for text in rows:
        with subtests.test(text=text):
            assert not has_huge_number(text.encode())


@given(
    digits=st.integers(1, 400), exponent=st.integers(-400, 400), sign=st.sampled_from(["e", "E", "e+"]), is_whole=st.booleans()
)
def test_nothing_is_missed_that_a_double_does_not_hold(digits: int, exponent: int, sign: str, is_whole: bool) -> None:
    text = "9" * digits + ("" if is_whole else ".5") + (f"{sign}{exponent}" if exponent >= 0 else f"e{exponent}")
    assert has_huge_number(text.encode()) == math.isinf(float(text))


@given(st.recursive(st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(), st.lists))
def test_what_python_writes_is_fine(value: object) -> None:
    assert not has_huge_number(msgspec.json.encode(value))


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


@given(value=json_values, limit=st.integers(0, 20), around=st.integers(0, 20))
def test_the_depth_is_that_of_the_value(value: object, limit: int, around: int) -> None:
    for _ in range(around):
        value = [[], value, "]"]
    depth = depth_of(value)
    for most in (limit, max(depth - 1, 0), depth):
        assert is_deeper(json.dumps(value).encode(), most) is (depth > most)
