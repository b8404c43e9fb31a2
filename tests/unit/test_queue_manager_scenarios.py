"""Specification 003: its eight test scenarios, then its operations, configuration and metrics."""

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from penstock import NewMessage, QueueConfig, QueueManager, QueueMessage, RetryPolicy
from penstock.durations import to_datetime
from penstock.errors import (
    InvalidArgument,
    PenstockError,
    QueueFull,
    QueueNotFound,
)
from penstock.testing import ManualClock
from penstock.values.queue import HeldMessage, QueueConsumer

MICROSECOND = timedelta(microseconds=1)


@pytest.fixture
def manager(manager: QueueManager) -> QueueManager:
    """Both kinds of manager, with a queue."""
    manager.create("tasks")
    return manager


def take(manager: QueueManager, **options: Any) -> QueueMessage:
    message = manager.consume("tasks", **options)
    assert message is not None, "the queue has something to deliver"
    return message


def drain(manager: QueueManager) -> list[Any]:
    """The payloads of everything that is ready, in order of delivery, each acked."""
    payloads = []
    while (message := manager.consume("tasks")) is not None:
        payloads.append(message.payload)
        manager.ack("tasks", message.message_id)
    return payloads


# ── the eight scenarios ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_scenario_1_basic_fifo_ordering(manager: QueueManager, clock: ManualClock) -> None:
    for number in range(20):
        manager.publish("tasks", number)
        clock.advance(0.5)

    assert drain(manager) == [*range(20)]


def test_scenario_2_priority_ordering(manager: QueueManager, clock: ManualClock) -> None:
    for priority in (3, 9, 0, 5, 9, 3, None, 0):
        manager.publish("tasks", [priority, clock.now()], priority=priority)
        clock.advance(1)

    delivered = drain(manager)

    assert [priority for priority, _ in delivered] == [9, 9, 5, None, 3, 3, 0, 0]
    assert all(one[1] < two[1] for one, two in zip(delivered[::2], delivered[1::2], strict=True))


def test_scenario_2_a_requeued_message_keeps_its_priority_and_its_place_in_age(manager: QueueManager) -> None:
    for payload, priority in (("old", 5), ("young", 5), ("urgent", 9)):
        manager.publish("tasks", payload, priority=priority)
    urgent, old = take(manager), take(manager)
    manager.nack("tasks", old.message_id)
    manager.nack("tasks", urgent.message_id)

    assert drain(manager) == ["urgent", "old", "young"]


def test_scenario_3_multiple_consumers_share_the_load_and_nobody_gets_a_message_twice(manager: QueueManager) -> None:
    for number in range(9):
        manager.publish("tasks", number)

    got = [take(manager, consumer_id=name).payload for name in ("w1", "w2", "w3") for _ in range(3)]

    assert sorted(got) == [*range(9)]
    assert manager.consume("tasks", "w4") is None
    assert manager.stats("tasks").consumers == 3


def test_scenario_3_a_consumer_at_its_prefetch_leaves_the_rest_to_the_others(manager: QueueManager) -> None:
    for number in range(6):
        manager.publish("tasks", number)

    slow = manager.consume_many("tasks", "slow", prefetch=2)
    fast = manager.consume_many("tasks", "fast")

    assert [message.payload for message in slow] == [0, 1]
    assert [message.payload for message in fast] == [2, 3, 4, 5]


def test_scenario_4_ack_timeout_and_retry(manager: QueueManager, clock: ManualClock) -> None:
    manager.publish("tasks", "job")

    for retry in range(4):
        assert take(manager).retry_count == retry
        clock.advance(timedelta(seconds=30) - MICROSECOND)
        assert manager.consume("tasks") is None
        clock.advance(MICROSECOND)

    assert manager.consume("tasks") is None
    assert [letter.reason for letter in manager.dead_letters("tasks")] == ["max_retries_exceeded"]


def test_scenario_4_the_consumer_may_ask_for_its_own_ack_deadline(manager: QueueManager, clock: ManualClock) -> None:
    manager.publish("tasks", "job")
    message = take(manager, ack_deadline=60)

    clock.advance(timedelta(seconds=60) - MICROSECOND)
    manager.ack("tasks", message.message_id)

    assert manager.stats("tasks").acked_total == 1


