"""What leases cost: a consumer that leaves pays for what it holds, not for what others hold."""

from __future__ import annotations

from heapq import heapify

import pytest

from penstock import Broker, Message, MessageQueue
from penstock.broker.catalog import Catalog
from penstock.broker.consumer import Consumer
from penstock.broker.core.leases import Lease, Leases
from penstock.broker.settlement import release
from penstock.testing import ManualClock
from penstock.values.message import StoredMessage


def leases_of(*offsets: int) -> list[Lease]:
    return [Lease(1, offset, 1, 0, StoredMessage(0, b"", None, "", 0, 0)) for offset in offsets]


def test_a_release_looks_only_at_what_the_consumer_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    with Broker(clock=clock) as broker:
        queue = MessageQueue(broker=broker)
        queue.register_topic("orders")
        queue.register_subscription("billing", "orders")
        queue.publish("orders", [Message(bytes([number])) for number in range(6)])
        with broker.lock:
            entry, held = broker.catalog.subscription("billing"), dict[str, list[int]]()
            for consumer in ("a", "b", "a"):
                leases = Consumer(broker, Catalog.subscription, "billing", identity=consumer).take(2)
                held.setdefault(consumer, []).extend(lease.offset for lease in leases)
            monkeypatch.setattr(Leases, "live", lambda _: pytest.fail("all leases are looked at"))
            assert release(broker, entry, "a", clock.now()) == 4
            assert entry.upcoming(9) == held["a"] == [0, 1, 4, 5]
            assert (entry.in_flight, entry.consumers()) == (2, ["b"])


def test_the_oldest_lease_is_found_without_looking_at_all_of_them_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    leases, built = Leases(), 0

    def counted(heap: list[int]) -> None:
        nonlocal built
        built += 1
        heapify(heap)

    monkeypatch.setattr("penstock.broker.core.leases.heapify", counted)
    granted = leases_of(*range(100))
    leases.grant(granted, 1)
    for number, lease in enumerate(granted):
        assert leases.oldest() == number
        leases.grant(leases_of(100 + number), 1)
        leases.end([lease])
    assert leases.oldest() == 100
    assert built <= 3


def test_an_older_message_that_is_leased_again_is_the_oldest_while_it_is_leased() -> None:
    leases = Leases()
    leases.grant(leases_of(5, 6), 1)
    assert leases.oldest() == 5
    again = leases_of(2, 3)
    leases.grant(again, 1)
    assert leases.oldest() == 2
    leases.end(again[:1])
    assert leases.oldest() == 3
    leases.end(again[1:])
    assert leases.oldest() == 5


def test_settled_leases_keep_few_bytes_in_memory_however_large_their_messages_are(subtests: pytest.Subtests) -> None:
    """They are looked for by deadline long after they were settled, and each would keep its message."""
    for size in (10, 100_000, 10_000_000):
        with subtests.test(size=size):
            leases = Leases()
            leases.grant(leases_of(0), 1)  # one that is never settled
            for offset in range(1, 400):
                granted = [Lease(1, offset, 1, 0, StoredMessage(0, b"", None, "", 0, size))]
                leases.grant(granted, 1)
                leases.end(granted)
                assert sum(lease.message.size for lease in leases._heap) <= 8 * 1024 * 1024
            assert list(leases.by_offset) == [0]


def test_the_heap_is_not_rebuilt_for_each_large_message_beside_many_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    leases, swept = Leases(), list[int]()

    def sweep(self: Leases) -> None:
        self._leftover = 0
        swept.append(len(self))

    monkeypatch.setattr(Leases, "_sweep", sweep)
    leases.grant(leases_of(*range(200_000)), 1)
    for offset in range(200_000, 200_010):
        granted = [Lease(1, offset, 1, 0, StoredMessage(0, b"", None, "", 0, 10_000_000))]
        leases.grant(granted, 1)
        leases.end(granted)
    assert len(swept) == 5  # 64 bytes for each of 200,000


def test_an_expired_delivery_can_be_acked_until_its_message_is_delivered_again() -> None:
    clock = ManualClock()
    with Broker(clock=clock) as broker:
        queue = MessageQueue(broker=broker)
        queue.register_topic("orders")
        queue.register_subscription("billing", "orders")
        queue.publish("orders", [Message(b"acked late"), Message(b"delivered again")])
        entry = broker.catalog.subscription("billing")
        late, again = Consumer(broker, Catalog.subscription, "billing").take(2)
        assert entry.ack_expired(late.offset, late.attempt, late.epoch, late.message, clock.now()) is None
        clock.advance(11)
        broker.catch_up()

        assert entry.ack_expired(late.offset, late.attempt + 1, late.epoch, late.message, clock.now()) is None
        assert entry.ack_expired(late.offset, late.attempt, late.epoch + 1, late.message, clock.now()) is None
        assert entry.ack_expired(late.offset, late.attempt, late.epoch, late.message, clock.now()) is not None
        assert entry.ack_expired(late.offset, late.attempt, late.epoch, late.message, clock.now()) is None
        assert [one.data for one in queue.pull("billing", 10)] == [b"delivered again"]
        assert entry.ack_expired(again.offset, again.attempt, again.epoch, again.message, clock.now()) is None
        assert queue.stats("billing").backlog == 1
