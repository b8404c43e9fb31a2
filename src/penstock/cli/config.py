"""`penstock config`: every effective setting, and its source."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from penstock.cli.command import Parser
from penstock.cli.output import say, table
from penstock.cli.settings import add_flags, settings_of
from penstock.config import OPTIONS
from penstock.router.core.config import shown_uri


def configure(parser: Parser) -> None:
    """Add the flags of `serve`, so that it shows what `serve` would use."""
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    add_flags(parser)
    parser.set_defaults(run=run)


def run(found: argparse.Namespace) -> int:
    """Print all settings, in the order of the table."""
    settings, origins = settings_of(found)
    values = {option.name: getattr(settings, option.name) for option in OPTIONS}
    if found.json:
        say(json.dumps({name: {"value": _plain(value), "origin": origins[name]} for name, value in values.items()}, indent=2))
    else:
        say(table([["SETTING", "VALUE", "FROM"], *([name, _shown(value), origins[name]] for name, value in values.items())]))
    return 0


def _plain(value: object) -> object:
    if isinstance(value, str) and "://" in value:
        return _without_secrets(value)
    return str(value) if isinstance(value, Path) else value


def _shown(value: object) -> str:
    match value:
        case None | ():
            return "-"
        case bool():
            return str(value).lower()
        case tuple():
            return ",".join(value)
        case str() if "://" in value:
            return _without_secrets(value)
        case _:
            return str(value)


def _without_secrets(addresses: str) -> str:
    """Remove secrets from one address, or from several separated by commas."""
    return ",".join(shown_uri(address) for address in addresses.split(","))
