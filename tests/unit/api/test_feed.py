"""Feeds: what is handed out, to whom, and what becomes of it when somebody goes away, comes back, or is replaced."""

import asyncio
import logging
from typing import Any

import pytest

from penstock import FlowControl, RetryPolicy, SubscriptionOptions
from penstock.api import feed as module
from penstock.broker.async_consumer import BATCH
from penstock.broker.catalog import Catalog
from penstock.errors import FailedPrecondition, InvalidArgument, PenstockError, QueueNotFound, SubscriptionNotFound, Unavailable
from penstock.values.policy import QueueConfig
from penstock.wire.frames import Limits, Nack
from tests.unit.api.feed_stand import MIB, Basket, Stand, feed_of, scenario


def lived_by(basket: Basket, *, messages: int = 100, size: int = 100 * MIB, is_paused: bool = False) -> None:
    feed_of(basket).adjust(Limits(messages, size, 60.0, is_paused=is_paused))


# ── limits ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_feed_hands_out_no_more_than_its_limit_of_messages_and_goes_on_when_some_are_settled() -> None:
    async def play(stand: Stand) -> None:
        stand.publish(*(b"%d" % number for number in range(10)))
        basket = stand.open(messages=3)
        await stand.quiet()
        assert basket.data == [b"0", b"1", b"2"]
        assert feed_of(basket).settle_receipts(basket.receipts[:2]) == []
        await stand.quiet()
        assert basket.data == [b"0", b"1", b"2", b"3", b"4"]

    scenario(play)


def test_a_feed_hands_out_while_there_is_room_in_bytes_so_one_large_message_always_passes() -> None:
    async def play(stand: Stand) -> None:
        stand.publish(b"x" * 600, b"y" * 600, b"z" * 600)
        basket = stand.open(size=1_000)
        await stand.quiet()
        assert [data[:1] for data in basket.data] == [b"x", b"y"]
        feed_of(basket).settle_receipts(basket.receipts[:1])
        await stand.quiet()
        assert [data[:1] for data in basket.data] == [b"x", b"y", b"z"]

    scenario(play)


def test_two_feeds_of_one_consumer_share_its_limits() -> None:
    async def play(stand: Stand) -> None:
        stand.publish(*[b"x"] * 10)
        first, second = stand.open(messages=4), stand.open(messages=4)
        await stand.quiet()
        assert len(first.leases) + len(second.leases) == 4
        other = stand.open("other", messages=4)
        await stand.quiet()
        assert len(other.leases) == 4

    scenario(play)


def test_a_batch_may_go_beyond_the_limits_where_that_is_allowed_and_the_next_waits() -> None:
    async def play(stand: Stand) -> None:
        stand.publish(*[b"x"] * 600)
        basket = stand.open(messages=10, allow_excess=True)
        await stand.quiet()
        assert basket.batches == [BATCH]
        feed_of(basket).settle_receipts(basket.receipts[: BATCH - 10])
        await stand.quiet()
        assert basket.batches == [BATCH]
        feed_of(basket).settle_receipts(basket.receipts[BATCH - 10 :])
        await stand.quiet()
        assert basket.batches == [BATCH, BATCH]

    scenario(play)


def test_a_sink_without_room_gets_nothing_until_it_has() -> None:
    async def play(stand: Stand) -> None:
        stand.publish(b"a")
        basket = stand.open(has_room=False)
        await stand.quiet()
        assert (basket.data, stand.in_flight) == ([], 0)
        basket.room = BATCH
        feed_of(basket).wake()
        await stand.quiet()
        assert basket.data == [b"a"]

    scenario(play)


def test_a_paused_feed_gets_nothing_until_it_goes_on() -> None:
    async def play(stand: Stand) -> None:
        basket = stand.open(is_paused=True)
        stand.publish(b"a")
        await stand.quiet()
        assert basket.data == []
        lived_by(basket)
        await stand.quiet()
        assert basket.data == [b"a"]
        lived_by(basket, is_paused=True)
        stand.publish(b"b")
        await stand.quiet()
        assert basket.data == [b"a"]

    scenario(play)


