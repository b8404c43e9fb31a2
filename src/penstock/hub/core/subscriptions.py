"""Subscriptions: how they start, which missed messages are recovered, how they end, and queries about topics."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from penstock.hub.core.binding import EVERYTHING
from penstock.hub.core.effects import Recover, Release, Retain, Settle
from penstock.hub.core.messages import (
    Ack,
    Acked,
    Envelope,
    ListTopics,
    Message,
    Position,
    Presence,
    PresenceNews,
    Subscribe,
    Subscribed,
    TopicCount,
    TopicFacts,
    TopicInfo,
    TopicList,
    Unsubscribe,
    Unsubscribed,
)
from penstock.hub.core.names import RESOLUTION, checked_pattern, checked_topic, covers, has_wildcard
from penstock.hub.core.publishing import not_permitted
from penstock.hub.core.refusal import Refusal
from penstock.hub.core.registration import acting, registration_expired
from penstock.hub.core.session import Session, Subscription
from penstock.hub.core.state import Ask, Floor

MAX_PREFIX = 256
MAX_LOOKED_AT = 10_000
"""How many topics are held against a token to answer one request."""
MAX_COMPARED = 10 * MAX_LOOKED_AT
"""And how often a topic is held against one of its patterns: some 100 ms."""


def subscribe(floor: Floor, ask: Ask[Subscribe]) -> Recover | Retain | None:
    """Send what is published from now on, and before that what was missed. Subscribing twice is the same as once."""
    session, request, command, now = ask.session, ask.request, ask.command, ask.now
    actor = acting(ask)
    pattern = checked_pattern(command.topic)
    if not session.identity.may_subscribe(pattern):
        raise not_permitted("subscribe to", pattern)
    known = session.subscriptions.get(pattern)
    has_rested = pattern in floor.durable.patterns_of(actor.address)
    is_durable = command.durable or (known is None and has_rested)
    if is_durable and actor.is_anonymous:
        raise Refusal(
            "unauthorized",
            "a durable subscription belongs to an address, and this session has none of its own",
            reason="anonymous",
            resolution="send hub:register with your actorAddress first on a new connection, or subscribe without durable",
        )
    if is_durable and not has_rested:
        _check_shelf(floor)
    if known is None:
        if not has_rested:
            _check_room(floor, session, actor.address)
        known = session.subscriptions[pattern] = Subscription(f"sub-{floor.make_id()}")
        if not is_durable:
            floor.table.add(pattern, session)
        floor.announce(pattern, "join", session, now)
        if not session.is_open:
            return None  # who was told was full, and that it left was told to this session, which was full too
    if command.presence:
        floor.watchers.add(pattern, session)
    if is_durable and not known.durable:
        floor.durable.add(pattern, actor.address)
        floor.making[actor.address, pattern] += 1
        return Retain(request, actor.address, pattern, floor.logs_of(pattern))
    if command.since is not None and not known.durable:
        return _recover(floor, ask, pattern, command.since)
    floor.reply(ask, _standing(floor, session, pattern))
    return None


def _check_room(floor: Floor, session: Session, address: str) -> None:
    """See that the actor may have one more subscription, those included that rest."""
    most = floor.rules.max_subscriptions
    rested = sum(pattern not in session.subscriptions for pattern in floor.durable.patterns_of(address))
    if len(session.subscriptions) + rested >= most:
        raise Refusal(
            "rate_limited",
            f"this actor has {most} subscriptions, the most there may be",
            reason="too_many_subscriptions",
            resolution="unsubscribe from some, or use a pattern with + or # for several topics",
            details={"limit": most},
        )


def _check_shelf(floor: Floor) -> None:
    """See that there may be one more durable subscription."""
    most = floor.rules.max_durable
    if floor.durable.pairs >= most:
        raise Refusal(
            "rate_limited",
            f"the hub has {most} durable subscriptions, the most there may be",
            reason="too_many_durable",
            resolution="unsubscribe from durable subscriptions that are not needed any more, or subscribe without durable",
            details={"limit": most},
        )


def _standing(floor: Floor, session: Session, pattern: str, *, recovered: bool | None = None) -> Subscribed:
    """That a subscription stands, and where its topic is now."""
    subscription = session.subscriptions[pattern]
    history = floor.history_of(pattern)
    position: Position | UnsetType = UNSET
    if history is not None:
        position = Position(history.epoch, history.next_offset - 1)
    elif not has_wildcard(pattern):
        position = floor.positions.last(pattern)
    if recovered is not None:
        floor.numbers.recovered += recovered
        floor.numbers.unrecovered += not recovered
    return Subscribed(
        pattern,
        subscription.subscription_id,
        durable=True if subscription.durable else UNSET,
        recovered=UNSET if recovered is None else recovered,
        position=position,
    )


def _recover(floor: Floor, ask: Ask[Subscribe], pattern: str, since: Position) -> Recover | None:
    """Find out what was missed since a position: nothing, something that a log has, or nobody knows."""
    session, history = ask.session, floor.history_of(pattern)
    if history is None:
        is_whole = not has_wildcard(pattern) and floor.positions.last(pattern) == since
        floor.reply(ask, _standing(floor, session, pattern, recovered=is_whole))
        return None
    start, stop = since.offset + 1, history.next_offset
    is_known = since.epoch == history.epoch and start <= stop <= start + floor.rules.max_recovered
    if not is_known or start == stop:
        floor.reply(ask, _standing(floor, session, pattern, recovered=is_known))
        return None
    # What is forwarded from here on waits until what was missed is sent: it comes after that.
    session.holds += 1
    return Recover(ask.request, history, history.epoch, pattern, start, stop)


def recovering(
    floor: Floor, session: Session, wish: Recover, messages: Sequence[Message] | None, now: int, *, is_first: bool
) -> None:
    """Send a part of what was missed; before the first, say whether there is all of it."""
    if wish.pattern not in session.subscriptions:
        if is_first:
            floor.refuse(session, registration_expired(), now, wish.request)
        return
    if is_first:
        position = Position(wish.epoch, wish.stop - 1)
        floor.numbers.recovered += messages is not None
        floor.numbers.unrecovered += messages is None
        subscription_id = session.subscriptions[wish.pattern].subscription_id
        reply = Subscribed(wish.pattern, subscription_id, recovered=messages is not None, position=position)
        floor.say(session, reply, now, wish.request)
    for message in messages or ():
        if covers(wish.pattern, message.topic or "") and not _is_over(message, now):
            floor.forward(message, (session,), now, past_holds=True)


def recovered(floor: Floor, session: Session, now: int) -> None:
    """All that was missed is sent: go on with what came meanwhile."""
    session.holds -= 1
    floor.let_go(session, now)


def retained(floor: Floor, session: Session, wish: Retain, now: int) -> bool:
    """A durable subscription stands, and what waits for it comes by `deliver`; False when the session has lost it meanwhile."""
    floor.made.add(_tried(floor, wish))
    subscription = session.subscriptions.get(wish.pattern)
    if subscription is None:
        floor.refuse(session, registration_expired(), now, wish.request)
        return False
    subscription.durable = True
    floor.table.remove(wish.pattern, session)  # it was not durable until now, perhaps
    floor.say(session, _standing(floor, session, wish.pattern), now, wish.request)
    return True


def unretained(floor: Floor, session: Session, wish: Retain, refusal: Refusal, now: int) -> None:
    """A durable subscription could not be made. One that was there before rests; one that was not durable stays so."""
    key = _tried(floor, wish)
    if key not in floor.made and key not in floor.making:  # else another connection of the actor has made it, or still tries
        floor.durable.remove(wish.pattern, wish.address)
    if wish.pattern in session.subscriptions and wish.pattern not in floor.table.patterns_of(session):
        floor.drop(session, wish.pattern, now)
    floor.refuse(session, refusal, now, wish.request)


def _tried(floor: Floor, wish: Retain) -> tuple[str, str]:
    """One connection less waits for a durable subscription."""
    key = (wish.address, wish.pattern)
    floor.making[key] -= 1
    if not floor.making[key]:
        del floor.making[key]
    return key


def deliver(floor: Floor, session: Session, pattern: str, messages: Sequence[Message], now: int) -> None:
    """Send messages of a durable subscription, each with an id of its own by which the client has to acknowledge it."""
    for message in messages:
        if pattern in session.subscriptions:
            ack_id = f"ack-{floor.make_id()}"  # no other's: publishers choose the ids of messages, and may choose the same
            session.unacked[ack_id] = pattern, message
            floor.forward(replace(message, ack_id=ack_id), (session,), now)


def ack(floor: Floor, ask: Ask[Ack]) -> Settle | None:
    """Messages are done."""
    session, command = ask.session, ask.command
    wanted = dict.fromkeys((*command.ack_ids, command.ack_id) if command.ack_id else command.ack_ids)
    if not wanted:
        raise Refusal(
            "internal_error",
            "ackId is required",
            reason="missing_ack_id",
            resolution="send payload.ackId, or payload.ackIds, with metadata.ackId of the messages",
        )
    actor = acting(ask)
    unknown = tuple(one for one in wanted if one not in session.unacked)
    done: dict[str, list[Message]] = {}
    for one in wanted:
        if one in session.unacked:
            pattern, message = session.unacked.pop(one)
            done.setdefault(pattern, []).append(message)
    floor.reply(ask, Acked(len(wanted) - len(unknown), unknown))
    return Settle(actor.address, done) if done else None


def unsubscribe(floor: Floor, ask: Ask[Unsubscribe]) -> Release | None:
    """Send no more of a topic. Ending what never began is no error."""
    session, request, command, now = ask.session, ask.request, ask.command, ask.now
    actor = acting(ask)
    pattern = command.topic
    if pattern is None and command.subscription_id is not None:
        pattern = next(
            (name for name, one in session.subscriptions.items() if one.subscription_id == command.subscription_id), None
        )
        if pattern is None:
            raise Refusal(
                "internal_error",
                "topic is required",
                reason="unknown_subscription",
                resolution="send the topic, or a subscriptionId of this session",
            )
    pattern = checked_pattern(pattern)
    if pattern in floor.durable.patterns_of(actor.address) and not session.identity.may_end(pattern):
        raise not_permitted("end the subscription to", pattern)
    if pattern in session.subscriptions:
        floor.drop(session, pattern, now)
    if floor.durable.remove(pattern, actor.address):
        return Release(request, actor.address, (pattern,))
    unsubscribed(floor, session, request, pattern, now)
    return None


def unsubscribed(floor: Floor, session: Session, request: Envelope, pattern: str, now: int) -> None:
    """Say that it is done."""
    floor.say(session, Unsubscribed(pattern, now // 1000), now, request)


def list_topics(floor: Floor, ask: Ask[ListTopics]) -> None:
    """Say which topics have subscribers, of those that the token allows to subscribe to."""
    identity, command = ask.session.identity, ask.command
    if len(command.prefix) > MAX_PREFIX:
        raise Refusal("internal_error", "prefix is too long", reason="invalid_topic", resolution=RESOLUTION)
    if not identity.may_subscribe(EVERYTHING):
        _list_allowed(floor, ask)
        return
    table, durable = floor.table, floor.durable
    # Names that only durable subscriptions have are sorted in. They move the others by their number at most.
    rest = [(name, 0) for name, _ in durable.names(command.prefix) if not table.subscribers(name)]
    start = max(command.offset - len(rest), 0)
    skip, stop = command.offset - start, command.offset + command.limit - start
    found = sorted([*table.names(command.prefix, start, stop), *rest])[skip:stop]
    topics = tuple(TopicCount(name, count + len(durable.subscribers(name))) for name, count in found)
    total = table.total(command.prefix) + len(rest)
    floor.reply(ask, TopicList(topics, total, command.offset + len(found) < total))


def _list_allowed(floor: Floor, ask: Ask[ListTopics]) -> None:
    """The same for a token that does not allow everything: there is no order to be used, each name is looked at."""
    command, table, durable = ask.command, floor.table, floor.durable
    most = min(MAX_LOOKED_AT, MAX_COMPARED // ask.session.identity.breadth)
    if table.total(command.prefix) + durable.total(command.prefix) > most:
        raise Refusal(
            "rate_limited",
            f"more than {most} topics begin with the prefix",
            reason="too_many_topics",
            resolution="send a longer prefix, such as the beginning of what the token allows",
            details={"limit": most},
        )
    names = {name for names in (table.names(command.prefix), durable.names(command.prefix)) for name, _ in names}
    allowed = sorted(filter(ask.session.identity.may_subscribe, names))
    page = allowed[command.offset : command.offset + command.limit]
    topics = tuple(TopicCount(name, len(table.subscribers(name)) + len(durable.subscribers(name))) for name in page)
    floor.reply(ask, TopicList(topics, len(allowed), command.offset + len(page) < len(allowed)))


def topic_info(floor: Floor, ask: Ask[TopicInfo]) -> None:
    """Say what is known of a topic."""
    session, command = ask.session, ask.command
    topic = checked_topic(command.topic)
    if not (session.identity.may_subscribe(topic) or session.identity.may_publish(topic)):
        raise not_permitted("ask about", topic)
    log = floor.history_of(topic)
    facts = TopicFacts(
        topic,
        floor.table.count(topic) + floor.durable.count(topic),
        len(floor.table.subscribers(topic)) + len(floor.durable.subscribers(topic)),
        history=log is not None,
        position=(floor.positions.peek(topic) or UNSET) if log is None else Position(log.epoch, log.next_offset - 1),
        bound_to=UNSET if log is None else log.stream,
    )
    floor.reply(ask, facts)


def presence(floor: Floor, ask: Ask[Presence]) -> None:
    """Say who subscribes to a topic or pattern by that very name."""
    session, command, now = ask.session, ask.command, ask.now
    pattern = checked_pattern(command.topic)
    if not session.identity.may_subscribe(pattern):
        raise not_permitted("see who subscribes to", pattern)
    present = {one.name for one in floor.table.subscribers(pattern)}
    for address in floor.durable.subscribers(pattern):
        actor = floor.registry.get(address, now)
        if actor is not None and pattern in actor.session.subscriptions:  # else it rests, wherever the actor is
            present.add(address)
    floor.reply(ask, PresenceNews(pattern, "list", tuple(sorted(present)), now // 1000))


def _is_over(message: Message, now: int) -> bool:
    return message.expires_at is not None and message.expires_at < now
