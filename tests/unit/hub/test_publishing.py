"""From a publish to its subscribers, in both dialects: directly, and by way of a log."""

from __future__ import annotations

import msgspec
import pytest

from penstock.durations import SECOND
from penstock.hub.core import close_codes
from penstock.hub.core.effects import Append
from penstock.hub.core.identity import Identity
from penstock.hub.core.messages import Position
from penstock.hub.core.refusal import Refusal
from penstock.hub.core.rules import Binding, HubRules
from tests.unit.hub.talk import HUB, Frame, Talk, pick

UUID = "5b3d6c1e-2f0a-4a7e-8f57-0c8f7f1f0c11"
P, A, B = "@(seag/publisher-1)", "@(browser/a)", "@(browser/b)"
EVENT = {"topic": "system/events", "type": "event:created", "data": {"eventId": "evt_123", "action": "user_signup"}}


def test_a_publish_is_forwarded_flat_to_each_subscriber_and_counted() -> None:
    talk = Talk()
    publisher, *subscribers = (talk.connect(address) for address in (P, A, B))
    other = talk.connect("@(browser/other)")
    talk.subscribe(subscribers[0], "system/events")
    talk.subscribe(subscribers[1], "system/+")
    talk.subscribe(other, "system/other")

    reply = talk.ask(publisher, "hub:publish", EVENT, id="p-1")

    for session, address in zip(subscribers, (A, B), strict=True):
        assert talk.heard(session) == [
            {
                "type": "event:created",
                "from": P,
                "to": address,
                "payload": {"eventId": "evt_123", "action": "user_signup"},
                "timestamp": talk.ms,
                "metadata": {
                    "forwarded": True,
                    "via": HUB,
                    "topic": "system/events",
                    "messageId": "p-1",
                    "offset": 0,
                    "epoch": "E.1",
                },
            }
        ]
    assert reply == {
        "type": "hub:delivery_ack",
        "from": HUB,
        "to": P,
        "correlationId": "p-1",
        "timestamp": talk.ms,
        "payload": {
            "topic": "system/events",
            "subscriberCount": 2,
            "delivered": True,
            "timestamp": talk.ms,
            "messageId": "p-1",
            "position": {"epoch": "E.1", "offset": 0},
        },
    }
    assert talk.heard(other) == []


@pytest.mark.parametrize(("message_id", "correlation_id"), [(UUID, UUID), ("p-1", None)], ids=["a UUID", "any id"])
def test_clients_of_the_original_get_a_publication(message_id: str, correlation_id: str | None) -> None:
    talk = Talk(original=True)
    publisher, subscriber = talk.connect(P), talk.connect(A)
    talk.subscribe(subscriber, "system/events")

    reply = talk.ask(publisher, "hub:publish", EVENT, id=message_id, timestamp=talk.ms, ttl=0.2)

    (got,) = talk.heard(subscriber)
    assert got.pop("id").startswith("id-")
    assert got == {
        "type": "event:created",
        "from": P,
        "to": A,
        "payload": {"eventId": "evt_123", "action": "user_signup"},
        "pattern": "tell",
        "correlationId": correlation_id,
        "timestamp": talk.ms,
        "ttl": 1,
        "signature": None,
        "metadata": {
            "publication": True,
            "via": HUB,
            "topic": "system/events",
            "messageId": message_id,
            "offset": 0,
            "epoch": "E.1",
        },
    }
    assert pick(reply, "type", "correlationId", "payload") == {
        "type": "hub:published",
        "correlationId": message_id,
        "payload": {"topic": "system/events", "subscriberCount": 1},
    }


def test_nobody_may_listen_and_the_publisher_may_listen_itself() -> None:
    talk = Talk()
    publisher = talk.connect(P)

    assert talk.ask(publisher, "hub:publish", EVENT)["payload"]["subscriberCount"] == 0
    talk.subscribe(publisher, "#")
    talk.say(publisher, "hub:publish", EVENT)

    assert [frame["type"] for frame in talk.heard(publisher)] == ["event:created", "hub:delivery_ack"]


