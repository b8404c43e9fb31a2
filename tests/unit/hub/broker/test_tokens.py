"""Penstock's own tokens as a way into the hub."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.access import Keyring, Principal, Verb
from penstock.hub.broker.tokens import KeyringVerifier, TokenIdentity
from penstock.hub.core.identity import ANONYMOUS, Identity
from penstock.hub.core.refusal import Refusal
from penstock.testing import ManualClock

ALL = frozenset(Verb)


def identity(*names: str, verbs: frozenset[Verb] = ALL, project: str | None = None) -> TokenIdentity:
    return TokenIdentity(principal=Principal("1", project, verbs, names or ("*",)), project="penstock")


def test_a_subscription_lies_within_the_names_of_its_token_as_a_whole(subtests: pytest.Subtests) -> None:
    rows: list[tuple[tuple[str, ...], str, bool]] = [
        (("*",), "#", True),
        (("orders",), "orders", True),
        (("orders",), "orders/eu", False),
        (("orders",), "orders/#", False),
        (("orders/*",), "orders/eu/new", True),
        (("orders/*",), "orders/#", False),
        (("orders/*",), "orders/+", True),
        (("orders/*",), "orders/+/new", True),
        (("orders/*",), "orders/+/#", True),
        (("orders/eu*",), "orders/+", False),
        (("orders", "orders/*"), "orders/#", True),
        (("orders*",), "orders/#", True),
        (("orders*",), "orders/eu/#", True),
        (("orders*",), "#", False),
        (("orders*",), "+", False),
        (("orders*",), "order/#", False),
        (("o*s/*",), "orders/+", False),
        (("?rders*",), "orders/#", False),
    ]
    for names, pattern, may in rows:
        with subtests.test(names=names, pattern=pattern):
            assert identity(*names).may_subscribe(pattern) is may


def test_verbs_are_kept_apart() -> None:
    writer, reader = identity(verbs=frozenset({Verb.PUBLISH})), identity(verbs=frozenset({Verb.CONSUME}))
    assert (writer.may_publish("a"), writer.may_subscribe("a"), writer.may_subscribe("#")) == (True, False, False)
    assert (reader.may_publish("a"), reader.may_subscribe("a"), reader.may_subscribe("#")) == (False, True, True)
    assert not identity("orders*").may_publish("other")
    assert (writer.may_send(), writer.may_broadcast(), reader.may_send(), reader.may_broadcast()) == (True, True, False, False)
    assert (identity("orders*").may_send(), identity("orders*").may_broadcast()) == (True, False)


def verified(keyring: Keyring, token: str | None, clock: ManualClock) -> Identity:
    return asyncio.run(KeyringVerifier(keyring, "penstock", clock).verify(token, None))


@pytest.mark.parametrize("word", ["", "Bearer ", "bearer  "])
def test_who_has_a_token_comes_in_until_it_ends(tmp_path: Path, word: str) -> None:
    keyring, clock = Keyring(tmp_path / "tokens.json"), ManualClock()
    ends = clock.now() + 60_000_000
    secret = keyring.create("page", clock.now(), verbs=[Verb.PUBLISH], patterns=["chat*"], expires=ends)

    who = verified(keyring, word + secret, clock)

    assert who.expires_at == ends
    assert who.address is None
    assert who.may_publish("chat/eu")
    assert not who.may_publish("orders")
    assert not who.may_subscribe("chat/eu")


def test_nobody_else_does_and_no_token_is_told(tmp_path: Path) -> None:
    keyring, clock = Keyring(tmp_path / "tokens.json"), ManualClock()
    other = keyring.create("other", clock.now(), project="elsewhere")
    over = keyring.create("over", clock.now(), expires=clock.now() + 1_000_000)
    clock.advance(2)
    unknown = other[:-4] + "AAAA"
    for token, reason in (
        (None, "missing_token"),
        ("Bearer ", "missing_token"),
        ("secret", "invalid_token"),
        (unknown, "invalid_token"),
        (over, "invalid_token"),
        (other, "wrong_project"),
    ):
        with pytest.raises(Refusal) as refused:
            verified(keyring, token, clock)
        assert (refused.value.code, refused.value.reason, refused.value.retryable) == ("unauthorized", reason, False)
        assert not token or token.strip() == "Bearer" or token not in str(refused.value) + str(refused.value.details)


def test_who_was_let_in_stays_until_the_token_is_revoked(tmp_path: Path) -> None:
    keyring, clock = Keyring(tmp_path / "tokens.json"), ManualClock()
    secret, other = keyring.create("page", clock.now()), keyring.create("other", clock.now())
    verifier = KeyringVerifier(keyring, "penstock", clock)
    page, stays = verified(keyring, secret, clock), verified(keyring, other, clock)
    verifier.check(page)

    [token] = [token for token in keyring.list() if token.name == "page"]
    Keyring(tmp_path / "tokens.json").revoke(token.id)  # as another process does
    clock.advance(2)

    with pytest.raises(Refusal) as refused:
        verifier.check(page)
    assert (refused.value.code, refused.value.reason, refused.value.retryable) == ("unauthorized", "invalid_token", False)
    verifier.check(stays)
    verifier.check(ANONYMOUS)  # who has not shown a token yet

    (tmp_path / "tokens.json").write_text("{")
    clock.advance(2)
    with pytest.raises(Refusal) as refused:
        verifier.check(stays)
    assert (refused.value.reason, refused.value.retryable) == ("tokens_unavailable", True)


def test_a_damaged_file_of_tokens_is_a_reason_to_come_again(tmp_path: Path) -> None:
    keyring, clock = Keyring(tmp_path / "tokens.json"), ManualClock()
    secret = keyring.create("page", clock.now())
    (tmp_path / "tokens.json").write_text("{")
    with pytest.raises(Refusal) as refused:
        verified(keyring, secret, clock)
    assert (refused.value.reason, refused.value.retryable) == ("tokens_unavailable", True)


def test_it_is_known_how_many_names_a_topic_is_held_against() -> None:
    assert [identity(*names).pattern_count for names in ((), ("a",), ("a", "b*"))] == [1, 1, 2]
