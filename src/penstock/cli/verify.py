"""`penstock verify`: read everything in a data directory or a backup, and compare every checksum."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from penstock.cli.command import Parser
from penstock.cli.output import Progress, complain, say, say_json
from penstock.values.wording import count, octets, printable

if TYPE_CHECKING:
    from penstock.backup import Report


def configure(parser: Parser) -> None:
    """The directory."""
    parser.add_argument("target", metavar="DIR", help="a data directory or a backup; a server may have it open")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.set_defaults(run=run)


def run(found: argparse.Namespace) -> int:
    """Show what is in it; 1 if something is damaged."""
    from penstock import backup  # noqa: PLC0415  # `--help` needs no broker

    with Progress("verifying") as progress:
        report = backup.verify(found.target, progress=progress.advance)
    return show_report(found, report)


def show_report(found: argparse.Namespace, report: Report) -> int:
    """Show what a directory holds and what is damaged; returns the exit code."""
    *numbers, problems = report
    if found.json:
        say_json({"directory": found.target, **dict(zip(report._fields, numbers, strict=False)), "problems": problems})
    else:
        what = [
            count(report.streams, "stream"),
            f"{count(report.messages, 'message')} ({octets(report.bytes)})",
            count(report.events, "event"),
            count(report.cursors, "cursor"),
            count(report.tokens, "token"),
        ]
        say(f"{'intact' if not problems else 'read'}: {', '.join(what)}")
        for problem in problems:
            complain(f"damaged: {printable(problem)}")
    return 1 if problems else 0
