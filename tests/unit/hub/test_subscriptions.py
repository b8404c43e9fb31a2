"""Subscriptions, in both dialects: how they begin and end, and what can be asked of topics."""

from __future__ import annotations

import pytest

from penstock.durations import SECOND
from penstock.hub.core.effects import Retain
from penstock.hub.core.identity import Identity
from penstock.hub.core.rules import Binding, HubRules
from penstock.hub.core.session import Session
from tests.unit.hub.talk import HUB, Frame, Talk, pick

A, B, P = "@(browser/a)", "@(browser/b)", "@(seag/publisher-1)"


@pytest.mark.parametrize("original", [False, True])
def test_who_subscribes_gets_an_id_and_where_the_topic_is(original: bool) -> None:
    talk = Talk(original=original)
    session = talk.connect(A)

    reply = talk.ask(session, "hub:subscribe", {"topic": "system/events", "durable": False}, id="s")

    assert pick(reply, "type", "from", "to", "correlationId") == {
        "type": "hub:subscribed",
        "from": HUB,
        "to": A,
        "correlationId": "s",
    }
    assert reply["payload"].pop("subscriptionId").startswith("sub-id-")
    assert reply["payload"] == {"topic": "system/events", "position": {"epoch": "E.1", "offset": -1}}


def test_to_subscribe_twice_is_the_same_as_once() -> None:
    talk = Talk()
    session, publisher = talk.connect(A), talk.connect(P)

    first, second = talk.subscribe(session, "x"), talk.subscribe(session, "x")

    assert first == second
    talk.publish(publisher, "x", 1)
    assert talk.messages(session) == [1]
    assert talk.hub.state.table.names() == [("x", 1)]


def test_a_message_comes_once_however_many_patterns_cover_it() -> None:
    talk = Talk()
    session, publisher = talk.connect(A), talk.connect(P)
    for pattern in ("x/y", "x/+", "x/#", "#", "+/y"):
        talk.subscribe(session, pattern)

    talk.publish(publisher, "x/y", 1)

    assert talk.messages(session) == [1]


def test_nothing_comes_from_before_the_subscription_and_names_are_case_sensitive() -> None:
    talk = Talk()
    session, publisher = talk.connect(A), talk.connect(P)
    talk.publish(publisher, "x", 1)

    assert talk.subscribe(session, "x")["position"]["offset"] == 0
    talk.publish(publisher, "X", 2)
    talk.publish(publisher, "x", 3)

    assert talk.messages(session) == [3]


def test_topics_that_are_refused(subtests: pytest.Subtests) -> None:
    topics: list[tuple[str | None, str, str]] = [
        (None, "topic is required", "missing_topic"),
        ("", "topic is required", "invalid_topic"),
        ("a.b", "topic is required", "invalid_topic"),
        ("a/*", "topic is required", "invalid_topic"),
        ("a/#/b", "topic is required", "invalid_topic"),
        ("a+/b", "topic is required", "invalid_topic"),
        ("x" * 257, "topic is required", "invalid_topic"),
        ("/".join("+" * 11), "topic is required", "too_many_levels"),
        ("hidden/#", "the token does not allow to subscribe to hidden/#", "not_permitted"),
    ]
    for topic, message, reason in topics:
        for kind in ("hub:subscribe", "hub:unsubscribe", "hub:presence"):
            with subtests.test(topic=topic, kind=kind):
                talk = Talk()
                session = talk.connect(A, identity=Identity(subscribe=("a/#", "x", "+/+/+/+/+/#")))
                if (kind, reason) == ("hub:unsubscribe", "not_permitted"):
                    return  # to end what one may not have is allowed

                error = talk.refused(session, kind, {"topic": topic})

                assert error["code"] == ("unauthorized" if reason == "not_permitted" else "internal_error")
                assert error["details"]["reason"] == reason
                assert reason == "not_permitted" or error["message"] == message
                assert session.subscriptions == {}


@pytest.mark.parametrize(("pattern", "is_allowed"), [("a", True), ("a/b/#", True), ("a/+", True), ("#", False), ("+/b", False)])
def test_a_pattern_has_to_be_within_what_one_may_see(pattern: str, is_allowed: bool) -> None:
    talk = Talk()
    session = talk.connect(A, identity=Identity(subscribe=("a/#",)))

    reply = talk.ask(session, "hub:subscribe", {"topic": pattern})

    assert (reply["type"] == "hub:subscribed") is is_allowed


