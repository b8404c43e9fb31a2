"""Who may do what: verbs, projects and patterns of names."""

import fnmatch
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.access import ANYONE, Principal, Verb
from penstock.errors import PermissionDenied

CI = Principal("a0b61e67b45f", "acme", frozenset({Verb.PUBLISH, Verb.CONSUME}), ("orders-*", "audit"))


@pytest.mark.parametrize(
    ("verb", "project", "name", "allowed"),
    [
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
    ],
)
def test_a_token_allows_its_verbs_in_its_project_on_its_names(verb: Verb, project: str, name: str | None, allowed: bool) -> None:
    assert CI.may(verb, project, name) is allowed
    if allowed:
        CI.check(verb, project, name)
    else:
        with pytest.raises(PermissionDenied):
            CI.check(verb, project, name)


@pytest.mark.parametrize("verb", Verb)
def test_anyone_may_do_everything_everywhere(verb: Verb) -> None:
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


@pytest.mark.parametrize(
    ("pattern", "name", "is_match"),
    [
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
    ],
)
def test_a_star_is_any_text_a_question_mark_any_character_all_else_itself(pattern: str, name: str, is_match: bool) -> None:
    assert matches(pattern, name) is is_match


@given(pattern=st.text("ab*?", max_size=10), name=st.text("ab", max_size=12))
def test_patterns_match_as_those_of_a_shell(pattern: str, name: str) -> None:
    assert matches(pattern, name) is fnmatch.fnmatchcase(name, pattern)


def test_a_pattern_full_of_stars_is_quick() -> None:
    assert not matches("*a" * 100 + "b", "a" * 1_000)  # with backtracking this would not end
