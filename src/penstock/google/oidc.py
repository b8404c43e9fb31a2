"""The tokens of pushes, and the documents with which an endpoint checks them.

They are signed by a key of this server's own, made when it is first needed and kept with the messages, so that tokens stay good
across a restart. An endpoint finds the key as with any issuer: `iss` + `/.well-known/openid-configuration` names the JWKS.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from aiohttp import web

from penstock.broker import lookup
from penstock.broker.catalog import Catalog
from penstock.durations import SECOND
from penstock.google.resources import Resources
from penstock.http.request import Request, json_response
from penstock.http.routes import Operation, Reply, Route
from penstock.journal.core.events import Event

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

DOCUMENT = "oidc:key"
DISCOVERY = "/.well-known/openid-configuration"
JWKS = "/oidc/jwks"
LIFE = 3_600 * SECOND
SPARE = 300 * SECOND
"""A token is not used in the last part of its life: it needs time to arrive, and the endpoint's clock may be ahead."""
KEY_BITS = 2048
MAX_TOKENS = 10_000


class Discovery(msgspec.Struct):
    """Where the issuer's keys are, and what its tokens look like."""

    issuer: str
    jwks_uri: str
    id_token_signing_alg_values_supported: tuple[str, ...] = ("RS256",)
    response_types_supported: tuple[str, ...] = ("id_token",)
    subject_types_supported: tuple[str, ...] = ("public",)
    claims_supported: tuple[str, ...] = ("aud", "azp", "email", "email_verified", "exp", "iat", "iss", "penstock_project", "sub")


class Jwk(msgspec.Struct):
    """A public RSA key."""

    kid: str
    n: str
    e: str
    kty: str = "RSA"
    alg: str = "RS256"
    use: str = "sig"


class Jwks(msgspec.Struct):
    """The issuer's public keys."""

    keys: list[Jwk]


class TokenIssuer:
    """Signs tokens for service accounts.

    `url` returns the address under which others reach this server; it is known once the port is bound.
    """

    def __init__(self, resources: Resources, url: Callable[[], str]) -> None:
        self._resources = resources
        self._url = url
        self._signing: tuple[RSAPrivateKey, Jwk] | None = None
        self._turn = asyncio.Lock()
        self._tokens: dict[tuple[str, str, str], tuple[int, str]] = {}
        """(renewed at, token) by (project, email, audience)."""

    async def token(self, project: str, email: str, audience: str) -> str:
        """A token with which this server calls for a service account. It is valid for a few minutes at least."""
        now = self._resources.broker.clock.now()
        renewed_at, token = self._tokens.get((project, email, audience), (0, ""))
        if now < renewed_at:
            return token
        import jwt  # noqa: PLC0415  # a server without authenticated pushes does without 10 MB of cryptography

        key, public = await self._key()
        subject = str(int.from_bytes(hashlib.sha256(email.encode()).digest()[:8]))
        claims = {
            "iss": self._url(),
            "aud": audience,
            "sub": subject,
            "azp": subject,
            "email": email,
            "email_verified": True,
            # Every project may name any account, so an endpoint of one project must check this too.
            "penstock_project": project,
            "iat": now // SECOND,
            "exp": (now + LIFE) // SECOND,
        }
        token = jwt.encode(claims, key, "RS256", {"kid": public.kid})
        if len(self._tokens) >= MAX_TOKENS:
            self._tokens.clear()
        self._tokens[project, email, audience] = now + LIFE - SPARE, token
        return token

    def routes(self) -> list[Route]:
        """The routes with which an endpoint checks a token. Open to all: nothing in them is secret."""

        async def discovery(_: Request) -> web.StreamResponse:
            url = self._url()
            return json_response(Discovery(url, url + JWKS))

        async def jwks(_: Request) -> web.StreamResponse:
            public = (await self._key())[1]
            return json_response(Jwks([public]), headers={"Cache-Control": "public, max-age=3600"})

        tags = ("push",)
        return [
            Route(
                "GET",
                DISCOVERY,
                discovery,
                Operation(
                    "The issuer of push tokens",
                    "OpenID Connect discovery: the issuer of the tokens that authenticated pushes carry.",
                    tags,
                    replies={200: Reply("The issuer.", Discovery)},
                ),
                is_open=True,
            ),
            Route(
                "GET",
                JWKS,
                jwks,
                Operation(
                    "The keys of push tokens",
                    "The public keys that check the tokens of authenticated pushes.",
                    tags,
                    replies={200: Reply("The keys.", Jwks)},
                ),
                is_open=True,
            ),
        ]

    async def _key(self) -> tuple[RSAPrivateKey, Jwk]:
        if self._signing is None:
            async with self._turn:  # one key, also for concurrent first callers
                if self._signing is None:
                    self._signing = await self._load()
        return self._signing

    async def _load(self) -> tuple[RSAPrivateKey, Jwk]:
        """The stored key, or a new one, which is stored before it is used."""
        kept = lookup.document(self._resources.broker, DOCUMENT)
        if kept is None:
            made = await self._resources.aio.call(_generated)
            await self._resources.change(lambda catalog, now: _keep(catalog, made, now))
            kept = lookup.document(self._resources.broker, DOCUMENT) or made
        return await self._resources.aio.call(_read, kept)


def _keep(catalog: Catalog, pem: bytes, now: int) -> Event | None:
    return catalog.keep_document(DOCUMENT, pem, now) if DOCUMENT not in catalog.documents else None


def _generated() -> bytes:
    """A new key, PEM. Takes a fraction of a second."""
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415  # see `token`
    from cryptography.hazmat.primitives.asymmetric import rsa  # noqa: PLC0415

    return rsa.generate_private_key(public_exponent=65537, key_size=KEY_BITS).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _read(pem: bytes) -> tuple[RSAPrivateKey, Jwk]:
    from jwt.algorithms import RSAAlgorithm  # noqa: PLC0415  # see `token`

    key: Any = RSAAlgorithm(RSAAlgorithm.SHA256).prepare_key(pem)
    public = RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    numbers = {name: str(public[name]) for name in ("n", "e")}
    return key, Jwk(hashlib.sha256(numbers["n"].encode()).hexdigest()[:40], **numbers)