def test_an_actor_has_so_many_subscriptions_those_that_rest_included() -> None:
    talk = Talk(HubRules(rate=None, max_subscriptions=3))
    session = talk.connect(A)
    talk.retain(session, "d/1")
    talk.retain(session, "d/2")
    talk.hub.closed(session, talk.now)
    session = talk.connect(A)
    talk.subscribe(session, "x")

    error = talk.refused(session, "hub:subscribe", {"topic": "y"})

    assert (error["code"], error["details"]["reason"], error["details"]["limit"]) == (
        "rate_limited",
        "too_many_subscriptions",
        3,
    )
    assert talk.subscribe(session, "x")["topic"] == "x"
    talk.retain(session, "d/1")
    assert talk.refused(session, "hub:subscribe", {"topic": "y"})["code"] == "rate_limited"
    talk.ask(session, "hub:unsubscribe", {"topic": "x"})
    talk.subscribe(session, "y")


# --- the end of a subscription ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("original", [False, True])
@pytest.mark.parametrize("topic", ["x", "x/#"])
@pytest.mark.parametrize("by_id", [False, True])
def test_who_unsubscribes_hears_no_more_and_an_empty_topic_vanishes(original: bool, topic: str, by_id: bool) -> None:
    talk = Talk(original=original)
    session, publisher = talk.connect(A), talk.connect(P)
    name = talk.subscribe(session, topic)["subscriptionId"]

    talk.say(session, "hub:unsubscribe", {"subscriptionId": name} if by_id else {"topic": topic}, id="u")

    replies = [pick(one, "type", "from", "correlationId", "payload") for one in talk.heard(session)]
    expected = {
        "type": "hub:unsubscribed",
        "from": HUB,
        "correlationId": "u",
        "payload": {"topic": topic, "unsubscribedAt": talk.ms},
    }
    assert replies == ([] if original else [expected])
    talk.publish(publisher, "x", 1)
    assert talk.messages(session) == []
    assert len(talk.hub.state.table) == 0


def test_to_end_what_never_began_is_no_error_and_ends_nothing_else() -> None:
    talk = Talk()
    session, other = talk.connect(A), talk.connect(B)
    talk.subscribe(session, "x/#")
    talk.subscribe(other, "x")

    assert talk.ask(session, "hub:unsubscribe", {"topic": "x"})["type"] == "hub:unsubscribed"

    assert talk.hub.state.table.names() == [("x", 1), ("x/#", 1)]


def test_a_subscription_of_another_session_cannot_be_ended_by_its_id() -> None:
    talk = Talk()
    session, other = talk.connect(A), talk.connect(B)
    name = talk.subscribe(other, "x")["subscriptionId"]

    error = talk.refused(session, "hub:unsubscribe", {"subscriptionId": name})

    assert (error["code"], error["message"], error["details"]["reason"]) == (
        "internal_error",
        "topic is required",
        "unknown_subscription",
    )
    assert talk.hub.state.table.count("x") == 1


def test_when_a_connection_closes_all_of_it_is_gone_and_those_who_watch_are_told() -> None:
    talk = Talk()
    session, watcher = talk.connect(A), talk.connect(B)
    for topic in ("x", "y/#", "z"):
        talk.subscribe(session, topic, presence=True)
    talk.subscribe(watcher, "z", presence=True)
    talk.forget(session)

    talk.hub.closed(session, talk.now)

    state = talk.hub.state
    assert (state.table.names(), state.watchers.names()) == ([("z", 1)], [("z", 1)])
    assert state.registry.get(A, talk.now) is None
    assert [*state.sessions] == [watcher]
    assert [one["payload"]["event"] for one in talk.heard(watcher)] == ["leave"]
    assert talk.heard(session) == []


# --- what can be asked of topics ----------------------------------------------------------------------------------------------


