"""How sessions begin and end, in both dialects: connect, heartbeat, disconnect, tokens, timeouts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.durations import SECOND
from penstock.hub.core import close_codes
from penstock.hub.core.effects import Retain, Verify
from penstock.hub.core.identity import ANONYMOUS, Identity
from penstock.hub.core.refusal import Refusal
from penstock.hub.core.rules import HubRules
from penstock.hub.core.session import State
from penstock.rate_limit import RateLimit
from tests.unit.hub.talk import HUB, START, Talk, pick

A = "@(browser/a)"


def test_a_client_that_connects_is_told_what_it_may_expect() -> None:
    talk = Talk()
    session = talk.open()

    effect = talk.say(session, "hub:connect", {"version": "1.0", "jwt": "secret"}, sender=A, id="c-1")

    assert isinstance(effect, Verify)
    assert (effect.token, effect.claimed, effect.is_refresh) == ("secret", A, False)
    assert (session.state, talk.heard(session)) == (State.CONNECTING, [])

    talk.hub.verified(session, effect, ANONYMOUS, talk.now)

    assert session.state is State.CONNECTED
    assert talk.heard(session) == [
        {
            "type": "hub:connected",
            "from": HUB,
            "to": A,
            "correlationId": "c-1",
            "timestamp": talk.ms,
            "payload": {
                "sessionId": "session-id-1",
                "actorIdentity": A,
                "capabilities": [
                    "registration",
                    "messaging",
                    "pubsub",
                    "wildcards",
                    "durable",
                    "recovery",
                    "presence",
                    "flow-control",
                ],
                "serverTime": talk.ms,
                "serverVersion": "9.9",
                "maxMessageSize": 1024 * 1024,
                "heartbeatInterval": 300_000,
                "maxActors": 50_000,
            },
        }
    ]


def test_a_client_of_the_original_connects_by_metadata_and_is_answered_in_its_own_words() -> None:
    talk = Talk()
    session = talk.open()
    metadata = {"protocolVersion": "0.1.0", "authToken": "bearer secret", "capabilities": ["chat"], "clientMetadata": {}}

    effect = talk.say(
        session, "hub:connect", None, id="c-1", sender=A, to=HUB, pattern="ask", ttl=5000, timestamp=talk.ms, metadata=metadata
    )

    assert isinstance(effect, Verify)
    assert effect.token == "bearer secret"
    talk.hub.verified(session, effect, Identity(address=A), talk.now)
    assert talk.heard(session) == [
        {
            "id": "id-2",
            "type": "hub:connected",
            "from": HUB,
            "to": A,
            "pattern": "tell",
            "correlationId": "c-1",
            "timestamp": talk.ms,
            "ttl": None,
            "signature": None,
            "metadata": {"actorIdentity": A},
            "payload": {
                "sessionId": "session-id-1",
                "serverVersion": "9.9",
                "maxMessageSize": 1024 * 1024,
                "heartbeatInterval": 300_000,
                "capabilities": {
                    "maxActorsPerInstance": 50_000,
                    "supportsBackpressure": True,
                    "supportedContentTypes": ["application/json"],
                },
            },
        }
    ]


@pytest.mark.parametrize(
    ("sender", "identity", "to", "actor_identity"),
    [
        (None, ANONYMOUS, "@(session/id-1)", None),
        ("not an address", ANONYMOUS, "@(session/id-1)", None),
        (A, ANONYMOUS, A, A),
        (A, Identity(address="@(browser/true)"), "@(browser/true)", "@(browser/true)"),
    ],
)
def test_a_session_is_addressed_by_its_token_then_by_what_it_claims_then_by_its_own_name(
    sender: str | None, identity: Identity, to: str, actor_identity: str | None
) -> None:
    talk = Talk()
    session = talk.open()
    effect = talk.say(session, "hub:connect", {}, sender=sender)
    assert isinstance(effect, Verify)

    talk.hub.verified(session, effect, identity, talk.now)

    (reply,) = talk.heard(session)
    assert (reply["to"], reply["payload"]["actorIdentity"]) == (to, actor_identity)


def test_the_major_version_has_to_be_one_that_is_spoken(subtests: pytest.Subtests) -> None:
    rows: list[tuple[object, object, bool]] = [
        ({}, None, True),
        (None, None, True),
        ({"version": "1"}, None, True),
        ({"version": "1.7"}, None, True),
        ({"version": "2.0"}, None, False),
        ({"version": "0.1.0"}, None, False),
        ({"version": ""}, None, False),
        ({"version": "10"}, None, False),
        ({"version": "1.0"}, {"protocolVersion": None}, True),
        ({"version": "1.0"}, {"protocolVersion": 7}, True),
        ({"version": "1.0"}, {"other": [[]]}, True),
        ({"version": "1.0"}, [1], True),
        ({"version": "1.0"}, "text", True),
        (None, {"protocolVersion": "0.1.0"}, True),
        (None, {"protocolVersion": "0.9"}, True),
        (None, {"protocolVersion": "1.0"}, False),
        (None, {"protocolVersion": ""}, False),
    ]
    for payload, metadata, is_spoken in rows:
        with subtests.test(payload=payload, metadata=metadata):
            talk = Talk()
            session = talk.open()

            effect = talk.say(session, "hub:connect", payload, metadata=metadata)

            assert isinstance(effect, Verify) is is_spoken
            if not is_spoken:
                (reply,) = talk.heard(session)
                error = reply["payload"]
                assert (reply["type"], error["code"], error["details"]["reason"]) == (
                    "hub:error",
                    "version_mismatch",
                    "version_mismatch",
                )
                assert error["details"]["supported"] == ["1.0", "0.1.0"]
                assert (session.state, session.closing) == (State.DISCONNECTING, close_codes.WRONG_VERSION)


def test_metadata_that_nests_without_end_is_not_the_originals() -> None:
    talk = Talk()
    session = talk.open()
    deep = "[" * 500 + "]" * 500

    effect = talk.hub.receive(session, f'{{"type":"hub:connect","metadata":{{"x":{deep}}}}}', talk.now)

    assert isinstance(effect, Verify)


# --- without hub:connect ------------------------------------------------------------------------------------------------------


def test_where_a_token_is_needed_nothing_but_connect_and_a_ping_is_heard_before_connecting() -> None:
    """Decision 63: with authentication, `unauthorized` and what to send."""
    talk = Talk()
    session = talk.open()

    for kind in ("hub:heartbeat", "hub:register", "hub:publish", "hub:disconnect", "hub:metrics"):
        error = talk.refused(session, kind, {}, id="x")
        assert (error["code"], error["details"]["reason"]) == ("unauthorized", "not_connected")
        assert "hub:connect" in error["resolution"]
        assert "payload.jwt" in error["resolution"]
    assert talk.ask(session, "ping") == {"type": "pong"}
    assert (session.state, len(talk.hub.state.registry)) == (State.CONNECTING, 0)


def unasked(**rules: Any) -> Talk:
    """A hub that asks nobody for a token. Any: rules are of all kinds."""
    return Talk(HubRules(rate=None, anonymous=True, **rules))


@pytest.mark.parametrize(
    ("metadata", "kind"), [(None, "hub:delivery_ack"), ({"protocolVersion": "0.1.0"}, "hub:published")], ids=["ours", "original"]
)
def test_the_first_message_registers_an_anonymous_actor_where_nobody_is_asked_for_a_token(metadata: object, kind: str) -> None:
    """Decision 63."""
    talk = unasked()
    subscriber, publisher = talk.open(), talk.open()

    assert talk.ask(subscriber, "hub:subscribe", {"topic": "x"}, metadata=metadata)["type"] == "hub:subscribed"
    reply = talk.ask(publisher, "hub:publish", {"topic": "x", "type": "t", "data": 1}, metadata=metadata)

    assert (reply["type"], reply["payload"]["subscriberCount"]) == (kind, 1)
    (message,) = talk.heard(subscriber)
    assert (message["payload"], message["from"], message["to"]) == (1, publisher.name, subscriber.name)
    assert publisher.name.startswith("@(anonymous/")
    assert subscriber.name != publisher.name
    assert talk.ask(publisher, "hub:publish", {"topic": "x", "type": "t"})["to"] == publisher.name

    talk.hub.closed(subscriber, talk.now)
    talk.hub.closed(publisher, talk.now)
    assert (len(talk.hub.state.registry), len(talk.hub.state.table)) == (0, 0)


@pytest.mark.parametrize("claimed", [A, "browser-ui"], ids=["taken", "no address"])
def test_an_anonymous_actor_has_the_address_that_it_claims_unless_that_is_taken_or_is_none(claimed: str) -> None:
    talk = unasked()
    first, second = talk.open(), talk.open()
    assert talk.ask(first, "hub:subscribe", {"topic": "x"}, sender=A)["to"] == A

    for _ in range(2):  # it sends the same `from` each time
        reply = talk.ask(second, "hub:publish", {"topic": "x", "type": "t"}, sender=claimed)
        assert (reply["type"], reply["to"]) == ("hub:delivery_ack", second.name)
        (message,) = talk.heard(first)
        assert (message["from"], message["to"]) == (second.name, A)

    assert second.name.startswith("@(anonymous/")
    assert first.is_open
    for other in ("@(browser/other)", HUB):
        assert talk.refused(second, "hub:heartbeat", sender=other)["details"]["reason"] == "from_mismatch"


def test_an_anonymous_actor_cannot_claim_the_address_of_the_hub_or_later_that_of_another_actor() -> None:
    talk = unasked()
    session = talk.open()
    talk.subscribe(session, "x")

    assert talk.refused(session, "hub:heartbeat", sender=A)["details"]["reason"] == "from_mismatch"
    assert talk.refused(talk.open(), "hub:heartbeat", sender=HUB)["details"]["reason"] == "reserved_address"


def test_who_begins_with_register_is_that_actor() -> None:
    talk = unasked()
    session = talk.open()

    reply = talk.ask(session, "hub:register", {"actorAddress": A, "capabilities": ["x"]}, sender=A)

    assert (reply["type"], reply["to"], len(talk.hub.state.registry)) == ("hub:registered", A, 1)
    assert talk.refused(session, "hub:connect")["details"]["reason"] == "already_connected"


def test_an_anonymous_actor_stays_as_long_as_its_connection_whatever_it_does_not_say() -> None:
    """It knows of no renewal and of no sign of life; WebSocket's own pings find those who vanish."""
    talk = unasked(idle=60 * SECOND)
    session, publisher = talk.open(), talk.connect()
    talk.subscribe(session, "x")
    talk.later(24 * 3600 * SECOND)
    assert (session.is_open, publisher.is_open) == (True, False)

    talk.publish(talk.connect(), "x", "still")

    assert talk.messages(session) == ["still"]


