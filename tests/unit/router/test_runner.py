"""Specification 001, "Outcome Handling", "Visibility Timeout Control", "Rate Limiting": a pool at work; decisions 19 to 23."""

import asyncio
from functools import partial

import pytest

from penstock.durations import SECOND
from penstock.errors import Unavailable
from penstock.http.client.transport import Answer, Failure, FailureKind
from penstock.router.core.config import PoolConfig
from penstock.router.core.outcome import Severity
from penstock.router.core.warnings import Category
from penstock.router.runner import LONGEST_REFUSAL
from tests.unit.router.doubles import OK, TARGET, KeepsDeadSource, MemorySource, body, turns, until
from tests.unit.router.worlds import World, open_calls, run, running

BOTH = pytest.mark.parametrize("fifo", ["strict", "batch"])
DOWN = Answer(503)
DEFERRED = Answer(200, b'{"ack":false,"delaySeconds":45}')


# ── outcomes ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@BOTH
def test_outcome_success_is_acked_and_counted(fifo: str) -> None:
    async def test() -> None:
        async with running(World(fifo=fifo)) as world:
            world.source.put(body("a"))
            await until(lambda: world.source.acked)

            assert (world.source.acked, world.source.left) == (["b-1"], 0)
            metrics = world.router.runners["P"].metrics
            assert (metrics.submitted, metrics.succeeded, metrics.failed, metrics.errors) == (1, 1, 0, {})
            (attempt,) = world.records.attempts
            assert (attempt.message_id, attempt.pool, attempt.number, attempt.calls, attempt.status) == ("a", "P", 1, 1, 200)
            assert (attempt.at, attempt.outcome, attempt.queue) == (world.clock.now(), "SUCCESS", "Q")

    run(test)


@BOTH
@pytest.mark.parametrize(("status", "severity"), [(400, Severity.ERROR), (404, Severity.ERROR), (501, Severity.CRITICAL)])
def test_outcome_error_config_is_kept_as_a_dead_letter_then_acked(fifo: str, status: int, severity: Severity) -> None:
    async def test() -> None:
        async with running(World(lambda _request: Answer(status), fifo=fifo)) as world:
            world.records.gate = asyncio.Event()
            world.source.put(body("a"))
            await until(lambda: world.records.attempts)
            await turns()
            assert world.source.acked == []  # decision 19: not before it is safe

            world.records.gate.set()
            await world.settled()

            assert world.records.buried == [("a", "undeliverable", f"the target answered with status {status}")]
            assert world.source.acked == ["b-1"]
            assert world.warned() == [("CONFIGURATION", severity)]
            assert world.warnings()[0].source == "HttpMediator"
            metrics = world.router.runners["P"].metrics
            assert (metrics.failed, metrics.errors) == (1, {"ERROR_CONFIG": 1})
            assert world.router.feeds["Q"].metrics.dead == {"undeliverable": 1}

    run(test)


@pytest.mark.parametrize(
    ("found", "delay", "metric"),
    [
        (DEFERRED, 45, "transient"),
        (Answer(200, b'{"ack":false}'), 30, "transient"),
        (Answer(429, b"", "7"), 7, "throttled"),
        (Answer(429), 30, "throttled"),
        (DOWN, 30, "transient"),
        (Failure(FailureKind.TIMEOUT), 30, "transient"),
        (Failure(FailureKind.UNREACHABLE), 30, "failed"),
    ],
    ids=str,
)
def test_outcome_error_process_and_error_connection_in_batch_order_are_nacked_with_their_delay(
    found: Answer | Failure, delay: int, metric: str
) -> None:
    async def test() -> None:
        async with running(World(lambda _request: found, fifo="batch")) as world:
            world.source.put(body("a"))
            await until(lambda: world.source.nacked)

            assert world.source.nacked == [("b-1", delay)]
            assert len(world.router.tracker) == 0
            assert getattr(world.router.runners["P"].metrics, metric) == 1
            assert world.warned() == []
            world.transport.script = lambda _request: OK
            await world.tick(delay)
            await until(lambda: world.source.acked)

    run(test)


