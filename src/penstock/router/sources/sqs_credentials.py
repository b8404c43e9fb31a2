"""Where the router's AWS credentials come from: the environment, else all the places where Amazon's own tools look.

Those places (profiles, single sign-on, roles of containers and machines) are botocore's business: it finds the credentials and
renews them, in a thread, because it waits. With keys in the environment botocore is not needed and not loaded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from penstock.errors import FailedPrecondition
from penstock.router.sources.sqs_signature import Credentials

KEY, SECRET, TOKEN = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"
_HINT = f"set {KEY} and {SECRET}, or give the machine a role or a profile; an emulator of SQS takes any"


class CredentialChain:
    """The credentials that hold now."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._found: Any = None  # botocore's, which ships no types; None: not looked for yet
        self._frozen: Credentials | None = None
        self._search = asyncio.Lock()

    async def current(self) -> Credentials:
        """What to sign with; FailedPrecondition when there is nothing."""
        if (frozen := self._fresh()) is not None:
            return frozen
        async with self._search:  # one search for everyone who waits for it
            found = self._fresh() or self._given()
            if found is None:
                found = await asyncio.to_thread(self._look)
            self._frozen = found
            return found

    def forget(self) -> None:
        """The server takes them no more: look again."""
        self._found = self._frozen = None

    def _fresh(self) -> Credentials | None:
        # Only credentials that are given for a time can be asked whether it is over.
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
                hint=f"pip install 'penstock[router-sqs]', or set {KEY} and {SECRET}",
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
