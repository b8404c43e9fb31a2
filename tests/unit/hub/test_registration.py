"""Who is known by which address, in both dialects: register, take over, renew, unregister, expire, discover."""

from __future__ import annotations

import pytest

from penstock.durations import SECOND
from penstock.hub.core import close_codes
from penstock.hub.core.identity import Identity
from penstock.hub.core.refusal import Refusal
from penstock.hub.core.rules import HubRules
from penstock.hub.core.session import State
from tests.unit.hub.talk import HUB, Frame, Talk, pick

A, B = "@(browser/a)", "@(browser/b)"


def registration(address: str = A, **more: object) -> Frame:
    return {"actorAddress": address, "capabilities": ["chat"], **more}


@pytest.mark.parametrize(
    ("original", "ttl", "milliseconds"),
    [
        (False, {}, 300_000),
        (False, {"ttl": 1000}, 1000),
        (False, {"ttl": 3_600_000}, 3_600_000),
        (True, {}, 300_000),
        (True, {"ttlSeconds": 60}, 60_000),
        (True, {"ttl": 5000}, 5000),
        (True, {"ttl": 5000, "ttlSeconds": 60}, 60_000),
    ],
)
def test_who_registers_gets_a_token_to_renew_it(original: bool, ttl: Frame, milliseconds: int) -> None:
    talk = Talk(original=original)
    session = talk.meet()

    reply = talk.ask(session, "hub:register", registration(**ttl), id="r")

    assert pick(reply, "type", "from", "to", "correlationId", "payload") == {
        "type": "hub:registered",
        "from": HUB,
        "to": A,
        "correlationId": "r",
        "payload": {
            "actorAddress": A,
            "renewalToken": f"renewal-id-{3 if original else 2}",
            "expiresAt": talk.ms + milliseconds,
            "version": 1,
        },
    }


def test_to_register_again_is_the_next_version_and_keeps_subscriptions() -> None:
    talk = Talk()
    session = talk.connect(A)
    talk.subscribe(session, "x")

    reply = talk.ask(session, "hub:register", registration())

    assert reply["payload"]["version"] == 2
    assert [*session.subscriptions] == ["x"]
    assert len(talk.hub.state.registry) == 1


@pytest.mark.parametrize("original", [False, True])
def test_the_last_registration_counts_and_the_one_before_is_told_and_closed(original: bool) -> None:
    talk = Talk()
    old, watcher, publisher = talk.connect(A, original=original), talk.connect("@(browser/w)"), talk.connect("@(browser/p)")
    talk.subscribe(old, "x")
    talk.retain(old, "d")
    talk.subscribe(watcher, "x", presence=True)
    talk.forget(old)

    new = talk.connect(A)

    (goodbye,) = talk.heard(old)
    assert pick(goodbye, "type", "to", "payload") == {
        "type": "hub:disconnect",
        "to": A,
        "payload": {"reason": "duplicate_connection", "message": "another connection registered the same actor"},
    }
    assert (old.state, old.closing, close_codes.REPLACED.code) == (State.DISCONNECTING, close_codes.REPLACED, 4002)
    assert (old.actor, old.subscriptions, talk.hub.state.rested) == (None, {}, [(old, "d")])
    (news,) = talk.heard(watcher)
    assert pick(news["payload"], "topic", "event", "actors") == {"topic": "x", "event": "leave", "actors": [A]}
    found = talk.hub.state.registry.get(A, talk.now)
    assert found is not None
    assert (found, found.session) == (new.actor, new)

    talk.hub.closed(old, talk.now)
    assert talk.hub.state.registry.get(A, talk.now) is found
    talk.subscribe(new, "x")
    talk.publish(publisher, "x", 1)
    assert (talk.messages(new), talk.messages(old)) == ([1], [])


