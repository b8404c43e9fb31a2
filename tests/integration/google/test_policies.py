"""Filters, retry policies and dead letters through Google's client: stored is not enough, they must act."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.clock import monotonic
from penstock.testing import ManualClock
from tests.integration.google.real_client import Google, Listener, bodies, unique

MESSAGES: list[dict[str, Any]] = [
    {"data": b"none"},
    {"data": b"a", "attributes": {"kind": "a"}},
    {"data": b"ab", "attributes": {"kind": "ab", "flag": ""}},
    {"data": b"b", "attributes": {"kind": "b"}},
    {"data": b"odd", "attributes": {"key with blank": 'quote"d'}},
]

FILTERS: dict[str, set[bytes]] = {
    'attributes.kind = "a"': {b"a"},
    'attributes.kind != "a"': {b"none", b"ab", b"b", b"odd"},
    "attributes:flag": {b"ab"},
    "NOT attributes:kind": {b"none", b"odd"},
    "-attributes:kind": {b"none", b"odd"},
    'hasPrefix(attributes.kind, "a")': {b"a", b"ab"},
    'attributes.kind = "a" OR attributes.kind = "b"': {b"a", b"b"},
    'attributes:flag AND hasPrefix(attributes.kind, "a")': {b"ab"},
    '(attributes:flag OR attributes.kind = "b") AND NOT attributes.kind = "a"': {b"ab", b"b"},
    'attributes."key with blank" = "quote\\"d"': {b"odd"},
}


def test_a_filter_lets_through_what_it_says(google: Google, subtests: pytest.Subtests) -> None:
    topic = google.topic()
    subscriptions = {text: google.subscription(topic, filter=text) for text in FILTERS}
    google.publish(topic, *MESSAGES)
    for text, wanted in FILTERS.items():
        with subtests.test(filter=text):
            found = google.pull(subscriptions[text], len(wanted))
            assert set(bodies(found)) == wanted
            google.ack(subscriptions[text], found)
            assert google.pull_once(subscriptions[text], now=True) == []


def test_a_filter_works_on_a_stream(google: Google) -> None:
    topic, subscription = google.pair(filter="attributes:wanted")
    with Listener(google, subscription) as listener:
        google.publish(topic, *[{"data": b"no"}] * 50, {"data": b"yes", "attributes": {"wanted": ""}})
        listener.wait(1)
        assert bodies(listener.arrivals.items) == [b"yes"]


def retried(timed: Google, **policy: int) -> tuple[str, str]:
    return timed.pair(retry_policy={name: {"seconds": seconds} for name, seconds in policy.items()})


def test_a_nacked_message_waits_for_its_backoff(timed: Google, clock: ManualClock) -> None:
    topic, subscription = retried(timed, minimum_backoff=30, maximum_backoff=600)
    timed.publish(topic, b"a")
    timed.deadline(subscription, timed.pull(subscription, 1), 0)
    clock.advance(29)
    assert timed.pull_once(subscription, now=True) == []
    clock.advance(15)
    assert bodies(timed.pull(subscription, 1)) == [b"a"]


def test_each_failure_waits_longer_up_to_the_maximum(timed: Google, clock: ManualClock) -> None:
    topic, subscription = retried(timed, minimum_backoff=10, maximum_backoff=60)
    timed.publish(topic, b"a")
    waits = []
    for _ in range(6):
        timed.deadline(subscription, timed.pull(subscription, 1), 0)
        waited = 0
        while not (found := timed.pull_once(subscription, now=True)):
            clock.advance(1)
            waited += 1
            assert waited < 700
        waits.append(waited)
        # Give it back with the next round: this one was only looked at.
        timed.deadline(subscription, found, 0)
        clock.advance(61)
    assert waits[0] < waits[2]
    assert waits == sorted(waits)
    assert max(waits) <= 61


def test_a_run_out_deadline_backs_off_too(timed: Google, clock: ManualClock) -> None:
    topic, subscription = retried(timed, minimum_backoff=100, maximum_backoff=100)
    timed.publish(topic, b"a")
    timed.pull(subscription, 1)
    clock.advance(11)
    assert timed.pull_once(subscription, now=True) == []
    clock.advance(101)
    assert bodies(timed.pull(subscription, 1)) == [b"a"]


def test_backoff_of_one_message_holds_up_no_other(timed: Google) -> None:
    topic, subscription = retried(timed, minimum_backoff=100, maximum_backoff=600)
    timed.publish(topic, b"fails")
    timed.deadline(subscription, timed.pull(subscription, 1), 0)
    timed.publish(topic, b"next")
    assert bodies(timed.pull(subscription, 1)) == [b"next"]


def test_a_backoff_is_kept_in_real_time(google: Google) -> None:
    topic, subscription = google.pair(retry_policy={"minimum_backoff": {"seconds": 1}, "maximum_backoff": {"seconds": 1}})
    google.publish(topic, b"a")
    came: list[int] = []

    def react(message: Any) -> None:
        came.append(monotonic())
        message.nack()

    with Listener(google, subscription, react) as listener:
        listener.wait(2)
    assert came[1] - came[0] >= 1_000_000


def letters(google: Google, attempts: int = 5, **fields: Any) -> tuple[str, str, str]:
    """A topic, a subscription to it with dead letters, and one to the dead letters."""
    dead = google.topic()
    topic, subscription = google.pair(dead_letter_policy={"dead_letter_topic": dead, "max_delivery_attempts": attempts}, **fields)
    return topic, subscription, google.subscription(dead)


def test_attempts_are_counted_when_there_is_a_policy(google: Google) -> None:
    topic, subscription, _ = letters(google)
    google.publish(topic, b"a")
    for attempt in range(1, 4):
        held = google.pull(subscription, 1)
        assert held[0].delivery_attempt == attempt
        google.deadline(subscription, held, 0)


def test_a_message_that_always_fails_becomes_a_dead_letter(google: Google) -> None:
    topic, subscription, graveyard = letters(google)
    (message_id,) = google.publish(topic, {"data": b"poison", "attributes": {"mine": "kept"}})
    attempts: list[int | None] = []

    def fail(message: Any) -> None:
        attempts.append(message.delivery_attempt)
        message.nack()

    with Listener(google, subscription, fail):
        (letter,) = google.pull(graveyard, 1)
    assert attempts == [1, 2, 3, 4, 5]
    assert letter.message.data == b"poison"
    attributes = dict(letter.message.attributes)
    assert attributes.pop("mine") == "kept"
    assert attributes.pop("CloudPubSubDeadLetterSourceSubscription") == subscription.rpartition("/")[2]
    assert attributes.pop("CloudPubSubDeadLetterSourceSubscriptionProject") == google.project
    assert attributes.pop("CloudPubSubDeadLetterSourceDeliveryCount") == "5"
    assert attributes.pop("CloudPubSubDeadLetterSourceTopicPublishTime").startswith("20")
    assert {key for key in attributes if not key.startswith("penstock.")} <= {"CloudPubSubDeadLetterSourceDeliveryErrorMessage"}
    assert letter.message.message_id != message_id
    assert google.pull_once(subscription, now=True) == []


def test_a_message_full_of_attributes_becomes_a_dead_letter_too(google: Google) -> None:
    topic, subscription, graveyard = letters(google)
    google.publish(topic, {"attributes": {f"key{number}": "v" * 1_024 for number in range(100)}})
    with Listener(google, subscription, lambda message: message.nack()):
        (letter,) = google.pull(graveyard, 1)
    assert letter.message.attributes["key99"] == "v" * 1_024


def test_run_out_deadlines_count_as_attempts(timed: Google, clock: ManualClock) -> None:
    topic, subscription, graveyard = letters(timed)
    timed.publish(topic, b"slow")
    for _ in range(5):
        timed.pull(subscription, 1)
        clock.advance(11)
    assert bodies(timed.pull(graveyard, 1)) == [b"slow"]


def test_dead_letters_keep_their_key(google: Google) -> None:
    dead = google.topic()
    graveyard = google.subscription(dead, enable_message_ordering=True)
    policy = {"dead_letter_topic": dead, "max_delivery_attempts": 5}
    topic, subscription = google.pair(enable_message_ordering=True, dead_letter_policy=policy)
    google.publish(topic, *[{"data": b"%d" % number, "ordering_key": "k"} for number in range(3)])
    with Listener(google, subscription, lambda message: message.nack()), Listener(google, graveyard) as listener:
        found = listener.wait(3)
    assert [(message.ordering_key, message.data) for message in found] == [("k", b"0"), ("k", b"1"), ("k", b"2")]


def test_a_dead_letter_topic_that_was_deleted_is_shown_so_and_loses_nothing(google: Google) -> None:
    topic, subscription, _ = letters(google)
    shown = google.call(google.subscriber.get_subscription, {"subscription": subscription})
    google.call(google.plain.delete_topic, {"topic": shown.dead_letter_policy.dead_letter_topic})
    google.publish(topic, b"a")
    for _ in range(7):
        google.deadline(subscription, google.pull(subscription, 1), 0)
    assert bodies(google.pull(subscription, 1)) == [b"a"]
    shown = google.call(google.subscriber.get_subscription, {"subscription": subscription})
    assert shown.dead_letter_policy.dead_letter_topic == "_deleted-topic_"


def test_a_policy_given_later_counts_from_then(google: Google) -> None:
    topic, subscription = google.pair()
    dead = google.topic(name=google.name("topics", unique("graves")))
    graveyard = google.subscription(dead)
    google.publish(topic, b"a")
    google.deadline(subscription, google.pull(subscription, 1), 0)
    policy = {"dead_letter_topic": dead, "max_delivery_attempts": 5}
    google.update(subscription, "dead_letter_policy", dead_letter_policy=policy)
    with Listener(google, subscription, lambda message: message.nack()):
        assert bodies(google.pull(graveyard, 1)) == [b"a"]
