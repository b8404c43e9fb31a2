"""The interfaces that a hub needs from its host: connections, a verifier of tokens and, for topics with history, logs.

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
    """The sending side of a WebSocket. All methods run in the event loop and return at once, except `drained`."""

    def room(self) -> int:
        """The number of bytes that may be written now without filling the transport's buffer; 0 or less if it is full."""

    def write(self, frames: Sequence[tuple[int, tuple[bytes, ...]]]) -> None:
        """Write text frames, all with one system call. Each is its length in bytes and its parts."""

    async def drained(self) -> None:
        """Return when there is room again. Raises ConnectionError if the connection is lost."""

    def close(self, close: Close) -> None:
        """Send the close frame and end the connection; abort it if the client does not answer soon. Safe to call twice."""


class Verifier(Protocol):
    """Verifies tokens."""

    async def verify(self, token: str | None, claimed: str | None) -> Identity:
        """The identity of this token. Raises `Refusal` (unauthorized, with a precise reason) if it is not accepted.

        `claimed` is the address that the client claims, which is only used if no token is required.
        """

    def check(self, identity: Identity) -> None:
        """Raise `Refusal` if a client that was accepted earlier may not stay. Called every second for each session: it is cheap.

        The hub itself checks the expiry of tokens: `Identity.expires_at`.
        """


Appended = Callable[[Position | PenstockError], None]
Forward = Callable[[Binding, Sequence[Message]], None]
Skipped = Callable[[Binding], None]
Expired = Callable[[str, str], None]
Deliver = Callable[[Sequence[Message]], None]


class DurableDelivery(Protocol):
    """A durable subscription that is being delivered to one connection. All methods run in the event loop."""

    def ack(self, messages: Sequence[Message]) -> None:
        """Acknowledge messages that it delivered, so that they are not redelivered. Other messages are ignored."""

    def close(self) -> None:
        """Stop delivery; unacknowledged messages are redelivered when the subscription is resumed. Safe to call twice."""


class TopicLogs(Protocol):
    """The logs behind bound topics. Created by the host, used by one hub in one event loop.

    Durable subscriptions of one actor start and end in the order of the calls, and the calls return in that order.
    """

    @property
    def oversized(self) -> int:
        """The number of messages of services that were too large to be forwarded."""

    @property
    def missed(self) -> int:
        """The number of messages that were removed from their log before they were forwarded."""

    def start(
        self, bindings: Sequence[Binding], everything: Binding, *, forward: Forward, skipped: Skipped, expired: Expired
    ) -> Sequence[tuple[str, str]]:
        """Set epoch and offset of the bindings, and forward from there on: each message once, in the order of its log.

        `skipped` is called for a log that lost messages before they could be forwarded, `expired` with address and pattern of a
        durable subscription that ended because its actor did not return. `everything` is the log of topics that have no binding
        but durable subscriptions. Returns address and pattern of the durable subscriptions that exist from earlier runs.
        """

    def append(self, binding: Binding, message: Message, done: Appended) -> None:
        """Write a message; `done` gets its position once it is stored, or the error. Offsets follow the order of calls."""

    async def read(self, binding: Binding, start: int, stop: int) -> tuple[list[Message], int] | None:
        """Messages from `start` on that have a topic of the hub, and the offset after them: at most `stop`.

        A call returns at most about 256 KiB, and passes at least one offset. None if some messages are no longer stored.
        """

    async def retain(self, address: str, pattern: str, bindings: Sequence[Binding], deliver: Deliver) -> DurableDelivery:
        """Start or resume a durable subscription: `deliver` gets unacknowledged messages published since it was created.

        At most `HubRules.max_unacked` messages are unacknowledged at a time.
        """

    async def release(self, address: str, patterns: Sequence[str]) -> None:
        """Delete durable subscriptions; those that do not exist are ignored."""

    def stop(self) -> None:
        """Stop forwarding and delivery. Safe to call twice, and before `start`."""
