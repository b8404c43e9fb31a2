"""A request to a hub and its answer. A refusal is converted to one of the errors of Penstock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

import msgspec

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
from penstock.hub.core.messages import (
    COMMANDS,
    Broadcast,
    Command,
    Connect,
    Envelope,
    Error,
    Publish,
    RefreshToken,
    Register,
    Reply,
    Send,
    Subscribe,
    UnknownActor,
)

R = TypeVar("R", bound=Reply)
NAMES = {kind: name for name, kind in COMMANDS.items()}
"""The names of commands on the wire."""
RETRY_SECONDS = 1.0
"""The wait if the hub does not send one."""
EXPIRED = "expired_token"
"""The reason of the hub for all refusals after a token has expired."""


class SlowDown(RateLimited):
    """The hub asks the client to slow down."""

    def __init__(self, retry_after: float, gap: float) -> None:
        super().__init__(retry_after)
        self.gap = gap
        """Seconds to wait between two requests."""


def error_of(refusal: Error, command: Command) -> PenstockError:
    text, hint = refusal.message, refusal.resolution or None
    match refusal.code:
        case "unauthorized" | "invalid_token" if refusal.details.get("retryable"):
            return Unavailable(text, hint=hint)  # the token may be valid: the hub cannot verify tokens now
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
    error.hint = refusal.resolution or error.hint  # the hub knows which kind of token it requires
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


def _too_fast(details: Mapping[str, object]) -> SlowDown:
    limit = details.get("limit")
    retry_after = _seconds(details["retryAfter"])
    return SlowDown(retry_after, 1 / limit if isinstance(limit, (int, float)) and limit > 0 else retry_after)


def _seconds(value: object) -> float:
    return max(0.0, float(value)) if isinstance(value, (int, float)) else RETRY_SECONDS


class ConnectionBroken(Unavailable):
    """The connection broke before the answer came."""


class Request(Generic[R]):
    """An encoded request and its answer: the same text may be sent again on the next connection."""

    __slots__ = ("answer", "command", "is_repeatable", "is_sent", "on_reply", "reply", "text")

    def __init__(
        self, command: Command, reply: type[R], text: str, on_reply: Callable[[R], None] | None, *, is_repeatable: bool
    ) -> None:
        self.command = command
        self.reply = reply
        self.text = text
        self.on_reply = on_reply
        self.is_repeatable = is_repeatable
        self.is_sent = False
        self.answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()

    def take(self, envelope: Envelope) -> None:
        """Set the answer. `on_reply` is called here, before the next message is handled."""
        if self.answer.done():
            return
        try:
            if envelope.type == "hub:error":
                self.answer.set_exception(error_of(msgspec.json.decode(envelope.payload, type=Error), self.command))
                return
            if envelope.type == "hub:unknown_actor":
                unknown = msgspec.json.decode(envelope.payload, type=UnknownActor)
                self.answer.set_exception(ActorNotFound(unknown.actor_address))
                return
            found = msgspec.json.decode(envelope.payload, type=self.reply)
        except msgspec.MsgspecError as error:
            self.answer.set_exception(
                FailedPrecondition(
                    f"the hub's answer {envelope.type} cannot be read: {error}",
                    hint="install the version of penstock that the server has",
                )
            )
            return
        if self.on_reply is not None:
            self.on_reply(found)
        self.answer.set_result(found)

    def broke(self) -> bool:
        """The connection is lost; returns whether to send the request again on the next one."""
        if self.is_repeatable or not self.is_sent:
            return True
        name = NAMES[type(self.command)]
        self.fail(
            ConnectionBroken(
                f"the connection broke before the hub answered {name}: it may or may not have been executed",
                hint="call it again if doing it twice does no harm; a publish is repeated by itself, and forwarded once",
            )
        )
        return False

    def fail(self, error: PenstockError) -> None:
        """Fail with an error, unless it has been answered."""
        if not self.answer.done():
            self.answer.set_exception(error)
