"""Keys that verify the signatures of tokens, and the files they are read from.

A key is for one algorithm, and a token cannot choose another one for it: a token that is signed with a public key as if it were
a secret is refused, and so is an unsigned token.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from penstock.durations import SECOND
from penstock.errors import FailedPrecondition, Unavailable

log = logging.getLogger("penstock.hub")

Algorithm = Literal["HS256", "RS256", "ES256"]
MIN_SECRET = 32
"""In bytes: the size of the digest of HS256, see RFC 7518 3.2."""
MIN_RSA_BITS = 2048
MAX_RSA_BITS = 8192
"""Larger keys make the verification of every token slow."""
MAX_FILE_BYTES = 64 * 1024
MAX_KEYS = 100
LOOK_INTERVAL = SECOND


class Source(Protocol):
    """A source of keys."""

    algorithms: tuple[Algorithm, ...]

    async def find(self, algorithm: str, kid: str | None) -> Key | None:
        """The key for a token with this algorithm, one of `algorithms`, and this key id; None if there is no such key.

        Raises:
            Unavailable: the keys cannot be read or fetched at the moment.
        """


@dataclass(frozen=True, slots=True)
class Key:
    """A key that verifies signatures of one algorithm."""

    algorithm: Algorithm
    material: Any = field(repr=False)  # the key object of the JWT library

    def opened(self, token: str) -> bytes | None:
        """The payload of a token; None if it is not signed by this key."""
        import jwt  # noqa: PLC0415  # 10 MB of memory that a hub without tokens does not need

        try:
            payload: bytes = jwt.PyJWS().decode(token, self.material, [self.algorithm])
        except jwt.PyJWTError:
            return None
        return payload

    def signed(self, claims: Mapping[str, object]) -> str:
        """A signed token with these claims. Only a shared secret can sign."""
        import jwt  # noqa: PLC0415  # see `Key.opened`

        return jwt.encode(dict(claims), self.material, self.algorithm)


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a token, which is not verified yet."""

    algorithm: str
    kid: str | None


def header_of(token: str) -> Header | None:
    """The header of a token; None if the text is not a token."""
    import jwt  # noqa: PLC0415  # see `Key.opened`

    try:
        header = jwt.get_unverified_header(token)
    except (jwt.PyJWTError, ValueError):  # ValueError: text that cannot be encoded
        return None
    algorithm = header.get("alg")
    return Header(algorithm, header.get("kid")) if isinstance(algorithm, str) else None


def secret_key(content: bytes) -> Key:
    """The key from a secret that issuer and hub share, without white space around it. Raises ValueError if it is not usable."""
    import jwt  # noqa: PLC0415  # see `Key.opened`

    secret = content.strip()
    if len(secret) < MIN_SECRET:
        raise ValueError(f"it holds {len(secret)} bytes, and a secret needs {MIN_SECRET} at least")
    try:
        jwt.get_algorithm_by_name("HS256").prepare_key(secret)
    except jwt.InvalidKeyError:
        raise ValueError("it holds a public key or a certificate, which is no secret") from None
    return Key("HS256", secret)


def public_key(content: bytes) -> Key:
    """The key from an RSA public key in PEM. Raises ValueError if it is not usable."""
    import jwt  # noqa: PLC0415  # see `Key.opened`

    if b"PRIVATE KEY" in content:
        raise ValueError("it holds a private key, which belongs to the issuer alone; a hub needs the public one")
    try:
        material: Any = jwt.get_algorithm_by_name("RS256").prepare_key(content)
    except (jwt.InvalidKeyError, ValueError, TypeError):
        raise ValueError("it holds no RSA public key in PEM") from None
    return _checked_rsa(material)


class _Jwk(msgspec.Struct, frozen=True):
    """A key of a set. Only its public parts are read."""

    kty: str
    kid: str | None = None
    use: str | None = None
    alg: str | None = None
    key_ops: tuple[str, ...] | None = None
    crv: str | None = None
    n: str | None = None
    e: str | None = None
    x: str | None = None
    y: str | None = None

    def key(self) -> Key | None:
        """The key; None if it is not a signature key of a supported algorithm."""
        if self.use not in {None, "sig"} or "verify" not in (self.key_ops or ("verify",)):
            return None
        match self.kty, self.crv:
            case "RSA", _ if self.alg in {None, "RS256"} and self.n and self.e:
                return _checked_rsa(_material("RS256", {"kty": "RSA", "n": self.n, "e": self.e}))
            case "EC", "P-256" if self.alg in {None, "ES256"} and self.x and self.y:
                public = {"kty": "EC", "crv": "P-256", "x": self.x, "y": self.y}
                return Key("ES256", _material("ES256", public))
            case _:
                return None


