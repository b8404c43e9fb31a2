"""Pull, Acknowledge and ModifyAckDeadline through Google's client."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

import pytest
from google.api_core import exceptions

from penstock.clock import monotonic
from penstock.testing import ManualClock
from tests.integration.google.real_client import PATIENCE, Google, bodies


def test_an_acked_message_does_not_come_again(timed: Google, clock: ManualClock) -> None:
    topic, subscription = timed.pair()
    timed.publish(topic, b"a", b"b")
    timed.ack(subscription, timed.pull(subscription, 2))
    clock.advance(601)
    assert timed.pull_once(subscription, now=True) == []


def test_a_message_comes_again_when_its_deadline_has_passed(timed: Google, clock: ManualClock) -> None:
    topic, subscription = timed.pair(ack_deadline_seconds=20)
    timed.publish(topic, b"a")
    (first,) = timed.pull(subscription, 1)
    clock.advance(19.9)
    assert timed.pull_once(subscription, now=True) == []
    clock.advance(0.2)
    (second,) = timed.pull(subscription, 1)
    assert second.message == first.message
    assert second.ack_id != first.ack_id


def test_a_longer_deadline_holds(timed: Google, clock: ManualClock) -> None:
    topic, subscription = timed.pair()
    timed.publish(topic, b"a")
    held = timed.pull(subscription, 1)
    timed.deadline(subscription, held, 600)
    clock.advance(599)
    assert timed.pull_once(subscription, now=True) == []
    timed.ack(subscription, held)
    clock.advance(700)
    assert timed.pull_once(subscription, now=True) == []


def test_a_shorter_deadline_counts_from_now(timed: Google, clock: ManualClock) -> None:
    topic, subscription = timed.pair(ack_deadline_seconds=600)
    timed.publish(topic, b"a")
    timed.deadline(subscription, timed.pull(subscription, 1), 10)
    clock.advance(10.1)
    assert bodies(timed.pull(subscription, 1)) == [b"a"]


def test_a_nacked_message_comes_again_at_once(google: Google) -> None:
    topic, subscription = google.pair(ack_deadline_seconds=600)
    google.publish(topic, b"a")
    google.deadline(subscription, google.pull(subscription, 1), 0)
    before = monotonic()
    assert bodies(google.pull(subscription, 1)) == [b"a"]
    assert monotonic() - before < 5_000_000


def test_an_old_ack_id_is_taken_without_a_word_and_does_nothing(timed: Google, clock: ManualClock) -> None:
    topic, subscription = timed.pair()
    timed.publish(topic, b"a")
    stale = timed.pull(subscription, 1)
    clock.advance(11)
    fresh = timed.pull(subscription, 1)
    timed.deadline(subscription, stale, 0)
    assert timed.pull_once(subscription, now=True) == []
    timed.ack(subscription, fresh)
    timed.ack(subscription, fresh)


def test_pull_returns_no_more_than_asked_for(google: Google) -> None:
    topic, subscription = google.pair()
    google.publish(topic, *[b"%d" % number for number in range(10)])
    assert len(google.pull_once(subscription, 3)) <= 3
    with pytest.raises(exceptions.InvalidArgument):
        google.pull_once(subscription, 0)
    with pytest.raises(exceptions.InvalidArgument):
        google.pull_once(subscription, -1)


def test_pull_of_many_small_messages_fits_what_a_client_takes(google: Google) -> None:
    topic, subscription = google.pair()
    for _ in range(4):
        google.publish(topic, *[b"x" * 8_000] * 500)
    assert len(google.pull(subscription, 2_000)) == 2_000


def test_pull_of_nothing_returns_soon_or_at_once(google: Google) -> None:
    _, subscription = google.pair()
    before = monotonic()
    assert google.pull_once(subscription, now=True) == []
    assert monotonic() - before < 900_000
    assert google.pull_once(subscription) == []


def test_a_waiting_pull_gets_what_is_published_meanwhile(google: Google) -> None:
    topic, subscription = google.pair()
    found: list[bytes] = []
    puller = threading.Thread(target=lambda: found.extend(bodies(google.pull(subscription, 1))))
    puller.start()
    google.publish(topic, b"just now")
    puller.join(PATIENCE)
    assert found == [b"just now"]


def test_ids_and_times_have_their_types(google: Google) -> None:
    topic, subscription = google.pair()
    before = datetime.now(UTC) - timedelta(seconds=1)
    google.publish(topic, b"a")
    (found,) = google.pull(subscription, 1)
    assert isinstance(found.message.message_id, str)
    assert found.message.message_id
    assert before < found.message.publish_time < datetime.now(UTC) + timedelta(seconds=1)


def test_a_deadline_out_of_bounds_is_refused(google: Google) -> None:
    topic, subscription = google.pair()
    google.publish(topic, b"a")
    held = google.pull(subscription, 1)
    for seconds in (-1, 601):
        with pytest.raises(exceptions.InvalidArgument):
            google.deadline(subscription, held, seconds)


def test_acks_without_ids_are_refused(google: Google) -> None:
    _, subscription = google.pair()
    with pytest.raises(exceptions.InvalidArgument):
        google.ack(subscription, [])
    with pytest.raises(exceptions.InvalidArgument):
        google.deadline(subscription, [], 10)


def test_an_ack_on_no_subscription_is_not_found(google: Google) -> None:
    topic, subscription = google.pair()
    google.publish(topic, b"a")
    held = google.pull(subscription, 1)
    with pytest.raises(exceptions.NotFound):
        google.ack(google.name("subscriptions"), held)


def test_an_ack_on_another_subscription_does_nothing(timed: Google, clock: ManualClock) -> None:
    topic, mine = timed.pair()
    other = timed.subscription(topic)
    timed.publish(topic, b"a")
    held = timed.pull(mine, 1)
    timed.ack(other, held)
    clock.advance(11)
    assert bodies(timed.pull(mine, 1)) == [b"a"]
    assert bodies(timed.pull(other, 1)) == [b"a"]


def test_a_message_is_forgotten_after_the_subscriptions_retention(timed: Google, clock: ManualClock) -> None:
    topic, subscription = timed.pair(message_retention_duration={"seconds": 600})
    timed.publish(topic, b"old")
    clock.advance(590)
    timed.publish(topic, b"young")
    clock.advance(11)
    assert bodies(timed.pull(subscription, 1)) == [b"young"]
    assert timed.pull_once(subscription, now=True) == []
