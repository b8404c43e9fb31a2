"""The private parts of `argparse` that the command line relies on are as it expects them; a new Python may change them.

What `command.py` does with them is tested in tests/acceptance; this test names the part that changed.
"""

import argparse
import inspect
import re

from penstock.cli.command import Parser, Verbs
from tests.docs.pages import ROOT

METHODS = {
    "_get_positional_actions": ["self"],
    "_get_value": ["self", "action", "arg_string"],
    "_check_value": ["self", "action", "value"],
}
ATTRIBUTES = {"_actions", "_choices_actions", "_option_string_actions"}
CLASSES = {"_ArgumentGroup", "_MutuallyExclusiveGroup", "_SubParsersAction"}


def test_methods_take_the_arguments_that_are_given_to_them() -> None:
    found = {name: [*inspect.signature(getattr(argparse.ArgumentParser, name)).parameters] for name in METHODS}
    assert found == METHODS


def test_attributes_hold_what_is_read_from_them() -> None:
    parser = Parser(prog="p")
    flag = parser.add_argument("-f", "--flag")
    Verbs(parser).add("make", "make one", lambda _: 0)

    [_, same, table] = parser._actions
    assert same is flag
    assert parser._option_string_actions["--flag"] is parser._option_string_actions["-f"] is flag
    assert isinstance(table, argparse._SubParsersAction)
    assert parser._get_positional_actions() == [table]
    assert isinstance(table.choices["make"], Parser)
    assert [(choice.dest, choice.help) for choice in table._choices_actions] == [("make", "make one")]
    assert isinstance(parser.add_mutually_exclusive_group(), argparse._MutuallyExclusiveGroup)
    assert isinstance(parser.add_argument_group("others"), argparse._ArgumentGroup)


def test_nothing_else_that_is_private_is_used() -> None:
    private = {name for name in dir(argparse) + dir(Parser()) + dir(argparse._SubParsersAction) if re.match(r"_[A-Za-z]", name)}
    ours = {name for name in vars(Parser) if name not in METHODS}
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src/penstock/cli").glob("*.py"))
    used = set(re.findall(r"\b(?:argparse|parser|action|super\(\)|self)\.(_\w+)", sources))

    assert (used & private) - ours <= METHODS.keys() | ATTRIBUTES | CLASSES