def test_registrations_that_are_refused(subtests: pytest.Subtests) -> None:
    rows: list[tuple[dict[str, str], object, str, str]] = [
        ({"address": B}, registration(), "unauthorized", "wrong_actor"),
        ({}, registration(HUB), "unauthorized", "reserved_address"),
        ({}, registration("@(broadcast/all)"), "unauthorized", "reserved_address"),
        ({}, registration("@(Browser/A)"), "internal_error", "invalid_address"),
        ({}, registration("browser/a"), "internal_error", "invalid_address"),
        ({}, registration(capabilities=[]), "internal_error", "missing_capabilities"),
        ({}, registration(ttl=999), "internal_error", "invalid_ttl"),
        ({}, registration(ttl=3_600_001), "internal_error", "invalid_ttl"),
        ({}, registration(ttl="1"), "internal_error", "invalid_payload"),
        ({}, {"capabilities": ["chat"]}, "internal_error", "invalid_payload"),
    ]
    for identity, payload, code, reason in rows:
        with subtests.test(identity=identity, payload=payload):
            talk = Talk()
            session = talk.meet(identity=Identity(address=identity.get("address")))

            error = talk.refused(session, "hub:register", payload)

            assert (error["code"], error["details"]["reason"]) == (code, reason)
            assert (session.actor, len(talk.hub.state.registry)) == (None, 0)


def test_a_refused_registration_takes_nothing_over() -> None:
    talk = Talk()
    holder = talk.connect(A)

    talk.refused(talk.meet(), "hub:register", registration(ttl=1))

    assert (holder.is_open, talk.heard(holder)) == (True, [])


def test_a_session_is_one_actor_at_a_time() -> None:
    talk = Talk()
    session = talk.connect(A)

    error = talk.refused(session, "hub:register", registration(B))

    assert (error["code"], error["details"]["reason"]) == ("internal_error", "already_registered")
    talk.ask(session, "hub:unregister")
    assert talk.ask(session, "hub:register", registration(B))["to"] == B


def test_there_is_room_for_so_many_actors_that_are_alive() -> None:
    talk = Talk(HubRules(rate=None, max_actors=1))
    first, second = talk.connect(A, ttl=1000), talk.meet()

    error = talk.refused(second, "hub:register", registration(B))
    assert (error["code"], error["message"], error["details"]["reason"]) == (
        "rate_limited",
        "Registry at capacity",
        "registry_full",
    )
    talk.now += SECOND

    assert talk.ask(second, "hub:register", registration(B))["type"] == "hub:registered"
    assert [one["payload"]["reason"] for one in talk.heard(first)] == ["expired"]


def test_an_address_whose_time_ran_out_is_taken_without_closing_anybody() -> None:
    talk = Talk()
    old = talk.connect(A, ttl=1000)
    talk.subscribe(old, "x")
    talk.now += SECOND

    new = talk.connect(A)

    assert (old.closing, old.actor, old.subscriptions) == (None, None, {})
    assert [one["type"] for one in talk.heard(old)] == ["hub:unregistered"]
    assert new.actor is not None
    assert new.actor.version == 1


@pytest.mark.parametrize(
    ("original", "fields", "token_field"),
    [
        (False, {"actorAddress", "expiresAt", "newRenewalToken"}, "newRenewalToken"),
        (True, {"expiresAt", "renewalToken"}, "renewalToken"),
    ],
)
def test_a_registration_is_renewed_with_the_newest_token(original: bool, fields: set[str], token_field: str) -> None:
    talk = Talk(original=original)
    session = talk.meet()
    token = talk.ask(session, "hub:register", registration(ttl=60_000))["payload"]["renewalToken"]
    talk.now += 30 * SECOND

    reply = talk.ask(session, "hub:renew", {"actorAddress": A, "renewalToken": token, "ttl": 120_000}, id="n")

    assert (reply["type"], reply["correlationId"]) == ("hub:renewed", "n")
    assert reply["payload"].keys() == fields
    assert reply["payload"]["expiresAt"] == talk.ms + 120_000
    newest = reply["payload"][token_field]
    assert newest != token
    error = talk.refused(session, "hub:renew", {"renewalToken": token})
    assert (error["code"], error["details"]["reason"]) == ("unauthorized", "wrong_renewal_token")
    assert talk.ask(session, "hub:renew", {"renewalToken": newest})["payload"]["expiresAt"] == talk.ms + 120_000
    talk.later(119 * SECOND)
    assert session.actor is not None


