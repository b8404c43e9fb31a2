"""Direct messages: to one actor, or to all."""

from __future__ import annotations

from itertools import islice

import msgspec

from penstock.hub.core.message import Message
from penstock.hub.core.messages import (
    Broadcast,
    BroadcastDone,
    Delivered,
    Envelope,
    Send,
    UnknownActor,
)
from penstock.hub.core.publishing import checked_data, checked_expiry, checked_type
from penstock.hub.core.refusal import Refusal
from penstock.hub.core.registering import acting
from penstock.hub.core.request import Ask
from penstock.hub.core.state import Floor

MAX_METADATA = 8 * 1024
STAMPED = frozenset({"forwarded", "via", "originalMessageId", "topic", "messageId", "ackId", "offset", "epoch", "publication"})
"""What the hub says in a forwarded message's metadata, so that no sender can say it."""
NEVER_SEEN = "Actor not registered with Signal Hub"
EXPIRED = "Actor registration expired"


def send(floor: Floor, ask: Ask[Send]) -> None:
    """Hand a message to the connection of one actor."""
    request, command, now = ask.request, ask.command, ask.now
    actor = acting(ask)
    kind, data = checked_type(command.type), checked_data(command.data)
    to = command.to or request.to
    if not to:
        raise Refusal(
            "internal_error",
            "payload.to is required",
            reason="missing_to",
            resolution="send payload.to: the address of the actor that the message is for",
        )
    if not ask.session.identity.may_send():
        raise Refusal(
            "unauthorized",
            "the token does not allow to send",
            reason="not_permitted",
            resolution="ask for a token that allows to publish",
        )
    message = _message(floor, ask, actor.address, kind, data)
    found = floor.registry.get(to, now)
    wants_answer = request.pattern != "tell"
    if found is None:
        if wants_answer:
            floor.reply(ask, UnknownActor(to, EXPIRED if to in floor.registry else NEVER_SEEN))
        return
    is_delivered = floor.forward(message, (found.session,), now) == 1
    if not is_delivered:
        raise Refusal(
            "internal_error",
            f"the connection of {to} is gone",
            reason="not_reachable",
            resolution="send it again once the actor is registered again",
            retryable=True,
        )
    if wants_answer:
        floor.reply(ask, Delivered(message.message_id, delivered=True, timestamp=now // 1000))


def broadcast(floor: Floor, ask: Ask[Broadcast]) -> None:
    """Hand a message to the connections of all actors, or of those with a capability."""
    session, request, command, now = ask.session, ask.request, ask.command, ask.now
    actor = acting(ask)
    kind, data = checked_type(command.type), checked_data(command.data)
    if not session.identity.may_broadcast():
        raise Refusal(
            "unauthorized",
            "the token does not allow to publish everywhere",
            reason="not_permitted",
            resolution="publish to a topic, or ask for a token without publish patterns",
        )
    wanted = command.target_capability or _metadata(request).get("targetCapability")
    capability = wanted if isinstance(wanted, str) else None
    most = floor.rules.max_broadcast
    actors = (one for one in floor.registry.with_capability(capability, now) if not (command.exclude_self and one is actor))
    found = [*islice(actors, most + 1)]
    if len(found) > most:
        raise Refusal(
            "BROADCAST_LIMIT_EXCEEDED",
            f"more than {most} actors would receive it",
            reason="broadcast_limit",
            resolution="name a targetCapability, or publish to a topic",
            details={"limit": most},
        )
    message = _message(floor, ask, actor.address, kind, data)
    count = floor.forward(message, [one.session for one in found], now)
    done = BroadcastDone(
        message.message_id,
        delivered=True,
        timestamp=now // 1000,
        delivered_count=count,
        failed_count=len(found) - count,
    )
    floor.reply(ask, done)


def _message(floor: Floor, ask: Ask[Send] | Ask[Broadcast], sender: str, kind: str, data: bytes) -> Message:
    request, now = ask.request, ask.now
    said = {name: value for name, value in _metadata(request).items() if name not in STAMPED and name != "targetCapability"}
    return Message(
        type=kind,
        sender=sender,
        data=data,
        message_id=request.message_id or floor.make_id(),
        published_at=now,
        expires_at=checked_expiry(request, now),
        metadata=msgspec.json.encode(said)[1:-1] if said else None,
    )


def _metadata(request: Envelope) -> dict[str, object]:
    """What the sender says beside its message."""
    raw = bytes(request.metadata)
    if len(raw) > MAX_METADATA:
        raise Refusal(
            "internal_error",
            f"metadata has {len(raw)} bytes",
            reason="metadata_too_large",
            resolution=f"send at most {MAX_METADATA} bytes of metadata; what is larger belongs into data",
        )
    data = checked_data(request.metadata, "metadata")
    try:
        return _decode(data) or {}
    except msgspec.ValidationError:
        raise Refusal(
            "internal_error",
            "Invalid SharedMessage structure",
            reason="invalid_metadata",
            resolution="send metadata as a JSON object, or leave it out",
        ) from None


_decode = msgspec.json.Decoder(dict[str, object] | None).decode
