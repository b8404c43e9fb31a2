"""What leaves the log, and what stays."""

from __future__ import annotations

import ctypes
import shutil
import threading
from pathlib import Path

import pytest

from penstock import Broker, Message, MessageQueue, QueueManager, SubscriptionOptions
from penstock.broker import retention
from penstock.broker.catalog import Catalog
from penstock.broker.core.pages import OVERHEAD
from penstock.clock import SystemClock
from penstock.durations import SECOND
from penstock.errors import OutOfRange
from penstock.log.arrow import read_stream
from penstock.testing import ManualClock
from penstock.values.message import StoredMessage, summarize

WEEK = 7 * 86_400


@pytest.fixture(params=["memory", "durable"])
def broker(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Broker:
    return Broker(clock=clock, data_dir=tmp_path / "data" if request.param == "durable" else None)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def settle_down(broker: Broker, queue: MessageQueue) -> None:
    """Publish once more, and wait until the writer has looked over the streams after that."""
    queue.publish("tick", [Message(b"tick")])
    for _ in range(3):
        broker.sync()


def test_a_settled_message_leaves_the_log_after_a_week(broker: Broker, clock: ManualClock) -> None:
    with broker:
        queue = MessageQueue(broker=broker)
        for topic in ("orders", "tick"):
            queue.register_topic(topic)
        queue.publish("orders", [Message(b"old")])
        clock.advance(WEEK)
        queue.publish("orders", [Message(b"new")])
        settle_down(broker, queue)

        assert [batch["value"].to_pylist() for batch in read_stream(broker, "orders", 1)] == [[b"new"]]
        with pytest.raises(OutOfRange, match="offset 0 of 'orders' is not in the log, which holds 1 to 2"):
            list(read_stream(broker, "orders", 0))


def test_a_message_that_a_work_queue_still_needs_never_leaves(broker: Broker, clock: ManualClock) -> None:
    with broker:
        queue, queues = MessageQueue(broker=broker), QueueManager(broker=broker)
        queue.register_topic("tick")
        queues.create("tasks")
        queues.publish("tasks", "waits")
        dead = queues.publish("tasks", "dies", priority=9).message_id
        assert queues.consume("tasks") is not None
        queues.nack("tasks", dead, requeue=False)
        for _ in range(3):
            clock.advance(WEEK)
            settle_down(broker, queue)

        assert [letter.message.payload for letter in queues.dead_letters("tasks")] == ["dies"]
        waiting = queues.consume("tasks")
        assert waiting is not None
        assert waiting.payload == "waits"


def test_what_a_deleted_topic_left_goes(broker: Broker, clock: ManualClock) -> None:
    with broker:
        queue = MessageQueue(broker=broker)
        for topic in ("orders", "tick"):
            queue.register_topic(topic)
        queue.publish("orders", [Message(b"x")])
        number = broker.catalog.topics["orders"].number
        assert number in broker.journal.streams()
        queue.unregister_topic("orders")
        clock.advance(61)
        settle_down(broker, queue)

        assert number not in broker.journal.streams()


def test_a_broker_in_memory_keeps_history_only_up_to_its_bound(monkeypatch: pytest.MonkeyPatch, clock: ManualClock) -> None:
    monkeypatch.setattr(retention, "HISTORY_BYTES", 100_000)
    with MessageQueue(clock=clock) as queue:
        queue.register_topic("orders")
        queue.register_subscription("billing", "orders", SubscriptionOptions(max_messages=10_000))
        for _ in range(1_000):
            queue.publish("orders", [Message(bytes(1_000))])
            queue.ack(queue.pull("billing")[0].ack_id)

        stream = queue.broker.catalog.topics["orders"]
        assert stream.pages.size < 1_000_000 // 2
        assert stream.earliest > 0


def test_history_in_memory_is_bounded_in_bytes_whatever_the_size_of_messages(
    monkeypatch: pytest.MonkeyPatch, clock: ManualClock, subtests: pytest.Subtests
) -> None:
    monkeypatch.setattr(retention, "HISTORY_BYTES", 4_000_000)
    for size, batch in ((1_000_000, 1), (300_000, 1), (300_000, 10), (10_000, 100)):
        with subtests.test(size=size, batch=batch), MessageQueue(clock=clock) as queue:
            queue.register_topic("orders")
            queue.register_subscription("billing", "orders", SubscriptionOptions(max_messages=10_000))
            queue.publish("orders", [Message(b"held")])
            stream = queue.broker.catalog.topics["orders"]
            for _ in range(12_000_000 // size // batch):
                queue.publish("orders", [Message(bytes(size))] * batch)
                held, *received = queue.pull("billing", batch + 1)
                queue.ack_many(message.ack_id for message in received)
                assert held.data == b"held"
                queue.nack(held.ack_id)
                assert stream.pages.size <= 4_000_000 + size * batch
            stored = queue.broker.journal.summaries(stream.number, 0, stream.next_offset)
            assert sum(summary.size + OVERHEAD * summary.count for summary in stored) == stream.pages.size >= 1_000_000


def test_history_in_memory_counts_what_small_messages_cost_beside_their_bytes(
    monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    monkeypatch.setattr(retention, "HISTORY_BYTES", 1_000_000)
    with MessageQueue(clock=clock) as queue:
        queue.register_topic("orders")
        queue.register_subscription("billing", "orders", SubscriptionOptions(max_messages=10_000))
        stream = queue.broker.catalog.topics["orders"]
        for _ in range(20):
            queue.publish("orders", [Message(b"x")] * 1_000)
            queue.ack_many(message.ack_id for message in queue.pull("billing", 1_000))
            assert stream.next_offset - stream.earliest <= 1_000_000 / OVERHEAD + 1_000
        assert queue.stats("billing").backlog_bytes == 0


def test_a_burst_in_memory_is_released_soon_after_it_is_acked(
    monkeypatch: pytest.MonkeyPatch, clock: ManualClock, subtests: pytest.Subtests
) -> None:
    monkeypatch.setattr(retention, "HISTORY_BYTES", 1_000_000)
    given_back: list[int] = []
    monkeypatch.setattr(retention, "return_freed_memory", lambda: given_back.append(1))
    for step in (1, -1):
        with subtests.test(step=step), MessageQueue(clock=clock) as queue:
            queue.register_topic("orders")
            queue.register_subscription("billing", "orders")
            stream = queue.broker.catalog.topics["orders"]
            for _ in range(50):
                queue.publish("orders", [Message(bytes(100_000))])
            clock.advance(5)
            received = queue.pull("billing", 50)
            assert len(received) == 50
            assert queue.broker.next_due <= clock.now() + 2 * SECOND  # so a timer needs nobody to call
            for message in received[::step]:
                queue.ack(message.ack_id)
            clock.advance(2)
            queue.stats("billing")
            assert stream.pages.size < 1_000_000
            assert queue.broker.next_due > clock.now() + 2 * SECOND
    assert given_back == [1, 1]


def test_what_a_cursor_held_of_a_burst_in_memory_is_released_after_it(
    monkeypatch: pytest.MonkeyPatch, clock: ManualClock
) -> None:
    monkeypatch.setattr(retention, "HISTORY_BYTES", 1_000_000)
    with MessageQueue(clock=clock) as queue:
        queue.register_topic("orders")
        stream = queue.broker.catalog.topics["orders"]
        queue.broker.cursors.advance("archive", {"orders": 0}, clock.now(), holds=True)
        for _ in range(50):
            queue.publish("orders", [Message(bytes(100_000))])
        clock.advance(2)
        queue.topic_exists("orders")
        assert stream.earliest == 0
        queue.broker.cursors.delete("archive")
        clock.advance(61)
        queue.broker.catch_up()
        assert stream.pages.size < 1_000_000


def test_a_broker_in_memory_never_sheds_what_is_not_settled(monkeypatch: pytest.MonkeyPatch, clock: ManualClock) -> None:
    monkeypatch.setattr(retention, "HISTORY_BYTES", 100_000)
    with MessageQueue(clock=clock) as queue:
        queue.register_topic("orders")
        queue.register_subscription("billing", "orders", SubscriptionOptions(max_messages=10_000))
        for number in range(1_000):
            queue.publish("orders", [Message(number.to_bytes(1_000))])

        assert [int.from_bytes(message.data) for message in queue.pull("billing", 1_000)] == list(range(1_000))


def test_a_cursor_that_nobody_sets_any_more_is_warned_of_once_a_day(
    broker: Broker, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    with broker:
        queue = MessageQueue(broker=broker)
        queue.register_topic("tick")
        for name, holds in (("forgotten", True), ("harmless", False), ("busy", True)):
            broker.cursors.advance(name, {"tick": 0}, clock.now(), holds)
        for _ in range(8):
            clock.advance(86_400)
            broker.cursors.advance("busy", {"tick": 0}, clock.now())
            settle_down(broker, queue)
            settle_down(broker, queue)

        said = [record.getMessage() for record in caplog.records]
        assert said == [
            f"the cursor 'forgotten' was not set for {days} days and still holds the log: delete it if it is not used any more"
            for days in (7, 8)
        ]


@pytest.fixture
def stored(tmp_path: Path, clock: ManualClock) -> Path:
    """A data directory with a settled message and two that wait."""
    with MessageQueue(data_dir=tmp_path / "data", clock=clock) as queue:
        queue.register_topic("orders")
        queue.register_subscription("billing", "orders")
        for payload in (b"settled", b"1", b"2"):
            queue.publish("orders", [Message(payload)])
        queue.ack(queue.pull("billing")[0].ack_id)
    return tmp_path / "data"


def test_a_start_with_a_clock_that_is_far_ahead_removes_nothing_for_an_hour(
    stored: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    clock.advance(400 * 86_400)
    with MessageQueue(data_dir=stored, clock=clock) as queue:
        assert "400 days after the last plausible time" in caplog.text
        queue.register_topic("tick")
        clock.advance(3_599)
        settle_down(queue.broker, queue)
        assert queue.stats("billing").backlog == 2
        assert queue.broker.catalog.topic("orders").earliest == 0

        clock.advance(61)
        settle_down(queue.broker, queue)
        stats = queue.stats("billing")
        assert (stats.backlog, stats.retired_total) == (0, 2)
        assert queue.broker.catalog.topic("orders").earliest == 3


def test_a_clock_that_is_corrected_within_the_hour_costs_nothing(stored: Path, clock: ManualClock) -> None:
    right = clock.now()
    wrong = ManualClock((right + 400 * 86_400 * SECOND) / SECOND)
    with MessageQueue(data_dir=stored, clock=wrong) as queue:
        queue.register_topic("tick")
        settle_down(queue.broker, queue)
        wrong._now = right + 60 * SECOND
        settle_down(queue.broker, queue)
        assert [message.data for message in queue.pull("billing", 9)] == [b"1", b"2"]
    clock.advance(120)
    with MessageQueue(data_dir=stored, clock=clock) as queue:
        assert queue.stats("billing").backlog == 2


def test_the_hour_after_a_jump_of_the_clock_outlasts_restarts_and_kills(
    stored: Path, tmp_path: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    clock.advance(400 * 86_400)
    with MessageQueue(data_dir=stored, clock=clock) as queue:
        queue.register_topic("tick")  # now the last event in the log is recent
        shutil.copytree(stored, tmp_path / "killed")
    clock.advance(1_800)
    for data_dir in (stored, tmp_path / "killed"):
        caplog.clear()
        with MessageQueue(data_dir=data_dir, clock=clock) as queue:
            assert "400 days after the last plausible time" in caplog.text
            assert "for the next 30 minutes" in caplog.text
            assert queue.stats("billing").backlog == 2
    clock.advance(1_800)
    caplog.clear()
    with MessageQueue(data_dir=stored, clock=clock) as queue:
        assert queue.stats("billing").retired_total == 2
        assert not queue.broker.catalog.documents
    assert not caplog.records


def test_a_jump_of_the_clock_is_forgotten_when_its_hour_is_over(stored: Path, clock: ManualClock) -> None:
    clock.advance(400 * 86_400)
    with MessageQueue(data_dir=stored, clock=clock) as queue:
        clock.advance(3_600)
        assert queue.stats("billing").retired_total == 2
        assert not queue.broker.catalog.documents
    with MessageQueue(data_dir=stored, clock=clock) as queue:
        assert not queue.broker.catalog.documents
        assert not queue.broker.is_retention_held()


def test_a_clock_that_is_corrected_before_a_restart_ends_the_hour(stored: Path, clock: ManualClock) -> None:
    right = clock.now()
    with MessageQueue(data_dir=stored, clock=ManualClock((right + 400 * 86_400 * SECOND) / SECOND)) as queue:
        queue.register_topic("tick")
    with MessageQueue(data_dir=stored, clock=clock) as queue:
        assert not queue.broker.is_retention_held()
        assert not queue.broker.catalog.documents
        assert queue.stats("billing").backlog == 2


def test_a_clock_that_is_corrected_in_part_starts_another_hour(stored: Path, clock: ManualClock) -> None:
    right = clock.now()
    with MessageQueue(data_dir=stored, clock=ManualClock((right + 400 * 86_400 * SECOND) / SECOND)) as queue:
        queue.register_topic("tick")
    clock.advance(8 * 86_400)
    with MessageQueue(data_dir=stored, clock=clock) as queue:
        clock.advance(3_599)
        assert queue.stats("billing").backlog == 2
        clock.advance(1)
        assert queue.stats("billing").backlog == 0


class SetClock(SystemClock):
    """A clock that somebody sets while a steady one goes on."""

    def __init__(self, wall: int) -> None:
        self.wall, self.steady = wall, 0

    def now(self) -> int:
        return self.wall

    def pass_by(self, seconds: int) -> None:
        self.wall += seconds * SECOND
        self.steady += seconds * SECOND


@pytest.fixture
def set_clock(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> SetClock:
    monkeypatch.setattr("penstock.broker.broker.steady", lambda clock: lambda: clock.steady)
    return SetClock(clock.now())


def test_a_clock_that_jumps_while_the_broker_runs_removes_nothing_for_an_hour(
    stored: Path, set_clock: SetClock, caplog: pytest.LogCaptureFixture
) -> None:
    with MessageQueue(data_dir=stored, clock=set_clock) as queue:
        queue.register_topic("tick")
        set_clock.wall += 400 * 86_400 * SECOND
        settle_down(queue.broker, queue)
        assert "400 days after the last plausible time" in caplog.text
        assert queue.stats("billing").backlog == 2
        assert queue.broker.catalog.topic("orders").earliest == 0
        assert queue.broker.is_retention_held()
        set_clock.pass_by(3_599)
        settle_down(queue.broker, queue)
        assert queue.stats("billing").backlog == 2
    with MessageQueue(data_dir=stored, clock=set_clock) as queue:
        assert queue.stats("billing").backlog == 2
        set_clock.pass_by(61)
        settle_down(queue.broker, queue)
        assert queue.stats("billing").retired_total == 2
        assert queue.broker.catalog.topic("orders").earliest == 3


def test_a_jump_is_on_disk_with_the_first_publish_after_it(stored: Path, tmp_path: Path, set_clock: SetClock) -> None:
    with MessageQueue(data_dir=stored, clock=set_clock) as queue:
        set_clock.wall += 400 * 86_400 * SECOND
        is_done = threading.Event()
        message = StoredMessage(0, b"x", None, "", 4, 1)
        queue.broker.submit(Catalog.topic, "orders", summarize([message]), lambda _: is_done.set())
        assert is_done.wait(30)
        shutil.copytree(stored, tmp_path / "killed")
    with MessageQueue(data_dir=tmp_path / "killed", clock=set_clock) as queue:
        assert queue.stats("billing").backlog == 3


def test_a_clock_that_jumps_in_memory_retires_nothing_for_an_hour(set_clock: SetClock) -> None:
    with MessageQueue(clock=set_clock) as queue:
        queue.register_topic("orders")
        queue.register_subscription("billing", "orders")
        queue.publish("orders", [Message(b"1")])
        set_clock.wall += 400 * 86_400 * SECOND
        queue.publish("orders", [Message(b"2")])
        assert queue.stats("billing").backlog == 2
        set_clock.pass_by(3_600)
        assert queue.stats("billing").backlog == 1


def test_a_start_within_a_day_keeps_to_the_retention_and_warns_of_nothing(
    stored: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(8):
        clock.advance(86_400)
        with MessageQueue(data_dir=stored, clock=clock) as queue:
            queue.pause("billing")
            queue.resume("billing")
    with MessageQueue(data_dir=stored, clock=clock) as queue:
        assert queue.stats("billing").retired_total == 2
    assert not caplog.records


def test_free_memory_is_returned_where_the_c_library_can(monkeypatch: pytest.MonkeyPatch) -> None:
    retention.return_freed_memory()

    class Other:
        """A C library without `malloc_trim`."""

    monkeypatch.setattr(ctypes, "CDLL", lambda _: Other())
    retention.return_freed_memory()
