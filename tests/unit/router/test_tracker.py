"""Specification 001, "In-Flight Message Tracking" and "Deferred deletes".

`max_attempts` also counts the attempts before a message was requeued; a message whose ack failed is acked again, not delivered.
"""

import pytest

from penstock.durations import DAY
from penstock.router.core.message import RoutedMessage
from penstock.router.core.tracker import MOST, RETENTION, AttemptCounts, DuplicateKind, LateAcks, Tracker
from tests.unit.router.doubles import item


def tracking(*items: RoutedMessage) -> Tracker:
    tracker = Tracker()
    for one in items:
        assert tracker.track([one]) == ([one], [])
    return tracker


def test_in_flight_tracking_the_pipeline_key_is_the_brokers_id() -> None:
    first = item("m", broker_id="b")
    tracker = tracking(first)

    assert tracker.seen(item("other", broker_id="b")) == (DuplicateKind.REDELIVERED, first)


def test_in_flight_tracking_the_pipeline_key_is_the_messages_id_where_the_broker_has_none() -> None:
    first = item("m", broker_id="")
    tracker = tracking(first)

    assert tracker.seen(item("m", broker_id="")) == (DuplicateKind.REDELIVERED, first)
    assert tracker.seen(item("n", broker_id="")) is None


@pytest.mark.parametrize(
    ("again", "seen"),
    [
        (item("m", broker_id="b"), DuplicateKind.REDELIVERED),
        (item("m", broker_id="c"), DuplicateKind.REQUEUED),  # check 2: an external process put it there once more
        (item("m", broker_id=""), DuplicateKind.REDELIVERED),  # its edge case: the broker's id is missing
        (item("m", broker_id="c", queue="R"), DuplicateKind.REQUEUED),
        (item("m", broker_id="", queue="R"), DuplicateKind.REQUEUED),
        (
            item("m", broker_id="b", queue="R"),
            DuplicateKind.REDELIVERED,
        ),  # the queue was renamed: never ack the one message there is
        (item("n", broker_id="b", queue="R"), None),  # ids of different queues may be equal
        (item("n", broker_id="c"), None),
    ],
)
def test_in_flight_tracking_how_a_message_is_known(again: RoutedMessage, seen: DuplicateKind | None) -> None:
    first = item("m", broker_id="b")

    assert tracking(first).seen(again) == (None if seen is None else (seen, first))


def test_in_flight_tracking_track_1_the_same_key_is_a_duplicate() -> None:
    tracker, first, again = Tracker(), item("m", broker_id="b"), item("m", broker_id="b")

    assert tracker.track([first, again]) == ([first], [again])
    assert len(tracker) == 1


def test_in_flight_tracking_track_1_the_same_key_with_another_message_in_it_is_a_duplicate() -> None:
    tracker, first, again = Tracker(), item("m", broker_id="b"), item("n", broker_id="b")

    assert tracker.track([first, again]) == ([first], [again])
    assert list(tracker) == [first]


def test_in_flight_tracking_track_2_the_same_message_id_is_a_duplicate() -> None:
    tracker, first, again = Tracker(), item("m", broker_id="b"), item("m", broker_id="c")

    assert tracker.track([first, again]) == ([first], [again])


def test_in_flight_tracking_track_2_there_is_no_stale_index_a_message_that_left_may_come_again() -> None:
    first, again = item("m", broker_id="b"), item("m", broker_id="b")
    tracker = tracking(first)
    assert tracker.remove(first)

    assert tracker.seen(again) is None
    assert tracker.track([again]) == ([again], [])


def test_in_flight_tracking_track_3_both_indexes_have_it_and_iteration_is_oldest_first() -> None:
    first, second, third = item("m"), item("n", queue="R"), item("o")
    tracker = tracking(first, second, third)

    assert list(tracker) == [first, second, third]
    assert tracker.of_queue("Q") == [first, third]
    assert tracker.of_queue("S") == []
    assert tracker.find("m") is first
    assert tracker.find("b-n") is second
    assert tracker.find("x") is None


def test_in_flight_tracking_remove_takes_it_out_of_both_indexes_once() -> None:
    first = item("m")
    tracker = tracking(first)

    assert tracker.remove(first)
    assert not tracker.remove(first)
    assert (len(tracker), tracker.of_queue("Q"), tracker.find("b-m")) == (0, [], None)


