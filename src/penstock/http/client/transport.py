"""How a request leaves, and what comes back: the port of the mediator's HTTP client, and its options.

It calls back instead of being awaited: at tens of thousands of calls a second a task for each would cost more than the call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from penstock.http.client.answer import Answer, Failure

Done = Callable[[Answer | Failure], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportOptions:
    """How the HTTP client behaves. Durations are seconds."""

    connect_timeout: float = 30
    http_version: Literal["HTTP_2", "HTTP_1_1"] = "HTTP_2"
    """`HTTP_2` is offered over TLS; a target that does not support it, or has no TLS, gets HTTP/1.1."""
    body_limit: int = 64 * 1024
    """Bytes of an answer's body that are read."""
    per_target: int = 256
    """Concurrent requests to one target (scheme, host, port)."""


class Call(Protocol):
    """A request under way."""

    def cancel(self) -> None:
        """Cut it off; `done` is not called any more. No effect when it was called already."""


class Transport(Protocol):
    """Sends POST requests. Belongs to one event loop.

    No redirect is followed, nothing is unpacked, no proxy and no cookie is used. The address that a name leads to is checked at
    the moment of connecting. Of an answer's body at most `body_limit` bytes are read; a longer one is cut there and its
    connection closed. A target gets at most `per_target` calls at a time; further ones wait their turn, and that wait counts
    towards the timeout.
    """

    def post(self, url: str, headers: bytes, body: bytes, timeout: float, done: Done) -> Call:
        """Send a request; `done` is called once, from the loop, never before this returns.

        `headers` are whole lines, each with its CR LF, beside those that the transport writes itself: Host, Content-Type, Accept
        (application/json), Content-Length, User-Agent. A kept connection that turns out closed before the first byte of an answer
        is replaced once, silently: as far as HTTP can tell, nothing was processed.
        """

    async def close(self) -> None:
        """Cut off what is under way, with `done(Failure(CANCELLED))`, and close every connection."""
