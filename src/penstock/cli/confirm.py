"""Asking before what cannot be undone."""

from __future__ import annotations

import argparse
import sys

from penstock.cli.output import redraw
from penstock.cli.stdin import line
from penstock.errors import FailedPrecondition, InvalidArgument


def add_yes(parser: argparse.ArgumentParser) -> None:
    """The flag that answers."""
    parser.add_argument("--yes", action="store_true", help="do not ask")


async def confirm(found: argparse.Namespace, deed: str) -> None:
    """Return when a person says yes, or said so by `--yes`; raise otherwise."""
    if found.yes:
        return
    if not sys.stdin.isatty():
        raise InvalidArgument(f"will not {deed} without being asked to", hint="say --yes")
    redraw(f"{deed}? [y/N] ")
    if (await line(0)).lower() not in {"y", "yes"}:
        raise FailedPrecondition("nothing was done")