SENSELESS = [
    (Limits(0, 1, 1.0), "max_messages"),
    (Limits(-1, 1, 1.0), "max_messages"),
    (Limits(1 << 41, 1, 1.0), "max_messages"),
    (Limits(1, 0, 1.0), "max_bytes"),
    (Limits(1, 1, 0.0), "ack_deadline"),
    (Limits(1, 1, -1.0), "ack_deadline"),
    (Limits(1, 1, float("nan")), "ack_deadline"),
    (Limits(1, 1, float("inf")), "ack_deadline"),
    (Limits(1, 1, 86_401.0), "ack_deadline"),
]


def test_limits_that_make_no_sense_are_refused_and_change_nothing() -> None:
    async def play(stand: Stand) -> None:
        for limits, named in SENSELESS:
            with pytest.raises(InvalidArgument, match=named):
                stand.service.feeds.open(Catalog.subscription, "sub", "me", limits, Basket(), owner="one")
        assert len(stand.service.feeds) == 0
        basket = stand.open()
        for limits, named in SENSELESS:
            with pytest.raises(InvalidArgument, match=named):
                feed_of(basket).adjust(limits)
        stand.publish(b"a", b"b")
        await stand.quiet()
        assert basket.data == [b"a", b"b"]

    scenario(play)


def test_a_consumer_has_a_decent_name() -> None:
    async def play(stand: Stand) -> None:
        for consumer in ("", "a\0b", "\ud800", "x" * 2_000):
            with pytest.raises(InvalidArgument, match="consumer"):
                stand.open(consumer)

    scenario(play)


# ── settling ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_settle_with_one_wrong_argument_settles_nothing() -> None:
    async def play(stand: Stand) -> None:
        stand.publish(b"a", b"b", b"c")
        basket = stand.open()
        await stand.quiet()
        one, two, three = basket.receipts
        for nacks, deadlines in [
            ([Nack(two, delay=float("nan"))], []),
            ([Nack(two), Nack(three, delay=-1)], []),
            ([Nack(two)], [([three], float("inf"))]),
            ([Nack(two)], [([three], -1.0)]),
        ]:
            with pytest.raises(InvalidArgument):
                feed_of(basket).settle_receipts([one], nacks, deadlines)
        assert stand.in_flight == 3
        assert feed_of(basket).settle_receipts([one], [Nack(two, delay=5)], [([three], 30.0)]) == []

    scenario(play)


def test_what_is_not_live_any_more_is_told_whatever_was_wanted_of_it() -> None:
    async def play(stand: Stand) -> None:
        stand.publish(b"a")
        basket = stand.open()
        await stand.quiet()
        [one] = basket.receipts
        assert feed_of(basket).settle_receipts([one, one, -5]) == [one, -5]
        assert feed_of(basket).settle_receipts([one], [Nack(one)], [([one, 7], 3.0)]) == [one, one, one, 7]
        stand.topics.unregister_subscription("sub")
        assert feed_of(basket).settle_receipts([one], [Nack(2)], [([3], 3.0)]) == [one, 2, 3]

    scenario(play)


def test_deadlines_are_moved_and_zero_gives_back() -> None:
    async def play(stand: Stand) -> None:
        stand.publish(b"a", b"b")
        basket = stand.open(ack_deadline=10)
        await stand.quiet()
        feed_of(basket).settle_receipts([], None, [(basket.receipts[:1], 100.0), (basket.receipts[1:], 0.0)])
        await stand.quiet()
        assert (basket.data, basket.attempts) == ([b"a", b"b", b"b"], [1, 1, 2])
        stand.clock.advance(50)
        await stand.quiet()
        assert basket.data == [b"a", b"b", b"b", b"b"]

    scenario(play)


def test_the_error_of_a_nack_may_be_any_text() -> None:
    async def play(stand: Stand) -> None:
        stand.publish(b"a")
        basket = stand.open()
        await stand.quiet()
        assert feed_of(basket).settle_receipts([], [Nack(basket.receipts[0], error="half \ud800" + "x" * 10_000)]) == []
        await stand.quiet()
        assert basket.attempts == [1, 2]

    scenario(play)


