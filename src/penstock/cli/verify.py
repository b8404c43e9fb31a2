"""`penstock verify`: read everything in a data directory, a backup or a database, and compare every checksum."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from penstock.cli.command import Parser
from penstock.cli.journal import check_no_password
from penstock.cli.output import Progress, complain, say, say_json
from penstock.values.wording import count, octets, printable

if TYPE_CHECKING:
    from penstock.backup import Report


def configure(parser: Parser) -> None:
    """Add the directory or database."""
    text = "a data directory or a backup, or a log in PostgreSQL (postgresql://…); a server may have it open"
    parser.add_argument("target", metavar="DIR", help=text)
    parser.add_argument("--fingerprint", action="store_true", help="also show the SHA-256 of the log: equal logs have the same")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.set_defaults(run=run)


def run(found: argparse.Namespace) -> int:
    """Show its content; exit with 1 if something is damaged."""
    check_no_password(found.target)
    from penstock import backup  # noqa: PLC0415  # `--help` needs no broker

    with Progress("verifying") as progress:
        report = backup.verify(found.target, progress=progress.advance)
        fingerprint = backup.fingerprint(found.target) if found.fingerprint and not report.problems else None
    return show_report(found, report, fingerprint)


def show_report(found: argparse.Namespace, report: Report, fingerprint: str | None = None) -> int:
    """Show the content of a directory and the damage; returns the exit code."""
    *numbers, problems = report
    if found.json:
        known = {} if fingerprint is None else {"fingerprint": fingerprint}
        say_json({"directory": found.target, **dict(zip(report._fields, numbers, strict=False)), "problems": problems, **known})
    else:
        what = [
            count(report.streams, "stream"),
            f"{count(report.messages, 'message')} ({octets(report.bytes)})",
            count(report.events, "event"),
            count(report.cursors, "cursor"),
            count(report.tokens, "token"),
        ]
        say(f"{'intact' if not problems else 'read'}: {', '.join(what)}")
        if fingerprint is not None:
            say(f"fingerprint: {fingerprint}")
        for problem in problems:
            complain(f"damaged: {printable(problem)}")
    return 1 if problems else 0
