"""Rows 58 and 59 of the decisions: what survives the end of a process, and what is refused as damaged.

Every test of what survives runs twice: after a close, which leaves a checkpoint, and after a crash, which leaves only the log.
"""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import fields
from datetime import timedelta
from itertools import count
from pathlib import Path

import pytest

from penstock import (
    Broker,
    DeadLetterPolicy,
    FlowControl,
    Message,
    MessageQueue,
    QueueConfig,
    QueueManager,
    RetryPolicy,
    SubscriptionOptions,
)
from penstock.errors import AckDeadlineExceeded, CorruptLog, DataDirectoryInUse, InvalidArgument, PenstockError
from penstock.testing import ManualClock

MICROSECOND = timedelta(microseconds=1)
Options = SubscriptionOptions
Faces = tuple[MessageQueue, QueueManager]


@pytest.fixture(params=["closed", "crashed"])
def restart(request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path) -> Iterator[Callable[[], Faces]]:
    """Open a broker; every further call ends the one before and opens what it left on disk."""
    opened: list[Broker] = []
    places = (tmp_path / f"data-{number}" for number in count())
    last = tmp_path

    def again() -> Faces:
        nonlocal last
        left, path = last, next(places)
        last = path
        if opened:
            broker = opened.pop()
            broker.sync()
            if request.param == "closed":
                broker.close()
            # A copy made while the broker is open is what a killed process leaves: no checkpoint, no farewell.
            shutil.copytree(left, path)
            broker.close()
        opened.append(Broker(clock=clock, data_dir=path))
        return MessageQueue(broker=opened[0]), QueueManager(broker=opened[0])

    yield again
    for broker in opened:
        broker.close()


def orders(queue: MessageQueue, options: SubscriptionOptions | None = None) -> None:
    queue.register_topic("orders")
    queue.register_topic("dead")
    queue.register_subscription("undertaker", "dead")
    queue.register_subscription("billing", "orders", options)


def publish(queue: MessageQueue, *bodies: bytes, key: str = "") -> list[str]:
    return queue.publish("orders", [Message(data=body, ordering_key=key) for body in bodies])


def pulled(queue: MessageQueue, name: str = "billing") -> list[bytes]:
    return [message.data for message in queue.pull(name, 100)]


# ── what survives ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_decision_58_a_lease_survives_runs_to_its_deadline_and_counts_as_an_attempt(
    restart: Callable[[], Faces], clock: ManualClock
) -> None:
    queue, _ = restart()
    orders(queue)
    publish(queue, b"a", b"b")
    first, _ = queue.pull("billing", 2)
    queue.modify_ack_deadline(first.ack_id, 5)
    clock.advance(4)

    queue, _ = restart()

    assert queue.stats("billing").in_flight == 2
    clock.advance(timedelta(seconds=6) - MICROSECOND)
    assert pulled(queue) == []
    clock.advance(MICROSECOND)
    [again] = queue.pull("billing", 10)
    assert (again.data, again.delivery_attempt) == (b"b", 2)
    queue.ack(first.ack_id)
    assert queue.stats("billing").acked_total == 1


def test_decision_58_a_lease_that_ran_out_while_nobody_was_there_counts_from_its_deadline(
    restart: Callable[[], Faces], clock: ManualClock
) -> None:
    queue, _ = restart()
    orders(queue, Options(retry_policy=RetryPolicy(20, 60), dead_letter_policy=DeadLetterPolicy("dead", 2)))
    publish(queue, b"a")
    [old] = queue.pull("billing")
    clock.advance(25)

    queue, _ = restart()

    assert queue.stats("billing").delayed == 1
    with pytest.raises(InvalidArgument):
        queue.ack(old.ack_id)
    clock.advance(5)
    [last] = queue.pull("billing")
    assert last.delivery_attempt == 2
    clock.advance(10)
    queue, _ = restart()
    assert pulled(queue, "undertaker") == [b"a"]
    assert queue.stats("billing").backlog == 0