def test_data_travels_as_it_came() -> None:
    talk = Talk()
    publisher, subscriber = talk.connect(P), talk.connect(A)
    talk.subscribe(subscriber, "x")
    texts = ['{"a": 1.50, "a":2}', "1e308", "null", '"\\u0000\\/é\\ud83d\\ude00"', "-0", "12345678901234567890123"]

    for text in texts:
        talk.hub.receive(publisher, f'{{"type":"hub:publish","payload":{{"topic":"x","type":"t","data":{text}}}}}', talk.now)
    talk.say(publisher, "hub:publish", {"topic": "x", "type": "t"})

    tails = [parts[2] for _, parts in subscriber.outbox.take(1 << 20)]
    assert [tail.partition(b',"timestamp"')[0].decode() for tail in tails] == [f',"payload":{text}' for text in (*texts, "null")]


def test_a_message_is_encoded_once_for_each_dialect() -> None:
    talk = Talk()
    publisher = talk.connect(P)
    sessions = [talk.connect(f"@(browser/s{number})", original=number % 2 == 0) for number in range(6)]
    for session in sessions:
        talk.subscribe(session, "x")

    talk.publish(publisher, "x", "data")

    parts = [session.outbox.take(1 << 20)[0][1] for session in sessions]
    assert len({id(head) for head, _, _ in parts}) == 2
    assert len({id(tail) for _, _, tail in parts}) == 2


def test_publishes_that_are_refused(subtests: pytest.Subtests) -> None:
    rows: list[tuple[Frame | None, str, str, str]] = [
        ({"type": "t"}, "internal_error", "topic is required", "missing_topic"),
        (None, "internal_error", "topic is required", "missing_topic"),
        ({"topic": "", "type": "t"}, "internal_error", "topic is required", "invalid_topic"),
        ({"topic": "a b", "type": "t"}, "internal_error", "topic is required", "invalid_topic"),
        ({"topic": "é", "type": "t"}, "internal_error", "topic is required", "invalid_topic"),
        ({"topic": "x" * 257, "type": "t"}, "internal_error", "topic is required", "invalid_topic"),
        ({"topic": "a/+", "type": "t"}, "internal_error", "topic is required", "wildcard_topic"),
        ({"topic": "#", "type": "t"}, "internal_error", "topic is required", "wildcard_topic"),
        ({"topic": "x"}, "internal_error", "payload.type is required", "missing_type"),
        ({"topic": "x", "type": ""}, "internal_error", "payload.type is required", "missing_type"),
        ({"topic": "x", "type": "t" * 257}, "internal_error", "payload.type has 257 characters", "invalid_type"),
        ({"topic": "x", "type": "hub:x"}, "internal_error", "payload.type 'hub:x' begins with hub:", "reserved_type"),
        ({"topic": "secret", "type": "t"}, "unauthorized", "the token does not allow to publish to secret", "not_permitted"),
    ]
    for payload, code, message, reason in rows:
        with subtests.test(payload=payload):
            talk = Talk()
            publisher, subscriber = talk.connect(P, identity=Identity(publish=("x", "y/#"))), talk.connect(A)
            talk.subscribe(subscriber, "#")

            error = talk.refused(publisher, "hub:publish", payload)

            assert (error["code"], error["message"], error["details"]["reason"]) == (code, message, reason)
            assert talk.heard(subscriber) == []
            assert talk.ask(publisher, "hub:publish", {"topic": "x", "type": "t"})["payload"]["position"]["offset"] == 0


@pytest.mark.parametrize(("data", "reason"), [("[" * 65 + "]" * 65, "too_deep"), ("[1e999]", "huge_number")])
def test_data_that_some_client_cannot_read_is_refused(data: str, reason: str) -> None:
    talk = Talk()
    publisher = talk.connect(P)

    talk.hub.receive(publisher, f'{{"type":"hub:publish","payload":{{"topic":"x","type":"t","data":{data}}}}}', talk.now)

    (reply,) = talk.heard(publisher)
    assert (reply["payload"]["code"], reply["payload"]["details"]["reason"]) == ("internal_error", reason)


# --- time to live -------------------------------------------------------------------------------------------------------------


def test_a_message_lives_from_its_timestamp_for_its_ttl(subtests: pytest.Subtests) -> None:
    rows: list[tuple[int | None, float | None, bool]] = [
        (0, 0, False),
        (5, 5, False),
        (6, 5, True),
        (1000, 999.5, True),
        (None, 0, False),
        (1_000_000, None, False),
        (-60_000, 1, False),
    ]
    for age_ms, ttl, is_late in rows:
        with subtests.test(age_ms=age_ms):
            talk = Talk()
            publisher, subscriber = talk.connect(P), talk.connect(A)
            talk.subscribe(subscriber, "x")
            timestamp = None if age_ms is None else talk.ms - age_ms

            talk.publish(publisher, "x", timestamp=timestamp, ttl=ttl)

            (reply,) = talk.heard(publisher)
            assert len(talk.heard(subscriber)) == (not is_late)
            if is_late:
                error = reply["payload"]
                assert (error["code"], error["details"]["reason"]) == ("message_expired", "message_expired")
                assert pick(error["details"], "timestamp", "ttl", "serverTime") == {
                    "timestamp": timestamp,
                    "ttl": ttl,
                    "serverTime": talk.ms,
                }


