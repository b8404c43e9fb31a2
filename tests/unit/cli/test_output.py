"""What people see: tables, values, and text that cannot do anything to their terminal."""

import sys
from datetime import UTC, datetime

import pytest

from penstock.cli import output
from penstock.cli.output import facts, paint, printable, shown, table


def test_columns_are_as_wide_as_they_must_be_and_numbers_stand_to_the_right() -> None:
    assert table([["NAME", "COUNT", "AGE"], ["a", "1,234", "2m"], ["longer", "-", "-"]]).splitlines() == [
        "NAME    COUNT  AGE",
        "a       1,234  2m",
        "longer      -  -",
    ]
    assert table([["NAME", "COUNT"]]) == "NAME  COUNT"


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
    assert shown(value) == text


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
