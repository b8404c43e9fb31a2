"""The identity and permissions of a client, read from a token (JWT) whose signature has been verified.

Times in a token are seconds since 1970, as in RFC 7519. The clocks of issuer and hub may differ by the leeway.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from penstock.durations import SECOND
from penstock.errors import short_repr
from penstock.hub.core.names import EVERYONE, HUB, address_of, covers, is_address, is_pattern
from penstock.hub.core.refusal import Refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The actor and its permissions, as the token describes them."""

    address: str | None = None
    """The only address it may register; None for any."""
    publish: tuple[str, ...] | None = None
    """Patterns of the topics it may publish to; None for all."""
    subscribe: tuple[str, ...] | None = None
    """Patterns that cover the topics and patterns it may subscribe to; None for all."""
    expires_at: int | None = None

    @property
    def pattern_count(self) -> int:
        """The number of patterns that `may_subscribe` compares a topic with; at least 1."""
        return max(len(self.subscribe or ()), 1)

    def may_publish(self, topic: str) -> bool:
        return self.publish is None or any(covers(pattern, topic) for pattern in self.publish)

    def may_subscribe(self, pattern: str) -> bool:
        """Whether it may see every topic that a topic or pattern covers."""
        return self.subscribe is None or any(covers(allowed, pattern) for allowed in self.subscribe)

    def may_end(self, pattern: str) -> bool:
        """Whether it may end a durable subscription of the actor it is registered as.

        With a token that names the actor, it may. A client with a token that names none can register as any actor, so it may only
        end subscriptions that it could have started.
        """
        return self.address is not None or self.may_subscribe(pattern)

    def may_send(self) -> bool:
        """Whether it may send to other actors: yes if it may publish to at least one topic."""
        return self.publish is None or bool(self.publish)

    def may_broadcast(self) -> bool:
        """Whether it may send to all actors: only if it may publish to every topic."""
        return self.publish is None


ANONYMOUS = Identity()
"""The identity of clients if no token is required."""


LEEWAY = 30 * SECOND
"""How much the clocks of the issuer and the hub may differ."""

Instant = Annotated[float, Meta(ge=0, le=1e11)]
"""Up to the year 5138: a time in milliseconds is refused instead of read as a token that never expires."""
Words = tuple[Annotated[str, Meta(min_length=1, max_length=256)], ...]


class Claims(msgspec.Struct, frozen=True):
    """The claims that the hub reads. Others are ignored."""

    iss: str | None = None
    aud: str | tuple[str, ...] | None = None
    exp: Instant | None = None
    iat: Instant | None = None
    nbf: Instant | None = None
    sub: str | None = None
    actor: str | None = msgspec.field(default=None, name="actorId")
    publish: Words | UnsetType = UNSET
    subscribe: Words | UnsetType = UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRequirements:
    """The requirements that a token has to meet."""

    issuer: str
    audience: str | None = None
    max_age: int = 24 * 3_600 * SECOND
    """The maximum age since it was issued, even if it expires later."""


def unauthorized(reason: str, message: str, resolution: str, *, retryable: bool = False, **details: object) -> Refusal:
    return Refusal("unauthorized", message, reason=reason, resolution=resolution, retryable=retryable, details=details)


def parse_claims(payload: bytes) -> Claims:
    """The claims of a token with a verified signature. Raises a Refusal if they cannot be read."""
    try:
        return _decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:  # ValueError: not UTF-8
        why = str(error) if isinstance(error, msgspec.ValidationError) else "they are not a JSON object"
        raise unauthorized(
            "malformed_claims",
            f"the claims of the token cannot be read: {why}",
            "issue a token whose claims have the right types",
        ) from None


def identity_of(claims: Claims, demands: TokenRequirements, now: int) -> Identity:
    """The identity in these claims. Raises a Refusal if they are not for this hub, or not valid now."""
    if claims.iss != demands.issuer:
        raise unauthorized(
            "wrong_issuer",
            f"the token was issued by {short_repr(claims.iss)}, expected {demands.issuer!r}",
            "bring a token of that issuer, or set hub_jwt_issuer to the one that issues them",
        )
    audiences = (claims.aud,) if isinstance(claims.aud, str) else claims.aud or ()
    if demands.audience is not None and demands.audience not in audiences:
        raise unauthorized(
            "wrong_audience",
            f"the token is for {short_repr(claims.aud)}, expected {demands.audience!r}",
            "bring a token that was issued for this hub",
        )
    expires_at = _end(claims, demands, now)
    return Identity(
        address=_address(claims),
        publish=_patterns(claims, "publish"),
        subscribe=_patterns(claims, "subscribe"),
        expires_at=expires_at,
    )


def _end(claims: Claims, demands: TokenRequirements, now: int) -> int:
    """When the token stops being valid. If only the leeway makes it valid now, that is the end of the leeway."""
    expires, issued = _required(claims, "exp"), _required(claims, "iat")
    if now >= expires + LEEWAY:
        raise unauthorized("expired_token", "the token has expired", "bring a new one", expiredAt=expires // 1000)
    if now >= issued + demands.max_age + LEEWAY:
        raise unauthorized(
            "token_too_old",
            f"the token was issued more than {demands.max_age // SECOND} s ago",
            "bring a new one; how old it may be is set by hub_jwt_max_age",
        )
    if max(issued, _instant(claims.nbf or 0)) > now + LEEWAY:
        raise unauthorized(
            "token_not_yet_valid", "the token is valid in the future only", "wait, or set the clocks of issuer and hub right"
        )
    end = min(expires, issued + demands.max_age)
    return end if now < end else end + LEEWAY


def _required(claims: Claims, name: str) -> int:
    value: float | None = getattr(claims, name)
    if value is None:
        raise unauthorized("missing_claim", f"the token has no {name}", "issue tokens that say iss, iat and exp", claim=name)
    return _instant(value)


def _instant(seconds: float) -> int:
    return int(seconds * SECOND)


def _address(claims: Claims) -> str:
    """The actor, named by `actorId` or else by `sub`."""
    named = claims.actor if claims.actor is not None else claims.sub
    address = address_of(named or "")
    if not is_address(address) or address in {HUB, EVERYONE}:
        raise unauthorized(
            "wrong_actor",
            f"the token names {short_repr(named)}, expected an actor" if named is not None else "the token names no actor",
            "issue tokens whose actorId, or sub, is a kind and a name in lower case, such as browser/client-ui",
        )
    return address


def _patterns(claims: Claims, name: str) -> tuple[str, ...] | None:
    """The patterns of a claim; None, for all topics, if the token does not have the claim."""
    patterns: Words | UnsetType = getattr(claims, name)
    if patterns is UNSET:
        return None
    for pattern in patterns:
        if not is_pattern(pattern):
            raise unauthorized(
                "malformed_permissions",
                f"{name} of the token has {short_repr(pattern)}, expected topics or patterns",
                "issue tokens with patterns such as orders/# or chat/+",
                claim=name,
            )
    return patterns


_decode = msgspec.json.Decoder(Claims).decode
