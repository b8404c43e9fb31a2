"""Ordering keys through Google's client: the order of a key holds, whatever happens to its messages."""

from __future__ import annotations

import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

from google.cloud import pubsub_v1
from google.cloud.pubsub_v1.types import BatchSettings, PublisherOptions

from penstock.testing import ManualClock
from tests.integration.google.real_client import PATIENCE, Google, Listener, bodies, eventually

ORDERED = {"enable_message_ordering": True}


def keyed(key: str, *numbers: int) -> list[dict[str, Any]]:
    return [{"data": b"%d" % number, "ordering_key": key} for number in numbers]


def numbers(deliveries: list[Any]) -> list[int]:
    return [int(body) for body in bodies(deliveries)]


def drained(google: Google, subscription: str, count: int) -> list[int]:
    """So many messages in the order of their delivery, each acked before the next is asked for."""
    found: list[Any] = []
    while len(found) < count:
        found += (pulled := google.pull(subscription, 1))
        google.ack(subscription, pulled)
    return numbers(found)


def test_the_order_of_each_key_is_kept(google: Google) -> None:
    topic, subscription = google.pair(**ORDERED)
    publisher = google.client(
        pubsub_v1.PublisherClient,
        batch_settings=BatchSettings(max_messages=7),
        publisher_options=PublisherOptions(enable_message_ordering=True),
    )
    futures = [publisher.publish(topic, b"%d" % number, ordering_key=f"k{number % 5}") for number in range(500)]
    for future in futures:
        future.result(PATIENCE)
    publisher.stop()
    publisher.transport.close()
    with Listener(google, subscription) as listener:
        found = listener.wait(500)
    for key in range(5):
        mine = [int(message.data) for message in found if message.ordering_key == f"k{key}"]
        assert mine == list(range(key, 500, 5))


def test_the_order_holds_under_nacks_and_several_consumers(google: Google) -> None:
    topic, subscription = google.pair(**ORDERED)
    random, lock = Random(7), threading.Lock()
    done: dict[str, list[int]] = defaultdict(list)
    arrived: dict[str, list[int]] = defaultdict(list)

    def react(message: Any) -> None:
        with lock:
            arrived[message.ordering_key].append(int(message.data))
            if random.random() < 0.1:
                message.nack()
            else:
                done[message.ordering_key].append(int(message.data))
                message.ack()

    with Listener(google, subscription, react), Listener(google, subscription, react):
        for start in range(0, 50, 10):
            for key in range(4):
                google.publish(topic, *keyed(f"k{key}", *range(start, start + 10)))
        eventually(lambda: all(set(done[f"k{key}"]) == set(range(50)) for key in range(4)), within=30)
    for key in range(4):
        # A message may come again, and all after it then; a step forward never leaves one out.
        high = -1
        for number in arrived[f"k{key}"]:
            assert number <= high + 1
            high = max(high, number)


def test_while_one_is_held_no_other_consumer_gets_the_next(google: Google) -> None:
    topic, subscription = google.pair(**ORDERED)
    google.publish(topic, *keyed("k", 1, 2, 3))
    first = google.pull_once(subscription, 1)
    assert numbers(first) == [1]
    assert google.pull_once(subscription, now=True) == []
    google.ack(subscription, first)
    assert drained(google, subscription, 2) == [2, 3]


def test_other_keys_and_no_key_go_on_meanwhile(google: Google) -> None:
    topic, subscription = google.pair(**ORDERED)
    google.publish(topic, *keyed("k", 1))
    google.pull(subscription, 1)
    google.publish(topic, *keyed("k", 2))
    google.publish(topic, *keyed("other", 3))
    google.publish(topic, *keyed("", 4))
    assert sorted(numbers(google.pull(subscription, 2))) == [3, 4]


def test_a_nack_brings_it_and_all_later_ones_again(google: Google) -> None:
    topic, subscription = google.pair(**ORDERED)
    google.publish(topic, *keyed("k", 1, 2, 3))
    held = google.pull_once(subscription, 3)
    assert numbers(held) == [1, 2, 3][: len(held)]
    google.deadline(subscription, held[:1], 0)
    assert drained(google, subscription, 3) == [1, 2, 3]


def test_a_run_out_deadline_brings_it_and_all_later_ones_again(timed: Google, clock: ManualClock) -> None:
    topic, subscription = timed.pair(**ORDERED)
    timed.publish(topic, *keyed("k", 1, 2, 3))
    held = timed.pull_once(subscription, 3)
    if held[1:]:
        timed.deadline(subscription, held[1:], 600)
    clock.advance(11)
    assert drained(timed, subscription, 3) == [1, 2, 3]


def test_without_ordering_a_key_holds_nothing_up(google: Google) -> None:
    topic, subscription = google.pair()
    google.publish(topic, *keyed("k", 1, 2))
    assert len(google.pull_once(subscription, 1)) == 1
    assert len(google.pull(subscription, 1)) == 1


