"""The keys of NATS users: seeds (`nkey`), and `.creds` files with a seed and a JWT. They sign the nonce of a server's greeting.

A seed is base32 without padding: two bytes for its kind, 32 bytes of an Ed25519 key, a CRC-16. Its public key is written
likewise, with one byte for the kind. Files are read for each connection, so that a renewed file counts at the next one.
"""

from __future__ import annotations

import base64
import binascii
import re
from pathlib import Path
from typing import Final

from penstock.errors import FailedPrecondition
from penstock.extras import how_to_install

USER: Final = 20 << 3
_SEED: Final = 18 << 3
_BLOCK: Final = re.compile(r"-{3,}\s*BEGIN ([^-]+?)\s*-{3,}\s*(\S+)\s*-{3,}\s*END")


def signed(nonce: str, *, nkey: str = "", creds: str = "") -> dict[str, str]:
    """The fields of CONNECT that answer a nonce, with the key of a file; FailedPrecondition if it has none.

    `nkey` is the file of a seed, `creds` a file of credentials. Errors show the file, never its content.
    """
    jwt, seed = _creds(creds) if creds else ("", _text(nkey).strip())
    try:
        secret = _decoded(seed)
    except ValueError as error:
        raise _unusable(creds or nkey, str(error)) from None
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415  # only needed with keys
            Ed25519PrivateKey,
        )
    except ImportError as error:
        raise FailedPrecondition("keys of NATS need the library cryptography", hint=how_to_install("router")) from error
    key = Ed25519PrivateKey.from_private_bytes(secret)
    signature = base64.urlsafe_b64encode(key.sign(nonce.encode())).rstrip(b"=").decode()
    if jwt:
        return {"jwt": jwt, "sig": signature}
    return {"nkey": encoded(bytes([USER]) + key.public_key().public_bytes_raw()), "sig": signature}


def encoded(key: bytes) -> str:
    """A key with its kind as prefix, as NATS writes it."""
    return base64.b32encode(key + binascii.crc_hqx(key, 0).to_bytes(2, "little")).rstrip(b"=").decode()


def _decoded(seed: str) -> bytes:
    """The 32 bytes of a user's seed; ValueError if it is not valid."""
    try:
        raw = base64.b32decode(seed + "=" * (-len(seed) % 8))
    except binascii.Error:
        raise ValueError("its seed is not base32") from None
    if len(raw) != 36 or binascii.crc_hqx(raw[:-2], 0).to_bytes(2, "little") != raw[-2:]:
        raise ValueError("its seed is damaged")
    if raw[0] & 0xF8 != _SEED or (raw[0] & 7) << 5 | raw[1] >> 3 != USER:
        raise ValueError("its seed is not that of a user, which starts with SU")
    return raw[2:-2]


def _creds(path: str) -> tuple[str, str]:
    """The JWT and the seed of a file of credentials."""
    blocks = {kind.upper(): text for kind, text in _BLOCK.findall(_text(path))}
    try:
        return blocks["NATS USER JWT"], blocks["USER NKEY SEED"]
    except KeyError as missing:
        raise _unusable(path, f"it has no {missing.args[0]}") from None


def _text(path: str) -> str:
    try:
        return Path(path).read_text("ascii")
    except OSError as error:
        raise _unusable(path, error.strerror or "it cannot be read") from None
    except UnicodeDecodeError:
        raise _unusable(path, "it is not text") from None


def _unusable(path: str, why: str) -> FailedPrecondition:
    return FailedPrecondition(
        f"the key file {path!r} cannot be used: {why}",
        hint="nkey needs a file with the seed of a user (SU…), creds a file that nsc made with `generate creds`",
    )