def test_scenario_4_automatic_retry_with_exponential_backoff(manager: QueueManager, clock: ManualClock) -> None:
    manager.create("slow", QueueConfig(retry_policy=RetryPolicy(minimum_backoff=2, maximum_backoff=5), max_retries=4))
    manager.publish("slow", "job")

    for wait in (2, 4, 5, 5):
        message = manager.consume("slow")
        assert message is not None
        assert manager.nack("slow", message.message_id).action == "requeued"
        clock.advance(timedelta(seconds=wait) - MICROSECOND)
        assert manager.consume("slow") is None
        clock.advance(MICROSECOND)

    assert manager.stats("slow").depth == 1


def test_scenario_5_dead_letter_queue_by_max_retries(manager: QueueManager) -> None:
    manager.publish("tasks", {"job": 1}, headers={"source": "web"}, max_retries=1)

    assert manager.nack("tasks", take(manager).message_id).action == "requeued"
    result = manager.nack("tasks", take(manager).message_id, error="boom")

    assert (result.action, result.success) == ("dead_lettered", True)
    [letter] = manager.dead_letters("tasks")
    assert (letter.reason, letter.original_queue, letter.attempts) == ("max_retries_exceeded", "tasks", 2)
    assert (letter.message.payload, letter.message.headers, letter.last_error) == ({"job": 1}, {"source": "web"}, "boom")


def test_scenario_5_dead_letter_queue_by_ttl(manager: QueueManager, clock: ManualClock) -> None:
    manager.publish("tasks", "job", ttl=60)

    clock.advance(timedelta(seconds=60) - MICROSECOND)
    assert manager.dead_letters("tasks") == []
    assert manager.stats("tasks").depth == 1
    clock.advance(MICROSECOND)

    assert [letter.reason for letter in manager.dead_letters("tasks")] == ["ttl_expired"]
    assert manager.consume("tasks") is None


def test_scenario_5_a_dead_letter_can_be_retried_and_the_list_purged(manager: QueueManager) -> None:
    ids = [manager.publish("tasks", number).message_id for number in range(3)]
    for _ in ids:
        manager.nack("tasks", take(manager).message_id, requeue=False)

    manager.retry_dead_letter("tasks", ids[1])

    again = take(manager)
    assert (again.message_id, again.payload, again.retry_count) == (ids[1], 1, 0)
    assert [letter.message.message_id for letter in manager.dead_letters("tasks")] == [ids[0], ids[2]]
    assert manager.purge_dead_letters("tasks") == 2
    assert manager.dead_letters("tasks") == []
    assert manager.purge_dead_letters("tasks") == 0


def test_scenario_6_prefetch_limits(manager: QueueManager) -> None:
    for number in range(5):
        manager.publish("tasks", number)

    first = take(manager, consumer_id="w1", prefetch=2)
    second = take(manager, consumer_id="w1", prefetch=2)

    assert manager.consume("tasks", "w1", prefetch=2) is None
    manager.ack("tasks", first.message_id)
    assert take(manager, consumer_id="w1", prefetch=2).payload == 2
    assert manager.consume("tasks", "w1", prefetch=2) is None
    manager.nack("tasks", second.message_id)
    assert take(manager, consumer_id="w1", prefetch=2).payload == 1


def test_scenario_6_the_default_prefetch_is_10_and_the_most_1000(manager: QueueManager) -> None:
    for number in range(12):
        manager.publish("tasks", number)

    assert len(manager.consume_many("tasks", "w1", max_messages=100)) == 10
    assert manager.consume("tasks", "w1") is None
    assert len(manager.consume_many("tasks", "w1", max_messages=100, prefetch=1_000)) == 2
    for prefetch in (0, 1_001):
        with pytest.raises(InvalidArgument):
            manager.consume("tasks", "w1", prefetch=prefetch)


