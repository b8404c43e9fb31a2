"""How a request leaves, and what comes back: the port of the HTTP client, its options, and an answer or why there is none.

It calls back instead of being awaited: at tens of thousands of calls a second a task for each would cost more than the call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, Protocol

import msgspec


class FailureKind(StrEnum):
    """Why there is no answer."""

    CONNECT_TIMEOUT = "connect_timeout"
    UNREACHABLE = "unreachable"
    """The connection was refused, or there is no way to the address."""
    UNRESOLVED = "unresolved"
    """The name leads to no address."""
    TIMEOUT = "timeout"
    """No answer within the time for the request."""
    BROKEN = "broken"
    """The connection broke, or what came over it was not HTTP."""
    NOT_ALLOWED = "not_allowed"
    """The address is none that the operator lets the router call."""
    MALFORMED = "malformed"
    """The target is no URL that can be called; no call was made."""
    UNSUPPORTED = "unsupported"
    """The mediation type is not HTTP; no call was made."""
    CIRCUIT_OPEN = "circuit_open"
    """The target fails too often at present; no call was made."""
    CANCELLED = "cancelled"
    """The router stops."""
    UNKNOWN = "unknown"


class Answer(msgspec.Struct, frozen=True, gc=False):
    """What a target answered. The body is cut at the transport's limit."""

    status: int
    body: bytes = b""
    retry_after: str | None = None


class Failure(msgspec.Struct, frozen=True, gc=False):
    """Why a target did not answer."""

    kind: FailureKind
    text: str = ""


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
