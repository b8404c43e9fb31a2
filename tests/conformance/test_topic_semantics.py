"""One suite of what topics and subscriptions mean, through every way to reach them. APIs hold no rules: none may differ."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.testing import ManualClock
from tests.conformance.conftest import ON_POSTGRES, journal_of
from tests.conformance.topic_drivers import Embedded, Given, Got, Grpc, Refused, Rest, Topics

INVALID_ARGUMENT, NOT_FOUND, ALREADY_EXISTS, FAILED_PRECONDITION = 3, 5, 6, 9
PACE = 0.1
"""More than a message rests after a nack where an API has no retry policy."""


@pytest.fixture(
    params=[
        "memory",
        pytest.param("durable", marks=pytest.mark.long),
        ON_POSTGRES,
        pytest.param("grpc", marks=pytest.mark.server),
        pytest.param("rest", marks=pytest.mark.server),
    ]
)
def topics(request: pytest.FixtureRequest, tmp_path: Path, project: str) -> Iterator[Topics]:
    driver: Any
    if request.param in {"memory", "durable", "postgres"}:
        driver = Embedded(ManualClock(), journal_of(request.param, request, tmp_path))
    else:
        clock, server = request.getfixturevalue("manual_clock"), request.getfixturevalue("manual_server")
        driver = (Grpc if request.param == "grpc" else Rest)(clock, server, project)
    yield driver
    driver.close()


def bodies(deliveries: list[Got]) -> list[bytes]:
    return [delivery.data for delivery in deliveries]


def test_every_subscription_gets_every_message_once_in_order(topics: Topics) -> None:
    topics.create_topic("orders")
    for name in ("billing", "shipping"):
        topics.subscribe(name, "orders")
    ids = topics.publish("orders", *(Given(b"%d" % number) for number in range(10)))
    assert len(set(ids)) == 10
    for name in ("billing", "shipping"):
        got = topics.pull(name)
        assert (bodies(got), [one.message_id for one in got]) == ([b"%d" % number for number in range(10)], ids)
        assert topics.pull(name) == []
        topics.ack(name, *(one.ack_id for one in got))
        topics.clock.advance(60)
        assert topics.pull(name) == []


def test_a_message_arrives_as_it_was_published(topics: Topics) -> None:
    topics.create_topic("orders")
    topics.subscribe("billing", "orders", ordered=True)
    topics.publish("orders", Given(bytes(range(256)), {"ключ": "värde", "empty": ""}, "k1"))
    [got] = topics.pull("billing")
    assert (got.data, got.attributes, got.key) == (bytes(range(256)), {"ключ": "värde", "empty": ""}, "k1")


def test_a_subscription_gets_what_is_published_after_it(topics: Topics) -> None:
    topics.create_topic("orders")
    topics.publish("orders", Given(b"before"))
    topics.subscribe("billing", "orders")
    topics.publish("orders", Given(b"after"))
    assert bodies(topics.pull("billing")) == [b"after"]


def test_a_lease_that_runs_out_gives_the_message_back_with_another_ack_id(topics: Topics) -> None:
    topics.create_topic("orders")
    topics.subscribe("billing", "orders", ack_deadline=20)
    topics.publish("orders", Given(b"a"))
    [first] = topics.pull("billing")
    topics.clock.advance(19.9)
    assert topics.pull("billing") == []
    topics.clock.advance(0.1 + PACE)
    [second] = topics.pull("billing")
    assert second.message_id == first.message_id
    assert second.ack_id != first.ack_id
    topics.ack("billing", first.ack_id)
    topics.clock.advance(20 + PACE)
    [third] = topics.pull("billing")
    topics.ack("billing", third.ack_id)
    topics.clock.advance(60)
    assert topics.pull("billing") == []


def test_a_nacked_message_comes_back(topics: Topics) -> None:
    topics.create_topic("orders")
    topics.subscribe("billing", "orders")
    topics.publish("orders", Given(b"a"), Given(b"b"))
    first, _ = topics.pull("billing")
    topics.nack("billing", first.ack_id)
    topics.clock.advance(PACE)
    assert bodies(topics.pull("billing")) == [b"a"]


def test_a_deadline_is_set_from_now(topics: Topics) -> None:
    topics.create_topic("orders")
    topics.subscribe("billing", "orders")
    topics.publish("orders", Given(b"a"))
    [got] = topics.pull("billing")
    topics.extend("billing", got.ack_id, 60)
    topics.clock.advance(59)
    assert topics.pull("billing") == []
    topics.clock.advance(1 + PACE)
    assert bodies(topics.pull("billing")) == [b"a"]


def test_of_one_key_only_one_is_out_and_a_failed_one_blocks_its_key_alone(topics: Topics) -> None:
    topics.create_topic("orders")
    topics.subscribe("billing", "orders", ordered=True)
    for key, data in (("a", b"a1"), ("a", b"a2"), ("b", b"b1"), ("a", b"a3")):
        topics.publish("orders", Given(data, key=key))
    first = topics.pull("billing")
    assert bodies(first) == [b"a1", b"b1"]
    topics.nack("billing", first[0].ack_id)
    topics.clock.advance(PACE)
    order = []
    while got := topics.pull("billing"):
        order += bodies(got)
        topics.ack("billing", *(one.ack_id for one in got))
    assert order == [b"a1", b"a2", b"a3"]


def test_a_retry_policy_keeps_a_failed_message_back_longer_each_time(topics: Topics) -> None:
    topics.create_topic("orders")
    topics.subscribe("billing", "orders", backoff=(10, 600))
    topics.publish("orders", Given(b"a"))
    for wait in (10, 20, 40):
        [got] = topics.pull("billing")
        topics.nack("billing", got.ack_id)
        topics.clock.advance(wait - 0.001)
        assert topics.pull("billing") == []
        topics.clock.advance(0.001)
    assert bodies(topics.pull("billing")) == [b"a"]


def test_after_its_last_attempt_a_message_goes_to_the_dead_letter_topic_with_all_it_had(topics: Topics) -> None:
    for topic in ("orders", "dead"):
        topics.create_topic(topic)
    topics.subscribe("graves", "dead")
    topics.subscribe("billing", "orders", dead=("dead", 5))
    topics.publish("orders", Given(b"a", {"own": "1"}))
    for _ in range(5):
        assert topics.pull("graves") == []
        [got] = topics.pull("billing")
        topics.nack("billing", got.ack_id)
        topics.clock.advance(PACE)
    assert topics.pull("billing") == []
    [letter] = topics.pull("graves")
    assert (letter.data, letter.attributes["own"]) == (b"a", "1")
    assert letter.attributes["penstock.source"].endswith("billing")  # after its project, where that is not the default
    assert letter.attributes["penstock.attempts"] == "5"


def test_a_filter_lets_through_what_matches(topics: Topics) -> None:
    topics.create_topic("orders")
    topics.subscribe("french", "orders", filter='attributes.country = "FR" OR hasPrefix(attributes.country, "CH")')
    topics.publish("orders", Given(b"1", {"country": "FR"}), Given(b"2", {"country": "DE"}), Given(b"3", {"country": "CH-GE"}))
    assert bodies(topics.pull("french")) == [b"1", b"3"]


def test_a_snapshot_brings_back_what_was_unsettled_then_and_came_since(topics: Topics) -> None:
    topics.create_topic("orders")
    topics.subscribe("billing", "orders")
    topics.publish("orders", Given(b"settled"), Given(b"open"))
    settled, held = topics.pull("billing")
    topics.ack("billing", settled.ack_id)
    topics.snapshot("mark", "billing")
    topics.ack("billing", held.ack_id)
    topics.publish("orders", Given(b"later"))
    topics.ack("billing", *(one.ack_id for one in topics.pull("billing")))
    topics.seek("billing", snapshot="mark")
    assert bodies(topics.pull("billing")) == [b"open", b"later"]


def test_a_seek_in_time_settles_what_is_before_and_brings_back_what_is_kept(topics: Topics) -> None:
    topics.create_topic("orders")
    topics.subscribe("keeps", "orders", keep=True)
    topics.subscribe("forgets", "orders")
    topics.publish("orders", Given(b"1"))
    topics.clock.advance(10)
    middle = topics.clock.time.timestamp()
    topics.publish("orders", Given(b"2"))
    for name in ("keeps", "forgets"):
        topics.ack(name, *(one.ack_id for one in topics.pull(name)))
        topics.seek(name, time=middle)
    assert bodies(topics.pull("keeps")) == [b"2"]
    assert topics.pull("forgets") == []
    topics.seek("keeps", time=middle + 3600)
    topics.clock.advance(60)
    assert topics.pull("keeps") == []


def test_what_a_deleted_topic_left_is_empty_and_what_a_deleted_subscription_held_is_gone(topics: Topics) -> None:
    topics.create_topic("orders")
    topics.subscribe("billing", "orders")
    topics.publish("orders", Given(b"a"))
    topics.delete_topic("orders")
    with pytest.raises(Refused) as refused:
        topics.pull("billing")
    assert refused.value.code == FAILED_PRECONDITION
    topics.unsubscribe("billing")
    with pytest.raises(Refused) as refused:
        topics.pull("billing")
    assert refused.value.code == NOT_FOUND


def test_errors_are_the_same_everywhere(topics: Topics) -> None:
    topics.create_topic("orders")
    topics.subscribe("billing", "orders")
    for code, call in (
        (ALREADY_EXISTS, lambda: topics.create_topic("orders")),
        (ALREADY_EXISTS, lambda: topics.subscribe("billing", "orders")),
        (NOT_FOUND, lambda: topics.publish("nowhere", Given(b"a"))),
        (NOT_FOUND, lambda: topics.subscribe("other", "nowhere")),
        (NOT_FOUND, lambda: topics.pull("nowhere")),
        (NOT_FOUND, lambda: topics.delete_topic("nowhere")),
        (NOT_FOUND, lambda: topics.unsubscribe("nowhere")),
        (NOT_FOUND, lambda: topics.seek("billing", snapshot="nowhere")),
        (NOT_FOUND, lambda: topics.snapshot("mark", "nowhere")),
        (INVALID_ARGUMENT, lambda: topics.publish("orders")),
        (INVALID_ARGUMENT, lambda: topics.publish("orders", Given(b""))),
        (INVALID_ARGUMENT, lambda: topics.publish("orders", Given(b"a", {"goog.x": "1"}))),
        (INVALID_ARGUMENT, lambda: topics.publish("orders", Given(b"a", {"k": "x" * 1025}))),
        (INVALID_ARGUMENT, lambda: topics.publish("orders", Given(b"a", key="x" * 1025))),
        (INVALID_ARGUMENT, lambda: topics.subscribe("other", "orders", ack_deadline=9)),
        (INVALID_ARGUMENT, lambda: topics.subscribe("other", "orders", ack_deadline=601)),
        (INVALID_ARGUMENT, lambda: topics.subscribe("other", "orders", filter="nonsense")),
    ):
        with pytest.raises(Refused) as refused:
            call()
        assert refused.value.code == code
    assert topics.pull("billing") == []
