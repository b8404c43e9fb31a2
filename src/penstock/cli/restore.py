"""`penstock restore`: check a backup, and create a data directory from it."""

from __future__ import annotations

import argparse

from penstock.cli.command import Parser
from penstock.cli.output import Progress, say
from penstock.cli.verify import show_report


def configure(parser: Parser) -> None:
    """Add the two directories."""
    parser.add_argument("source", metavar="BACKUP", help="a directory that `penstock backup` created")
    parser.add_argument("target", metavar="DIR", help="the new data directory, which must not exist or be empty")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.set_defaults(run=run)


def run(found: argparse.Namespace) -> int:
    """Check it first: nothing is written if it is damaged."""
    from penstock import backup  # noqa: PLC0415  # `--help` needs no broker

    with Progress("restoring") as progress:
        report = backup.restore(found.source, found.target, progress=progress.reach)
    if not found.json:
        say(f"restored {found.source} to {found.target}; start with: penstock serve --data-dir {found.target}")
    return show_report(found, report)
