"""Which texts are addresses of actors."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.hub.core.address import EVERYONE, HUB, MAX_ADDRESS, address_of, is_address

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
