"""Signatures by which a target knows that a request comes from this router.

Two schemes: Standard Webhooks, with the secret of the router's operator, and the scheme of the router's original, with the
secret in the message.
"""

from __future__ import annotations

import hmac
from base64 import b64decode, b64encode
from binascii import Error
from datetime import UTC, datetime

from penstock.durations import SECOND
from penstock.errors import InvalidArgument

PREFIX = "whsec_"


def standard_key(secret: str) -> bytes:
    """The key in a Standard Webhooks secret: `whsec_` and Base64, or any other text unchanged."""
    if not secret:
        raise InvalidArgument("signing_secret is empty, expected whsec_ and a key in Base64")
    if not secret.startswith(PREFIX):
        return secret.encode()
    try:
        return b64decode(secret.removeprefix(PREFIX), validate=True)
    except (Error, ValueError):
        # the secret itself is not shown
        raise InvalidArgument(
            "signing_secret begins with whsec_ but is not Base64 after it", hint="give it as it was made"
        ) from None


def standard_headers(key: bytes, message_id: str, body: bytes, now: int) -> bytes:
    """The header lines `webhook-id`, `webhook-timestamp` and `webhook-signature`."""
    name, moment = message_id.encode(), b"%d" % (now // SECOND)
    digest = hmac.digest(key, b"%b.%b.%b" % (name, moment, body), "sha256")
    return b"webhook-id: %b\r\nwebhook-timestamp: %b\r\nwebhook-signature: v1,%b\r\n" % (name, moment, b64encode(digest))


def message_headers(secret: str, body: bytes, now: int) -> bytes:
    """The header lines `X-FLOWCATALYST-SIGNATURE` and `X-FLOWCATALYST-TIMESTAMP`."""
    moment = datetime.fromtimestamp(now // 1000 / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:23].encode() + b"Z"
    digest = hmac.digest(secret.encode(), moment + body, "sha256").hex().encode()
    return b"X-FLOWCATALYST-SIGNATURE: %b\r\nX-FLOWCATALYST-TIMESTAMP: %b\r\n" % (digest, moment)
