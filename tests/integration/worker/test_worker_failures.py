"""What becomes of calls that fail, take too long, or are no calls at all."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from penstock import PubSub
from penstock.testing import ManualClock
from penstock.worker import Reject, Retry, Worker
from tests.integration.client.quiet import run, until
from tests.integration.client.stats import stats_are
from tests.integration.worker.doing import Make, done


@pytest.mark.parametrize("is_async", [True, False])
def test_retries_come_after_a_backoff_that_doubles_and_the_last_error_is_kept(is_async: bool) -> None:
    clock = ManualClock()

    async def scenario() -> None:
        async with PubSub(clock=clock) as pubsub:
            worker, times = Worker(pubsub=pubsub), []

            def fail() -> None:
                times.append(clock.now() // 1_000_000)
                raise ValueError(f"try {len(times)}")

            async def fail_async() -> None:
                fail()

            task = worker.task("q", name="fail", max_retries=4, backoff=(60, 300))(fail_async if is_async else fail)
            await task.send()
            await worker.start()
            began = clock.now() // 1_000_000
            for number in range(1, 5):
                await done(worker, retried=number)
                delay = min(60 * 2 ** (number - 1), 300)
                await stats_are(pubsub.queue("q"), delayed=1)
                clock.advance(delay - 1)
                assert len(times) == number
                clock.advance(1)
            await done(worker, dead=1)
            await worker.stop()

            assert [at - began for at in times] == [0, 60, 180, 420, 720]
            [letter] = await pubsub.queue("q").dead_letters()
            assert (letter.last_error, letter.attempts, letter.reason) == ("ValueError: try 5", 5, "max_retries_exceeded")

    run(scenario)


@pytest.mark.parametrize("delay", [0, 3 * 86_400])
def test_a_task_may_ask_for_a_retry_when_it_suits(delay: int) -> None:
    clock = ManualClock()

    async def scenario() -> None:
        async with PubSub(clock=clock) as pubsub:
            worker, tries = Worker(pubsub=pubsub), 0

            @worker.task("q", max_retries=3)
            async def work() -> None:
                nonlocal tries
                tries += 1
                if tries == 1:
                    raise Retry("the shop is closed", delay=delay)

            await work.send()
            await worker.start()
            await done(worker, retried=1)
            if delay:
                await stats_are(pubsub.queue("q"), delayed=1)
                clock.advance(delay)
            await done(worker, succeeded=1)
            await worker.stop()
            assert tries == 2

    run(scenario)


def test_what_can_never_succeed_is_a_dead_letter_at_once(make: Make) -> None:
    async def scenario() -> None:
        async with make() as pubsub:
            worker, tries = Worker(pubsub=pubsub), 0

            @worker.task("q", max_retries=5)
            def work() -> None:
                nonlocal tries
                tries += 1
                raise Reject("there is no such customer")

            await work.send()
            await worker.start()
            await done(worker, dead=1)
            await worker.stop()

            [letter] = await pubsub.queue("q").dead_letters()
            assert (tries, letter.last_error, letter.reason) == (1, "there is no such customer", "explicit_nack")

    run(scenario)


NO_CALLS: list[tuple[Any, str]] = [
    (b"\x00\xff", "the message is not a task call: "),
    ("hello", "the message is not a task call: "),
    ({"some": "json"}, "the message is not a task call: "),
    ({"v": 2, "task": "work"}, "the message is a task call of version 2, this worker reads version 1"),
    ({"v": 1, "task": "worc"}, "the message calls the task 'worc', which this worker does not know; it knows work"),
    ({"v": 1, "task": "work", "args": [1, 2, 3]}, "task 'work': too many positional arguments; expected work(number)"),
    ({"v": 1, "task": "work", "kwargs": {"numbr": 1}}, "task 'work': missing a required argument: 'number'"),
]


def test_a_message_that_calls_nothing_is_a_dead_letter_and_the_worker_goes_on(make: Make, subtests: pytest.Subtests) -> None:
    async def scenario() -> None:
        async with make() as pubsub:
            worker = Worker(pubsub=pubsub)

            @worker.task("q")
            async def work(number: int) -> None: ...

            queue = await pubsub.queue("q").create()
            errors = {await queue.publish(payload, priority=9): (payload, error) for payload, error in NO_CALLS}
            await work.send(1)
            await worker.start()
            await done(worker, succeeded=1, dead=len(NO_CALLS))
            await worker.stop()

            letters = {letter.message.message_id: letter for letter in await queue.dead_letters()}
            assert letters.keys() == errors.keys()
            for message_id, (payload, error) in errors.items():
                with subtests.test(payload=payload):
                    letter = letters[message_id]
                    assert (letter.last_error or "").startswith(error)
                    assert letter.attempts == 1
                    assert letter.message.payload == payload

    run(scenario)


def test_a_call_written_by_hand_is_one_in_any_form(make: Make) -> None:
    async def scenario() -> None:
        async with make() as pubsub:
            worker, ran = Worker(pubsub=pubsub), []

            @worker.task("q")
            async def work(number: int) -> None:
                ran.append(number)

            queue = await pubsub.queue("q").create()
            await queue.publish({"v": 1, "task": "work", "args": [1]})
            await queue.publish('{"v": 1, "task": "work", "kwargs": {"number": 2}}')
            await queue.publish(b'{"v": 1, "task": "work", "args": [3]}')
            await worker.start()
            await done(worker, succeeded=3)
            await worker.stop()
            assert sorted(ran) == [1, 2, 3]

    run(scenario)


class _Odd(BaseException):
    """As libraries have them that want to pass every `except Exception`."""


class _Bare(Retry):
    def __init__(self) -> None:
        """Without its parent's."""


