"""Actors and their addresses: registration, renewal, discovery."""

from __future__ import annotations

from penstock.hub.core import close_codes
from penstock.hub.core.effects import Release
from penstock.hub.core.messages import (
    Discover,
    Envelope,
    ListActors,
    Register,
    Registered,
    Renew,
    Renewed,
    Unregister,
    Unregistered,
)
from penstock.hub.core.names import EVERYONE, HUB, is_address
from penstock.hub.core.refusal import Code, Refusal
from penstock.hub.core.registry import NEVER, Actor
from penstock.hub.core.session import Session
from penstock.hub.core.state import C, CommandContext, HubState

MAX_CLAIMED = 256
"""A longer `from` that is not an address is not remembered."""

_REGISTER = "send hub:register with your actorAddress and capabilities first"


def register(state: HubState, context: CommandContext[Register]) -> None:
    """Register the session as an actor. An earlier session of this actor is notified and closed: the last registration counts."""
    actor = _enter(state, context.session, context.command, context.now)
    if actor is not None:
        state.reply(context, Registered(actor.address, actor.renewal_token, actor.expires_at // 1000, actor.version))


def join(state: HubState, session: Session, claimed: str | None, now: int) -> None:
    """Register a session without hub:register, until its connection ends: by the claimed address if that is free."""
    is_free = claimed is not None and is_address(claimed) and state.registry.get(claimed, now) is None
    address = claimed if claimed is not None and is_free else f"@(anonymous/{state.make_id()})"
    actor = _enter(state, session, Register(address, ("anonymous",)), now)
    if actor is not None:
        actor.expires_at, actor.is_anonymous = NEVER, not is_free
        if claimed is not None and len(claimed) <= MAX_CLAIMED:
            session.claimed = claimed


def is_lasting(session: Session) -> bool:
    """Whether the session is registered until its connection ends: its client sends neither renewals nor heartbeats."""
    return session.actor is not None and session.actor.expires_at == NEVER


def _enter(state: HubState, session: Session, command: Register, now: int) -> Actor[Session] | None:
    """Register the session as an actor; None if it has ended meanwhile."""
    address = command.actor_address
    allowed = session.identity.address
    if allowed is not None and address != allowed:
        raise Refusal(
            "unauthorized",
            f"the token is not that of {address[:256]}",
            reason="wrong_actor",
            resolution=f"register {allowed}, or connect with a token of the other actor",
        )
    if address in {HUB, EVERYONE}:
        raise Refusal(
            "unauthorized", f"{address} is the hub's own address", reason="reserved_address", resolution="choose another address"
        )
    state.expire(now)  # expired actors lose their addresses, and do not count against the limit
    if not session.is_open:
        return None  # its own registration expired, and its outbox was too full for the notification
    if session.actor is not None and session.actor.address != address:
        raise Refusal(
            "internal_error",
            f"this session is registered as {session.actor.address}",
            reason="already_registered",
            resolution="send hub:unregister first, or open another connection for the other actor",
        )
    actor, displaced = state.registry.register(command, session, token=f"renewal-{state.make_id()}", now=now)
    if displaced is not None:
        state.cut(displaced.session, close_codes.REPLACED, now)
    session.actor = actor
    session.rename(address)
    return actor


def renew(state: HubState, context: CommandContext[Renew]) -> None:
    """Renew a registration. A session may only renew its own."""
    command, now = context.command, context.now
    actor = acting(context, "unknown_actor")
    if command.actor_address not in {None, actor.address}:
        raise Refusal(
            "unauthorized",
            "a session renews its own registration only",
            reason="wrong_actor",
            resolution=f"send {actor.address}, or leave the address out",
        )
    actor = state.registry.renew(command, actor.address, token=f"renewal-{state.make_id()}", now=now)
    state.reply(context, Renewed(actor.address, actor.expires_at // 1000, actor.renewal_token))


def unregister(state: HubState, context: CommandContext[Unregister]) -> Release | None:
    """Unregister the actor. Its durable subscriptions are deleted, which needs an effect."""
    session, request, command, now = context.session, context.request, context.command, context.now
    actor = acting(context)
    if command.actor_address not in {None, actor.address}:
        raise Refusal(
            "unauthorized",
            "a session unregisters itself only",
            reason="wrong_actor",
            resolution=f"send {actor.address}, or leave the address out",
        )
    durable = tuple(filter(session.identity.may_end, state.durable.patterns_of(actor.address)))
    state.unregister(session, now)
    for pattern in durable:
        state.durable.remove(pattern, actor.address)
    if durable:
        return Release(request, actor.address, durable)
    unregistered(state, session, request, actor.address, now)
    return None


def unregistered(state: HubState, session: Session, request: Envelope, address: str, now: int) -> None:
    state.say(session, Unregistered(address, now // 1000), now, request)


def discover(state: HubState, context: CommandContext[Discover]) -> None:
    session, command, now = context.session, context.command, context.now
    found = state.registry.discover(command, now, glob=session.dialect.has_globs)
    state.reply(context, found)


def list_actors(state: HubState, context: CommandContext[ListActors]) -> None:
    command, now = context.command, context.now
    state.reply(context, state.registry.list(command, now))


def acting(context: CommandContext[C], code: Code = "unauthorized") -> Actor[Session]:
    """The actor of a session, required to publish, subscribe or send. Raises a Refusal if there is none, or it has expired."""
    actor = context.session.actor
    if actor is None:
        raise Refusal(code, "this session is not registered", reason="not_registered", resolution=_REGISTER)
    if context.now >= actor.expires_at:
        raise registration_expired(code)
    return actor


def registration_expired(code: Code = "unauthorized") -> Refusal:
    """The error for a session whose registration has expired."""
    return Refusal(code, "the registration has expired", reason="registration_expired", resolution=_REGISTER)