def test_scenario_7_concurrent_publish_and_consume_lose_and_double_nothing(manager: QueueManager) -> None:
    producers, consumers, each = 4, 4, 50
    total = producers * each
    taken: list[str] = []
    published: list[str] = []
    failures: list[PenstockError] = []

    def produce(number: int) -> None:
        published.extend([manager.publish("tasks", [number, index]).message_id for index in range(each)])

    def consume(name: str) -> None:
        while len(taken) < total and not failures:
            message = manager.consume("tasks", name)
            if message is not None:
                manager.ack("tasks", message.message_id, name)
                taken.append(message.message_id)

    def guarded(work: Callable[[Any], None], argument: object) -> None:
        try:
            work(argument)
        except PenstockError as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(produce, number)) for number in range(producers)]
    threads += [threading.Thread(target=guarded, args=(consume, f"w{number}")) for number in range(consumers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert failures == []
    assert len(published) == total
    assert Counter(taken) == Counter(published)
    stats = manager.stats("tasks")
    assert (stats.depth, stats.published_total, stats.consumed_total, stats.acked_total) == (0, total, total, total)


def test_scenario_8_queue_full_behavior(manager: QueueManager) -> None:
    manager.create("small", QueueConfig(max_depth=2))
    manager.publish("small", "a")
    manager.publish("small", "b")

    with pytest.raises(QueueFull, match="small"):
        manager.publish("small", "c")
    held = manager.consume("small")
    assert held is not None
    with pytest.raises(QueueFull):
        manager.publish("small", "c")
    manager.ack("small", held.message_id)
    manager.publish("small", "c")

    assert manager.stats("small").published_total == 3


# ── operations ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_operation_publish_returns_an_id_and_a_position_and_defaults_to_priority_5(manager: QueueManager) -> None:
    first = manager.publish("tasks", {"type": "process_video", "video_id": "vid_123"}, priority=8, headers={"source": "web-app"})
    second = manager.publish("tasks", b"x")

    assert (first.position, second.position) == (1, 2)
    message = take(manager, timeout=0, ack_deadline=60)
    assert message.message_id == first.message_id
    assert message.payload == {"type": "process_video", "video_id": "vid_123"}
    assert (message.priority, message.retry_count, message.headers) == (8, 0, {"source": "web-app"})
    assert take(manager).priority == 5


def test_operation_consume_without_a_timeout_returns_none_from_an_empty_queue(manager: QueueManager) -> None:
    assert manager.consume("tasks") is None
    assert manager.consume_many("tasks", max_messages=5) == []


def test_operation_consume_waits_for_a_message_up_to_its_timeout(manager: QueueManager) -> None:
    got: list[QueueMessage | None] = []
    consumer = threading.Thread(target=lambda: got.append(manager.consume("tasks", timeout=60)))
    consumer.start()
    manager.publish("tasks", "late")
    consumer.join(30)

    assert [message.payload for message in got if message] == ["late"]


def test_operation_purge_clears_the_queue_and_says_how_many(manager: QueueManager) -> None:
    for number in range(3):
        manager.publish("tasks", number)

    assert manager.purge("tasks") == 3
    assert manager.consume("tasks") is None
    assert manager.purge("tasks") == 0


def test_operation_delete_removes_the_queue(manager: QueueManager) -> None:
    manager.publish("tasks", "job")

    manager.delete("tasks")

    assert manager.list() == []
    with pytest.raises(QueueNotFound):
        manager.stats("tasks")
    manager.create("tasks")
    assert manager.consume("tasks") is None


def test_operation_list_names_every_queue(manager: QueueManager) -> None:
    manager.create("mails")

    assert manager.list() == ["tasks", "mails"]


def test_operation_peek_shows_the_next_message_without_consuming_it(manager: QueueManager) -> None:
    assert manager.peek("tasks") is None
    manager.publish("tasks", "low", priority=1)
    manager.publish("tasks", "high", priority=9)

    shown = manager.peek("tasks")

    assert shown is not None
    assert (shown.payload, shown.retry_count) == ("high", 0)
    assert manager.peek("tasks") == shown
    assert manager.stats("tasks").consumed_total == 0
    assert take(manager) == shown


# ── configuration and metrics ────────────────────────────────────────────────────────────────────────────────────────────


def test_configuration_has_the_defaults_of_the_specification() -> None:
    config = QueueConfig()

    assert (config.ack_deadline_secs, config.max_retries, config.default_priority) == (30, 3, 5)
    assert (config.max_depth, config.dead_letter_enabled, config.dead_letter_max_size) == (100_000, True, 10_000)
    assert (config.default_prefetch, config.max_prefetch) == (10, 1_000)


def test_metrics_are_those_of_the_specification_and_true(manager: QueueManager, clock: ManualClock) -> None:
    for number in range(5):
        manager.publish("tasks", number)
    clock.advance(2)
    acked, nacked, buried, expired = (take(manager, consumer_id=f"w{number % 2}") for number in range(4))
    manager.ack("tasks", acked.message_id)
    manager.nack("tasks", buried.message_id, requeue=False)
    clock.advance(30)
    clock.advance(13)
    late = take(manager)
    manager.nack("tasks", late.message_id)

    stats = manager.stats("tasks")

    assert stats.queue == "tasks"
    assert late.message_id == nacked.message_id
    assert expired.message_id != late.message_id
    assert (stats.depth, stats.consumers) == (3, 3)
    assert (stats.published_total, stats.consumed_total, stats.acked_total) == (5, 5, 1)
    assert (stats.nacked_total, stats.dead_lettered_total) == (2, 1)
    assert stats.avg_wait_time_ms == 2_000
    assert stats.oldest_message_age_secs == 45


def test_headers_may_be_as_long_as_tokens_and_have_any_names(manager: QueueManager) -> None:
    headers = {
        "authorization": f"Bearer {'x' * 8_000}",
        "baggage": ",".join(f"key{n}=value" for n in range(180)),
        "goog-trace": "1",
    }
    headers |= {f"n{number}": "ü" for number in range(300)}
    headers["rest"] = "x" * (65_536 - len("rest") - sum(len(f"{name}{value}".encode()) for name, value in headers.items()))
    manager.publish("tasks", b"", headers=headers)
    message = manager.consume("tasks")
    assert message is not None
    assert message.headers == headers


def test_queues_without_settings_of_their_own_have_those_of_the_manager() -> None:
    defaults = QueueConfig(max_retries=7, ack_deadline_secs=60, default_prefetch=20, retry_policy=RetryPolicy(1, 30))
    with QueueManager(defaults=defaults) as manager:
        manager.create("plain")
        manager.create("other", max_retries=1)
        manager.create("complete", QueueConfig(max_depth=5))
        assert manager.config("plain") == manager.defaults == defaults
        assert manager.config("other") == replace(defaults, max_retries=1)
        assert manager.config("complete") == QueueConfig(max_depth=5)
        assert manager.update("plain", max_depth=9) == replace(defaults, max_depth=9)


def test_defaults_and_settings_that_make_no_sense_are_refused(manager: QueueManager) -> None:
    with pytest.raises(InvalidArgument, match="expected a QueueConfig"):
        QueueManager(defaults={"max_retries": 7})  # type: ignore[arg-type]  # that is the point
    with pytest.raises(InvalidArgument, match="unknown setting 'retries'"):
        manager.create("other", retries=7)  # type: ignore[call-arg]  # that is the point
    with pytest.raises(InvalidArgument, match="config is given together with max_retries"):
        manager.create("other", QueueConfig(), max_retries=7)
    with pytest.raises(InvalidArgument, match="max_retries is -1"):
        manager.create("other", max_retries=-1)
    assert manager.list() == ["tasks"]


def test_consumers_are_listed_with_what_each_holds_since_when(manager: QueueManager, clock: ManualClock) -> None:
    ids = manager.publish_many("tasks", [NewMessage(number) for number in range(4)])
    assert manager.consumers("tasks") == []
    start = to_datetime(clock.now())
    manager.consume_many("tasks", "a", max_messages=2, prefetch=5)
    clock.advance(10)
    manager.consume("tasks", "b", ack_deadline=60)
    manager.consume("tasks", "never")
    manager.ack("tasks", ids[3])
    manager.extend("tasks", ids[1], 90)
    seconds = timedelta(seconds=1)
    held = [
        HeldMessage(ids[0], 0, start, start + 30 * seconds),
        HeldMessage(ids[1], 0, start, start + 100 * seconds),
        HeldMessage(ids[2], 0, start + 10 * seconds, start + 70 * seconds),
    ]
    assert manager.consumers("tasks") == [
        QueueConsumer("a", None, 5, 2, held[:2]),
        QueueConsumer("b", None, 10, 1, held[2:]),
        QueueConsumer("never", None, 10, 0, []),
    ]
    assert manager.stats("tasks").consumers == 3
    assert manager.consumers("tasks", 1)[0] == QueueConsumer("a", None, 5, 2, held[:1])
    manager.release_consumer("tasks", "a")
    assert [one.consumer_id for one in manager.consumers("tasks", 0)] == ["b", "never"]
    with pytest.raises(InvalidArgument, match="max_messages is -1"):
        manager.consumers("tasks", -1)
    with pytest.raises(QueueNotFound):
        manager.consumers("other")
