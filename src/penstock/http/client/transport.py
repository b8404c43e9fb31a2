"""The interface of the HTTP client: its options, and the result of a request, an answer or a failure.

It uses callbacks instead of awaiting: at tens of thousands of calls a second, a task for each would cost more than the call.
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
    """The connection was refused, or there is no route to the address."""
    UNRESOLVED = "unresolved"
    """The name has no address."""
    TIMEOUT = "timeout"
    """No answer within the time for the request."""
    BROKEN = "broken"
    """The connection broke, or the answer was not HTTP."""
    NOT_ALLOWED = "not_allowed"
    """The operator does not allow the router to call this address."""
    MALFORMED = "malformed"
    """The target is not a valid URL; no call was made."""
    UNSUPPORTED = "unsupported"
    """The mediation type is not HTTP; no call was made."""
    CIRCUIT_OPEN = "circuit_open"
    """The target fails too often now; no call was made."""
    CANCELLED = "cancelled"
    """The router stops."""
    UNKNOWN = "unknown"


class Answer(msgspec.Struct, frozen=True, gc=False):
    """What a target answered. The body is cut at the transport's limit."""

    status: int
    body: bytes = b""
    retry_after: str | None = None


class Failure(msgspec.Struct, frozen=True, gc=False):
    """Why there is no answer."""

    kind: FailureKind
    text: str = ""


Done = Callable[[Answer | Failure], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportOptions:
    """Options of the HTTP client. Durations are seconds."""

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
        """Cancel it: `done` will not be called. No effect if it was already called."""


class Transport(Protocol):
    """Sends POST requests. Belongs to one event loop.

    It follows no redirects, decompresses nothing, and uses no proxy and no cookies. The address of a name is checked at the
    moment of connecting. At most `body_limit` bytes of an answer's body are read; a longer one is truncated, and its connection
    is closed. A target gets at most `per_target` concurrent calls; further ones wait, and the wait counts towards the timeout.
    """

    def post(self, url: str, headers: bytes, body: bytes, timeout: float, done: Done) -> Call:
        """Send a request; `done` is called once, from the loop, never before this returns.

        `headers` are whole lines, each with its CR LF, in addition to those that the transport writes itself: Host, Content-Type,
        Accept (application/json), Content-Length, User-Agent. If a kept-alive connection closes before the first byte of an
        answer, the request is sent again once: as far as HTTP can tell, it was not processed.
        """

    async def close(self) -> None:
        """End all calls under way with `done(Failure(CANCELLED))`, and close every connection."""
