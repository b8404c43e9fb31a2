"""What a shell is told of the command line."""

import argparse
import re
from collections.abc import Callable, Iterable
from functools import cache

import pytest

from penstock.cli.command import Parser, Verbs
from penstock.cli.completion import SCRIPTS, Entry, Flag, bash, entries, fish, zsh
from penstock.cli.main import COMMANDS, parser_of


def example() -> Parser:
    parser = Parser(prog="penstock")
    table = parser.add_subparsers(dest="command")
    topic = Verbs(table.add_parser("topic", help="it's a topic"))
    create = topic.add("create", "make 100%% of one", lambda _: 0)
    create.add_argument("name", metavar="NAME")
    create.add_argument("--dead-letter-topic", metavar="TOPIC")
    delete = topic.add("delete", "end some", lambda _: 0)
    delete.add_argument("names", metavar="NAME", nargs="+")
    delete.add_argument("--secret", help=argparse.SUPPRESS)
    pull = table.add_parser("pull", help="take")
    pull.add_argument("subscription", metavar="SUBSCRIPTION")
    pull.add_argument("-n", "--max", metavar="N", help="how\n  many")
    pull.add_argument("--format", choices=["json", "text"])
    pull.add_argument("--level", metavar="low|high")
    pull.add_argument("--config", metavar="FILE")
    pull.add_argument("--data-dir", metavar="DIR")
    pull.add_argument("--name", metavar="NAME")
    return parser


def test_the_grammar_is_read_from_argparse() -> None:
    found = {entry.route: entry for entry in entries(example())}

    help_flag = Flag("--help", "show this help message and exit")
    assert found[""].commands == (("topic", "it's a topic"), ("pull", "take"))
    assert found["topic"].commands == (("create", "make 100% of one"), ("delete", "end some"))
    assert found["topic create"].flags == (help_flag, Flag("--dead-letter-topic", "", "@topics"))
    assert found["topic create"].slots == ("",)  # a name that does not exist yet
    assert found["topic delete"] == Entry(("topic", "delete"), "end some", (help_flag,), ("@topics+",), ())
    assert found["pull"].slots == ("@subscriptions",)
    assert {flag.name: flag.values for flag in found["pull"].flags} == {
        "--help": None,
        "--max": "",
        "--format": "json,text",
        "--level": "low,high",
        "--config": "@files",
        "--data-dir": "@dirs",
        "--name": "",
    }
    assert found["pull"].flags[1].help == "how many"


@cache
def whole() -> list[Entry]:
    return list(entries(parser_of([command.name for command in COMMANDS])))


@pytest.mark.parametrize("shell", sorted(SCRIPTS))
def test_a_script_knows_every_command_and_flag(shell: str) -> None:
    script = SCRIPTS[shell](whole())

    assert "@TABLE@" not in script
    assert "@TARGET@" not in script
    for entry in whole():
        assert all(word in script for word in entry.words)
        assert all((flag.name[2:] if shell == "fish" else flag.name) in script for flag in entry.flags)


@pytest.mark.parametrize(("write", "quote"), [(bash, r"'\''"), (zsh, r"'\''"), (fish, r"\'")])
def test_a_quote_in_a_help_text_does_not_end_the_text(write: Callable[[Iterable[Entry]], str], quote: str) -> None:
    script = write(entries(example()))
    assert "it's" not in script
    if write is not bash:  # it shows no help
        assert f"it{quote}s a topic" in script


def test_every_line_of_the_script_for_fish_is_closed() -> None:
    """There may be no fish here to read it: quotes are counted, blocks end."""
    script = fish(whole())
    for line in script.splitlines():
        assert len(re.findall(r"(?<!\\)'", line)) % 2 == 0, line
    opened = len(re.findall(r"^ *(?:function|for|if) ", script, re.MULTILINE))
    assert opened == len(re.findall(r"^ *end$", script, re.MULTILINE))
    assert all(line.startswith("complete -c penstock -") for line in script.splitlines() if line.startswith("complete"))


def test_the_script_for_zsh_has_balanced_blocks() -> None:
    script = zsh(whole())
    code = re.sub(r"'(?:[^']|'\\'')*'", "''", script)
    for begin, end in (("case", "esac"), ("if", "fi"), ("while", "done"), (r"\{", r"\}")):
        word = r"(?<![\w$]){}(?!\w)" if begin[0] != "\\" else "{}"
        assert len(re.findall(word.format(begin), code)) == len(re.findall(word.format(end), code)), begin
