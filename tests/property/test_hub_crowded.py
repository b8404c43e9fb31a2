"""Sessions whose outboxes are nearly always full, and a log that takes its time: nothing raises, and nothing is left behind."""

from __future__ import annotations

from collections import deque

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.durations import SECOND
from penstock.hub.core.effects import Append, Release, Retain, Verify
from penstock.hub.core.identity import Identity
from penstock.hub.core.refusal import Refusal
from penstock.hub.core.rules import HubRules
from penstock.hub.core.session import Session
from tests.property.strategies import effort, patience
from tests.unit.hub.talk import Talk

pytestmark = patience

ADDRESSES = ("@(browser/a)", "@(browser/b)", "@(browser/c)")
PATTERNS = ("a", "+")
MOST = 4
"""How many frames may wait for a session."""
NO = Refusal("internal_error", "no", reason="unavailable", resolution="wait")


class CrowdedRules(RuleBasedStateMachine):
    """Who is told something may be full, and leave, which others are told: one act may end any of the sessions."""

    @initialize()
    def begin(self) -> None:
        self.talk = Talk(HubRules(rate=None, max_outbox_messages=MOST))
        self.sessions: list[Session] = []
        self.effects: dict[str, deque[tuple[Session, Retain | Release]]] = {address: deque() for address in ADDRESSES}
        """What the log has to do, by actor: one thing after the other."""
        self.made: set[tuple[str, str]] = set()
        """The durable subscriptions that the log has."""

        for address in ADDRESSES:
            self.come(address, 1_000, durable=False)

    @precondition(lambda self: sum(session.is_open for session in self.sessions) < 4)
    @rule(address=st.sampled_from(ADDRESSES), ttl=st.sampled_from([1_000, 60_000]), durable=st.booleans())
    def come(self, address: str, ttl: int, durable: bool) -> None:
        """One more is in all the rooms, sees who else is, and reads nothing more for now."""
        session = self.talk.meet(identity=Identity(address=address))
        self.sessions.append(session)
        self.say(session, "hub:register", {"actorAddress": address, "capabilities": ["x"], "ttl": ttl})
        for pattern in PATTERNS:
            self.talk.forget(*self.sessions)
            self.say(session, "hub:subscribe", {"topic": pattern, "presence": True, "durable": durable})

    @rule(is_full=st.booleans())
    def read(self, is_full: bool) -> None:
        """Everybody reads what waits, and has nothing more to read, or as much as may wait."""
        for session in self.sessions:
            self.talk.forget(session)
            for _ in range(MOST if is_full else 0):
                self.talk.say(session, "ping")

    @precondition(lambda self: self.sessions)
    @rule(data=st.data(), pattern=st.sampled_from(PATTERNS), durable=st.booleans(), presence=st.booleans())
    def subscribe(self, data: st.DataObject, pattern: str, durable: bool, presence: bool) -> None:
        self.say(self.one(data), "hub:subscribe", {"topic": pattern, "durable": durable, "presence": presence})

    @precondition(lambda self: self.sessions)
    @rule(data=st.data(), pattern=st.sampled_from(PATTERNS))
    def unsubscribe(self, data: st.DataObject, pattern: str) -> None:
        self.say(self.one(data), "hub:unsubscribe", {"topic": pattern})

    @precondition(lambda self: self.sessions)
    @rule(data=st.data(), kind=st.sampled_from(["hub:unregister", "hub:disconnect", "hub:pause", "hub:resume"]))
    def ask(self, data: st.DataObject, kind: str) -> None:
        self.say(self.one(data), kind)

    @precondition(lambda self: self.sessions)
    @rule(data=st.data(), address=st.sampled_from(ADDRESSES))
    def register(self, data: st.DataObject, address: str) -> None:
        self.say(self.one(data), "hub:register", {"actorAddress": address, "capabilities": ["x"]})

    @precondition(lambda self: self.sessions)
    @rule(data=st.data(), allowed=st.sampled_from([None, (), ("a",)]))
    def refresh(self, data: st.DataObject, allowed: tuple[str, ...] | None) -> None:
        session = self.one(data)
        effect = self.say(session, "hub:refresh_token", {"token": "new"})
        if isinstance(effect, Verify):
            identity = Identity(address=session.identity.address, subscribe=allowed)
            self.talk.hub.verified(session, effect, identity, self.talk.now)

    @precondition(lambda self: self.sessions)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        session = self.one(data)
        effect = self.say(session, "hub:publish", {"topic": "a", "type": "t", "data": 1})
        if isinstance(effect, Append):
            self.talk.hub.lost(session, effect, NO, self.talk.now)

    @precondition(lambda self: self.sessions)
    @rule(data=st.data())
    def go(self, data: st.DataObject) -> None:
        """One goes, and those that were to be closed are."""
        leaving = self.one(data)
        for session in [one for one in self.sessions if one is leaving or not one.is_open]:
            self.talk.hub.closed(session, self.talk.now)
            self.sessions.remove(session)

    @rule()
    def run_out(self) -> None:
        self.talk.later(SECOND)

    @rule(outcomes=st.lists(st.tuples(st.sampled_from(ADDRESSES), st.booleans()), min_size=1, max_size=4))
    def work(self, outcomes: list[tuple[str, bool]]) -> None:
        """The log does what is next for some of the actors, or cannot."""
        for address, succeeds in outcomes:
            if self.effects[address]:
                self.work_for(address, succeeds=succeeds)

    def work_for(self, address: str, *, succeeds: bool) -> None:
        session, effect = self.effects[address].popleft()
        hub, now = self.talk.hub, self.talk.now
        if isinstance(effect, Retain):
            if succeeds:
                self.made.add((address, effect.pattern))
                hub.retained(session, effect, now)
            else:
                hub.unretained(session, effect, NO, now)
        elif succeeds:
            self.made -= {(address, pattern) for pattern in effect.patterns}
            hub.released(session, effect, now)
        else:
            hub.unreleased(session, effect, NO, now)

    @precondition(lambda self: self.resting())
    @rule(data=st.data())
    def expire(self, data: st.DataObject) -> None:
        """The log ends a durable subscription that nobody came back for."""
        address, pattern = data.draw(st.sampled_from(self.resting()), label="durable")
        self.made.discard((address, pattern))
        self.talk.hub.expired(address, pattern)

    # ── helpers ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    def resting(self) -> list[tuple[str, str]]:
        """The durable subscriptions that are delivered to nobody."""
        delivered = {
            (session.name, pattern) for session in self.sessions for pattern, one in session.subscriptions.items() if one.durable
        }
        return sorted(self.made - delivered)

    def one(self, data: st.DataObject) -> Session:
        """Mostly one that may still do something."""
        able = [session for session in self.sessions if session.is_open and not self.waits(session)]
        return data.draw(st.sampled_from(able or self.sessions), label="session")

    def waits(self, session: Session) -> bool:
        """Whether a session waits for the log: it is not read then."""
        return any(session is waiting for effects in self.effects.values() for waiting, _ in effects)

    def say(self, session: Session, kind: str, payload: object = None) -> object:
        """Say something, if anybody listens."""
        if self.waits(session):
            return None
        effect = self.talk.say(session, kind, payload)
        if isinstance(effect, Retain | Release):
            self.effects[effect.address].append((session, effect))
        return effect

    # ── what must never be false ─────────────────────────────────────────────────────────────────────────────────────────

    @invariant()
    def subscriptions_are_where_they_belong(self) -> None:
        state = self.talk.hub.state
        for session in self.sessions:
            held = {*session.subscriptions}
            assert session.is_open or (held, session.actor, len(session.held)) == (set(), None, 0)
            assert {*state.table.patterns_of(session)} <= held
            assert {*state.watchers.patterns_of(session)} <= held
            assert not held or session.actor is not None
        assert state.table.pairs == sum(len(state.table.patterns_of(session)) for session in self.sessions)
        assert state.watchers.pairs == sum(len(state.watchers.patterns_of(session)) for session in self.sessions)
        assert len(state.registry) == sum(session.actor is not None for session in self.sessions)

    @invariant()
    def hub_and_log_agree_when_nothing_is_under_way(self) -> None:
        state = self.talk.hub.state
        if not any(self.effects.values()):
            assert {(who, name) for name, _ in state.durable.names() for who in state.durable.subscribers(name)} == self.made
            assert (state.made, state.making) == (self.made, {})

    def teardown(self) -> None:
        if not hasattr(self, "talk"):
            return
        for session in self.sessions:
            self.talk.hub.closed(session, self.talk.now)
        state = self.talk.hub.state
        assert (len(state.table), len(state.watchers), len(state.registry), len(state.sessions)) == (0, 0, 0, 0)


TestCrowded = CrowdedRules.TestCase
TestCrowded.settings = effort(4)
