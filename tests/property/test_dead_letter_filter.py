"""Conditions on dead letters: whatever value is written is the one that is compared, and text is either understood or refused."""

from hypothesis import given
from hypothesis import strategies as st

from penstock.client.core.dead_letter_filter import DeadLetterFields, DeadLetterFilter
from penstock.durations import SECOND
from penstock.errors import InvalidArgument

texts = st.text(max_size=30)
letters = st.builds(
    DeadLetterFields,
    message_id=texts,
    reason=texts,
    error=st.none() | texts,
    attempts=st.integers(0, 10**6),
    priority=st.integers(0, 9),
    dead_at=st.integers(0, 10**15),
    headers=st.dictionaries(st.sampled_from(["a", "b.c"]), texts),
)


def quoted(text: str, mark: str) -> str:
    return mark + text.replace("\\", "\\\\").replace(mark, f"\\{mark}") + mark


@given(letter=letters, mark=st.sampled_from("'\""), other=texts)
def test_a_quoted_value_is_compared_as_it_is(letter: DeadLetterFields, mark: str, other: str) -> None:
    assert DeadLetterFilter.parse(f"error={quoted(letter.error or '', mark)}").matches(letter, 0)
    assert DeadLetterFilter.parse(f"id={quoted(other, mark)}").matches(letter, 0) is (letter.message_id == other)
    assert DeadLetterFilter.parse(f"id!={quoted(other, mark)}").matches(letter, 0) is (letter.message_id != other)
    assert DeadLetterFilter.parse(f"header.b.c={quoted(other, mark)}").matches(letter, 0) is (
        letter.headers.get("b.c", "") == other
    )


@given(letter=letters, part=texts)
def test_containing_and_not_containing_are_opposites(letter: DeadLetterFields, part: str) -> None:
    contains = DeadLetterFilter.parse(f"reason~{quoted(part, chr(39))}").matches(letter, 0)

    assert DeadLetterFilter.parse(f"reason!~{quoted(part, chr(39))}").matches(letter, 0) is not contains
    assert contains or part not in letter.reason


@given(letter=letters, number=st.integers(0, 10**6), seconds=st.integers(0, 10**6), now=st.integers(10**15, 10**16))
def test_numbers_and_ages_are_ordered(letter: DeadLetterFields, number: int, seconds: int, now: int) -> None:
    assert DeadLetterFilter.parse(f"attempts>{number}").matches(letter, now) is (letter.attempts > number)
    assert DeadLetterFilter.parse(f"attempts<={number}").matches(letter, now) is (letter.attempts <= number)
    assert DeadLetterFilter.parse(f"age>{seconds}s").matches(letter, now) is (now - letter.dead_at > seconds * SECOND)
    both = DeadLetterFilter.parse(f"attempts>{number} AND age<={seconds}")
    assert both.matches(letter, now) is (letter.attempts > number and now - letter.dead_at <= seconds * SECOND)


@given(text=st.text(max_size=60) | st.text("abc=<>!~'\" \\andAND.-0123456789", max_size=60), letter=letters)
def test_any_text_is_understood_or_refused(text: str, letter: DeadLetterFields) -> None:
    try:
        where = DeadLetterFilter.parse(text)
    except InvalidArgument:
        return
    assert where.matches(letter, 0) in {True, False}
