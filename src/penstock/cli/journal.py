"""`penstock journal copy`: move a log between a data directory and PostgreSQL."""

from __future__ import annotations

import argparse
from urllib.parse import urlsplit

from penstock.cli.command import Parser
from penstock.cli.output import Progress, say, say_json
from penstock.errors import InvalidArgument


def configure(parser: Parser) -> None:
    """One command of its own."""
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    text = "copy a log from a data directory to PostgreSQL, or back"
    copy = commands.add_parser(
        "copy",
        help=text,
        description=f"{text[0].upper()}{text[1:]}, with the same offsets, ids and checksums. No server may have either open.",
    )
    copy.add_argument("source", metavar="SOURCE", help="a data directory, or postgresql://USER@HOST:PORT/DATABASE")
    copy.add_argument("target", metavar="TARGET", help="the same; it must be empty, or not exist")
    copy.add_argument("--json", action="store_true", help="for programs")
    copy.set_defaults(run=run_copy)


def run_copy(found: argparse.Namespace) -> int:
    """Copy, and show the fingerprint that both have."""
    for place in (found.source, found.target):
        check_no_password(place)
    from penstock.journal_copy import copy  # noqa: PLC0415  # `--help` needs no journal

    with Progress("copying") as progress:
        fingerprint = copy(found.source, found.target, progress.advance)
    if found.json:
        say_json({"source": found.source, "target": found.target, "fingerprint": fingerprint})
    else:
        say(f"copied {found.source} to {found.target}; both have the fingerprint {fingerprint}")
    return 0


def check_no_password(place: str) -> None:
    """Refuse an address with a password among the arguments of a program, where others can see it."""
    if place.startswith(("postgresql://", "postgres://")) and (urlsplit(place).password is not None or "password=" in place):
        raise InvalidArgument(
            "the address holds a password, which other users of this machine can see",
            hint="write the address without it, and set PGPASSWORD or use a password file (~/.pgpass)",
        )
