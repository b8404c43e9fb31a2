"""What a hub says when it refuses, as the errors that Penstock raises."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.errors import (
    ActorNotFound,
    FailedPrecondition,
    InvalidArgument,
    PenstockError,
    PermissionDenied,
    RateLimited,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
)
from penstock.hub.core.messages import Broadcast, Command, Connect, Error, Publish, RefreshToken, Register, Send, Subscribe

RETRY_SECONDS = 1.0
"""How long to wait when the hub does not say."""
EXPIRED = "expired_token"
"""Why the hub refuses everything once a token has run out."""


class TooFast(RateLimited):
    """The hub asks to slow down, and says how far."""

    def __init__(self, retry_after: float, gap: float) -> None:
        super().__init__(retry_after)
        self.gap = gap
        """How many seconds to leave between two requests."""


def error_of(refusal: Error, command: Command) -> PenstockError:
    """The error of a request that was refused."""
    text, hint = refusal.message, refusal.resolution or None
    match refusal.code:
        case "unauthorized" | "invalid_token" if refusal.details.get("retryable"):
            return Unavailable(text, hint=hint)  # it is not the token: the hub cannot look at any now
        case "unauthorized" | "invalid_token":
            return _forbidden(refusal, command)
        case "rate_limited" if "retryAfter" in refusal.details:
            return _too_fast(refusal.details)
        case "rate_limited" | "BROADCAST_LIMIT_EXCEEDED":
            return ResourceExhausted(text, hint=hint)
        case "unknown_actor" if isinstance(command, Send) and command.to:
            return ActorNotFound(command.to)
        case "unknown_actor" | "version_mismatch" | "message_expired":
            return FailedPrecondition(text, hint=hint)
        case "timeout":
            return Unavailable(text, hint=hint)
        case "internal_error" if refusal.details.get("retryable"):
            return Unavailable(text, hint=hint)
        case _:
            return InvalidArgument(f"the hub refuses: {text}", hint=hint)


def _forbidden(refusal: Error, command: Command) -> PenstockError:
    error = _forbidden_error(refusal, command)
    error.hint = refusal.resolution or error.hint  # the hub knows which kind of token it wants
    return error


def _forbidden_error(refusal: Error, command: Command) -> PenstockError:
    if refusal.details.get("reason") == EXPIRED:
        return Unauthenticated(refusal.message)
    match command:
        case Connect() | RefreshToken():
            return Unauthenticated(refusal.message)
        case Publish() if refusal.details.get("reason") != "registration_expired":
            return PermissionDenied("publish", command.topic or "")
        case Subscribe() if refusal.details.get("reason") != "registration_expired":
            return PermissionDenied("subscribe to", command.topic or "")
        case Register():
            return PermissionDenied("register as", command.actor_address)
        case Broadcast():
            return PermissionDenied("broadcast to", command.target_capability or "everybody")
        case _:
            return FailedPrecondition(refusal.message, hint=refusal.resolution or None)


def _too_fast(details: Mapping[str, object]) -> TooFast:
    limit = details.get("limit")
    retry_after = _seconds(details["retryAfter"])
    return TooFast(retry_after, 1 / limit if isinstance(limit, (int, float)) and limit > 0 else retry_after)


def _seconds(value: object) -> float:
    return max(0.0, float(value)) if isinstance(value, (int, float)) else RETRY_SECONDS
