"""`QueueManager` by the batch: all published or none, the valid ones settled and the rest told by id."""

from typing import Any

import pytest

from penstock import QueueConfig, QueueManager
from penstock.errors import (
    AckDeadlineExceeded,
    ConsumerNotFound,
    InvalidArgument,
    InvalidPriority,
    MessageNotFound,
    QueueFull,
    QueueNotFound,
)
from penstock.testing import ManualClock
from penstock.values.queue import NewMessage


def test_messages_published_together_keep_their_order_and_their_own_settings(manager: QueueManager) -> None:
    manager.create("q")
    ids = manager.publish_many("q", [NewMessage(1), NewMessage("two", priority=9), NewMessage(b"3", headers={"a": "b"})])

    got = manager.consume_many("q")

    assert [(message.message_id, message.payload) for message in got] == [(ids[1], "two"), (ids[0], 1), (ids[2], b"3")]
    assert got[2].headers == {"a": "b"}


def test_a_repeated_batch_of_a_producer_adds_nothing(manager: QueueManager) -> None:
    manager.create("q")
    batch = [NewMessage(n, producer_id="p", sequence=n) for n in range(3)]
    assert manager.publish_many("q", batch) == manager.publish_many("q", batch)
    assert manager.stats("q").depth == 3


def test_one_bad_message_refuses_all(manager: QueueManager, subtests: pytest.Subtests) -> None:
    rows: list[tuple[Any, type[Exception], str]] = [
        ([], InvalidArgument, "messages is empty"),
        (5, InvalidArgument, "messages is 5"),
        ("abc", InvalidArgument, r"messages\[0\] is 'a'"),
        ([NewMessage(1), {"payload": 2}], InvalidArgument, r"messages\[1\] is \{'payload': 2\}"),
        ([NewMessage(1), NewMessage({1: 2})], InvalidArgument, r"messages\[1\]: payload is"),
        ([NewMessage(1), NewMessage(2, ttl=0)], InvalidArgument, r"messages\[1\]: ttl is 0"),
        ([NewMessage(1), NewMessage(2, priority=10)], InvalidPriority, "10"),
        ([NewMessage(1), NewMessage(2, sequence=1)], InvalidArgument, r"messages\[1\]: publish.producer_id"),
    ]
    manager.create("q")
    for messages, error, text in rows:
        with subtests.test(messages=messages):
            with pytest.raises(error, match=text):
                manager.publish_many("q", messages)
            assert manager.stats("q").published_total == 0


def test_the_error_of_a_bad_priority_names_the_message(manager: QueueManager) -> None:
    manager.create("q")
    with pytest.raises(InvalidPriority) as caught:
        manager.publish_many("q", [NewMessage(1), NewMessage(2, priority=10)])
    assert "it is messages[1]" in caught.value.__notes__


def test_a_batch_that_does_not_fit_is_refused_as_a_whole(manager: QueueManager) -> None:
    manager.create("q", QueueConfig(max_depth=2))
    with pytest.raises(QueueFull):
        manager.publish_many("q", [NewMessage(n) for n in range(3)])
    assert manager.stats("q").depth == 0
    with pytest.raises(QueueNotFound):
        manager.publish_many("nowhere", [NewMessage(1)])


def test_ack_many_settles_what_is_held_and_tells_why_not(manager: QueueManager, clock: ManualClock) -> None:
    manager.create("q", QueueConfig(ack_deadline_secs=10))
    ids = manager.publish_many("q", [NewMessage(n) for n in range(4)])
    manager.consume("q", "late")
    clock.advance(10)
    manager.pause("q")
    manager.resume("q")
    manager.nack("q", manager.consume("q", "late").message_id)  # type: ignore[union-attr]  # there is one
    mine = [message.message_id for message in manager.consume_many("q", "me", max_messages=2)]
    theirs = manager.consume("q", "them")
    assert theirs is not None
    never = next(one for one in ids if one not in {*mine, theirs.message_id})

    failed = manager.ack_many("q", [*mine, mine[0], theirs.message_id, never, "nothing"], "me")

    assert {one: type(why) for one, why in failed.items()} == {
        theirs.message_id: ConsumerNotFound,
        never: MessageNotFound,
        "nothing": MessageNotFound,
    }
    assert manager.stats("q").acked_total == 2


def test_a_lease_that_ran_out_is_told_as_such(manager: QueueManager, clock: ManualClock) -> None:
    manager.create("q", QueueConfig(ack_deadline_secs=10))
    [message_id] = manager.publish_many("q", [NewMessage(1)])
    manager.consume("q")
    clock.advance(10)
    assert {one: type(why) for one, why in manager.ack_many("q", [message_id]).items()} == {message_id: AckDeadlineExceeded}


def test_nack_many_gives_back_or_buries(manager: QueueManager) -> None:
    manager.create("q")
    ids = manager.publish_many("q", [NewMessage(n) for n in range(4)])
    manager.consume_many("q")

    assert manager.nack_many("q", ids[:2]) == {}
    assert manager.nack_many("q", ids[2:], requeue=False, error="no") == {}

    assert [message.retry_count for message in manager.consume_many("q")] == [1, 1]
    assert [(letter.message.message_id, letter.last_error) for letter in manager.dead_letters("q")] == [
        (one, "no") for one in ids[2:]
    ]


def test_ids_are_a_list_of_strings(manager: QueueManager) -> None:
    rows: list[tuple[Any, str]] = [
        ("abc", "message_ids is 'abc'"),
        (5, "message_ids is 5"),
        (["a", 7], r"message_ids\[1\] is 7"),
    ]
    manager.create("q")
    for ids, text in rows:
        for settle in (manager.ack_many, manager.nack_many):
            with pytest.raises(InvalidArgument, match=text):
                settle("q", ids)
    with pytest.raises(QueueNotFound):
        manager.ack_many("nowhere", [])
