"""Penstock's own tokens for the hub: the permissions of a token for topics of the broker also apply to topics of the hub.

`publish` allows publishing, `consume` allows subscribing. The names of a token are patterns with `*` and `?`. They are compared
with the whole hub topic, including slashes. They must cover everything that a subscription covers: `orders/#` covers `orders` and
everything below it, so it needs a token for `orders` and `orders/*`, or for `orders*`.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.access import Keyring, Principal, Verb
from penstock.clock import Clock
from penstock.errors import Unauthenticated, Unavailable
from penstock.hub.core.identity import Identity, unauthorized
from penstock.hub.core.names import has_wildcard
from penstock.hub.core.refusal import Refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenIdentity(Identity):
    """The identity of a client with a token of Penstock."""

    principal: Principal
    project: str

    @property
    def pattern_count(self) -> int:
        """The number of patterns of the token that a topic is compared with; at least 1."""
        return max(len(self.principal.patterns), 1)

    def may_publish(self, topic: str) -> bool:
        """Whether the token allows publishing to this topic."""
        return self.principal.may(Verb.PUBLISH, self.project, topic)

    def may_subscribe(self, pattern: str) -> bool:
        """Whether the token allows consuming every topic that a topic or pattern covers."""
        may = self.principal.may
        if not has_wildcard(pattern):
            return may(Verb.CONSUME, self.project, pattern)
        if not may(Verb.CONSUME, self.project):
            return False
        if "*" in self.principal.patterns:
            return True
        above = pattern.removesuffix("/#")
        if above != pattern and not self.may_subscribe(above):
            return False  # orders/# also covers orders
        beginning = pattern[: min(pattern.find(mark) % (len(pattern) + 1) for mark in "+#")]
        # A name whose only wildcard is a star at its end covers every topic with this prefix. Other names are not considered.
        starts = (name[:-1] for name in self.principal.patterns if name.endswith("*"))
        return any(beginning.startswith(start) for start in starts if "*" not in start and "?" not in start)

    def may_send(self) -> bool:
        """Whether the token allows publishing to at least one topic."""
        return self.principal.may(Verb.PUBLISH, self.project)

    def may_broadcast(self) -> bool:
        """Whether the token allows publishing to every topic."""
        return self.may_send() and "*" in self.principal.patterns


class KeyringVerifier:
    """Accepts clients with a token of the server, for the server's own project."""

    def __init__(self, keyring: Keyring, project: str, clock: Clock) -> None:
        self._keyring, self._project, self._clock = keyring, project, clock

    async def verify(self, token: str | None, claimed: str | None) -> Identity:
        """The permissions of the token. It names no actor, so its clients may register any address."""
        text = (token or "").strip()
        word, _, rest = text.partition(" ")
        bare = rest.lstrip() if word.lower() == "bearer" else text
        if not bare:
            raise unauthorized("missing_token", "a token is required", "send one of the server's in hub:connect, as payload.jwt")
        try:
            principal = self._keyring.authenticate(bare, self._clock.now())
        except (Unauthenticated, Unavailable) as error:
            raise _refusal(error) from None
        if principal.project not in {None, self._project}:
            raise unauthorized(
                "wrong_project", "the token is for another project", f"bring a token for the project {self._project}"
            )
        return TokenIdentity(principal=principal, project=self._project, expires_at=self._keyring.expires_at(principal))

    def check(self, identity: Identity) -> None:
        """Raise a Refusal if the token was revoked, or while the token file cannot be trusted."""
        if isinstance(identity, TokenIdentity):
            try:
                self._keyring.check(identity.principal, self._clock.now())
            except (Unauthenticated, Unavailable) as error:
                raise _refusal(error) from None


def _refusal(error: Unauthenticated | Unavailable) -> Refusal:
    if isinstance(error, Unauthenticated):
        return unauthorized("invalid_token", error.problem, "make one with penstock token create")
    return unauthorized("tokens_unavailable", "the server cannot read its tokens", "try again later; see its log", retryable=True)
