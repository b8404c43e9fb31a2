"""Numbers that not every client can read."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.hub.core.large_numbers import has_huge_number


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