def test_a_timestamp_and_a_ttl_at_the_end_of_time_are_taken() -> None:
    talk = Talk()
    publisher = talk.connect(P)

    assert talk.publish(publisher, "x", timestamp=1 << 52, ttl=1 << 52) is None

    assert talk.heard(publisher)[0]["type"] == "hub:delivery_ack"


def test_what_expires_on_its_way_through_a_log_is_not_forwarded() -> None:
    log = Binding("x", "log", epoch="L")
    talk = Talk(bindings=[log])
    subscriber = talk.connect(A)
    talk.subscribe(subscriber, "x")
    lives = [talk.stored(log, offset, "x", expires_at=talk.now + offset - 1) for offset in range(3)]

    talk.bring(log, *lives, talk.stored(log, 3, None))
    talk.bring(talk.everything, msgspec.structs.replace(lives[2], position=None))

    assert talk.messages(subscriber) == [1, 2, 2]
    assert log.next_offset == 4


# --- the same publish again ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("original", [False, True])
def test_a_publish_that_is_sent_again_is_answered_again_and_not_forwarded_again(original: bool) -> None:
    """Decision 64: a repeat is the same id and content in the same session, or in one that continues it."""
    talk = Talk(original=original)
    publisher, subscriber = talk.connect(P), talk.connect(A)
    talk.subscribe(subscriber, "x")
    talk.publish(publisher, "x", 1, id="p", ttl=1000, timestamp=talk.ms)
    (first,) = talk.heard(publisher)
    talk.publish(publisher, "x", 1, id="p")
    assert talk.heard(publisher)[0]["payload"] == first["payload"]
    talk.hub.closed(publisher, talk.now)
    between = talk.connect(P, resume=publisher)
    talk.now += 59 * SECOND
    again = talk.connect(P, resume=between)

    talk.publish(again, "x", 1, id="p", ttl=1000, timestamp=talk.ms - 59_000)

    (second,) = talk.heard(again)
    assert pick(second, "type", "payload", "correlationId") == pick(first, "type", "payload") | {"correlationId": "p"}
    assert talk.messages(subscriber) == [1]


@pytest.mark.parametrize("original", [False, True])
def test_a_publish_is_new_unless_all_of_it_is_the_same(original: bool, subtests: pytest.Subtests) -> None:
    """Decision 64: everything that is not a repeat is a new message, such as id 1 of a page that was loaded again."""
    same = {"topic": "x", "type": "t", "data": 1}
    rows: dict[str, tuple[bool, str, dict[str, object], str | None, int]] = {
        "another session of the actor": (False, P, same, "1", 0),
        "another session and other data": (False, P, same | {"data": 2}, "1", 0),
        "other data": (True, P, same | {"data": 2}, "1", 0),
        "another type": (True, P, same | {"type": "u"}, "1", 0),
        "another topic": (True, P, same | {"topic": "y"}, "1", 0),
        "another id": (True, P, same, "2", 0),
        "no id": (True, P, same, None, 0),
        "a minute later": (True, P, same, "1", 60 * SECOND),
        "another actor": (True, "@(seag/publisher-2)", same, "1", 0),
    }
    for name, (is_resumed, address, payload, message_id, wait) in rows.items():
        with subtests.test(name):
            talk = Talk(original=original)
            publisher, subscriber = talk.connect(P), talk.connect(A)
            talk.subscribe(subscriber, "#")
            talk.say(publisher, "hub:publish", same, id="1")
            talk.now += wait

            again = talk.connect(address, resume=publisher if is_resumed else None)
            talk.say(again, "hub:publish", payload, id=message_id)

            assert talk.messages(subscriber) == [1, payload["data"]]
            assert [frame["type"] for frame in talk.heard(again)] == ["hub:published" if original else "hub:delivery_ack"]


