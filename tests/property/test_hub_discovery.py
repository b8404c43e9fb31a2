"""Discovery against Python's own regular expressions, and the registry against a plain list of registrations."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from fnmatch import translate
from typing import NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.durations import SECOND
from penstock.hub.core.discovery import glob_matcher, regex_matcher
from penstock.hub.core.messages import Discover, ListActors, Register, Renew
from penstock.hub.core.refusal import Refusal
from penstock.hub.core.registry import Actor, Registry
from penstock.hub.core.rules import DEFAULT_TTL, HubRules
from tests.property.strategies import effort, patience

pytestmark = patience

# --- patterns -----------------------------------------------------------------------------------------------------------------

atoms = st.sampled_from(r"a b c - 1 . \d \w \W \. \- [ab] [^ab] [a-c] [\d-] [^\w] ^ $ ()".split())
anchors = frozenset({"^", "$"})


def repeated(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    counts = st.one_of(
        st.sampled_from(["*", "+", "?", "*?", "+?", "??"]),
        st.tuples(st.integers(0, 3), st.integers(0, 2)).map(lambda pair: f"{{{pair[0]},{sum(pair)}}}"),
        st.integers(0, 3).map(lambda count: f"{{{count}}}"),
        st.integers(0, 3).map(lambda count: f"{{{count},}}"),
    )
    return st.tuples(parts.map(lambda part: f"({part})"), counts).map("".join)


patterns = st.recursive(
    atoms,
    lambda parts: st.one_of(
        st.lists(parts, max_size=4).map("".join),
        st.lists(parts, min_size=2, max_size=3).map("|".join),
        parts.map(lambda part: f"({part})"),
        parts.map(lambda part: f"(?:{part})"),
        repeated(parts),
        st.tuples(atoms.filter(lambda atom: atom not in anchors), st.sampled_from("*+?")).map("".join),
    ),
    max_leaves=8,
)
texts = st.text("aabbc1-. _", max_size=9)


def as_python(pattern: str) -> re.Pattern[str]:
    """To Python the anchor $ also comes before a last line's end, and letters are not only those of ASCII."""
    return re.compile(pattern.replace("$", r"\Z"), re.ASCII)


def understood(pattern: str) -> Callable[[str], bool] | Refusal:
    try:
        return regex_matcher(pattern)
    except Refusal as refusal:
        return refusal


@effort(8)
@given(pattern=patterns, some=st.lists(texts, min_size=1, max_size=8))
@example(pattern="(^a|b)*c$", some=["ac", "bc", "aac", "abc", ""])
@example(pattern="(a|^)*b(c|$)", some=["b", "ab", "xb", "bc", "bx"])
@example(pattern="(()|a)+b", some=["b", "ab", "aab", "a"])
@example(pattern="((a?){2,3}$|b)+", some=["", "aaaa", "ba", "ab"])
@example(pattern="$^", some=["", "a"])
def test_a_regular_expression_means_what_it_means_to_python(pattern: str, some: list[str]) -> None:
    for whole in (pattern, f"^(?:{pattern})$"):  # anywhere, where little is needed for a match, and from end to end
        check_against_python(whole, some)


def check_against_python(pattern: str, some: list[str]) -> None:
    matches, reference = understood(pattern), as_python(pattern)
    if isinstance(matches, Refusal):  # for its size, and for nothing else that can be written here
        assert "more than" in matches.message or "characters long" in matches.message
        return

    for text in [*some, *some]:  # the second time by what was learnt the first time
        assert matches(text) is (reference.search(text) is not None), (pattern, text)


@effort(4)
@given(pattern=st.text("ab*", max_size=5), some=st.lists(st.text("ab", max_size=5), min_size=1))
@example(pattern="ab*ba", some=["aba", "abba"])
def test_a_glob_means_what_it_means_to_a_shell(pattern: str, some: list[str]) -> None:
    matches, reference = glob_matcher(pattern), re.compile(translate(pattern))

    for text in some:
        assert matches(text) is (reference.match(text) is not None), (pattern, text)


@effort(8)
@given(pattern=st.text(max_size=40) | st.text(r"ab\[]()|*+?{},-^$.:<!=dwsDWSb0123", max_size=40), text=st.text(max_size=20))
def test_any_text_is_understood_or_refused(pattern: str, text: str) -> None:
    matches = understood(pattern)
    if isinstance(matches, Refusal):
        assert matches.reason == "invalid_pattern"
        assert matches.details["position"] in range(len(pattern) + 1)
        return
    assert matches(text) in {True, False}
    if not re.search(r"\[[^]]*\[|--|&&|~~|\|\|", pattern):  # Python warns of what it may once read otherwise
        with contextlib.suppress(re.error):
            assert matches(text) is (as_python_text(pattern).search(text) is not None)


def as_python_text(pattern: str) -> re.Pattern[str]:
    """The same for patterns in which anything may be escaped or within brackets."""
    parts = re.findall(r"\\.|\[(?:\\.|[^]\\])*\]|.", pattern, re.DOTALL)
    words = {"$": r"\Z", ".": "[^\n\r\u2028\u2029]", r"\s": SPACE, r"\S": "[^" + SPACE[1:]}
    return re.compile("".join(words.get(part, part) for part in parts), re.ASCII)


SPACE = "[\t-\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff]"

# --- the registry -------------------------------------------------------------------------------------------------------------