@pytest.mark.parametrize("kind", ["hub:renew", "hub:unregister"])
def test_a_session_answers_for_itself_alone(kind: str) -> None:
    talk = Talk()
    session, victim = talk.connect(A), talk.connect(B)
    assert victim.actor is not None

    error = talk.refused(session, kind, {"actorAddress": B, "renewalToken": victim.actor.renewal_token})

    assert (error["code"], error["details"]["reason"]) == ("unauthorized", "wrong_actor")
    assert talk.hub.state.registry.get(B, talk.now) is victim.actor


def test_who_is_not_registered_or_not_any_more_may_do_little(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, Frame]] = [
        ("hub:renew", {"renewalToken": "x"}),
        ("hub:unregister", {}),
        ("hub:subscribe", {"topic": "x"}),
        ("hub:unsubscribe", {"topic": "x"}),
        ("hub:publish", {"topic": "x", "type": "t"}),
        ("hub:ack", {"ackId": "x"}),
        ("hub:send", {"to": B, "type": "t"}),
        ("hub:broadcast", {"type": "t"}),
    ]
    for kind, payload in rows:
        with subtests.test(kind=kind):
            talk = Talk()
            nobody, late = talk.meet(), talk.connect(A, ttl=1000)
            talk.now += SECOND

            errors = [talk.refused(session, kind, payload) for session in (nobody, late)]

            assert [error["details"]["reason"] for error in errors] == ["not_registered", "registration_expired"]
            assert {error["code"] for error in errors} == {"unknown_actor" if kind == "hub:renew" else "unauthorized"}


@pytest.mark.parametrize("original", [False, True])
def test_who_unregisters_loses_its_subscriptions_and_may_stay(original: bool) -> None:
    talk = Talk(original=original)
    session, publisher = talk.connect(A), talk.connect(B)
    talk.subscribe(session, "x/#")

    assert talk.say(session, "hub:unregister", {"actorAddress": A}, id="u") is None

    replies = [pick(one, "type", "correlationId", "payload") for one in talk.heard(session)]
    assert replies == (
        []
        if original
        else [
            {
                "type": "hub:unregistered",
                "correlationId": "u",
                "payload": {"actorAddress": A, "unregisteredAt": talk.ms},
            }
        ]
    )
    assert (session.state, session.actor, session.subscriptions) == (State.CONNECTED, None, {})
    talk.publish(publisher, "x/y")
    assert talk.heard(session) == []
    assert talk.ask(session, "hub:register", registration())["payload"]["version"] == 1


@pytest.mark.parametrize("original", [False, True])
def test_a_registration_that_runs_out_ends_its_subscriptions_and_is_told(original: bool) -> None:
    talk = Talk()
    session, watcher = talk.connect(A, ttl=10_000, original=original), talk.connect(B)
    talk.subscribe(session, "x")
    talk.subscribe(session, "y")
    talk.subscribe(watcher, "y", presence=True)
    talk.later(10 * SECOND - 1)
    assert session.actor is not None

    talk.later(1)

    (told,) = talk.heard(session)
    assert (told["type"], told["payload"]) == (
        "hub:unregistered",
        {"actorAddress": A, "unregisteredAt": talk.ms, "reason": "expired"},
    )
    assert [one["payload"]["event"] for one in talk.heard(watcher)] == ["leave"]
    assert (session.is_open, session.subscriptions) == (True, {})
    assert [name for name, _ in talk.hub.state.table.names()] == ["y"]


def test_unregistering_ends_durable_subscriptions_for_good() -> None:
    talk = Talk()
    session = talk.connect(A)
    for pattern in ("d/1", "d/#"):
        talk.retain(session, pattern)

    effect = talk.release(session, "hub:unregister", id="u")

    assert (effect.address, effect.patterns) == (A, ("d/1", "d/#"))
    assert (talk.heard(session), len(talk.hub.state.durable)) == ([], 0)
    assert talk.hub.state.rested == [(session, "d/1"), (session, "d/#")]
    talk.hub.released(session, effect, talk.now)
    (reply,) = talk.heard(session)
    assert (reply["type"], reply["correlationId"]) == ("hub:unregistered", "u")