def test_a_refused_publish_may_be_sent_again_with_its_id() -> None:
    talk = Talk()
    publisher = talk.connect(P)
    talk.refused(publisher, "hub:publish", {"topic": "x"}, id="p")

    assert talk.ask(publisher, "hub:publish", {"topic": "x", "type": "t"}, id="p")["type"] == "hub:delivery_ack"


# --- by way of a log ----------------------------------------------------------------------------------------------------------


def logged(*, original: bool = False) -> tuple[Talk, Binding]:
    log = Binding("orders/#", "orders", epoch="L", next_offset=7)
    return Talk(bindings=[log], original=original), log


def test_a_publish_to_a_bound_topic_is_written_first_and_forwarded_by_the_log() -> None:
    talk, log = logged()
    publisher, subscriber = talk.connect(P), talk.connect(A)
    talk.subscribe(subscriber, "orders/eu")

    effect = talk.append(publisher, "orders/eu", {"n": 1}, id="p", ttl=5)

    assert effect.binding is log
    message = effect.message
    assert (message.type, message.sender, message.data, message.message_id, message.topic) == (
        "t",
        P,
        b'{"n": 1}',
        "p",
        "orders/eu",
    )
    assert (message.position, message.expires_at, publisher.appends) == (None, talk.now + 5000, 1)
    assert (talk.heard(publisher), talk.heard(subscriber)) == ([], [])

    talk.hub.appended(publisher, effect, Position("L", 7), talk.now)
    talk.bring(log, talk.stored(log, 7, "orders/eu", {"n": 1}, message_id="p"))

    (reply,) = talk.heard(publisher)
    assert pick(reply, "type", "correlationId", "payload") == {
        "type": "hub:delivery_ack",
        "correlationId": "p",
        "payload": {
            "topic": "orders/eu",
            "subscriberCount": 1,
            "delivered": True,
            "timestamp": talk.ms,
            "messageId": "p",
            "position": {"epoch": "L", "offset": 7},
        },
    }
    (got,) = talk.heard(subscriber)
    assert pick(got["metadata"], "topic", "messageId", "offset", "epoch") == {
        "topic": "orders/eu",
        "messageId": "p",
        "offset": 7,
        "epoch": "L",
    }
    assert (publisher.appends, log.next_offset) == (0, 8)


def test_a_publish_without_an_id_is_answered_and_not_remembered() -> None:
    talk, _ = logged()
    publisher = talk.connect(P)

    effect = talk.append(publisher, "orders")
    assert (effect.message.message_id[:3], len(talk.hub.state.seen)) == ("id-", 0)
    talk.hub.appended(publisher, effect, Position("L", 7), talk.now)

    assert [one["type"] for one in talk.heard(publisher)] == ["hub:delivery_ack"]
    assert len(talk.hub.state.seen) == 0


def test_a_publish_that_comes_again_while_it_is_written_is_written_once_and_both_are_answered() -> None:
    talk, _ = logged()
    first = talk.connect(P)
    effect = talk.append(first, "orders", id="p")
    second = talk.connect(P, resume=first)

    assert talk.publish(second, "orders", id="p") is None
    assert talk.publish(second, "orders", id="p") is None
    assert talk.heard(second) == []
    talk.forget(first)
    talk.hub.appended(first, effect, Position("L", 7), talk.now)

    assert [one["payload"]["position"]["offset"] for one in talk.heard(second)] == [7, 7]
    assert talk.heard(first) == []
    assert talk.publish(second, "orders", id="p") is None
    assert [one["payload"]["position"]["offset"] for one in talk.heard(second)] == [7]
    assert (first.appends, second.appends) == (0, 0)


def test_two_publishes_of_one_id_that_are_written_at_once_are_answered_each() -> None:
    talk, _ = logged()
    publisher = talk.connect(P)
    first, second = talk.append(publisher, "orders", 1, id="p"), talk.append(publisher, "orders", 2, id="p")

    talk.hub.appended(publisher, second, Position("L", 8), talk.now)
    talk.hub.appended(publisher, first, Position("L", 7), talk.now)

    assert [one["payload"]["position"]["offset"] for one in talk.heard(publisher)] == [8, 7]


def test_a_publish_that_is_forgotten_while_it_is_written_is_still_answered() -> None:
    log = Binding("x", "log", epoch="L")
    talk = Talk(HubRules(rate=None, max_remembered=1), bindings=[log])
    publisher = talk.connect(P)
    first, second = talk.append(publisher, "x", id="p"), talk.append(publisher, "x", id="q")

    for offset, effect in enumerate((first, second)):
        talk.hub.appended(publisher, effect, Position("L", offset), talk.now)

    assert [one["correlationId"] for one in talk.heard(publisher)] == ["p", "q"]


