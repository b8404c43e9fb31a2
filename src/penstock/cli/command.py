"""Commands, and the parser that all commands use.

Commands are listed with name and help only. The module of a command is imported when the command is called, so `penstock --help`
stays fast with many commands.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NoReturn, Protocol

from penstock.cli.examples import epilog_of
from penstock.cli.output import complain

USAGE = 2
TERMINATED = 143
"""The exit code after SIGTERM, as in shells: 128 + 15."""


OTHER_WORDS = {
    "add": "create",
    "new": "create",
    "make": "create",
    "ls": "list",
    "get": "show",
    "describe": "show",
    "rm": "delete",
    "remove": "delete",
    "start": "serve",
    "run": "serve",
    "server": "serve",
    "subscribe": "subscription",
    "consume": "pull",
    "receive": "pull",
    "send": "publish",
    "enqueue": "publish",
    "retry": "redrive",
}
"""Names of our commands in other programs."""


@dataclass(frozen=True, slots=True)
class Command:
    """A row of the table of commands. `module` has `configure(parser)`, which adds arguments and sets `run`."""

    name: str
    help: str
    module: str

    @property
    def sentence(self) -> str:
        """The help as a sentence."""
        return f"{self.help[0].upper()}{self.help[1:]}."


class CommandModule(Protocol):
    """The content of a command's module."""

    def configure(self, parser: Parser) -> None:
        """Add the command's arguments, and `set_defaults(run=…)`: a function of the arguments that returns the exit code."""


class HelpFormatter(argparse.HelpFormatter):
    """argparse's formatter, which keeps the lines of examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith("examples:") else super()._fill_text(text, width, indent)


class Parser(argparse.ArgumentParser):
    """argparse with one-line errors that suggest the nearest name, examples below the flags, and without abbreviated flags."""

    def __init__(self, **options: Any) -> None:  # Any: argparse's own arguments, passed through
        super().__init__(allow_abbrev=False, formatter_class=HelpFormatter, **options)
        self.epilog = epilog_of(self.prog.removeprefix("penstock").strip())

    def error(self, message: str) -> NoReturn:
        """Report the error and where help is; exit with code 2."""
        complain(f"{self.prog}: {message}\ntry: {self.prog} --help")
        raise SystemExit(USAGE)

    # The caller chooses the type of the namespace; argparse declares three overloads that all amount to this.
    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse like argparse, but arguments may follow flags, and unknown arguments are an error.

        argparse gives up on an optional or repeated argument at the first flag: `publish TOPIC --key k DATA` would have no DATA.
        Unknown arguments are reported here, where the similar flags are known.
        """
        first = args[0].partition("=")[0] if args and self._has_commands() else ""
        if first.startswith("--") and first not in {"--", *self._option_string_actions}:
            self._refuse(args[0])  # otherwise its value would be taken for a command
        found, rest = super().parse_known_args(args, namespace)
        end = rest.index("--") if "--" in rest else len(rest)
        flags = [word for word in rest[:end] if word.startswith("-") and word != "-"]
        if rest and not flags and self._takes(found, rest[:end] + rest[end + 1 :]):
            rest = []
        if rest:
            self._refuse((flags or rest)[0])
        return found, rest

    def _refuse(self, word: str) -> NoReturn:
        """Report an argument that this command does not have, with the nearest one."""
        is_flag = word.startswith("-") and word != "-"
        known = list(self._option_string_actions) if is_flag else []
        name = word.partition("=")[0]
        advice = _suggestion(name, known)
        if is_flag and nearest(name, known) is None and self._has_commands():
            advice = f"; the flags of a command come after its name: {self.prog} COMMAND … {word}"
        self.error(f"unknown {'flag' if word.startswith('-') else 'argument'} {word}{advice}")

    def _has_commands(self) -> bool:
        return any(isinstance(action, argparse._SubParsersAction) for action in self._get_positional_actions())

    def _takes(self, found: argparse.Namespace, words: list[str]) -> bool:
        """Pass words to the last argument; False if it has no room for them."""
        action = next(reversed(self._get_positional_actions()), None)
        if action is None:
            return False
        values = [self._get_value(action, word) for word in words]
        before = getattr(found, action.dest, None)
        if action.nargs in {"*", "+"}:
            setattr(found, action.dest, [*(before or ()), *values])
        elif action.nargs == "?" and before is None and len(values) == 1:
            setattr(found, action.dest, values[0])
        else:
            return False
        return True

    def _check_value(self, action: argparse.Action, value: object) -> None:
        """Check like argparse, but suggest the nearest value in place of listing all."""
        if action.choices is not None and value not in action.choices:
            raise argparse.ArgumentError(None, f"unknown {action.dest} {value!r}{_suggestion(str(value), list(action.choices))}")


class Verbs:
    """The sub-commands of a command, such as `penstock topic create`."""

    def __init__(self, parser: Parser) -> None:
        self._table = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def add(self, name: str, text: str, run: Callable[[argparse.Namespace], int]) -> Parser:
        """Add a sub-command with its help; returns its parser."""
        command = Command(name, text, run.__module__)
        child: Parser = self._table.add_parser(name, help=command.help, description=command.sentence)
        child.set_defaults(run=run)
        return child


def add_commands(parser: Parser, commands: Sequence[Command], arguments: Sequence[str]) -> None:
    """Add sub-commands to a parser; only the one that the arguments call is imported."""
    table = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in commands:
        child = table.add_parser(command.name, help=command.help, description=command.sentence)
        if command.name in arguments:
            module: CommandModule = import_module(command.module)
            module.configure(child)


def nearest(word: str, known: Sequence[str]) -> str | None:
    """The closest known word: a synonym, a name that starts with it, or one with a typing error."""
    other = OTHER_WORDS.get(word)
    if other in known:
        return other
    bare = {name.lstrip("-"): name for name in known}  # the dashes would make all flags similar
    stem = word.lstrip("-")
    begun = [name for name in bare if name.startswith(stem)] if len(stem) > 1 else []
    near = next(iter(begun or get_close_matches(stem, bare, 1, cutoff=0.6)), None)
    return bare.get(near) if near is not None else None


def _suggestion(word: str, known: Sequence[str]) -> str:
    near = nearest(word, known)
    return f"; did you mean {near}?" if near else f"; known: {', '.join(known)}" if 0 < len(known) <= 12 else ""
