"""The state that all sessions share. Handlers of requests read and change it, and send to sessions only through it."""

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
"""The message of hub:disconnect, which a session gets before the hub closes it."""


class HubState:
    """The state of a hub. Handlers read it freely; changes of several parts at once are made by its methods."""

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
        """The log of topics that have no binding but durable subscriptions."""
        self.sessions: dict[Session, None] = {}
        self.registry: Registry[Session] = Registry(rules)
        self.table: TopicTable[Session] = TopicTable()
        """The subscriptions that end with their connection."""
        self.durable: TopicTable[str] = TopicTable()
        """The durable subscriptions by address, connected or not."""
        self.made: set[tuple[str, str]] = set()
        """Address and pattern of durable subscriptions that exist in a log. A log handles the requests for one actor in order."""
        self.making: Counter[tuple[str, str]] = Counter()
        """The number of connections that wait for a log to start or resume one: a new connection of the actor may try again."""
        self.under_way: Counter[str] = Counter()
        """The number of messages of each topic that were sent to the log of everything and are not forwarded yet."""
        self.watchers: TopicTable[Session] = TopicTable()
        """The sessions that are notified of joins and departures, by the exact topic or pattern."""
        self.positions = Positions(epoch, rules.max_plain_topics)
        self.seen = RecentPublishes(rules.remember, rules.max_remembered)
        self.metrics = HubMetrics(now)
        self.rested: list[tuple[Session, str]] = []
        """Durable subscriptions whose delivery to a session has to stop. The service reads and clears the list."""
        self.subscribed: list[tuple[str, str]] = []
        """Address and pattern of new subscriptions, for the log file of the server. The service reads and clears the list."""
        self.dirty: list[Session] = []
        """Sessions with frames to write, or to be closed. The service reads and clears the list."""
        self._leaving: list[Session] = []

    # --- logs of topics -------------------------------------------------------------------------------------------------------

    def log_of(self, topic: str) -> Binding | None:
        """The log that a publish to a topic is written to; None if the topic has none.

        After its last durable subscription has ended, a topic needs no log, but new messages must not overtake those still in it.
        """
        bound = self.history_of(topic)
        if bound is None and (topic in self.under_way or (len(self.durable) and self.durable.count(topic))):
            return self.everything
        return bound

    def passed(self, topic: str) -> None:
        """A message of a topic was forwarded from the log of everything, or could not be stored in it."""
        if self.under_way[topic] > 1:
            self.under_way[topic] -= 1
        else:
            del self.under_way[topic]  # also if a service wrote it, so that it was not counted

    def history_of(self, pattern: str) -> Binding | None:
        """The log with all messages that a topic or pattern covers; None if there is none, or if several logs would be needed.

        It is never the log of everything, which only has messages published while there was a durable subscription.
        """
        if not has_wildcard(pattern):
            return next((binding for binding in self.bindings if covers(binding.pattern, pattern)), None)
        touched = [binding for binding in self.bindings if overlaps(binding.pattern, pattern)]
        return touched[0] if len(touched) == 1 and covers(touched[0].pattern, pattern) else None

    def logs_of(self, pattern: str) -> tuple[Binding, ...]:
        """All logs that may have messages that a topic or pattern covers."""
        touched = [binding for binding in self.bindings if overlaps(binding.pattern, pattern)]
        return (*touched,) if any(covers(one.pattern, pattern) for one in touched) else (*touched, self.everything)

    # --- sending --------------------------------------------------------------------------------------------------------------

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
        """Put a frame into the outbox of a session. If the outbox is full, the session is closed."""
        if not session.outbox.push(length, parts, now):
            self.cut(session, close_codes.SLOW_READER, now)
            return False
        self.metrics.sent += 1
        session.sent += 1
        self.mark(session)
        return True

    def mark(self, session: Session) -> None:
        """Add a session to `dirty`, so that the service writes its outbox or closes it."""
        if not session.is_dirty:
            session.is_dirty = True
            self.dirty.append(session)

    def let_go(self, session: Session, now: int) -> None:
        """Send messages that were held back, if there is no reason left to hold them."""
        if session.held and not session.holds:
            session.outbox.extend(session.held.take(session.held.bytes), now)
            self.mark(session)

    def forward(self, message: Message, sessions: Iterable[Session], now: int, *, past_holds: bool = False) -> int:
        """Send a message to sessions, encoded once for each dialect; returns the number of sessions that it was sent to.

        Messages that are held back count as sent. This loop is the cost of a fan-out, so it makes as few calls as possible.
        """
        encoded: dict[Dialect, tuple[int, Parts]] = {}
        dirty, count = self.dirty, 0
        for session in [*sessions]:  # a session with a full outbox leaves the table meanwhile
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

    # --- ending ---------------------------------------------------------------------------------------------------------------

    def cut(self, session: Session, close: Close, now: int) -> None:
        """End a session for a reason of the hub; it is notified first for the reasons in CLOSE_REASONS."""
        if not session.is_open:
            return
        if close is close_codes.SLOW_READER:
            session.outbox.clear()  # it does not read, and this frees the memory
        elif close in CLOSE_REASONS:
            self.say(session, Disconnecting(close.reason, CLOSE_REASONS[close]), now)
        self.leave(session, close, now)

    def leave(self, session: Session, close: Close, now: int) -> None:
        """Clean up after a session; its connection is closed once the waiting frames are written."""
        session.enter(State.DISCONNECTING)
        session.closing = close
        session.held.clear()
        self.mark(session)
        self._leaving.append(session)
        if len(self._leaving) == 1:
            # A watcher that is notified of a departure may have a full outbox and leave too: use a loop, no recursion.
            try:
                for one in self._leaving:
                    self.unregister(one, now)
            finally:
                self._leaving.clear()

    def unregister(self, session: Session, now: int) -> None:
        """Unregister the actor of a session, end its subscriptions (durable ones are only suspended), and notify watchers."""
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
            return  # already ended: notified sessions had full outboxes and left, and their departure led back to this session
        if subscription.durable:
            self.rested.append((session, pattern))
            session.forget_unacked(pattern)
        else:
            self.table.remove(pattern, session)
        self.watchers.remove(pattern, session)
        self.announce(pattern, "leave", session, now)

    def expire(self, now: int) -> None:
        """Unregister expired actors: their subscriptions end too, and they are notified."""
        for actor in self.registry.expire(now):
            self.unregister(actor.session, now)
            self.say(actor.session, Unregistered(actor.address, now // 1000, "expired"), now)

    def announce(self, pattern: str, event: str, session: Session, now: int) -> None:
        """Notify the watchers of a topic that an actor joined or left.

        An actor that joins is not a watcher yet, and one that leaves is not a watcher any more.
        """
        if len(self.watchers) and session.actor is not None:
            news = PresenceNews(pattern, event, (session.actor.address,), now // 1000)
            for watcher in [*self.watchers.subscribers(pattern)]:
                self.say(watcher, news, now)