def test_a_publish_that_does_not_get_into_its_log_is_refused_and_may_be_sent_again() -> None:
    talk, _ = logged()
    publisher = talk.connect(P)
    effect = talk.append(publisher, "orders", id="p")
    talk.publish(publisher, "orders", id="p")

    talk.hub.lost(publisher, effect, Refusal("internal_error", "no", reason="full", resolution="wait", retryable=True), talk.now)

    errors = talk.heard(publisher)
    assert [(one["type"], one["correlationId"], one["payload"]["details"]["reason"]) for one in errors] == [
        ("hub:error", "p", "full")
    ] * 2
    assert isinstance(talk.publish(publisher, "orders", id="p"), Append)
    assert publisher.appends == 1


def test_who_is_gone_when_its_message_is_safe_is_not_told() -> None:
    talk, _ = logged()
    publisher = talk.connect(P)
    effect = talk.append(publisher, "orders", id="p")
    talk.hub.closed(publisher, talk.now)

    talk.hub.appended(publisher, effect, Position("L", 7), talk.now)

    assert (talk.heard(publisher), publisher.appends) == ([], 0)


def test_a_topic_with_a_durable_subscription_is_written_to_the_log_of_everything() -> None:
    talk = Talk()
    publisher, subscriber = talk.connect(P), talk.connect(A)
    assert talk.publish(publisher, "d/x") is None
    talk.retain(subscriber, "d/#")

    assert talk.append(publisher, "d/x").binding is talk.everything
    assert talk.publish(publisher, "other") is None


@pytest.mark.parametrize("end", ["forwarded", "lost", "skipped"])
def test_what_is_on_its_way_through_the_log_of_everything_is_not_overtaken(end: str) -> None:
    talk = Talk()
    publisher, subscriber = talk.connect(P), talk.connect(A)
    talk.retain(subscriber, "d")
    effect = talk.append(publisher, "d", 1)
    talk.hub.released(subscriber, talk.release(subscriber, "hub:unsubscribe", {"topic": "d"}), talk.now)

    assert talk.append(publisher, "d", 2).binding is talk.everything

    for one in (effect, effect):
        if end == "forwarded":
            talk.bring(talk.everything, one.message)
        elif end == "lost":
            talk.hub.lost(publisher, one, Refusal("internal_error", "no", reason="full", resolution="wait"), talk.now)
        else:
            talk.hub.skipped(talk.everything, talk.now)
    assert talk.publish(talk.connect(B), "d", 3) is None


# --- readers that do not read -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "rules",
    [HubRules(rate=None, max_outbox_messages=3), HubRules(rate=None, max_outbox_bytes=800)],
    ids=["messages", "bytes"],
)
def test_a_reader_that_does_not_keep_up_is_cut_off_and_nobody_else_is_harmed(rules: HubRules) -> None:
    talk = Talk(rules)
    publisher, slow, quick = talk.connect(P), talk.connect(A), talk.connect(B)
    talk.subscribe(slow, "x")
    talk.subscribe(quick, "#")
    counts = []
    for number in range(6):
        talk.publish(publisher, "x", number)
        (reply,) = talk.heard(publisher)
        counts.append(reply["payload"]["subscriberCount"])
        assert talk.messages(quick) == [number]

    assert (slow.closing, close_codes.SLOW_READER.code) == (close_codes.SLOW_READER, 4003)
    assert (len(slow.outbox), slow.outbox.bytes) == (0, 0)
    assert counts == [2, 2, 2, 1, 1, 1]
    assert slow in talk.hub.dirty
    assert (slow.actor, slow.subscriptions) == (None, {})
    assert talk.hub.state.registry.get(A, talk.now) is None


def test_replies_that_are_not_read_cost_the_connection_too() -> None:
    talk = Talk(HubRules(rate=None, max_outbox_messages=3))
    session = talk.connect(A)

    for _ in range(4):
        talk.say(session, "ping")

    assert (session.closing, len(session.outbox)) == (close_codes.SLOW_READER, 0)


def test_a_connection_that_takes_nothing_for_long_is_cut_off() -> None:
    talk = Talk()
    session = talk.meet()
    talk.say(session, "ping")
    talk.later(30 * SECOND - 1)
    assert session.is_open

    talk.later(1)

    assert (session.closing, len(session.outbox)) == (close_codes.SLOW_READER, 0)