# ── going away and coming back ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_feed_that_is_closed_gives_back_at_once_without_counting_an_attempt() -> None:
    async def play(stand: Stand) -> None:
        stand.publish(b"a", b"b")
        basket = stand.open()
        await stand.quiet()
        feed_of(basket).close()
        feed_of(basket).close()
        assert (stand.in_flight, basket.ends, len(stand.service.feeds)) == (0, [], 0)
        again = stand.open("other")
        await stand.quiet()
        assert (again.data, again.attempts) == ([b"a", b"b"], [1, 1])

    scenario(play)


def test_the_last_feed_of_a_consumer_gives_back_and_not_one_of_several() -> None:
    async def play(stand: Stand) -> None:
        stand.publish(b"a", b"b")
        first, second = stand.open(), stand.open()
        await stand.quiet()
        feed_of(first).close()
        assert stand.in_flight == 2
        feed_of(second).close()
        assert stand.in_flight == 0

    scenario(play)


def test_what_a_lost_consumer_holds_goes_back_after_the_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GRACE_SECONDS", 0.02)

    async def play(stand: Stand) -> None:
        stand.publish(b"a")
        basket = stand.open()
        await stand.quiet()
        feed_of(basket).close(keep=True)
        other = stand.open("other")
        await stand.quiet()
        assert (stand.in_flight, other.data) == (1, [])
        await other.filled.wait()
        assert other.attempts == [1]

    scenario(play)


def test_what_a_lost_consumer_worked_on_counts_as_a_try_and_nothing_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GRACE_SECONDS", 0.02)

    async def play(stand: Stand) -> None:
        stand.publish(b"killer", b"done", b"prefetched", b"failed")
        basket = stand.open()
        await stand.quiet()
        killer, done, _, failed = basket.receipts
        feed_of(basket).settle_receipts([], [], [], [killer, done, failed])
        feed_of(basket).settle_receipts([done], [Nack(failed, delay=60)])
        feed_of(basket).close(keep=True)
        other = stand.open("other")
        while len(other.data) < 2:
            other.filled.clear()
            await other.filled.wait()
        assert dict(zip(other.data, other.attempts, strict=True)) == {b"killer": 2, b"prefetched": 1}

    scenario(play)


def test_what_a_consumer_worked_on_when_it_closed_does_not_count() -> None:
    async def play(stand: Stand) -> None:
        stand.publish(b"a")
        basket = stand.open()
        await stand.quiet()
        feed_of(basket).settle_receipts([], [], [], basket.receipts)
        feed_of(basket).close()
        other = stand.open("other")
        await stand.quiet()
        assert other.attempts == [1]

    scenario(play)


def test_what_is_worked_on_is_forgotten_when_its_lease_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH", 2)

    async def play(stand: Stand) -> None:
        basket = stand.open(messages=1, ack_deadline=1)
        for _ in range(20):
            stand.publish(b"a")
            await stand.quiet()
            feed_of(basket).settle_receipts([], [], [], basket.receipts[-1:])
            stand.clock.advance(2)
            await stand.quiet()
        assert len(stand.service.feeds.begun[feed_of(basket).number, feed_of(basket).identity]) <= 4

    scenario(play)


def test_what_a_client_makes_up_is_not_remembered_as_worked_on() -> None:
    async def play(stand: Stand) -> None:
        stand.publish(b"a")
        basket = stand.open(messages=1_000_000)
        await stand.quiet()
        feed_of(basket).settle_receipts([], [], [], [*basket.receipts, *range(10**6, 10**6 + 1_000)])
        assert stand.service.feeds.begun[feed_of(basket).number, feed_of(basket).identity] == {*basket.receipts}

    scenario(play)


def test_nacks_that_say_the_same_are_one_event() -> None:
    async def play(stand: Stand) -> None:
        stand.publish(*[b"x"] * 100)
        basket = stand.open()
        await stand.quiet()
        feed, epoch = feed_of(basket), basket.leases[0].epoch
        lived_by(basket, is_paused=True)
        nacks = [Nack(one, unseen=index % 2 == 0) for index, one in enumerate(basket.receipts)]
        assert feed.settle_receipts([], [*nacks, Nack(12345)]) == [12345]
        assert stand.in_flight == 0
        other = stand.open("other")
        await stand.quiet()
        assert other.attempts == [1, 2] * 50
        assert {lease.epoch for lease in other.leases} == {epoch + 1}

    scenario(play)


