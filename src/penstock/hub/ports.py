"""What a hub needs from its host: connections, a verifier of tokens and, for topics with a history, logs.

`penstock.hub.server` implements the connections, `penstock.hub.tokens` a verifier, `penstock.hub.broker` a verifier and the logs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.errors import PenstockError
from penstock.hub.core.close_codes import Close
from penstock.hub.core.identity import Identity
from penstock.hub.core.messages import Message, Position
from penstock.hub.core.rules import Binding


class Socket(Protocol):
    """One WebSocket, seen from the side that sends. All methods belong to the event loop and return at once, save `drained`."""

    def room(self) -> int:
        """How many bytes may be written now without piling up inside the transport; 0 or less when it is full."""

    def write(self, frames: Sequence[tuple[int, tuple[bytes, ...]]]) -> None:
        """Write text frames, all of them by one call of the system: each its length in bytes and the parts it is made of."""

    async def drained(self) -> None:
        """Return when there is room again; ConnectionError when the connection is gone."""

    def close(self, close: Close) -> None:
        """Say why, and end the connection; cut it when that takes longer than a moment. Safe twice."""


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


Appended = Callable[[Position | PenstockError], None]
Forward = Callable[[Binding, Sequence[Message]], None]
Skipped = Callable[[Binding], None]
Expired = Callable[[str, str], None]
Deliver = Callable[[Sequence[Message]], None]


class DurableDelivery(Protocol):
    """A durable subscription that is being delivered to one connection. All methods belong to the event loop."""

    def ack(self, messages: Sequence[Message]) -> None:
        """These, of those that it delivered, are done and are not delivered again. Others are passed over."""

    def close(self) -> None:
        """Deliver no more; what was not acknowledged is delivered again to whoever resumes the subscription. Safe twice."""


class TopicLogs(Protocol):
    """The logs behind bound topics. Made by the host, used by one hub in one event loop.

    Durable subscriptions of one actor begin and end in the order they are asked to, and the callers are answered in that order.
    """

    @property
    def oversized(self) -> int:
        """How many messages of services were too large to be forwarded."""

    @property
    def missed(self) -> int:
        """How many messages left their log before they could be forwarded."""

    def start(
        self, bindings: Sequence[Binding], everything: Binding, *, forward: Forward, skipped: Skipped, expired: Expired
    ) -> Sequence[tuple[str, str]]:
        """Fill in where the logs are, and forward from there on: each message once, in the order of its log.

        `skipped` is called for a log that lost messages before they could be forwarded, `expired` of address and pattern of a
        durable subscription that ended since nobody came back for it. `everything` is the log of topics that are not bound and
        have durable subscriptions. Returns address and pattern of those that exist from earlier runs.
        """

    def append(self, binding: Binding, message: Message, done: Appended) -> None:
        """Write a message; `done` gets its position once it is safe, or the error. Offsets follow the order of calls."""

    async def read(self, binding: Binding, start: int, stop: int) -> tuple[list[Message], int] | None:
        """Messages from `start` on that have a topic of the hub, and the offset after them: `stop`, or less if they are many.

        At most about 256 KiB come at once, at least one offset is passed. None when some are not kept any more.
        """

    async def retain(self, address: str, pattern: str, bindings: Sequence[Binding], deliver: Deliver) -> DurableDelivery:
        """Begin or resume a durable subscription: `deliver` gets what was published since it was made and is not acknowledged.

        At most `HubRules.max_unacked` messages are out at a time.
        """

    async def release(self, address: str, patterns: Sequence[str]) -> None:
        """End durable subscriptions for good; those that do not exist are passed over."""

    def stop(self) -> None:
        """Forward and deliver nothing more. Safe twice, and before a start."""
