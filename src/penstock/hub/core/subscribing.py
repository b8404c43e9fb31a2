"""Subscriptions: how they begin, what was missed meanwhile, how they end, and what can be asked of topics."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, UnsetType

from penstock.hub.core.ask import Ask
from penstock.hub.core.binding import Binding
from penstock.hub.core.floor import Floor
from penstock.hub.core.message import Message
from penstock.hub.core.messages import (
    Ack,
    Acked,
    Envelope,
    ListTopics,
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
from penstock.hub.core.publishing import not_permitted
from penstock.hub.core.refusal import Refusal
from penstock.hub.core.registering import acting
from penstock.hub.core.session import Session, Subscription
from penstock.hub.core.topic import RESOLUTION, checked_pattern, checked_topic, covers, has_wildcard
from penstock.hub.core.wish import Recover, Release, Retain, Settle

MAX_PREFIX = 256


def subscribe(floor: Floor, ask: Ask[Subscribe]) -> Recover | Retain | None:
    """Send what is published from now on, and before that what was missed. Subscribing twice is the same as once."""
    session, request, command, now = ask.session, ask.request, ask.command, ask.now
    actor = acting(ask)
    pattern = checked_pattern(command.topic)
    if not session.identity.may_subscribe(pattern):
        raise not_permitted("subscribe to", pattern)
    known = session.subscriptions.get(pattern)
    if known is None:
        _check_room(floor, session)
    if known is None or (command.durable and not known.durable):
        if known is not None:
            floor.table.remove(pattern, session)
        durable = command.durable or pattern in floor.durable.patterns_of(actor.address)
        known = session.subscriptions[pattern] = Subscription(
            subscription_id=known.subscription_id if known is not None else f"sub-{floor.make_id()}",
            durable=durable,
            presence=command.presence,
        )
        if durable:
            floor.durable.add(pattern, actor.address)
            floor.announce(pattern, "join", session, now)
            _watch(floor, session, pattern, command)
            return Retain(request, actor.address, pattern, floor.logs_of(pattern))
        floor.table.add(pattern, session)
        floor.announce(pattern, "join", session, now)
    _watch(floor, session, pattern, command)
    if command.since is not None and not known.durable:
        return _recover(floor, ask, pattern, command.since)
    floor.reply(ask, _standing(floor, session, pattern))
    return None


def _check_room(floor: Floor, session: Session) -> None:
    most = floor.rules.max_subscriptions
    if len(session.subscriptions) >= most:
        raise Refusal(
            "rate_limited",
            f"this actor has {most} subscriptions, the most there may be",
            reason="too_many_subscriptions",
            resolution="unsubscribe from some, or use a pattern with + or # for several topics",
            details={"limit": most},
        )


def _watch(floor: Floor, session: Session, pattern: str, command: Subscribe) -> None:
    if command.presence:
        session.subscriptions[pattern].presence = True
        floor.watchers.add(pattern, session)


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
    return Recover(ask.request, history, pattern, start, stop)


def recovering(
    floor: Floor, session: Session, wish: Recover, messages: Sequence[Message] | None, now: int, *, is_first: bool
) -> None:
    """Send a part of what was missed; before the first, say whether there is all of it."""
    if wish.pattern not in session.subscriptions:
        return
    if is_first:
        position = Position(wish.binding.epoch, wish.stop - 1)
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


def retained(floor: Floor, session: Session, wish: Retain, now: int) -> None:
    """A durable subscription stands; what waits for it comes by `deliver`."""
    if wish.pattern in session.subscriptions:
        floor.say(session, _standing(floor, session, wish.pattern), now, wish.request)


def deliver(floor: Floor, session: Session, messages: Sequence[Message], now: int) -> None:
    """Send messages of durable subscriptions, each of which the client has to acknowledge."""
    for message in messages:
        if session.is_open:
            session.unacked[message.message_id] = None
            floor.forward(message, (session,), now)


def ack(floor: Floor, ask: Ask[Ack]) -> Settle | None:
    """Messages are done."""
    session, command = ask.session, ask.command
    wanted = (*command.message_ids, command.message_id) if command.message_id is not None else command.message_ids
    if not wanted:
        raise Refusal(
            "internal_error",
            "messageId is required",
            reason="missing_message_id",
            resolution="send payload.messageId, or payload.messageIds, with ids from metadata.messageId",
        )
    actor = acting(ask)
    done = tuple(one for one in dict.fromkeys(wanted) if one in session.unacked)
    for one in done:
        del session.unacked[one]
    floor.reply(ask, Acked(len(done), tuple(one for one in dict.fromkeys(wanted) if one not in done)))
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
    """Say which topics have subscribers."""
    command = ask.command
    if len(command.prefix) > MAX_PREFIX:
        raise Refusal("internal_error", "prefix is too long", reason="invalid_topic", resolution=RESOLUTION)
    total = floor.table.total(command.prefix)
    found = floor.table.names(command.prefix, command.offset, command.limit)
    topics = tuple(TopicCount(name, count) for name, count in found)
    floor.reply(ask, TopicList(topics, total, command.offset + len(found) < total))


def topic_info(floor: Floor, ask: Ask[TopicInfo]) -> None:
    """Say what is known of a topic."""
    session, command = ask.session, ask.command
    topic = checked_topic(command.topic)
    if not (session.identity.may_subscribe(topic) or session.identity.may_publish(topic)):
        raise not_permitted("ask about", topic)
    log = floor.log_of(topic)
    facts = TopicFacts(
        topic,
        floor.table.count(topic) + floor.durable.count(topic),
        len(floor.table.subscribers(topic)),
        history=log is not None,
        position=(floor.positions.peek(topic) or UNSET) if log is None else Position(log.epoch, log.next_offset - 1),
        bound_to=_bound(floor, log),
    )
    floor.reply(ask, facts)


def presence(floor: Floor, ask: Ask[Presence]) -> None:
    """Say who subscribes to a topic or pattern by that very name."""
    session, command, now = ask.session, ask.command, ask.now
    pattern = checked_pattern(command.topic)
    if not session.identity.may_subscribe(pattern):
        raise not_permitted("see who subscribes to", pattern)
    live = {one.name for one in floor.table.subscribers(pattern)}
    durable = {address for address in floor.durable.subscribers(pattern) if floor.registry.get(address, now) is not None}
    floor.reply(ask, PresenceNews(pattern, "list", tuple(sorted(live | durable)), now // 1000))


def _bound(floor: Floor, log: Binding | None) -> str | UnsetType:
    return UNSET if log is None or log is floor.everything else log.stream


def _is_over(message: Message, now: int) -> bool:
    return message.expires_at is not None and message.expires_at < now
