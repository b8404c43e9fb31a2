"""Ordering keys with a window: several messages of a key out at one consumer, in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock import Broker, DeadLetterPolicy, FlowControl, Message, MessageQueue, RetryPolicy, SubscriptionOptions
from penstock.broker.catalog import Catalog
from penstock.broker.consumer import Consumer
from penstock.broker.core.leases import Lease
from penstock.broker.core.queue import Queue
from penstock.broker.settlement import ack_late, release
from penstock.durations import SECOND, to_datetime
from penstock.ids import ack_id
from penstock.testing import ManualClock

DEADLINE = 10


class Bench:
    """A subscription with ordering keys, whose messages are numbers, and streams that consume it."""

    def __init__(self, broker: Broker, clock: ManualClock) -> None:
        self.broker, self.clock = broker, clock
        self.faces = MessageQueue(broker=broker)

    @property
    def queue(self) -> Queue:
        return self.broker.catalog.subscription("s")

    def publish(self, *numbers: int, key: str = "k", **fields: Any) -> None:
        self.faces.publish("t", [Message(b"%d" % number, ordering_key=key, **fields) for number in numbers])

    def stream(self, identity: str = "a", key_window: int = 1_000, **limits: Any) -> Consumer:
        return Consumer(self.broker, Catalog.subscription, "s", identity=identity, key_window=key_window, **limits)

    def loaded(self, consumer: Consumer) -> list[Lease]:
        """What a consumer takes when its messages have been read into memory."""
        leases = consumer.take(100)
        while self.queue.absent is not None:
            self.broker.load(self.queue)
            leases += consumer.take(100)
        return leases

    def pulled(self) -> list[int]:
        return [int(one.data) for one in self.faces.pull("s", 100)]

    def late(self, leases: Sequence[Lease]) -> list[int]:
        """Acks that come after the leases; returns the messages that they did not settle."""
        by_id = {ack_id(self.queue.number, one.offset, one.attempt, one.epoch): one for one in leases}
        with self.broker.lock:
            return numbers([by_id[one] for one in ack_late(self.broker, by_id, self.queue, self.clock.now())])


def numbers(leases: Sequence[Lease]) -> list[int]:
    return [int(lease.message.data) for lease in leases]


@contextmanager
def bench(data_dir: Path | None = None, **options: Any) -> Iterator[Bench]:
    clock = ManualClock()
    with Broker(clock=clock, data_dir=data_dir) as broker:
        made = Bench(broker, clock)
        for topic in ("t", "dead"):
            made.faces.register_topic(topic)
        made.faces.register_subscription("graves", "dead")
        options = {"message_ordering": True, "ack_deadline_seconds": DEADLINE, **options}
        made.faces.register_subscription("s", "t", SubscriptionOptions(**options))
        yield made


def test_a_consumer_gets_as_many_of_a_key_as_its_window(subtests: pytest.Subtests) -> None:
    for window, expected in ((1, [1]), (2, [1, 2]), (4, [1, 2, 3, 4]), (5, [1, 2, 3, 4]), (1_000, [1, 2, 3, 4])):
        with subtests.test(window=window), bench() as made:
            made.publish(1, 2, 3, 4)
            stream = made.stream(key_window=window)
            leases = stream.take(100)
            assert numbers(leases) == expected
            assert stream.take(100) == []
            stream.settle(leases[:1], Queue.ack)
            assert numbers(stream.take(100)) == [1, 2, 3, 4][len(expected) : len(expected) + 1]


def test_without_a_name_a_consumer_gets_one_of_a_key() -> None:
    with bench() as made:
        made.publish(1, 2)
        nobody = Consumer(made.broker, Catalog.subscription, "s", key_window=1_000)
        assert numbers(nobody.take(100)) == [1]
        assert nobody.take(100) == []


def test_while_something_of_a_key_is_out_nobody_else_gets_more_of_it() -> None:
    with bench() as made:
        made.publish(1, 2, 3)
        made.publish(7, key="other")
        mine, other = made.stream("a"), made.stream("b")
        leases = mine.take(2)
        assert numbers(leases) == [1, 2]
        assert numbers(other.take(100)) == [7]
        assert made.pulled() == []
        mine.settle(leases[:1], Queue.ack)
        assert (other.take(100), made.pulled()) == ([], [])
        mine.settle(leases[1:], Queue.ack)
        assert numbers(other.take(100)) == [3]
        assert mine.take(100) == []


def test_between_keys_the_most_urgent_and_the_oldest_comes_first() -> None:
    with bench() as made:
        made.publish(1, 2, key="a")
        made.publish(3, key="b")
        made.publish(4, key="")
        made.publish(5, key="a", priority=9)
        made.publish(6, key="c", priority=9)
        assert numbers(made.stream().take(100)) == [6, 1, 2, 5, 3, 4]


def test_a_nack_brings_it_and_all_later_ones_again(subtests: pytest.Subtests) -> None:
    everything = [1, 2, 3, 4]
    cases: list[tuple[list[int], list[int], list[int], list[int]]] = [
        # acked, nacked, what is still held, what comes again
        ([], [1], [], [1, 2, 3, 4]),
        ([], [4], [1, 2, 3], [4]),
        ([], [3], [1, 2], [3, 4]),
        ([3], [2], [1], [2, 4]),
        ([1], [2, 3, 4], [], [2, 3, 4]),
        ([], [4, 2], [1], [2, 3, 4]),
        ([2, 3, 4], [1], [], [1]),
    ]
    for acked, nacked, held, again in cases:
        with subtests.test(acked=acked, nacked=nacked), bench() as made:
            made.publish(*everything)
            stream, other = made.stream("a"), made.stream("b")
            by_number = dict(zip(everything, stream.take(100), strict=True))
            stream.settle([by_number[one] for one in acked], Queue.ack)
            stream.settle([by_number[one] for one in nacked], Queue.nack)
            if held:
                assert other.take(100) == []
            new = stream.take(100)
            assert numbers(new) == again
            # Those that came with it are not to blame, and their attempts do not count.
            assert [lease.attempt for lease in new] == [2 if one in nacked else 1 for one in again]
            assert numbers(stream.settle([by_number[one] for one in everything], Queue.ack)) == [
                one for one in everything if one not in held
            ]
            assert made.queue.in_flight == len(again)
            stream.settle(new, Queue.ack)
            assert made.queue.backlog == 0


def test_an_expiry_brings_it_and_all_later_ones_again() -> None:
    with bench() as made:
        made.publish(1, 2, 3, 4)
        stream = made.stream()
        first, second, third, fourth = stream.take(100)
        made.clock.advance(1)
        stream.settle([first, fourth], lambda queue, leases, now: queue.extend(leases, now + 60 * SECOND, now))
        made.clock.advance(DEADLINE - 1)
        again = made.stream("b")
        assert again.take(100) == []  # the first is still out
        new = stream.take(100)
        assert [(int(lease.message.data), lease.attempt) for lease in new] == [(2, 2), (3, 2), (4, 1)]
        assert numbers(stream.settle([first, second, third, fourth], Queue.ack)) == [2, 3, 4]


def test_a_late_ack_counts_for_what_expired_and_not_for_what_came_back_with_it() -> None:
    with bench() as made:
        made.publish(1, 2, 3)
        stream = made.stream()
        leases = stream.take(100)
        stream.settle(leases[2:], lambda queue, live, now: queue.extend(live, now + 60 * SECOND, now))
        made.clock.advance(DEADLINE)
        made.broker.catch_up()
        assert made.late(leases) == [3]
        assert numbers(stream.take(100)) == [3]


def test_a_backoff_blocks_the_key_for_everybody() -> None:
    with bench(retry_policy=RetryPolicy(5, 600)) as made:
        made.publish(1, 2, 3)
        stream, other = made.stream("a"), made.stream("b")
        leases = stream.take(100)
        stream.settle(leases[1:2], Queue.nack)
        assert (stream.take(100), other.take(100)) == ([], [])
        made.clock.advance(5)
        assert other.take(100) == []
        assert numbers(stream.take(100)) == [2, 3]


def test_after_a_dead_letter_the_later_ones_stay_out() -> None:
    with bench(dead_letter_policy=DeadLetterPolicy("dead", 1)) as made:
        made.publish(1, 2, 3)
        stream = made.stream()
        leases = stream.take(100)
        stream.settle(leases[:1], Queue.nack)
        assert [one.data for one in made.faces.pull("graves", 9)] == [b"1"]
        assert stream.take(100) == []
        assert stream.settle(leases[1:], Queue.ack) == []
        assert made.queue.backlog == 0


def test_a_dead_letter_that_finds_no_place_brings_the_later_ones_again() -> None:
    with bench(dead_letter_policy=DeadLetterPolicy("dead", 1)) as made:
        made.faces.unregister_subscription("graves")
        made.publish(1, 2)
        stream = made.stream()
        stream.settle(stream.take(100)[:1], Queue.nack)
        assert numbers(stream.take(100)) == [1, 2]


def test_what_goes_back_unseen_takes_the_later_ones_along() -> None:
    with bench() as made:
        made.publish(1, 2, 3)
        stream = made.stream()
        leases = stream.take(100)
        stream.settle(leases[1:2], Queue.give_back)
        assert made.queue.in_flight == 1
        new = stream.take(100)
        assert [(int(lease.message.data), lease.attempt) for lease in new] == [(2, 1), (3, 1)]
        assert numbers(stream.settle(leases[1:], Queue.ack)) == [2, 3]


def test_a_released_consumer_leaves_its_keys_to_others() -> None:
    with bench() as made:
        made.publish(1, 2, 3)
        made.stream("a").take(2)
        with made.broker.lock:
            assert release(made.broker, made.queue, "a", made.clock.now()) == 2
        assert numbers(made.stream("b").take(100)) == [1, 2, 3]


def test_flow_control_cuts_a_window(subtests: pytest.Subtests) -> None:
    flows: list[tuple[str, dict[str, Any], dict[str, Any], int | None]] = [
        ("messages of the subscription", {"flow_control": FlowControl(max_messages=2)}, {}, None),
        ("bytes of the subscription", {"flow_control": FlowControl(max_bytes=3)}, {}, None),
        ("messages of the consumer", {}, {"prefetch": 2}, None),
        ("bytes of the consumer", {}, {"prefetch_bytes": 3}, None),
        ("bytes of one answer", {}, {}, 4),
    ]
    for what, options, limits, max_bytes in flows:
        with subtests.test(what), bench(**options) as made:
            made.publish(1, 2, 3, 4)  # two bytes each, one of them the key
            stream = made.stream(**limits)
            leases = stream.take(100, max_bytes)
            assert numbers(leases) == [1, 2]
            if max_bytes is None:
                assert stream.take(100) == []
                stream.settle(leases, Queue.ack)
            assert numbers(stream.take(100, max_bytes)) == [3, 4]


def test_a_time_to_live_ends_in_the_middle_of_a_key() -> None:
    with bench() as made:
        made.publish(1)
        made.publish(2, ttl=1)
        made.publish(3)
        stream = made.stream(key_window=1)
        assert numbers(stream.take(100)) == [1]
        made.clock.advance(1)
        assert numbers(made.stream(key_window=2).take(100)) == [3]


def test_a_time_to_live_does_not_interrupt_a_lease_and_ends_it_when_it_comes_back() -> None:
    with bench() as made:
        made.publish(1)
        made.publish(2, ttl=1)
        made.publish(3)
        stream = made.stream()
        leases = stream.take(100)
        made.clock.advance(2)
        stream.settle(leases[:1], Queue.nack)
        assert numbers(stream.take(100)) == [1, 3]


def test_a_delayed_message_holds_its_key_up() -> None:
    with bench() as made:
        made.publish(1)
        made.publish(2, deliver_at=to_datetime(made.clock.now() + 5 * SECOND))
        made.publish(3)
        stream = made.stream()
        assert numbers(stream.take(100)) == [1]
        made.clock.advance(5)
        assert numbers(stream.take(100)) == [2, 3]


def test_pause_and_seek(subtests: pytest.Subtests) -> None:
    with subtests.test("pause"), bench() as made:
        made.publish(1, 2)
        stream = made.stream()
        leases = stream.take(1)
        made.faces.pause("s")
        assert stream.take(100) == []
        assert not made.queue.is_reserved_for("a")
        stream.settle(leases, Queue.nack)
        made.faces.resume("s")
        assert numbers(stream.take(100)) == [1, 2]
    with subtests.test("seek"), bench() as made:
        made.publish(1, 2, 3)
        stream = made.stream()
        leases = stream.take(2)
        made.faces.seek("s", offset=1)
        assert numbers(stream.settle(leases, Queue.ack)) == [1, 2]
        assert not made.queue.is_reserved_for("a")
        assert numbers(made.stream("b").take(100)) == [2, 3]


def test_a_restart_keeps_what_is_out_and_at_whom(tmp_path: Path) -> None:
    with bench(tmp_path) as made:
        made.publish(1, 2, 3, 4)
        leases = made.stream("a").take(3)
        clock = made.clock
    with Broker(clock=clock, data_dir=tmp_path) as broker:
        again = Bench(broker, clock)
        stream, other = again.stream("a"), again.stream("b")
        assert (other.take(100), again.pulled()) == ([], [])
        assert numbers(again.loaded(stream)) == [4]
        stream.settle(leases[:1], Queue.ack)
        stream.settle(leases[1:2], partial(Queue.nack, delay=0))
        assert numbers(again.loaded(other)) == [2, 3, 4]


def test_a_message_behind_another_says_which_one_leads_its_key() -> None:
    with bench() as made:
        ids = made.faces.publish("t", [Message(b"%d" % number, ordering_key="k") for number in range(3)])
        made.stream(key_window=2).take(100)
        reasons = [made.faces.explain("s", one) for one in ids]
        assert [why.reason for why in reasons if why is not None] == ["leased", "leased", "key_blocked"]
        assert reasons[2] is not None
        assert reasons[2].by == ids[0]


def test_what_is_reserved_is_known_to_its_consumer_alone() -> None:
    with bench() as made:
        made.publish(1, 2)
        stream = made.stream(key_window=2)
        leases = stream.take(1)
        assert (made.queue.reserved, made.queue.is_deliverable) == (1, False)
        assert [made.queue.is_reserved_for(name) for name in ("a", "b", None)] == [True, False, False]
        stream.settle(leases, Queue.ack)
        assert (made.queue.reserved, made.queue.is_deliverable) == (0, True)