def test_who_has_no_address_of_its_own_cannot_subscribe_durably() -> None:
    talk = unasked()

    error = talk.refused(talk.open(), "hub:subscribe", {"topic": "x", "durable": True})

    assert (error["code"], error["details"]["reason"]) == ("unauthorized", "anonymous")
    assert len(talk.hub.state.durable) == 0
    assert isinstance(talk.say(talk.open(), "hub:subscribe", {"topic": "x", "durable": True}, sender=A), Retain)


def test_where_there_is_no_room_for_an_anonymous_actor_it_is_told_and_may_try_again() -> None:
    talk = unasked(max_actors=1)
    first, second = talk.open(), talk.open()
    talk.subscribe(first, "x")
    assert talk.refused(second, "hub:subscribe", {"topic": "x"})["details"]["reason"] == "registry_full"

    talk.hub.closed(first, talk.now)

    assert talk.subscribe(second, "x")["topic"] == "x"


# --- hub:connect, and after ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("original", [False, True])
def test_a_session_connects_once(original: bool) -> None:
    talk = Talk(original=original)
    session = talk.meet()

    error = talk.refused(session, "hub:connect", {"version": "1.0"})

    assert (error["code"], error["details"]["reason"]) == ("internal_error", "already_connected")
    assert session.state is State.CONNECTED


