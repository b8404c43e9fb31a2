"""The state that all sessions share: what handlers of requests read and change, and the only way to send to a session."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

from msgspec import Struct

from penstock.hub.core import close_codes
from penstock.hub.core.close_codes import Close
from penstock.hub.core.dialects import Dialect, Parts
from penstock.hub.core.memory import Positions, RecentPublishes
from penstock.hub.core.messages import Command, Disconnecting, Envelope, Error, Message, PresenceNews, Reply, Unregistered
from penstock.hub.core.metrics import HubMetrics
from penstock.hub.core.names import covers, has_wildcard, overlaps
from penstock.hub.core.refusal import Refusal
from penstock.hub.core.registry import Registry
from penstock.hub.core.rules import Binding, HubRules
from penstock.hub.core.session import Session, State
from penstock.hub.core.topic_table import TopicTable

C = TypeVar("C", bound=Command)


class CommandContext(Struct, Generic[C]):
    """One request of one session."""

    session: Session
    request: Envelope
    command: C
    now: int


CLOSE_REASONS = {
    close_codes.REPLACED: "another connection registered the same actor",
    close_codes.STOPPING: "the server is stopping; come back in a moment",
    close_codes.UNAUTHORIZED: "the token is not valid any more",
}
"""What hub:disconnect carries to a session before the hub closes it."""


class HubState:
    """The state of a hub. Handlers read it freely; what concerns several parts of it at once is done by its methods."""

    def __init__(
        self,
        rules: HubRules,
        *,
        epoch: str,
        make_id: Callable[[], str],
        version: str,
        bindings: Sequence[Binding],
        everything: Binding,
        now: int,
    ) -> None:
        self.rules = rules
        self.make_id = make_id
        self.version = version
        self.bindings = tuple(bindings)
        self.everything = everything
        """The log of topics that are not bound and have durable subscriptions."""
        self.sessions: dict[Session, None] = {}
        self.registry: Registry[Session] = Registry(rules)
        self.table: TopicTable[Session] = TopicTable()
        """Who is sent what is published, as long as the connection lasts."""
        self.durable: TopicTable[str] = TopicTable()
        """The addresses of durable subscriptions, whether they are connected or not."""
        self.made: set[tuple[str, str]] = set()
        """Address and pattern of those that a log has. What is asked of it for one actor it does in the order it is asked."""
        self.making: Counter[tuple[str, str]] = Counter()
        """How many connections wait for a log to begin or resume one: an actor may be taken over, and try the same again."""
        self.under_way: Counter[str] = Counter()
        """How many messages of a topic are on their way through the log of everything to those who subscribe."""
        self.watchers: TopicTable[Session] = TopicTable()
        """The watchers of joins and departures, by the very name."""
        self.positions = Positions(epoch, rules.max_plain_topics)
        self.seen = RecentPublishes(rules.remember, rules.max_remembered)
        self.metrics = HubMetrics(now)
        self.rested: list[tuple[Session, str]] = []
        """Durable subscriptions that are not to be delivered to a session any more. Whoever delivers takes and empties it."""
        self.subscribed: list[tuple[str, str]] = []
        """Address and pattern of new subscriptions, for the log of the server. Whoever writes that takes and empties it."""
        self.dirty: list[Session] = []
        """Sessions with something to write, or to be closed. Whoever writes takes the list and empties it."""
        self._leaving: list[Session] = []

    # --- what topics have -----------------------------------------------------------------------------------------------------

    def log_of(self, topic: str) -> Binding | None:
        """The log that a publish to a topic goes into, if it has one.

        When its last durable subscription has ended a topic needs none, but must not overtake what is still in there.
        """
        bound = self.history_of(topic)
        if bound is None and (topic in self.under_way or (len(self.durable) and self.durable.count(topic))):
            return self.everything
        return bound

    def passed(self, topic: str) -> None:
        """A message of a topic is through the log of everything, or did not get into it."""
        if self.under_way[topic] > 1:
            self.under_way[topic] -= 1
        else:
            del self.under_way[topic]  # also where a service wrote it, and nobody had counted it

    def history_of(self, pattern: str) -> Binding | None:
        """The log that holds everything a topic or pattern covers; None when there is none, or more than one thing to ask.

        Never the log of everything: that has only what was published while there was a durable subscription.
        """
        if not has_wildcard(pattern):
            return next((binding for binding in self.bindings if covers(binding.pattern, pattern)), None)
        touched = [binding for binding in self.bindings if overlaps(binding.pattern, pattern)]
        return touched[0] if len(touched) == 1 and covers(touched[0].pattern, pattern) else None

    def logs_of(self, pattern: str) -> tuple[Binding, ...]:
        """All logs in which something may be that a topic or pattern covers."""
        touched = [binding for binding in self.bindings if overlaps(binding.pattern, pattern)]
        return (*touched,) if any(covers(one.pattern, pattern) for one in touched) else (*touched, self.everything)

    # --- saying something -----------------------------------------------------------------------------------------------------

    def say(
        self, session: Session, reply: Reply, now: int, request: Envelope | None = None, command: Command | None = None
    ) -> None:
        if session.is_open:
            text = session.dialect.write(reply, session.name, request=request, command=command, now=now, make_id=self.make_id)
            if text:
                self.push(session, len(text), (text,), now)

    def reply(self, context: CommandContext[C], reply: Reply) -> None:
        self.say(context.session, reply, context.now, context.request, context.command)

    def refuse(self, session: Session, refusal: Refusal, now: int, request: Envelope | None = None) -> None:
        if session.is_open:
            self.metrics.errors[refusal.code] += 1
            self.say(session, Error(refusal.code, refusal.message, refusal.resolution, refusal.details), now, request)

    def push(self, session: Session, length: int, parts: tuple[bytes, ...], now: int) -> bool:
        """Put a frame into a session's outbox; one that is full costs the session its connection."""
        if not session.outbox.push(length, parts, now):
            self.cut(session, close_codes.SLOW_READER, now)
            return False
        self.metrics.sent += 1
        session.sent += 1
        self.mark(session)
        return True

    def mark(self, session: Session) -> None:
        """Have somebody look what a session's outbox holds, or why it ends."""
        if not session.is_dirty:
            session.is_dirty = True
            self.dirty.append(session)

    def let_go(self, session: Session, now: int) -> None:
        """Send what was held back, if nothing holds it any more."""
        if session.held and not session.holds:
            session.outbox.extend(session.held.take(session.held.bytes), now)
            self.mark(session)

    def forward(self, message: Message, sessions: Iterable[Session], now: int, *, past_holds: bool = False) -> int:
        """Send a message to sessions, encoded once for each dialect; returns how many could be sent it.

        What is held back waits, and counts as sent. This loop is what a fan-out costs, so it calls as little as it can.
        """
        encoded: dict[Dialect, tuple[int, Parts]] = {}
        dirty, count = self.dirty, 0
        for session in [*sessions]:  # one that is full leaves the table meanwhile
            dialect, to = session.dialect, session.quoted
            found = encoded.get(dialect)
            if found is None:
                parts = dialect.parts(message, self.make_id)
                found = encoded[dialect] = (len(parts[0]) + len(parts[1]), parts)
            length, (head, tail) = found
            if not session.is_open:
                continue
            is_held = session.holds and not past_holds
            box = session.held if is_held else session.outbox
            if not box.push(length + len(to), (head, to, tail), now):
                self.cut(session, close_codes.SLOW_READER, now)
                continue
            count += 1
            session.sent += 1
            if not (is_held or session.is_dirty):
                session.is_dirty = True
                dirty.append(session)
        self.metrics.sent += count
        return count

    # --- coming to an end -----------------------------------------------------------------------------------------------------

    def cut(self, session: Session, close: Close, now: int) -> None:
        """End a session for a reason of the hub's own; it is notified where that makes sense."""
        if not session.is_open:
            return
        if close is close_codes.SLOW_READER:
            session.outbox.clear()  # it did not read what waited, and memory is what this is about
        elif close in CLOSE_REASONS:
            self.say(session, Disconnecting(close.reason, CLOSE_REASONS[close]), now)
        self.leave(session, close, now)

    def leave(self, session: Session, close: Close, now: int) -> None:
        """Clean up after a session, and have its connection closed once what waits is written."""
        session.enter(State.DISCONNECTING)
        session.closing = close
        session.held.clear()
        self.mark(session)
        self._leaving.append(session)
        if len(self._leaving) == 1:
            # Those that are notified of a departure may be full and leave too: one after the other, not one inside the other.
            try:
                for one in self._leaving:
                    self.unregister(one, now)
            finally:
                self._leaving.clear()

    def unregister(self, session: Session, now: int) -> None:
        """Make a session's actor unknown, and end its subscriptions; durable ones only rest. Watchers are notified."""
        session.unacked.clear()
        for pattern in [*session.subscriptions]:
            self.drop(session, pattern, now)
        actor, session.actor = session.actor, None
        if actor is not None:
            self.registry.unregister(actor)

    def drop(self, session: Session, pattern: str, now: int) -> None:
        """End one subscription of a session as far as this connection is concerned."""
        subscription = session.subscriptions.pop(pattern, None)
        if subscription is None:
            return  # those that were notified of another end were full and had to leave, and that has come round to this session
        if subscription.durable:
            self.rested.append((session, pattern))
            session.forget_unacked(pattern)
        else:
            self.table.remove(pattern, session)
        self.watchers.remove(pattern, session)
        self.announce(pattern, "leave", session, now)

    def expire(self, now: int) -> None:
        """Make actors unknown whose time ran out: their subscriptions end too, and they are notified."""
        for actor in self.registry.expire(now):
            self.unregister(actor.session, now)
            self.say(actor.session, Unregistered(actor.address, now // 1000, "expired"), now)

    def announce(self, pattern: str, event: str, session: Session, now: int) -> None:
        """Tell those who watch a topic that an actor has come, which does not watch yet, or gone, which watches no more."""
        if len(self.watchers) and session.actor is not None:
            news = PresenceNews(pattern, event, (session.actor.address,), now // 1000)
            for watcher in [*self.watchers.subscribers(pattern)]:
                self.say(watcher, news, now)
