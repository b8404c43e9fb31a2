"""What a hub needs of a log. A broker fulfils it (`penstock.hub.broker`); without one, no topic has a history."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.errors import PenstockError
from penstock.hub.core.binding import Binding
from penstock.hub.core.messages import Message, Position

Appended = Callable[[Position | PenstockError], None]
Forward = Callable[[Binding, Sequence[Message]], None]
Skipped = Callable[[Binding], None]
Expired = Callable[[str, str], None]
Deliver = Callable[[Sequence[Message]], None]


class Retained(Protocol):
    """A durable subscription that is being delivered to one connection. All methods belong to the event loop."""

    def ack(self, messages: Sequence[Message]) -> None:
        """These, of those that it delivered, are done and are not delivered again. Others are passed over."""

    def close(self) -> None:
        """Deliver no more; what was not acknowledged is delivered again to whoever resumes the subscription. Safe twice."""


class Feed(Protocol):
    """The logs behind bound topics. Made by the host, used by one hub in one event loop.

    Durable subscriptions of one actor begin and end in the order they are asked to, and whoever asked is told in that order.
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

        `skipped` is told of a log that lost messages before they could be forwarded, `expired` of address and pattern of a
        durable subscription that ended since nobody came back for it. `everything` is the log of topics that are not bound and
        have durable subscriptions. Returns address and pattern of those that exist from earlier runs.
        """

    def append(self, binding: Binding, message: Message, done: Appended) -> None:
        """Write a message; `done` is told its position once it is safe, or what went wrong. Offsets follow the order of calls."""

    async def read(self, binding: Binding, start: int, stop: int) -> tuple[list[Message], int] | None:
        """Messages from `start` on that have a topic of the hub, and where to go on: at `stop`, or before it when they are many.

        At most about 256 KiB come at once, at least one offset is passed. None when some are not kept any more.
        """

    async def retain(self, address: str, pattern: str, bindings: Sequence[Binding], deliver: Deliver) -> Retained:
        """Begin or resume a durable subscription: `deliver` gets what was published since it was made and is not acknowledged.

        At most `HubRules.max_unacked` messages are out at a time.
        """

    async def release(self, address: str, patterns: Sequence[str]) -> None:
        """End durable subscriptions for good; those that do not exist are passed over."""

    def stop(self) -> None:
        """Forward and deliver nothing more. Safe twice, and before a start."""
