"""What a hub needs to know who somebody is."""

from __future__ import annotations

from typing import Protocol

from penstock.hub.core.identity import Identity


class Verifier(Protocol):
    """Finds out whose token it is."""

    async def verify(self, token: str | None, claimed: str | None) -> Identity:
        """Who has this token; `Refusal` (unauthorized, with a precise reason) when nobody may come in with it.

        `claimed` is the address that the client says it has, which only counts where no token is asked for.
        """

    def check(self, identity: Identity) -> None:
        """Return if somebody who was let in may stay; `Refusal` when not. Asked of everybody every second, so it costs nothing.

        That a token runs out is for the hub to see: `Identity.expires_at`.
        """
