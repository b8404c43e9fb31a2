"""`penstock context add|use|list|remove`: named servers, so that an address and a token are entered once."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from msgspec import to_builtins
from msgspec.structs import replace

from penstock.cli import contexts
from penstock.cli.command import Parser, Verbs
from penstock.cli.contexts import CONTEXT_VARIABLE, Context
from penstock.cli.output import complain, say, say_json, table, text_of
from penstock.errors import AlreadyExists, InvalidArgument
from penstock.wire.address import Address


def configure(parser: Parser) -> None:
    verbs = Verbs(parser)
    add = verbs.add("add", "name a server; the first one is used from then on", run_add)
    add.add_argument("name", metavar="CONTEXT")
    add.add_argument("--server", metavar="URL", required=True, help="the server's address")
    token = add.add_mutually_exclusive_group()
    token.add_argument("--token", help="the caller's token; other users see flags, so prefer --token-file")
    token.add_argument("--token-file", metavar="FILE", help="a file with the token; - is the standard input")
    add.add_argument("--project", help="the project (default: the server's)")
    add.add_argument("--ca", metavar="FILE", help="a file with certificates (PEM) to trust beside those of the system")
    add.add_argument("--replace", action="store_true", help="replace the context of this name")
    use = verbs.add("use", "use a context for commands that name no server", run_use)
    use.add_argument("name", metavar="CONTEXT")
    listing = verbs.add("list", "list contexts, without tokens", run_list)
    listing.add_argument("--json", action="store_true", help="for programs")
    remove = verbs.add("remove", "remove contexts", run_remove)
    remove.add_argument("names", metavar="CONTEXT", nargs="+")


def run_add(found: argparse.Namespace) -> int:
    """Check what can be checked without connecting."""
    if not found.name or found.name.startswith("-") or not found.name.isprintable():
        raise InvalidArgument.of("the context", found.name, "a name of printable characters")
    Address.parse_all(found.server)
    if found.ca is not None and not Path(found.ca).is_file():
        raise InvalidArgument.of("--ca", found.ca, "a file that exists")
    known = contexts.load(os.environ)
    if found.name in known.contexts and not found.replace:
        error = AlreadyExists("context", found.name)
        error.hint = "use --replace, or choose another name"
        raise error
    ca = None if found.ca is None else str(Path(found.ca).absolute())
    known.contexts[found.name] = Context(found.server, _token(found), found.project or None, ca)
    known.current = known.current or found.name
    contexts.save(known, os.environ)
    say(f"added context {found.name}" + ("; it is in use" if known.current == found.name else ""))
    return 0


def run_use(found: argparse.Namespace) -> int:
    """A set environment variable has precedence, so warn about it."""
    known = contexts.load(os.environ)
    known.named(found.name)
    known.current = found.name
    contexts.save(known, os.environ)
    say(f"using context {found.name}")
    if other := os.environ.get(CONTEXT_VARIABLE):
        complain(f"{CONTEXT_VARIABLE} is set and wins: {other}")
    return 0


def run_list(found: argparse.Namespace) -> int:
    """Mark the one in use."""
    known = contexts.load(os.environ)
    used = os.environ.get(CONTEXT_VARIABLE) or known.current
    listed = sorted(known.contexts.items())
    if found.json:
        say_json(
            [
                {"name": name, "used": name == used, **to_builtins(replace(one, token=None)), "has_token": one.token is not None}
                for name, one in listed
            ]
        )
    elif listed:
        rows = [
            [
                name,
                one.server,
                one.project or "-",
                text_of(one.token is not None),
                one.ca or "-",
                "in use" if name == used else "",
            ]
            for name, one in listed
        ]
        say(table([["NAME", "SERVER", "PROJECT", "TOKEN", "CA", ""], *rows]))
    else:
        complain("no contexts; `penstock context add NAME --server URL` adds one")
    return 0


def run_remove(found: argparse.Namespace) -> int:
    """Remove all of them or, if one does not exist, none."""
    known = contexts.load(os.environ)
    for name in found.names:
        known.named(name)
    for name in found.names:
        known.contexts.pop(name, None)
    if known.current in found.names:
        known.current = None
    contexts.save(known, os.environ)
    for name in found.names:
        say(f"removed context {name}")
    return 0


def _token(found: argparse.Namespace) -> str | None:
    if found.token_file is None:
        if found.token == "":
            raise InvalidArgument.of("--token", "", "a token", hint="leave it out for a server without authentication")
        given: str | None = found.token
        return given
    try:
        text = sys.stdin.read() if found.token_file == "-" else Path(found.token_file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise InvalidArgument.of("--token-file", found.token_file, "a file that can be read") from None
    if not text.strip() or "\n" in text.strip():
        raise InvalidArgument("--token-file holds no token, expected one line", hint="`penstock token create` makes one")
    return text.strip()
