"""What an actor may publish and subscribe to, how that is read from the claims of a token, and which claims are refused."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.durations import SECOND
from penstock.hub.core.identity import ANONYMOUS, LEEWAY, Identity, TokenRequirements, identity_of, parse_claims
from penstock.hub.core.refusal import Refusal
from tests.unit.hub.issuers import NOW, claims


def test_one_may_publish_to_what_ones_patterns_cover(subtests: pytest.Subtests) -> None:
    rows: list[tuple[tuple[str, ...] | None, str, bool]] = [
        (None, "orders", True),
        ((), "orders", False),
        (("orders",), "orders", True),
        (("orders",), "orders/eu", False),
        (("orders",), "Orders", False),
        (("orders/+",), "orders/eu", True),
        (("orders/+",), "orders", False),
        (("orders/+",), "orders/eu/new", False),
        (("orders/#",), "orders", True),
        (("orders/#",), "orders/eu/new", True),
        (("orders/#",), "orders-eu", False),
        (("chat", "orders/#"), "orders/eu", True),
        (("#",), "anything/at/all", True),
        (("+/eu",), "orders/eu", True),
        (("+/eu",), "orders/us", False),
    ]
    for allowed, topic, may in rows:
        with subtests.test(allowed=allowed, topic=topic):
            assert Identity(publish=allowed).may_publish(topic) is may


def test_one_may_subscribe_to_no_more_than_a_pattern_of_ones_own_covers(subtests: pytest.Subtests) -> None:
    rows: list[tuple[tuple[str, ...] | None, str, bool]] = [
        (None, "#", True),
        ((), "orders", False),
        (("orders",), "orders", True),
        (("orders",), "orders/+", False),
        (("orders",), "orders/#", False),
        (("orders",), "#", False),
        (("orders",), "+", False),
        (("orders/+",), "orders/+", True),
        (("orders/+",), "orders/eu", True),
        (("orders/+",), "orders/#", False),
        (("orders/+",), "+/+", False),
        (("orders/#",), "orders/#", True),
        (("orders/#",), "orders/+", True),
        (("orders/#",), "orders/+/new", True),
        (("orders/#",), "orders/eu/#", True),
        (("orders/#",), "orders", True),
        (("orders/#",), "+/eu", False),
        (("orders/#",), "#", False),
        (("+/eu",), "orders/eu", True),
        (("+/eu",), "+/eu", True),
        (("+/eu",), "+/+", False),
        (("+/eu",), "orders/#", False),
        (("#",), "#", True),
        (("#",), "+/#", True),
        (("+/#",), "#", True),  # a topic has one level at least
        (("orders/eu", "orders/us"), "orders/+", False),
    ]
    for allowed, wanted, may in rows:
        with subtests.test(allowed=allowed, wanted=wanted):
            assert Identity(subscribe=allowed).may_subscribe(wanted) is may


def test_what_one_may_publish_says_nothing_of_what_one_may_see() -> None:
    writer, reader = Identity(publish=("orders",), subscribe=()), Identity(publish=(), subscribe=("orders",))

    assert (writer.may_publish("orders"), writer.may_subscribe("orders")) == (True, False)
    assert (reader.may_publish("orders"), reader.may_subscribe("orders")) == (False, True)


def test_anybody_is_nobody_in_particular_and_may_do_all() -> None:
    assert (ANONYMOUS.address, ANONYMOUS.expires_at) == (None, None)
    assert ANONYMOUS.may_publish("orders")
    assert ANONYMOUS.may_subscribe("#")


def test_an_identity_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        ANONYMOUS.address = "@(a/b)"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("publish", "sends", "broadcasts"),
    [(None, True, True), ((), False, False), (("orders/#",), True, False)],
    ids=["anything", "nothing", "some topics"],
)
def test_who_may_publish_something_may_send_and_who_may_publish_anything_may_broadcast(
    publish: tuple[str, ...] | None, sends: bool, broadcasts: bool
) -> None:
    identity = Identity(publish=publish)

    assert (identity.may_send(), identity.may_broadcast()) == (sends, broadcasts)


@pytest.mark.parametrize(("subscribe", "breadth"), [(None, 1), ((), 1), (("a",), 1), (("a", "b/#"), 2)])
def test_it_is_known_how_many_patterns_a_topic_is_held_against(subscribe: tuple[str, ...] | None, breadth: int) -> None:
    assert Identity(subscribe=subscribe).pattern_count == breadth


DAY = 86_400
DEMANDS = TokenRequirements(issuer="signal-hub")


def identity(now: float = NOW, demands: TokenRequirements = DEMANDS, **changes: object) -> Identity:
    return identity_of(parse_claims(json.dumps(claims(**changes)).encode()), demands, int(now * SECOND))


def refusal(now: float = NOW, demands: TokenRequirements = DEMANDS, **changes: object) -> Refusal:
    with pytest.raises(Refusal) as caught:
        identity(now, demands, **changes)
    assert caught.value.code == "unauthorized"
    assert caught.value.resolution
    return caught.value


def test_a_right_token_says_who_its_bearer_is_and_what_it_may_do() -> None:
    found = identity(publish=["orders/+"], subscribe=["orders/#", "chat"])

    assert found == Identity(
        address="@(browser/ui)",
        publish=("orders/+",),
        subscribe=("orders/#", "chat"),
        expires_at=(NOW + 3_600) * SECOND,
    )


def test_the_actor_is_that_of_actor_id_or_else_of_sub(subtests: pytest.Subtests) -> None:
    rows: list[tuple[dict[str, Any], str]] = [
        ({"actorId": "browser/client-ui"}, "@(browser/client-ui)"),
        ({"actorId": "@(browser/client-ui)"}, "@(browser/client-ui)"),
        ({"actorId": None, "sub": "service/billing"}, "@(service/billing)"),
        ({"actorId": None, "sub": "@(service/billing)"}, "@(service/billing)"),
        ({"actorId": "browser/ui", "sub": "user-17"}, "@(browser/ui)"),
        ({"actorId": "browser/ui", "sub": "service/other"}, "@(browser/ui)"),
    ]
    for changes, address in rows:
        with subtests.test(changes=changes):
            assert identity(**changes).address == address


def test_a_token_that_says_nothing_of_topics_allows_all_and_an_empty_list_allows_none() -> None:
    silent, strict = identity(), identity(publish=[], subscribe=[])

    assert (silent.publish, silent.subscribe) == (None, None)
    assert silent.may_publish("orders")
    assert silent.may_subscribe("#")
    assert not strict.may_publish("orders")
    assert not strict.may_subscribe("orders")


def test_claims_that_let_nobody_in(subtests: pytest.Subtests) -> None:
    rows: list[tuple[dict[str, Any], str, str]] = [
        ({"iss": "other"}, "wrong_issuer", "the token was issued by 'other', expected 'signal-hub'"),
        ({"iss": None}, "wrong_issuer", "issued by None"),
        ({"iss": "x" * 500}, "wrong_issuer", "xxx..."),
        ({"exp": None}, "missing_claim", "the token has no exp"),
        ({"iat": None}, "missing_claim", "the token has no iat"),
        ({"exp": NOW - 30}, "expired_token", "the token has expired"),
        ({"exp": 0}, "expired_token", "the token has expired"),
        ({"iat": NOW - DAY - 30, "exp": NOW + DAY}, "token_too_old", "issued more than 86400 s ago"),
        ({"iat": NOW + 31}, "token_not_yet_valid", "valid in the future"),
        ({"nbf": NOW + 31}, "token_not_yet_valid", "valid in the future"),
        ({"actorId": None}, "wrong_actor", "the token names no actor"),
        ({"actorId": None, "sub": "user-17"}, "wrong_actor", "the token names 'user-17', expected an actor"),
        ({"actorId": "", "sub": "service/billing"}, "wrong_actor", "names ''"),
        ({"actorId": "Browser/UI"}, "wrong_actor", "names 'Browser/UI'"),
        ({"actorId": "a/b/c"}, "wrong_actor", "names 'a/b/c'"),
        ({"actorId": "@(a/b"}, "wrong_actor", "names '@(a/b'"),
        ({"actorId": "a/b\n"}, "wrong_actor", "names"),
        ({"actorId": "a/" + "b" * 300}, "wrong_actor", "names"),
        ({"actorId": "cloudflare/signal-hub"}, "wrong_actor", "names"),
        ({"actorId": "@(broadcast/all)"}, "wrong_actor", "names"),
        ({"publish": ["ok", "a b"]}, "malformed_permissions", "publish of the token has 'a b'"),
        ({"publish": ["#/a"]}, "malformed_permissions", "publish of the token has '#/a'"),
        ({"subscribe": ["a+"]}, "malformed_permissions", "subscribe of the token has 'a+'"),
        ({"subscribe": ["*"]}, "malformed_permissions", "subscribe of the token has '*'"),
        ({"subscribe": "orders/#"}, "malformed_claims", "Expected `array`, got `str` - at `$.subscribe`"),
        ({"publish": [1]}, "malformed_claims", "at `$.publish[0]`"),
        ({"publish": [""]}, "malformed_claims", "at `$.publish[0]`"),
        ({"publish": {"a": 1}}, "malformed_claims", "at `$.publish`"),
        ({"exp": "tomorrow"}, "malformed_claims", "at `$.exp`"),
        ({"exp": True}, "malformed_claims", "at `$.exp`"),
        ({"exp": -1}, "malformed_claims", "at `$.exp`"),
        ({"exp": NOW * 1000}, "malformed_claims", "at `$.exp`"),
        ({"exp": 1e308}, "malformed_claims", "at `$.exp`"),
        ({"exp": float("inf")}, "malformed_claims", "cannot be read"),
        ({"iat": [NOW]}, "malformed_claims", "at `$.iat`"),
        ({"actorId": 7}, "malformed_claims", "at `$.actorId`"),
        ({"iss": ["signal-hub"]}, "malformed_claims", "at `$.iss`"),
    ]
    for changes, reason, said in rows:
        with subtests.test(changes=changes):
            found = refusal(**changes)

            assert found.reason == reason
            assert said in found.message
            assert len(found.message) < 400


def test_null_is_no_list_of_topics() -> None:
    with pytest.raises(Refusal, match="publish"):
        parse_claims(json.dumps({**claims(), "publish": None}).encode())


def test_what_is_no_object_is_refused(subtests: pytest.Subtests) -> None:
    rows: list[bytes] = [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"\xff",
        b'{"iss":"\xff"}',
        b"[" * 100_000,
        b'{"iss":"\\ud800"}',
        b"{}x",
    ]
    for payload in rows:
        with subtests.test(payload=payload):
            with pytest.raises(Refusal) as caught:
                parse_claims(payload)
            assert caught.value.reason == "malformed_claims"


def test_clocks_may_differ_by_the_leeway(subtests: pytest.Subtests) -> None:
    for name in ("exp", "iat", "nbf"):
        with subtests.test(name=name):
            edge: dict[str, Any] = {"exp": NOW - 29.999, "iat": NOW + 30, "nbf": NOW + 30}

            assert identity(**{name: edge[name]}).address == "@(browser/ui)"


def test_a_session_lasts_as_long_as_its_token_is_good_and_never_longer_than_it_may_be_old() -> None:
    assert identity(exp=NOW + 2).expires_at == (NOW + 2) * SECOND
    assert identity(exp=NOW + 10 * DAY).expires_at == (NOW + DAY) * SECOND
    hour = TokenRequirements(issuer="signal-hub", max_age=3_600 * SECOND)
    assert identity(demands=hour, iat=NOW - 3_629, exp=NOW + 60).expires_at == (NOW - 29) * SECOND + LEEWAY
    assert refusal(demands=hour, iat=NOW - 3_630, exp=NOW + 60).reason == "token_too_old"


def test_a_token_that_only_the_leeway_lets_in_lasts_as_long_as_that() -> None:
    assert identity(exp=NOW - 29).expires_at == (NOW - 29) * SECOND + LEEWAY
    assert identity(exp=NOW).expires_at == NOW * SECOND + LEEWAY


def test_an_expired_token_is_told_since_when() -> None:
    assert refusal(exp=NOW - 60).details == {"reason": "expired_token", "retryable": False, "expiredAt": (NOW - 60) * 1000}


def test_the_audience_counts_if_one_is_asked_for(subtests: pytest.Subtests) -> None:
    rows: list[tuple[Any, bool]] = [
        ("hub", True),
        (["other", "hub"], True),
        ("other", False),
        ([], False),
        (None, False),
        ("hubs", False),
    ]
    for audience, is_for in rows:
        with subtests.test(audience=audience):
            demands = TokenRequirements(issuer="signal-hub", audience="hub")

            if is_for:
                assert identity(demands=demands, aud=audience).address == "@(browser/ui)"
            else:
                assert refusal(demands=demands, aud=audience).reason == "wrong_audience"
            assert identity(aud=audience).address == "@(browser/ui)"


@given(
    st.dictionaries(
        st.sampled_from(["iss", "aud", "exp", "iat", "nbf", "sub", "actorId", "capabilities", "publish", "subscribe", "other"]),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.lists(st.text(max_size=9), max_size=3),
    )
)
def test_any_claims_give_an_identity_that_has_not_ended_or_a_refusal(changes: dict[str, Any]) -> None:
    payload = json.dumps({**claims(), **changes}).encode()
    try:
        found = identity_of(parse_claims(payload), DEMANDS, NOW * SECOND)
    except Refusal:
        return
    assert found.address is not None
    assert found.expires_at is not None
    assert NOW * SECOND < found.expires_at <= (NOW + DAY) * SECOND + 2 * LEEWAY
