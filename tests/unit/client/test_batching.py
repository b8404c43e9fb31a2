"""When published messages are sent, and with which others."""

from __future__ import annotations

import pytest

from penstock.client.core.batching import MAX_PAUSE, MIN_PAUSE, UNKEYED_IN_FLIGHT, Batch, Batching, BatchLimits, RetryWindow
from penstock.durations import SECOND
from penstock.errors import (
    InvalidArgument,
    JournalUnavailable,
    JournalUncertain,
    PenstockError,
    PublishingPaused,
    RateLimited,
    ResourceExhausted,
    ServerUnreachable,
    SubscriptionFull,
    TopicNotFound,
    Unavailable,
)

Rules = Batching[str, int]


def rules(**changed: int | bool) -> Rules:
    return Batching(BatchLimits(**{"max_messages": 3, "max_bytes": 100, "max_wait": 10, **changed}))  # type: ignore[arg-type]


def add(batching: Rules, names: str, key: str = "", *, size: int = 1, now: int = 0, is_marked: bool = False) -> list[bool]:
    return [batching.add(key, name, 0, size=size, now=now, is_marked=is_marked) for name in names]


def sent(batching: Rules, now: int = 0) -> list[Batch[str, int]]:
    found = []
    while (batch := batching.take(now)) is not None:
        found.append(batch)
    return found


def names(batches: list[Batch[str, int]]) -> list[str]:
    return ["".join(batch.messages) for batch in batches]


# ── when ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_lone_message_waits_for_nothing() -> None:
    batching = rules()

    assert add(batching, "a") == [True]
    assert names(sent(batching, now=0)) == ["a"]
    assert batching.next_due() is None


def test_what_one_turn_publishes_goes_together() -> None:
    batching = rules()
    add(batching, "ab")

    assert names(sent(batching)) == ["ab"]


def test_while_a_batch_is_in_flight_messages_gather_until_it_is_done() -> None:
    batching = rules()
    add(batching, "a")
    (first,) = sent(batching)
    add(batching, "bc")

    assert names(sent(batching)) == []
    batching.settle(first)
    assert names(sent(batching)) == ["bc"]


def test_while_a_batch_is_in_flight_messages_gather_for_max_wait_at_most(subtests: pytest.Subtests) -> None:
    rows: list[tuple[int, list[str]]] = [(14, []), (15, ["b"]), (16, ["b"])]
    for now, expected in rows:
        with subtests.test(now=now, expected=expected):
            batching = rules()
            add(batching, "a")
            sent(batching)

            assert add(batching, "b", now=5) == [True], "the timer is news"
            sent(batching, now=5)
            assert batching.next_due() == 15
            assert names(sent(batching, now=now)) == expected


def test_a_timer_that_finds_a_younger_batch_waits_for_that_one() -> None:
    batching = rules()
    add(batching, "a")
    (first,) = sent(batching)
    add(batching, "b", now=5)
    batching.settle(first)
    sent(batching, now=6)
    add(batching, "c", now=7)

    assert names(sent(batching, now=15)) == []
    assert batching.next_due() == 17
    assert names(sent(batching, now=17)) == ["c"]


def test_a_full_batch_goes_though_another_is_in_flight() -> None:
    batching = rules()
    add(batching, "a")
    sent(batching)
    add(batching, "bcde")

    assert names(sent(batching)) == ["bcd"]


def test_what_one_turn_leaves_behind_gathers_for_max_wait_at_most() -> None:
    batching = rules()
    add(batching, "abcd", now=5)

    assert names(sent(batching, now=5)) == ["abc"]
    assert batching.next_due() == 15
    assert names(sent(batching, now=15)) == ["d"]


def test_a_message_that_would_exceed_the_bytes_begins_a_new_batch() -> None:
    batching = rules()
    add(batching, "a", size=60)
    add(batching, "b", size=41)
    add(batching, "c", size=59)

    assert [(batch.messages, batch.size) for batch in sent(batching)] == [(["a"], 60), (["b", "c"], 100)]


def test_a_message_larger_than_a_batch_goes_alone_and_at_once() -> None:
    batching = rules()
    add(batching, "a")
    sent(batching)
    add(batching, "b", size=1)
    add(batching, "c", size=1_000)

    assert names(sent(batching)) == ["b", "c"]


def test_flush_lets_nothing_gather() -> None:
    batching = rules()
    add(batching, "a")
    sent(batching)
    add(batching, "b")
    batching.flush()

    assert names(sent(batching)) == ["b"]


def test_messages_with_a_producer_of_their_own_share_no_batch_with_others() -> None:
    batching = rules()
    add(batching, "a")
    add(batching, "bc", is_marked=True)
    add(batching, "d")
    batching.flush()

    assert names(sent(batching)) == ["a", "bc", "d"]


