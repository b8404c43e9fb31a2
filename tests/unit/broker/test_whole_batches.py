"""A batch that is known as a whole: sent again, it returns the first ids and adds nothing."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import Broker, Message, MessageQueue
from penstock.broker.catalog import Catalog
from penstock.values.message import Batch, accept

PRODUCER = "client-1"


def whole(count: int, sequence: int) -> Batch:
    batch = accept([Message(b"%d" % index) for index in range(count)], 1)
    batch.producers = [(PRODUCER, sequence), *[None] * (count - 1)]
    batch.is_whole = True
    return batch


def send(broker: Broker, count: int, sequence: int) -> list[str]:
    return broker.publish(Catalog.topic, "t", whole(count, sequence), broker.clock.now()).message_ids()


@pytest.fixture(params=["memory", pytest.param("disk", marks=pytest.mark.long)])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Broker]:
    with Broker(data_dir=tmp_path / "data" if request.param == "disk" else None) as opened:
        MessageQueue(broker=opened).register_topic("t")
        yield opened


def published(broker: Broker) -> int:
    return broker.catalog.topics["t"].next_offset


def test_the_same_batch_again_adds_nothing_and_has_the_same_ids(broker: Broker) -> None:
    first = send(broker, 3, 1)

    assert send(broker, 3, 1) == first
    assert published(broker) == 3


def test_a_batch_with_another_number_is_another_batch(broker: Broker) -> None:
    first, second = send(broker, 3, 1), send(broker, 3, 2)

    assert not {*first} & {*second}
    assert published(broker) == 6


def test_a_batch_is_known_when_others_came_between(broker: Broker) -> None:
    first = send(broker, 2, 1)
    MessageQueue(broker=broker).publish("t", [Message(b"other")])

    assert send(broker, 2, 1) == first
    assert published(broker) == 3


def test_a_batch_of_one_is_a_batch(broker: Broker) -> None:
    assert send(broker, 1, 1) == send(broker, 1, 1)
    assert published(broker) == 1


def test_a_restart_remembers(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path) as before:
        MessageQueue(broker=before).register_topic("t")
        first = send(before, 3, 7)
    with Broker(data_dir=tmp_path) as after:
        assert send(after, 3, 7) == first
        assert published(after) == 3


def test_a_batch_twice_in_one_commit_is_stored_once(tmp_path: Path) -> None:
    import threading

    with Broker(data_dir=tmp_path) as broker:
        MessageQueue(broker=broker).register_topic("t")
        done = threading.Semaphore(0)
        for _ in range(20):
            broker.submit(Catalog.topic, "t", whole(5, 1), lambda ticket: done.release())
        for _ in range(20):
            assert done.acquire(timeout=30)
        assert published(broker) == 5
