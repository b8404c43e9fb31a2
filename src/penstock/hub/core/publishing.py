"""From a publish to its subscribers, directly or by way of a log."""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from penstock.hub.core.effects import Append
from penstock.hub.core.large_numbers import has_huge_number
from penstock.hub.core.message import Message
from penstock.hub.core.messages import Envelope, Position, Publish, Published
from penstock.hub.core.nesting import is_deeper
from penstock.hub.core.refusal import Refusal
from penstock.hub.core.registering import acting
from penstock.hub.core.repeats import Key
from penstock.hub.core.request import Ask
from penstock.hub.core.rules import MAX_DEPTH
from penstock.hub.core.session import Session
from penstock.hub.core.state import Floor
from penstock.hub.core.topic import checked_topic

MAX_TYPE = 256
RESERVED = "hub:"


def publish(floor: Floor, ask: Ask[Publish]) -> Append | None:
    """Forward at once, or wish for a place in the topic's log, from which it is forwarded."""
    session, request, command, now = ask.session, ask.request, ask.command, ask.now
    actor = acting(ask)
    topic, kind = checked_topic(command.topic), checked_type(command.type)
    if not session.identity.may_publish(topic):
        raise not_permitted("publish to", topic)
    data = checked_data(command.data)
    given = request.message_id or None  # an empty one names nothing
    key: Key | None = None
    if given is not None:
        # Clients number their publishes anew with each session, so neither actor nor id tells a repeat from a new message.
        key = (actor.address, session.session_id, given, hash((topic, kind, data)))
        heard = floor.seen.find(key, now)
        if heard is not None:
            if heard.answer is None:
                heard.waiting.append((session, request))
            else:
                floor.reply(ask, heard.answer)
            return None
    log = floor.log_of(topic)
    message = Message(
        type=kind,
        sender=actor.address,
        data=data,
        message_id=given or floor.make_id(),
        published_at=now,
        expires_at=checked_expiry(request, now),
        topic=topic,
        position=None if log is not None else floor.positions.next(topic),
    )
    if log is not None:
        if key is not None:
            floor.seen.note(key, now).waiting.append((session, request))
        session.appends += 1
        if log is floor.everything:
            floor.under_way[topic] += 1
        return Append(request, log, message, key)
    count = floor.forward(message, floor.table.match(topic), now)
    answer = Published(
        topic,
        count,
        delivered=True,
        timestamp=now // 1000,
        message_id=message.message_id,
        position=UNSET if message.position is None else message.position,
    )
    if key is not None:
        floor.seen.note(key, now, answer)
    floor.reply(ask, answer)
    return None


def appended(floor: Floor, session: Session, wish: Append, position: Position, now: int) -> None:
    """A message is safe in its log: say so to whoever sent it, and to whoever sent it again meanwhile."""
    session.appends -= 1
    message = wish.message
    topic = message.topic or ""
    count = floor.table.count(topic) + floor.durable.count(topic)
    answer = Published(topic, count, delivered=True, timestamp=now // 1000, message_id=message.message_id, position=position)
    for waiting, request in _waiting(floor, session, wish):
        floor.say(waiting, answer, now, request)
    if wish.key is not None:
        floor.seen.note(wish.key, now, answer)


def lost(floor: Floor, session: Session, wish: Append, refusal: Refusal, now: int) -> None:
    """A message did not get into its log; sent again, it is a new one."""
    session.appends -= 1
    if wish.binding is floor.everything and wish.message.topic is not None:
        floor.passed(wish.message.topic)
    for waiting, request in _waiting(floor, session, wish):
        floor.refuse(waiting, refusal, now, request)


def _waiting(floor: Floor, session: Session, wish: Append) -> list[tuple[Session, Envelope]]:
    """Who waits to hear what became of a message."""
    heard = None if wish.key is None else floor.seen.forget(wish.key)
    return [(session, wish.request)] if heard is None else heard.waiting


def checked_type(kind: object) -> str:
    """The type that subscribers see, or a refusal in the specification's words."""
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
    """The data as it came, which is well-formed JSON, if every client can read it."""
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
    """When a message expires, if it does; one that has expired already is refused."""
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
    """A token that does not allow something."""
    return Refusal(
        "unauthorized",
        f"the token does not allow to {what} {topic}",
        reason="not_permitted",
        resolution="ask for a token whose publish or subscribe patterns cover the topic",
        details={"topic": topic},
    )
