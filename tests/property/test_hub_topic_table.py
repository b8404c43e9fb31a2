"""The topic table against a plain set of subscriptions, and patterns against every topic of a small world."""

from __future__ import annotations

import re
from functools import cache
from itertools import product

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.hub.core.names import covers, is_pattern, is_topic, overlaps
from penstock.hub.core.topic_table import TopicTable
from tests.property.strategies import effort, patience

pytestmark = patience

WORDS = ("", "a", "b")
DEPTH = 4
WORLD = ["/".join(levels) for depth in range(1, DEPTH + 1) for levels in product(WORDS, repeat=depth)]
"""Every topic of so many levels. The empty one, which nobody may publish to, is among them: `/#` and `+` have it in common."""
TOPICS = [topic for topic in WORLD if topic]

# One level less than topics have, so that there are topics beyond the end of every pattern.
PATTERNS = [
    "/".join([*levels, last])
    for depth in range(DEPTH - 1)
    for levels in product([*WORDS, "+"], repeat=depth)
    for last in (*WORDS, "+", "#")
    if levels or last
]

patterns = st.sampled_from(PATTERNS)
subscribers = st.sampled_from(range(4))


@cache
def covered(pattern: str) -> frozenset[str]:
    """The reference: the topics of the world that a pattern covers, by a regular expression that spells it out."""
    if pattern == "#":
        return frozenset(WORLD)
    spelt = re.escape(pattern.removesuffix("/#")).replace(r"\+", "[^/]*")
    whole = re.compile(spelt + ("(/.*)?" if pattern.endswith("/#") else ""))
    return frozenset(topic for topic in WORLD if whole.fullmatch(topic))


class TableRules(RuleBasedStateMachine):
    """Any sequence of subscribing, unsubscribing and dropping; the model is a list of (pattern, subscriber), the oldest first."""

    def __init__(self) -> None:
        super().__init__()
        self.table: TopicTable[int] = TopicTable()
        self.model: list[tuple[str, int]] = []

    @rule(pattern=patterns, subscriber=subscribers)
    def subscribe(self, pattern: str, subscriber: int) -> None:
        is_new = (pattern, subscriber) not in self.model
        assert self.table.add(pattern, subscriber) is is_new
        if is_new:
            self.model.append((pattern, subscriber))

    @rule(pattern=patterns, subscriber=subscribers)
    def unsubscribe_anything(self, pattern: str, subscriber: int) -> None:
        was_there = (pattern, subscriber) in self.model
        assert self.table.remove(pattern, subscriber) is was_there
        if was_there:
            self.model.remove((pattern, subscriber))

    @rule(data=st.data())
    def unsubscribe(self, data: st.DataObject) -> None:
        if self.model:
            self.unsubscribe_anything(*data.draw(st.sampled_from(self.model), label="subscription"))

    @rule(subscriber=subscribers)
    def drop(self, subscriber: int) -> None:
        assert self.table.drop(subscriber) == [pattern for pattern, who in self.model if who == subscriber]
        self.model = [each for each in self.model if each[1] != subscriber]

    @invariant()
    def messages_reach_whom_the_reference_says(self) -> None:
        for topic in TOPICS:
            reached = list(self.table.match(topic))
            assert len(reached) == len(set(reached)) == self.table.count(topic)
            assert set(reached) == {who for pattern, who in self.model if topic in covered(pattern)}

    @invariant()
    def everybody_has_what_they_asked_for_in_order(self) -> None:
        for subscriber in range(4):
            expected = [pattern for pattern, who in self.model if who == subscriber]
            assert list(self.table.patterns_of(subscriber)) == expected

    @invariant()
    def names_are_those_that_have_subscribers(self) -> None:
        by_name: dict[str, list[int]] = {}
        for pattern, who in self.model:
            by_name.setdefault(pattern, []).append(who)
        expected = sorted((name, len(everybody)) for name, everybody in by_name.items())
        assert self.table.names() == expected
        assert len(self.table) == len(expected)
        for name, everybody in by_name.items():
            assert list(self.table.subscribers(name)) == everybody
        for prefix in ("a", "a/", "+", "/", "#"):
            some = [each for each in expected if each[0].startswith(prefix)]
            assert (self.table.names(prefix), self.table.total(prefix)) == (some, len(some))
            assert self.table.names(prefix, 1, 2) == some[1:3]

    def teardown(self) -> None:
        for subscriber in range(4):
            self.table.drop(subscriber)
        self.model = []
        self.messages_reach_whom_the_reference_says()
        self.names_are_those_that_have_subscribers()


TestTable = TableRules.TestCase
TestTable.settings = effort(2)


def test_the_world_is_made_of_topics_and_patterns() -> None:
    assert all(map(is_topic, TOPICS))
    assert all(map(is_pattern, PATTERNS))
    assert len(set(PATTERNS)) == len(PATTERNS)


def test_a_pattern_covers_the_topics_that_the_reference_says() -> None:
    for pattern in PATTERNS:
        assert {topic for topic in WORLD if covers(pattern, topic)} == covered(pattern), pattern


def test_a_pattern_covers_another_when_it_covers_all_its_topics() -> None:
    for one, other in product(PATTERNS, repeat=2):
        assert covers(one, other) is (covered(one) >= covered(other)), (one, other)


def test_patterns_overlap_when_they_have_a_topic_in_common() -> None:
    for one, other in product(PATTERNS, repeat=2):
        assert overlaps(one, other) is bool(covered(one) & covered(other)), (one, other)
