"""Messages from clients: published to a topic, directly or through its log; sent to one actor; broadcast to all."""

from __future__ import annotations

from itertools import islice

import msgspec
from msgspec import UNSET

from penstock.hub.core.effects import Append
from penstock.hub.core.json_limits import has_huge_number, is_deeper
from penstock.hub.core.memory import Key
from penstock.hub.core.messages import (
    Broadcast,
    BroadcastDone,
    Delivered,
    Envelope,
    Message,
    Position,
    Publish,
    Published,
    Send,
    UnknownActor,
)
from penstock.hub.core.names import checked_topic
from penstock.hub.core.refusal import Refusal
from penstock.hub.core.registration import acting
from penstock.hub.core.rules import MAX_DEPTH
from penstock.hub.core.session import Session
from penstock.hub.core.state import CommandContext, HubState

MAX_TYPE = 256
RESERVED = "hub:"
MAX_METADATA = 8 * 1024
STAMPED = frozenset({"forwarded", "via", "originalMessageId", "topic", "messageId", "ackId", "offset", "epoch", "publication"})
"""Metadata of forwarded messages that only the hub sets; values of senders are dropped."""
NEVER_SEEN = "Actor not registered with Signal Hub"
EXPIRED = "Actor registration expired"


def publish(state: HubState, context: CommandContext[Publish]) -> Append | None:
    """Forward a message at once, or append it to the log of the topic, from which it is forwarded."""
    session, request, command, now = context.session, context.request, context.command, context.now
    actor = acting(context)
    topic, kind = checked_topic(command.topic), checked_type(command.type)
    if not session.identity.may_publish(topic):
        raise not_permitted("publish to", topic)
    data = checked_data(command.data)
    given = request.message_id or None  # an empty id counts as none
    key: Key | None = None
    if given is not None:
        # Clients restart their numbers with each session, so actor and id alone do not identify a repeat.
        key = (actor.address, session.session_id, given, hash((topic, kind, data)))
        heard = state.seen.find(key, now)
        if heard is not None:
            if heard.answer is None:
                heard.waiting.append((session, request))
            else:
                state.reply(context, heard.answer)
            return None
    log = state.log_of(topic)
    message = Message(
        type=kind,
        sender=actor.address,
        data=data,
        message_id=given or state.make_id(),
        published_at=now,
        expires_at=checked_expiry(request, now),
        topic=topic,
        position=None if log is not None else state.positions.next(topic),
    )
    if log is not None:
        if key is not None:
            state.seen.note(key, now).waiting.append((session, request))
        session.appends += 1
        if log is state.everything:
            state.under_way[topic] += 1
        return Append(request, log, message, key)
    count = state.forward(message, state.table.match(topic), now)
    answer = Published(
        topic,
        count,
        delivered=True,
        timestamp=now // 1000,
        message_id=message.message_id,
        position=UNSET if message.position is None else message.position,
    )
    if key is not None:
        state.seen.note(key, now, answer)
    state.reply(context, answer)
    return None


