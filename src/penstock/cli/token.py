"""`penstock token create|list|revoke`: who may call a server that asks for tokens. A running server follows within a second."""

from __future__ import annotations

import argparse
import json

from penstock.access import Keyring, Token, Verb
from penstock.access.core.token import Secret, is_token_id
from penstock.cli.command import Parser
from penstock.cli.output import complain, say, table
from penstock.cli.settings import add_flags, settings_of
from penstock.clock import SystemClock
from penstock.config.values import choice, duration, several
from penstock.durations import SECOND, to_datetime
from penstock.errors import InvalidArgument

LIFETIME = duration(1, 100 * 365 * 86_400)
VERBS = several(choice(*Verb))


def configure(parser: Parser) -> None:
    """Three commands of its own."""
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    create = commands.add_parser(
        "create", help="make a token; its secret is shown once", description="Make a token. Its secret is shown once."
    )
    create.add_argument("--name", required=True, help="a name for the token, such as its user")
    create.add_argument("--project", help="the only project it may touch (default: every project)")
    create.add_argument("--verbs", metavar="VERB,…", help=f"what it may do, of {', '.join(Verb)} (default: all)")
    create.add_argument(
        "--names", metavar="PATTERN,…", help="the names it may touch, * standing for any text, as in 'orders-*' (default: all)"
    )
    create.add_argument(
        "--expires", metavar="DURATION", help="how long it is valid, as in 12h or 30d (default: until it is revoked)"
    )
    create.add_argument("--json", action="store_true", help="print JSON, for programs")
    create.set_defaults(run=run_create)
    show = commands.add_parser("list", help="show every token, without secrets", description="Show every token, without secrets.")
    show.add_argument("--json", action="store_true", help="print JSON, for programs")
    show.set_defaults(run=run_list)
    revoke = commands.add_parser("revoke", help="make tokens worthless at once", description="Make tokens worthless at once.")
    revoke.add_argument("ids", metavar="ID", nargs="+", help="the id that `penstock token list` shows")
    revoke.set_defaults(run=run_revoke)
    for child in (create, show, revoke):
        add_flags(child, {"data_dir", "token_file"})


def run_create(found: argparse.Namespace) -> int:
    """Print the secret, alone, so that a script can take it; what to know about it goes beside."""
    now = SystemClock().now()
    lifetime = LIFETIME.read(found.expires, "--expires", is_text=True) if found.expires is not None else None
    verbs = VERBS.read(found.verbs, "--verbs", is_text=True) if found.verbs is not None else Verb
    patterns = [item.strip() for item in found.names.split(",")] if found.names is not None else ["*"]
    keyring = _keyring(found)
    secret = keyring.create(
        found.name,
        now,
        project=found.project,
        verbs=[Verb(verb) for verb in verbs],
        patterns=patterns,
        expires=None if lifetime is None else now + round(lifetime * SECOND),
    )
    token = next(token for token in keyring.list() if token.id == _token_id(secret))
    say(json.dumps({"secret": secret, **_plain(token)}, indent=2) if found.json else secret)
    complain(f"token {token.id}: keep the secret now, it cannot be shown again; send it as `Authorization: Bearer …`")
    return 0


def run_list(found: argparse.Namespace) -> int:
    """Print what each token may do."""
    tokens, now = _keyring(found).list(), SystemClock().now()
    if found.json:
        say(json.dumps([_plain(token) for token in tokens], indent=2))
    elif not tokens:
        complain("no tokens; `penstock token create --name NAME` makes one")
    else:
        say(table([["ID", "NAME", "PROJECT", "VERBS", "NAMES", "EXPIRES"], *(_row(token, now) for token in tokens)]))
    for advice in (token.advice for token in tokens if not token.has_expired(now)):
        if advice is not None:
            complain(advice)
    return 0


def run_revoke(found: argparse.Namespace) -> int:
    """Forget each; an unknown one stops it there."""
    keyring = _keyring(found)
    for token_id in map(_token_id, found.ids):
        keyring.revoke(token_id)
        say(f"revoked {token_id}")
    return 0


def _keyring(found: argparse.Namespace) -> Keyring:
    settings, _ = settings_of(found)
    if settings.token_file is None:
        raise InvalidArgument("a server in memory has no file of tokens", hint="name one with --token-file")
    return Keyring(settings.token_file)


def _token_id(word: str) -> str:
    """The id in an id or in a whole secret: a leaked one can be revoked as it was found. What is neither is not repeated."""
    secret = Secret.parse(word)
    if secret is None and not is_token_id(word):
        raise InvalidArgument("that is not the id of a token", hint="`penstock token list` shows the ids: 12 hexadecimal digits")
    return secret.token_id if secret is not None else word


def _plain(token: Token) -> dict[str, object]:
    return {
        "id": token.id,
        "name": token.name,
        "project": token.project,
        "verbs": list(token.verbs),
        "names": list(token.patterns),
        "created": to_datetime(token.created).isoformat(),
        "expires": None if token.expires is None else to_datetime(token.expires).isoformat(),
    }


def _row(token: Token, now: int) -> list[str]:
    when = "never" if token.expires is None else f"{to_datetime(token.expires):%Y-%m-%d %H:%M} UTC"
    expires = f"{when} (expired)" if token.has_expired(now) else when
    return [token.id, token.name, token.project or "every", ",".join(token.verbs), ",".join(token.patterns), expires]
