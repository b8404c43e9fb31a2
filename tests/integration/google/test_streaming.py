"""The client's own streaming pull: callbacks, flow control, nacks, and what happens when things end."""

from __future__ import annotations

import threading
from collections import Counter
from datetime import datetime
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud.pubsub_v1.subscriber.scheduler import ThreadScheduler
from google.cloud.pubsub_v1.types import FlowControl

from penstock.clock import monotonic
from tests.integration.google.real_client import PATIENCE, Google, Listener, bodies, eventually


def test_every_message_reaches_the_callback_once(google: Google) -> None:
    topic, subscription = google.pair()
    with Listener(google, subscription) as listener:
        for start in range(0, 1_000, 100):
            google.publish(topic, *[b"%d" % number for number in range(start, start + 100)])
        found = listener.wait(1_000)
    assert sorted(int(body) for body in bodies(found)) == list(range(1_000))


def test_a_message_of_the_callback_has_everything(google: Google) -> None:
    topic, subscription = google.pair()
    (message_id,) = google.publish(topic, {"data": b"a", "attributes": {"k": "v"}, "ordering_key": "key"})
    with Listener(google, subscription) as listener:
        (message,) = listener.wait(1)
    assert message.message_id == message_id
    assert isinstance(message.publish_time, datetime)
    assert message.publish_time.tzinfo is not None
    assert dict(message.attributes) == {"k": "v"}
    assert message.ordering_key == "key"
    assert message.delivery_attempt is None
    assert message.size > 0


def test_the_callback_never_holds_more_than_it_asked_for(google: Google) -> None:
    topic, subscription = google.pair()
    google.publish(topic, *[b"%d" % number for number in range(100)])
    held: list[Any] = []
    most = 0
    lock = threading.Lock()

    def hold(message: Any) -> None:
        nonlocal most
        with lock:
            held.append(message)
            most = max(most, len(held))

    with Listener(google, subscription, hold, flow_control=FlowControl(max_messages=10)) as listener:
        for count in range(10, 101, 10):
            listener.wait(count)
            with lock:
                batch, held[:] = list(held), []
            for message in batch:
                message.ack()
    assert most == 10


def test_the_callback_never_holds_more_bytes_than_it_asked_for(google: Google) -> None:
    topic, subscription = google.pair()
    google.publish(topic, *[b"x" * 1_000] * 12)
    with Listener(google, subscription, lambda message: None, flow_control=FlowControl(max_bytes=5_000)) as listener:
        held = listener.wait(4)
        held = listener.arrivals.stay(0.2)
        assert sum(message.size for message in held) <= 6_100
        for message in held:
            message.ack()
        listener.wait(len(held) + 4)


def test_a_nacked_message_comes_again_at_once_but_does_not_spin(google: Google) -> None:
    topic, subscription = google.pair()
    google.publish(topic, b"always fails")
    with Listener(google, subscription, lambda message: message.nack()) as listener:
        listener.wait(4)
        before, start = len(listener.arrivals.items), monotonic()
        eventually(lambda: monotonic() - start > 1_000_000)
        assert len(listener.arrivals.items) - before < 60


def test_one_failing_message_holds_up_no_other(google: Google) -> None:
    topic, subscription = google.pair()
    google.publish(topic, b"bad", *[b"good"] * 50)

    def react(message: Any) -> None:
        message.nack() if message.data == b"bad" else message.ack()

    with Listener(google, subscription, react) as listener:
        listener.arrivals.until(lambda found: Counter(bodies(found))[b"good"] == 50 and Counter(bodies(found))[b"bad"] > 2)
        assert Counter(bodies(listener.arrivals.items))[b"good"] == 50


def test_a_callback_that_raises_gives_the_message_back(google: Google) -> None:
    topic, subscription = google.pair(ack_deadline_seconds=600)
    google.publish(topic, b"a")
    calls: list[int] = []

    def react(message: Any) -> None:
        calls.append(1)
        message.ack() if len(calls) > 1 else message.nack()

    with Listener(google, subscription, react) as listener:
        listener.wait(2)


def test_a_slow_callback_keeps_its_message_by_extending_it(google: Google) -> None:
    topic, subscription = google.pair(ack_deadline_seconds=10)
    google.publish(topic, b"slow")
    with Listener(google, subscription, lambda message: message.modify_ack_deadline(15)) as listener:
        (message,) = listener.wait(1)
        assert google.pull_once(subscription) == []
        message.ack()
    assert google.pull_once(subscription) == []


def test_an_expired_lease_comes_again_on_the_stream(google: Google) -> None:
    topic, subscription = google.pair()
    google.publish(topic, b"a")
    with google.stream(subscription) as stream:
        (held,) = stream.wait(1)
        google.deadline(subscription, [held], 1)
        stream.wait(2)


@pytest.mark.long  # Google's client extends leases by ten seconds, which pass in real time
def test_what_a_closed_stream_held_is_redelivered_after_its_deadline(google: Google) -> None:
    topic, subscription = google.pair(ack_deadline_seconds=600)
    google.publish(topic, *[b"%d" % number for number in range(10)])
    with Listener(google, subscription, lambda message: None) as listener:
        listener.wait(10)
        listener.future.cancel()
        listener.future.result(PATIENCE)
        with Listener(google, subscription) as other:
            assert len({message.message_id for message in other.wait(10)}) == 10


def test_two_clients_share_a_subscription(google: Google) -> None:
    topic, subscription = google.pair()
    with Listener(google, subscription) as one, Listener(google, subscription) as two:
        google.publish(topic, *[b"%d" % number for number in range(300)])
        eventually(lambda: len(one.arrivals.items) + len(two.arrivals.items) >= 300)
        both = one.arrivals.items + two.arrivals.items
    assert sorted(int(body) for body in bodies(both)) == list(range(300))


def test_deleting_the_subscription_ends_the_future(google: Google) -> None:
    _, subscription = google.pair()
    with Listener(google, subscription) as listener:
        with google.stream(subscription) as watch:
            watch.answers.wait(1)
            google.call(google.subscriber.delete_subscription, {"subscription": subscription})
        with pytest.raises(exceptions.NotFound):
            listener.future.result(PATIENCE)


def test_a_subscription_that_is_not_there_ends_the_future(google: Google) -> None:
    with Listener(google, google.name("subscriptions")) as listener, pytest.raises(exceptions.NotFound):
        listener.future.result(PATIENCE)


def test_a_scheduler_of_ones_own_works(google: Google) -> None:
    topic, subscription = google.pair()
    google.publish(topic, b"a")
    scheduler = ThreadScheduler()
    with Listener(google, subscription, scheduler=scheduler) as listener:
        listener.wait(1)


def test_publishing_from_the_callback_works(google: Google) -> None:
    first, first_subscription = google.pair()
    second, second_subscription = google.pair()

    def forward(message: Any) -> None:
        google.publisher.publish(second, message.data + b"!").result(PATIENCE)
        message.ack()

    with Listener(google, first_subscription, forward), Listener(google, second_subscription) as sink:
        google.publish(first, b"ping")
        assert bodies(sink.wait(1)) == [b"ping!"]
