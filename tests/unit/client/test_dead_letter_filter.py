"""Which dead letters a condition picks, and what is told about one that cannot be understood."""

from dataclasses import replace

import pytest

from penstock.client.core.dead_letter_filter import MAX_LENGTH, DeadLetterFields, DeadLetterFilter
from penstock.durations import SECOND
from penstock.errors import InvalidArgument

HOUR = 3_600 * SECOND
LETTER = DeadLetterFields(
    message_id="06605d061c3283",
    reason="max_retries_exceeded",
    error="Timed out: no answer",
    attempts=4,
    priority=5,
    dead_at=1_000 * HOUR,
    headers={"tenant": "acme", "x.y-z": "two words", "quote": "it's", "empty": ""},
)
NOW = LETTER.dead_at + HOUR


def test_a_letter_fulfils_it_or_not(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, bool]] = [
        ("reason=max_retries_exceeded", True),
        ("reason=ttl_expired", False),
        ("reason~Max_Retries", True),
        ("reason~bogus", False),
        ("reason!=explicit_nack", True),
        ("reason!=rejected", True),
        ("reason=rejected", False),
        ("error~timed", True),
        ("error~'TIMED OUT'", True),
        ('error~"no answer"', True),
        ("error!~refused", True),
        ("error!~timed", False),
        ("id=06605d061c3283", True),
        ("id~5d06", True),
        ("attempts>3", True),
        ("attempts>4", False),
        ("attempts>=4", True),
        ("attempts<5", True),
        ("attempts<=3", False),
        ("attempts = 4", True),
        ("attempts!=4", False),
        ("priority='5'", True),
        ("age>59m", True),
        ("age>1h", False),
        ("age>=1h", True),
        ("age<3600.5", True),
        ("age<=3600000ms", True),
        ("header.tenant=acme", True),
        ("header.tenant=ACME", False),
        ("header.x.y-z='two words'", True),
        (r"header.quote='it\'s'", True),
        (r'header.quote="it\'s"', True),
        ("header.absent=''", True),
        ("header.empty=''", True),
        ("header.absent!=x", True),
        ("header.absent~x", False),
        ("  attempts>3   AND error~timed and\tage>1m  ", True),
        ("attempts>3 AND error~refused", False),
        ("error=and AND attempts>3", False),
        ("error~'a AND b'", False),
        ("error!=a=b", True),
    ]
    for text, holds in rows:
        with subtests.test(text=text, holds=holds):
            assert DeadLetterFilter.parse(text).matches(LETTER, NOW) is holds


def test_a_letter_without_an_error_has_an_empty_one() -> None:
    assert DeadLetterFilter.parse("error=''").matches(replace(LETTER, error=None), NOW)
    assert not DeadLetterFilter.parse("error~x").matches(replace(LETTER, error=None), NOW)


def test_no_condition_is_always_fulfilled() -> None:
    assert DeadLetterFilter().matches(LETTER, NOW)


def test_what_cannot_be_understood_is_told_with_its_place(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, str]] = [
        ("", "where is '', expected conditions"),
        ("  ", "where is '  ', expected conditions"),
        ("x" * (MAX_LENGTH + 1), "where is 'xxx"),
        ("reason", "at 'reason' (character 1), expected a condition such as"),
        ("=1", "at '=1' (character 1), expected a condition"),
        ("reason=", "at 'reason=' (character 1), expected a condition"),
        ("reason='x", 'at "reason=\'x" (character 1), expected a condition'),
        ("reason='x'y", "(character 1), expected a condition"),
        (
            "color=red",
            (
                "'color=red' (character 1), expected one of the fields reason, error, id, task, attempts, priority, age "
                "or header.NAME"
            ),
        ),
        ("header.=x", "expected one of the fields"),
        ("__class__=x", "expected one of the fields"),
        ("reason>1", "at '>1' (character 7), expected one of = != ~ !~ after reason"),
        ("attempts~1", "at '~1' (character 9), expected one of = != > >= < <= after attempts"),
        ("attempts>x", "at 'x' (character 10), expected a whole number"),
        ("attempts>-1", "expected a whole number"),
        ("attempts>٣", "expected a whole number"),
        ("attempts>9999999999", "expected a whole number"),
        ("age=1h", "at '=1h' (character 4), expected one of > >= < <= after age"),
        ("age>1y", "at '1y' (character 5), expected a duration"),
        ("error=ab b", "at 'b' (character 10), expected AND, or the end"),
        ("error=ab OR error=b", "at 'OR error=b' (character 10), expected AND"),
        ("error=ab AND", "at its end (character 13), expected a condition"),
        ("error=ab AND AND", "at 'AND' (character 14), expected a condition"),
        (
            "attempts>1 AND reason=bogus",
            ("at 'bogus' (character 23), expected one of the reasons max_retries_exceeded, ttl_expired, rejected, explicit_nack"),
        ),
        ("reason!=Ttl_Expired", "at 'Ttl_Expired' (character 9), expected one of the reasons"),
        ("reason=''", "at \"''\" (character 8), expected one of the reasons"),
        ("attempts>1 ANDattempts<3", "expected AND"),
    ]
    for text, said in rows:
        with subtests.test(text=text, said=said):
            with pytest.raises(InvalidArgument) as caught:
                DeadLetterFilter.parse(text)
            assert said in str(caught.value)


def test_a_long_condition_takes_no_time() -> None:
    """No part of the grammar goes back over what it has read."""
    for text in ("a" * MAX_LENGTH, "error='" + "\\'" * (MAX_LENGTH // 2 - 10), " " * (MAX_LENGTH - 1) + "x", "a=" + "b" * 9_000):
        with pytest.raises(InvalidArgument):
            DeadLetterFilter.parse(text)
