"""The message of a queue (specification 001, "Core Data Structures"), and the message on its way through the router."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.errors import InvalidArgument

DEFAULT_POOL = "DEFAULT-POOL"
DEFAULT_GROUP = "__DEFAULT__"
HTTP = "HTTP"


class Pointer(msgspec.Struct, frozen=True, gc=False):
    """What to deliver, and where. Its secrets are never shown."""

    message_id: str = msgspec.field(name="id", default="")
    pool: str = msgspec.field(name="poolCode", default=DEFAULT_POOL)
    target: str = msgspec.field(name="mediationTarget", default="")
    group: str = msgspec.field(name="messageGroupId", default=DEFAULT_GROUP)
    is_urgent: bool = msgspec.field(name="highPriority", default=False)
    mediation_type: str = msgspec.field(name="mediationType", default=HTTP)
    auth_token: str = msgspec.field(name="authToken", default="")
    signing_secret: str = msgspec.field(name="signingSecret", default="")
    payload: msgspec.Raw = msgspec.Raw(b"")
    """The message's own content as JSON, if the body has one; empty if it is only a pointer."""

    def __repr__(self) -> str:
        return f"<{self.message_id} of group {self.group} for pool {self.pool}>"


class SourceMessage(msgspec.Struct, gc=False, eq=False):
    """A message as delivered by a source, to be released to that source when it is settled."""

    broker_id: str
    """The source's own id of the message: the same at each delivery."""
    body: bytes
    receipt: Any = None
    """What the source needs to settle this delivery; only the source uses it."""
    count: int = 1
    """How often the source has delivered the message, as far as it knows."""

    def __repr__(self) -> str:
        return f"<{self.broker_id}, {len(self.body)} bytes>"  # the body may contain a token


class RoutedMessage(msgspec.Struct, gc=False, eq=False):
    """A message on its way through the router."""

    pointer: Pointer
    queue: str
    """The name of the queue it came from."""
    received: SourceMessage
    """The latest delivery by the source; older ones must not be settled any more."""
    origin: Any = None
    """The object that took it from the queue and settles it there; the rules do not use it."""
    batch: int = 0
    """The number of the batch it came with; the router numbers batches."""
    tracked_at: int = 0
    leased_at: int = 0
    """When its source delivered it, or its lease was extended."""
    attempts: int = 0
    """How many delivery attempts it had here; an attempt may make several calls."""
    failures: int = 0
    """How many of these attempts count towards `max_attempts`: all but those whose target only asked for a later attempt."""
    started_at: int = 0
    """When the running attempt was started; 0 while it waits."""
    due: int = 0
    """When it may be retried; 0 if it does not wait for that."""
    error: str = ""
    """Why the last attempt did not deliver it."""
    delivery: Any = None
    """The running attempt, for the code that may have to cancel it; the rules do not use it."""


class _Body(msgspec.Struct, rename="camel"):
    """The same as other systems write it: with null for missing values, and with the names of other versions of the original."""

    id: str | None = None
    message_id: str | None = None
    pool_code: str | None = None
    auth_token: str | None = None
    mediation_type: str | None = None
    mediation_target: str | None = None
    callback_url: str | None = None
    message_group_id: str | None = None
    high_priority: bool | None = None
    signing_secret: str | None = None
    payload: msgspec.Raw = msgspec.Raw(b"")


_decode = msgspec.json.Decoder(Pointer).decode
_decode_other = msgspec.json.Decoder(_Body).decode


def parse(body: bytes) -> Pointer:
    """The pointer in a message's body; InvalidArgument if there is none. Such a message is dead: no retry can help."""
    try:
        found = _decode(body)
        if found.message_id and found.target and found.pool and found.group and not found.group.isspace():
            return found
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    return _parse_other(body)


def _parse_other(body: bytes) -> Pointer:
    try:
        found = _decode_other(body)
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"the message is not a pointer: {error}", hint=_WANTED) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgument(f"the message is not JSON: {error}", hint=_WANTED) from None
    message_id = found.id or found.message_id
    target = found.mediation_target or found.callback_url
    if not message_id:
        raise InvalidArgument("the message has no id", hint=_WANTED)
    if not target:
        # Without the message's id, so that a thousand of them are one warning.
        raise InvalidArgument("the message has no mediationTarget", hint=_WANTED)
    group = found.message_group_id
    return Pointer(
        message_id,
        found.pool_code or DEFAULT_POOL,
        target,
        group if group and not group.isspace() else DEFAULT_GROUP,
        found.high_priority is True,
        found.mediation_type or HTTP,
        found.auth_token or "",
        found.signing_secret or "",
        found.payload,
    )


_WANTED = 'expected {"id": "…", "poolCode": "…", "mediationTarget": "https://…"}'
