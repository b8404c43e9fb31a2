"""Authentication and rate limits as the shell uses them, and how a secret is found in a request."""

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
"""The caller of an open route. It has no permissions."""
ASK_AGAIN = SECOND
"""How often the token of an open stream or socket is checked again."""


class Gate(Protocol):
    """Authenticates callers, and limits how often they may call. Called on the event loop, so it must not wait."""

    is_open: bool
    """Whether every caller is let in without limits, so that no check is needed."""

    def authenticate(self, secret: str | None) -> Principal:
        """The principal of this secret, or of a call without one; Unauthenticated if it is not let in."""

    def wait_seconds(self, principal: Principal | None, address: str) -> float:
        """Take a permit and return 0, or return the seconds to wait. `principal` is None if the caller is not authenticated."""


class TokenGate:
    """Lets in callers with a token of the keyring, within the rates. Without a keyring all, without rates any number of times."""

    def __init__(self, keyring: Keyring | None = None, rates: ClientRates | None = None, clock: Clock | None = None) -> None:
        self._keyring = keyring
        self._rates = rates
        self._clock = clock or SystemClock()
        self.is_open = keyring is None and rates is None

    def authenticate(self, secret: str | None) -> Principal:
        return ANYONE if self._keyring is None else self._keyring.authenticate(secret, self._clock.now())

    def wait_seconds(self, principal: Principal | None, address: str) -> float:
        """How long a client has to wait. Clients are counted by their token, or by their address if they have none."""
        if self._rates is None:
            return 0.0
        client = f"token {principal.token_id}" if principal is not None and principal.token_id else f"address {address}"
        return self._rates.take(client, self._clock.now()) / SECOND


def needs_token(gate: Gate | None) -> bool:
    """Whether calls without a token are refused."""
    if gate is None:
        return False
    try:
        gate.authenticate(None)
    except PenstockError:
        return True
    return False


class Admission:
    """A caller that stays, on a stream or a socket: its token may be revoked or expire meanwhile."""

    __slots__ = ("_asked_at", "_gate", "_secret")

    def __init__(self, gate: Gate | None, secret: str | None) -> None:
        self._gate = gate
        self._secret = secret
        self._asked_at = monotonic()

    def check(self) -> None:
        """Raise what the gate raises for the secret now. The gate is called at most once a second, so this is cheap."""
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
    # The value may be a token that was sent without a scheme, so the error does not repeat it.
    raise Unauthenticated("the Authorization header is not `Bearer TOKEN` or `Basic …`")


def _basic(encoded: str) -> str:
    try:
        user, _, password = base64.b64decode(encoded, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        raise Unauthenticated("the Basic credentials of the Authorization header are not base64 of `user:token`") from None
    return password or user
