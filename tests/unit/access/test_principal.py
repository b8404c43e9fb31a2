"""Who may do what: verbs, projects and patterns of names."""

import fnmatch
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.access import ANYONE, Action, Principal, Right, Verb
from penstock.errors import PermissionDenied

CI = Principal("a0b61e67b45f", "acme", frozenset({Verb.PUBLISH, Verb.CONSUME}), ("orders-*", "audit"))


def test_a_token_allows_its_verbs_in_its_project_on_its_names(subtests: pytest.Subtests) -> None:
    rows: list[tuple[Verb, str, str | None, bool]] = [
        (Verb.PUBLISH, "acme", "orders-eu", True),
        (Verb.CONSUME, "acme", "orders-", True),
        (Verb.PUBLISH, "acme", "audit", True),
        (Verb.PUBLISH, "acme", "audits", False),
        (Verb.PUBLISH, "acme", "my-orders-eu", False),
        (Verb.PUBLISH, "acme", "orders", False),
        (Verb.PUBLISH, "acme", "Orders-eu", False),
        (Verb.PUBLISH, "acme", "", False),
        (Verb.PUBLISH, "acme2", "orders-eu", False),
        (Verb.PUBLISH, "ACME", "orders-eu", False),
        (Verb.PUBLISH, "", "orders-eu", False),
        (Verb.MANAGE, "acme", "orders-eu", False),
        (Verb.READ, "acme", "orders-eu", False),
        (Verb.PUBLISH, "acme", None, True),
        (Verb.READ, "acme", None, False),
        (Verb.PUBLISH, "other", None, False),
    ]
    for verb, project, name, allowed in rows:
        with subtests.test(verb=verb, project=project):
            assert CI.may(verb, project, name) is allowed
            if allowed:
                CI.check(verb, project, name)
            else:
                with pytest.raises(PermissionDenied):
                    CI.check(verb, project, name)


def test_verbs_include_what_belongs_to_them_and_nothing_else(subtests: pytest.Subtests) -> None:
    rows: list[tuple[Verb, set[Action]]] = [
        (Verb.METRICS, set()),
        (Verb.READ, {Verb.METRICS}),
        (Verb.PUBLISH, set()),
        (Verb.MANAGE, set()),
        (Verb.CONSUME, {Right.SEE, Right.PUSH, Right.HOLD, Right.HOLD_EVENTS}),
    ]
    for verb, included in rows:
        with subtests.test(verb=verb):
            assert Principal("x", None, frozenset({verb})).verbs == {verb} | included
    # The event log is about all names, so a token for some of them does not hold it.
    assert not Principal("x", None, frozenset({Verb.CONSUME}), ("a*",)).may(Right.HOLD_EVENTS, "p")
    with pytest.raises(PermissionDenied, match="this token may not consume from topic t of project p"):
        Principal("x", None, frozenset({Verb.READ})).check(Right.SEE, "p", "t", kind="topic")


def test_anyone_may_do_everything_everywhere(subtests: pytest.Subtests) -> None:
    for verb in Verb:
        with subtests.test(verb=verb):
            assert ANYONE.may(verb, "any", "thing")
            assert ANYONE.may(verb, "any")


def test_a_token_without_a_project_works_in_every_project() -> None:
    everywhere = Principal("a0b61e67b45f", None, frozenset({Verb.READ}), ("a*",))

    assert everywhere.may(Verb.READ, "one", "abc")
    assert everywhere.may(Verb.READ, "two", "abc")
    assert not everywhere.may(Verb.READ, "two", "b")


def test_a_refusal_says_what_was_asked_and_survives_pickle() -> None:
    with pytest.raises(PermissionDenied) as caught:
        CI.check(Verb.MANAGE, "acme", "orders-eu", kind="topic")

    assert str(caught.value) == "this token may not manage topic orders-eu of project acme"
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    with pytest.raises(PermissionDenied, match="this token may not read project other"):
        CI.check(Verb.READ, "other")


def matches(pattern: str, name: str) -> bool:
    return Principal("x", None, frozenset(Verb), (pattern,)).may(Verb.READ, "p", name)


def test_a_star_is_any_text_a_question_mark_any_character_all_else_itself(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, str, bool]] = [
        ("*", "", True),
        ("a*b*c", "a-b-b-c", True),
        ("a*b*c", "a-c-b", False),
        ("*ab", "aab", True),
        ("*ab*ab", "ab", False),
        ("a?c", "abc", True),
        ("a?c", "ac", False),
        ("a.c", "abc", False),
        ("[ab]", "a", False),
        ("[ab]", "[ab]", True),
        ("a|b", "a", False),
        ("a\\", "a\\", True),
        ("**", "x\ny", True),
    ]
    for pattern, name, is_match in rows:
        with subtests.test(pattern=pattern, name=name):
            assert matches(pattern, name) is is_match


@given(pattern=st.text("ab*?", max_size=10), name=st.text("ab", max_size=12))
def test_patterns_match_as_those_of_a_shell(pattern: str, name: str) -> None:
    assert matches(pattern, name) is fnmatch.fnmatchcase(name, pattern)


def test_a_pattern_full_of_stars_is_quick() -> None:
    assert not matches("*a" * 100 + "b", "a" * 1_000)  # with backtracking this would not end