@pytest.mark.parametrize("original", [False, True])
def test_a_heartbeat_is_answered_with_both_clocks(original: bool) -> None:
    talk = Talk(original=original)
    session = talk.meet()

    reply = talk.ask(session, "hub:heartbeat", {"timestamp": 12.5}, id="h")

    assert pick(reply, "type", "correlationId", "payload") == {
        "type": "hub:heartbeat_ack",
        "correlationId": "h",
        "payload": {"timestamp": 12.5, "serverTime": talk.ms},
    }
    for number in (1_708_272_000_000, 0, -(2**53), 1e308):
        assert repr(talk.ask(session, "hub:heartbeat", {"timestamp": number})["payload"]["timestamp"]) == repr(number)
    assert talk.ask(session, "hub:heartbeat")["payload"] == {"timestamp": None, "serverTime": talk.ms}


@pytest.mark.parametrize(
    ("original", "kind", "payload"),
    [
        (False, "hub:disconnect_ack", {"sessionId": "session-id-1", "cleanedUp": True}),
        (True, "hub:disconnect", {"acknowledged": True}),
    ],
)
def test_who_disconnects_is_told_that_all_is_cleaned_up_and_heard_no_more(original: bool, kind: str, payload: object) -> None:
    talk = Talk(original=original)
    session = talk.connect()
    talk.subscribe(session, "x")

    reply = talk.ask(session, "hub:disconnect", {"reason": "bye"}, id="d")

    assert pick(reply, "type", "correlationId", "payload") == {"type": kind, "correlationId": "d", "payload": payload}
    assert (session.state, session.closing) == (State.DISCONNECTING, close_codes.GOODBYE)
    assert (len(talk.hub.state.table), len(talk.hub.state.registry)) == (0, 0)
    assert talk.say(session, "hub:heartbeat") is None
    talk.hub.reject(session, refusal(), talk.now)
    assert talk.heard(session) == []

    talk.hub.closed(session, talk.now)
    talk.hub.closed(session, talk.now)
    assert (session.state, dict(talk.hub.metrics.closed)) == (State.DISCONNECTED, {close_codes.GOODBYE.reason: 1})
    assert talk.hub.state.sessions == {}


