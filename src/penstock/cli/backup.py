"""`penstock backup`: copy a data directory while a server has it open."""

from __future__ import annotations

import argparse
import os

from penstock.cli.command import Parser
from penstock.cli.output import Progress, say, say_json
from penstock.cli.session import TOKEN_VARIABLE, with_cli_hint
from penstock.cli.verify import show_report
from penstock.errors import InvalidArgument, PenstockError


def configure(parser: Parser) -> None:
    """Where from, and where to."""
    parser.add_argument("source", metavar="SOURCE", nargs="?", help="the data directory; a server may have it open")
    parser.add_argument("target", metavar="TARGET", help="a directory that does not exist or is empty")
    parser.add_argument("--server", metavar="URL", help="let this server send a backup of itself, in place of SOURCE")
    parser.add_argument("--token", help=f"who calls; others may see a flag, so rather set {TOKEN_VARIABLE}")
    parser.add_argument("--token-file", metavar="FILE", help="the server's file of tokens, if it is not in the data directory")
    parser.add_argument("--no-verify", action="store_true", help="do not read and check the copy")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.set_defaults(run=run)


def run(found: argparse.Namespace) -> int:
    """Copy, check the copy, and show what is in it."""
    from penstock import backup  # noqa: PLC0415  # `--help` needs no broker

    if (found.source is None) == (found.server is None):
        raise InvalidArgument("expected either SOURCE or --server", hint="penstock backup DATA-DIR TARGET")
    with Progress("copying") as progress:
        if found.server is not None:
            token = found.token or os.environ.get(TOKEN_VARIABLE)
            try:
                backup.download(found.server, found.target, token=token, progress=progress.reach)
            except PenstockError as error:
                raise with_cli_hint(error) from None
        else:
            backup.back_up(found.source, found.target, token_file=found.token_file, progress=progress.reach)
    if not found.json:
        say(f"backed up {found.source or found.server} to {found.target}")
    if not found.no_verify:
        with Progress("verifying") as progress:
            return show_report(found, backup.verify(found.target, progress=progress.advance))
    if found.json:
        say_json({"directory": found.target})
    return 0