@pytest.mark.parametrize("found", [DEFERRED, DOWN, Failure(FailureKind.UNREACHABLE)], ids=["deferred", "503", "refused"])
def test_decision_22_in_strict_order_a_message_that_failed_is_held_here_and_tried_again(found: Answer | Failure) -> None:
    async def test() -> None:
        async with running(World(lambda request: found if request.message_id == "a" else OK)) as world:
            world.source.put(body("a", "g"), body("b", "g"), body("c", "h"))
            await until(lambda: world.source.acked == ["b-3"])
            await until(lambda: world.router.runners["P"].pool.held)

            assert world.source.nacked == []
            assert "b" not in world.transport.called
            world.transport.script = lambda _request: OK
            await world.tick(45)
            await world.settled()
            assert world.source.acked == ["b-3", "b-1", "b-2"]
            assert [attempt.number for attempt in world.records.attempts if attempt.message_id == "a"] == [1, 2]

    run(test)


def test_decision_22_a_long_delay_sends_the_group_back_with_that_delay() -> None:
    async def test() -> None:
        found = Answer(429, b"", "600")
        async with running(World(lambda request: found if request.message_id == "a" else OK, hold_limit=60)) as world:
            world.source.put(body("a", "g"), body("b", "g"))
            await until(lambda: world.source.nacked)

            assert world.source.nacked == [("b-1", 600), ("b-2", 600)]
            world.transport.script = lambda _request: OK
            await world.tick(600)
            await until(lambda: not world.source.left)
            assert world.source.acked == ["b-1", "b-2"]

    run(test)


def test_fifo_enforcement_level_2_in_batch_order_the_rest_of_batch_and_group_is_nacked_with_10_seconds() -> None:
    async def test() -> None:
        async with running(World(lambda request: DOWN if request.message_id == "a" else OK, fifo="batch")) as world:
            world.source.put(body("a", "g"), body("b", "g"), body("c", "g"), body("d", "h"))
            await world.settled()

            assert world.source.nacked == [("b-1", 30), ("b-2", 10), ("b-3", 10)]
            assert world.source.acked == ["b-4"]
            assert set(world.transport.called) == {"a", "d"}
            assert len(world.router.runners["P"].pool.batches or ()) == 0

    run(test)


def test_fifo_enforcement_in_batch_order_a_success_lets_the_next_one_go() -> None:
    async def test() -> None:
        async with running(World(fifo="batch")) as world:
            world.source.put(*(body(name, "g") for name in "abc"))
            await world.settled()

            assert world.transport.called == ["a", "b", "c"]
            assert world.transport.most_open == 1

    run(test)


@BOTH
def test_outcome_error_config_does_not_hold_the_group_back_longer_than_its_burial_takes(fifo: str) -> None:
    async def test() -> None:
        world = World(lambda request: Answer(404) if request.message_id == "a" else OK, fifo=fifo)
        async with running(world):
            world.records.gate = asyncio.Event()
            world.source.put(body("a", "g"), body("b", "g"))
            await until(lambda: world.records.attempts)
            await turns()
            assert world.transport.called == ["a"]

            world.records.gate.set()
            await world.settled()

            assert (world.transport.called, world.source.acked) == (["a", "b"], ["b-1", "b-2"])

    run(test)


@BOTH
def test_outcome_circuit_open_comes_again_when_the_breaker_may_let_it_through(fifo: str) -> None:
    async def test() -> None:
        world = World(lambda _request: Failure(FailureKind.UNREACHABLE), fifo=fifo)
        async with running(world):
            world.source.put(*(body(str(number), str(number)) for number in range(4)))
            await until(lambda: len(world.records.attempts) == 4)
            world.transport.script = lambda _request: OK
            made = len(world.transport.requests)

            world.source.put(body("x", "x"))
            await until(lambda: world.source.is_seen)
            await turns()

            # Nothing was called, so nothing is recorded: what is known of it is when it may be called.
            assert (len(world.transport.requests), len(world.records.attempts)) == (made, 4)
            assert sum(world.router.runners["P"].metrics.errors.values()) == 4
            for _ in range(10):  # single probes: one message at a time until the third has succeeded
                await world.tick(30)
                await turns()
            await until(lambda: not world.source.left)

    run(test)


