"""The page of the command line is complete: whatever the parser knows is on it, in the section of its command."""

import re
from pathlib import Path

import pytest

from penstock.cli.command import Parser
from penstock.cli.completion import entries
from penstock.cli.main import COMMANDS, EXIT_CODES, parser_of
from penstock.cli.settings import add_flags
from tests.docs.pages import ROOT, prose, table_rows
from tests.docs.walk import Walk

PAGE = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
COMMON = {"--help", "--server", "--data-dir", "--context", "--token", "--project", "--ca", "--json"}
"""In the section about all commands."""
ENTRIES = [entry for entry in entries(parser_of([command.name for command in COMMANDS])) if entry.words]


def section(command: str) -> str:
    """The part of the page about a command."""
    found = re.search(rf"^## penstock {command}\n(.*?)(?=^## |\Z)", prose(PAGE), re.DOTALL | re.MULTILINE)
    assert found is not None, f"docs/cli.md has no section `## penstock {command}`"
    return found[1]


def settings() -> set[str]:
    """The flags that are settings of the server: those are on a page of their own."""
    parser = Parser()
    add_flags(parser)
    return {flag for action in parser._actions for flag in action.option_strings}


def test_every_command_and_flag_has_a_help_and_is_in_its_section(subtests: pytest.Subtests) -> None:
    of_server = settings()
    for entry in ENTRIES:
        with subtests.test(command=entry.route):
            assert entry.help
            assert [flag.name for flag in entry.flags if not flag.help] == []
            text = section(entry.words[0])
            assert f"`penstock {entry.route}" in text
            shown = set(re.findall(r"--[a-z][a-z-]*", text))
            elsewhere = COMMON | (of_server if entry.words[0] in {"serve", "config", "router"} else set())
            assert {flag.name for flag in entry.flags} - elsewhere <= shown


def test_no_section_shows_a_flag_that_is_none(subtests: pytest.Subtests) -> None:
    for command in COMMANDS:
        with subtests.test(command=command.name):
            known = {flag.name for entry in ENTRIES if entry.words[0] == command.name for flag in entry.flags}
            assert set(re.findall(r"`(--[a-z][a-z-]*)", section(command.name))) <= known | COMMON


def test_the_common_flags_and_the_exit_codes_are_on_the_page() -> None:
    assert all(f"`{flag}`" in PAGE for flag in COMMON)
    rows = {row[0]: row[1] for row in table_rows(PAGE) if row[0].isdecimal()}

    assert rows == {str(code): meaning for code, meaning in EXIT_CODES.items()}


@pytest.mark.long
def test_the_page_shows_what_happens(tmp_path: Path) -> None:
    with Walk(tmp_path) as walk:
        walk.follow(PAGE.partition("\n## ")[0])
