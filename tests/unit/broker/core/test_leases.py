"""What leases cost: a consumer that leaves pays for what it holds, not for what others hold."""

from __future__ import annotations

from heapq import heapify

import pytest

from penstock import Broker, Message, MessageQueue
from penstock.broker.catalog import Catalog
from penstock.broker.core.leases import Lease, Leases
from penstock.broker.core.message import StoredMessage
from penstock.broker.settlement import release
from penstock.testing import ManualClock


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
                _, leases = broker.grant(Catalog.subscription, "billing", 2, clock.now(), consumer=consumer)
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
