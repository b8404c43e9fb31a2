"""What people see: tables, values, and text that cannot do anything to their terminal."""

import io
import sys
from datetime import UTC, datetime

import pytest

from penstock.cli import output
from penstock.cli.output import Progress, clipped, facts, paint, progress_line, short, table, text_of
from penstock.values.wording import count, moment, octets, printable, span


def test_columns_are_as_wide_as_they_must_be_and_numbers_stand_to_the_right() -> None:
    assert table([["NAME", "COUNT", "AGE"], ["a", "1,234", "2m"], ["longer", "-", "-"]]).splitlines() == [
        "NAME    COUNT  AGE",
        "a       1,234  2m",
        "longer      -  -",
    ]
    assert table([["NAME", "COUNT"]]) == "NAME  COUNT"
    assert table([["QUEUE", "COUNT"], ["7", "7"]]) == "QUEUE  COUNT\n7          7", "the first column is a name"


def test_a_cell_stays_on_its_line() -> None:
    assert table([["A"], ["x\ny\x1b[2J\x9b"]]) == "A\nx\\ny\\x1b[2J\\x9b"


def test_one_thing_is_a_line_for_each_value() -> None:
    assert facts({"name": "x\n", "longer": 1_000}).splitlines() == ["name    x\\n", "longer  1,000"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        ("", "-"),
        (True, "yes"),
        (False, "no"),
        (0, "0"),
        (1_234_567, "1,234,567"),
        (0.5, "0.5"),
        (60.0, "60"),
        (1234.5678, "1,234.568"),
        (datetime(2026, 1, 31, 12, 0, 5, 600, tzinfo=UTC), "2026-01-31 12:00:05"),
        ("text", "text"),
    ],
)
def test_a_value_is_shown_plainly(value: object, text: str) -> None:
    assert text_of(value) == text


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("plain ü 漢 🙂\ttab", "plain ü 漢 🙂\ttab"),
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("a\r\nb", "a\\r\\nb"),
        ("\x00\x7f\x9b\u202e\u2066\u2028", "\\x00\\x7f\\x9b\\u202e\\u2066\\u2028"),
        ("\ud800", "\\ud800"),
    ],
)
def test_text_cannot_move_the_cursor_or_hide(text: str, safe: str) -> None:
    assert printable(text) == safe


def test_lines_may_be_kept() -> None:
    assert printable("a\n\tb\r\x1b", keep_lines=True) == "a\n\tb\\r\\x1b"


@pytest.mark.parametrize(
    ("environment", "is_terminal", "is_painted"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"NO_COLOR": "1"}, True, False),
        ({"NO_COLOR": ""}, True, True),
        ({"TERM": "dumb"}, True, False),
    ],
)
def test_colours_are_for_terminals_that_want_them(
    environment: dict[str, str], is_terminal: bool, is_painted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)

    assert paint("x", "cyan") == ("\x1b[36mx\x1b[0m" if is_painted else "x")
    assert output.has_colours() is is_painted


def test_tables_have_colours_on_a_terminal_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [["NAME", "DEAD", "STATE"], ["a", "2", "paused"], ["b", "0", "open"]]
    monkeypatch.setattr(output, "has_colours", lambda: True)
    assert table(rows).splitlines() == [
        "\x1b[1mNAME  DEAD  STATE\x1b[0m",
        "a     \x1b[31m   2\x1b[0m  \x1b[33mpaused\x1b[0m",
        "b        0  open",
    ]
    assert "\x1b[1m" not in table(rows, has_heading=False)

    monkeypatch.setattr(output, "has_colours", lambda: False)
    assert "\x1b" not in table(rows)


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


def test_a_line_with_a_total_has_a_bar_a_share_a_rate_and_what_is_left() -> None:
    assert progress_line("publishing", 250, 1_000, 2.0, 120) == (
        "publishing  [########......................]   25%  250 of 1,000  125/s  6.0 s left"
    )
    assert progress_line("publishing", 1_000, 1_000, 2.0, 120).endswith("100%  1,000 of 1,000  500/s  0 s left")
    assert "0%" in progress_line("publishing", 0, 1_000, 0.0, 120)


def test_a_line_without_a_total_counts() -> None:
    assert progress_line("publishing", 12_345, None, 2.0, 120) == "publishing  12,345  6,172/s"


@pytest.mark.parametrize("width", [0, 10, 40, 60, 79])
def test_a_line_never_wraps(width: int) -> None:
    assert len(progress_line("publishing", 123_456, 1_000_000, 2.0, width)) <= width
    assert len(progress_line("publishing", 123_456, None, 2.0, width)) <= width


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    instant = [0]
    monkeypatch.setattr(output, "monotonic", lambda: instant[0])
    return instant


def test_it_is_drawn_ten_times_a_second_at_most_and_gone_at_the_end(now: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with Progress("working", 100) as shown:
        for _ in range(100):
            now[0] += output.INTERVAL // 10
            shown.advance(1)

    assert shown.done == 100
    drawn = terminal.getvalue().split("\r")[1:]
    assert len(drawn) == 11
    assert "10 of 100" in drawn[0]
    assert drawn[-1] == "\x1b[K"


@pytest.mark.parametrize(("stream", "interval"), [(io.StringIO(), output.INTERVAL), (Terminal(), 0)])
def test_a_file_sees_nothing_and_neither_does_who_waits_only_a_moment(
    stream: io.StringIO, interval: int, now: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    with Progress("working", 2) as shown:
        now[0] += interval
        shown.advance(2)

    assert stream.getvalue() == ""
