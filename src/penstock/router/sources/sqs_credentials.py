"""AWS credentials, and how a request is signed with them.

Credentials come from the environment, or from the places where Amazon's own tools look: profiles, single sign-on, roles of
containers and machines. botocore finds and renews them, in a thread because it blocks. If the environment has keys, botocore is
neither needed nor loaded.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

import msgspec

from penstock.errors import FailedPrecondition
from penstock.extras import how_to_install

CONTENT_TYPE = "application/x-amz-json-1.0"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Credentials(msgspec.Struct, frozen=True):
    """The router's AWS credentials. The text of the object never shows the secrets."""

    access_key: str
    secret_key: str
    token: str = ""
    """Only for temporary credentials."""

    def __repr__(self) -> str:
        return "<AWS credentials>"


class Signer:
    """Signs requests to one host by Signature Version 4, for the kind of request that SQS needs. The key of a day is cached."""

    def __init__(self, host: str, region: str, service: str = "sqs") -> None:
        self._host = host
        self._scope = f"{region}/{service}/aws4_request"
        self._key = b""
        self._key_is_for: tuple[str, str] | None = None

    def head(self, credentials: Credentials, path: str, target: str, body: bytes, now: int) -> bytes:
        """The header lines, each with its CR LF, of a POST of `body` to `path` for the operation `target`."""
        at = (_EPOCH + timedelta(microseconds=now)).strftime("%Y%m%dT%H%M%SZ")
        day = at[:8]
        signed = [("content-type", CONTENT_TYPE), ("host", self._host), ("x-amz-date", at)]  # in alphabetical order
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


KEY, SECRET, TOKEN = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"
_HINT = f"set {KEY} and {SECRET}, or give the machine a role or a profile; an emulator of SQS takes any"


class CredentialChain:
    """The credentials that are valid now."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._found: Any = None  # botocore's, which ships no types; None: not searched yet
        self._frozen: Credentials | None = None
        self._search = asyncio.Lock()

    async def current(self) -> Credentials:
        """The credentials to sign with; FailedPrecondition if there are none."""
        if (frozen := self._fresh()) is not None:
            return frozen
        async with self._search:  # one search for all callers
            found = self._fresh() or self._given()
            if found is None:
                found = await asyncio.to_thread(self._look)
            self._frozen = found
            return found

    def forget(self) -> None:
        self._found = self._frozen = None

    def _fresh(self) -> Credentials | None:
        # Only temporary credentials can report whether they have expired.
        is_old = hasattr(self._found, "refresh_needed") and self._found.refresh_needed()
        return None if is_old else self._frozen

    def _given(self) -> Credentials | None:
        key, secret = self._environment.get(KEY, ""), self._environment.get(SECRET, "")
        if bool(key) != bool(secret):
            given, missing = (KEY, SECRET) if key else (SECRET, KEY)
            raise FailedPrecondition(f"{given} is set, but {missing} is not", hint=_HINT)
        return Credentials(key, secret, self._environment.get(TOKEN, "")) if key else None

    def _look(self) -> Credentials:
        try:
            from botocore.exceptions import BotoCoreError  # type: ignore[import-untyped]  # noqa: PLC0415
            from botocore.session import Session  # type: ignore[import-untyped]  # noqa: PLC0415
        except ImportError:
            raise FailedPrecondition(
                f"{KEY} is not set, and looking for AWS credentials elsewhere needs botocore, which is not installed",
                hint=f"{how_to_install('router-sqs')}, or set {KEY} and {SECRET}",
            ) from None
        try:
            if self._found is None:
                self._found = Session(profile=self._environment.get("AWS_PROFILE") or None).get_credentials()
            frozen = self._found and self._found.get_frozen_credentials()
        except BotoCoreError as error:
            raise FailedPrecondition(f"the AWS credentials cannot be used: {error}", hint=_HINT) from None
        if not frozen or not frozen.access_key:
            raise FailedPrecondition("there are no AWS credentials", hint=_HINT)
        return Credentials(frozen.access_key, frozen.secret_key, frozen.token or "")