def test_decision_58_attempts_and_backoff_survive(restart: Callable[[], Faces], clock: ManualClock) -> None:
    queue, _ = restart()
    orders(queue, Options(retry_policy=RetryPolicy(2, 60)))
    publish(queue, b"a")
    for attempt, wait in ((1, 2), (2, 4), (3, 8)):
        [message] = queue.pull("billing")
        assert message.delivery_attempt == attempt
        queue.nack(message.ack_id)
        queue, _ = restart()
        clock.advance(timedelta(seconds=wait) - MICROSECOND)
        assert queue.pull("billing") == []
        clock.advance(MICROSECOND)

    assert queue.peek("billing")[0].delivery_attempt == 4


def test_decision_58_an_old_ack_id_never_fits_a_delivery_after_a_restart(
    restart: Callable[[], Faces], clock: ManualClock
) -> None:
    queue, _ = restart()
    orders(queue)
    publish(queue, b"a")
    old = [queue.pull("billing")[0].ack_id]
    queue.ack(old[0])
    queue.seek("billing", offset=0)
    queue, _ = restart()
    for _ in range(3):
        [message] = queue.pull("billing")
        assert message.ack_id not in old
        assert queue.nack_many(old) == old
        old.append(message.ack_id)
        queue.nack(message.ack_id)
        queue, _ = restart()


def test_decision_58_a_key_stays_blocked_by_its_leased_delayed_or_waiting_head(
    restart: Callable[[], Faces], clock: ManualClock
) -> None:
    queue, _ = restart()
    orders(queue, Options(message_ordering=True, retry_policy=RetryPolicy(30, 30)))
    ids = {key: publish(queue, b"1" + key.encode(), b"2" + key.encode(), key=key) for key in ("leased", "failed", "waiting")}
    leased, failed = queue.pull("billing", 2)
    queue.modify_ack_deadline(leased.ack_id, 100)
    queue.nack(failed.ack_id)

    queue, _ = restart()

    for head, follower in ids.values():
        explanation = queue.explain("billing", follower)
        assert explanation is not None
        assert (explanation.reason, explanation.by) == ("key_blocked", head)
    assert pulled(queue) == [b"1waiting"]
    queue.ack(leased.ack_id)
    assert pulled(queue) == [b"2leased"]


def test_decision_58_delays_and_times_to_live_survive(restart: Callable[[], Faces], clock: ManualClock) -> None:
    queue, manager = restart()
    orders(queue)
    manager.create("tasks")
    queue.publish(
        "orders", [Message(data=b"later", deliver_at=clock.time + timedelta(seconds=10)), Message(data=b"short", ttl=10)]
    )
    manager.publish("tasks", "later", delay=10)
    manager.publish("tasks", "short", ttl=10)
    clock.advance(timedelta(seconds=10) - MICROSECOND)

    queue, manager = restart()

    assert [message.data for message in queue.peek("billing", 10)] == [b"short"]
    assert manager.stats("tasks").delayed == 1
    clock.advance(MICROSECOND)
    assert pulled(queue) == [b"later"]
    assert [message.payload for message in manager.consume_many("tasks")] == ["later"]
    assert [letter.reason for letter in manager.dead_letters("tasks")] == ["ttl_expired"]


def test_decision_58_dead_letters_survive_and_can_be_redriven_even_when_evicted(
    restart: Callable[[], Faces], clock: ManualClock
) -> None:
    _, manager = restart()
    manager.create("tasks", QueueConfig(dead_letter_max_size=2))
    ids = [manager.publish("tasks", payload, headers={"k": "v"}, ttl=60).message_id for payload in ({"n": 1}, "two", b"three")]
    for message_id in ids:
        manager.consume("tasks")
        manager.nack("tasks", message_id, requeue=False, error="boom")
    before = manager.dead_letters("tasks")
    clock.advance(3600)

    _, manager = restart()

    assert manager.dead_letters("tasks") == before
    assert [letter.message.message_id for letter in before] == ids[1:]
    manager.retry_dead_letter("tasks", ids[0])
    assert manager.redrive("tasks", where=lambda letter: letter.message.payload == "two") == 1
    _, manager = restart()
    assert [message.payload for message in manager.consume_many("tasks")] == [{"n": 1}, "two"]
    assert len(manager.dead_letters("tasks")) == 1
    assert manager.stats("tasks").dead_letters_evicted_total == 1


