"""`penstock hub token`: a token (JWT) for one actor of a hub that knows the same secret. For trying out, and for services."""

from __future__ import annotations

import argparse

from penstock.cli.arguments import duration
from penstock.cli.command import Verbs
from penstock.cli.output import complain, say, span
from penstock.cli.settings import add_flags, settings_of
from penstock.clock import SystemClock
from penstock.durations import SECOND
from penstock.errors import InvalidArgument
from penstock.hub.core.claims import Demands, identity_of, parse_claims
from penstock.hub.core.refusal import Refusal
from penstock.hub.keys import KeyFile, secret_key

_PREFIX = "hub_jwt_"
HOUR = 3_600.0
HINT = "an actor is a kind and a name, such as browser/ui; patterns are such as chat/# or orders/+"


def configure(verbs: Verbs) -> None:
    """Add it."""
    token = verbs.add("token", "make a token for an actor, signed with the secret of the hub", run_token)
    token.add_argument("--actor", required=True, metavar="KIND/NAME", help="whose token it is, such as browser/ui")
    token.add_argument(
        "--publish", action="append", metavar="PATTERN", help="what it may publish to; may be given again (default: every topic)"
    )
    token.add_argument(
        "--subscribe", action="append", metavar="PATTERN", help="what it may see; may be given again (default: every topic)"
    )
    token.add_argument("--ttl", type=duration, default=HOUR, metavar="DURATION", help="how long it is valid (default: 1h)")
    add_flags(token, {"hub_jwt_secret_file", "hub_jwt_issuer", "hub_jwt_audience"}, prefix=_PREFIX)


def run_token(found: argparse.Namespace) -> int:
    """Print the token, alone, so that a script can take it. It is one that the hub would accept by the same settings."""
    settings, _ = settings_of(found, prefix=_PREFIX)
    if settings.hub_jwt_secret_file is None:
        raise InvalidArgument(
            "there is no secret to sign with",
            hint="name its file with --secret-file, or set hub_jwt_secret_file as for the server",
        )
    if not SECOND <= found.ttl * SECOND <= settings.hub_jwt_max_age * SECOND:
        raise InvalidArgument.of(
            "--ttl", f"{found.ttl:g} s", f"1 s or more, and no more than hub_jwt_max_age ({settings.hub_jwt_max_age:g} s)"
        )
    now = SystemClock().now()
    issued = now // SECOND
    claims: dict[str, object] = {
        "iss": settings.hub_jwt_issuer,
        "aud": settings.hub_jwt_audience,
        "actorId": found.actor,
        "publish": found.publish,
        "subscribe": found.subscribe,
        "iat": issued,
        "exp": issued + round(found.ttl),
    }
    key = KeyFile(settings.hub_jwt_secret_file, "HS256", secret_key, lambda: 0).key
    token = key.signed({name: value for name, value in claims.items() if value is not None})
    try:
        demands = Demands(issuer=settings.hub_jwt_issuer, audience=settings.hub_jwt_audience)
        actor = identity_of(parse_claims(key.opened(token) or b""), demands, now).address
    except Refusal as refusal:
        raise InvalidArgument(f"a hub would refuse this token: {refusal.message}", hint=HINT) from None
    say(token)
    complain(f"valid for {span(found.ttl)}, as {actor}; send it as payload.jwt of hub:connect, or set PENSTOCK_TOKEN to it")
    return 0
