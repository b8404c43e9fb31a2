"""`penstock token create|list|revoke`: the tokens of a server. A running server notices changes within a second."""

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
    """Add three sub-commands."""
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    create = commands.add_parser(
        "create", help="create a token; its secret is shown once", description="Create a token. Its secret is shown once."
    )
    create.add_argument("--name", required=True, help="a name for the token, such as its user")
    create.add_argument("--project", help="the only project it may use (default: all projects)")
    create.add_argument("--verbs", metavar="VERB,…", help=f"what it may do, of {', '.join(Verb)} (default: all)")
    create.add_argument(
        "--names", metavar="PATTERN,…", help="the names it may use, with * for any text, as in 'orders-*' (default: all)"
    )
    create.add_argument(
        "--expires", metavar="DURATION", help="how long it is valid, as in 12h or 30d (default: until it is revoked)"
    )
    create.add_argument("--json", action="store_true", help="print JSON, for programs")
    create.set_defaults(run=run_create)
    show = commands.add_parser("list", help="list the tokens, without secrets", description="List the tokens, without secrets.")
    show.add_argument("--json", action="store_true", help="print JSON, for programs")
    show.set_defaults(run=run_list)
    revoke = commands.add_parser("revoke", help="revoke tokens at once", description="Revoke tokens at once.")
    revoke.add_argument("ids", metavar="ID", nargs="+", help="an id from `penstock token list`")
    revoke.set_defaults(run=run_revoke)
    for child in (create, show, revoke):
        add_flags(child, {"data_dir", "journal", "token_file"})


def run_create(found: argparse.Namespace) -> int:
    """Print only the secret, for scripts; remarks go to the standard error."""
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
    """List the tokens and their permissions."""
    tokens, now = _keyring(found).list(), SystemClock().now()
    if found.json:
        say(json.dumps([_plain(token) for token in tokens], indent=2))
    elif not tokens:
        complain("no tokens; `penstock token create --name NAME` creates one")
    else:
        say(table([["ID", "NAME", "PROJECT", "VERBS", "NAMES", "EXPIRES"], *(_row(token, now) for token in tokens)]))
    for advice in (token.advice for token in tokens if not token.has_expired(now)):
        if advice is not None:
            complain(advice)
    return 0


def run_revoke(found: argparse.Namespace) -> int:
    """Revoke each; an unknown id ends it."""
    keyring = _keyring(found)
    for token_id in map(_token_id, found.ids):
        keyring.revoke(token_id)
        say(f"revoked {token_id}")
    return 0


def _keyring(found: argparse.Namespace) -> Keyring:
    from penstock.server.tokens import keyring_of  # noqa: PLC0415  # `--help` needs no tokens

    settings, _ = settings_of(found)
    keyring = keyring_of(settings, watch=False)
    if keyring is None:
        raise InvalidArgument("a server in memory has no file of tokens", hint="name one with --token-file")
    return keyring


def _token_id(word: str) -> str:
    """The id in an id or in a whole secret, so that a leaked secret can be revoked as found. Other text is not repeated."""
    secret = Secret.parse(word)
    if secret is None and not is_token_id(word):
        raise InvalidArgument("this is not the id of a token", hint="`penstock token list` shows the ids: 12 hexadecimal digits")
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