def test_whatever_a_task_raises_the_worker_goes_on() -> None:
    errors: dict[str, tuple[BaseException, str]] = {
        "exit": (SystemExit(3), "SystemExit: 3"),
        "cancelled": (asyncio.CancelledError(), "CancelledError"),
        "key": (KeyError("k"), "KeyError: 'k'"),
        "odd": (_Odd("passes"), "_Odd: passes"),
        "bare": (_Bare(), "the task asked for a retry"),
    }

    async def scenario() -> None:
        async with PubSub() as pubsub:
            worker = Worker(pubsub=pubsub)

            @worker.task("q", max_retries=0)
            def fail(name: str) -> None:
                raise errors[name][0]

            @worker.task("q", max_retries=0)
            async def fail_async(name: str) -> None:
                raise errors[name][0]

            @worker.task("q")
            async def work() -> None: ...

            kept = {await task.send(name): errors[name][1] for task in (fail, fail_async) for name in errors}
            await worker.start()
            await done(worker, dead=len(kept))
            await work.send()
            await done(worker, succeeded=1)
            await worker.stop()
            letters = await pubsub.queue("q").dead_letters()
            assert {letter.message.message_id: letter.last_error for letter in letters} == kept

    run(scenario)


def test_a_plain_function_that_makes_a_coroutine_is_told_so() -> None:
    async def scenario() -> None:
        async with PubSub() as pubsub:
            worker = Worker(pubsub=pubsub)

            async def inner() -> None: ...

            await worker.task("q", name="work", max_retries=0)(lambda: inner()).send()  # noqa: PLW0108  # the coroutine function must not show
            await worker.start()
            await done(worker, dead=1)
            await worker.stop()
            [letter] = await pubsub.queue("q").dead_letters()
            assert letter.last_error == "TypeError: the function returned a coroutine: declare it with `async def`"

    run(scenario)


def test_a_coroutine_beyond_its_time_limit_is_cancelled_and_tried_again(make: Make) -> None:
    async def scenario() -> None:
        async with make() as pubsub:
            worker, events = Worker(pubsub=pubsub), []

            @worker.task("q", time_limit=0.05, max_retries=1, backoff=0)
            async def work() -> None:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    events.append("cancelled")
                    raise

            await work.send()
            await worker.start()
            await done(worker, dead=1)
            await worker.stop()

            assert events == ["cancelled", "cancelled"]
            assert (worker.stats.retried, worker.stats.dead, worker.stats.timed_out) == (1, 1, 2)
            [letter] = await pubsub.queue("q").dead_letters()
            assert letter.last_error == "TimeLimitExceeded: the time limit of 0.05 s is over"

    run(scenario)


def test_a_timeout_of_the_task_itself_is_an_error_like_any_other() -> None:
    async def scenario() -> None:
        async with PubSub() as pubsub:
            worker = Worker(pubsub=pubsub)

            @worker.task("q", time_limit=30, max_retries=0)
            async def work() -> None:
                raise TimeoutError("the shop does not answer")

            await work.send()
            await worker.start()
            await done(worker, dead=1)
            await worker.stop()
            assert worker.stats.timed_out == 0
            [letter] = await pubsub.queue("q").dead_letters()
            assert letter.last_error == "TimeoutError: the shop does not answer"

    run(scenario)


def test_a_thread_beyond_its_time_limit_is_left_behind_and_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with PubSub() as pubsub:
            worker, free = Worker(pubsub=pubsub, concurrency=1), threading.Event()

            @worker.task("q", time_limit=0.05, max_retries=0)
            def stuck() -> None:
                free.wait(60)

            @worker.task("q")
            def work() -> None: ...

            await stuck.send()
            await work.send()
            await worker.start()
            await done(worker, dead=1, succeeded=1)
            assert worker.stats.abandoned_threads == 1
            assert "its thread is left behind" in caplog.text
            await worker.stop()
            free.set()
            await until(lambda: worker.stats.abandoned_threads == 0, "the function ends")
            await until(
                lambda: not any(one.name.startswith("penstock-task") for one in threading.enumerate()), "so do the threads"
            )
            assert (worker.stats.succeeded, worker.stats.dead, worker.stats.timed_out) == (1, 1, 1)

    run(scenario)


def test_the_lease_of_long_work_is_extended_while_it_runs_and_while_it_waits() -> None:
    clock = ManualClock()

    async def scenario() -> None:
        async with PubSub(clock=clock) as pubsub:
            worker, gate, runs = Worker(pubsub=pubsub, concurrency=1), asyncio.Event(), 0

            @worker.task("q", max_retries=0)
            async def work() -> None:
                nonlocal runs
                runs += 1
                await gate.wait()

            await work.send()
            await work.send()
            await worker.start()
            await until(lambda: worker.stats.running == 1 and worker.stats.waiting == 1, "one runs, one waits")
            for _ in range(8 * 3_600 // 20):
                clock.advance(20)
                await asyncio.sleep(0)
            gate.set()
            await done(worker, succeeded=2)
            await worker.stop()

            assert (runs, worker.stats.dead) == (2, 0)
            assert (await pubsub.queue("q").stats()).expired_total == 0

    run(scenario)


def test_a_call_may_be_sent_for_later() -> None:
    clock = ManualClock()

    async def scenario() -> None:
        async with PubSub(clock=clock) as pubsub:
            worker = Worker(pubsub=pubsub)

            @worker.task("q")
            async def work() -> None: ...

            await work.send_with(delay=7 * 86_400, headers={"why": "a reminder"})()
            await worker.start()
            await stats_are(pubsub.queue("q"), delayed=1)
            clock.advance(7 * 86_400 - 1)
            assert worker.stats.succeeded == 0
            clock.advance(1)
            await done(worker, succeeded=1)
            await worker.stop()

    run(scenario)
