"""How a request to Amazon says who sends it: Signature Version 4, for the one shape of request that SQS needs."""

from __future__ import annotations

import hmac
from datetime import UTC, datetime, timedelta
from hashlib import sha256

import msgspec

CONTENT_TYPE = "application/x-amz-json-1.0"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Credentials(msgspec.Struct, frozen=True):
    """Who the router is to Amazon. Its text never shows the secrets."""

    access_key: str
    secret_key: str
    token: str = ""
    """Only with credentials that are given for a time."""

    def __repr__(self) -> str:
        return "<AWS credentials>"


class Signer:
    """Makes the header lines of a signed request to one host. A day's key is made once."""

    def __init__(self, host: str, region: str, service: str = "sqs") -> None:
        self._host = host
        self._scope = f"{region}/{service}/aws4_request"
        self._key = b""
        self._key_is_for: tuple[str, str] | None = None

    def head(self, credentials: Credentials, path: str, target: str, body: bytes, now: int) -> bytes:
        """The header lines, each with its CR LF, of a POST of `body` to `path` that asks for `target`."""
        at = (_EPOCH + timedelta(microseconds=now)).strftime("%Y%m%dT%H%M%SZ")
        day = at[:8]
        signed = [("content-type", CONTENT_TYPE), ("host", self._host), ("x-amz-date", at)]  # in the order of the alphabet
        if credentials.token:
            signed.append(("x-amz-security-token", credentials.token))
        signed.append(("x-amz-target", target))
        names = ";".join(name for name, _ in signed)
        lines = "".join(f"{name}:{value}\n" for name, value in signed)
        request = f"POST\n{path}\n\n{lines}\n{names}\n{sha256(body).hexdigest()}"
        scope = f"{day}/{self._scope}"
        text = f"AWS4-HMAC-SHA256\n{at}\n{scope}\n{sha256(request.encode()).hexdigest()}"
        signature = hmac.digest(self._day_key(credentials.secret_key, day), text.encode(), "sha256").hex()
        header = "".join(f"{name}: {value}\r\n" for name, value in signed)
        identity = f"Credential={credentials.access_key}/{scope}, SignedHeaders={names}, Signature={signature}"
        return f"{header}authorization: AWS4-HMAC-SHA256 {identity}\r\n".encode()

    def _day_key(self, secret_key: str, day: str) -> bytes:
        if self._key_is_for != (secret_key, day):
            key = b"AWS4" + secret_key.encode()
            for part in (day, *self._scope.split("/")):
                key = hmac.digest(key, part.encode(), "sha256")
            self._key, self._key_is_for = key, (secret_key, day)
        return self._key