OTHER = "https://other.example/hook"


def test_decision_22_without_a_group_a_dead_target_does_not_stop_messages_for_others() -> None:
    async def test() -> None:
        async with running(World(lambda request: DOWN if request.url == TARGET else OK)) as world:
            world.source.put(body("a"), body("b", target=OTHER), body("c", target=OTHER))
            await until(lambda: len(world.source.nacked) == 3)
            assert world.source.nacked == [("b-1", 30), ("b-2", 10), ("b-3", 10)]

            await world.tick(10)
            await until(lambda: world.source.acked == ["b-2", "b-3"])
            await world.tick(20)
            await world.records.until(2, "a")
            assert [attempt.number for attempt in world.records.attempts if attempt.message_id == "a"] == [1, 2]

    run(test)


def test_decision_22_without_a_group_nothing_waits_for_a_message_whose_target_is_not_called() -> None:
    async def test() -> None:
        async with running(World(lambda request: Answer(429) if request.url == TARGET else OK)) as world:
            world.source.put(body("a", "g"))
            await world.records.until(1)
            world.source.put(body("b"), body("c", target=OTHER), body("d"), body("e", target=OTHER))
            await until(lambda: len(world.source.nacked) == len(world.source.acked) == 2)

            assert (world.source.nacked, world.source.acked) == ([("b-2", 30), ("b-4", 30)], ["b-3", "b-5"])

    run(test)


# ── pauses ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


@BOTH
@pytest.mark.parametrize("status", [429, 503])
def test_decision_21_retry_after_pauses_the_endpoint_not_only_the_message(fifo: str, status: int) -> None:
    async def test() -> None:
        world = World(lambda request: Answer(status, b"", "30") if request.url == TARGET else OK, fifo=fifo)
        async with running(world, PoolConfig("P", 5)):
            world.source.put(*(body(str(number), str(number)) for number in range(40)), body("x", "x", target=OTHER))
            await until(lambda: world.source.acked == ["b-41"])  # others are not paused
            await turns()
            assert len(world.transport.requests) == 5 + 1

            await world.tick(29)
            assert len(world.transport.requests) == 5 + 1
            await world.tick(1)
            await turns()
            assert len(world.transport.requests) == 5 + 1 + 1  # one finds out whether the pause is over

            world.transport.script = lambda _request: OK
            for _ in range(5):
                await world.tick(31)
                await turns()
            await until(lambda: not world.source.left)

    run(test)


@BOTH
@pytest.mark.parametrize("found", [Answer(429, b"", "30"), Answer(200, b'{"ack":false}')], ids=["429", "ack: false"])
def test_decision_21_who_asks_for_a_later_attempt_does_not_count_towards_max_attempts(fifo: str, found: Answer) -> None:
    async def test() -> None:
        async with running(World(lambda _request: found, fifo=fifo, max_attempts=2)) as world:
            world.source.put(body("a", "g"))
            for count in range(1, 6):
                await world.records.until(count)
                await world.tick(30)
            assert world.records.buried == []

            world.transport.script = lambda _request: Answer(404)
            await until(lambda: not world.transport.open)
            await world.tick(30)
            await until(lambda: world.records.buried)
            assert world.records.dead_attempts[0] >= 6  # and is told as what it was: an attempt

    run(test)


# ── dead letters ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_target_that_is_down_its_counters_and_records_are_those_of_the_calls() -> None:
    async def test() -> None:
        async with running(World(lambda _request: Failure(FailureKind.UNREACHABLE, "connection refused"))) as world:
            world.source.put(*(body(str(number), str(number)) for number in range(10)))
            await world.records.until(10)
            calls = len(world.transport.requests)
            for _ in range(5):
                await world.tick(1)

            runner = world.router.runners["P"]
            assert (runner.metrics.failed, runner.metrics.errors) == (10, {"ERROR_CONNECTION": 10})
            assert runner.metrics.numbers(None, world.clock.now()).success_rate == 0
            assert {attempt.error for attempt in world.records.attempts} == {"connection refused"}
            assert sum(attempt.calls for attempt in world.records.attempts) == calls

    run(test)


