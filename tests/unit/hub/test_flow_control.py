"""Pause and resume, what waits, and the numbers of a hub."""

from __future__ import annotations

import pytest

from penstock.durations import SECOND
from penstock.hub.core import close_codes
from penstock.hub.core.dialects import SPECIFIED
from penstock.hub.core.messages import Message, Position
from penstock.hub.core.metrics import HubMetrics
from penstock.hub.core.rules import HubRules
from tests.unit.hub.talk import Frame, Talk, pick

A, P = "@(browser/a)", "@(seag/publisher-1)"


@pytest.mark.parametrize("original", [False, True])
def test_a_pause_holds_messages_back_in_order_while_replies_still_come(original: bool) -> None:
    talk = Talk(original=original)
    session, publisher = talk.connect(A), talk.connect(P)
    talk.subscribe(session, "x")

    assert pick(talk.ask(session, "hub:pause", {"reason": "busy"}, id="p"), "type", "correlationId", "payload") == {
        "type": "hub:flow",
        "correlationId": "p",
        "payload": {"paused": True, "queueDepth": 0},
    }
    for number in range(3):
        talk.publish(publisher, "x", number)
    talk.say(publisher, "hub:send", {"to": A, "type": "t", "data": "direct"})
    assert [one["payload"].get("subscriberCount") for one in talk.heard(publisher)][:3] == [1, 1, 1]
    assert talk.ask(session, "hub:pause")["payload"] == {"paused": True, "queueDepth": 4}

    talk.say(session, "hub:resume")
    talk.publish(publisher, "x", 3)

    reply, *messages = talk.heard(session)
    assert (reply["type"], reply["payload"]) == ("hub:flow", {"paused": False, "queueDepth": 4})
    assert [one["payload"] for one in messages] == [0, 1, 2, "direct", 3]
    assert (session.holds, len(session.held)) == (0, 0)


def test_to_resume_without_a_pause_changes_nothing() -> None:
    talk = Talk()
    session = talk.connect(A)

    assert talk.ask(session, "hub:resume")["payload"] == {"paused": False, "queueDepth": 0}
    assert session.holds == 0


@pytest.mark.parametrize(
    ("limit", "held"),
    [(HubRules(rate=None, max_outbox_messages=3), 3), (HubRules(rate=None, max_outbox_bytes=800), 4)],
    ids=["messages", "bytes"],
)
def test_what_is_held_back_is_bounded(limit: HubRules, held: int) -> None:
    talk = Talk(limit)
    session, publisher = talk.connect(A), talk.connect(P)
    talk.subscribe(session, "x")
    talk.ask(session, "hub:pause")
    for _ in range(3):
        talk.publish(publisher, "x", "y" * 20)
        talk.forget(publisher)
    assert (session.is_open, len(session.held)) == (True, 3)

    for _ in range(3):
        talk.publish(publisher, "x", "y" * 20)
        talk.forget(publisher)

    assert (session.closing, len(session.held), session.held.bytes) == (close_codes.SLOW_READER, 0, 0)


def test_one_who_leaves_while_it_pauses_is_sent_nothing_of_what_was_held() -> None:
    talk = Talk()
    session, publisher = talk.connect(A), talk.connect(P)
    talk.subscribe(session, "x")
    talk.ask(session, "hub:pause")
    talk.publish(publisher, "x")

    assert talk.ask(session, "hub:disconnect")["type"] == "hub:disconnect_ack"
    assert len(session.held) == 0


@pytest.mark.parametrize("original", [False, True])
def test_what_waits_can_be_asked(original: bool) -> None:
    talk = Talk(HubRules(rate=None, max_outbox_messages=100), original=original)
    session, publisher = talk.connect(A), talk.connect(P)
    talk.subscribe(session, "x")
    talk.publish(publisher, "x")
    talk.say(session, "hub:pause")
    talk.publish(publisher, "x")
    waiting = session.outbox.bytes + session.held.bytes
    talk.now += 2 * SECOND

    talk.say(session, "hub:queue_stats", id="q")

    reply = talk.heard(session)[-1]
    assert (reply["type"], reply["correlationId"]) == ("hub:queue_stats_response", "q")
    assert reply["payload"] == {
        "queueDepth": 3,
        "queueBytes": waiting,
        "processingRate": session.sent / 2 - 0.5,
        "pauseThreshold": 100,
        "resumeThreshold": 50,
        "paused": True,
    }


def metrics(talk: Talk) -> Frame:
    found: Frame = talk.ask(talk.meet(), "hub:metrics")["payload"]
    return found


def test_the_numbers_of_the_minute_that_runs() -> None:
    talk = Talk()
    session = talk.meet()
    talk.refused(session, "nonsense")
    talk.hub.closed(session, talk.now)
    start = talk.ms
    talk.now += 30 * SECOND

    first = metrics(talk)

    assert first == {
        "messages_received": 4,
        "messages_sent": 3,
        "errors": 1,
        "connections_opened": 2,
        "connections_closed": 1,
        "windowStart": start,
        "timestamp": talk.ms,
    }
    talk.later(30 * SECOND)
    assert metrics(talk) == {
        "messages_received": 2,
        "messages_sent": 1,
        "errors": 0,
        "connections_opened": 1,
        "connections_closed": 0,
        "windowStart": talk.ms,
        "timestamp": talk.ms,
    }


def test_a_clock_that_is_set_back_begins_a_new_minute() -> None:
    numbers = HubMetrics(100 * SECOND)
    numbers.received = 5

    assert numbers.minute(99 * SECOND).messages_received == 0
    assert numbers.minute(99 * SECOND).windowStart == 99_000


def test_closes_and_errors_are_counted_by_why() -> None:
    talk = Talk()
    gone, silent = talk.connect(A), talk.connect(P)
    talk.refused(gone, "hub:subscribe", {"topic": ""})
    talk.hub.closed(gone, talk.now)
    talk.later(600 * SECOND)
    talk.hub.closed(silent, talk.now)

    assert dict(talk.hub.metrics.closed) == {"gone": 1, close_codes.SILENT.reason: 1}
    assert dict(talk.hub.metrics.errors) == {"internal_error": 1}
    assert talk.hub.metrics.opened == 2


def test_what_a_message_is_counted_as_is_about_what_is_sent() -> None:
    uuid = "5b3d6c1e-2f0a-4a7e-8f57-0c8f7f1f0c11"
    for data in (b"1", b'"x"' * 1_000):
        message = Message(
            type="order:placed",
            sender="@(agent/billing)",
            data=data,
            message_id=uuid,
            published_at=1_767_266_435_616_000,
            topic="orders/eu",
            ack_id=uuid,
            position=Position("2-660655f7688b7", 123_456),
        )
        sent = len(b"".join(SPECIFIED.parts(message, lambda: uuid))) + len('"@(browser/client-ui)"')
        assert sent <= message.weight <= sent + 80