names = st.sampled_from(["@(a/a)", "@(a/b)", "@(b/a)", "@(b/b)", "@(c/c)"])
sessions = st.sampled_from(["one", "two", "three"])
ttls = st.none() | st.sampled_from([1_000, 1_001, 5_000, 60_000])
CAPACITY = 4


class Known(NamedTuple):
    """A registration as the model knows it."""

    session: str
    capabilities: tuple[str, ...]
    expires_at: int
    ttl: int
    version: int
    token: str


class RegistryLife(RuleBasedStateMachine):
    """A registry beside a model that has a dict and looks through all of it, whatever is asked."""

    @initialize()
    def begin(self) -> None:
        self.now = 1_000 * SECOND
        self.registry: Registry[str] = Registry(HubRules(max_actors=CAPACITY))
        self.known: dict[str, Known] = {}
        """Those too that ran out and were not swept."""
        self.tokens = 0

    def token(self) -> str:
        self.tokens += 1
        return f"token-{self.tokens}"

    def alive(self) -> dict[str, Known]:
        return {address: one for address, one in self.known.items() if one.expires_at > self.now}

    @rule(address=names, session=sessions, ttl=ttls, capabilities=st.sampled_from([("x",), ("y",), ("x", "y")]))
    def register(self, address: str, session: str, ttl: int | None, capabilities: tuple[str, ...]) -> None:
        token, before = self.token(), self.known.get(address)
        command = Register(address, capabilities, {"by": session}, ttl)
        if before is None and len(self.known) == CAPACITY:
            with pytest.raises(Refusal, match="Registry at capacity"):
                self.registry.register(command, session, token=token, now=self.now)
            return
        actor, displaced = self.registry.register(command, session, token=token, now=self.now)
        lasts = DEFAULT_TTL if ttl is None else ttl * 1_000
        version = before.version + 1 if before is not None and before.expires_at > self.now else 1
        self.known[address] = Known(session, capabilities, self.now + lasts, lasts, version, token)
        assert self.told(actor) == self.known[address]
        if before is None or before.session == session:
            assert displaced is None
        else:
            assert displaced is not None
            assert self.told(displaced) == before

    @rule(address=names, is_right=st.integers(0, 3).map(bool), ttl=ttls)
    def renew(self, address: str, is_right: bool, ttl: int | None) -> None:
        one, token = self.alive().get(address), self.token()
        if one is None or not is_right:
            with pytest.raises(Refusal) as caught:
                self.registry.renew(Renew("wrong", ttl=ttl), address, token=token, now=self.now)
            assert caught.value.code == ("unknown_actor" if one is None else "unauthorized")
            return
        actor = self.registry.renew(Renew(one.token, ttl=ttl), address, token=token, now=self.now)
        lasts = one.ttl if ttl is None else ttl * 1_000
        self.known[address] = one._replace(expires_at=self.now + lasts, ttl=lasts, token=token)
        assert self.told(actor) == self.known[address]

    @rule(address=names)
    def unregister(self, address: str) -> None:
        actor, one = self.registry._actors.get(address), self.known.pop(address, None)
        assert (actor and self.told(actor)) == one
        assert actor is None or self.registry.unregister(actor)

    @rule(span=st.sampled_from([1, 1_000, SECOND - 1, SECOND, 5 * SECOND, 60 * SECOND, DEFAULT_TTL]))
    def pass_time(self, span: int) -> None:
        self.now += span

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def pass_time_to_an_end(self, data: st.DataObject) -> None:
        ends = sorted(one.expires_at for one in self.known.values())
        self.now = max(self.now, data.draw(st.sampled_from(ends)) + data.draw(st.integers(-1, 1)))

    @rule()
    def sweep(self) -> None:
        gone = self.registry.expire(self.now)
        alive = self.alive()
        assert {actor.address for actor in gone} == self.known.keys() - alive.keys()
        assert [actor.expires_at for actor in gone] == sorted(actor.expires_at for actor in gone)
        self.known = alive

    @rule(capability=st.sampled_from(["x", "y", "z"]), session=sessions, pattern=st.sampled_from([None, "a/", "/b", "[bc]/"]))
    def discover(self, capability: str, session: str, pattern: str | None) -> None:
        query = Discover(pattern=pattern, capabilities=(capability,), metadata={"by": session})
        result = self.registry.discover(query, self.now, glob=False)
        assert [actor.actor_address for actor in result.actors] == sorted(
            address
            for address, one in self.alive().items()
            if capability in one.capabilities and one.session == session and re.search(pattern or "", address)
        )

    @invariant()
    def the_living_are_known_and_nobody_else(self) -> None:
        alive = self.alive()
        assert len(self.registry) == len(self.known)
        assert [actor.actor_address for actor in self.registry.list(ListActors(), self.now).actors] == sorted(alive)
        for address in ["@(a/a)", "@(a/b)", "@(b/a)", "@(b/b)", "@(c/c)"]:
            actor = self.registry.get(address, self.now)
            assert (actor and self.told(actor)) == alive.get(address)

    @staticmethod
    def told(actor: Actor[str]) -> Known:
        return Known(actor.session, actor.capabilities, actor.expires_at, actor.ttl, actor.version, actor.renewal_token)


TestRegistryLife = RegistryLife.TestCase
TestRegistryLife.settings = effort(1)
