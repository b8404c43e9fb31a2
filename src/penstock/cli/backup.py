"""`penstock backup`: copy a data directory while a server has it open."""

from __future__ import annotations

import argparse
import os

from penstock.cli.command import Parser
from penstock.cli.output import Progress, say, say_json
from penstock.cli.session import TOKEN_HELP, add_ca, server_of, with_cli_hint
from penstock.cli.verify import show_report
from penstock.errors import InvalidArgument, PenstockError


def configure(parser: Parser) -> None:
    """Add source and target."""
    parser.add_argument("source", metavar="SOURCE", nargs="?", help="the data directory; a server may have it open")
    parser.add_argument("target", metavar="TARGET", help="a directory that does not exist or is empty")
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--server", metavar="URL", help="let this server send a backup of itself, in place of SOURCE")
    place.add_argument("--context", metavar="CONTEXT", help="the same with a server that `penstock context add` named")
    parser.add_argument("--token", help=TOKEN_HELP)
    add_ca(parser)
    parser.add_argument("--token-file", metavar="FILE", help="the server's file of tokens, if it is not in the data directory")
    parser.add_argument("--no-verify", action="store_true", help="do not read and check the copy")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.set_defaults(run=run)


def run(found: argparse.Namespace) -> int:
    """Copy, check the copy, and show what is in it."""
    from penstock import backup  # noqa: PLC0415  # `--help` needs no broker

    is_remote = found.server is not None or found.context is not None
    if (found.source is not None) == is_remote:
        raise InvalidArgument("expected SOURCE and TARGET, or a server and TARGET", hint="penstock backup DATA-DIR TARGET")
    if is_remote and found.token_file is not None:
        raise InvalidArgument("--token-file is for a SOURCE; a server sends its own tokens", hint="leave it out")
    server = server_of(found, os.environ) if is_remote else None
    with Progress("copying") as progress:
        if server is not None and server.server is not None:
            try:
                backup.download(server.server, found.target, token=server.token, tls=server.tls(), progress=progress.reach)
            except PenstockError as error:
                raise with_cli_hint(error) from None
        else:
            backup.back_up(found.source, found.target, token_file=found.token_file, progress=progress.reach)
    if not found.json:
        say(f"backed up {found.source if server is None else server.server} to {found.target}")
    if not found.no_verify:
        with Progress("verifying") as progress:
            return show_report(found, backup.verify(found.target, progress=progress.advance))
    if found.json:
        say_json({"directory": found.target})
    return 0