def test_durable_subscriptions_that_could_not_be_ended_go_on() -> None:
    talk = Talk()
    session = talk.connect(A)
    talk.retain(session, "d")
    effect = talk.release(session, "hub:unsubscribe", {"topic": "d"}, id="u")

    talk.hub.unreleased(session, effect, Refusal("internal_error", "no", reason="unavailable", resolution="wait"), talk.now)

    (reply,) = talk.heard(session)
    assert (reply["type"], reply["correlationId"]) == ("hub:error", "u")
    assert [*talk.hub.state.durable.patterns_of(A)] == ["d"]
    assert talk.release(session, "hub:unsubscribe", {"topic": "d"}).patterns == ("d",)


# --- discovery ----------------------------------------------------------------------------------------------------------------


def crowd(*, original: bool = False) -> Talk:
    talk = Talk(original=original)
    for name, capabilities in (("a", ("chat",)), ("b", ("chat", "video")), ("c", ("video",))):
        talk.connect(f"@(browser/{name})", capabilities=capabilities)
    return talk


def test_actors_are_found(subtests: pytest.Subtests) -> None:
    rows: list[tuple[Frame, str, bool, int]] = [
        ({}, "abc", False, 3),
        ({"pattern": "^@\\(browser/[ab]\\)$"}, "ab", False, 2),
        ({"capabilities": ["chat", "video"]}, "b", False, 1),
        ({"limit": 1}, "a", True, 3),
        ({"limit": 1, "offset": 2}, "c", False, 3),
        ({"metadata": {"x": 1}}, "", False, 0),
    ]
    for asked, names, has_more, total in rows:
        with subtests.test(asked=asked):
            talk = crowd()

            reply = talk.ask(talk.meet(), "hub:discover", asked)

            assert reply["type"] == "hub:discovery_result"
            assert reply["payload"] == {
                "actors": [
                    {
                        "actorAddress": f"@(browser/{name})",
                        "capabilities": {"a": ["chat"], "b": ["chat", "video"], "c": ["video"]}[name],
                        "metadata": {},
                        "registeredAt": talk.ms,
                    }
                    for name in names
                ],
                "count": len(names),
                "hasMore": has_more,
                "totalMatches": total,
            }


@pytest.mark.parametrize(
    ("asked", "names", "has_more"),
    [
        ({"pattern": "@(browser/*)"}, "abc", False),
        ({"pattern": "*/a)"}, "a", False),
        ({"capability": "video"}, "bc", False),
        ({"limit": 2}, "ab", True),
    ],
)
def test_clients_of_the_original_find_actors_by_globs(asked: Frame, names: str, has_more: bool) -> None:
    talk = crowd(original=True)

    reply = talk.ask(talk.meet(), "hub:discover", asked)

    assert reply["type"] == "hub:discovered"
    assert reply["payload"]["hasMore"] is has_more
    assert [one["address"] for one in reply["payload"]["actors"]] == [f"@(browser/{name})" for name in names]
    assert all(one.keys() == {"address", "capabilities"} for one in reply["payload"]["actors"])


def test_clients_of_the_original_are_shown_a_hundred_at_a_time() -> None:
    talk = crowd(original=True)

    assert talk.refused(talk.meet(), "hub:discover", {"limit": 101})["details"]["reason"] == "invalid_payload"


def test_actors_are_listed_and_nobody_sees_the_tokens_of_others() -> None:
    talk = crowd()

    reply = talk.ask(talk.meet(), "hub:list_actors", {"limit": 2, "offset": 1})
    original = talk.ask(talk.meet(original=True), "hub:list_actors", {"limit": 2, "offset": 1})

    assert reply["type"] == "hub:discovery_result"
    assert pick(reply["payload"], "count", "hasMore", "totalMatches") == {"count": 2, "hasMore": False, "totalMatches": 3}
    assert original["type"] == "hub:actor_list"
    assert original["payload"] == {
        "actors": reply["payload"]["actors"],
        "total": 3,
        "offset": 1,
        "limit": 2,
        "hasMore": False,
    }
    assert "renewal" not in f"{reply}{original}"


@pytest.mark.parametrize("original", [False, True])
def test_who_looks_for_nothing_in_particular_may_leave_the_payload_out(original: bool) -> None:
    talk = Talk(original=original)
    session = talk.connect(A)

    (found,) = talk.ask(session, "hub:discover", None)["payload"]["actors"]

    assert found["address" if original else "actorAddress"] == A