def test_a_consumer_that_comes_back_in_time_keeps_what_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GRACE_SECONDS", 0.05)

    async def play(stand: Stand) -> None:
        stand.publish(b"a")
        basket = stand.open(owner="one")
        await stand.quiet()
        feed_of(basket).close(keep=True)
        again = stand.open(owner="two", held=basket.receipts)
        await asyncio.sleep(0.1)  # beyond the grace: it must have been called off
        assert (stand.in_flight, again.data) == (1, [])
        assert feed_of(again).settle_receipts(basket.receipts) == []

    scenario(play)


def test_a_consumer_that_comes_back_is_given_exactly_what_it_did_not_get_and_no_attempt_is_counted() -> None:
    async def play(stand: Stand) -> None:
        stand.publish(b"a", b"b", b"c")
        basket = stand.open(owner="one")
        await stand.quiet()
        feed_of(basket).close(keep=True)
        again = stand.open(owner="two", held=basket.receipts[:1])
        await stand.quiet()
        assert (again.data, again.attempts) == ([b"b", b"c"], [1, 1])
        assert feed_of(again).settle_receipts([basket.receipts[0], *again.receipts]) == []
        assert stand.topics.stats("sub").backlog == 0

    scenario(play)


def test_a_consumer_that_has_never_been_here_takes_nothing_from_itself() -> None:
    async def play(stand: Stand) -> None:
        stand.publish(b"a")
        basket = stand.open(owner="one")
        await stand.quiet()
        feed_of(basket).close(keep=True)
        again = stand.open(owner="two", held=None)
        await stand.quiet()
        assert (stand.in_flight, again.data) == (1, [])

    scenario(play)


def test_a_consumer_that_comes_by_another_connection_ends_the_feeds_of_the_old_one() -> None:
    async def play(stand: Stand) -> None:
        stand.publish(b"a", b"b")
        old = [stand.open(owner="one"), stand.open(owner="one")]
        await stand.quiet()
        held = [receipt for basket in old for receipt in basket.receipts]
        new = stand.open(owner="two", held=held[:1])
        await stand.quiet()
        assert [basket.ends for basket in old] == [[None], [None]]
        assert new.data == [b"b"]
        assert len(stand.service.feeds) == 1
        second = stand.open(owner="two", held=[])
        await stand.quiet()
        # The consumer is here already: nothing was lost.
        assert (new.data, second.data, stand.in_flight) == ([b"b"], [], 2)

    scenario(play)


def test_exactly_once_keeps_a_lease_to_its_deadline_whoever_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GRACE_SECONDS", 0.0)

    async def play(stand: Stand) -> None:
        stand.publish(b"a")
        basket = stand.open(ack_deadline=30)
        await stand.quiet()
        assert feed_of(basket).opened.exactly_once
        feed_of(basket).close()
        other = stand.open("other")
        await stand.quiet()
        assert (stand.in_flight, other.data) == (1, [])
        stand.clock.advance(31)
        await stand.quiet()
        assert (other.data, other.attempts) == ([b"a"], [2])
        assert feed_of(other).settle_receipts(basket.receipts) == basket.receipts
        await feed_of(other).confirmed()

    scenario(play, exactly_once=True)


def test_a_service_that_stops_ends_its_feeds_and_consumers_keep_what_they_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GRACE_SECONDS", 0.02)

    async def play(stand: Stand) -> None:
        stand.publish(b"a", b"b")
        gone, basket = stand.open("gone", messages=1), stand.open(messages=1)
        await stand.quiet()
        feed_of(gone).close(keep=True)
        stand.service.feeds.stop()
        assert [type(error) for error in basket.ends] == [Unavailable]
        await asyncio.sleep(0.05)  # longer than the grace: a timer that was left behind would have rung
        assert stand.in_flight == 2

    scenario(play)


