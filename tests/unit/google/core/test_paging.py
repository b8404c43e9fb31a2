"""Pages that stay whole while things are made and deleted."""

from base64 import urlsafe_b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidArgument
from penstock.google.core.paging import page

HERE = "topics of projects/p"


def keys(count: int) -> list[str]:
    return [f"projects/p/topics/t{number:05}" for number in range(count)]


def test_the_size_of_a_page(subtests: pytest.Subtests) -> None:
    rows: list[tuple[int, int]] = [(0, 100), (1, 1), (1000, 1000), (1001, 1000), (2**31 - 1, 1000)]
    for asked, shown in rows:
        with subtests.test(asked=asked, shown=shown):
            where, token = page(keys(2000), asked, "", HERE)

            assert where == slice(0, shown)
            assert token


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="page_size is -1"):
        page(keys(1), -1, "", HERE)


def test_the_last_page_has_no_token(subtests: pytest.Subtests) -> None:
    for count in (0, 1, 99, 100):
        with subtests.test(count=count):
            where, token = page(keys(count), 100, "", HERE)

            assert len(keys(count)[where]) == count
            assert token == ""


@given(st.sets(st.text(min_size=1), max_size=30), st.integers(1, 7))
def test_pages_together_are_the_whole(names: set[str], size: int) -> None:
    ordered, seen, token = sorted(names), [], ""
    for _ in range(len(ordered) + 1):
        where, token = page(ordered, size, token, HERE)
        seen += ordered[where]
        if not token:
            break

    assert seen == ordered


def test_what_comes_and_goes_between_two_pages_moves_nothing() -> None:
    before = keys(10)
    _, token = page(before, 4, "", HERE)
    after = sorted({*before, "projects/p/topics/t00001b", "projects/p/topics/t00005b"} - {before[3], before[7]})

    where, _ = page(after, 4, token, HERE)

    assert [key[-6:] for key in after[where]] == ["t00004", "t00005", "00005b", "t00006"]


def good_token() -> str:
    return page(keys(10), 4, "", HERE)[1]


def test_a_token_is_plain_and_belongs_to_its_listing() -> None:
    assert good_token().isascii()
    assert not set(good_token()) & set("=+/&? ")
    with pytest.raises(InvalidArgument, match="of the same listing"):
        page(keys(10), 4, good_token(), "topics of projects/q")


def test_a_token_that_nobody_gave_out_is_refused(subtests: pytest.Subtests) -> None:
    rows: list[str] = [
        "x",
        "====",
        "é",
        "\x00",
        "AAAA",
        " ",
        "a" * 100000,
        "%2e%2e",
        "null",
        "-1",
        "0",
        good_token()[:-1],
        good_token()[1:],
        "A" + good_token(),
        urlsafe_b64encode(b"\x00\x00\x00\x00\xff\xff").decode(),
    ]
    for token in rows:
        with subtests.test(token=token), pytest.raises(InvalidArgument, match="page_token is"):
            page(keys(10), 4, token, HERE)