def test_a_dead_letter_has_the_attempts_that_were_made_also_where_its_queue_keeps_it() -> None:
    async def test() -> None:
        source = KeepsDeadSource()
        async with running(World(lambda _request: Answer(302), max_attempts=3, source=source)) as world:
            world.source.put(body("a", "g"))
            for count in (1, 2, 3):
                await world.records.until(count)
                await world.tick(30)
            await world.settled()

            assert (source.dead, source.dead_attempts) == ([("b-1", "max_attempts")], [3])

    run(test)


@BOTH
def test_decision_19_max_attempts_makes_a_dead_letter(fifo: str) -> None:
    async def test() -> None:
        async with running(World(lambda _request: Answer(302), fifo=fifo, max_attempts=3)) as world:
            world.source.put(body("a"))
            for count in (1, 2, 3):
                await world.records.until(count)
                assert [attempt.number for attempt in world.records.attempts] == [*range(1, count + 1)]
                await world.tick(30)
            await world.settled()

            assert world.records.buried == [
                ("a", "max_attempts", "the target answered with status 302: redirects are not followed")
            ]
            assert (world.records.dead_attempts, world.source.acked) == ([3], ["b-1"])
            assert world.warned() == [("PROCESSING", Severity.ERROR)]

    run(test)


def test_decision_19_what_went_back_to_its_queue_in_between_goes_on_counting_also_through_a_full_pool() -> None:
    async def test() -> None:
        busy = Answer(302)
        world = World(lambda request: busy if request.message_id == "a" else None, max_attempts=2, hold_limit=0)
        async with running(world, PoolConfig("P", 1)):
            world.source.put(body("a", "g"))
            await until(lambda: world.source.nacked == [("b-1", 30)])
            world.source.put(*(body(f"f{number}", f"f{number}") for number in range(51)))
            await until(lambda: world.router.runners["P"].pool.queued == 50)
            await world.tick(30)
            await until(lambda: len(world.source.nacked) == 2)  # no room

            world.transport.script = lambda request: busy if request.message_id == "a" else OK
            world.transport.open[0].answer()
            await until(lambda: world.source.left == 1)
            await world.tick(60)
            await world.settled()

            assert world.records.dead_attempts == [2]

    run(test)


def test_decision_19_an_open_breaker_is_no_attempt() -> None:
    """Else a target that is down for a minute would kill messages that nobody tried to deliver."""

    async def test() -> None:
        async with running(World(lambda _request: Failure(FailureKind.UNREACHABLE), max_attempts=5)) as world:
            world.source.put(*(body(str(number), str(number)) for number in range(4)))
            await until(lambda: len(world.records.attempts) == 4)
            world.source.put(body("x", "x"))
            breaker = world.router.mediator.breaker(TARGET)
            for count in range(1, 11):
                breaker.open_until = world.clock.now() + 6 * SECOND
                await until(partial(lambda most: breaker.rejected >= most, count))
                world.clock.advance(5.5)
                breaker.open_until = world.clock.now() + 6 * SECOND
                await world.tick(0.5)

            assert world.records.buried == []
            found = world.router.tracker.find("x")
            assert found is not None
            assert found.attempts == 0

    run(test)