# ── lanes ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_of_one_key_one_batch_is_in_flight() -> None:
    batching = rules()
    add(batching, "abcdefg", "k")

    (first,) = sent(batching, now=100)
    assert first.messages == ["a", "b", "c"]
    batching.settle(first)
    (second,) = sent(batching, now=100)
    assert second.messages == ["d", "e", "f"]


def test_without_a_key_several_batches_are_in_flight_and_no_more() -> None:
    batching = rules()
    add(batching, "abc" * (UNKEYED_IN_FLIGHT + 2))

    in_flight = sent(batching)
    assert len(in_flight) == UNKEYED_IN_FLIGHT
    batching.settle(in_flight[3])
    assert len(sent(batching)) == 1


def test_keys_do_not_wait_for_each_other_and_take_turns() -> None:
    batching = rules()
    add(batching, "abc" * 3)
    add(batching, "def", "k")
    add(batching, "gh", "l")

    assert names(sent(batching)) == ["abc", "def", "gh", "abc", "abc"]


def test_a_key_that_is_done_is_forgotten() -> None:
    batching = rules()
    for number in range(10):
        add(batching, "a", f"k{number}")
    for batch in sent(batching):
        batching.settle(batch)

    assert set(batching._lanes) <= {""}
    assert (batching.messages, batching.bytes, batching.unsettled) == (0, 0, set())


# ── explicit batches ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_explicit_batch_is_sent_as_it_is_behind_what_was_published_before() -> None:
    batching = rules()
    add(batching, "a", "k")
    batching.add_batch({"k"}, ["b", "c", "d", "e"], 0, size=4)
    add(batching, "f", "k")

    for expected in ("a", "bcde", "f"):
        (batch,) = sent(batching)
        assert names([batch]) == [expected]
        batching.settle(batch)


def test_an_explicit_batch_of_several_keys_waits_for_each_and_blocks_each() -> None:
    batching = rules()
    add(batching, "a", "k")
    add(batching, "b", "l")
    before = sent(batching)
    batching.add_batch({"k", "l", ""}, ["c", "d", "e"], 0, size=3)
    add(batching, "f", "k")
    add(batching, "g", "l")
    add(batching, "h", "m")

    assert names(sent(batching)) == ["h"]
    batching.settle(before[0])
    assert names(sent(batching)) == []
    batching.settle(before[1])
    (several,) = sent(batching)
    assert several.messages == ["c", "d", "e"]
    batching.settle(several)
    assert sorted(names(sent(batching))) == ["f", "g"]


def test_an_explicit_batch_overtakes_nothing_in_any_of_its_lanes() -> None:
    batching = rules()
    add(batching, "abcd", "k")
    batching.add_batch({"k", "l"}, ["e", "f"], 0, size=2)

    assert names(sent(batching)) == ["abc"]
    assert names(sent(batching, now=100)) == []


# ── failure ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_failure_stops_what_waits_behind_it_and_what_comes_until_it_is_resumed() -> None:
    batching = rules()
    add(batching, "abcde", "k")
    (failed,) = sent(batching)

    stopped = batching.pause(failed.keys)
    batching.settle(failed)

    assert [("".join(batch.messages), key) for batch, key in stopped] == [("de", "k")]
    assert sent(batching, now=100) == []
    assert batching.messages == 0
    with pytest.raises(PublishingPaused, match="Publishing paused for ordering key: k"):
        batching.add("k", "x", 0, size=1, now=0)
    with pytest.raises(PublishingPaused):
        batching.check_batch({"a", "k"}, messages=1, size=1)
    add(batching, "o", "other")
    batching.resume("k")
    add(batching, "f", "k")
    assert sorted(names(sent(batching))) == ["f", "o"]


def test_a_batch_of_several_keys_that_is_stopped_stops_its_other_keys() -> None:
    batching = rules()
    add(batching, "a", "k")
    (failed,) = sent(batching)
    batching.add_batch({"k", "l"}, ["b", "c"], 0, size=2)
    add(batching, "d", "l")

    stopped = batching.pause(failed.keys)
    batching.settle(failed)

    assert [("".join(batch.messages), key) for batch, key in stopped] == [("bc", "k"), ("d", "l")]
    for key in "kl":
        with pytest.raises(PublishingPaused):
            batching.add(key, "x", 0, size=1, now=0)


def test_a_failure_without_a_key_stops_nothing() -> None:
    batching = rules()
    add(batching, "abcd")
    failed = sent(batching)[0]

    assert batching.pause(failed.keys) == []
    batching.settle(failed)
    assert names(sent(batching)) == ["d"]