def test_topics_are_listed_by_name_with_how_many_subscribe_by_that_name() -> None:
    talk = Talk()
    one, other = talk.connect(A), talk.connect(B)
    for topic in ("a/1", "a/2", "b", "a/#"):
        talk.subscribe(one, topic)
    talk.subscribe(other, "a/1")
    asker = talk.meet()

    everything = talk.ask(asker, "hub:list_topics")
    assert everything["type"] == "hub:topic_list"
    assert everything["payload"] == {
        "topics": [
            {"topic": "a/#", "subscriberCount": 1},
            {"topic": "a/1", "subscriberCount": 2},
            {"topic": "a/2", "subscriberCount": 1},
            {"topic": "b", "subscriberCount": 1},
        ],
        "total": 4,
        "hasMore": False,
    }
    page = talk.ask(asker, "hub:list_topics", {"prefix": "a/", "limit": 1, "offset": 1})["payload"]
    assert page == {"topics": [{"topic": "a/1", "subscriberCount": 2}], "total": 3, "hasMore": True}
    assert talk.ask(asker, "hub:list_topics", {"prefix": "none"})["payload"] == {"topics": [], "total": 0, "hasMore": False}
    error = talk.refused(asker, "hub:list_topics", {"prefix": "x" * 257})
    assert (error["code"], error["details"]["reason"]) == ("internal_error", "invalid_topic")


def test_who_may_not_see_everything_is_shown_the_topics_that_its_token_covers() -> None:
    talk = Talk()
    one, other = talk.connect(A), talk.connect(B)
    for topic in ("a", "a/1", "a/#", "#", "b/2", "+"):
        talk.subscribe(one, topic)
    for topic in ("a/1", "a/2", "c"):
        talk.retain(other, topic)
    asker = talk.meet(identity=Identity(subscribe=("a/#", "b/+")))

    found = talk.ask(asker, "hub:list_topics")["payload"]
    assert [(one["topic"], one["subscriberCount"]) for one in found["topics"]] == [
        *[("a", 1), ("a/#", 1), ("a/1", 2), ("a/2", 1), ("b/2", 1)]
    ]
    assert (found["total"], found["hasMore"]) == (5, False)
    page = talk.ask(asker, "hub:list_topics", {"prefix": "a/", "limit": 1, "offset": 1})["payload"]
    assert page == {"topics": [{"topic": "a/1", "subscriberCount": 2}], "total": 3, "hasMore": True}
    assert talk.ask(talk.meet(identity=Identity(subscribe=())), "hub:list_topics")["payload"]["total"] == 0


@pytest.mark.parametrize(("limit", "most", "patterns"), [("MAX_LOOKED_AT", 2, ("a/#",)), ("MAX_COMPARED", 4, ("a/#", "b/#"))])
def test_no_more_topics_are_held_against_a_token_than_can_be(
    limit: str, most: int, patterns: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"penstock.hub.core.subscriptions.{limit}", most)
    talk = Talk()
    one = talk.connect(A)
    for topic in ("a/1", "a/2"):
        talk.subscribe(one, topic)
    talk.retain(one, "b")
    asker = talk.meet(identity=Identity(subscribe=patterns))

    error = talk.refused(asker, "hub:list_topics")
    assert (error["code"], error["details"]["reason"], error["details"]["limit"]) == ("rate_limited", "too_many_topics", 2)
    assert talk.ask(asker, "hub:list_topics", {"prefix": "a/"})["payload"]["total"] == 2
    assert talk.ask(talk.meet(), "hub:list_topics")["payload"]["total"] == 3  # who may see everything needs no such look


@pytest.mark.parametrize(
    ("identity", "may"),
    [
        (Identity(), True),
        (Identity(subscribe=("a/#",)), True),
        (Identity(subscribe=("b",)), False),
        (Identity(subscribe=("b",), address=A), True),
    ],
)
def test_a_token_that_names_no_actor_ends_only_durable_subscriptions_it_could_have_begun(identity: Identity, may: bool) -> None:
    talk = Talk()
    talk.retain(talk.connect(A), "a/1")
    stranger = talk.connect(A, identity=identity)

    if may:
        assert talk.release(stranger, "hub:unsubscribe", {"topic": "a/1"}).patterns == ("a/1",)
    else:
        assert talk.refused(stranger, "hub:unsubscribe", {"topic": "a/1"})["details"]["reason"] == "not_permitted"
        assert talk.ask(stranger, "hub:unregister")["type"] == "hub:unregistered"
    assert ("a/1" in talk.hub.state.durable.patterns_of(A)) is not may