@BOTH
def test_decision_19_what_cannot_be_kept_is_not_acked_and_its_group_waits_for_it(fifo: str) -> None:
    async def test() -> None:
        async with running(World(lambda request: Answer(404) if request.message_id == "a" else OK, fifo=fifo)) as world:
            world.records.trouble = Unavailable("the disk is full")
            world.source.put(body("a", "g"), body("b", "g"))
            await until(lambda: world.warned()[-1:] == [(Category.PROCESSING, Severity.CRITICAL)])
            await turns()

            assert world.source.acked == []
            if fifo == "strict":
                assert world.transport.called == ["a"]
            world.records.trouble = None
            await world.tick(30)
            await until(lambda: not world.source.left)
            assert world.records.buried[0][:2] == ("a", "undeliverable")
            assert fifo == "batch" or world.source.acked == ["b-1", "b-2"]

    run(test)


# ── surprises ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@BOTH
def test_warning_processing_an_unexpected_exception_is_told_and_the_message_comes_again(fifo: str) -> None:
    async def test() -> None:
        async with running(World(fifo=fifo)) as world:
            world.transport.breaks = RuntimeError("a bug")
            world.source.put(body("a"))
            await until(world.warned)

            assert world.warned() == [("PROCESSING", Severity.WARN)]
            assert world.router.runners["P"].pool.active == 0
            world.transport.breaks = None
            await world.tick(30)
            await until(lambda: world.source.acked == ["b-1"])

    run(test)


# ── rate and concurrency ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_wait_for_rate_limit_permit_messages_stay_in_memory_and_go_on_when_there_is_one() -> None:
    async def test() -> None:
        async with running(World(), PoolConfig("P", 10, 2)) as world:
            world.source.put(*(body(name, name) for name in "abcd"))
            await until(lambda: len(world.source.acked) == 2)
            await turns()
            assert (world.source.nacked, len(world.router.tracker)) == ([], 2)

            assert world.router.runners["P"].metrics.rate_limited == 1

            await world.tick(59)
            assert len(world.source.acked) == 2
            await world.tick(1)
            await world.settled()

    run(test)


def test_wait_for_rate_limit_permit_nobody_has_to_ask_a_timer_wakes_the_pool() -> None:
    async def test() -> None:
        async with running(World(), PoolConfig("P", 10, 1)) as world:
            runner = world.router.runners["P"]
            assert runner.pool.limit is not None
            runner.pool.limit.take(world.clock.now() - 60 * SECOND + 10_000)
            world.source.put(body("a"))
            await until(lambda: runner._timer is not None)
            world.clock.advance(0.01)
            await until(lambda: world.source.acked)

    run(test)


@pytest.mark.parametrize("rate", [None, 600])
def test_update_rate_limit_while_a_worker_waits_the_new_one_counts_at_once(rate: int | None) -> None:
    async def test() -> None:
        async with running(World(), PoolConfig("P", 10, 1)) as world:
            world.source.put(*(body(name, name) for name in "abcd"))
            await until(lambda: len(world.source.acked) == 1)
            await turns()
            assert len(world.router.tracker) == 3

            await world.apply(PoolConfig("P", 10, rate))

            await world.settled()

    run(test)


@BOTH
def test_update_concurrency_raised_while_running(fifo: str) -> None:
    async def test() -> None:
        async with running(World(open_calls, fifo=fifo), PoolConfig("P", 1)) as world:
            world.source.put(*(body(name, name) for name in "abcd"))
            await until(lambda: len(world.transport.open) == 1)

            await world.apply(PoolConfig("P", 3))

            assert len(world.transport.open) == 3

    run(test)


@BOTH
def test_update_concurrency_lowered_while_running(fifo: str) -> None:
    async def test() -> None:
        async with running(World(open_calls, fifo=fifo), PoolConfig("P", 3)) as world:
            world.source.put(*(body(name, name) for name in "abcde"))
            await until(lambda: len(world.transport.open) == 3)

            await world.apply(PoolConfig("P", 1))

            for left in (2, 1):
                world.transport.open[0].answer()
                await turns()
                assert len(world.transport.open) == left
            world.transport.open[0].answer()
            await until(lambda: world.transport.called[-1] == "d")
            assert len(world.transport.open) == 1

    run(test)