def test_resuming_what_is_not_paused_does_nothing() -> None:
    batching = rules()
    batching.resume("k")
    add(batching, "a", "k")
    batching.resume("k")

    assert names(sent(batching)) == ["a"]


def test_abandoning_gives_everything_back_that_is_not_in_flight() -> None:
    batching = rules()
    add(batching, "a", "k")
    (in_flight,) = sent(batching)
    add(batching, "bcde", "k")
    batching.add_batch({"k", "l"}, ["f"], 0, size=1)

    assert names(batching.abandon()) == ["bcd", "e", "f"]
    assert batching.unsettled == {in_flight}
    batching.settle(in_flight)
    assert sent(batching, now=100) == []
    assert batching.messages == 0


# ── flow control ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_beyond_the_limits_a_message_is_refused(subtests: pytest.Subtests) -> None:
    rows: list[tuple[dict[str, int], list[int], str | None]] = [
        ({"max_outstanding_messages": 2}, [1], None),
        ({"max_outstanding_messages": 2}, [1, 1], "messages"),
        ({"max_outstanding_bytes": 10}, [10], "bytes"),
        ({"max_outstanding_bytes": 10}, [9], None),
        ({"max_outstanding_bytes": 10}, [], None),
    ]
    for limits, sizes, lacking in rows:
        with subtests.test(limits=limits, sizes=sizes):
            batching = rules(is_refusing=True, **limits)
            for size in sizes:
                batching.add("k", "a", 0, size=size, now=0)

            assert batching.lacking(1, 1) == lacking
            if lacking is None:
                batching.add("k", "b", 0, size=1, now=0)
            else:
                with pytest.raises(ResourceExhausted, match=f"Flow control: max {lacking} exceeded"):
                    batching.add("new", "b", 0, size=1, now=0)
                with pytest.raises(ResourceExhausted):
                    batching.check_batch({"new"}, messages=1, size=1)
                assert set(batching._lanes) == {"k"}, "what is refused leaves no trace"


def test_a_lone_message_passes_whatever_the_limits() -> None:
    batching = rules(is_refusing=True, max_outstanding_bytes=10)

    batching.add("", "a", 0, size=1_000, now=0)
    assert names(sent(batching)) == ["a"]


def test_who_waits_in_line_is_sent_when_there_is_room() -> None:
    batching = rules(max_outstanding_messages=4)
    add(batching, "abcdef")

    (first,) = sent(batching)
    assert first.messages == ["a", "b", "c"], "another three would be six in flight"
    assert batching.lacking() == "messages"
    batching.settle(first)
    assert batching.lacking() is None
    assert names(sent(batching)) == ["def"]


def test_bytes_in_flight_are_limited_too() -> None:
    batching = rules(max_messages=1, max_outstanding_bytes=10)
    add(batching, "ab", size=6)

    (first,) = sent(batching)
    batching.settle(first)
    assert names(sent(batching)) == ["b"]


# ── trying again ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_cannot_pass_is_not_tried_again(subtests: pytest.Subtests) -> None:
    rows: list[PenstockError] = [
        InvalidArgument("bad"),
        TopicNotFound("t"),
        ServerUnreachable("here", "nobody is there"),
        JournalUncertain("there", "no answer"),
        PenstockError("odd"),
    ]
    for error in rows:
        with subtests.test(error=error):
            assert RetryWindow(until=1 << 60).pause(error, now=0) is None


def test_what_may_pass_is_tried_again_with_growing_pauses(subtests: pytest.Subtests) -> None:
    rows: list[PenstockError] = [Unavailable("not now"), JournalUnavailable("disk", "full"), SubscriptionFull("s", "t")]
    for error in rows:
        with subtests.test(error=error):
            patience = RetryWindow(until=1 << 60)

            pauses = [patience.pause(error, now=0) for _ in range(8)]
            assert pauses[:3] == [MIN_PAUSE, 2 * MIN_PAUSE, 4 * MIN_PAUSE]
            assert pauses[-1] == MAX_PAUSE


def test_who_calls_too_often_waits_as_long_as_they_are_told() -> None:
    assert RetryWindow(until=1 << 60).pause(RateLimited(0.25), now=0) == SECOND // 4
    assert RetryWindow(until=1 << 60).pause(RateLimited(0), now=0) == 1


def test_patience_ends(subtests: pytest.Subtests) -> None:
    rows: list[tuple[int, int | None]] = [(0, MIN_PAUSE), (SECOND - MIN_PAUSE - 1, MIN_PAUSE), (SECOND - MIN_PAUSE, None)]
    for now, expected in rows:
        with subtests.test(now=now, expected=expected):
            assert RetryWindow(until=SECOND).pause(Unavailable("not now"), now=now) == expected
