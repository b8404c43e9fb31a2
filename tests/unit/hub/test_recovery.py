"""What was missed: exactly that from a log, or the plain word that it is not known. And durable subscriptions."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.durations import SECOND
from penstock.hub.core import close_codes
from penstock.hub.core.effects import Recover, Retain, Settle
from penstock.hub.core.messages import Message, Position
from penstock.hub.core.refusal import Refusal
from penstock.hub.core.rules import Binding, HubRules
from penstock.hub.core.session import Session
from tests.unit.hub.talk import Frame, Talk, pick

A, B, P = "@(browser/a)", "@(browser/b)", "@(seag/publisher-1)"
NO = Refusal("internal_error", "no", reason="unavailable", resolution="wait", retryable=True)

# --- topics without a log -----------------------------------------------------------------------------------------------------


def since(position: Frame) -> Frame:
    return {"since": position}


def test_positions_are_dense_and_each_topic_has_its_own() -> None:
    talk = Talk()
    session, publisher = talk.connect(A), talk.connect(P)
    talk.subscribe(session, "#")

    for topic in ("x", "y", "x", "x"):
        talk.publish(publisher, topic)

    where = [(one["metadata"]["topic"], one["metadata"]["epoch"], one["metadata"]["offset"]) for one in talk.heard(session)]
    assert where == [("x", "E.1", 0), ("y", "E.2", 0), ("x", "E.1", 1), ("x", "E.1", 2)]


@pytest.mark.parametrize(
    ("epoch", "offset", "is_whole"),
    [("E.1", 1, True), ("E.1", 0, False), ("E.1", 2, False), ("E.1", -1, False), ("E.2", 1, False), ("", 1, False)],
)
def test_who_returns_to_a_plain_topic_is_told_whether_anything_was_missed(epoch: str, offset: int, is_whole: bool) -> None:
    talk = Talk()
    publisher = talk.connect(P)
    talk.publish(publisher, "x")
    talk.publish(publisher, "x")

    reply = talk.subscribe(talk.connect(A), "x", since={"epoch": epoch, "offset": offset})

    assert reply["recovered"] is is_whole
    assert reply["position"] == {"epoch": "E.1", "offset": 1}
    assert (talk.hub.metrics.recovered, talk.hub.metrics.unrecovered) == (int(is_whole), int(not is_whole))


def test_nobody_knows_what_a_pattern_has_missed_where_there_is_no_log() -> None:
    talk = Talk()

    reply = talk.subscribe(talk.connect(A), "x/#", since={"epoch": "E.1", "offset": 0})

    assert reply["recovered"] is False
    assert "position" not in reply


def test_a_topic_that_was_forgotten_begins_anew() -> None:
    talk = Talk(HubRules(rate=None, max_plain_topics=1))
    publisher = talk.connect(P)
    talk.publish(publisher, "x")
    talk.publish(publisher, "y")
    talk.publish(publisher, "x")

    assert talk.subscribe(talk.connect(A), "x", since={"epoch": "E.1", "offset": 0})["recovered"] is False
    assert talk.subscribe(talk.connect(B), "x", since={"epoch": "E.3", "offset": 0})["recovered"] is True


def test_a_topic_that_is_durable_for_a_while_hides_no_hole() -> None:
    """What goes by way of the log of everything, and what does not, have positions of different epochs."""
    talk = Talk()
    publisher, durable = talk.connect(P), talk.connect(B)

    def recovered(position: Frame) -> bool:
        session = talk.connect(A)
        reply = talk.subscribe(session, "x", **since(position))
        talk.hub.closed(session, talk.now)
        is_whole: bool = reply["recovered"]
        return is_whole

    talk.publish(publisher, "x")
    plain = {"epoch": "E.1", "offset": 0}
    assert recovered(plain)

    talk.retain(durable, "x")
    talk.append(publisher, "x")
    assert recovered(plain), "it is not forwarded yet, so nothing was missed"
    talk.bring(talk.everything, talk.stored(talk.everything, 100, "x"))
    logged = {"epoch": "all", "offset": 100}
    assert not recovered(plain)
    assert recovered(logged)
    assert not recovered({"epoch": "all", "offset": 99})

    talk.hub.released(durable, talk.release(durable, "hub:unsubscribe", {"topic": "x"}), talk.now)
    assert not recovered(plain)
    talk.publish(publisher, "x")
    assert not recovered(logged)
    talk.retain(durable, "x")
    assert not recovered(logged), "the log has nothing new, but something went past it"
    assert recovered({"epoch": "E.2", "offset": 0})


# --- topics with a log --------------------------------------------------------------------------------------------------------


def logged(**rules: Any) -> tuple[Talk, Binding]:
    """A topic with a log. Any: rules are of all kinds."""
    log = Binding("orders/#", "orders", epoch="L", next_offset=10)
    return Talk(HubRules(rate=None, **rules), bindings=[log]), log


def returning(talk: Talk, offset: int, pattern: str = "orders/#") -> tuple[Session, Recover]:
    session = talk.connect(A)
    effect = talk.say(session, "hub:subscribe", {"topic": pattern, "since": {"epoch": "L", "offset": offset}}, id="s")
    assert isinstance(effect, Recover)
    return session, effect


@pytest.mark.parametrize("pattern", ["orders/#", "orders/eu", "orders/+"])
def test_what_was_missed_comes_from_the_log_before_what_is_new(pattern: str) -> None:
    talk, log = logged()
    session, effect = returning(talk, 6, pattern)
    assert (effect.binding, effect.pattern, effect.start, effect.stop) == (log, pattern, 7, 10)
    assert talk.heard(session) == []

    talk.bring(log, talk.stored(log, 10, "orders/eu"))
    first = [talk.stored(log, 7, "orders/eu"), talk.stored(log, 8, "orders/us/1"), talk.stored(log, 8, "orders/us", "us")]
    talk.hub.recovering(session, effect, first, talk.now, is_first=True)
    talk.bring(log, talk.stored(log, 11, "orders/eu"))
    talk.hub.recovering(session, effect, [talk.stored(log, 9, "orders/eu")], talk.now, is_first=False)
    talk.hub.recovered(session, talk.now)
    talk.bring(log, talk.stored(log, 12, "orders/eu"))

    reply, *messages = talk.heard(session)
    assert pick(reply, "type", "correlationId") == {"type": "hub:subscribed", "correlationId": "s"}
    assert reply["payload"].pop("subscriptionId").startswith("sub-")
    assert reply["payload"] == {"topic": pattern, "recovered": True, "position": {"epoch": "L", "offset": 9}}
    others: dict[str, list[object]] = {"orders/#": [8, "us"], "orders/eu": [], "orders/+": ["us"]}
    assert [one["payload"] for one in messages] == [7, *others[pattern], 9, 10, 11, 12]
    assert (session.holds, talk.hub.metrics.recovered) == (0, 1)


def test_what_has_expired_is_not_missed() -> None:
    talk, log = logged()
    session, effect = returning(talk, 7)
    parts = [talk.stored(log, 8, "orders", expires_at=talk.now - 1), talk.stored(log, 9, "orders", expires_at=talk.now)]

    talk.hub.recovering(session, effect, parts, talk.now, is_first=True)
    talk.hub.recovered(session, talk.now)

    assert talk.messages(session) == [9]


def test_what_is_not_kept_any_more_is_not_recovered_and_what_is_new_still_comes() -> None:
    talk, log = logged()
    session, effect = returning(talk, 6)
    talk.bring(log, talk.stored(log, 10, "orders"))

    talk.hub.recovering(session, effect, None, talk.now, is_first=True)
    talk.hub.recovered(session, talk.now)

    reply, message = talk.heard(session)
    assert (reply["payload"]["recovered"], reply["payload"]["position"]) == (False, {"epoch": "L", "offset": 9})
    assert message["payload"] == 10
    assert talk.hub.metrics.unrecovered == 1


@pytest.mark.parametrize(
    ("epoch", "offset", "is_whole"),
    [
        ("L", 9, True),
        ("L", 10, False),
        ("L", 1 << 53, False),
        ("M", 9, False),
        ("E.1", 9, False),
        ("L", 4, False),
        ("L", -1, False),
    ],
    ids=["nothing missed", "future", "far future", "another log", "a plain one", "too many", "far too many"],
)
def test_where_nothing_has_to_be_read_the_answer_comes_at_once(epoch: str, offset: int, is_whole: bool) -> None:
    talk, _ = logged(max_recovered=4)

    reply = talk.subscribe(talk.connect(A), "orders/#", since={"epoch": epoch, "offset": offset})

    assert (reply["recovered"], reply["position"]) == (is_whole, {"epoch": "L", "offset": 9})


def test_the_most_that_may_be_missed_is_read() -> None:
    talk, _ = logged(max_recovered=4)

    _, effect = returning(talk, 5)

    assert (effect.start, effect.stop) == (6, 10)


@pytest.mark.parametrize("pattern", ["#", "+/eu", "+"])
def test_a_pattern_beyond_one_log_cannot_be_recovered(pattern: str) -> None:
    talk, _ = logged()

    reply = talk.subscribe(talk.connect(A), pattern, since={"epoch": "L", "offset": 9})

    assert reply["recovered"] is False
    assert "position" not in reply


def test_a_subscription_that_is_there_may_be_asked_to_recover_too() -> None:
    talk, _ = logged()
    session = talk.connect(A)
    name = talk.subscribe(session, "orders")["subscriptionId"]

    effect = talk.say(session, "hub:subscribe", {"topic": "orders", "since": {"epoch": "L", "offset": 8}})

    assert isinstance(effect, Recover)
    talk.hub.recovering(session, effect, [], talk.now, is_first=True)
    talk.hub.recovered(session, talk.now)
    assert talk.heard(session)[0]["payload"]["subscriptionId"] == name


def test_who_is_gone_or_has_run_out_meanwhile_gets_nothing_more() -> None:
    talk, log = logged()
    gone, effect = returning(talk, 6)
    talk.hub.closed(gone, talk.now)
    talk.hub.recovering(gone, effect, [talk.stored(log, 7, "orders")], talk.now, is_first=True)
    talk.hub.recovered(gone, talk.now)
    assert talk.heard(gone) == []

    late, effect = returning(talk, 6)
    talk.bring(log, talk.stored(log, 10, "orders"))
    talk.later(300 * SECOND)
    talk.forget(late)
    talk.hub.recovering(late, effect, [talk.stored(log, 7, "orders")], talk.now, is_first=True)
    talk.hub.recovered(late, talk.now)
    assert talk.messages(late) == [10], "it had come while the subscription stood"


def test_one_for_whom_too_much_comes_while_it_recovers_is_cut_off() -> None:
    talk, log = logged(max_outbox_messages=3)
    session, effect = returning(talk, 6)

    talk.bring(log, *(talk.stored(log, offset, "orders") for offset in range(10, 14)))

    assert (session.closing, len(session.held)) == (close_codes.SLOW_READER, 0)
    talk.hub.recovering(session, effect, [talk.stored(log, 7, "orders")], talk.now, is_first=True)
    talk.hub.recovered(session, talk.now)
    assert talk.heard(session) == []


def test_a_recovery_ends_no_pause() -> None:
    talk, log = logged()
    session = talk.connect(A)
    talk.say(session, "hub:pause")
    effect = talk.say(session, "hub:subscribe", {"topic": "orders", "since": {"epoch": "L", "offset": 8}})
    assert isinstance(effect, Recover)
    talk.bring(log, talk.stored(log, 10, "orders"))
    talk.hub.recovering(session, effect, [talk.stored(log, 9, "orders")], talk.now, is_first=True)

    talk.hub.recovered(session, talk.now)

    assert talk.messages(session) == [9], "it was asked for, unlike what is new"
    talk.say(session, "hub:resume")
    assert talk.messages(session) == [10]


def test_what_was_held_is_let_go_however_much_waits_and_counts_once() -> None:
    talk, log = logged(max_outbox_messages=3)
    session, effect = returning(talk, 6)
    sent = talk.hub.metrics.sent
    talk.bring(log, *(talk.stored(log, offset, "orders") for offset in range(10, 13)))
    talk.hub.recovering(session, effect, [talk.stored(log, 9, "orders")], talk.now, is_first=True)

    talk.hub.recovered(session, talk.now)

    assert talk.messages(session) == [9, 10, 11, 12]
    assert (session.closing, talk.hub.metrics.sent - sent) == (None, 5)


# --- durable subscriptions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "streams"),
    [
        ("orders/eu", ["orders"]),
        ("orders/#", ["orders"]),
        ("#", ["orders", "hub"]),
        ("+/eu", ["orders", "hub"]),
        ("chat", ["hub"]),
    ],
)
def test_a_durable_subscription_is_made_on_every_log_it_may_concern(pattern: str, streams: list[str]) -> None:
    talk, _ = logged()
    session = talk.connect(A)

    effect = talk.say(session, "hub:subscribe", {"topic": pattern, "durable": True}, id="s")

    assert isinstance(effect, Retain)
    assert (effect.address, effect.pattern) == (A, pattern)
    assert [binding.stream for binding in effect.bindings] == streams
    assert talk.heard(session) == []
    assert talk.hub.retained(session, effect, talk.now)
    (reply,) = talk.heard(session)
    assert pick(reply, "type", "correlationId") == {"type": "hub:subscribed", "correlationId": "s"}
    assert pick(reply["payload"], "topic", "durable", "recovered") == {"topic": pattern, "durable": True}
    assert talk.subscribe(session, pattern, durable=True, since={"epoch": "L", "offset": 0}) == reply["payload"]


def delivered(talk: Talk, session: Session, pattern: str, *messages: Message) -> list[str]:
    """The ack ids that messages of a durable subscription come with."""
    talk.hub.deliver(session, pattern, messages, talk.now)
    return [frame["metadata"]["ackId"] for frame in talk.heard(session)]


@pytest.mark.parametrize("original", [False, True])
def test_what_is_delivered_waits_for_its_acknowledgement(original: bool) -> None:
    talk = Talk(original=original)
    session = talk.connect(A)
    talk.retain(session, "d")
    messages = [talk.stored(talk.everything, offset, "d") for offset in range(3)]
    zero, one, two = delivered(talk, session, "d", *messages)

    effect = talk.say(session, "hub:ack", {"ackIds": [two, zero, zero, "other"], "ackId": two}, id="k")

    assert effect == Settle(A, {"d": [messages[2], messages[0]]})
    (reply,) = talk.heard(session)
    assert pick(reply, "type", "correlationId", "payload") == {
        "type": "hub:acked",
        "correlationId": "k",
        "payload": {"acked": 2, "unknown": ["other"]},
    }
    assert [*session.unacked] == [one]
    assert talk.ask(session, "hub:ack", {"ackId": zero})["payload"] == {"acked": 0, "unknown": [zero]}
    assert talk.say(session, "hub:ack", {"ackId": one}) == Settle(A, {"d": [messages[1]]})
    assert talk.heard(session)[0]["payload"] == {"acked": 1}


def test_decision_15_an_acknowledgement_settles_one_delivery_and_no_id_of_a_publisher_does() -> None:
    """Two publishers that both call their first message 1, two subscriptions that cover it, and one of them again."""
    talk = Talk()
    session = talk.connect(A)
    for pattern in ("d", "#"):
        talk.retain(session, pattern)
    first, second = (talk.stored(talk.everything, offset, "d", message_id="1") for offset in range(2))
    ids = [*delivered(talk, session, "d", first, second, first), *delivered(talk, session, "#", first)]

    assert len({*ids, "1"}) == 5
    assert talk.ask(session, "hub:ack", {"ackId": "1"})["payload"] == {"acked": 0, "unknown": ["1"]}
    effect = talk.say(session, "hub:ack", {"ackId": ids[0]})

    assert isinstance(effect, Settle)
    assert [(pattern, [*map(id, done)]) for pattern, done in effect.messages.items()] == [("d", [id(first)])]
    assert [*session.unacked] == ids[1:]


def test_an_ack_id_of_an_earlier_connection_settles_nothing() -> None:
    talk = Talk()
    session = talk.connect(A)
    talk.retain(session, "d")
    (old,) = delivered(talk, session, "d", talk.stored(talk.everything, 0, "d"))
    back = talk.connect(A, resume=session)
    talk.retain(back, "d")
    (new,) = delivered(talk, back, "d", talk.stored(talk.everything, 0, "d"))

    assert talk.ask(back, "hub:ack", {"ackId": old})["payload"] == {"acked": 0, "unknown": [old]}
    assert [*back.unacked] == [new]


def test_no_acknowledgement_is_awaited_of_what_a_subscription_brought_that_is_over() -> None:
    talk = Talk()
    session = talk.connect(A)
    talk.retain(session, "d")
    talk.retain(session, "#")
    message = talk.stored(talk.everything, 0, "d")
    (over,), (awaited,) = delivered(talk, session, "d", message), delivered(talk, session, "#", message)

    talk.hub.released(session, talk.release(session, "hub:unsubscribe", {"topic": "d"}), talk.now)
    talk.forget(session)

    assert talk.say(session, "hub:ack", {"ackIds": [over, awaited]}) == Settle(A, {"#": [message]})
    assert talk.heard(session)[0]["payload"] == {"acked": 1, "unknown": [over]}


def test_what_is_delivered_after_the_end_of_a_subscription_does_not_come() -> None:
    """Who delivers hears a moment later that a registration ran out."""
    talk = Talk()
    session = talk.connect(A, ttl=1_000)
    talk.retain(session, "d")
    talk.later(SECOND)
    talk.forget(session)

    talk.hub.deliver(session, "d", [talk.stored(talk.everything, 0, "d")], talk.now)

    assert (talk.heard(session), session.unacked) == ([], {})


@pytest.mark.parametrize("payload", [None, {}, {"ackIds": []}, {"ackId": ""}, {"messageIds": ["m-0"]}])
def test_an_acknowledgement_of_nothing_is_refused(payload: object) -> None:
    talk = Talk()

    error = talk.refused(talk.connect(A), "hub:ack", payload)

    assert (error["code"], error["message"], error["details"]["reason"]) == (
        "internal_error",
        "ackId is required",
        "missing_ack_id",
    )


@pytest.mark.parametrize("how", ["closed", "disconnect", "taken over", "expired"])
def test_a_durable_subscription_rests_while_its_actor_is_away_and_is_resumed_by_address(how: str) -> None:
    talk = Talk()
    session, publisher = talk.connect(A, ttl=60_000), talk.connect(P)
    talk.retain(session, "d/#")
    talk.hub.deliver(session, "d/#", [talk.stored(talk.everything, 0, "d")], talk.now)
    talk.forget(session)

    if how == "closed":
        talk.hub.closed(session, talk.now)
    elif how == "disconnect":
        talk.ask(session, "hub:disconnect")
    elif how == "expired":
        talk.later(60 * SECOND)
    back = talk.connect(A)

    assert (session.subscriptions, session.unacked) == ({}, {})
    assert talk.hub.state.rested == [(session, "d/#")]
    assert talk.append(publisher, "d/x").binding is talk.everything
    effect = talk.say(back, "hub:subscribe", {"topic": "d/#"})
    assert isinstance(effect, Retain)
    assert talk.hub.retained(back, effect, talk.now)
    assert talk.heard(back)[0]["payload"]["durable"] is True


def test_what_is_delivered_to_one_that_is_gone_is_not_kept() -> None:
    talk = Talk()
    session = talk.connect(A)
    talk.retain(session, "d")
    talk.hub.closed(session, talk.now)

    talk.hub.deliver(session, "d", [talk.stored(talk.everything, 0, "d")], talk.now)

    assert (session.unacked, talk.heard(session)) == ({}, [])


def test_a_durable_reader_that_does_not_read_is_cut_off() -> None:
    talk = Talk(HubRules(rate=None, max_outbox_messages=2))
    session = talk.connect(A)
    talk.retain(session, "d")

    talk.hub.deliver(session, "d", [talk.stored(talk.everything, offset, "d") for offset in range(5)], talk.now)

    assert (session.closing, session.unacked) == (close_codes.SLOW_READER, {})


def test_a_durable_subscription_is_ended_for_good_by_unsubscribing_though_it_rests() -> None:
    talk = Talk()
    session, publisher = talk.connect(A), talk.connect(P)
    talk.retain(session, "d")
    talk.hub.closed(session, talk.now)
    back = talk.connect(A)

    effect = talk.release(back, "hub:unsubscribe", {"topic": "d"}, id="u")

    assert (effect.address, effect.patterns, talk.heard(back)) == (A, ("d",), [])
    talk.hub.released(back, effect, talk.now)
    (reply,) = talk.heard(back)
    assert pick(reply, "type", "correlationId", "payload") == {
        "type": "hub:unsubscribed",
        "correlationId": "u",
        "payload": {"topic": "d", "unsubscribedAt": talk.ms},
    }
    assert talk.publish(publisher, "d") is None
    assert talk.hub.state.made == set()


def test_a_subscription_that_becomes_durable_keeps_its_id_and_loses_nothing() -> None:
    talk = Talk()
    session, publisher, watcher = talk.connect(A), talk.connect(P), talk.connect(B)
    name = talk.subscribe(session, "d")["subscriptionId"]
    talk.subscribe(watcher, "d", presence=True)

    effect = talk.say(session, "hub:subscribe", {"topic": "d", "durable": True})
    assert isinstance(effect, Retain)
    talk.append(publisher, "d")
    talk.bring(talk.everything, talk.stored(talk.everything, 0, "d"))
    assert talk.messages(session) == [0], "until it is durable it is what it was"
    talk.hub.retained(session, effect, talk.now)
    talk.bring(talk.everything, talk.stored(talk.everything, 1, "d"))

    assert [pick(one["payload"], "subscriptionId", "durable") for one in talk.heard(session)] == [
        {"subscriptionId": name, "durable": True}
    ]
    assert [one["type"] for one in talk.heard(watcher)] == ["t", "t"], "nobody has joined"


@pytest.mark.parametrize("was_plain", [False, True])
def test_a_durable_subscription_that_cannot_be_made_leaves_things_as_they_were(was_plain: bool) -> None:
    talk = Talk()
    session, publisher = talk.connect(A), talk.connect(P)
    if was_plain:
        talk.subscribe(session, "d")
    effect = talk.say(session, "hub:subscribe", {"topic": "d", "durable": True}, id="s")
    assert isinstance(effect, Retain)

    talk.hub.unretained(session, effect, NO, talk.now)

    (reply,) = talk.heard(session)
    assert (reply["type"], reply["correlationId"], reply["payload"]["message"]) == ("hub:error", "s", "no")
    assert [*session.subscriptions] == (["d"] if was_plain else [])
    assert talk.publish(publisher, "d", 1) is None
    assert talk.messages(session) == ([1] if was_plain else [])


def test_a_durable_subscription_that_cannot_be_resumed_rests_on() -> None:
    talk = Talk()
    talk.hub.resume([(A, "d")])
    session, publisher = talk.connect(A), talk.connect(P)
    effect = talk.say(session, "hub:subscribe", {"topic": "d"})
    assert isinstance(effect, Retain)

    talk.hub.unretained(session, effect, NO, talk.now)

    assert session.subscriptions == {}
    assert talk.append(publisher, "d").binding is talk.everything
    again = talk.say(session, "hub:subscribe", {"topic": "d"})
    assert isinstance(again, Retain)


@pytest.mark.parametrize("is_made", [True, False])
def test_a_durable_subscription_that_is_made_too_late_is_not_wanted_any_more(is_made: bool) -> None:
    talk = Talk()
    first = talk.connect(A)
    effect = talk.say(first, "hub:subscribe", {"topic": "d", "durable": True})
    assert isinstance(effect, Retain)
    second = talk.connect(A)
    talk.retain(second, "d")
    talk.forget(first)

    if is_made:
        assert not talk.hub.retained(first, effect, talk.now)
    else:
        talk.hub.unretained(first, effect, NO, talk.now)

    assert talk.heard(first) == []
    assert [*talk.hub.state.durable.subscribers("d")] == [A], "the other connection has it"


@pytest.mark.parametrize("how", ["closed", "expired", "taken over"])
def test_nothing_is_left_of_a_durable_subscription_that_could_not_be_made_after_its_session_had_gone(how: str) -> None:
    talk = Talk()
    session, publisher = talk.connect(A, ttl=60_000), talk.connect(P)
    effect = talk.say(session, "hub:subscribe", {"topic": "d", "durable": True})
    assert isinstance(effect, Retain)
    if how == "closed":
        talk.hub.closed(session, talk.now)
    elif how == "expired":
        talk.later(60 * SECOND)
    else:
        talk.connect(A)

    talk.hub.unretained(session, effect, NO, talk.now)

    assert (len(talk.hub.state.durable), len(talk.hub.state.making)) == (0, 0)
    assert talk.publish(publisher, "d") is None


def test_a_durable_subscription_that_was_never_made_cannot_fail_to_end() -> None:
    """While one waits for it another ends it. Neither works, and there was none in the first place."""
    talk = Talk()
    first, publisher = talk.connect(A), talk.connect(P)
    made = talk.say(first, "hub:subscribe", {"topic": "d", "durable": True})
    assert isinstance(made, Retain)
    second = talk.connect(A)
    ended = talk.release(second, "hub:unsubscribe", {"topic": "d"})

    talk.hub.unretained(first, made, NO, talk.now)
    talk.hub.unreleased(second, ended, NO, talk.now)

    assert talk.publish(publisher, "d") is None


@pytest.mark.parametrize("second_goes", [False, True])
@pytest.mark.parametrize("made", ["neither", "the first", "the second"])
def test_of_two_connections_that_try_to_make_a_durable_subscription_one_that_succeeds_is_enough(
    made: str, second_goes: bool
) -> None:
    """While the first waits for it the second takes over its address and tries the same."""
    talk = Talk()
    publisher, first = talk.connect(P), talk.connect(A)
    one = talk.say(first, "hub:subscribe", {"topic": "d", "durable": True})
    second = talk.connect(A)
    other = talk.say(second, "hub:subscribe", {"topic": "d", "durable": True})
    assert isinstance(one, Retain)
    assert isinstance(other, Retain)
    if second_goes:
        talk.hub.closed(second, talk.now)

    if made == "the first":
        assert not talk.hub.retained(first, one, talk.now)
    else:
        talk.hub.unretained(first, one, NO, talk.now)
        assert talk.append(publisher, "d").binding is talk.everything, "the second may have it by now"
    if made == "the second":
        assert talk.hub.retained(second, other, talk.now) is not second_goes
    else:
        talk.hub.unretained(second, other, NO, talk.now)

    assert [*talk.hub.state.durable.subscribers("d")] == ([] if made == "neither" else [A])
    assert (len(talk.hub.state.making), len(talk.hub.state.made)) == (0, made != "neither")


@pytest.mark.parametrize("kind", ["retain", "recover"])
def test_a_request_whose_registration_runs_out_while_it_waits_is_answered(kind: str) -> None:
    binding = Binding("kept/#", "kept", epoch="L", next_offset=5)
    talk = Talk(bindings=[binding])
    session = talk.connect(A, ttl=1_000)
    asked: Frame = {"durable": True} if kind == "retain" else {"since": {"epoch": "L", "offset": 0}}
    effect = talk.say(session, "hub:subscribe", {"topic": "kept/x", **asked}, id="s")
    talk.later(SECOND)
    talk.forget(session)

    if isinstance(effect, Retain):
        assert not talk.hub.retained(session, effect, talk.now)
    else:
        assert isinstance(effect, Recover)
        for is_first in (True, False):
            talk.hub.recovering(session, effect, [], talk.now, is_first=is_first)
        talk.hub.recovered(session, talk.now)

    (reply,) = talk.heard(session)
    assert (reply["type"], reply["correlationId"]) == ("hub:error", "s")
    assert reply["payload"]["details"]["reason"] == "registration_expired"


def test_everybody_is_counted_whom_a_message_will_reach() -> None:
    talk = Talk()
    durable, plain, publisher = talk.connect(A), talk.connect(B), talk.connect(P)
    talk.retain(durable, "d")
    talk.subscribe(plain, "#")
    talk.hub.closed(durable, talk.now)

    effect = talk.append(publisher, "d")
    talk.hub.appended(publisher, effect, Position("all", 0), talk.now)

    assert talk.heard(publisher)[0]["payload"]["subscriberCount"] == 2


def test_whoever_may_have_missed_what_a_log_lost_has_to_come_back() -> None:
    binding = Binding("orders/#", "orders", epoch="L", next_offset=5)
    talk = Talk(bindings=[binding])
    reader, wide, other = talk.connect(A), talk.connect(B), talk.connect(P)
    talk.subscribe(reader, "orders/eu")
    talk.subscribe(wide, "#")
    talk.subscribe(other, "users")

    talk.hub.skipped(binding, talk.now)

    assert [session.closing for session in (reader, wide, other)] == [close_codes.FAILED, close_codes.FAILED, None]


def test_who_comes_back_after_the_log_of_everything_lost_messages_is_told_so() -> None:
    """Nothing was forwarded since the position it has seen last, and yet something was published."""
    talk = Talk()
    publisher, durable, reader, away = talk.connect(P), talk.connect(A), talk.connect(B), talk.connect("@(browser/away)")
    talk.subscribe(reader, "d")
    talk.publish(publisher, "d", 1)
    position = pick(talk.heard(reader)[0]["metadata"], "epoch", "offset")
    talk.hub.closed(away, talk.now)
    talk.retain(durable, "d")
    effect = talk.append(publisher, "d", 2)
    talk.hub.appended(publisher, effect, Position("all", 0), talk.now)

    talk.hub.skipped(talk.everything, talk.now)

    assert (reader.closing, durable.closing) == (close_codes.FAILED, None)
    for address in (B, "@(browser/away)"):
        assert talk.subscribe(talk.connect(address), "d", since=position)["recovered"] is False


def test_what_was_missed_is_said_to_be_of_the_log_that_had_it_though_the_topic_was_made_again() -> None:
    binding = Binding("kept/#", "kept", epoch="L", next_offset=5)
    talk = Talk(bindings=[binding])
    session = talk.connect(A)
    effect = talk.say(session, "hub:subscribe", {"topic": "kept/x", "since": {"epoch": "L", "offset": 0}})
    assert isinstance(effect, Recover)
    binding.epoch, binding.next_offset = "M", 0

    talk.hub.recovering(session, effect, None, talk.now, is_first=True)

    payload = talk.heard(session)[0]["payload"]
    assert (payload["recovered"], payload["position"]) == (False, {"epoch": "L", "offset": 4})
