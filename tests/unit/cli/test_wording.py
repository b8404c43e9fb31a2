"""Numbers, spans and instants as people read them."""

from datetime import UTC, datetime

import pytest

from penstock.cli.wording import clipped, count, moment, octets, short, span


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (0.25, "0.2"),
        (9.94, "9.9"),
        (9.96, "10"),
        (10.4, "10"),
        (950, "950"),
        (12_034, "12,034"),
        (99_999, "99,999"),
        (99_999.6, "100k"),
        (123_456, "123k"),
        (999_499, "999k"),
        (999_500, "1M"),
        (1_234_567, "1.23M"),
        (1_234_567_890, "1.23G"),
        (-12_034, "-12,034"),
    ],
)
def test_a_number_is_short(number: float, text: str) -> None:
    assert short(number) == text


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 B"), (1_023, "1023 B"), (1_536, "1.5 KiB"), (2**30, "1.0 GiB"), (2**50, "1024.0 TiB")]
)
def test_bytes(number: int, text: str) -> None:
    assert octets(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.000_085, "85 µs"),
        (0.0012, "1.2 ms"),
        (0.000_999_4, "999 µs"),
        (0.000_999_6, "1 ms"),
        (0.25, "250 ms"),
        (0.999_4, "999 ms"),
        (0.999_6, "1.0 s"),
        (59.96, "1m 00s"),
        (4, "4.0 s"),
        (59.9, "59.9 s"),
        (60, "1m 00s"),
        (185, "3m 05s"),
        (7_800, "2h 10m"),
        (5 * 86_400 + 3 * 3_600 + 59, "5d 3h"),
        (-185, "-3m 05s"),
    ],
)
def test_a_span_has_its_two_largest_units(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_one_is_not_many() -> None:
    assert [count(number, "message") for number in (0, 1, 1_200)] == ["0 messages", "1 message", "1,200 messages"]
    assert count(2, "delivery", "deliveries") == "2 deliveries"


def test_a_moment_has_milliseconds() -> None:
    assert moment(datetime(2026, 1, 2, 3, 4, 5, 6_999, tzinfo=UTC)) == "2026-01-02 03:04:05.006 UTC"


@pytest.mark.parametrize(("width", "text"), [(10, "billing"), (7, "billing"), (6, "billi…"), (1, "…"), (0, ""), (-3, "")])
def test_a_text_is_clipped(width: int, text: str) -> None:
    assert clipped("billing", width) == text
