"""The hub: it receives the texts of clients and fills the outboxes. One table maps each request to its handler.

text ─> size ─> rate ─> envelope ─> session's state ─> payload ─> handler ─┬─> replies and messages, in outboxes
                                                                           └─> an effect, for work that needs I/O
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from penstock.durations import SECOND
from penstock.hub.core import close_codes as closing
from penstock.hub.core import connection, messages, publishing, registration, subscriptions
from penstock.hub.core.dialects import ORIGINAL, MakeId, read_connect_metadata
from penstock.hub.core.effects import Append, Effect, Recover, Release, Retain, Verify
from penstock.hub.core.identity import Identity
from penstock.hub.core.messages import COMMANDS, Command, Envelope, Message, Position, decode_envelope
from penstock.hub.core.metrics import GONE
from penstock.hub.core.names import overlaps
from penstock.hub.core.refusal import Refusal
from penstock.hub.core.rules import Binding, HubRules
from penstock.hub.core.session import Session, State
from penstock.hub.core.state import CommandContext, HubState

PING = "ping"
PONG = b'{"type":"pong"}'

Handler = Callable[[HubState, CommandContext[Any]], Effect | None]  # Any: each handler knows its own command

HANDLERS: dict[type[Command], Handler] = {
    messages.Connect: connection.connect,
    messages.Heartbeat: connection.heartbeat,
    messages.Disconnect: connection.disconnect,
    messages.RefreshToken: connection.refresh,
    messages.Register: registration.register,
    messages.Renew: registration.renew,
    messages.Unregister: registration.unregister,
    messages.Discover: registration.discover,
    messages.ListActors: registration.list_actors,
    messages.Subscribe: subscriptions.subscribe,
    messages.Unsubscribe: subscriptions.unsubscribe,
    messages.Publish: publishing.publish,
    messages.Ack: subscriptions.ack,
    messages.ListTopics: subscriptions.list_topics,
    messages.TopicInfo: subscriptions.topic_info,
    messages.Presence: subscriptions.presence,
    messages.Send: publishing.send,
    messages.Broadcast: publishing.broadcast,
    messages.Pause: connection.pause,
    messages.Resume: connection.resume,
    messages.QueueStats: connection.queue_stats,
    messages.Metrics: connection.metrics,
}

SEARCHED: dict[type[Command], Callable[[HubState, CommandContext[Any]], int]] = {  # Any: as above
    messages.Discover: lambda state, _: len(state.registry),
    messages.ListActors: lambda state, _: len(state.registry),
    messages.Broadcast: lambda state, _: len(state.registry),
    messages.ListTopics: lambda state, context: (len(state.table) + len(state.durable)) * context.session.identity.pattern_count,
    messages.Presence: lambda state, context: len(state.table.subscribers(context.command.topic)),
}
"""The number of entries that a request searches."""
SEARCHED_FOR_ONE = 500
"""Each such number of searched entries costs one more permit of the rate limit: else a few sessions could keep the hub busy."""


class Hub:
    """All sessions of one process."""

    def __init__(
        self,
        rules: HubRules,
        *,
        epoch: str,
        make_id: MakeId,
        version: str,
        bindings: Sequence[Binding] = (),
        everything: Binding | None = None,
        now: int = 0,
    ) -> None:
        self.state = HubState(
            rules,
            epoch=epoch,
            make_id=make_id,
            version=version,
            bindings=bindings,
            everything=everything or Binding("#", "hub"),
            now=now,
        )
        self.rules = rules
        self.metrics = self.state.metrics
        self._rate = rules.rate

    @property
    def dirty(self) -> list[Session]:
        """Sessions with frames to write, or to be closed."""
        return self.state.dirty

    def open(self, now: int) -> Session:
        session = Session(f"session-{self.state.make_id()}", self.rules, now)
        self.state.sessions[session] = None
        self.metrics.opened += 1
        return session

    def closed(self, session: Session, now: int) -> None:
        """Clean up after a lost or closed connection, as after an unregister. Safe to call twice."""
        if session.state is not State.DISCONNECTED:
            session.enter(State.DISCONNECTED)
            self.state.unregister(session, now)
            session.outbox.clear()
            session.held.clear()
            self.state.sessions.pop(session, None)
            self.metrics.closed[GONE if session.closing is None else session.closing.reason] += 1

    def receive(self, session: Session, text: str, now: int) -> Effect | None:
        """Handle a text from a client. It never raises: errors are sent to the client."""
        if not session.is_open:
            return None
        self.metrics.received += 1
        session.heard_at = now
        request: Envelope | None = None
        try:
            if self._rate is not None:
                self._take(session, now)
            request = _envelope(text)
            return self._answer(session, request, now)
        except Refusal as refusal:
            self.state.refuse(session, refusal, now, request or _asked(text))
        return None

    def reject(self, session: Session, refusal: Refusal, now: int) -> None:
        """Refuse a frame that cannot be read. It takes a permit like any other, so that such frames are rate-limited too."""
        if session.is_open:
            self.metrics.received += 1
            session.heard_at = now
            try:
                if self._rate is not None:
                    self._take(session, now)
            except Refusal as limited:
                refusal = limited
            self.state.refuse(session, refusal, now)

    def _take(self, session: Session, now: int, cost: int = 1) -> None:
        assert self._rate is not None
        wait, session.full_at = self._rate.take(session.full_at, now, cost)
        if not wait:
            if session.refused:
                session.refused -= 1
            return
        session.refused += 1
        if session.refused > self.rules.flood:
            self.state.cut(session, closing.FLOODING, now)
        seconds = wait / SECOND
        raise Refusal(
            "rate_limited",
            f"too many messages, try again in {seconds:.3f} s",
            reason="rate_limited",
            resolution="send fewer messages, or ask for a higher rate limit of the hub",
            retryable=True,
            details={"retryAfter": seconds, "limit": self._rate.per_second, "code": "RATE_LIMIT_EXCEEDED"},
        )

    def _answer(self, session: Session, request: Envelope, now: int) -> Effect | None:
        kind = request.type
        if kind not in COMMANDS:
            if kind == PING:
                self.state.push(session, len(PONG), (PONG,), now)
                return None
            raise Refusal(
                "internal_error",
                f"Unknown message type: {kind[:64]}",
                reason="unknown_type",
                resolution=f"send one of {', '.join(COMMANDS)}",
            )
        if session.state is State.CONNECTING:
            self._begin(session, request, now)
        self._check_sender(session, request, now)
        try:
            command = session.dialect.read(request)
        except (msgspec.DecodeError, RecursionError) as error:
            raise _invalid_payload(kind, error) from None
        context = CommandContext(session, request, command, now)
        searched = SEARCHED.get(type(command))
        if searched is not None and self._rate is not None and (more := searched(self.state, context) // SEARCHED_FOR_ONE):
            self._take(session, now, more)
        return HANDLERS[type(command)](self.state, context)

    def _begin(self, session: Session, request: Envelope, now: int) -> None:
        """Handle the first request of a session: hub:connect, or any other if no token is required."""
        is_connect = request.type == "hub:connect"
        if not (is_connect or self.rules.anonymous):
            raise Refusal(
                "unauthorized",
                "the session is not connected",
                reason="not_connected",
                resolution="send hub:connect first, with a token as payload.jwt (or as metadata.authToken, with protocolVersion)",
            )
        found = read_connect_metadata(request.metadata)
        if found is not None and found.protocol_version is not None:
            session.dialect = ORIGINAL
        if not is_connect:
            connection.begin(self.state, session, request, now)

    def _check_sender(self, session: Session, request: Envelope, now: int) -> None:
        actor, expires_at = session.actor, session.identity.expires_at
        if (
            actor is not None
            and request.sender not in {None, actor.address}
            and not (actor.is_anonymous and request.sender == session.claimed)
        ):
            raise Refusal(
                "unauthorized",
                "from is the address of another actor",
                reason="from_mismatch",
                resolution=f"send from {actor.address}, or leave it out: the hub stamps it",
            )
        if expires_at is not None and now >= expires_at and request.type not in {"hub:refresh_token", "hub:disconnect"}:
            raise connection.token_expired()

    # --- results of effects ----------------------------------------------------------------------------------------------------

    def verified(self, session: Session, effect: Verify, identity: Identity, now: int) -> None:
        if session.is_open:
            connection.verified(self.state, session, effect, identity, now)

    def unverified(self, session: Session, effect: Verify, refusal: Refusal, now: int) -> None:
        """The token was refused: a session that is not connected yet ends, others keep their old token."""
        if effect.is_refresh:
            code = refusal.code if refusal.retryable else "invalid_token"
            refusal = Refusal(
                code, refusal.message, reason=refusal.reason, resolution=refusal.resolution, retryable=refusal.retryable
            )
        if session.state is State.CONNECTING:
            self.disconnect_session(session, refusal, now, effect.request)
        else:
            self.state.refuse(session, refusal, now, effect.request)

    def disconnect_session(self, session: Session, refusal: Refusal, now: int, request: Envelope | None = None) -> None:
        """Send a session the reason, then end it."""
        self.state.refuse(session, refusal, now, request)
        self.state.cut(session, closing.FAILED if refusal.retryable else closing.UNAUTHORIZED, now)

    def appended(self, session: Session, effect: Append, position: Position, now: int) -> None:
        publishing.appended(self.state, session, effect, position, now)

    def lost(self, session: Session, effect: Append, refusal: Refusal, now: int) -> None:
        publishing.lost(self.state, session, effect, refusal, now)

    def recovering(self, session: Session, effect: Recover, part: Sequence[Message] | None, now: int, *, is_first: bool) -> None:
        """Forward a part of the missed messages. The first part is None if not all of them are stored any more."""
        subscriptions.recovering(self.state, session, effect, part, now, is_first=is_first)

    def recovered(self, session: Session, now: int) -> None:
        subscriptions.recovered(self.state, session, now)

    def retained(self, session: Session, effect: Retain, now: int) -> bool:
        """A durable subscription was started; False if the session does not have it any more."""
        return subscriptions.retained(self.state, session, effect, now)

    def unretained(self, session: Session, effect: Retain, refusal: Refusal, now: int) -> None:
        subscriptions.unretained(self.state, session, effect, refusal, now)

    def released(self, session: Session, effect: Release, now: int) -> None:
        self.state.made.difference_update((effect.address, pattern) for pattern in effect.patterns)
        if effect.request.type == "hub:unsubscribe":
            subscriptions.unsubscribed(self.state, session, effect.request, effect.patterns[0], now)
        else:
            registration.unregistered(self.state, session, effect.request, effect.address, now)

    def unreleased(self, session: Session, effect: Release, refusal: Refusal, now: int) -> None:
        """Durable subscriptions could not be deleted: they continue, and can be deleted later."""
        self.resume(self.state.made.intersection((effect.address, pattern) for pattern in effect.patterns))
        self.state.refuse(session, refusal, now, effect.request)

    # --- messages and events from logs ----------------------------------------------------------------------------------------

    def resume(self, durable: Iterable[tuple[str, str]]) -> None:
        """Add durable subscriptions that exist in a log, for example from earlier runs, by address and pattern."""
        for address, pattern in durable:
            self.state.made.add((address, pattern))
            self.state.durable.add(pattern, address)

    def expired(self, address: str, pattern: str) -> None:
        """A durable subscription expired because its actor did not return."""
        self.state.made.discard((address, pattern))
        if (address, pattern) not in self.state.making:  # else its actor is returning right now
            self.state.durable.remove(pattern, address)

    def forward(self, binding: Binding, batch: Sequence[Message], now: int) -> None:
        """Send new messages of a log to its subscribers, in the order of the log."""
        state = self.state
        for message in batch:
            if message.position is not None:
                binding.next_offset = message.position.offset + 1
            if binding is state.everything and message.topic is not None:
                state.passed(message.topic)
            if message.topic is not None and (message.expires_at is None or message.expires_at >= now):
                if binding is state.everything and message.position is not None:
                    state.positions.note(message.topic, message.position)  # nothing else knows the position of such a topic
                state.forward(message, state.table.match(message.topic), now)

    def skipped(self, binding: Binding, now: int) -> None:
        """Messages were removed from a log before they were forwarded.

        Clients that may have missed one are disconnected; after they reconnect they get `recovered`.
        """
        if binding is self.state.everything:
            # It is unknown which messages are gone.
            self.state.under_way.clear()
            self.state.positions.clear()
        for session in [*self.state.sessions]:
            live = (name for name, one in session.subscriptions.items() if not one.durable)
            if any(overlaps(binding.pattern, name) for name in live):
                self.state.cut(session, closing.FAILED, now)

    def deliver(self, session: Session, pattern: str, batch: Sequence[Message], now: int) -> None:
        subscriptions.deliver(self.state, session, pattern, batch, now)

    # --- time -----------------------------------------------------------------------------------------------------------------

    def sweep(self, now: int) -> None:
        """Handle what is due: expired registrations and tokens, timeouts, clients that do not read."""
        state, rules = self.state, self.rules
        state.expire(now)
        for session in [*state.sessions]:
            if session.state is State.CONNECTING:
                if now - session.opened_at >= rules.connect_timeout:
                    state.cut(session, closing.NOT_CONNECTED, now)
            elif session.is_open:
                if now - session.heard_at >= rules.idle and not registration.is_lasting(session):
                    state.cut(session, closing.SILENT, now)
                elif session.outbox.is_stalled(now, rules.stall):
                    state.cut(session, closing.SLOW_READER, now)
                else:
                    connection.check_token(state, session, now)
        self.metrics.turn(now)

    def stop(self, now: int) -> None:
        """Notify all sessions that the server is stopping, and close them."""
        sessions = [*self.state.sessions]
        for session in sessions:
            self.state.watchers.drop(session)  # a session that leaves need not be notified that the others leave
        for session in sessions:
            self.state.cut(session, closing.STOPPING, now)


def _envelope(text: str) -> Envelope:
    try:
        return decode_envelope(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError) as error:
        reason = "invalid_envelope" if isinstance(error, msgspec.ValidationError) else "invalid_json"
        raise Refusal(
            "internal_error",
            "Invalid SharedMessage structure",
            reason="too_deep" if isinstance(error, RecursionError) else reason,
            resolution="send a text frame with one JSON object that has a type and a payload",
            details={"problem": _problem(error)},
        ) from None


def _asked(text: str) -> Envelope | None:
    """The request in a text that was refused before it was parsed, so that the error names the request."""
    try:
        return _envelope(text)
    except Refusal:
        return None


def _invalid_payload(kind: str, error: Exception) -> Refusal:
    """A refusal with the error texts of the specification for the fields that it covers, and other texts for the rest."""
    problem = _problem(error)
    message, reason = f"the payload of {kind} is not as expected: {problem}", "invalid_payload"
    if isinstance(error, RecursionError):
        reason = "too_deep"
    elif problem.endswith("`$.topic`"):
        message, reason = "topic is required", "invalid_topic"
    elif problem.endswith("`$.type`"):
        message, reason = "payload.type is required", "missing_type"
    return Refusal(
        "internal_error",
        message,
        reason=reason,
        resolution="see the definition of this message at /asyncapi.json",
        details={"problem": problem},
    )


def _problem(error: Exception) -> str:
    return "nested too deep" if isinstance(error, RecursionError) else str(error)[:200]