class _KeySet(msgspec.Struct, frozen=True):
    keys: tuple[msgspec.Raw, ...]


KeySet = Mapping[tuple[str, str | None], Key]
"""Keys by algorithm and key id."""


def key_set(body: bytes) -> KeySet:
    """The usable keys of a JWKS (RFC 7517). Raises ValueError if there are none."""
    try:
        described = msgspec.json.decode(body, type=_KeySet).keys
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise ValueError("it is not a JWKS") from None
    if len(described) > MAX_KEYS:
        raise ValueError(f"it has {len(described)} keys, and at most {MAX_KEYS} are accepted")
    found: dict[tuple[str, str | None], Key] = {}
    for raw in described:
        try:  # unsupported keys are ignored, as RFC 7517 5 requires
            jwk = msgspec.json.decode(raw, type=_Jwk)
            key = jwk.key()
        except ValueError:  # includes the errors of msgspec
            continue
        if key is not None:
            found.setdefault((key.algorithm, jwk.kid), key)
    if not found:
        raise ValueError(f"it has no key for RS256 ({MIN_RSA_BITS} bits or more) or ES256")
    return found


class KeyFile:
    """The key in a file. A changed file is read again; while it is invalid, all tokens are refused."""

    def __init__(self, path: Path, algorithm: Algorithm, read: Callable[[bytes], Key], tick: Callable[[], int]) -> None:
        self.algorithms: tuple[Algorithm, ...] = (algorithm,)
        self._path = path
        self._parse = read
        self._tick = tick
        self._problem: str | None = None
        self._seen: tuple[int, int, int] | None = None
        self.key = self._read()
        self._looked = tick()

    async def find(self, algorithm: str, kid: str | None) -> Key | None:
        """The key; the key id of the token is ignored."""
        if self._tick() - self._looked >= LOOK_INTERVAL:
            self._look()
            self._looked = self._tick()
        if self._problem is not None:
            raise Unavailable(self._problem)
        return self.key

    def _look(self) -> None:
        try:
            if self._problem is None and _signature(self._path.stat()) == self._seen:
                return
        except OSError:
            pass  # `_read` reports what is wrong
        try:
            self.key, self._problem = self._read(), None
        except FailedPrecondition as error:
            if self._problem != str(error):  # log each problem once, not every second
                log.error("%s; tokens that it would check are refused", error)
            self._problem = str(error)

    def _read(self) -> Key:
        try:
            with self._path.open("rb") as file:
                found = os.fstat(file.fileno())
                content = file.read(MAX_FILE_BYTES)
        except OSError as error:
            raise FailedPrecondition(f"cannot read the key file {str(self._path)!r}: {error.strerror}") from None
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise FailedPrecondition(
                f"the key file {str(self._path)!r} can be written by other users", hint="let only its owner: chmod 600"
            )
        try:
            key = self._parse(content)
        except ValueError as error:
            raise FailedPrecondition(f"the key file {str(self._path)!r} is not usable: {error}") from None
        self._seen = _signature(found)
        return key


def _signature(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_mtime_ns, found.st_size, found.st_ino


def _material(algorithm: Algorithm, jwk: dict[str, str]) -> Any:
    import jwt  # noqa: PLC0415  # see `Key.opened`

    try:
        return jwt.PyJWK(jwk, algorithm).key
    except jwt.PyJWTError as error:
        raise ValueError(str(error)) from None


def _checked_rsa(material: Any) -> Key:
    if not MIN_RSA_BITS <= material.key_size <= MAX_RSA_BITS:
        raise ValueError(f"its key has {material.key_size} bits, expected {MIN_RSA_BITS} to {MAX_RSA_BITS}")
    return Key("RS256", material)
