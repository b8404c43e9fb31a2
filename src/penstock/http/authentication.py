"""Who may come in: what the shell needs of authentication and rate limits, and how a secret is found in a request."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Protocol

from penstock.access import ANYONE, ClientRates, Keyring, Principal
from penstock.clock import Clock, SystemClock, monotonic
from penstock.durations import SECOND
from penstock.errors import PenstockError, Unauthenticated

NO_PRINCIPAL = Principal(token_id="", project=None, verbs=frozenset())
"""The caller of an open route, who may do nothing that an API asks about."""
ASK_AGAIN = SECOND
"""How long somebody who was let in may stay before they are looked at again."""


class Gate(Protocol):
    """Authenticates callers, and limits how often they may call. Called on the event loop, so it must not wait."""

    is_open: bool
    """Whether everyone may come in as often as they like, so that nobody need be asked."""

    def authenticate(self, secret: str | None) -> Principal:
        """The principal of this secret, or of a call without one; Unauthenticated when nobody may."""

    def wait_seconds(self, principal: Principal | None, address: str) -> float:
        """Take a permit and return 0, or say when to come back. `principal` is None if the caller could not be authenticated."""


class TokenGate:
    """Lets in who has a token of a keyring (everyone, without one), as often as the rates allow (always, without them)."""

    def __init__(self, keyring: Keyring | None = None, rates: ClientRates | None = None, clock: Clock | None = None) -> None:
        self._keyring = keyring
        self._rates = rates
        self._clock = clock or SystemClock()
        self.is_open = keyring is None and rates is None

    def authenticate(self, secret: str | None) -> Principal:
        return ANYONE if self._keyring is None else self._keyring.authenticate(secret, self._clock.now())

    def wait_seconds(self, principal: Principal | None, address: str) -> float:
        """How long a client has to wait: one is known by its token, and without one by its address."""
        if self._rates is None:
            return 0.0
        client = f"token {principal.token_id}" if principal is not None and principal.token_id else f"address {address}"
        return self._rates.take(client, self._clock.now()) / SECOND


def needs_token(gate: Gate | None) -> bool:
    """Whether nobody comes in without a token."""
    if gate is None:
        return False
    try:
        gate.authenticate(None)
    except PenstockError:
        return True
    return False


class Admission:
    """Somebody who was let in and stays, on a stream or a socket: their token may be revoked, or expire."""

    __slots__ = ("_asked_at", "_gate", "_secret")

    def __init__(self, gate: Gate | None, secret: str | None) -> None:
        self._gate = gate
        self._secret = secret
        self._asked_at = monotonic()

    def check(self) -> None:
        """Raise what the gate raises for their secret now. It is asked once a second at most, so this costs next to nothing."""
        if self._gate is not None and monotonic() - self._asked_at >= ASK_AGAIN:
            self._gate.authenticate(self._secret)
            self._asked_at = monotonic()


def secret_of(headers: Mapping[str, str]) -> str | None:
    """The token of a request: `Authorization: Bearer T`, the password (or user) of `Basic`, or `X-API-Key: T`."""
    value = headers.get("Authorization")
    if value is None:
        return headers.get("X-API-Key")
    scheme, _, rest = value.partition(" ")
    rest = rest.strip()
    match scheme.lower():
        case "bearer" if rest:
            return rest
        case "basic" if rest:
            return _basic(rest)
    # The value itself may be a token sent without its scheme: it is not repeated in the error.
    raise Unauthenticated("the Authorization header is not `Bearer TOKEN` or `Basic …`")


def _basic(encoded: str) -> str:
    try:
        user, _, password = base64.b64decode(encoded, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        raise Unauthenticated("the Authorization header says Basic and is not base64 of `user:token`") from None
    return password or user