def test_nothing_is_kept_for_a_durable_subscription_that_expired() -> None:
    talk = Talk()
    publisher = talk.connect(P)
    talk.hub.closed(_retained(talk, "a"), talk.now)
    assert talk.hub.state.log_of("a") is talk.everything

    talk.hub.expired(A, "a")

    assert talk.publish(publisher, "a") is None


def test_a_durable_subscription_does_not_expire_under_one_who_comes_back_for_it() -> None:
    talk = Talk()
    publisher = talk.connect(P)
    talk.hub.closed(_retained(talk, "a"), talk.now)
    back = talk.connect(A)
    effect = talk.say(back, "hub:subscribe", {"topic": "a", "durable": True})
    assert isinstance(effect, Retain)

    talk.hub.expired(A, "a")

    assert talk.hub.retained(back, effect, talk.now)
    talk.append(publisher, "a")


def _retained(talk: Talk, topic: str) -> Session:
    session = talk.connect(A)
    talk.retain(session, topic)
    return session


@pytest.mark.parametrize("limit", [1, 2, 3, 10])
def test_durable_subscriptions_are_listed_among_the_others_page_by_page(limit: int) -> None:
    talk = Talk()
    session, other = talk.connect(A), talk.connect(B)
    for topic in ("a", "c", "e", "g"):
        talk.subscribe(session, topic)
    for topic in ("b", "c", "d", "h"):
        talk.retain(other, topic)
    talk.hub.closed(other, talk.now)
    pages: list[Frame] = []
    is_over = False
    while not is_over:
        page = talk.ask(session, "hub:list_topics", {"limit": limit, "offset": len(pages)})["payload"]
        pages += page["topics"]
        assert (page["total"], page["hasMore"]) == (7, len(pages) < 7)
        is_over = not page["hasMore"]

    assert [(one["topic"], one["subscriberCount"]) for one in pages] == [
        *[("a", 1), ("b", 1), ("c", 2), ("d", 1), ("e", 1), ("g", 1), ("h", 1)]
    ]


def test_what_is_known_of_a_topic() -> None:
    log = Binding("orders/#", "shop.orders", epoch="L", next_offset=5)
    talk = Talk(bindings=[log])
    one, other = talk.connect(A), talk.connect(B)
    talk.subscribe(one, "plain")
    talk.subscribe(other, "#")
    talk.retain(other, "plain")
    asker = talk.meet()

    def facts(topic: str) -> Frame:
        reply = talk.ask(asker, "hub:topic_info", {"topic": topic})
        assert reply["type"] == "hub:topic_info_response"
        found: Frame = reply["payload"]
        return found

    assert facts("orders/eu") == {
        "topic": "orders/eu",
        "subscriberCount": 1,
        "exactCount": 0,
        "history": True,
        "position": {"epoch": "L", "offset": 4},
        "boundTo": "shop.orders",
    }
    assert facts("plain") == {
        "topic": "plain",
        "subscriberCount": 3,
        "exactCount": 2,
        "history": False,
        "position": {"epoch": "E.1", "offset": -1},
    }
    assert facts("unheard") == {"topic": "unheard", "subscriberCount": 1, "exactCount": 0, "history": False}
    error = talk.refused(asker, "hub:topic_info", {"topic": "a/#"})
    assert (error["message"], error["details"]["reason"]) == ("topic is required", "wildcard_topic")


@pytest.mark.parametrize(("topic", "is_told"), [("out", True), ("in", True), ("none", False)])
def test_what_is_known_of_a_topic_is_for_those_who_may_use_it(topic: str, is_told: bool) -> None:
    talk = Talk()
    asker = talk.meet(identity=Identity(publish=("in",), subscribe=("out",)))

    reply = talk.ask(asker, "hub:topic_info", {"topic": topic})

    assert (reply["type"] == "hub:topic_info_response") is is_told
    assert is_told or reply["payload"]["details"]["reason"] == "not_permitted"


