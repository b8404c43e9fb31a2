"""Specification 001 as a whole router sees it: routing, configuration, health, leaks, warnings; decisions 19, 22, 24 to 26."""

import asyncio
from functools import partial
from pathlib import Path

import pytest

from penstock.durations import SECOND
from penstock.errors import FailedPrecondition, NotFound, Unavailable
from penstock.http.client.target import shown_target
from penstock.http.client.transport import Answer
from penstock.router import feed as feeds
from penstock.router.core.config import PoolConfig, QueueConfig, RouterConfig
from penstock.router.core.outcome import Severity
from penstock.router.core.warnings import Category
from tests.unit.router.doubles import OK, KeepsDeadSource, MemorySource, body, item, turns, until
from tests.unit.router.worlds import World, open_calls, run, running

BOTH = pytest.mark.parametrize("fifo", ["strict", "batch"])
DOWN = Answer(503)


# ── phase 1 ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@BOTH
def test_routing_phase_1_physical_redelivery_is_acked_with_the_new_receipt(fifo: str) -> None:
    """The specification nacks the new delivery; here its lease is taken up (decision 24), so that it does not come once more."""

    async def test() -> None:
        async with running(World(open_calls, fifo=fifo)) as world:
            world.source.put(body("a"))
            await until(lambda: world.transport.open)
            world.source.show("b-1")
            await until(lambda: world.source.extended)

            world.transport.open[0].answer()
            await until(lambda: world.source.acked)

            assert (world.source.acked, world.source.stale, world.source.left) == (["b-1"], [], 0)
            assert world.transport.called == ["a"]
            assert world.source.extended == [("b-1", 120)]

    run(test)


@BOTH
def test_routing_phase_1_logical_requeue_is_acked_and_the_original_goes_on(fifo: str) -> None:
    async def test() -> None:
        async with running(World(open_calls, fifo=fifo)) as world:
            world.source.put(body("a"))
            await until(lambda: world.transport.open)
            world.source.put(body("a"))
            await until(lambda: world.source.acked == ["b-2"])

            world.transport.open[0].answer()
            await until(lambda: world.source.acked == ["b-2", "b-1"])
            assert world.transport.called == ["a"]

    run(test)


@BOTH
def test_routing_phase_3_a_message_twice_in_a_batch_is_nacked(fifo: str) -> None:
    async def test() -> None:
        async with running(World(open_calls, fifo=fifo)) as world:
            world.source.put(body("a"), body("a"))
            await until(lambda: world.source.nacked)

            assert world.source.nacked == [("b-2", 30)]

    run(test)


# ── phase 2 ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@BOTH
def test_warning_routing_an_unknown_pool_goes_to_the_default_pool(fifo: str) -> None:
    async def test() -> None:
        async with running(World(open_calls, fifo=fifo)) as world:
            world.source.put(body("a", "1", pool="NOWHERE"), body("b", "2", pool="NOWHERE"), body("c", "3", pool=""))
            await until(lambda: len(world.transport.open) == 3)

            assert world.router.default_pool_used == 2  # c asks for it
            assert world.warned() == [("ROUTING", Severity.WARN)]
            assert "NOWHERE" in world.warnings()[0].message
            assert world.router.runners["DEFAULT-POOL"].pool.concurrency == 20

    run(test)


def test_default_pool_that_is_configured_later_takes_its_limits() -> None:
    async def test() -> None:
        async with running(World()) as world:
            world.source.put(body("a", pool="X"))
            await until(lambda: world.source.acked)

            await world.apply(PoolConfig("P", 10), PoolConfig("DEFAULT-POOL", 3, 60))

            pool = world.router.runners["DEFAULT-POOL"].pool
            assert (pool.concurrency, pool.limit and pool.limit.per_minute) == (3, 60)

    run(test)