def appended(state: HubState, session: Session, effect: Append, position: Position, now: int) -> None:
    """A message is stored in its log: confirm it to its sender, and to those that sent it again meanwhile."""
    session.appends -= 1
    message = effect.message
    topic = message.topic or ""
    count = state.table.count(topic) + state.durable.count(topic)
    answer = Published(topic, count, delivered=True, timestamp=now // 1000, message_id=message.message_id, position=position)
    for waiting, request in _waiting(state, session, effect):
        state.say(waiting, answer, now, request)
    if effect.key is not None:
        state.seen.note(effect.key, now, answer)


def lost(state: HubState, session: Session, effect: Append, refusal: Refusal, now: int) -> None:
    """A message could not be stored in its log; if it is sent again, it is a new one."""
    session.appends -= 1
    if effect.binding is state.everything and effect.message.topic is not None:
        state.passed(effect.message.topic)
    for waiting, request in _waiting(state, session, effect):
        state.refuse(waiting, refusal, now, request)


def _waiting(state: HubState, session: Session, effect: Append) -> list[tuple[Session, Envelope]]:
    heard = None if effect.key is None else state.seen.forget(effect.key)
    return [(session, effect.request)] if heard is None else heard.waiting


def checked_type(kind: object) -> str:
    """The type that subscribers see. Raises a Refusal with the error text of the specification if it is invalid."""
    if not isinstance(kind, str) or not kind:
        raise Refusal(
            "internal_error",
            "payload.type is required",
            reason="missing_type",
            resolution="send payload.type: the type of the message that subscribers receive",
        )
    if len(kind) > MAX_TYPE:
        raise Refusal(
            "internal_error",
            f"payload.type has {len(kind)} characters",
            reason="invalid_type",
            resolution=f"send a type of at most {MAX_TYPE} characters",
        )
    if kind.startswith(RESERVED):
        raise Refusal(
            "internal_error",
            f"payload.type {kind!r} begins with {RESERVED}",
            reason="reserved_type",
            resolution=f"types that begin with {RESERVED} are the hub's own; choose another",
        )
    return kind


def checked_data(raw: msgspec.Raw, name: str = "payload.data") -> bytes:
    """The unchanged data, which is well-formed JSON. Raises a Refusal if some clients could not read it."""
    data = bytes(raw)
    if is_deeper(data, MAX_DEPTH):
        raise Refusal(
            "internal_error",
            f"{name} is nested too deep",
            reason="too_deep",
            resolution=f"nest lists and objects at most {MAX_DEPTH} deep",
        )
    if has_huge_number(data):
        raise Refusal(
            "internal_error",
            f"{name} has a number beyond what a double holds",
            reason="huge_number",
            resolution="send such numbers as texts",
        )
    return data


def checked_expiry(request: Envelope, now: int) -> int | None:
    """When a message expires; None if it does not. Raises a Refusal if it has already expired."""
    if request.ttl is None:
        return None
    sent_at = now if request.timestamp is None else int(request.timestamp * 1000)
    expires_at = sent_at + int(request.ttl * 1000)
    if expires_at < now:
        raise Refusal(
            "message_expired",
            f"the message expired {(now - expires_at) // 1000} ms ago",
            reason="message_expired",
            resolution="send it with a later timestamp or a longer ttl; check the clock of the client",
            details={"timestamp": request.timestamp, "ttl": request.ttl, "serverTime": now // 1000},
        )
    return expires_at


def not_permitted(what: str, topic: str) -> Refusal:
    return Refusal(
        "unauthorized",
        f"the token does not allow to {what} {topic}",
        reason="not_permitted",
        resolution="ask for a token whose publish or subscribe patterns cover the topic",
        details={"topic": topic},
    )


def send(state: HubState, context: CommandContext[Send]) -> None:
    """Send a message to one actor."""
    request, command, now = context.request, context.command, context.now
    actor = acting(context)
    kind, data = checked_type(command.type), checked_data(command.data)
    to = command.to or request.to
    if not to:
        raise Refusal(
            "internal_error",
            "payload.to is required",
            reason="missing_to",
            resolution="send payload.to: the address of the actor that the message is for",
        )
    if not context.session.identity.may_send():
        raise Refusal(
            "unauthorized",
            "the token does not allow sending",
            reason="not_permitted",
            resolution="use a token that may publish",
        )
    message = _message(state, context, actor.address, kind, data)
    found = state.registry.get(to, now)
    wants_answer = request.pattern != "tell"
    if found is None:
        if wants_answer:
            state.reply(context, UnknownActor(to, EXPIRED if to in state.registry else NEVER_SEEN))
        return
    is_delivered = state.forward(message, (found.session,), now) == 1
    if not is_delivered:
        raise Refusal(
            "internal_error",
            f"the connection of {to} is gone",
            reason="not_reachable",
            resolution="send it again once the actor is registered again",
            retryable=True,
        )
    if wants_answer:
        state.reply(context, Delivered(message.message_id, delivered=True, timestamp=now // 1000))


def broadcast(state: HubState, context: CommandContext[Broadcast]) -> None:
    """Send a message to all actors, or to those with a capability."""
    session, request, command, now = context.session, context.request, context.command, context.now
    actor = acting(context)
    kind, data = checked_type(command.type), checked_data(command.data)
    if not session.identity.may_broadcast():
        raise Refusal(
            "unauthorized",
            "the token does not allow publishing to every topic",
            reason="not_permitted",
            resolution="publish to a topic, or ask for a token without publish patterns",
        )
    wanted = command.target_capability or _metadata(request).get("targetCapability")
    capability = wanted if isinstance(wanted, str) else None
    most = state.rules.max_broadcast
    actors = (one for one in state.registry.with_capability(capability, now) if not (command.exclude_self and one is actor))
    found = [*islice(actors, most + 1)]
    if len(found) > most:
        raise Refusal(
            "BROADCAST_LIMIT_EXCEEDED",
            f"more than {most} actors would receive it",
            reason="broadcast_limit",
            resolution="name a targetCapability, or publish to a topic",
            details={"limit": most},
        )
    message = _message(state, context, actor.address, kind, data)
    count = state.forward(message, [one.session for one in found], now)
    done = BroadcastDone(
        message.message_id,
        delivered=True,
        timestamp=now // 1000,
        delivered_count=count,
        failed_count=len(found) - count,
    )
    state.reply(context, done)


def _message(
    state: HubState, context: CommandContext[Send] | CommandContext[Broadcast], sender: str, kind: str, data: bytes
) -> Message:
    request, now = context.request, context.now
    said = {name: value for name, value in _metadata(request).items() if name not in STAMPED and name != "targetCapability"}
    return Message(
        type=kind,
        sender=sender,
        data=data,
        message_id=request.message_id or state.make_id(),
        published_at=now,
        expires_at=checked_expiry(request, now),
        metadata=msgspec.json.encode(said)[1:-1] if said else None,
    )


def _metadata(request: Envelope) -> dict[str, object]:
    """The metadata of the sender. Raises a Refusal if it is too large or not an object."""
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