# --- presence -----------------------------------------------------------------------------------------------------------------


def test_those_who_watch_are_told_who_joins_and_leaves() -> None:
    talk = Talk()
    watcher, other, elsewhere = talk.connect(A), talk.connect(B), talk.connect(P)
    talk.subscribe(watcher, "room", presence=True)
    talk.subscribe(elsewhere, "room/1", presence=True)

    talk.subscribe(other, "room")
    talk.subscribe(other, "room")
    talk.subscribe(other, "#")
    talk.ask(other, "hub:unsubscribe", {"topic": "room"})

    news = talk.heard(watcher)
    assert [pick(one, "type", "from", "to", "payload") for one in news] == [
        {
            "type": "hub:presence",
            "from": HUB,
            "to": A,
            "payload": {"topic": "room", "event": event, "actors": [B], "timestamp": talk.ms},
        }
        for event in ("join", "leave")
    ]
    assert talk.heard(elsewhere) == []


def test_those_who_watch_are_told_of_each_other_and_not_of_themselves() -> None:
    talk = Talk()
    first, second = talk.connect(A), talk.connect(B)
    talk.subscribe(first, "room", presence=True)
    talk.subscribe(second, "room")
    talk.subscribe(second, "room", presence=True)
    talk.retain(second, "room")

    talk.hub.closed(first, talk.now)

    assert [one["payload"]["actors"] for one in talk.heard(second)] == [[A]]


def test_who_stops_to_subscribe_stops_to_watch() -> None:
    talk = Talk()
    watcher, other = talk.connect(A), talk.connect(B)
    talk.subscribe(watcher, "room")
    talk.subscribe(watcher, "room", presence=True)
    talk.ask(watcher, "hub:unsubscribe", {"topic": "room"})

    talk.subscribe(other, "room")

    assert talk.heard(watcher) == []


@pytest.mark.parametrize("original", [False, True])
def test_who_is_there_can_be_asked(original: bool) -> None:
    talk = Talk()
    talk.subscribe(talk.connect(B), "room")
    talk.subscribe(talk.connect(A), "room")
    talk.subscribe(talk.connect(P), "#")

    reply = talk.ask(talk.meet(original=original), "hub:presence", {"topic": "room"})

    assert pick(reply, "type", "payload") == {
        "type": "hub:presence",
        "payload": {"topic": "room", "event": "list", "actors": [A, B], "timestamp": talk.ms},
    }


def test_a_durable_subscriber_is_there_while_it_is_connected_to_its_subscription() -> None:
    talk = Talk()
    watcher, durable = talk.connect(A), talk.connect(B, ttl=60_000)
    talk.subscribe(watcher, "room", presence=True)

    def present() -> list[str]:
        found: list[str] = talk.ask(watcher, "hub:presence", {"topic": "room"})["payload"]["actors"]
        return found

    def told() -> list[str]:
        return [one["payload"]["event"] for one in talk.heard(watcher)]

    talk.retain(durable, "room")
    assert (told(), present()) == (["join"], [A, B])
    talk.hub.closed(durable, talk.now)
    assert (told(), present()) == (["leave"], [A])
    durable = talk.connect(B, ttl=60_000)
    assert (told(), present()) == ([], [A])
    talk.retain(durable, "room")
    assert (told(), present()) == (["join"], [A, B])
    talk.later(60 * SECOND)
    talk.say(watcher, "ping")
    assert [one["payload"]["event"] for one in talk.heard(watcher) if one["type"] == "hub:presence"] == ["leave"]
    assert present() == [A]


def test_durable_subscriptions_are_bounded_for_all_actors_together_and_an_old_one_resumes() -> None:
    talk = Talk(HubRules(rate=None, max_durable=1))
    first, second = talk.connect(A), talk.connect(B)
    talk.retain(first, "x")

    error = talk.refused(second, "hub:subscribe", {"topic": "y", "durable": True})
    talk.hub.closed(first, talk.now)
    talk.retain(talk.connect(A), "x")

    assert (error["code"], error["details"]["reason"], error["details"]["limit"]) == ("rate_limited", "too_many_durable", 1)
    assert talk.hub.state.durable.pairs == 1