def test_warning_queue_full_in_batch_order_all_messages_of_the_pool_are_nacked_with_30_seconds() -> None:
    async def test() -> None:
        async with running(World(open_calls, fifo="batch"), PoolConfig("P", 1), PoolConfig("R", 1)) as world:
            world.source.put(*(body(f"f{number}", f"f{number}") for number in range(50)), body("r", pool="R"))
            await until(lambda: world.router.runners["P"].pool.room == 1)

            world.source.put(body("x", "g"), body("y", "g"), body("s", pool="R"))
            await until(lambda: len(world.source.nacked) == 2)

            assert world.source.nacked == [("b-52", 30), ("b-53", 30)]
            assert world.warned() == [("QUEUE_FULL", Severity.WARN)]
            assert world.router.runners["R"].pool.queued == 1  # other pools on the same queue are not concerned
            assert world.router.feeds["Q"].metrics.numbers(None, world.clock.now()).deferred == 2

    run(test)


def test_decision_22_in_strict_order_a_full_pool_keeps_the_order_of_what_it_sends_back() -> None:
    async def test() -> None:
        async with running(World(open_calls), PoolConfig("P", 1), PoolConfig("R", 1)) as world:
            world.source.put(*(body(f"f{number}", f"f{number}") for number in range(50)), body("r", pool="R"))
            await until(lambda: world.router.runners["P"].pool.room == 1)
            world.source.put(body("x", "g"), body("y", "g"))
            await until(lambda: len(world.source.nacked) == 2)
            world.transport.script = lambda _request: OK
            for request in [*world.transport.open]:
                request.answer()
            await until(lambda: world.source.left == 2)

            world.source.put(body("z", "g"))  # there is room again, but it does not overtake
            await until(lambda: len(world.source.nacked) == 3)
            for _ in range(8):
                await world.tick(31)
                await turns()
            await until(lambda: not world.source.left)

            assert [name for name in world.transport.called if name in {"x", "y", "z"}] == ["x", "y", "z"]

    run(test)


def test_one_slow_pool_does_not_starve_others_on_the_same_queue() -> None:
    async def test() -> None:
        world = World(lambda request: None if request.message_id.startswith("slow") else OK)
        async with running(world, PoolConfig("P", 1), PoolConfig("R", 1)):
            world.source.put(*(body(f"slow{number}", f"{number}") for number in range(120)))
            world.source.put(*(body(f"fast{number}", f"{number}", pool="R") for number in range(45)))
            await until(lambda: len(world.source.acked) == 45)
            world.source.put(*(body(f"fast-{number}", f"{number}", pool="R") for number in range(45)))
            await until(lambda: len(world.source.acked) == 90)
            assert world.router.runners["P"].pool.queued <= 50

    run(test)


# ── malformed ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@BOTH
def test_decision_19_a_malformed_body_is_kept_as_a_dead_letter_then_acked(fifo: str) -> None:
    async def test() -> None:
        async with running(World(fifo=fifo)) as world:
            world.records.gate = asyncio.Event()
            world.source.put(b"no json", body("a"))
            await until(lambda: world.source.acked == ["b-2"])

            world.records.gate.set()
            await until(lambda: world.source.acked == ["b-2", "b-1"])

            ((name, reason, error),) = world.records.buried
            assert (name, reason) == ("b-1", "malformed")
            assert "not JSON" in error
            assert world.warned() == [("CONFIGURATION", Severity.ERROR)]

    run(test)


def test_decision_19_a_malformed_body_that_cannot_be_kept_is_not_acked() -> None:
    async def test() -> None:
        async with running(World()) as world:
            world.records.trouble = Unavailable("the disk is full")
            world.source.put(b"no json")
            await until(lambda: world.source.nacked == [("b-1", 30)])

            assert world.source.acked == []
            assert world.warned()[-1] == ("PROCESSING", Severity.CRITICAL)
            world.records.trouble = None
            await world.tick(30)
            await until(lambda: world.source.acked == ["b-1"])

    run(test)