def refusal(*, retryable: bool = False) -> Refusal:
    return Refusal("unauthorized", "no", reason="bad_signature", resolution="get another", retryable=retryable)


@pytest.mark.parametrize(("retryable", "close"), [(False, close_codes.UNAUTHORIZED), (True, close_codes.FAILED)])
def test_who_is_not_let_in_is_told_why_and_closed(retryable: bool, close: close_codes.Close) -> None:
    talk = Talk()
    session = talk.open()
    effect = talk.say(session, "hub:connect", {"jwt": "x"}, id="c")
    assert isinstance(effect, Verify)

    talk.hub.unverified(session, effect, refusal(retryable=retryable), talk.now)

    error, *goodbye = talk.heard(session)
    assert pick(error, "type", "correlationId", "payload") == {
        "type": "hub:error",
        "correlationId": "c",
        "payload": {
            "code": "unauthorized",
            "message": "no",
            "resolution": "get another",
            "details": {"reason": "bad_signature", "retryable": retryable},
        },
    }
    assert [one["payload"]["reason"] for one in goodbye] == ([] if retryable else ["unauthorized"])
    assert (session.state, session.closing) == (State.DISCONNECTING, close)
    talk.hub.verified(session, effect, ANONYMOUS, talk.now)
    assert session.state is State.DISCONNECTING


# --- tokens -------------------------------------------------------------------------------------------------------------------

SOON = START + 100 * SECOND


def known(expires_at: int | None = SOON, **fields: tuple[str, ...]) -> Identity:
    return Identity(address=A, expires_at=expires_at, **fields)


def test_a_session_whose_token_runs_out_is_warned_then_heard_no_more_then_closed() -> None:
    talk = Talk()
    session = talk.connect(A, identity=known())
    talk.later(99 * SECOND)
    assert talk.ask(session, "hub:heartbeat")["type"] == "hub:heartbeat_ack"

    talk.later(SECOND)
    talk.later(SECOND)

    (warning,) = talk.heard(session)
    assert (warning["payload"]["code"], warning["payload"]["details"]["reason"]) == ("unauthorized", "expired_token")
    assert talk.refused(session, "hub:heartbeat")["details"]["reason"] == "expired_token"

    talk.later(28 * SECOND)
    assert session.is_open
    talk.later(SECOND)

    (goodbye,) = talk.heard(session)
    assert (goodbye["type"], goodbye["payload"]["reason"]) == ("hub:disconnect", "unauthorized")
    assert session.closing is close_codes.UNAUTHORIZED


