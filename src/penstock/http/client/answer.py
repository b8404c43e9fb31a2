"""What came back of a request: an answer, or why there is none."""

from __future__ import annotations

from enum import StrEnum

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