def test_decision_19_a_queue_with_dead_letters_of_its_own_keeps_them_there() -> None:
    async def test() -> None:
        source = KeepsDeadSource()
        async with running(World(lambda _request: Answer(410), source)) as world:
            world.source.put(b"no json", body("a"))
            await until(lambda: len(source.dead) == 2)
            await world.settled()

            assert sorted(source.dead) == [("b-1", "malformed"), ("b-2", "undeliverable")]
            assert (source.acked, world.records.buried, source.left) == ([], [], 0)

    run(test)


def test_decision_19_a_message_taken_out_by_an_operator_while_it_is_buried_is_acked_once() -> None:
    async def test() -> None:
        async with running(World(lambda _request: Answer(404))) as world:
            world.records.gate = asyncio.Event()
            world.source.put(body("a"))
            await until(lambda: world.records.attempts)
            found = world.router.tracker.find("a")
            assert found is not None
            world.router.force_ack(found)
            world.records.gate.set()
            await until(lambda: world.records.buried)
            await turns()

            assert world.source.acked == ["b-1"]
            assert world.router.runners["P"].pool.active == 0

    run(test)


# ── what gets applied ────────────────────────────────────────────────────────────────────────────────────────────────────


@BOTH
def test_decision_25_and_26_a_removed_pool_gives_back_what_waits_with_no_delay_counted_and_untracked(fifo: str) -> None:
    async def test() -> None:
        async with running(World(open_calls, fifo=fifo), PoolConfig("P", 1)) as world:
            world.source.put(body("a", "x"), body("b", "x"), body("c", "y"))
            await until(lambda: world.transport.open)
            world.source.is_stuck = True

            await world.apply(PoolConfig("R", 1))

            assert world.source.nacked == [("b-2", 0), ("b-3", 0)]
            assert world.router.given_back == 2
            assert [one.pointer.message_id for one in world.router.tracker] == ["a"]
            assert "P" not in world.router.runners
            world.transport.open[0].answer()  # what runs is finished
            await until(lambda: world.source.acked == ["b-1"])
            assert len(world.router.draining_runners) == 1
            await world.router.clean_up()
            assert world.router.draining_runners == []

    run(test)


@BOTH
def test_decision_26_what_fails_in_a_removed_pool_goes_back_too(fifo: str) -> None:
    async def test() -> None:
        async with running(World(open_calls, fifo=fifo), PoolConfig("P", 1)) as world:
            world.source.put(body("a"))
            await until(lambda: world.transport.open)
            world.source.is_stuck = True
            await world.apply()

            world.transport.open[0].answer(Answer(429, b"", "3"))

            assert (world.source.nacked, len(world.router.tracker)) == ([("b-1", 3)], 0)

    run(test)


def test_what_gets_applied_what_a_removed_pool_gave_back_is_delivered_by_the_default_pool() -> None:
    async def test() -> None:
        async with running(World(open_calls), PoolConfig("P", 1)) as world:
            world.source.put(body("a", "x"), body("b", "y"))
            await until(lambda: world.transport.open)

            await world.apply()
            await until(lambda: len(world.transport.open) == 2)

            assert world.warned() == [("ROUTING", Severity.WARN)]

    run(test)


def test_warning_pool_limit_critical_when_there_are_too_many() -> None:
    async def test() -> None:
        async with running(World(max_pools=2, pool_warning_threshold=5), *(PoolConfig(code) for code in "ABC")) as world:
            assert list(world.router.runners) == ["A", "B"]
            assert world.warned() == [("POOL_LIMIT", Severity.CRITICAL)]

    run(test)


def test_warning_pool_limit_warning_when_there_are_many() -> None:
    async def test() -> None:
        async with running(World(pool_warning_threshold=2), *(PoolConfig(code) for code in "ABC")) as world:
            assert list(world.router.runners) == ["A", "B", "C"]
            assert world.warned() == [("POOL_LIMIT", Severity.WARN)]

    run(test)


def test_what_gets_applied_a_pool_that_was_refused_is_made_when_there_is_room() -> None:
    async def test() -> None:
        async with running(World(max_pools=1), PoolConfig("A", 1), PoolConfig("B", 1)) as world:
            await world.apply(PoolConfig("B", 2))
            assert list(world.router.runners) == ["B"]

            await world.apply()  # one that is not there cannot be drained
            assert list(world.router.runners) == []

    run(test)


