"""Penstock's own tokens as a way into the hub: what a token allows on topics of the broker, it allows on topics of the hub.

`publish` lets publish, `consume` lets subscribe. The names of a token are patterns with `*` and `?`, and are held against the
whole hub topic, slashes included. A subscription to a pattern must lie within them as a whole: `orders/#` covers `orders` and
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
    """Somebody with a token of Penstock."""

    principal: Principal
    project: str

    @property
    def pattern_count(self) -> int:
        """How many names of the token a topic is held against."""
        return max(len(self.principal.patterns), 1)

    def may_publish(self, topic: str) -> bool:
        """Whether the token lets publish under that name."""
        return self.principal.may(Verb.PUBLISH, self.project, topic)

    def may_subscribe(self, pattern: str) -> bool:
        """Whether the token lets consume everything that a topic or pattern covers."""
        may = self.principal.may
        if not has_wildcard(pattern):
            return may(Verb.CONSUME, self.project, pattern)
        if not may(Verb.CONSUME, self.project):
            return False
        if "*" in self.principal.patterns:
            return True
        above = pattern.removesuffix("/#")
        if above != pattern and not self.may_subscribe(above):
            return False  # the pattern covers also what it is all below
        beginning = pattern[: min(pattern.find(mark) % (len(pattern) + 1) for mark in "+#")]
        # A name that ends with its only star covers whatever begins as it does; any other covers too little to be sure.
        starts = (name[:-1] for name in self.principal.patterns if name.endswith("*"))
        return any(beginning.startswith(start) for start in starts if "*" not in start and "?" not in start)

    def may_send(self) -> bool:
        """Whether the token lets publish anything."""
        return self.principal.may(Verb.PUBLISH, self.project)

    def may_broadcast(self) -> bool:
        """Whether the token lets publish under every name."""
        return self.may_send() and "*" in self.principal.patterns


class KeyringVerifier:
    """Lets in who has one of the server's tokens, for the server's own project."""

    def __init__(self, keyring: Keyring, project: str, clock: Clock) -> None:
        self._keyring, self._project, self._clock = keyring, project, clock

    async def verify(self, token: str | None, claimed: str | None) -> Identity:
        """What the token allows. It names no actor, so any address may be registered with it."""
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
        """Who has a token that was revoked may not stay, nor may anybody while the file of tokens cannot be trusted."""
        if isinstance(identity, TokenIdentity):
            try:
                self._keyring.check(identity.principal, self._clock.now())
            except (Unauthenticated, Unavailable) as error:
                raise _refusal(error) from None


def _refusal(error: Unauthenticated | Unavailable) -> Refusal:
    if isinstance(error, Unauthenticated):
        return unauthorized("invalid_token", error.problem, "make one with penstock token create")
    return unauthorized("tokens_unavailable", "the server cannot read its tokens", "try again later; see its log", retryable=True)
