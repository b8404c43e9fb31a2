"""One suite of what work queues mean, in this process and through the HTTP port. APIs hold no rules: none may differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.testing import ManualClock
from tests.conformance.conftest import LONG_ON_POSTGRES, journal_of
from tests.conformance.queue_drivers import Commands, Embedded, Queues, Refused


@pytest.fixture(
    params=[
        "memory",
        pytest.param("durable", marks=pytest.mark.long),
        LONG_ON_POSTGRES,
        pytest.param("commands", marks=pytest.mark.server),
    ]
)
def queues(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Queues]:
    driver: Embedded | Commands
    if request.param == "commands":
        driver = Commands(ManualClock(), tmp_path / "data")
    else:
        driver = Embedded(ManualClock(), journal_of(request.param, request, tmp_path))
    yield driver
    driver.close()


def taken(queues: Queues, queue: str = "tasks", **options: Any) -> list[Any]:
    """The payloads of everything that can be consumed now."""
    payloads = []
    while message := queues.consume(queue, **options):
        payloads.append(message["payload"])
    return payloads


def test_urgent_messages_come_first_and_equal_ones_in_order(queues: Queues) -> None:
    queues.create("tasks")
    for number, priority in enumerate((1, 9, 5, 9, 5)):
        queues.publish("tasks", number, priority=priority)
    assert taken(queues) == [1, 3, 2, 4, 0]


def test_a_message_comes_as_it_was_published_and_says_all_about_itself(queues: Queues) -> None:
    queues.create("tasks", max_retries=7)
    payload = {"a": [1, 2.5, None, True, "ü"], "b": {}}
    published = queues.publish("tasks", payload, headers={"trace": "1"}, priority=8)
    message = queues.consume("tasks")
    assert message is not None
    assert message["payload"] == payload
    assert (message["message_id"], message["priority"], message["headers"]) == (published["message_id"], 8, {"trace": "1"})
    assert (message["retry_count"], message["max_retries"]) == (0, 7)
    assert queues.consume("tasks") is None


def test_the_position_counts_those_that_are_before_it(queues: Queues) -> None:
    queues.create("tasks")
    positions = [queues.publish("tasks", "x", priority=priority)["position"] for priority in (5, 5, 9, 0)]
    assert positions == [1, 2, 1, 4]


def test_an_acked_message_is_gone_and_a_late_ack_says_why(queues: Queues) -> None:
    queues.create("tasks", ack_deadline_secs=30)
    first = queues.publish("tasks", 1)["message_id"]
    queues.consume("tasks")
    queues.ack("tasks", first)
    for _ in range(2):
        with pytest.raises(Refused) as refused:
            queues.ack("tasks", first)
        assert refused.value.reason == "message_not_found"
    second = queues.publish("tasks", 2)["message_id"]
    queues.consume("tasks")
    queues.clock.advance(30)
    with pytest.raises(Refused) as refused:
        queues.ack("tasks", second)
    assert refused.value.reason == "ack_deadline_exceeded"
    assert taken(queues) == [2]


def test_a_failed_message_is_tried_again_and_then_buried_with_its_reason(queues: Queues) -> None:
    queues.create("tasks", max_retries=1)
    message_id = queues.publish("tasks", "x")["message_id"]
    for retry, action in enumerate(("requeued", "dead_lettered")):
        message = queues.consume("tasks")
        assert message is not None
        assert message["retry_count"] == retry
        assert queues.nack("tasks", message_id, error="boom") == action
    [letter] = queues.dead_letters("tasks")
    assert (letter["reason"], letter["attempts"], letter["last_error"]) == ("max_retries_exceeded", 2, "boom")
    queues.retry("tasks", message_id)
    assert queues.dead_letters("tasks") == []
    message = queues.consume("tasks")
    assert message is not None
    assert (message["message_id"], message["retry_count"]) == (message_id, 0)


def test_nack_without_requeue_and_a_ttl_bury_too_and_a_redrive_brings_all_back(queues: Queues) -> None:
    queues.create("tasks")
    queues.publish("tasks", "mortal", ttl=5)
    refused = queues.publish("tasks", "refused", priority=9)["message_id"]
    queues.consume("tasks")
    assert queues.nack("tasks", refused, requeue=False) == "dead_lettered"
    queues.clock.advance(5)
    assert queues.consume("tasks") is None
    assert sorted(letter["reason"] for letter in queues.dead_letters("tasks")) == ["explicit_nack", "ttl_expired"]
    assert queues.redrive("tasks") == 2
    assert taken(queues) == ["refused", "mortal"]


def test_a_delayed_message_and_a_backoff_wait_their_time(queues: Queues) -> None:
    queues.create("tasks", retry_policy={"minimum_backoff": 10, "maximum_backoff": 60})
    message_id = queues.publish("tasks", "x", delay=30)["message_id"]
    queues.clock.advance(29.999)
    assert queues.consume("tasks") is None
    queues.clock.advance(0.001)
    assert queues.consume("tasks") is not None
    queues.nack("tasks", message_id)
    queues.clock.advance(9.999)
    assert queues.consume("tasks") is None
    queues.clock.advance(0.001)
    assert taken(queues) == ["x"]


def test_a_consumer_holds_no_more_than_its_prefetch_and_gives_everything_back_when_released(queues: Queues) -> None:
    queues.create("tasks", default_prefetch=2)
    for number in range(5):
        queues.publish("tasks", number)
    assert taken(queues, consumer_id="one") == [0, 1]
    assert taken(queues, consumer_id="two", prefetch=1) == [2]
    assert queues.release("tasks", "one") == 2
    assert taken(queues, consumer_id="three") == [0, 1]
    with pytest.raises(Refused) as refused:
        queues.release("tasks", "nobody")
    assert refused.value.reason == "consumer_not_found"


def test_an_extended_message_is_held_for_longer(queues: Queues) -> None:
    queues.create("tasks", ack_deadline_secs=10)
    message_id = queues.publish("tasks", "x")["message_id"]
    queues.consume("tasks")
    queues.extend("tasks", message_id, 60)
    queues.clock.advance(59)
    assert queues.consume("tasks") is None
    queues.clock.advance(1)
    assert taken(queues) == ["x"]


def test_a_full_queue_refuses_and_a_purge_takes_what_waits(queues: Queues) -> None:
    queues.create("tasks", max_depth=2)
    queues.publish("tasks", 1)
    queues.publish("tasks", 2)
    with pytest.raises(Refused) as refused:
        queues.publish("tasks", 3)
    assert refused.value.reason == "queue_full"
    peeked = queues.peek("tasks")
    assert peeked is not None
    assert peeked["payload"] == 1
    queues.consume("tasks")
    assert queues.purge("tasks") == 1
    assert queues.peek("tasks") is None


def test_the_numbers_add_up(queues: Queues) -> None:
    queues.create("tasks", max_retries=0)
    ids = [queues.publish("tasks", number)["message_id"] for number in range(4)]
    for _ in range(3):
        queues.consume("tasks", consumer_id="w")
    queues.ack("tasks", ids[0])
    queues.nack("tasks", ids[1])
    stats = queues.stats("tasks")
    wanted = {"depth": 1, "consumers": 1, "published_total": 4, "consumed_total": 3, "acked_total": 1, "nacked_total": 1}
    assert {name: stats[name] for name in wanted} == wanted
    assert (stats["dead_lettered_total"], stats["in_flight"]) == (1, 1)


def test_idempotent_publishing_adds_nothing_twice(queues: Queues) -> None:
    queues.create("tasks")
    first = queues.publish("tasks", "x", producer_id="p", sequence=1)["message_id"]
    assert queues.publish("tasks", "x", producer_id="p", sequence=1)["message_id"] == first
    assert taken(queues) == ["x"]


def test_queues_are_listed_deleted_and_missed(queues: Queues) -> None:
    for name in ("one", "two"):
        queues.create(name)
    assert queues.list() == ["one", "two"]
    with pytest.raises(Refused) as refused:
        queues.create("one")
    assert refused.value.reason == "already_exists"
    queues.delete("one")
    assert queues.list() == ["two"]
    for call in (
        lambda: queues.publish("one", 1),
        lambda: queues.stats("one"),
        lambda: queues.purge("one"),
        lambda: queues.delete("one"),
        lambda: queues.ack("one", "0" * 30),
        lambda: queues.dead_letters("one"),
    ):
        with pytest.raises(Refused) as refused:
            call()
        assert refused.value.reason == "queue_not_found"


def test_bad_values_are_refused_and_change_nothing(queues: Queues) -> None:
    queues.create("tasks")
    cases: tuple[tuple[str, Callable[[], object]], ...] = (
        ("invalid_priority", lambda: queues.publish("tasks", 1, priority=10)),
        ("invalid_argument", lambda: queues.publish("tasks", 1, ttl=0)),
        ("invalid_argument", lambda: queues.publish("tasks", 1, headers={"k": "x" * 65_537})),
        ("invalid_argument", lambda: queues.publish("tasks", 1, delay=1, deliver_at=5.0)),
        ("invalid_argument", lambda: queues.consume("tasks", ack_deadline=0)),
        ("invalid_argument", lambda: queues.create("")),
        ("message_not_found", lambda: queues.ack("tasks", "nonsense")),
    )
    for reason, call in cases:
        with pytest.raises(Refused) as refused:
            call()
        assert refused.value.reason == reason
    assert queues.stats("tasks")["published_total"] == 0