def test_what_gets_applied_queues_come_and_go_and_unchanged_ones_run_on_untouched() -> None:
    async def test() -> None:
        async with running(World(), queues=("Q", "R")) as world:
            kept, gone = world.sources["Q"], world.router.feeds["R"]

            await world.apply(PoolConfig("P", 10), queues=("Q", "S"))

            assert world.sources["Q"] is kept
            assert (kept.stops, list(world.router.feeds), gone.is_running) == (0, ["Q", "S"], False)
            assert world.router.draining_feeds == [gone]
            await world.router.clean_up()
            assert (world.router.draining_feeds, world.sources["R"].stops) == ([], 1)

    run(test)


def test_what_gets_applied_a_removed_queue_settles_what_is_in_the_router_before_it_is_closed() -> None:
    async def test() -> None:
        async with running(World(open_calls)) as world:
            source = world.source
            source.put(body("a"))
            await until(lambda: world.transport.open)

            await world.apply(PoolConfig("P", 10), queues=())
            await world.router.clean_up()
            assert source.stops == 0
            world.transport.open[0].answer()
            await until(lambda: source.acked == ["b-1"])
            await world.router.clean_up()

            assert source.stops == 1

    run(test)


def moved(**fields: object) -> RouterConfig:
    """A configuration whose queue is elsewhere."""
    return RouterConfig((QueueConfig("Q", "test:///elsewhere", **fields),), (PoolConfig("P", 10),))  # type: ignore[arg-type]


def test_what_gets_applied_a_queue_with_other_polls_or_leases_keeps_its_source() -> None:
    async def test() -> None:
        async with running(World(open_calls)) as world:
            source = world.source
            source.put(body("a"))
            await until(lambda: world.transport.open)
            changed = RouterConfig((QueueConfig("Q", "test:///Q", 3, 40),), (PoolConfig("P", 10),))

            await world.router.apply(changed)

            assert (world.opened, source.stops, source.lease_seconds) == ([source], 0, 40)
            await until(lambda: source.polls >= 4)  # one that brought the message, and three
            assert world.router.feeds["Q"].config == changed.queues[0]
            source.put(body("b", "other"))
            await until(lambda: "b" in world.transport.called)

    run(test)


def test_what_gets_applied_a_queue_that_is_added_again_soon_keeps_its_source() -> None:
    async def test() -> None:
        async with running(World(open_calls)) as world:
            source = world.source
            source.put(body("a"))
            await until(lambda: world.transport.open)

            await world.apply(PoolConfig("P", 10), queues=())
            source.put(body("b", "other"))
            await world.router.clean_up()
            await world.apply(PoolConfig("P", 10))

            await until(lambda: "b" in world.transport.called)
            assert (world.opened, source.stops, world.router.draining_feeds) == ([source], 0, [])

    run(test)