def test_many_watchers_that_do_not_read_leave_one_after_the_other() -> None:
    talk = Talk(HubRules(rate=None, max_outbox_messages=1))
    leaving, staying, *watchers = (talk.connect(f"@(browser/s{number})") for number in range(300))
    for session in (leaving, staying, *watchers):
        talk.subscribe(session, "x")
    for watcher in watchers:
        talk.subscribe(watcher, "x", presence=True)
        talk.say(watcher, "ping")
    assert all(watcher.is_open for watcher in watchers)

    talk.hub.closed(leaving, talk.now)

    assert {watcher.closing for watcher in watchers} == {close_codes.SLOW_READER}
    assert ([*talk.hub.state.table.subscribers("x")], len(talk.hub.state.watchers)) == ([staying], 0)


def test_a_subscriber_that_is_cut_off_while_a_message_is_forwarded_is_passed_over() -> None:
    """The first subscriber is full; that it leaves is told to the second, which is full by that."""
    talk = Talk(HubRules(rate=None, max_outbox_messages=1))
    publisher, first, second, third = (talk.connect(address) for address in (P, A, B, "@(browser/c)"))
    for session in (first, second, third):
        talk.subscribe(session, "x")
    talk.subscribe(first, "room")
    talk.subscribe(second, "room", presence=True)
    talk.say(first, "ping")
    talk.say(second, "ping")

    talk.publish(publisher, "x", 1)

    assert (first.closing, second.closing, third.closing) == (close_codes.SLOW_READER, close_codes.SLOW_READER, None)
    assert talk.heard(publisher)[0]["payload"]["subscriberCount"] == 1
    assert (talk.heard(second), talk.messages(third)) == ([], [1])
    talk.hub.state.cut(first, close_codes.STOPPING, talk.now)
    assert first.closing is close_codes.SLOW_READER, "the first reason counts"


def test_who_runs_out_and_is_cut_off_by_what_that_causes_leaves_nothing_behind_and_harms_nobody() -> None:
    """Two watch each other and are full: that one runs out cuts off the other, and that cuts off the first, half way through."""
    talk = Talk(HubRules(rate=None, max_outbox_messages=1))
    first, second, third = talk.connect(A, ttl=1_000), talk.connect(B), talk.connect("@(browser/c)", ttl=1_000)
    for topic in ("x", "y"):
        for session in (first, second):
            talk.subscribe(session, topic, presence=True)
            talk.forget(first, second)
    talk.subscribe(third, "z")
    for session in (first, second):
        talk.say(session, "ping")

    talk.later(SECOND)

    assert (first.closing, second.closing, third.closing) == (close_codes.SLOW_READER, close_codes.SLOW_READER, None)
    assert [one["type"] for one in talk.heard(third)] == ["hub:unregistered"]
    state = talk.hub.state
    assert (len(state.table), len(state.watchers), len(state.registry)) == (0, 0, 0)


def test_who_is_cut_off_by_what_its_own_subscribing_causes_leaves_nothing_behind() -> None:
    """Who is told that it joins is full; that this one leaves is told to the first, which is full too."""
    talk = Talk(HubRules(rate=None, max_outbox_messages=1))
    session, watcher = talk.connect(A), talk.connect(B)
    talk.subscribe(watcher, "new", presence=True)
    talk.subscribe(watcher, "room")
    talk.subscribe(session, "room", presence=True)
    for one in (session, watcher):
        talk.say(one, "ping")

    assert talk.say(session, "hub:subscribe", {"topic": "new", "presence": True, "durable": True}) is None

    assert (session.closing, watcher.closing) == (close_codes.SLOW_READER, close_codes.SLOW_READER)
    state = talk.hub.state
    assert (len(state.table), len(state.watchers), len(state.durable)) == (0, 0, 0)


def test_who_runs_out_and_is_too_full_to_be_told_is_not_registered_again() -> None:
    talk = Talk(HubRules(rate=None, max_outbox_messages=1))
    session = talk.connect(A, ttl=1_000)
    talk.say(session, "ping")
    talk.now += SECOND

    talk.say(session, "hub:register", {"actorAddress": A, "capabilities": ["x"]})

    assert (session.closing, session.actor, len(talk.hub.state.registry)) == (close_codes.SLOW_READER, None, 0)
