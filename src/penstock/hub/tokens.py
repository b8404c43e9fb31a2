"""Verifiers of tokens: one accepts all clients, one requires a token (JWT) that is signed by a known key.

Neither tokens nor anything from which one could be reconstructed appear in a refusal or a log.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.clock import Clock, steady
from penstock.config import Settings
from penstock.durations import SECOND
from penstock.errors import Unavailable
from penstock.hub.core.identity import ANONYMOUS, Identity, TokenRequirements, identity_of, parse_claims, unauthorized
from penstock.hub.core.refusal import Refusal
from penstock.hub.jwks import Jwks
from penstock.hub.keys import Header, KeyFile, Source, header_of, public_key, secret_key

MAX_TOKEN = 16 * 1024
"""In characters: much more than tokens of real issuers have."""


class OpenVerifier:
    """Accepts all clients; they may register as any actor."""

    async def verify(self, token: str | None, claimed: str | None) -> Identity:
        """An identity without restrictions. The claimed address is ignored: registration sets the address."""
        return ANONYMOUS

    def check(self, identity: Identity) -> None:
        """Never raises."""


class JwtVerifier:
    """Accepts clients with a token that is signed by one of these keys."""

    def __init__(self, sources: Sequence[Source], demands: TokenRequirements, clock: Clock) -> None:
        self._sources = sources
        self._demands = demands
        self._clock = clock

    async def verify(self, token: str | None, claimed: str | None) -> Identity:
        """The identity in the token; the claimed address is ignored."""
        bare = _bare(token)
        header = header_of(bare)
        if header is None:
            raise _malformed("the token is not a JWT")
        payload = await self._opened(bare, header)
        return identity_of(parse_claims(payload), self._demands, self._clock.now())

    def check(self, identity: Identity) -> None:
        """Never raises: a signed token cannot be revoked, it only expires."""

    async def close(self) -> None:
        """Stop fetching keys. Safe to call twice."""
        for source in self._sources:
            if isinstance(source, Jwks):
                await source.close()

    async def _opened(self, token: str, header: Header) -> bytes:
        """The payload of a token that is signed by one of the keys. Otherwise raises the most specific Refusal."""
        refusal = _unknown_algorithm(sorted({name for source in self._sources for name in source.algorithms}))
        for source in self._sources:
            if header.algorithm not in source.algorithms:
                continue
            try:
                key = await source.find(header.algorithm, header.kid)
            except Unavailable:  # its text may name files, so it is only logged
                refusal = _unavailable()
                continue
            payload = key.opened(token) if key is not None else None
            if payload is not None:
                return payload
            refusal = _unsigned() if key is not None else _unknown_key(header)
        raise refusal


def jwt_verifier(settings: Settings, clock: Clock) -> JwtVerifier | None:
    """The verifier for these settings; None if they name no key.

    Raises:
        FailedPrecondition: a file of keys cannot be used.
    """
    tick = steady(clock)
    sources: list[Source] = []
    if settings.hub_jwt_secret_file is not None:
        sources.append(KeyFile(settings.hub_jwt_secret_file, "HS256", secret_key, tick))
    if settings.hub_jwt_key_file is not None:
        sources.append(KeyFile(settings.hub_jwt_key_file, "RS256", public_key, tick))
    if settings.hub_jwks_url is not None:
        sources.append(Jwks(settings.hub_jwks_url, tick))
    demands = TokenRequirements(
        issuer=settings.hub_jwt_issuer,
        audience=settings.hub_jwt_audience,
        max_age=round(settings.hub_jwt_max_age * SECOND),
    )
    return JwtVerifier(sources, demands, clock) if sources else None


def _bare(token: str | None) -> str:
    """The token without the prefix `Bearer`."""
    text = (token or "").strip()
    word, _, rest = text.partition(" ")
    bare = rest.lstrip() if word.lower() == "bearer" else text
    if not bare:
        raise unauthorized("missing_token", "a token is required", "send a JWT in hub:connect, as payload.jwt")
    if len(bare) > MAX_TOKEN:
        raise _malformed(f"the token has {len(bare)} characters, and at most {MAX_TOKEN} are accepted")
    return bare


def _malformed(message: str) -> Refusal:
    return unauthorized("malformed_token", message, "send a JWT: three parts of base64url with dots between them")


def _unknown_algorithm(wanted: Sequence[str]) -> Refusal:
    return unauthorized(
        "wrong_algorithm", f"the token is not signed by {' or '.join(wanted)}", "sign tokens so", algorithms=list(wanted)
    )


def _unknown_key(header: Header) -> Refusal:
    named = "names a key (kid) that the issuer does not publish" if header.kid is not None else "does not name its key (kid)"
    return unauthorized("unknown_key", f"the token {named}", "bring a token that was signed with a published key")


def _unavailable() -> Refusal:
    return unauthorized(
        "keys_unavailable", "the hub cannot check tokens at the moment", "try again later; the hub's log says why", retryable=True
    )


def _unsigned() -> Refusal:
    return unauthorized("bad_signature", "the signature of the token is wrong", "bring a token that the issuer has signed")