def test_what_gets_applied_a_queue_that_moved_is_opened_when_the_old_source_is_closed() -> None:
    async def test() -> None:
        async with running(World(open_calls)) as world:
            old = world.source
            old.put(body("a"))
            await until(lambda: world.transport.open)
            await world.router.apply(moved())
            new = world.source
            await turns()
            assert (old.stops, new.starts) == (0, 0)

            world.transport.open[0].answer()
            await until(lambda: new.polls)

            assert (old.acked, old.stops, new.starts) == (["b-1"], 1, 1)
            await world.router.clean_up()
            assert world.router.draining_feeds == []

    run(test)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages in the router do not keep a queue from being opened again."""
    monkeypatch.setattr(feeds, "HAND_OVER_SECONDS", 0.001)


@pytest.mark.usefixtures("hasty")
def test_what_gets_applied_what_ended_while_a_queue_was_opened_again_is_told_to_its_new_source() -> None:
    async def test() -> None:
        async with running(World(open_calls)) as world:
            old = world.source
            bodies = [body("a", "a"), body("b", "b")]
            old.put(*bodies)
            await until(lambda: len(world.transport.open) == 2)
            await world.router.apply(moved())
            new = world.source
            await until(lambda: new.polls)
            world.transport.one("a").answer()
            world.transport.one("b").answer(Answer(429, retry_after="600"))  # longer than it is held for
            await until(lambda: not len(world.router.tracker))

            new.put(*bodies)

            await until(lambda: new.nacked)
            assert (new.acked, new.nacked, old.acked) == (["b-1"], [("b-2", 600)], [])
            assert world.transport.called == ["a", "b"]
            world.clock.advance(600)
            await until(lambda: world.transport.called == ["a", "b", "b"])

    run(test)


@pytest.mark.usefixtures("hasty")
def test_what_gets_applied_a_redelivery_by_the_reopened_queue_is_settled_there() -> None:
    async def test() -> None:
        async with running(World(open_calls)) as world:
            old = world.source
            old.put(body("a"))
            await until(lambda: world.transport.open)
            await world.router.apply(moved())
            new = world.source
            assert new is not old
            new.put(body("a"))  # its queue's id is the same: b-1
            await until(lambda: new.extended == [("b-1", 120)])
            assert (world.router.draining_feeds[0].in_flight, world.router.feeds["Q"].in_flight) == (0, 1)

            world.transport.open[0].answer()
            await until(lambda: new.acked == ["b-1"])
            assert old.acked == []
            assert world.router.feeds["Q"].in_flight == 0

    run(test)


def test_what_gets_applied_a_queue_that_cannot_be_used_is_warned_of_and_the_others_go_on() -> None:
    async def test() -> None:
        world = World()
        async with running(world):
            world.cannot_open = NotFound("queue S")
            await world.apply(PoolConfig("P", 10), queues=("Q", "S"))

            assert world.warned() == [("QUEUE_VALIDATION", Severity.ERROR)]
            assert list(world.router.feeds) == ["Q"]
            world.source.put(body("a"))
            await until(lambda: world.source.acked)

    run(test)


def test_what_gets_applied_while_messages_flow_nothing_is_lost_or_doubled() -> None:
    async def test() -> None:
        async with running(World()) as world:
            sent = 0
            for turn in range(30):
                world.source.put(*(body(f"{turn}-{number}", f"{number}", pool="PR"[number % 2]) for number in range(20)))
                sent += 20
                pools = [PoolConfig("P", 1 + turn % 3, None if turn % 2 else 6_000)] + ([PoolConfig("R", 2)] if turn % 3 else [])
                await world.apply(*pools)
                await turns(turn)
            while world.source.left:  # what would overtake others of its group came back to its queue for 10 s
                await world.tick(10)
                await turns()
            await world.settled()

            assert sorted(world.transport.called) == sorted(set(world.transport.called))
            assert len(world.transport.called) == sent
            for number in range(20):
                order = [name for name in world.transport.called if name.endswith(f"-{number}")]
                assert order == [f"{turn}-{number}" for turn in range(30)]

    run(test)


# ── health ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_warning_consumer_restart_after_60_seconds_without_a_poll() -> None:
    async def test() -> None:
        async with running(World(open_calls)) as world:
            first = world.source
            first.put(body("a"))
            await until(lambda: world.transport.open)
            first.is_stuck = True
            world.clock.advance(59.9)
            await world.router.restart_unhealthy()
            assert (world.source, world.warned()) == (first, [])

            world.clock.advance(0.1)
            await world.router.restart_unhealthy()

            assert world.source is not first
            assert world.warned() == [("CONSUMER_RESTART", Severity.WARN)]
            assert not world.router.feeds["Q"].is_polling(world.clock.now())  # before it has polled
            world.transport.open[0].answer()
            await until(lambda: first.acked == ["b-1"])  # what the old one took it settles
            world.source.put(body("b"))
            await until(lambda: world.transport.open)

    run(test)


@pytest.mark.parametrize("is_open", [True, False], ids=["polls", "opening"])
def test_consumer_health_a_queue_whose_server_is_away_is_restarted_every_minute_and_keeps_its_source(
    is_open: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(feeds, "LONGEST_PAUSE", 0.002)

    async def test() -> None:
        source = MemorySource()
        source.trouble = None if is_open else Unavailable("away")
        async with running(World(source=source)) as world:
            feed = world.router.feeds["Q"]
            if is_open:
                source.put(body("a"))
                await world.settled()
                source.trouble = Unavailable("away")
                world.clock.advance(1)
            await until(lambda: feed.trouble)
            told = [] if is_open else [("QUEUE_VALIDATION", Severity.WARN)]
            assert world.warned() == told
            for _ in range(2):
                world.clock.advance(60)
                await turns()
                await world.router.restart_unhealthy()
                told.append(("CONSUMER_RESTART", Severity.WARN))
                assert world.warned() == told
                assert "away" in world.warnings()[0].message
                assert not feed.is_polling(world.clock.now())

            source.trouble = None
            source.put(body("b"))

            await until(lambda: "b" in world.transport.called)
            assert feed.is_polling(world.clock.now())
            assert (world.opened, source.starts) == ([source], 1)

    run(test)


def test_warning_consumer_restart_failed_when_it_cannot_be_made_anew() -> None:
    async def test() -> None:
        async with running(World()) as world:
            await until(lambda: world.source.polls)
            world.source.is_stuck = True
            world.clock.advance(61)
            world.cannot_open = FailedPrecondition("the library is gone")

            await world.router.restart_unhealthy()

            assert world.warned() == [
                ("CONSUMER_RESTART", Severity.WARN),
                ("QUEUE_VALIDATION", Severity.ERROR),
                ("CONSUMER_RESTART_FAILED", Severity.CRITICAL),
            ]

    run(test)


def test_draining_resource_cleanup_forgets_idle_groups_and_breakers() -> None:
    async def test() -> None:
        async with running(World()) as world:
            world.source.put(body("a", "g"))
            await until(lambda: world.source.acked)
            world.clock.advance(299)
            await world.router.clean_up()
            assert set(world.router.runners["P"].pool.lanes) == {"g"}

            world.clock.advance(3_601)
            await world.router.clean_up()

            assert (world.router.runners["P"].pool.lanes, world.router.mediator.breakers) == ({}, {})

    run(test)


# ── leaks ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_warning_pipeline_map_leak_when_more_is_tracked_than_the_pools_can_hold_and_call() -> None:
    async def test() -> None:
        async with running(World(open_calls), PoolConfig("P", 1), PoolConfig("R", 1)) as world:
            world.source.put(*(body(f"{pool}", "first", pool=pool) for pool in "PR"))
            await until(lambda: len(world.transport.open) == 2)
            world.source.put(*(body(f"{pool}{number}", f"{number}", pool=pool) for pool in "PR" for number in range(50)))
            await until(lambda: len(world.router.tracker) == 102)  # of each 50 wait and one is called
            world.router.check_for_leaks()
            assert world.warned() == []

            world.router.tracker.track([lost := item("lost")])
            world.router.check_for_leaks()
            world.router.tracker.remove(lost)

            assert world.warned() == [("PIPELINE_MAP_LEAK", Severity.WARN)]
            assert "102" in world.warnings()[0].message

    run(test)


def test_warning_pipeline_map_leak_is_not_given_for_a_pool_that_became_smaller() -> None:
    async def test() -> None:
        async with running(World(open_calls), PoolConfig("P", 10)) as world:
            world.source.put(*(body(str(number), str(number)) for number in range(150)))
            await until(lambda: len(world.router.tracker) == 150)
            world.router.runners["P"].pool.update(1, None)
            world.router.check_for_leaks()

            assert world.warned() == []

    run(test)


# ── depth ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_queue_depth_is_asked_for_and_a_backlog_is_warned_of() -> None:
    async def test() -> None:
        async with running(World(open_calls), PoolConfig("P", 1), queues=("Q", "R")) as world:
            world.source.is_stuck = True
            world.source.put(*(body(str(number)) for number in range(1_001)))
            world.sources["R"].trouble = Unavailable("away")
            await world.router.refresh_depths()

            assert world.router.feeds["Q"].metrics.pending == 1_001
            assert world.warned() == [("QUEUE_BACKLOG", Severity.WARN)]

    run(test)


# ── leases ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


@BOTH
def test_decision_24_leases_are_extended_while_a_call_runs_and_while_a_message_waits(fifo: str) -> None:
    async def test() -> None:
        source = MemorySource(lease_seconds=0.02)
        async with running(World(open_calls, source, fifo=fifo), PoolConfig("P", 1)) as world:
            source.put(body("a", "x"), body("b", "x"), body("c", "y"))
            await until(lambda: world.transport.open)
            for _ in range(2):
                extended = len(source.extended)
                world.clock.advance(0.01)
                await until(partial(source.was_extended, extended + 3))

            assert {name for name, _ in source.extended} == {"b-1", "b-2", "b-3"}
            assert world.transport.called == ["a"]

    run(test)


def test_decision_24_a_source_without_leases_needs_none() -> None:
    async def test() -> None:
        source = MemorySource(lease_seconds=None)
        async with running(World(open_calls, source)) as world:
            source.put(body("a"))
            await until(lambda: world.transport.open)
            world.clock.advance(1_000)
            await turns()
            source.show("b-1")  # its connection broke, and it comes again
            await until(lambda: source.extended)
            assert source.extended == [("b-1", 30)]

    run(test)


# ── warnings ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

ELSEWHERE = {
    Category.CONFIG_SYNC_FAILED: "test_configuration.py",
    Category.QUEUE_GROWING: "test_metrics.py",
}


def test_warning_types_every_row_is_a_test_here_or_elsewhere() -> None:
    here = "".join(Path(__file__).with_name(name).read_text() for name in ("test_router.py", "test_runner.py", "test_stop.py"))
    shown = {category for category in Category if f'"{category}"' in here or f"Category.{category.name}," in here}

    assert set(Category) == shown | set(ELSEWHERE)


def test_warning_text_holds_no_secret_of_a_target() -> None:
    async def test() -> None:
        async with running(World(lambda _request: Answer(404))) as world:
            world.source.put(body("a", target="https://user:secret@t.example/hook?token=secret"))
            await until(world.warned)

            assert world.warnings()[0].message == "https://t.example/hook: the target answered with status 404"

    run(test)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://user:secret@t.example:8/a/b?token=x#y", "https://t.example:8/a/b"),
        ("http://[broken", "a target that is no URL"),
    ],
)
def test_a_target_as_it_may_be_shown(url: str, shown: str) -> None:
    assert shown_target(url) == shown


def test_instants_of_attempts_are_wall_time() -> None:
    async def test() -> None:
        async with running(World()) as world:
            world.clock.advance(5)
            world.source.put(body("a"))
            await until(lambda: world.records.attempts)

            assert world.records.attempts[0].at == world.clock.now() > 1_000_000 * SECOND

    run(test)


def test_pools_and_queues_of_the_engine_spark_are_left_alone() -> None:
    async def test() -> None:
        async with running(World()) as world:
            pools = (PoolConfig("P"), PoolConfig("S", engine="spark"))
            queues = (QueueConfig("Q", "test:///Q"), QueueConfig("R", "test:///R", engine="spark"))
            await world.router.apply(RouterConfig(queues, pools))
            world.source.put(body("a", "1", pool="S"), body("b", "2"))
            await until(lambda: world.source.acked and world.source.nacked)

            assert (set(world.router.runners), set(world.router.feeds)) == ({"P"}, {"Q"})
            assert (world.source.acked, world.source.nacked, world.transport.called) == (["b-2"], [("b-1", 30)], ["b"])
            assert world.warned() == [("ROUTING", Severity.WARN)]
            assert "engine spark" in world.warnings()[0].message

    run(test)