def test_a_session_whose_token_has_run_out_may_still_leave() -> None:
    talk = Talk()
    session = talk.connect(A, identity=known())
    talk.now = SOON

    assert talk.ask(session, "hub:disconnect")["type"] == "hub:disconnect_ack"


@pytest.mark.parametrize(
    ("original", "expires_at", "payload"),
    [
        (False, SOON * 2, {"expiresAt": SOON * 2 // 1000}),
        (False, None, {}),
        (True, SOON * 2, {"token": "new", "expiresAt": SOON * 2 // 1000}),
        (True, None, {"token": "new", "expiresAt": None}),
    ],
)
def test_a_token_is_refreshed_even_after_its_end(original: bool, expires_at: int | None, payload: object) -> None:
    talk = Talk(original=original)
    session = talk.connect(A, identity=known())
    talk.later(100 * SECOND)
    talk.forget(session)

    effect = talk.say(session, "hub:refresh_token", {"token": "new"}, id="r")
    assert isinstance(effect, Verify)
    assert (effect.token, effect.claimed, effect.is_refresh) == ("new", A, True)
    talk.hub.verified(session, effect, known(expires_at), talk.now)

    (reply,) = talk.heard(session)
    assert pick(reply, "type", "correlationId", "payload") == {
        "type": "hub:token_refreshed",
        "correlationId": "r",
        "payload": payload,
    }
    talk.later(199 * SECOND)
    assert session.is_open
    assert talk.heard(session) == []


def test_the_new_token_has_to_be_the_same_actors() -> None:
    talk = Talk()
    session = talk.connect(A, identity=known())

    effect = talk.say(session, "hub:refresh_token", {"token": "new"})
    assert isinstance(effect, Verify)
    talk.hub.verified(session, effect, Identity(address="@(browser/b)"), talk.now)

    (reply,) = talk.heard(session)
    assert (reply["payload"]["code"], reply["payload"]["details"]["reason"]) == ("invalid_token", "wrong_actor")
    assert session.identity == known()


@pytest.mark.parametrize(("retryable", "code"), [(False, "invalid_token"), (True, "unauthorized")])
def test_a_refresh_that_fails_leaves_the_old_token(retryable: bool, code: str) -> None:
    talk = Talk()
    session = talk.connect(A, identity=known())
    effect = talk.say(session, "hub:refresh_token", {"token": "new"})
    assert isinstance(effect, Verify)

    talk.hub.unverified(session, effect, refusal(retryable=retryable), talk.now)

    (reply,) = talk.heard(session)
    assert (reply["payload"]["code"], reply["payload"]["details"]["reason"]) == (code, "bad_signature")
    assert (session.state, session.identity) == (State.CONNECTED, known())


def test_a_token_that_allows_less_ends_subscriptions_and_says_so() -> None:
    talk = Talk()
    session, publisher = talk.connect(A, identity=known()), talk.connect("@(browser/p)")
    for topic in ("open/x", "secret/x"):
        talk.subscribe(session, topic)
    talk.retain(session, "secret/#")
    effect = talk.say(session, "hub:refresh_token", {"token": "new"})
    assert isinstance(effect, Verify)

    talk.hub.verified(session, effect, known(subscribe=("open/#",)), talk.now)

    *lost, done = talk.heard(session)
    assert [one["payload"]["details"]["topic"] for one in lost] == ["secret/x", "secret/#"]
    assert {(one["payload"]["code"], one["payload"]["details"]["reason"]) for one in lost} == {("unauthorized", "not_permitted")}
    assert done["type"] == "hub:token_refreshed"
    assert [*session.subscriptions] == ["open/x"]
    assert talk.hub.state.rested == [(session, "secret/#")]
    talk.publish(publisher, "open/x", 1)
    assert talk.messages(session) == [1]


def test_who_is_too_full_to_be_told_what_a_token_does_not_allow_any_more_is_cut_off() -> None:
    talk = Talk(HubRules(rate=None, max_outbox_messages=2))
    session = talk.connect(A, identity=known())
    for number in range(5):
        talk.subscribe(session, f"secret/{number}")
    effect = talk.say(session, "hub:refresh_token", {"token": "new"})
    assert isinstance(effect, Verify)

    talk.hub.verified(session, effect, known(subscribe=()), talk.now)

    assert (session.closing, session.subscriptions) == (close_codes.SLOW_READER, {})


# --- timeouts, and the end of the server --------------------------------------------------------------------------------------


def test_who_does_not_connect_in_time_is_closed() -> None:
    talk = Talk()
    session = talk.open()
    talk.say(session, "ping")

    talk.later(10 * SECOND - 1)
    assert session.is_open
    talk.later(1)

    assert session.closing is close_codes.NOT_CONNECTED


def test_who_says_nothing_is_closed_and_anything_said_counts() -> None:
    talk = Talk()
    silent, alive, unreadable = talk.meet(), talk.meet(), talk.meet()
    talk.later(599 * SECOND)
    talk.say(alive, "ping")
    talk.hub.reject(unreadable, refusal(), talk.now)

    talk.later(SECOND)

    assert (silent.closing, alive.closing, unreadable.closing) == (close_codes.SILENT, None, None)
    talk.later(SECOND)
    assert talk.hub.dirty.count(silent) == 1


def test_when_the_server_stops_everybody_is_told_once_and_nobody_of_the_others_leaving() -> None:
    talk = Talk()
    sessions = [talk.connect(f"@(browser/{name})") for name in "abc"]
    for session in sessions:
        talk.subscribe(session, "x", presence=True)
        talk.forget(*sessions)
    connecting = talk.open()

    talk.hub.stop(talk.now)

    for session in (*sessions, connecting):
        (goodbye,) = talk.heard(session)
        assert (goodbye["type"], goodbye["payload"]) == (
            "hub:disconnect",
            {"reason": "server_shutdown", "message": "the server is stopping; come back in a moment"},
        )
        assert session.closing is close_codes.STOPPING
    state = talk.hub.state
    assert (len(state.table), len(state.watchers), len(state.registry)) == (0, 0, 0)


# --- frames that are no requests, and too many --------------------------------------------------------------------------------


def test_what_is_no_envelope_is_refused_in_the_originals_words(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, str]] = [
        ("", "invalid_json"),
        ("{", "invalid_json"),
        ("nonsense", "invalid_json"),
        ('{"type":"ping"} {}', "invalid_json"),
        ('{"type":"hub:heartbeat","payload":"\\ud800"}', "invalid_json"),
        ('{"type":"hub:heartbeat","payload":"\udc00"}', "invalid_json"),
        ("[" * 100_000, "invalid_envelope"),
        ('{"type":"hub:heartbeat","payload":' + "[" * 100_000 + "]" * 100_000 + "}", "too_deep"),
        ("null", "invalid_envelope"),
        ("[]", "invalid_envelope"),
        ("{}", "invalid_envelope"),
        ('{"type":""}', "invalid_envelope"),
        ('{"type":7}', "invalid_envelope"),
        (json.dumps({"type": "x" * 257}), "invalid_envelope"),
        ('{"type":"ping","id":7}', "invalid_envelope"),
        (json.dumps({"type": "ping", "id": "x" * 257}), "invalid_envelope"),
        ('{"type":"ping","from":{}}', "invalid_envelope"),
        ('{"type":"ping","ttl":-1}', "invalid_envelope"),
        ('{"type":"ping","ttl":1e308}', "invalid_envelope"),
        ('{"type":"ping","ttl":1e999}', "invalid_envelope"),
        ('{"type":"ping","timestamp":0}', "invalid_envelope"),
        ('{"type":"ping","timestamp":1e308}', "invalid_envelope"),
        ('{"type":"ping","timestamp":"now"}', "invalid_envelope"),
    ]
    for text, reason in rows:
        with subtests.test(text=text):
            talk = Talk()
            session = talk.meet()

            assert talk.hub.receive(session, text, talk.now) is None

            (reply,) = talk.heard(session)
            error = reply["payload"]
            assert (error["code"], error["message"]) == ("internal_error", "Invalid SharedMessage structure")
            assert error["details"]["reason"] == reason
            assert error["details"]["problem"]
            assert session.is_open


def test_a_request_of_no_known_type_is_refused_with_all_there_are() -> None:
    talk = Talk()
    session = talk.meet()

    error = talk.refused(session, "hub:" + "x" * 100, {})

    assert (error["code"], error["details"]["reason"]) == ("internal_error", "unknown_type")
    assert error["message"] == "Unknown message type: hub:" + "x" * 60
    assert "hub:subscribe" in error["resolution"]


def test_a_payload_of_another_kind_is_refused_with_what_is_wrong(subtests: pytest.Subtests) -> None:
    kinds: list[tuple[str, object, str, str]] = [
        ("hub:register", {}, "the payload of hub:register is not as expected", "invalid_payload"),
        ("hub:heartbeat", 7, "the payload of hub:heartbeat is not as expected", "invalid_payload"),
        ("hub:list_actors", {"limit": 1001}, "the payload of hub:list_actors is not as expected", "invalid_payload"),
        ("hub:publish", {"topic": 7}, "topic is required", "invalid_topic"),
        ("hub:subscribe", {"topic": []}, "topic is required", "invalid_topic"),
        ("hub:publish", {"topic": "x", "type": 7}, "payload.type is required", "missing_type"),
        ("hub:send", {"type": {}}, "payload.type is required", "missing_type"),
    ]
    for original in (False, True):
        for kind, payload, message, reason in kinds:
            with subtests.test(original=original, kind=kind):
                talk = Talk(original=original)
                session = talk.connect(A)

                error = talk.refused(session, kind, payload)

                assert error["code"] == "internal_error"
                assert error["message"].startswith(message)
                assert error["details"]["reason"] == reason
                assert error["details"]["problem"]


def test_a_payload_that_nests_without_end_is_refused() -> None:
    talk = Talk()
    session = talk.connect(A)
    deep = "[" * 900 + "]" * 900

    talk.hub.receive(session, f'{{"type":"hub:heartbeat","payload":{{"timestamp":{deep}}}}}', talk.now)
    talk.hub.receive(session, f'{{"type":"hub:register","payload":{{"metadata":{{"x":{deep}}}}}}}', talk.now)

    assert [one["payload"]["code"] for one in talk.heard(session)] == ["internal_error"] * 2
    assert session.is_open


def fast(*, per_second: int = 10, burst: int = 2, flood: int = 3) -> Talk:
    return Talk(HubRules(rate=RateLimit(per_second, burst), flood=flood))


def test_who_sends_too_fast_is_told_when_to_come_back() -> None:
    talk = fast()
    session = talk.meet()
    for _ in range(2):
        assert talk.ask(session, "ping") == {"type": "pong"}

    error = talk.refused(session, "ping")

    assert error == {
        "code": "rate_limited",
        "message": "too many messages, try again in 0.100 s",
        "resolution": "send fewer messages, or ask for a higher rate limit of the hub",
        "details": {
            "reason": "rate_limited",
            "retryable": True,
            "retryAfter": 0.1,
            "limit": 10,
            "code": "RATE_LIMIT_EXCEEDED",
        },
    }
    talk.later(SECOND // 10)
    assert talk.ask(session, "ping") == {"type": "pong"}


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("hub:discover", {"pattern": "nobody"}),
        ("hub:list_actors", {}),
        ("hub:list_topics", {}),
        ("hub:broadcast", {"type": "t", "data": 1, "targetCapability": "none"}),
    ],
)
def test_a_request_that_looks_through_much_takes_more_of_the_rate(
    kind: str, payload: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.hub.core.hub.SEARCHED_FOR_ONE", 2)
    talk = fast(per_second=1, burst=5)
    for name in ("b", "c", "d"):
        talk.subscribe(talk.connect(f"@(browser/{name})"), name)
    session = talk.connect(A)
    talk.subscribe(session, "a")

    assert talk.ask(session, kind, payload)["type"] != "hub:error"  # the third of 5, and 2 for the 4 that it looked through
    assert talk.refused(session, kind, payload)["code"] == "rate_limited"


def test_a_list_of_topics_takes_the_more_of_the_rate_the_more_patterns_the_token_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.hub.core.hub.SEARCHED_FOR_ONE", 10)
    talk = fast(per_second=1, burst=5)
    for name in ("b", "c"):
        talk.subscribe(talk.connect(f"@(browser/{name})"), name)
    few, many = (talk.meet(identity=Identity(subscribe=("x/#",) * count)) for count in (1, 20))

    for session in (few, few, many):
        assert talk.ask(session, "hub:list_topics")["payload"]["total"] == 0
    assert talk.refused(many, "hub:list_topics")["code"] == "rate_limited"  # 1, and 4 for 2 topics and 20 patterns


def test_a_list_of_who_is_present_takes_more_of_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.hub.core.hub.SEARCHED_FOR_ONE", 2)
    talk = fast(per_second=1, burst=5)
    for name in ("b", "c", "d", "e"):
        talk.subscribe(talk.connect(f"@(browser/{name})"), "room")
    session = talk.connect(A)

    for topic in ("room", "empty"):
        assert talk.ask(session, "hub:presence", {"topic": topic})["type"] == "hub:presence"  # 1 + 3, and 1
    assert talk.refused(session, "hub:presence", {"topic": "empty"})["code"] == "rate_limited"


def test_to_connect_takes_nothing_of_the_rate() -> None:
    talk = fast(burst=1)
    session = talk.meet()

    assert talk.ask(session, "ping") == {"type": "pong"}
    assert talk.refused(session, "ping")["code"] == "rate_limited"


@pytest.mark.parametrize("is_connected", [False, True])
@pytest.mark.parametrize("is_readable", [False, True])
def test_who_keeps_sending_is_closed_whatever_it_sends(is_connected: bool, is_readable: bool) -> None:
    talk = fast()
    session = talk.meet() if is_connected else talk.open()

    for _ in range(6):
        assert session.is_open
        if is_readable:
            talk.say(session, "ping")
        else:
            talk.hub.reject(session, refusal(), talk.now)

    assert session.closing is close_codes.FLOODING
    codes = [frame["payload"]["code"] for frame in talk.heard(session) if frame["type"] == "hub:error"]
    assert codes == [*([] if is_readable else ["unauthorized"] * 2), *["rate_limited"] * 3]


def test_one_that_is_refused_more_often_than_not_is_closed_though_some_come_through() -> None:
    talk = fast(per_second=1000, burst=1, flood=20)
    often, rarely = talk.meet(), talk.meet()

    for step in range(40):
        talk.now += 1000
        for session, most in ((often, 3), (rarely, 1 + step % 2)):
            for _ in range(most):
                talk.say(session, "ping")

    assert (often.closing, rarely.closing) == (close_codes.FLOODING, None)


@pytest.mark.parametrize("sender", [None, A])
def test_from_may_be_left_out_or_be_ones_own(sender: str | None) -> None:
    talk = Talk()
    session = talk.connect(A)

    assert talk.ask(session, "hub:heartbeat", sender=sender)["type"] == "hub:heartbeat_ack"


def test_nobody_speaks_for_another() -> None:
    talk = Talk()
    victim, session = talk.connect("@(browser/victim)"), talk.connect(A)
    talk.subscribe(victim, "x")

    for kind, payload in (
        ("hub:publish", {"topic": "x", "type": "t"}),
        ("hub:send", {"to": "@(browser/victim)", "type": "t"}),
        ("hub:unregister", {}),
    ):
        error = talk.refused(session, kind, payload, sender="@(browser/victim)")
        assert (error["code"], error["details"]["reason"]) == ("unauthorized", "from_mismatch")
        assert A in error["resolution"]
    assert talk.heard(victim) == []


def test_a_session_that_is_nobody_yet_may_say_from_what_it_likes() -> None:
    talk = Talk()

    assert talk.ask(talk.meet(), "hub:heartbeat", sender="@(browser/x)")["type"] == "hub:heartbeat_ack"