def test_decision_58_every_counter_survives(restart: Callable[[], Faces], clock: ManualClock) -> None:
    queue, manager = restart()
    dead = DeadLetterPolicy("dead", 2)
    orders(queue, Options(dead_letter_policy=dead, max_messages=5, overflow="discard"))
    queue.register_subscription("stranded", "orders", Options(dead_letter_policy=DeadLetterPolicy("missing", 1)))
    publish(queue, *b"a b c d e f".split())
    queue.ack(queue.pull("billing")[0].ack_id)
    for _ in range(2):
        queue.nack(queue.pull("billing")[0].ack_id)
    queue.nack(queue.pull("stranded")[0].ack_id)
    queue.pull("billing")
    clock.advance(12)
    queue.pull("billing")
    manager.create("tasks")
    for payload in ("a", "b", "c"):
        manager.publish("tasks", payload)
    clock.advance(1)
    held = manager.consume_many("tasks", "w1", max_messages=2)
    manager.ack("tasks", held[0].message_id)
    manager.nack("tasks", held[1].message_id, requeue=False)
    billing, tasks = queue.stats("billing"), manager.stats("tasks")
    others = [queue.stats(name) for name in ("stranded", "undertaker")]

    queue, manager = restart()

    assert (queue.stats("billing"), manager.stats("tasks")) == (billing, tasks)
    assert [queue.stats(name) for name in ("stranded", "undertaker")] == others
    totals = [field.name for field in fields(billing) if field.name.endswith("_total")][:6]
    assert all(getattr(billing, name) for name in totals), "the scenario counts everything"


def test_decision_58_a_pause_survives_and_so_does_its_end(restart: Callable[[], Faces]) -> None:
    queue, manager = restart()
    orders(queue)
    manager.create("tasks")
    publish(queue, b"a")
    manager.publish("tasks", "a")
    queue.pause("billing")
    manager.pause("tasks")

    queue, manager = restart()
    assert queue.pull("billing") == []
    assert manager.consume("tasks") is None
    queue.resume("billing")
    manager.resume("tasks")

    queue, manager = restart()
    assert pulled(queue) == [b"a"]
    assert manager.consume("tasks") is not None


def test_decision_58_positions_and_snapshots_survive(restart: Callable[[], Faces]) -> None:
    queue, _ = restart()
    orders(queue)
    publish(queue, b"0", b"1", b"2", b"3")
    out = queue.pull("billing", 3)
    queue.ack_many([out[0].ack_id, out[2].ack_id])
    queue.create_snapshot("before", "billing")
    queue.ack(out[1].ack_id)
    queue.seek("billing", offset=3)

    queue, _ = restart()

    assert pulled(queue) == [b"3"]
    queue.seek("billing", snapshot="before")
    queue, _ = restart()
    assert pulled(queue) == [b"1", b"3"]
    queue.delete_snapshot("before")
    queue, _ = restart()
    with pytest.raises(PenstockError, match="Snapshot not found"):
        queue.seek("billing", snapshot="before")


def test_decision_58_names_options_and_messages_survive_as_they_were(restart: Callable[[], Faces], clock: ManualClock) -> None:
    queue, manager = restart()
    options = Options(
        ack_deadline_seconds=timedelta(seconds=20), filter="attributes:k", flow_control=FlowControl(1, 100), max_messages=7
    )
    orders(queue, options)
    config = QueueConfig(max_depth=7, message_ttl=3600, retry_policy=RetryPolicy(1, 2))
    manager.create("tasks", config)
    clock.advance(1)
    queue.publish("orders", [Message(data=b"no"), Message(data=b"\x00\xff", attributes={"k": "é"}, ordering_key="x", priority=9)])
    manager.publish("tasks", {"a": [1]}, priority=3, headers={"h": "v"}, max_retries=7)
    before = queue.get_all_topics(), queue.get_all_subscriptions(), manager.list(), manager.peek("tasks")

    queue, manager = restart()

    assert (queue.get_all_topics(), queue.get_all_subscriptions(), manager.list(), manager.peek("tasks")) == before
    assert manager.config("tasks") == config
    [message] = queue.pull("billing", 10)
    assert (message.data, message.attributes, message.ordering_key, message.priority) == (b"\x00\xff", {"k": "é"}, "x", 9)


def test_decision_58_a_repeated_sequence_is_still_known(restart: Callable[[], Faces]) -> None:
    queue, _ = restart()
    orders(queue)
    message = Message(data=b"once", producer_id="p", sequence=1)
    first = queue.publish("orders", [message])

    queue, _ = restart()

    assert queue.publish("orders", [message]) == first
    assert pulled(queue) == [b"once"]


