"""What may be typed: the commands with their flags and arguments, read from argparse, for whoever completes them."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

KINDS = ("topics", "subscriptions", "queues", "snapshots")
"""What has names that can be looked up."""
FILES, DIRECTORIES = "@files", "@dirs"
_CHOICE = re.compile(r"[\w-]+(\|[\w-]+)+")
_PLACES = {"FILE": FILES, "PATH": FILES, "DIR": DIRECTORIES}


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag. `values` is None when it takes none, '' when anything may follow."""

    name: str
    help: str
    values: str | None = None
    """What may follow: words with commas between them, `@files`, `@dirs`, or `@topics` and the like."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A command: the words that call it, what may come next."""

    words: tuple[str, ...]
    help: str
    flags: tuple[Flag, ...]
    slots: tuple[str, ...]
    """What each argument may be, as in `Flag.values`; one that may be repeated is last, with a `+` behind it."""
    commands: tuple[tuple[str, str], ...]
    """The commands below it, each with its help."""

    @property
    def route(self) -> str:
        """The words, one space apart."""
        return " ".join(self.words)


def entries(parser: argparse.ArgumentParser, words: tuple[str, ...] = (), text: str = "") -> Iterator[Entry]:
    """A parser's command and all below it."""
    flags: list[Flag] = []
    slots: list[str] = []
    below: list[tuple[str, str, argparse.ArgumentParser]] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
            below += [(name, helps.get(name, ""), child) for name, child in action.choices.items()]
        elif action.help == argparse.SUPPRESS:
            continue
        elif action.option_strings:
            values = None if action.nargs == 0 else _values(action, words)
            flags += [Flag(name, _plain(action.help), values) for name in action.option_strings if name.startswith("--")]
        else:
            slots.append(_values(action, words) + ("+" if action.nargs in {"+", "*"} else ""))
    yield Entry(words, text, tuple(flags), tuple(slots), tuple((name, _plain(text)) for name, text, _ in below))
    for name, help_text, child in below:
        yield from entries(child, (*words, name), help_text)


def _values(action: argparse.Action, words: Sequence[str]) -> str:
    if action.choices is not None:
        return ",".join(map(str, action.choices))
    shown = action.metavar if isinstance(action.metavar, str) else action.dest
    if _CHOICE.fullmatch(shown):
        return shown.replace("|", ",")
    word = shown.upper()
    if word in _PLACES:
        return _PLACES[word]
    if word == "NAME" and not action.option_strings and words:
        # `topic delete NAME` is about a topic that exists, `topic create NAME` about one that does not.
        word = "" if words[-1] == "create" else words[0].upper()
    elif words[-1:] == ("create",) and words[0].upper() == word and not action.option_strings:
        word = ""
    kind = f"{word.lower()}s"
    # The topics of the hub are no topics of the broker.
    return f"@{kind}" if kind in KINDS and words[:1] != ("hub",) else ""


def _plain(text: str | None) -> str:
    """A help text in one line, as argparse shows it."""
    return re.sub(r"\s+", " ", (text or "").replace("%%", "%"))