# ── what is gone ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_feed_of_what_does_not_exist_is_refused() -> None:
    async def play(stand: Stand) -> None:
        with pytest.raises(SubscriptionNotFound):
            stand.open(name="nowhere")
        with pytest.raises(QueueNotFound):
            stand.open(name="sub", find=Catalog.work_queue)

    scenario(play)


def test_deleting_a_subscription_ends_its_feeds_at_once() -> None:
    async def play(stand: Stand) -> None:
        basket = stand.open()
        await stand.quiet()
        stand.topics.unregister_subscription("sub")
        await stand.quiet()
        assert [type(error) for error in basket.ends] == [SubscriptionNotFound]
        assert len(stand.service.feeds) == 0

    scenario(play)


def test_deleting_the_topic_ends_the_feeds_of_its_subscriptions() -> None:
    async def play(stand: Stand) -> None:
        basket = stand.open()
        await stand.quiet()
        stand.topics.unregister_topic("topic")
        await stand.quiet()
        assert [type(error) for error in basket.ends] == [FailedPrecondition]
        assert "detached" in str(basket.ends[0])

    scenario(play)


def test_a_subscription_that_is_made_again_is_another_and_its_messages_are_not_for_the_old_feed() -> None:
    async def play(stand: Stand) -> None:
        old = stand.open()
        await stand.quiet()
        stand.topics.unregister_subscription("sub")
        stand.topics.register_subscription("sub", "topic", SubscriptionOptions())
        new = stand.open()
        stand.publish(b"a")
        await stand.quiet()
        assert (old.data, [type(error) for error in old.ends]) == ([], [SubscriptionNotFound])
        assert (new.data, new.attempts) == ([b"a"], [1])
        assert feed_of(new).opened.queue != feed_of(old).opened.queue

    scenario(play)


# ── others ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_work_queue_is_fed_by_the_same_rules() -> None:
    async def play(stand: Stand) -> None:
        manager = stand.service.queues.manager
        manager.create("work", QueueConfig())
        basket = stand.open(name="work", find=Catalog.work_queue)
        manager.publish("work", "hello")
        await stand.quiet()
        assert len(basket.leases) == 1
        assert feed_of(basket).settle_receipts(basket.receipts) == []
        manager.delete("work")
        await stand.quiet()
        assert [type(error) for error in basket.ends] == [QueueNotFound]

    scenario(play)


def test_a_message_comes_again_when_its_delay_or_backoff_is_over() -> None:
    async def play(stand: Stand) -> None:
        stand.publish(b"a")
        basket = stand.open()
        await stand.quiet()
        feed_of(basket).settle_receipts([], [Nack(basket.receipts[-1])])
        await stand.quiet()
        assert basket.attempts == [1]
        stand.clock.advance(10)
        await stand.quiet()
        assert basket.attempts == [1, 2]
        feed_of(basket).settle_receipts([], [Nack(basket.receipts[-1], delay=2)])
        stand.clock.advance(2)
        await stand.quiet()
        assert basket.attempts == [1, 2, 3]

    scenario(play, retry_policy=RetryPolicy(minimum_backoff=10, maximum_backoff=10))


def test_the_limits_of_the_subscription_itself_hold_for_feeds() -> None:
    async def play(stand: Stand) -> None:
        stand.publish(*[b"x"] * 5)
        baskets = [stand.open("one"), stand.open("two")]
        await stand.quiet()
        assert sum(len(basket.leases) for basket in baskets) == 2

    scenario(play, flow_control=FlowControl(max_messages=2))


def test_an_error_that_nobody_expected_ends_the_feed_and_tells_no_payload(caplog: pytest.LogCaptureFixture) -> None:
    async def play(stand: Stand) -> None:
        rules: Any = stand.service.rules
        rules.transforms = lambda queue: True

        async def broken(*_: object) -> None:
            raise ZeroDivisionError("s3cret")

        rules.ready = broken
        stand.publish(b"s3cret")
        basket = stand.open()
        await stand.quiet()
        assert [type(error) for error in basket.ends] == [PenstockError]

    with caplog.at_level(logging.ERROR):
        scenario(play)
    assert "ZeroDivisionError" in caplog.text
    assert "s3cret" not in caplog.text