def test_decision_58_a_consumer_still_holds_what_it_held(restart: Callable[[], Faces], clock: ManualClock) -> None:
    _, manager = restart()
    manager.create("tasks", QueueConfig(default_prefetch=2))
    for number in range(4):
        manager.publish("tasks", number)
    held = manager.consume_many("tasks", "w1")

    _, manager = restart()

    assert manager.consume("tasks", "w1") is None
    manager.ack("tasks", held[0].message_id, "w1")
    assert manager.release_consumer("tasks", "w1") == 1
    again = manager.consume("tasks", "w2")
    assert again is not None
    assert (again.payload, again.retry_count) == (1, 0)
    clock.advance(30)
    _, manager = restart()
    with pytest.raises(AckDeadlineExceeded):
        manager.ack("tasks", again.message_id)


def test_decision_58_what_was_removed_stays_removed(restart: Callable[[], Faces], clock: ManualClock) -> None:
    queue, manager = restart()
    orders(queue)
    queue.register_subscription("gone", "orders")
    for name in ("purged", "deleted", "remade"):
        manager.create(name)
        for payload in ("leased", "waiting"):
            manager.publish(name, payload)
        manager.consume(name)
    publish(queue, b"a", b"b")
    queue.pull("gone")
    queue.unregister_subscription("gone")
    queue.pull("billing")
    queue.unregister_topic("orders")
    assert manager.purge("purged") == 1
    manager.delete("deleted")
    manager.delete("remade")
    manager.create("remade")

    queue, manager = restart()
    clock.advance(60)

    assert not queue.topic_exists("orders")
    assert [subscription.name for subscription in queue.get_all_subscriptions()] == ["undertaker", "billing"]
    found = queue.get_subscription("billing")
    assert found is not None
    assert (found.topic, found.detached) == ("orders", True)
    assert queue.stats("billing").backlog == 0
    assert manager.list() == ["purged", "remade"]
    assert [message.payload for message in manager.consume_many("purged")] == ["leased"]
    assert manager.consume("remade") is None


# ── damage ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def a_store(path: Path, clock: ManualClock) -> Path:
    """A data directory with messages in it, closed; returns its database."""
    with MessageQueue(clock=clock, data_dir=path) as queue:
        orders(queue)
        for number in range(20):
            publish(queue, b"payload-%04d " % number * 50)
    return path / "penstock.db"


@pytest.mark.parametrize("keep", [0.0, 0.01, 0.5, 0.99])
def test_decision_59_a_file_that_was_cut_short_is_refused_and_left_as_it_is(
    tmp_path: Path, clock: ManualClock, keep: float
) -> None:
    database = a_store(tmp_path, clock)
    left = database.read_bytes()[: int(database.stat().st_size * keep)]
    database.write_bytes(left)

    with pytest.raises(CorruptLog) as caught:
        MessageQueue(clock=clock, data_dir=tmp_path)

    assert caught.value.code == 15
    assert "penstock.db" in str(caught.value)
    assert database.read_bytes() == left


def test_decision_59_a_payload_that_changed_on_disk_is_never_delivered(tmp_path: Path, clock: ManualClock) -> None:
    database = a_store(tmp_path, clock)
    body = database.read_bytes()
    assert body.count(b"payload-0007 ") >= 50
    database.write_bytes(body.replace(b"payload-0007 ", b"payl0ad-0007 ", 1))

    def read_all() -> list[bytes]:
        with MessageQueue(clock=clock, data_dir=tmp_path) as queue:
            return pulled(queue)

    with pytest.raises(CorruptLog, match="offset"):
        read_all()


def test_decision_59_a_second_open_in_the_same_process_is_refused_until_the_first_closes(
    tmp_path: Path, clock: ManualClock
) -> None:
    with MessageQueue(clock=clock, data_dir=tmp_path) as queue:
        with pytest.raises(DataDirectoryInUse):
            QueueManager(clock=clock, data_dir=tmp_path)
        queue.register_topic("orders")

    with MessageQueue(clock=clock, data_dir=tmp_path) as queue:
        assert queue.topic_exists("orders")
