"""Somebody who issues tokens: keys made once, and tokens that are right unless a test says what is wrong with them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from functools import cache
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from penstock.durations import SECOND
from penstock.testing import ManualClock

SECRET = b"a secret of the issuer and the hub, long enough"
NOW = ManualClock().now() // SECOND
"""The second at which a test begins."""


def rsa_key(name: str = "first", bits: int = 2048) -> rsa.RSAPrivateKey:
    return _rsa_key(name, bits)


def ec_key(name: str = "first") -> ec.EllipticCurvePrivateKey:
    return _ec_key(name)


@cache
def _rsa_key(name: str, bits: int) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=bits)


@cache
def _ec_key(name: str) -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def public_pem(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def private_pem(key: rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def jwk(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey, kid: str | None = "one", **more: object) -> dict[str, Any]:
    """A public key as a JWKS has it."""
    algorithm = "RS256" if isinstance(key, rsa.RSAPrivateKey) else "ES256"
    public: Any = key.public_key()
    described: dict[str, Any] = jwt.get_algorithm_by_name(algorithm).to_jwk(public, as_dict=True)
    described.pop("key_ops", None)
    return {**described, **({} if kid is None else {"kid": kid}), **more}


def claims(**changes: object) -> dict[str, Any]:
    """Right claims with these changes; one that is None is left out."""
    right = {"iss": "signal-hub", "iat": NOW, "exp": NOW + 3_600, "actorId": "browser/ui", "capabilities": ["chat"], **changes}
    return {name: value for name, value in right.items() if value is not None}


def signed(key: Any = SECRET, algorithm: str = "HS256", kid: str | None = None, **changes: object) -> str:
    """A token, right but for these changes."""
    return jwt.encode(claims(**changes), key, algorithm, None if kid is None else {"kid": kid})


def forged(header: object, payload: object, secret: bytes = b"") -> str:
    """A token that no library would make: any header, and a signature by HMAC whatever the header says."""
    parts = ".".join(encoded(part if isinstance(part, bytes) else json.dumps(part).encode()) for part in (header, payload))
    signature = encoded(hmac.digest(secret, parts.encode(), hashlib.sha256)) if secret else ""
    return f"{parts}.{signature}"


def encoded(part: bytes) -> str:
    return base64.urlsafe_b64encode(part).rstrip(b"=").decode()
