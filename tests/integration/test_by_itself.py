"""With the machine's clock things happen by themselves: one timer, one writer, real threads."""

from __future__ import annotations

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock import Broker, Message, MessageQueue, QueueManager
from penstock.errors import BrokerClosed

PATIENCE = 20


@pytest.fixture(params=["memory", "durable"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Broker:
    return Broker(data_dir=tmp_path / "data" if request.param == "durable" else None)


def test_a_delayed_message_wakes_a_consumer_that_waits(broker: Broker) -> None:
    with broker:
        queues = QueueManager(broker=broker)
        queues.create("tasks")
        queues.publish("tasks", "later", delay=0.05)
        message = queues.consume("tasks", timeout=PATIENCE)
        assert message is not None
        assert message.payload == "later"


def test_a_publish_wakes_a_consumer_that_waits(broker: Broker) -> None:
    with broker, ThreadPoolExecutor(1) as pool:
        queues = QueueManager(broker=broker)
        queues.create("tasks")
        waiting = pool.submit(queues.consume, "tasks", "worker", PATIENCE)
        queues.publish("tasks", "now")
        message = waiting.result(PATIENCE)
        assert message is not None
        assert message.payload == "now"


def test_a_lease_that_runs_out_wakes_a_consumer_that_waits(broker: Broker) -> None:
    with broker:
        queues = QueueManager(broker=broker)
        queues.create("tasks")
        queues.publish("tasks", "x")
        assert queues.consume("tasks", "silent", ack_deadline=0.05) is not None
        message = queues.consume("tasks", "waiting", timeout=PATIENCE)
        assert message is not None
        assert message.retry_count == 1


def test_a_message_dies_of_its_ttl_though_nobody_calls(broker: Broker) -> None:
    died = threading.Event()
    note = broker._commits.add

    def listen(event: object) -> None:
        note(event)  # type: ignore[arg-type]  # passed on as it came
        if type(event).__name__ == "DeadLettered":
            died.set()

    broker._commits.add = listen
    with broker:
        queues = QueueManager(broker=broker)
        queues.create("tasks")
        queues.publish("tasks", "x", ttl=0.05)
        assert died.wait(PATIENCE)
        assert [letter.reason for letter in queues.dead_letters("tasks")] == ["ttl_expired"]


def test_closing_ends_a_call_that_waits(broker: Broker) -> None:
    with ThreadPoolExecutor(1) as pool:
        queues = QueueManager(broker=broker)
        queues.create("tasks")
        waiting = pool.submit(queues.consume, "tasks", "worker", PATIENCE)
        while not broker.notifier.callbacks:
            threading.Event().wait(0.001)
        broker.close()
        with pytest.raises(BrokerClosed):
            waiting.result(PATIENCE)


def test_publishers_at_the_moment_of_closing_are_served_or_refused_and_never_left_waiting(tmp_path: Path) -> None:
    queue = MessageQueue(data_dir=tmp_path / "data")
    queue.register_topic("orders")
    confirmed: list[str] = []
    started = threading.Barrier(5)

    def publish() -> None:
        started.wait()
        while True:
            try:
                confirmed.extend(queue.publish("orders", [Message(b"x")]))
            except BrokerClosed:
                return

    with ThreadPoolExecutor(4) as pool:
        publishers = [pool.submit(publish) for _ in range(4)]
        started.wait()
        while len(confirmed) < 50:
            threading.Event().wait(0.001)
        queue.close()
        for publisher in publishers:
            publisher.result(PATIENCE)
    with MessageQueue(data_dir=tmp_path / "data") as again:
        assert again.broker.catalog.topics["orders"].next_offset == len(confirmed)


def test_a_broker_in_memory_that_is_dropped_without_closing_goes_away() -> None:
    queue = MessageQueue()
    queue.register_topic("orders")
    broker = weakref.ref(queue.broker)
    timer = next(thread for thread in threading.enumerate() if thread is queue.broker._timer._thread)  # type: ignore[union-attr]  # it runs
    del queue
    gc.collect()
    assert broker() is None
    timer.join(PATIENCE)
    assert not timer.is_alive()
