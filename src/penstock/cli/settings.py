"""Settings on the command line: a flag for every option, made from the one table, and the function that reads them all."""

from __future__ import annotations

import argparse
import os
from collections.abc import Collection, Mapping

from penstock.config import OPTIONS, Settings, find_file, load
from penstock.config.settings import Option

FILE = "settings file"
"""The attribute of argparse for the name of the settings file."""


def add_flags(
    parser: argparse.ArgumentParser,
    names: Collection[str] | None = None,
    *,
    file_flag: str = "--config",
    prefix: str = "",
    defaults: Mapping[str, str] | None = None,
) -> None:
    """Add the flags of these options, of all if none are named, and one for the file of settings.

    `prefix` is what a command omits: the options of the router lose their `router_` in its own commands. `defaults` are those of
    a command that differ.
    """
    parser.add_argument(
        file_flag, dest=FILE, metavar="FILE", help="a TOML file of settings (default: penstock.toml here, if it exists)"
    )
    groups: dict[str, argparse._ArgumentGroup] = {}
    for option in OPTIONS:
        if names is None or option.name in names:
            section = option.key.partition(".")[0]
            if section not in groups:
                groups[section] = parser.add_argument_group(section)
            _add_flag(groups[section], option, option.short_flag(prefix), (defaults or {}).get(option.name, option.shown_default))


def _add_flag(group: argparse._ArgumentGroup, option: Option, flag: str, shown_default: str) -> None:
    text = f"{option.help} (default: {shown_default})".replace("%", "%%")
    if isinstance(option.default, bool):
        group.add_argument(flag, dest=_dest(option), action=argparse.BooleanOptionalAction, default=None, help=text)
    elif isinstance(option.default, tuple):
        group.add_argument(flag, dest=_dest(option), action="append", metavar=option.kind.metavar, help=text)
    else:
        group.add_argument(flag, dest=_dest(option), metavar=option.kind.metavar, help=text)


def _dest(option: Option) -> str:
    """The attribute of argparse for a setting: separate from a command's own arguments, which may have the same name."""
    return f"setting {option.name}"


def settings_of(found: argparse.Namespace, *, prefix: str = "") -> tuple[Settings, dict[str, str]]:
    """The settings with their origins, from the parsed flags, the environment and the file. `prefix` is as for `add_flags`."""
    flags = {option.name: _text(getattr(found, _dest(option), None)) for option in OPTIONS}
    return load(flags, os.environ, find_file(getattr(found, FILE), os.environ), prefix=prefix)


def _text(value: object) -> object:
    """Join a flag that is given several times; each may itself be a list."""
    return ",".join(value) if isinstance(value, list) else value
