"""StreamingPull, request by request: what Google's clients hide from their users."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from penstock.testing import ManualClock
from tests.integration.google.real_client import Google, RawStream, bodies, eventually

INVALID = grpc.StatusCode.INVALID_ARGUMENT
NOT_FOUND = grpc.StatusCode.NOT_FOUND


def test_a_stream_delivers_what_waits_and_what_comes(google: Google) -> None:
    topic, subscription = google.pair()
    google.publish(topic, b"waits")
    with google.stream(subscription) as stream:
        stream.wait(1)
        google.publish(topic, b"comes")
        assert bodies(stream.wait(2)) == [b"waits", b"comes"]


def test_the_first_answer_tells_the_properties(google: Google) -> None:
    for fields in ({}, {"enable_message_ordering": True}, {"enable_exactly_once_delivery": True}):
        _, subscription = google.pair(**fields)
        with google.stream(subscription) as stream:
            shown = stream.answers.wait(1)[0].subscription_properties
            assert shown.message_ordering_enabled == ("enable_message_ordering" in fields)
            assert shown.exactly_once_delivery_enabled == ("enable_exactly_once_delivery" in fields)


@pytest.mark.parametrize("field", ["enable_message_ordering", "enable_exactly_once_delivery"])
def test_every_answer_tells_the_properties(google: Google, field: str) -> None:
    # Google's Python client takes an answer without them for one that takes them back.
    topic, subscription = google.pair(**{field: True})
    google.publish(topic, b"a")
    with google.stream(subscription) as stream:
        (held,) = stream.wait(1)
        stream.send()
        stream.send(ack_ids=[held.ack_id])
        stream.send()
        answers = stream.answers.wait(4)
    shown = [answer.subscription_properties for answer in answers]
    if field == "enable_message_ordering":
        assert all(properties.message_ordering_enabled for properties in shown)
    else:
        assert all(properties.exactly_once_delivery_enabled for properties in shown)


def test_a_changed_property_is_told_on_the_open_stream(google: Google) -> None:
    _, subscription = google.pair()
    with google.stream(subscription) as stream:
        stream.answers.wait(1)
        google.update(subscription, "enable_exactly_once_delivery", enable_exactly_once_delivery=True)
        stream.answers.until(
            lambda answers: any(one.subscription_properties.exactly_once_delivery_enabled for one in answers), within=15
        )


def test_acks_on_the_stream_count(timed: Google, clock: ManualClock) -> None:
    topic, subscription = timed.pair()
    timed.publish(topic, b"acked", b"kept")
    with timed.stream(subscription, max_outstanding_messages=2) as stream:
        held = {one.message.data: one for one in stream.wait(2)}
        stream.send(ack_ids=[held[b"acked"].ack_id])
        stream.heard()
        stream.after(clock, 11)
        assert bodies(stream.wait(3)) == [b"acked", b"kept", b"kept"]


def test_deadlines_on_the_stream_count(timed: Google, clock: ManualClock) -> None:
    topic, subscription = timed.pair()
    timed.publish(topic, b"longer", b"back")
    with timed.stream(subscription) as stream:
        held = {one.message.data: one for one in stream.wait(2)}
        ack_ids = [held[b"longer"].ack_id, held[b"back"].ack_id]
        stream.send(modify_deadline_ack_ids=ack_ids, modify_deadline_seconds=[60, 0])
        stream.heard()
        stream.after(clock, 0.1)
        assert bodies(stream.wait(3))[-1] == b"back"
        stream.send(ack_ids=[stream.received[-1].ack_id])
        stream.heard()
        stream.after(clock, 30)
        stream.heard()
        assert len(stream.received) == 3
        stream.after(clock, 31)
        assert bodies(stream.wait(4))[-1] == b"longer"


def test_the_streams_deadline_rules_over_the_subscriptions(timed: Google, clock: ManualClock) -> None:
    topic, subscription = timed.pair(ack_deadline_seconds=10)
    timed.publish(topic, b"a")
    with timed.stream(subscription, stream_ack_deadline_seconds=60) as stream:
        stream.wait(1)
        stream.after(clock, 30)
        stream.heard()
        assert len(stream.received) == 1
        stream.after(clock, 31)
        stream.wait(2)


def test_a_later_deadline_of_the_stream_is_for_what_comes_later(timed: Google, clock: ManualClock) -> None:
    topic, subscription = timed.pair()
    with timed.stream(subscription, stream_ack_deadline_seconds=10) as stream:
        stream.send(stream_ack_deadline_seconds=100)
        stream.heard()
        timed.publish(topic, b"a")
        stream.wait(1)
        stream.after(clock, 50)
        stream.heard()
        assert len(stream.received) == 1


def test_a_stream_deadline_has_bounds(google: Google) -> None:
    _, subscription = google.pair()
    for seconds in (0, 9, 601, -1):
        with google.stream(subscription, stream_ack_deadline_seconds=seconds) as stream:
            assert stream.end() == INVALID, seconds
    for seconds in (10, 600):
        with google.stream(subscription, stream_ack_deadline_seconds=seconds) as stream:
            stream.answers.wait(1)


LATER: dict[str, dict[str, Any]] = {
    "a subscription": {"subscription": "projects/test-project/subscriptions/other"},
    "more messages": {"max_outstanding_messages": 5},
    "more bytes": {"max_outstanding_bytes": 5},
    "a deadline out of bounds": {"stream_ack_deadline_seconds": 5},
    "deadlines without seconds": {"modify_deadline_ack_ids": ["x"]},
    "seconds without deadlines": {"modify_deadline_seconds": [10]},
    "seconds out of bounds": {"modify_deadline_ack_ids": ["x"], "modify_deadline_seconds": [601]},
    "seconds below 0": {"modify_deadline_ack_ids": ["x"], "modify_deadline_seconds": [-1]},
}


def test_a_bad_later_request_ends_the_stream(google: Google, subtests: pytest.Subtests) -> None:
    _, subscription = google.pair()
    for name, fields in LATER.items():
        with subtests.test(name=name), google.stream(subscription) as stream:
            stream.answers.wait(1)
            stream.send(**fields)
            assert stream.end() == INVALID


def test_unknown_ack_ids_end_no_stream(google: Google) -> None:
    topic, subscription = google.pair()
    with google.stream(subscription) as stream:
        stream.send(ack_ids=["nonsense", ""], modify_deadline_ack_ids=["x"], modify_deadline_seconds=[10])
        google.publish(topic, b"alive")
        assert bodies(stream.wait(1)) == [b"alive"]


def test_a_stream_without_a_proper_subscription_is_refused(google: Google) -> None:
    for name in ("", "nonsense", "projects/p/topics/abc"):
        with google.stream(name) as stream:
            assert stream.end() == INVALID, name


def test_a_stream_on_nothing_is_not_found(google: Google) -> None:
    with google.stream(google.name("subscriptions")) as stream:
        assert stream.end() == NOT_FOUND


def test_a_stream_without_any_request_is_refused(google: Google) -> None:
    with RawStream(google.subscriber.transport) as stream:
        stream.finish()
        assert stream.end() == INVALID


def test_an_empty_request_is_answered(google: Google) -> None:
    _, subscription = google.pair()
    with google.stream(subscription) as stream:
        stream.answers.wait(1)
        stream.send()
        assert not stream.answers.wait(2)[1].received_messages


def test_no_more_messages_are_outstanding_than_the_client_allows(google: Google) -> None:
    topic, subscription = google.pair()
    google.publish(topic, *[b"%d" % number for number in range(50)])
    with google.stream(subscription, max_outstanding_messages=10) as stream:
        stream.wait(10)
        stream.heard()
        assert len(stream.received) == 10
        stream.send(ack_ids=[one.ack_id for one in stream.received[:4]])
        stream.wait(14)
        stream.heard()
        assert len(stream.received) == 14
        google.ack(subscription, stream.received[4:14])
        stream.wait(24)
        stream.heard()
        assert len(stream.received) == 24


def test_no_more_bytes_are_outstanding_than_the_client_allows(google: Google) -> None:
    topic, subscription = google.pair()
    google.publish(topic, *[b"x" * 1_000] * 20)
    with google.stream(subscription, max_outstanding_bytes=5_000) as stream:
        stream.wait(4)
        stream.heard()
        held = stream.received
        assert sum(len(one.message.data) for one in held) <= 5_000
        stream.send(ack_ids=[one.ack_id for one in held])
        stream.wait(len(held) + 4)


def test_a_message_larger_than_the_allowed_bytes_comes_alone(google: Google) -> None:
    topic, subscription = google.pair()
    google.publish(topic, b"x" * 9_000, b"y" * 9_000)
    with google.stream(subscription, max_outstanding_bytes=5_000) as stream:
        stream.wait(1)
        stream.heard()
        assert len(stream.received) == 1
        stream.send(ack_ids=[stream.received[0].ack_id])
        stream.wait(2)


def test_limits_below_one_mean_none(google: Google) -> None:
    topic, subscription = google.pair()
    google.publish(topic, *[b"%d" % number for number in range(100)])
    with google.stream(subscription, max_outstanding_messages=-1, max_outstanding_bytes=-1) as stream:
        stream.wait(100)


def test_what_a_stream_held_stays_leased_when_it_ends_and_can_still_be_acknowledged_extended_and_given_back(
    google: Google,
) -> None:
    topic, subscription = google.pair(ack_deadline_seconds=600)
    google.publish(topic, b"acked", b"extended", b"given back")
    with google.stream(subscription, stream_ack_deadline_seconds=600) as stream:
        held = {one.message.data: one for one in stream.wait(3)}
        stream.finish()
        assert stream.end() == grpc.StatusCode.OK

    assert google.pull_once(subscription) == []
    google.ack(subscription, [held[b"acked"]])
    google.deadline(subscription, [held[b"extended"]], 600)
    google.deadline(subscription, [held[b"given back"]], 0)
    assert bodies(google.pull(subscription, 1)) == [b"given back"]
    assert google.pull_once(subscription) == []


def test_what_a_broken_stream_held_is_redelivered_after_its_deadline(google: Google) -> None:
    topic, subscription = google.pair(ack_deadline_seconds=10)
    google.publish(topic, b"a")
    with google.stream(subscription, stream_ack_deadline_seconds=10) as first:
        [held] = first.wait(1)
        first.cancel()
    google.deadline(subscription, [held], 1)
    assert bodies(google.pull(subscription, 1)) == [b"a"]


def test_an_ack_that_comes_with_the_last_word_still_counts(google: Google) -> None:
    topic, subscription = google.pair()
    google.publish(topic, b"a", b"b")
    with google.stream(subscription) as stream:
        held = stream.wait(2)
        stream.send(ack_ids=[one.ack_id for one in held])
        stream.finish()
        stream.end()
    assert google.pull_once(subscription) == []


def test_streams_share_the_work_and_repeat_nothing(google: Google) -> None:
    topic, subscription = google.pair()
    with google.stream(subscription, max_outstanding_messages=30) as one, google.stream(subscription) as two:
        google.publish(topic, *[b"%d" % number for number in range(200)])
        eventually(lambda: len(one.received) + len(two.received) >= 200)
        assert sorted(int(body) for body in bodies(one.received + two.received)) == list(range(200))
        assert len(one.received) <= 30


def test_deleting_the_subscription_ends_the_stream(google: Google) -> None:
    _, subscription = google.pair()
    with google.stream(subscription) as stream:
        stream.answers.wait(1)
        google.call(google.subscriber.delete_subscription, {"subscription": subscription})
        assert stream.end() == NOT_FOUND


def test_deleting_and_making_it_again_ends_the_stream(google: Google) -> None:
    topic, subscription = google.pair()
    with google.stream(subscription) as stream:
        stream.answers.wait(1)
        google.call(google.subscriber.delete_subscription, {"subscription": subscription})
        google.subscription(topic, name=subscription)
        google.publish(topic, b"for the new one")
        assert stream.end() == NOT_FOUND
    assert bodies(google.pull(subscription, 1)) == [b"for the new one"]


def test_detaching_ends_the_stream(google: Google) -> None:
    _, subscription = google.pair()
    with google.stream(subscription) as stream:
        stream.answers.wait(1)
        google.call(google.plain.detach_subscription, {"subscription": subscription})
        assert stream.end() == grpc.StatusCode.FAILED_PRECONDITION


def test_switching_to_push_ends_the_stream(google: Google) -> None:
    _, subscription = google.pair()
    with google.stream(subscription) as stream:
        stream.answers.wait(1)
        config = {"push_endpoint": "http://127.0.0.1:1/nobody"}
        google.call(google.subscriber.modify_push_config, {"subscription": subscription, "push_config": config})
        assert stream.end() == grpc.StatusCode.FAILED_PRECONDITION


def test_deleting_the_topic_ends_the_stream(google: Google) -> None:
    topic, subscription = google.pair()
    with google.stream(subscription) as stream:
        stream.answers.wait(1)
        google.call(google.plain.delete_topic, {"topic": topic})
        assert stream.end() == grpc.StatusCode.FAILED_PRECONDITION


def test_exactly_once_acks_on_the_stream_are_confirmed(google: Google) -> None:
    topic, subscription = google.pair(enable_exactly_once_delivery=True)
    google.publish(topic, b"a")
    with google.stream(subscription) as stream:
        (held,) = stream.wait(1)
        stream.send(modify_deadline_ack_ids=[held.ack_id, "stale"], modify_deadline_seconds=[30, 30])
        answers = stream.answers.until(lambda found: "modify_ack_deadline_confirmation" in found[-1])
        assert list(answers[-1].modify_ack_deadline_confirmation.ack_ids) == [held.ack_id]
        assert list(answers[-1].modify_ack_deadline_confirmation.invalid_ack_ids) == ["stale"]
        stream.send(ack_ids=[held.ack_id])
        answers = stream.answers.until(lambda found: "acknowledge_confirmation" in found[-1])
        assert list(answers[-1].acknowledge_confirmation.ack_ids) == [held.ack_id]
        # The answer may have been lost: the same ack again holds, whatever comes with it.
        stream.send(ack_ids=[held.ack_id, "stale"])
        answers = stream.answers.until(lambda found: bool(found[-1].acknowledge_confirmation.invalid_ack_ids))
        assert list(answers[-1].acknowledge_confirmation.ack_ids) == [held.ack_id]
        assert list(answers[-1].acknowledge_confirmation.invalid_ack_ids) == ["stale"]


def test_acks_without_exactly_once_are_not_confirmed(google: Google) -> None:
    topic, subscription = google.pair()
    google.publish(topic, b"a")
    with google.stream(subscription) as stream:
        (held,) = stream.wait(1)
        stream.send(ack_ids=[held.ack_id])
        stream.heard()
        assert not any("acknowledge_confirmation" in answer for answer in stream.answers.items)


def test_a_stream_of_large_messages_fits_what_a_client_takes(google: Google) -> None:
    topic, subscription = google.pair()
    for _ in range(4):
        google.publish(topic, b"x" * 3_000_000)
    with google.stream(subscription) as stream:
        assert len(stream.wait(4)) == 4