def test_in_flight_tracking_remove_does_not_take_out_the_next_life_of_the_same_message() -> None:
    first, again = item("m"), item("m")
    tracker = tracking(first)
    tracker.remove(first)
    tracker.track([again])

    assert not tracker.remove(first)
    assert list(tracker) == [again]
    assert (tracker.holds(again), tracker.holds(first)) == (True, False)


def test_in_flight_tracking_fresh_parts_a_batch() -> None:
    first = item("m", broker_id="b")
    tracker = tracking(first)
    same, requeued, new = item("x", broker_id="b"), item("m", broker_id="c"), item("n")

    assert tracker.fresh([same, requeued, new]) == ([new], [same, requeued])
    assert tracker.fresh([new]) == ([new], [])
    assert Tracker().fresh([same]) == ([same], [])
    assert tracker.fresh([item("o", queue="new"), item("m", queue="new")])[1][0].pointer.message_id == "m"


@pytest.mark.parametrize(("old", "new"), [("b", "b"), ("b", ""), ("", "b")])
@pytest.mark.parametrize("queue", ["Q", "R"])
def test_in_flight_tracking_renew_takes_over_the_receipt_and_leaves_nothing_behind(old: str, new: str, queue: str) -> None:
    first, again = item("m", broker_id=old), item("m", broker_id=new, queue=queue)
    again.received.receipt, again.leased_at = "new", 7
    tracker = tracking(first)

    tracker.renew(first, again)

    assert (first.received, first.queue, first.leased_at) == (again.received, queue, 7)
    assert tracker.seen(again) == (DuplicateKind.REDELIVERED, first)
    assert tracker.of_queue(queue) == [first]
    assert tracker.remove(first)
    assert (len(tracker), tracker.of_queue("Q"), tracker.of_queue("R")) == (0, [], [])


def test_in_flight_tracking_renew_does_not_push_out_another_message_of_the_same_id() -> None:
    first, second = item("m", broker_id=""), item("n", broker_id="b")
    tracker = tracking(first, second)

    tracker.renew(first, item("m", broker_id="b"))

    assert (tracker.remove(first), tracker.remove(second)) == (True, True)
    assert tracker.of_queue("Q") == []


def tried(message_id: str, attempts: int) -> RoutedMessage:
    made = item(message_id)
    made.attempts = attempts
    return made


def test_a_message_that_comes_again_goes_on_counting() -> None:
    kept = AttemptCounts()
    kept.keep(tried("a", 2))
    kept.keep(tried("b", 0))  # it only waited
    assert len(kept) == 1
    again, new = item("a"), item("b")

    kept.recall([again, new])

    assert (again.attempts, new.attempts, len(kept)) == (2, 0, 0)


def test_there_is_a_limit_and_the_oldest_go_first() -> None:
    kept = AttemptCounts(most=2)
    for name in "abc":
        kept.keep(tried(name, 1))
    items = [item(name) for name in "abc"]

    kept.recall(items)

    assert [one.attempts for one in items] == [0, 1, 1]
    kept.recall(items)  # nothing is remembered any more, and nothing is forgotten of what is here
    assert [one.attempts for one in items] == [0, 1, 1]


def test_sqs_consumer_deferred_delete_is_taken_once() -> None:
    late_acks = LateAcks()

    late_acks.add("a", 0)

    assert len(late_acks) == 1
    assert not late_acks.take("b")
    assert late_acks.take("a")
    assert not late_acks.take("a")
    assert len(late_acks) == 0


def test_sqs_consumer_deferred_deletes_are_forgotten_when_no_queue_can_hide_them_any_longer() -> None:
    late_acks = LateAcks()
    late_acks.add("a", 0)
    late_acks.add("b", 1)

    late_acks.add("c", RETENTION)

    assert RETENTION == DAY // 2
    assert [late_acks.take(name) for name in "abc"] == [False, True, True]


def test_sqs_consumer_deferred_deletes_are_bounded_and_the_oldest_go_first() -> None:
    late_acks = LateAcks(most=2)
    for now, name in enumerate("abac"):  # the second `a` is younger than `b`
        late_acks.add(name, now)

    assert MOST == 100_000
    assert [late_acks.take(name) for name in "abc"] == [True, False, True]
