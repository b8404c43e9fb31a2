"""The hub: fed what clients say, drained of what they are to be told. One table says who handles which request.

text ─> size ─> rate ─> envelope ─> session's state ─> payload ─> handler ─┬─> replies and messages, in outboxes
                                                                           └─> a wish, for what has to be waited for
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from penstock.durations import SECOND
from penstock.hub.core import close_codes as closing
from penstock.hub.core import connection, messages, publishing, registration, subscriptions
from penstock.hub.core.binding import Binding
from penstock.hub.core.dialects import ORIGINAL, MakeId, read_connect_metadata
from penstock.hub.core.effects import Append, Recover, Release, Retain, Verify, Wish
from penstock.hub.core.identity import Identity
from penstock.hub.core.messages import COMMANDS, Command, Envelope, Message, Position, decode_envelope
from penstock.hub.core.metrics import GONE
from penstock.hub.core.names import overlaps
from penstock.hub.core.refusal import Refusal
from penstock.hub.core.rules import HubRules
from penstock.hub.core.session import Session, State
from penstock.hub.core.state import Ask, Floor

PING = "ping"
PONG = b'{"type":"pong"}'

Handler = Callable[[Floor, Ask[Any]], Wish | None]  # Any: each handler knows its own command

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

SEARCHED: dict[type[Command], Callable[[Floor, Ask[Any]], int]] = {  # Any: as above
    messages.Discover: lambda floor, _: len(floor.registry),
    messages.ListActors: lambda floor, _: len(floor.registry),
    messages.Broadcast: lambda floor, _: len(floor.registry),
    messages.ListTopics: lambda floor, ask: (len(floor.table) + len(floor.durable)) * ask.session.identity.breadth,
    messages.Presence: lambda floor, ask: len(floor.table.subscribers(ask.command.topic)),
}
"""How much a request looks through before it is answered."""
SEARCHED_FOR_ONE = 500
"""So much of it costs one permit more of the session's rate: else a few sessions that only ask could keep the hub busy."""


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
        self.floor = Floor(
            rules,
            epoch=epoch,
            make_id=make_id,
            version=version,
            bindings=bindings,
            everything=everything or Binding("#", "hub"),
            now=now,
        )
        self.rules = rules
        self.numbers = self.floor.numbers
        self._rate = rules.rate

    @property
    def dirty(self) -> list[Session]:
        """Sessions with something to write, or to be closed."""
        return self.floor.dirty

    def open(self, now: int) -> Session:
        """A connection was made."""
        session = Session(f"session-{self.floor.make_id()}", self.rules, now)
        self.floor.sessions[session] = None
        self.numbers.opened += 1
        return session

    def closed(self, session: Session, now: int) -> None:
        """A connection is gone: clean up as after an unregister. Safe to call twice."""
        if session.state is not State.DISCONNECTED:
            session.enter(State.DISCONNECTED)
            self.floor.unregister(session, now)
            session.outbox.clear()
            session.held.clear()
            self.floor.sessions.pop(session, None)
            self.numbers.closed[GONE if session.closing is None else session.closing.reason] += 1

    def receive(self, session: Session, text: str, now: int) -> Wish | None:
        """A client said something. Nothing raises: what is wrong is answered."""
        if not session.is_open:
            return None
        self.numbers.received += 1
        session.heard_at = now
        request: Envelope | None = None
        try:
            if self._rate is not None:
                self._take(session, now)
            request = _envelope(text)
            return self._answer(session, request, now)
        except Refusal as refusal:
            self.floor.refuse(session, refusal, now, request or _asked(text))
        return None

    def reject(self, session: Session, refusal: Refusal, now: int) -> None:
        """A frame came that cannot even be read. It takes a permit like any other: no flood is for free."""
        if session.is_open:
            self.numbers.received += 1
            session.heard_at = now
            try:
                if self._rate is not None:
                    self._take(session, now)
            except Refusal as limited:
                refusal = limited
            self.floor.refuse(session, refusal, now)

    def _take(self, session: Session, now: int, cost: int = 1) -> None:
        """Take permits of the session's rate."""
        assert self._rate is not None
        wait, session.full_at = self._rate.take(session.full_at, now, cost)
        if not wait:
            if session.refused:
                session.refused -= 1
            return
        session.refused += 1
        if session.refused > self.rules.flood:
            self.floor.cut(session, closing.FLOODING, now)
        seconds = wait / SECOND
        raise Refusal(
            "rate_limited",
            f"too many messages, try again in {seconds:.3f} s",
            reason="rate_limited",
            resolution="send fewer messages, or ask for a higher rate limit of the hub",
            retryable=True,
            details={"retryAfter": seconds, "limit": self._rate.per_second, "code": "RATE_LIMIT_EXCEEDED"},
        )

    def _answer(self, session: Session, request: Envelope, now: int) -> Wish | None:
        kind = request.type
        if kind not in COMMANDS:
            if kind == PING:
                self.floor.push(session, len(PONG), (PONG,), now)
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
        ask = Ask(session, request, command, now)
        searched = SEARCHED.get(type(command))
        if searched is not None and self._rate is not None and (more := searched(self.floor, ask) // SEARCHED_FOR_ONE):
            self._take(session, now, more)
        return HANDLERS[type(command)](self.floor, ask)

    def _begin(self, session: Session, request: Envelope, now: int) -> None:
        """The first request of a session: hub:connect, or any other where nobody is asked for a token."""
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
            connection.begin(self.floor, session, request, now)

    def _check_sender(self, session: Session, request: Envelope, now: int) -> None:
        actor, expires_at = session.actor, session.identity.expires_at
        if (
            actor is not None
            and request.sender not in {None, actor.address}
            and not (actor.is_anonymous and request.sender == session.claimed)
        ):
            raise Refusal(
                "unauthorized",
                "from is another actor's address",
                reason="from_mismatch",
                resolution=f"send from {actor.address}, or leave it out: the hub stamps it",
            )
        if expires_at is not None and now >= expires_at and request.type not in {"hub:refresh_token", "hub:disconnect"}:
            raise connection.token_expired()

    # --- what became of wishes ------------------------------------------------------------------------------------------------

    def verified(self, session: Session, wish: Verify, identity: Identity, now: int) -> None:
        """It is known whose token it was."""
        if session.is_open:
            connection.verified(self.floor, session, wish, identity, now)

    def unverified(self, session: Session, wish: Verify, refusal: Refusal, now: int) -> None:
        """Nobody may come in with that token: a session that was not connected yet ends, others keep their old one."""
        if wish.is_refresh:
            code = refusal.code if refusal.retryable else "invalid_token"
            refusal = Refusal(
                code, refusal.message, reason=refusal.reason, resolution=refusal.resolution, retryable=refusal.retryable
            )
        if session.state is State.CONNECTING:
            self.expel(session, refusal, now, wish.request)
        else:
            self.floor.refuse(session, refusal, now, wish.request)

    def expel(self, session: Session, refusal: Refusal, now: int, request: Envelope | None = None) -> None:
        """A session may not stay: it is told why, and ends."""
        self.floor.refuse(session, refusal, now, request)
        self.floor.cut(session, closing.FAILED if refusal.retryable else closing.UNAUTHORIZED, now)

    def appended(self, session: Session, wish: Append, position: Position, now: int) -> None:
        """A message is safe in its log."""
        publishing.appended(self.floor, session, wish, position, now)

    def lost(self, session: Session, wish: Append, refusal: Refusal, now: int) -> None:
        """A message did not get into its log."""
        publishing.lost(self.floor, session, wish, refusal, now)

    def recovering(self, session: Session, wish: Recover, part: Sequence[Message] | None, now: int, *, is_first: bool) -> None:
        """A part of what was missed; as the first, None when not all of it is kept."""
        subscriptions.recovering(self.floor, session, wish, part, now, is_first=is_first)

    def recovered(self, session: Session, now: int) -> None:
        """There are no more parts."""
        subscriptions.recovered(self.floor, session, now)

    def retained(self, session: Session, wish: Retain, now: int) -> bool:
        """A durable subscription stands; False when the session does not want it any more."""
        return subscriptions.retained(self.floor, session, wish, now)

    def unretained(self, session: Session, wish: Retain, refusal: Refusal, now: int) -> None:
        """A durable subscription could not be made."""
        subscriptions.unretained(self.floor, session, wish, refusal, now)

    def released(self, session: Session, wish: Release, now: int) -> None:
        """Durable subscriptions are over."""
        self.floor.made.difference_update((wish.address, pattern) for pattern in wish.patterns)
        if wish.request.type == "hub:unsubscribe":
            subscriptions.unsubscribed(self.floor, session, wish.request, wish.patterns[0], now)
        else:
            registration.unregistered(self.floor, session, wish.request, wish.address, now)

    def unreleased(self, session: Session, wish: Release, refusal: Refusal, now: int) -> None:
        """Durable subscriptions could not be ended: they go on, and may be ended later."""
        self.resume(self.floor.made.intersection((wish.address, pattern) for pattern in wish.patterns))
        self.floor.refuse(session, refusal, now, wish.request)

    # --- what logs bring ------------------------------------------------------------------------------------------------------

    def resume(self, durable: Iterable[tuple[str, str]]) -> None:
        """Know of durable subscriptions that a log has, from earlier runs for one, by address and pattern."""
        for address, pattern in durable:
            self.floor.made.add((address, pattern))
            self.floor.durable.add(pattern, address)

    def expired(self, address: str, pattern: str) -> None:
        """A durable subscription has ended that nobody came back for."""
        self.floor.made.discard((address, pattern))
        if (address, pattern) not in self.floor.making:  # else somebody comes back this very moment
            self.floor.durable.remove(pattern, address)

    def forward(self, binding: Binding, batch: Sequence[Message], now: int) -> None:
        """Send what is new in a log to those who subscribe, in its order."""
        floor = self.floor
        for message in batch:
            if message.position is not None:
                binding.next_offset = message.position.offset + 1
            if binding is floor.everything and message.topic is not None:
                floor.passed(message.topic)
            if message.topic is not None and (message.expires_at is None or message.expires_at >= now):
                if binding is floor.everything and message.position is not None:
                    floor.positions.note(message.topic, message.position)  # nothing else knows where such a topic is
                floor.forward(message, floor.table.match(message.topic), now)

    def skipped(self, binding: Binding, now: int) -> None:
        """Messages left a log before they could be forwarded. Whoever may have missed one comes back, and is told `recovered`."""
        if binding is self.floor.everything:
            # It is not known which are gone.
            self.floor.under_way.clear()
            self.floor.positions.clear()
        for session in [*self.floor.sessions]:
            live = (name for name, one in session.subscriptions.items() if not one.durable)
            if any(overlaps(binding.pattern, name) for name in live):
                self.floor.cut(session, closing.FAILED, now)

    def deliver(self, session: Session, pattern: str, batch: Sequence[Message], now: int) -> None:
        """Send messages of a durable subscription."""
        subscriptions.deliver(self.floor, session, pattern, batch, now)

    # --- time -----------------------------------------------------------------------------------------------------------------

    def sweep(self, now: int) -> None:
        """Do what has become due: registrations, tokens, timeouts, readers that do not read."""
        floor, rules = self.floor, self.rules
        floor.expire(now)
        for session in [*floor.sessions]:
            if session.state is State.CONNECTING:
                if now - session.opened_at >= rules.connect_timeout:
                    floor.cut(session, closing.NOT_CONNECTED, now)
            elif session.is_open:
                if now - session.heard_at >= rules.idle and not registration.is_lasting(session):
                    floor.cut(session, closing.SILENT, now)
                elif session.outbox.is_stalled(now, rules.stall):
                    floor.cut(session, closing.SLOW_READER, now)
                else:
                    connection.check_token(floor, session, now)
        self.numbers.turn(now)

    def stop(self, now: int) -> None:
        """Tell everybody that the server stops, and close them."""
        sessions = [*self.floor.sessions]
        for session in sessions:
            self.floor.watchers.drop(session)  # who leaves has no use for the news that everybody else leaves
        for session in sessions:
            self.floor.cut(session, closing.STOPPING, now)


def _envelope(text: str) -> Envelope:
    try:
        return decode_envelope(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError) as error:
        is_json = isinstance(error, msgspec.ValidationError)
        raise Refusal(
            "internal_error",
            "Invalid SharedMessage structure",
            reason="invalid_envelope" if is_json else "invalid_json",
            resolution="send a text frame with one JSON object that has a type and a payload",
            details={"problem": _problem(error)},
        ) from None


def _asked(text: str) -> Envelope | None:
    """The request in a text that was refused before it was read: who asked wants to know which of its requests it was."""
    try:
        return _envelope(text)
    except Refusal:
        return None


def _invalid_payload(kind: str, error: Exception) -> Refusal:
    """The words of the specification for the fields it speaks of, others for the rest."""
    problem = _problem(error)
    message, reason = f"the payload of {kind} is not as wanted: {problem}", "invalid_payload"
    if problem.endswith("`$.topic`"):
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
