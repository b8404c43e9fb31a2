"""Subscriptions: how they start, which missed messages are recovered, how they end, and queries about topics."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

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
from penstock.hub.core.rules import EVERYTHING
from penstock.hub.core.session import Session, Subscription
from penstock.hub.core.state import CommandContext, HubState

MAX_PREFIX = 256
MAX_LOOKED_AT = 10_000
"""The maximum number of topics that are checked against a token for one request."""
MAX_COMPARED = 10 * MAX_LOOKED_AT
"""The maximum number of comparisons of a topic with a pattern of the token: about 100 ms."""


def subscribe(state: HubState, context: CommandContext[Subscribe]) -> Recover | Retain | None:
    """Subscribe to new messages, after the missed ones if asked. Subscribing twice has the same effect as once."""
    session, request, command, now = context.session, context.request, context.command, context.now
    actor = acting(context)
    pattern = checked_pattern(command.topic)
    if not session.identity.may_subscribe(pattern):
        raise not_permitted("subscribe to", pattern)
    known = session.subscriptions.get(pattern)
    has_rested = pattern in state.durable.patterns_of(actor.address)
    is_durable = command.durable or (known is None and has_rested)
    if is_durable and actor.is_anonymous:
        raise Refusal(
            "unauthorized",
            "a durable subscription belongs to an address, and this session has none of its own",
            reason="anonymous",
            resolution="send hub:register with your actorAddress first on a new connection, or subscribe without durable",
        )
    if is_durable and not has_rested:
        _check_durable_limit(state)
    if known is None:
        if not has_rested:
            _check_room(state, session, actor.address)
        known = session.subscriptions[pattern] = Subscription(f"sub-{state.make_id()}")
        if not is_durable:
            state.table.add(pattern, session)
            state.subscribed.append((actor.address, pattern))
        state.announce(pattern, "join", session, now)
        if not session.is_open:
            return None  # a watcher had a full outbox and left, and so did this session when it was notified of that
    if command.presence:
        state.watchers.add(pattern, session)
    if is_durable and not known.durable:
        state.durable.add(pattern, actor.address)
        state.making[actor.address, pattern] += 1
        return Retain(request, actor.address, pattern, state.logs_of(pattern))
    if command.since is not None and not known.durable:
        return _recover(state, context, pattern, command.since)
    state.reply(context, _standing(state, session, pattern))
    return None


def _check_room(state: HubState, session: Session, address: str) -> None:
    """Raise a Refusal if the actor has the maximum number of subscriptions, including suspended ones."""
    most = state.rules.max_subscriptions
    rested = sum(pattern not in session.subscriptions for pattern in state.durable.patterns_of(address))
    if len(session.subscriptions) + rested >= most:
        raise Refusal(
            "rate_limited",
            f"this actor has {most} subscriptions, the maximum",
            reason="too_many_subscriptions",
            resolution="unsubscribe from some, or use a pattern with + or # for several topics",
            details={"limit": most},
        )


def _check_durable_limit(state: HubState) -> None:
    """Raise a Refusal if the hub has the maximum number of durable subscriptions."""
    most = state.rules.max_durable
    if state.durable.pairs >= most:
        raise Refusal(
            "rate_limited",
            f"the hub has {most} durable subscriptions, the maximum",
            reason="too_many_durable",
            resolution="unsubscribe from durable subscriptions that are not needed any more, or subscribe without durable",
            details={"limit": most},
        )


def _standing(state: HubState, session: Session, pattern: str, *, recovered: bool | None = None) -> Subscribed:
    """The reply for an active subscription, with the current position of its topic."""
    subscription = session.subscriptions[pattern]
    history = state.history_of(pattern)
    position: Position | UnsetType = UNSET
    if history is not None:
        position = Position(history.epoch, history.next_offset - 1)
    elif not has_wildcard(pattern):
        position = state.positions.last(pattern)
    if recovered is not None:
        state.metrics.recovered += recovered
        state.metrics.unrecovered += not recovered
    return Subscribed(
        pattern,
        subscription.subscription_id,
        durable=True if subscription.durable else UNSET,
        recovered=UNSET if recovered is None else recovered,
        position=position,
    )


def _recover(state: HubState, context: CommandContext[Subscribe], pattern: str, since: Position) -> Recover | None:
    """Determine what was missed since a position: nothing, messages that a log has, or unknown."""
    session, history = context.session, state.history_of(pattern)
    if history is None:
        is_whole = not has_wildcard(pattern) and state.positions.last(pattern) == since
        state.reply(context, _standing(state, session, pattern, recovered=is_whole))
        return None
    start, stop = since.offset + 1, history.next_offset
    is_known = since.epoch == history.epoch and start <= stop <= start + state.rules.max_recovered
    if not is_known or start == stop:
        state.reply(context, _standing(state, session, pattern, recovered=is_known))
        return None
    # Messages forwarded from here on wait until the missed ones are sent.
    session.holds += 1
    return Recover(context.request, history, history.epoch, pattern, start, stop)


def recovering(
    state: HubState, session: Session, effect: Recover, messages: Sequence[Message] | None, now: int, *, is_first: bool
) -> None:
    """Send a part of the missed messages; before the first part, reply whether all of them are available."""
    if effect.pattern not in session.subscriptions:
        if is_first:
            state.refuse(session, registration_expired(), now, effect.request)
        return
    if is_first:
        position = Position(effect.epoch, effect.stop - 1)
        state.metrics.recovered += messages is not None
        state.metrics.unrecovered += messages is None
        subscription_id = session.subscriptions[effect.pattern].subscription_id
        reply = Subscribed(effect.pattern, subscription_id, recovered=messages is not None, position=position)
        state.say(session, reply, now, effect.request)
    for message in messages or ():
        if covers(effect.pattern, message.topic or "") and not _is_over(message, now):
            state.forward(message, (session,), now, past_holds=True)


def recovered(state: HubState, session: Session, now: int) -> None:
    """All missed messages are sent: continue with the messages that arrived meanwhile."""
    session.holds -= 1
    state.let_go(session, now)


def retained(state: HubState, session: Session, effect: Retain, now: int) -> bool:
    """A durable subscription was started; `deliver` then sends its messages. False if the session lost it meanwhile."""
    state.made.add(_tried(state, effect))
    subscription = session.subscriptions.get(effect.pattern)
    if subscription is None:
        state.refuse(session, registration_expired(), now, effect.request)
        return False
    subscription.durable = True
    state.table.remove(effect.pattern, session)  # it may have been a subscription that was not durable
    state.subscribed.append((effect.address, effect.pattern))
    state.say(session, _standing(state, session, effect.pattern), now, effect.request)
    return True


def unretained(state: HubState, session: Session, effect: Retain, refusal: Refusal, now: int) -> None:
    """A durable subscription could not be started. An earlier durable one stays suspended; a live one continues as it was."""
    key = _tried(state, effect)
    if key not in state.made and key not in state.making:  # else another connection has created it, or is still trying
        state.durable.remove(effect.pattern, effect.address)
    if effect.pattern in session.subscriptions and effect.pattern not in state.table.patterns_of(session):
        state.drop(session, effect.pattern, now)
    state.refuse(session, refusal, now, effect.request)


def _tried(state: HubState, effect: Retain) -> tuple[str, str]:
    """Count one connection less that waits for a durable subscription; returns its key."""
    key = (effect.address, effect.pattern)
    state.making[key] -= 1
    if not state.making[key]:
        del state.making[key]
    return key


def deliver(state: HubState, session: Session, pattern: str, messages: Sequence[Message], now: int) -> None:
    """Send messages of a durable subscription, each with a unique id that the client uses to acknowledge it."""
    for message in messages:
        if pattern in session.subscriptions:
            ack_id = f"ack-{state.make_id()}"  # always unique: publishers choose message ids, and may choose the same id
            session.unacked[ack_id] = pattern, message
            state.forward(replace(message, ack_id=ack_id), (session,), now)


def ack(state: HubState, context: CommandContext[Ack]) -> Settle | None:
    session, command = context.session, context.command
    wanted = dict.fromkeys((*command.ack_ids, command.ack_id) if command.ack_id else command.ack_ids)
    if not wanted:
        raise Refusal(
            "internal_error",
            "ackId is required",
            reason="missing_ack_id",
            resolution="send payload.ackId, or payload.ackIds, with metadata.ackId of the messages",
        )
    actor = acting(context)
    unknown = tuple(one for one in wanted if one not in session.unacked)
    done: dict[str, list[Message]] = {}
    for one in wanted:
        if one in session.unacked:
            pattern, message = session.unacked.pop(one)
            done.setdefault(pattern, []).append(message)
    state.reply(context, Acked(len(wanted) - len(unknown), unknown))
    return Settle(actor.address, done) if done else None


def unsubscribe(state: HubState, context: CommandContext[Unsubscribe]) -> Release | None:
    """Unsubscribe from a topic. It is not an error if there is no such subscription."""
    session, request, command, now = context.session, context.request, context.command, context.now
    actor = acting(context)
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
    if pattern in state.durable.patterns_of(actor.address) and not session.identity.may_end(pattern):
        raise not_permitted("end the subscription to", pattern)
    if pattern in session.subscriptions:
        state.drop(session, pattern, now)
    if state.durable.remove(pattern, actor.address):
        return Release(request, actor.address, (pattern,))
    unsubscribed(state, session, request, pattern, now)
    return None


def unsubscribed(state: HubState, session: Session, request: Envelope, pattern: str, now: int) -> None:
    state.say(session, Unsubscribed(pattern, now // 1000), now, request)


def list_topics(state: HubState, context: CommandContext[ListTopics]) -> None:
    """Reply with the topics that have subscribers, limited to those that the token may subscribe to."""
    identity, command = context.session.identity, context.command
    if len(command.prefix) > MAX_PREFIX:
        raise Refusal("internal_error", "prefix is too long", reason="invalid_topic", resolution=RESOLUTION)
    if not identity.may_subscribe(EVERYTHING):
        _list_allowed(state, context)
        return
    table, durable = state.table, state.durable
    # Names that only have durable subscriptions are merged in. They shift the other names by at most their number.
    rest = [(name, 0) for name, _ in durable.names(command.prefix) if not table.subscribers(name)]
    start = max(command.offset - len(rest), 0)
    skip, stop = command.offset - start, command.offset + command.limit - start
    found = sorted([*table.names(command.prefix, start, stop), *rest])[skip:stop]
    topics = tuple(TopicCount(name, count + len(durable.subscribers(name))) for name, count in found)
    total = table.total(command.prefix) + len(rest)
    state.reply(context, TopicList(topics, total, command.offset + len(found) < total))


def _list_allowed(state: HubState, context: CommandContext[ListTopics]) -> None:
    """Like `list_topics`, for a token with restrictions: the sorted order does not help, so every name is checked."""
    command, table, durable = context.command, state.table, state.durable
    most = min(MAX_LOOKED_AT, MAX_COMPARED // context.session.identity.pattern_count)
    if table.total(command.prefix) + durable.total(command.prefix) > most:
        raise Refusal(
            "rate_limited",
            f"more than {most} topics begin with the prefix",
            reason="too_many_topics",
            resolution="send a longer prefix, such as the beginning of what the token allows",
            details={"limit": most},
        )
    names = {name for names in (table.names(command.prefix), durable.names(command.prefix)) for name, _ in names}
    allowed = sorted(filter(context.session.identity.may_subscribe, names))
    page = allowed[command.offset : command.offset + command.limit]
    topics = tuple(TopicCount(name, len(table.subscribers(name)) + len(durable.subscribers(name))) for name in page)
    state.reply(context, TopicList(topics, len(allowed), command.offset + len(page) < len(allowed)))


def topic_info(state: HubState, context: CommandContext[TopicInfo]) -> None:
    session, command = context.session, context.command
    topic = checked_topic(command.topic)
    if not (session.identity.may_subscribe(topic) or session.identity.may_publish(topic)):
        raise not_permitted("ask about", topic)
    log = state.history_of(topic)
    facts = TopicFacts(
        topic,
        state.table.count(topic) + state.durable.count(topic),
        len(state.table.subscribers(topic)) + len(state.durable.subscribers(topic)),
        history=log is not None,
        position=(state.positions.peek(topic) or UNSET) if log is None else Position(log.epoch, log.next_offset - 1),
        bound_to=UNSET if log is None else log.stream,
    )
    state.reply(context, facts)


def presence(state: HubState, context: CommandContext[Presence]) -> None:
    """Reply with the actors that subscribe to exactly this topic or pattern."""
    session, command, now = context.session, context.command, context.now
    pattern = checked_pattern(command.topic)
    if not session.identity.may_subscribe(pattern):
        raise not_permitted("see who subscribes to", pattern)
    present = {one.name for one in state.table.subscribers(pattern)}
    for address in state.durable.subscribers(pattern):
        actor = state.registry.get(address, now)
        if actor is not None and pattern in actor.session.subscriptions:  # else it is suspended, even if the actor is connected
            present.add(address)
    state.reply(context, PresenceNews(pattern, "list", tuple(sorted(present)), now // 1000))


def _is_over(message: Message, now: int) -> bool:
    return message.expires_at is not None and message.expires_at < now