def test_process_pools_groups_run_side_by_side_and_each_by_itself_in_order() -> None:
    async def test() -> None:
        async with running(World(open_calls)) as world:
            world.source.put(*(body(f"{group}{number}", group) for number in range(3) for group in "xyz"))
            await until(lambda: len(world.transport.open) == 3)
            while world.transport.open:
                assert len({request.message_id[0] for request in world.transport.open}) == len(world.transport.open)
                world.transport.open[-1].answer()
                await turns(3)

            for group in "xyz":
                order = [name for name in world.transport.called if name[0] == group]
                assert order == [f"{group}0", f"{group}1", f"{group}2"]

    run(test)


def test_decision_23_a_waiting_worker_wakes_at_once_for_a_high_priority_message() -> None:
    async def test() -> None:
        async with running(World(open_calls), PoolConfig("P", 1)) as world:
            world.source.put(body("a", "x"), body("b", "y"), body("u", "z", highPriority=True))
            await until(lambda: world.transport.open)
            assert world.transport.called == ["u"]

    run(test)


# ── room ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_refusal_is_as_long_as_the_pool_seems_to_need_and_10_seconds_at_most() -> None:
    async def test() -> None:
        async with running(World(open_calls), PoolConfig("P", 1)) as world:
            runner = world.router.runners["P"]
            assert runner.refusal() == 1
            world.source.put(*(body(str(number)) for number in range(11)))
            await until(lambda: world.transport.open)
            assert runner.pool.queued == 10
            world.clock.advance(0.8)
            assert {runner.refusal() for _ in range(20)} == {6, 7, 8}  # spread, so that they do not come together
            world.clock.advance(60)
            assert max(runner.refusal() for _ in range(20)) == LONGEST_REFUSAL == 10

    run(test)


def test_room_is_waited_for_and_given_up_after_a_time() -> None:
    async def test() -> None:
        async with running(World(open_calls), PoolConfig("P", 1)) as world:
            runner = world.router.runners["P"]
            world.source.put(*(body(str(number), str(number)) for number in range(50)))
            await until(lambda: runner.pool.room == 1)
            assert await runner.room(1, 10)
            assert not await runner.room(2, 0.001)

            small, large = (asyncio.create_task(runner.room(wanted, 10)) for wanted in (2, 500))
            await turns()
            world.transport.script = lambda _request: OK
            world.transport.open[0].answer()
            assert await small
            await world.settled()
            assert await large  # half of what the pool holds is enough

    run(test)


def test_room_nobody_is_left_waiting_when_the_pool_stops() -> None:
    async def test() -> None:
        world = World(open_calls)
        async with running(world, PoolConfig("P", 1)):
            runner = world.router.runners["P"]
            world.source.put(*(body(str(number), str(number)) for number in range(50)))
            await until(lambda: runner.pool.room == 1)
            waiting = asyncio.create_task(runner.room(10, 10))
            await turns()
        await waiting

    run(test)


def test_drained_pool_with_a_rate_its_timer_does_not_ring_for_ever() -> None:
    async def test() -> None:
        async with running(World(), PoolConfig("P", 1, 1)) as world:
            world.source.put(body("a", "x"), body("b", "y"))
            await until(lambda: world.source.acked)
            runner = world.router.runners["P"]
            world.source.is_stuck = True
            await world.apply()
            world.clock.advance(60)

            runner.run()

            assert runner.pool.next_due > 10**18

    run(test)


def test_visibility_timeout_control_of_a_source_alone() -> None:
    """30 s by default, 10 s for what was passed over, 1 to 43,200 s where a target asks: see above. Here the double's promise."""

    async def test() -> None:
        source = MemorySource()
        source.put(b"x")
        (received,) = await source.poll(1, 1)
        source.nack(received, 10)
        source.clock.advance(9.9)  # type: ignore[attr-defined]  # a ManualClock
        assert await source.poll(1, 0.001) == []
        source.clock.advance(0.1)  # type: ignore[attr-defined]  # a ManualClock
        assert [one.count for one in await source.poll(1, 1)] == [2]
        source.ack(received)
        assert (source.stale, source.left) == (["b-1"], 1)

    run(test)