def test_publishers_of_one_key_at_once_make_one_order_for_all(google: Google) -> None:
    topic = google.topic()
    subscriptions = [google.subscription(topic, **ORDERED) for _ in range(2)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: google.publish(topic, *keyed("k", number)), range(100)))
    orders = []
    for subscription in subscriptions:
        with Listener(google, subscription) as listener:
            orders.append(numbers(listener.wait(100)))
    assert orders[0] == orders[1]
    assert sorted(orders[0]) == list(range(100))


def test_what_a_closed_stream_held_is_given_back_in_order(google: Google) -> None:
    topic, subscription = google.pair(**ORDERED)
    google.publish(topic, *keyed("k", *range(20)))
    with google.stream(subscription) as stream:
        for count in range(5):
            stream.send(ack_ids=[stream.wait(count + 1)[count].ack_id])
        held = stream.wait(6)[5]
        stream.finish()
        stream.end()
    google.deadline(subscription, [held], 0)
    assert drained(google, subscription, 15) == list(range(5, 20))


# ── streams: several messages of a key are out, in order ─────────────────────────────────────────────────────────────────────


def test_a_stream_gets_several_messages_of_a_key_and_nobody_else_gets_more(google: Google) -> None:
    topic, subscription = google.pair(**ORDERED)
    google.publish(topic, *keyed("k", *range(30)))
    with google.stream(subscription, max_outstanding_messages=20) as stream:
        held = stream.wait(20)
        assert numbers(held) == list(range(20))
        assert google.pull_once(subscription, now=True) == []
        stream.send(ack_ids=[one.ack_id for one in held[:15]])
        assert numbers(stream.wait(30)) == list(range(30))
        assert google.pull_once(subscription, now=True) == []


def test_a_nack_on_a_stream_brings_it_and_all_later_ones_again_in_order(google: Google) -> None:
    topic, subscription = google.pair(**ORDERED)
    google.publish(topic, *keyed("k", *range(6)))
    google.publish(topic, *keyed("other", 100))
    with google.stream(subscription) as stream:
        held = stream.wait(7)
        by_number = {int(one.message.data): one.ack_id for one in held}
        assert numbers(held) == [0, 1, 2, 3, 4, 5, 100]
        stream.send(ack_ids=[by_number[0], by_number[4]])  # what is acked stays acked, also out of turn
        stream.send(modify_deadline_ack_ids=[by_number[2]], modify_deadline_seconds=[0])
        again = stream.wait(10)[7:]
        assert numbers(again) == [2, 3, 5]
        # The old deliveries of what came again are over: acknowledging them settles nothing.
        stream.send(ack_ids=[by_number[number] for number in (2, 3, 5)])
        stream.send(modify_deadline_ack_ids=[again[0].ack_id], modify_deadline_seconds=[0])
        once_more = stream.wait(13)[10:]
        assert numbers(once_more) == [2, 3, 5]
        stream.send(ack_ids=[by_number[1], by_number[100], *(one.ack_id for one in once_more)])
        stream.heard()
        assert len(stream.received) == 13
    assert google.pull_once(subscription, now=True) == []


def test_an_expiry_on_a_stream_brings_it_and_all_later_ones_again_in_order(timed: Google, clock: ManualClock) -> None:
    topic, subscription = timed.pair(**ORDERED)
    timed.publish(topic, *keyed("k", 1, 2, 3))
    with timed.stream(subscription) as stream:
        held = stream.wait(3)
        later = [one.ack_id for one in (held[0], held[2])]
        stream.send(modify_deadline_ack_ids=later, modify_deadline_seconds=[600, 600])
        stream.heard()
        stream.after(clock, 11)
        assert numbers(stream.wait(5)[3:]) == [2, 3]


def test_googles_client_holds_several_of_a_key_and_gets_them_again_in_order_after_a_nack(google: Google) -> None:
    topic, subscription = google.pair(**ORDERED)
    lock, nacked, arrived = threading.Lock(), list[int](), list[int]()

    def react(message: Any) -> None:
        number = int(message.data)
        with lock:
            arrived.append(number)
            if number == 20 and not nacked:
                nacked.append(number)
                message.nack()
            else:
                message.ack()

    google.publish(topic, *keyed("k", *range(50)))
    with Listener(google, subscription, react):
        eventually(lambda: arrived.count(20) == 2)
        google.publish(topic, *keyed("k", 50))
        eventually(lambda: 50 in arrived)
    # The client may have acknowledged some later ones before it sent the nack: those do not come again.
    again = arrived.index(20, 21)
    assert arrived[:21] == list(range(21))
    assert arrived[again:] == sorted(set(arrived[again:]))
    assert set(arrived) == set(range(51))
