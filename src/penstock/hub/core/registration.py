"""Which actor is known by which address: registration, renewal, discovery."""

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
"""A longer `from` that is nobody's address is not remembered."""

_REGISTER = "send hub:register with your actorAddress and capabilities first"


def register(state: HubState, context: CommandContext[Register]) -> None:
    """Be an actor. Another session that was this one is notified and closed: the last registration counts."""
    actor = _enter(state, context.session, context.command, context.now)
    if actor is not None:
        state.reply(context, Registered(actor.address, actor.renewal_token, actor.expires_at // 1000, actor.version))


def join(state: HubState, session: Session, claimed: str | None, now: int) -> None:
    """Be an actor without having asked to be, as long as the connection lasts: by the address that it claims if that is free."""
    is_free = claimed is not None and is_address(claimed) and state.registry.get(claimed, now) is None
    address = claimed if claimed is not None and is_free else f"@(anonymous/{state.make_id()})"
    actor = _enter(state, session, Register(address, ("anonymous",)), now)
    if actor is not None:
        actor.expires_at, actor.is_anonymous = NEVER, not is_free
        if claimed is not None and len(claimed) <= MAX_CLAIMED:
            session.claimed = claimed


def is_lasting(session: Session) -> bool:
    """Whether it is registered for as long as its connection lasts: its client knows of no renewal, and of no heartbeat."""
    return session.actor is not None and session.actor.expires_at == NEVER


def _enter(state: HubState, session: Session, command: Register, now: int) -> Actor[Session] | None:
    """The session as an actor; None when it has come to its end meanwhile."""
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
    state.expire(now)  # whose time ran out has no address any more, and takes no room
    if not session.is_open:
        return None  # its own time ran out, and it was too full to be notified
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
    """Last longer. Only the session that is registered may renew, and only itself."""
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
    """Be nobody again. Durable subscriptions end for good, which takes a moment."""
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
    """The actor that a session is, which whoever publishes, subscribes or sends has to be."""
    actor = context.session.actor
    if actor is None:
        raise Refusal(code, "this session is not registered", reason="not_registered", resolution=_REGISTER)
    if context.now >= actor.expires_at:
        raise registration_expired(code)
    return actor


def registration_expired(code: Code = "unauthorized") -> Refusal:
    """What an actor gets that was registered when it asked, or should have been."""
    return Refusal(code, "the registration has expired", reason="registration_expired", resolution=_REGISTER)
