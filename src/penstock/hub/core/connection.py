"""How a session starts, stays alive and ends, how delivery to its client is paused, and how much waits for it."""

from __future__ import annotations

from penstock.durations import SECOND
from penstock.hub.core import close_codes
from penstock.hub.core.dialects import ORIGINAL
from penstock.hub.core.effects import Verify
from penstock.hub.core.identity import Identity
from penstock.hub.core.messages import (
    Connect,
    Connected,
    Disconnect,
    DisconnectAck,
    Envelope,
    FlowChanged,
    Heartbeat,
    HeartbeatAck,
    Metrics,
    Pause,
    QueueStats,
    QueueStatsResponse,
    RefreshToken,
    Resume,
    TokenRefreshed,
)
from penstock.hub.core.names import is_address
from penstock.hub.core.publishing import not_permitted
from penstock.hub.core.refusal import Refusal
from penstock.hub.core.registration import join
from penstock.hub.core.session import Session, State
from penstock.hub.core.state import CommandContext, HubState

VERSIONS = {True: "0", False: "1"}
"""The major version of the protocol in the original dialect (True) and in that of the specification (False)."""
ABILITIES = (
    "registration",
    "messaging",
    "pubsub",
    "wildcards",
    "durable",
    "recovery",
    "presence",
    "flow-control",
)
"""The capabilities that the hub announces."""
TOKEN_GRACE = 30_000_000
"""How long after its expiry a token may still be refreshed, in microseconds."""
MAX_WHOLE = 1 << 53
"""Up to this value, every integer can be represented as a float."""


def begin(state: HubState, session: Session, request: Envelope, now: int) -> None:
    """Start a session without hub:connect, for clients that only use topics: the first message registers it as an actor."""
    if request.type != "hub:register":
        join(state, session, request.sender, now)
    session.enter(State.CONNECTED)


def connect(state: HubState, context: CommandContext[Connect]) -> Verify | None:
    session, request, command, now = context.session, context.request, context.command, context.now
    if session.state is not State.CONNECTING:
        raise Refusal(
            "internal_error",
            "the session is connected already",
            reason="already_connected",
            resolution="send hub:connect once on each connection, and before anything else",
        )
    wanted = VERSIONS[session.dialect is ORIGINAL]
    if command.version.partition(".")[0] != wanted:
        refusal = Refusal(
            "version_mismatch",
            f"version {command.version[:32]!r} is not spoken here",
            reason="version_mismatch",
            resolution="connect with payload.version 1.0, or with metadata.protocolVersion 0.1.0",
            details={"supported": ["1.0", "0.1.0"]},
        )
        state.refuse(session, refusal, now, request)
        state.cut(session, close_codes.WRONG_VERSION, now)
        return None
    session.session_id = command.resume or session.session_id
    sender = request.sender
    return Verify(request, command.jwt, sender if sender is not None and is_address(sender) else None)


def verified(state: HubState, session: Session, effect: Verify, identity: Identity, now: int) -> None:
    if effect.is_refresh:
        _refreshed(state, session, effect, identity, now)
        return
    session.identity = identity
    session.enter(State.CONNECTED)
    session.full_at = 0  # connecting does not count against the rate limit
    session.rename(identity.address or effect.claimed or session.name)
    rules = state.rules
    connected = Connected(
        session_id=session.session_id,
        actor_identity=identity.address or effect.claimed,
        capabilities=ABILITIES,
        server_time=now // 1000,
        server_version=state.version,
        max_message_size=rules.max_message_bytes,
        heartbeat_interval=rules.heartbeat // 1000,
        max_actors=rules.max_actors,
    )
    state.say(session, connected, now, effect.request)


def heartbeat(state: HubState, context: CommandContext[Heartbeat]) -> None:
    sent = context.command.timestamp
    if sent is not None and abs(sent) <= MAX_WHOLE and sent == int(sent):
        sent = int(sent)  # not every client accepts 1.0 as an integer
    state.reply(context, HeartbeatAck(sent, context.now // 1000))


def disconnect(state: HubState, context: CommandContext[Disconnect]) -> None:
    session, now = context.session, context.now
    state.reply(context, DisconnectAck(session.session_id))
    state.leave(session, close_codes.GOODBYE, now)


def refresh(_: HubState, context: CommandContext[RefreshToken]) -> Verify:
    session, request, command = context.session, context.request, context.command
    return Verify(request, command.token, session.identity.address, is_refresh=True)


def _refreshed(state: HubState, session: Session, effect: Verify, identity: Identity, now: int) -> None:
    if identity.address != session.identity.address:
        refusal = Refusal(
            "invalid_token",
            "the token is another actor's",
            reason="wrong_actor",
            resolution="refresh with a token of the same actor, or connect again",
        )
        state.refuse(session, refusal, now, effect.request)
        return
    session.identity = identity
    session.is_warned = False
    for pattern in [one for one in session.subscriptions if not identity.may_subscribe(one)]:
        state.drop(session, pattern, now)
        state.refuse(session, not_permitted("subscribe to", pattern), now)  # no subscription ends without notice
    expires = None if identity.expires_at is None else identity.expires_at // 1000
    state.say(session, TokenRefreshed(expires), now, effect.request, RefreshToken(effect.token or ""))


def check_token(state: HubState, session: Session, now: int) -> None:
    """Notify a session that its token has expired; close it if the token is not refreshed within the grace period."""
    expires_at = session.identity.expires_at
    if expires_at is None or now < expires_at:
        return
    if now >= expires_at + TOKEN_GRACE:
        state.cut(session, close_codes.UNAUTHORIZED, now)
    elif not session.is_warned:
        session.is_warned = True
        state.refuse(session, token_expired(), now)


def token_expired() -> Refusal:
    """The error of a session whose token has expired."""
    return Refusal(
        "unauthorized",
        "the token has expired",
        reason="expired_token",
        resolution=f"send hub:refresh_token with a new token within {TOKEN_GRACE // 1_000_000} s, or the connection is closed",
    )


def pause(state: HubState, context: CommandContext[Pause]) -> None:
    """Hold messages back; replies are still sent."""
    session = context.session
    if not session.is_paused:
        session.is_paused = True
        session.holds += 1
    state.reply(context, FlowChanged(paused=True, queue_depth=len(session.held)))


def resume(state: HubState, context: CommandContext[Resume]) -> None:
    session, now = context.session, context.now
    state.reply(context, FlowChanged(paused=False, queue_depth=len(session.held)))
    if session.is_paused:
        session.is_paused = False
        session.holds -= 1
        state.let_go(session, now)


def queue_stats(state: HubState, context: CommandContext[QueueStats]) -> None:
    session, now = context.session, context.now
    seconds = max((now - session.opened_at) / SECOND, 1)
    most = state.rules.max_outbox_messages
    stats = QueueStatsResponse(
        queue_depth=len(session.outbox) + len(session.held),
        queue_bytes=session.outbox.bytes + session.held.bytes,
        processing_rate=round(session.sent / seconds, 3),
        pause_threshold=most,
        resume_threshold=most // 2,
        paused=session.is_paused,
    )
    state.reply(context, stats)


def metrics(state: HubState, context: CommandContext[Metrics]) -> None:
    """Reply with the counters of the current minute."""
    now = context.now
    state.reply(context, state.metrics.minute(now))
