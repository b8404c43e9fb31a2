"""Sessions of a hub against plain lists: who is sent what, who subscribes to what, and what is left of those who went."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.durations import SECOND
from penstock.hub.core import close_codes
from penstock.hub.core.close_codes import Close
from penstock.hub.core.effects import Append, Release, Retain
from penstock.hub.core.messages import Message, Position
from penstock.hub.core.rules import HubRules
from penstock.hub.core.session import Session
from tests.property.strategies import effort, patience
from tests.property.test_hub_topic_table import covered
from tests.unit.hub.talk import Frame, Talk

pytestmark = patience

MOST = 60
"""How many frames may wait for one session."""
ADDRESSES = ("@(browser/a)", "@(browser/b)", "@(browser/c)")
TOPICS = ("a", "a/b", "b/a")
PATTERNS = (*TOPICS, "#", "a/#", "+/a", "+")

News = tuple[str, str, str]
"""A topic, `join` or `leave`, and who."""


class Person:
    """A session as the model knows it."""

    def __init__(self, session: Session, now: int, *, original: bool) -> None:
        self.session = session
        self.original = original
        self.heard_at = now
        self.address: str | None = None
        self.expires_at = 0
        self.patterns: dict[str, bool] = {}
        """By pattern, whether it is durable."""
        self.watched: set[str] = set()
        self.is_paused = False
        self.held: list[Frame] = []
        self.messages: list[Frame] = []
        """What it is to be sent."""
        self.news: list[News] = []
        self.end: Close | None = None


def after(position: Frame) -> Frame:
    """The next one: offsets are dense."""
    return position | {"offset": position["offset"] + 1}


class SessionRules(RuleBasedStateMachine):
    """Clients that come, take each other's addresses, subscribe, pause and go; one log, for the durable ones."""

    @initialize(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        self.talk = Talk(HubRules(rate=None, max_outbox_messages=MOST))
        self.observer = self.talk.meet()
        self.people: list[Person] = []
        self.gone: list[Session] = []
        self.durable: set[tuple[str, str]] = set()
        """Address and pattern."""
        self.sent: dict[str, list[Frame]] = {topic: [] for topic in TOPICS}
        """What was forwarded, by topic: the positions."""
        self.number = 0
        self.offset = 0
        self.writing: list[Message] = []
        """What is in the log and not forwarded yet."""
        for address in ADDRESSES:
            self.connect(original=False, address=address)
            self.subscribe(data)

    # ── what happens ─────────────────────────────────────────────────────────────────────────────────────────────────────

    @precondition(lambda self: len(self.people) < 5)
    @rule(original=st.booleans(), address=st.sampled_from([*ADDRESSES, None]))
    def connect(self, original: bool, address: str | None) -> None:
        person = Person(self.talk.meet(original=original), self.talk.now, original=original)
        self.people.append(person)
        if address is not None:
            self.register_as(person, address, 3600)

    @precondition(lambda self: self.people)
    @rule(data=st.data(), address=st.sampled_from(ADDRESSES), ttl=st.sampled_from([1, 60, 3600]))
    def register(self, data: st.DataObject, address: str, ttl: int) -> None:
        person = data.draw(st.sampled_from(self.people), label="person")
        self.register_as(person, person.address or address if data.draw(st.booleans(), label="again") else address, ttl)

    def register_as(self, person: Person, address: str, ttl: int) -> None:
        self.say(person, "hub:register", {"actorAddress": address, "capabilities": ["x"], "ttl": ttl * 1000})
        self.expire()
        if person.address in {None, address}:
            for other in self.people:
                if other is not person and other.address == address:
                    self.leave(other, close_codes.REPLACED)
            person.address, person.expires_at = address, self.talk.now + ttl * SECOND
            self.check(person, "hub:registered")
        else:
            self.check(person, "hub:error")

    @precondition(lambda self: self.people)
    @rule(data=st.data())
    def subscribe(self, data: st.DataObject) -> None:
        person = self.someone(data)
        for pattern in data.draw(st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=3), label="patterns"):
            durable, watch = data.draw(st.tuples(st.sampled_from([False] * 4 + [True]), st.booleans()), label="durable, watch")
            self.subscribe_to(person, pattern, durable=durable, watch=watch)

    def subscribe_to(self, person: Person, pattern: str, *, durable: bool, watch: bool) -> None:
        effect = self.say(person, "hub:subscribe", {"topic": pattern, "durable": durable, "presence": watch})
        if not self.is_acting(person):
            self.check(person, "hub:error")
            return
        assert person.address is not None
        is_new, key = pattern not in person.patterns, (person.address, pattern)
        if is_new:
            self.tell(pattern, "join", person)
        becomes_durable = not person.patterns.get(pattern, False) and (durable or (is_new and key in self.durable))
        person.patterns[pattern] = person.patterns.get(pattern, False) or becomes_durable
        if watch:
            person.watched.add(pattern)
        if becomes_durable:
            assert isinstance(effect, Retain)
            assert self.talk.hub.retained(person.session, effect, self.talk.now)
            self.durable.add(key)
        self.check(person, "hub:subscribed")

    @precondition(lambda self: self.people and any(self.sent.values()))
    @rule(data=st.data(), age=st.sampled_from([0, 0, 1, 2]))
    def come_back(self, data: st.DataObject, age: int) -> None:
        """Subscribe with a position that somebody saw: the last one of a topic, or one before that."""
        person = self.someone(data)
        topics = [one for one in TOPICS if len(self.sent[one]) > age and (person.address, one) not in self.durable]
        if not topics or not self.is_acting(person):
            return
        topic = data.draw(st.sampled_from(topics), label="topic")
        where = self.sent[topic][-1 - age]
        self.say(person, "hub:subscribe", {"topic": topic, "since": where})
        if topic not in person.patterns:
            self.tell(topic, "join", person)
            person.patterns[topic] = False
        (reply,) = self.check(person, "hub:subscribed")
        assert reply["payload"]["recovered"] is (age == 0), "a silent hole" if age else "nothing was missed"
        assert reply["payload"]["position"] == self.sent[topic][-1]

    @precondition(lambda self: self.people)
    @rule(data=st.data(), pattern=st.sampled_from(PATTERNS))
    def unsubscribe(self, data: st.DataObject, pattern: str) -> None:
        person = self.someone(data)
        if person.patterns and data.draw(st.sampled_from([True, False]), label="one of its own"):
            pattern = data.draw(st.sampled_from([*person.patterns]), label="pattern")
        self.unsubscribe_from(person, pattern)

    def unsubscribe_from(self, person: Person, pattern: str) -> None:
        effect = self.say(person, "hub:unsubscribe", {"topic": pattern})
        if not self.is_acting(person):
            self.check(person, "hub:error")
            return
        assert person.address is not None
        if pattern in person.patterns:
            self.end(person, pattern)
        if (person.address, pattern) in self.durable:
            assert isinstance(effect, Release)
            self.durable.remove((person.address, pattern))
            self.talk.hub.released(person.session, effect, self.talk.now)
        self.check(person, *([] if person.original else ["hub:unsubscribed"]))

    @precondition(lambda self: self.people)
    @rule(data=st.data())
    def unregister(self, data: st.DataObject) -> None:
        person = self.someone(data)
        effect = self.say(person, "hub:unregister")
        if not self.is_acting(person):
            self.check(person, "hub:error")
            return
        assert person.address is not None
        rested = {key for key in self.durable if key[0] == person.address}
        assert isinstance(effect, Release) is bool(rested)
        self.durable -= rested
        self.forget(person)
        if isinstance(effect, Release):
            assert {(effect.address, pattern) for pattern in effect.patterns} == rested
            self.talk.hub.released(person.session, effect, self.talk.now)
        self.check(person, *([] if person.original else ["hub:unregistered"]))

    @precondition(lambda self: self.people)
    @rule(data=st.data(), how=st.sampled_from(["drop", "disconnect", "stop reading"]))
    def go(self, data: st.DataObject, how: str) -> None:
        person = self.someone(data)
        if how == "drop":
            self.talk.hub.closed(person.session, self.talk.now)
            self.leave(person, None)
        elif how == "disconnect":
            self.say(person, "hub:disconnect")
            self.leave(person, close_codes.GOODBYE)
        else:
            for _ in range(MOST + 1):
                self.say(person, "ping")
            self.leave(person, close_codes.SLOW_READER)

    @precondition(lambda self: self.people)
    @rule(data=st.data(), pauses=st.booleans())
    def pause_or_resume(self, data: st.DataObject, pauses: bool) -> None:
        self.set_pause(self.someone(data), is_paused=pauses)

    def set_pause(self, person: Person, *, is_paused: bool) -> None:
        self.say(person, "hub:pause" if is_paused else "hub:resume")
        person.is_paused = is_paused
        if not is_paused:
            person.messages += person.held
            person.held = []
        self.check(person, "hub:flow")

    @precondition(lambda self: self.people)
    @rule(
        data=st.data(),
        topics=st.lists(st.sampled_from(TOPICS), min_size=1, max_size=4) | st.sampled_from(TOPICS).map(lambda one: [one] * 25),
    )
    def publish(self, data: st.DataObject, topics: list[str]) -> None:
        self.publish_to(self.someone(data), topics)

    @precondition(lambda self: self.people)
    @rule(data=st.data(), topics=st.lists(st.sampled_from(TOPICS), min_size=2, max_size=4))
    def publish_while_somebody_pauses(self, data: st.DataObject, topics: list[str]) -> None:
        paused = self.someone(data)
        self.set_pause(paused, is_paused=True)
        self.publish_to(self.someone(data), topics)
        if paused.end is None:
            self.set_pause(paused, is_paused=False)

    @precondition(lambda self: any(self.is_acting(person) for person in self.people))
    @rule(data=st.data(), topic=st.sampled_from(TOPICS), ends=st.booleans())
    def be_durable_for_a_while(self, data: st.DataObject, topic: str, ends: bool) -> None:
        """What is published meanwhile goes by way of the log, as does what would overtake it; other things do not."""
        person = data.draw(st.sampled_from([one for one in self.people if self.is_acting(one)]), label="person")
        self.publish_to(person, [topic])
        self.subscribe_to(person, topic, durable=True, watch=False)
        self.publish_to(person, [topic])
        if ends:
            self.unsubscribe_from(person, topic)
            self.publish_to(person, [topic])
            self.tail()
            self.publish_to(person, [topic])

    def publish_to(self, person: Person, topics: list[str]) -> None:
        for topic in topics:
            if person.end is not None:
                return  # it listens itself, pauses, and was full
            self.number += 1
            effect = self.say(person, "hub:publish", {"topic": topic, "type": "t", "data": self.number})
            if not self.is_acting(person):
                self.check(person, "hub:error")
                return
            # What is on its way through the log is not overtaken, though nobody may want it there any more.
            is_followed = any(message.topic == topic for message in self.writing)
            has_log = is_followed or any(topic in covered(pattern) for _, pattern in self.durable)
            assert isinstance(effect, Append) is has_log
            if isinstance(effect, Append):
                where = Position("all", self.offset)
                self.offset += 1
                self.writing.append(msgspec.structs.replace(effect.message, position=where))
                self.talk.hub.appended(person.session, effect, where, self.talk.now)
                self.check(person, "hub:published" if person.original else "hub:delivery_ack")
                continue
            last = self.sent[topic][-1] if self.sent[topic] else None
            reached = self.forwarded(topic, self.number, last)
            if person.end is None:
                (reply,) = self.check(person, "hub:published" if person.original else "hub:delivery_ack")
                assert reply["payload"]["subscriberCount"] == reached

    @rule()
    def tail(self) -> None:
        """The log brings what was written."""
        batch, self.writing = self.writing, []
        for message in batch:
            self.talk.bring(self.talk.everything, message)
            assert message.topic is not None
            assert message.position is not None
            self.forwarded(message.topic, int(message.data), None, message.position)
            self.everybody_has_heard_what_they_should()  # else so much may have been written that who reads is full too

    @rule(seconds=st.sampled_from([1, 1, 60, 300]), sweeps=st.booleans())
    def pass_time(self, seconds: int, sweeps: bool) -> None:
        self.talk.now += seconds * SECOND
        if sweeps:
            self.talk.hub.sweep(self.talk.now)
            self.expire()
            for person in [*self.people]:
                if self.talk.now - person.heard_at >= 600 * SECOND:
                    self.leave(person, close_codes.SILENT)

    # ── the same in plain lists ──────────────────────────────────────────────────────────────────────────────────────────

    def someone(self, data: st.DataObject) -> Person:
        """Mostly one who may do something."""
        acting = [person for person in self.people if self.is_acting(person)]
        others = [person for person in self.people if person not in acting]
        return data.draw(st.sampled_from([*acting, *others[:1]]), label="person")

    def say(self, person: Person, kind: str, payload: object = None) -> Any:
        """Any: each rule knows what it effects."""
        person.heard_at = self.talk.now
        return self.talk.say(person.session, kind, payload)

    def is_acting(self, person: Person) -> bool:
        return person.address is not None and self.talk.now < person.expires_at

    def is_reached(self, person: Person, topic: str) -> bool:
        """Whether a message to a topic goes to a session; what durable subscriptions bring has its own way."""
        return any(topic in covered(pattern) for pattern, durable in person.patterns.items() if not durable)

    def tell(self, pattern: str, event: str, person: Person) -> None:
        assert person.address is not None
        for other in self.people:
            if other is not person and pattern in other.watched:
                other.news.append((pattern, event, person.address))

    def end(self, person: Person, pattern: str) -> None:
        del person.patterns[pattern]
        person.watched.discard(pattern)
        self.tell(pattern, "leave", person)

    def forget(self, person: Person) -> None:
        for pattern in [*person.patterns]:
            self.end(person, pattern)
        person.address = None

    def expire(self) -> None:
        over = [person for person in self.people if person.address is not None and not self.is_acting(person)]
        for person in sorted(over, key=lambda one: (one.expires_at, one.address)):  # who is over hears nothing of those after it
            assert person.address is not None
            person.news.append((person.address, "expired", ""))
            self.forget(person)

    def leave(self, person: Person, close: Close | None) -> None:
        """A session ends: the last thing it hears is why, if that can be told."""
        session = person.session
        self.people.remove(person)
        self.forget(person)
        assert session.closing is close
        heard = self.talk.heard(session)
        goodbyes = [close_codes.REPLACED, close_codes.GOODBYE]
        assert (heard[-1:] and heard[-1]["type"] in {"hub:disconnect", "hub:disconnect_ack"}) or close not in goodbyes
        assert close is not close_codes.SLOW_READER or not heard
        self.talk.hub.closed(session, self.talk.now)
        self.gone.append(session)
        person.end = close

    def forwarded(self, topic: str, number: int, last: Frame | None, position: Position | None = None) -> int:
        """A message goes to everybody whom the reference says; returns how many that are. A full one is cut off."""
        reached = 0
        for person in [*self.people]:
            if self.is_reached(person, topic):
                message = {"topic": topic, "data": number, "to": person.address}
                if not person.is_paused:
                    person.messages.append(message)
                elif len(person.held) < MOST:
                    person.held.append(message)
                else:
                    self.leave(person, close_codes.SLOW_READER)
                    continue
                reached += 1
        found = position or self.talk.hub.state.positions.peek(topic)
        assert found is not None
        where = {"epoch": found.epoch, "offset": found.offset}
        if position is None:
            assert where == (after(last) if last is not None and last["epoch"] != "all" else where | {"offset": 0})
        assert where not in self.sent[topic], "no two messages have the same position"
        self.sent[topic].append(where)
        return reached

    def check(self, person: Person, *replies: str) -> list[Frame]:
        """Compare what a session heard with what it should have; returns the replies."""
        heard = self.talk.heard(person.session)
        told: list[Frame] = []
        messages: list[Frame] = []
        news: list[News] = []
        for frame in heard:
            payload = frame["payload"] if frame["type"] != "pong" else {}
            if frame["type"] == "t":
                messages.append({"topic": frame["metadata"]["topic"], "data": payload, "to": frame["to"]})
                where = {name: frame["metadata"][name] for name in ("epoch", "offset")}
                assert where in self.sent[frame["metadata"]["topic"]]
            elif frame["type"] == "hub:presence":
                news += [(payload["topic"], payload["event"], who) for who in payload["actors"]]
            elif payload.get("reason") == "expired":
                news.append((payload["actorAddress"], "expired", ""))
            else:
                told.append(frame)
        assert [frame["type"] for frame in told] == [*replies]
        assert messages == person.messages, "each message once, in order"
        assert sorted(news) == sorted(person.news)
        person.messages, person.news = [], []
        return told

    # ── what must never be false ─────────────────────────────────────────────────────────────────────────────────────────

    @invariant()
    def everybody_has_heard_what_they_should(self) -> None:
        for person in self.people:
            self.check(person)

    @invariant()
    def subscriptions_are_those_of_the_model(self) -> None:
        state = self.talk.hub.state
        for person in self.people:
            found = {name: one.durable for name, one in person.session.subscriptions.items()}
            assert found == person.patterns
        for topic in TOPICS:
            assert set(state.table.match(topic)) == {person.session for person in self.people if self.is_reached(person, topic)}
        assert self.pairs(state.durable.names(), state.durable.subscribers) == {(p, who) for who, p in self.durable}
        watched = {(pattern, person.session) for person in self.people for pattern in person.watched}
        assert self.pairs(state.watchers.names(), state.watchers.subscribers) == watched

    @invariant()
    def topics_are_listed_as_they_are(self) -> None:
        counts: dict[str, int] = {}
        for person in self.people:
            for pattern, durable in person.patterns.items():
                if not durable:
                    counts[pattern] = counts.get(pattern, 0) + 1
        for _, pattern in self.durable:
            counts[pattern] = counts.get(pattern, 0) + 1
        payload = self.talk.ask(self.observer, "hub:list_topics")["payload"]
        found = [(one["topic"], one["subscriberCount"]) for one in payload["topics"]]
        assert found == sorted(counts.items())

    @invariant()
    def nothing_is_left_of_those_who_went(self) -> None:
        state = self.talk.hub.state
        assert {*state.sessions} == {self.observer, *(person.session for person in self.people)}
        assert len(state.registry) == sum(person.address is not None for person in self.people)
        for session in self.gone:
            assert (len(session.outbox), len(session.held), session.actor) == (0, 0, None)
            assert (session.subscriptions, session.unacked) == ({}, {})
            assert not state.table.patterns_of(session)
            assert not state.watchers.patterns_of(session)
        for session, pattern in state.rested:
            assert pattern not in session.subscriptions or session.subscriptions[pattern].durable
        state.rested.clear()

    def pairs(self, names: list[tuple[str, int]], subscribers: Callable[[str], Iterable[Any]]) -> set[tuple[str, Any]]:
        """Any: addresses, or sessions."""
        return {(name, who) for name, _ in names for who in subscribers(name)}

    def teardown(self) -> None:
        if not hasattr(self, "talk"):
            return
        for person in [*self.people]:
            self.talk.hub.closed(person.session, self.talk.now)
            self.leave(person, None)
        state = self.talk.hub.state
        assert (len(state.table), len(state.watchers), len(state.registry)) == (0, 0, 0)
        assert [*state.sessions] == [self.observer]
        self.subscriptions_are_those_of_the_model()


TestSessions = SessionRules.TestCase
TestSessions.settings = effort(4)
