"""Exactly-once subscriptions through Google's client: an ack is confirmed, or it is said why not."""

from __future__ import annotations

from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud.pubsub_v1.subscriber.exceptions import AcknowledgeError, AcknowledgeStatus

from penstock.testing import ManualClock
from tests.integration.google.real_client import PATIENCE, Google, Listener, bodies

EXACT = {"enable_exactly_once_delivery": True}


def test_an_ack_is_confirmed(google: Google) -> None:
    topic, subscription = google.pair(**EXACT)
    google.publish(topic, b"a")
    futures: list[Any] = []
    with Listener(google, subscription, lambda message: futures.append(message.ack_with_response())) as listener:
        listener.wait(1)
        assert futures[0].result(PATIENCE) == AcknowledgeStatus.SUCCESS


def give_back(google: Google, subscription: str, ack_id: str) -> None:
    """End a delivery behind its consumer's back: the ack id is stale from then on."""
    request = {"subscription": subscription, "ack_ids": [ack_id], "ack_deadline_seconds": 0}
    google.call(google.subscriber.modify_ack_deadline, request)


def test_an_ack_that_is_repeated_holds_because_its_first_answer_may_have_been_lost(google: Google) -> None:
    topic, subscription = google.pair(**EXACT)
    google.publish(topic, b"a")
    with Listener(google, subscription, lambda message: None) as listener:
        (message,) = listener.wait(1)
        google.call(google.subscriber.acknowledge, {"subscription": subscription, "ack_ids": [message.ack_id]})
        assert message.ack_with_response().result(PATIENCE) == AcknowledgeStatus.SUCCESS


def test_a_stale_ack_is_refused_for_good(google: Google) -> None:
    topic, subscription = google.pair(**EXACT)
    google.publish(topic, b"a")
    with Listener(google, subscription, lambda message: None) as listener:
        (message,) = listener.wait(1)
        give_back(google, subscription, message.ack_id)
        with pytest.raises(AcknowledgeError) as caught:
            message.ack_with_response().result(PATIENCE)
        assert caught.value.error_code == AcknowledgeStatus.INVALID_ACK_ID


def test_a_stale_id_takes_no_good_one_along(google: Google) -> None:
    # The client sends acks in batches, and takes an error for the answer to every id that the details do not name.
    topic, subscription = google.pair(**EXACT)
    google.publish(topic, *[b"%d" % number for number in range(20)])
    with Listener(google, subscription, lambda message: None) as listener:
        held = listener.wait(20)
        give_back(google, subscription, held[7].ack_id)
        stale, *futures = [message.ack_with_response() for message in [held.pop(7), *held]]
        with pytest.raises(AcknowledgeError):
            stale.result(PATIENCE)
        assert [future.result(PATIENCE) for future in futures] == [AcknowledgeStatus.SUCCESS] * 19


def test_a_nack_is_confirmed_and_the_message_comes_again(google: Google) -> None:
    topic, subscription = google.pair(**EXACT)
    google.publish(topic, b"a")
    futures: list[Any] = []

    def react(message: Any) -> None:
        futures.append(message.ack_with_response() if futures else message.nack_with_response())

    with Listener(google, subscription, react) as listener:
        first, second = listener.wait(2)
        assert first.message_id == second.message_id
        assert first.ack_id != second.ack_id
        assert [future.result(PATIENCE) for future in futures] == [AcknowledgeStatus.SUCCESS] * 2


def test_a_new_deadline_is_confirmed(google: Google) -> None:
    topic, subscription = google.pair(**EXACT)
    google.publish(topic, b"a")
    with Listener(google, subscription, lambda message: None) as listener:
        (message,) = listener.wait(1)
        assert message.modify_ack_deadline_with_response(60).result(PATIENCE) == AcknowledgeStatus.SUCCESS
        assert message.ack_with_response().result(PATIENCE) == AcknowledgeStatus.SUCCESS


def test_many_messages_are_each_delivered_once(google: Google) -> None:
    topic, subscription = google.pair(**EXACT)
    google.publish(topic, *[b"%d" % number for number in range(300)])
    futures: list[Any] = []
    with Listener(google, subscription, lambda message: futures.append(message.ack_with_response())) as listener:
        found = listener.wait(300)
        assert {future.result(PATIENCE) for future in list(futures)} == {AcknowledgeStatus.SUCCESS}
    assert sorted(int(body) for body in bodies(found)) == list(range(300))


def test_an_ack_after_the_deadline_is_refused_also_when_nobody_has_looked_since(timed: Google, clock: ManualClock) -> None:
    topic, subscription = timed.pair(**EXACT)
    timed.publish(topic, b"a")
    late = timed.pull(subscription, 1)
    clock.advance(10)
    for _ in range(2):
        with pytest.raises(exceptions.FailedPrecondition):
            timed.ack(subscription, late)
    clock.advance(1)
    again = timed.pull(subscription, 1)
    for _ in range(2):
        timed.ack(subscription, again)


@pytest.mark.parametrize("verb", ["ack", "modify"])
def test_a_stale_id_is_refused_with_its_reason(timed: Google, clock: ManualClock, verb: str) -> None:
    topic, subscription = timed.pair(**EXACT)
    timed.publish(topic, b"a", b"b")
    stale = timed.pull(subscription, 2)
    clock.advance(11)
    fresh = timed.pull(subscription, 2)

    def settle(deliveries: list[Any]) -> None:
        timed.ack(subscription, deliveries) if verb == "ack" else timed.deadline(subscription, deliveries, 30)

    with pytest.raises(exceptions.GoogleAPICallError) as caught:
        settle([stale[0], fresh[1]])
    told = dict(caught.value.metadata)
    assert told.pop(stale[0].ack_id) == "PERMANENT_FAILURE_INVALID_ACK_ID"
    # What was good in the request has been done, or may be sent again.
    if told:
        assert told.pop(fresh[1].ack_id).startswith("TRANSIENT_FAILURE_")
        settle([fresh[1]])
    assert not told
    clock.advance(11)
    again = timed.pull(subscription, 1)
    assert again[0].message.data == fresh[0].message.data
    assert timed.pull_once(subscription, now=True) == []


def test_nothing_comes_again_while_it_is_leased(timed: Google, clock: ManualClock) -> None:
    topic, subscription = timed.pair(**EXACT)
    timed.publish(topic, b"a")
    held = timed.pull(subscription, 1)
    for _ in range(3):
        clock.advance(9)
        timed.deadline(subscription, held, 10)
        assert timed.pull_once(subscription, now=True) == []
    timed.ack(subscription, held)


def test_a_subscription_may_become_exact_while_it_is_used(google: Google) -> None:
    topic, subscription = google.pair()
    statuses: list[Any] = []
    with Listener(google, subscription, lambda message: statuses.append(message.ack_with_response())) as listener:
        google.publish(topic, b"before")
        listener.wait(1)
        google.update(subscription, "enable_exactly_once_delivery", enable_exactly_once_delivery=True)
        google.publish(topic, b"after")
        listener.wait(2)
        assert statuses[1].result(PATIENCE) == AcknowledgeStatus.SUCCESS


def test_exactly_once_with_order(google: Google) -> None:
    topic, subscription = google.pair(**EXACT, enable_message_ordering=True)
    google.publish(topic, *[{"data": b"%d" % number, "ordering_key": "k"} for number in range(50)])
    with Listener(google, subscription, lambda message: message.ack_with_response()) as listener:
        assert [int(body) for body in bodies(listener.wait(50))] == list(range(50))
