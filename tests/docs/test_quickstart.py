"""The quickstart works: from an empty directory, every command and program, with the output that it shows."""

from pathlib import Path

import pytest

from tests.docs.pages import ROOT, Block
from tests.docs.walk import Walk, agrees, steps

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs" / "quickstart.md"


def test_the_quickstart_does_what_it_shows(tmp_path: Path) -> None:
    with Walk(tmp_path) as walk:
        walk.follow(PAGE.read_text(encoding="utf-8"))


def test_a_page_that_shows_something_else_is_found_out(tmp_path: Path) -> None:
    with Walk(tmp_path) as walk, pytest.raises(AssertionError, match="line 2: \\$ echo one"):
        walk.follow("```console\n$ echo one\ntwo\n```\n")


def test_a_command_that_fails_is_found_out(tmp_path: Path) -> None:
    with Walk(tmp_path) as walk, pytest.raises(AssertionError, match="failed"):
        walk.follow("```console\n$ false\n```\n")


def test_commands_are_told_from_what_they_print() -> None:
    block = Block("console", 10, "$ one \\\n    more\nprinted\n$ two\n^C12:00:00 INFO    stopped\n", True)

    assert [tuple(step) for step in steps(block)] == [
        (10, "one \\\n    more", ["printed"]),
        (13, "two", []),
        (14, "^C", ["12:00:00 INFO    stopped"]),
    ]


def test_what_differs_from_run_to_run_is_compared_by_its_shape() -> None:
    assert agrees(["at 2026-01-01T11:20:35.616258Z"], ["at 2027-02-02T00:00:00Z"])
    assert agrees(["{", "…", "}"], ["{", "  1,", "  2", "}"])
    assert not agrees(["{", "…", "}"], ["{", "  1,"])
    assert not agrees(["one"], ["one", "two"])
