"""A worker at work: the same on a broker in this process and on a server."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
import traceback

import pytest

from penstock import PubSub
from penstock.worker import Outcome, TaskResult, Worker
from tests.integration.client.quiet import run, until
from tests.integration.worker.doing import Make, done

variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="clean")


def test_tasks_of_both_kinds_run_and_their_messages_are_gone(make: Make) -> None:
    async def scenario() -> None:
        async with make() as pubsub:
            worker = Worker(pubsub=pubsub)
            ran: list[tuple[str, str, bool]] = []

            @worker.task("emails")
            async def send_email(to: str, subject: str = "") -> None:
                ran.append((to, subject, threading.current_thread() is threading.main_thread()))

            @worker.task("thumbnails")
            def make_thumbnail(path: str) -> None:
                ran.append((path, "", threading.current_thread() is threading.main_thread()))

            await send_email.send("a@b.c", subject="hello")
            await make_thumbnail.send(path="one.png")
            await worker.start()
            await send_email.send(to="d@e.f")
            await done(worker, succeeded=3)
            await worker.stop()

            assert sorted(ran) == [("a@b.c", "hello", True), ("d@e.f", "", True), ("one.png", "", False)]
            for name in ("emails", "thumbnails"):
                stats = await pubsub.queue(name).stats()
                assert (stats.depth, stats.in_flight, stats.dead_letters) == (0, 0, 0)

    run(scenario)


def test_no_more_run_at_once_than_allowed_and_the_urgent_ones_first(make: Make) -> None:
    async def scenario() -> None:
        async with make() as pubsub:
            worker = Worker(pubsub=pubsub, concurrency=2, prefetch=100)
            order, running, most, gate = [], 0, 0, asyncio.Event()

            @worker.task("q")
            async def work(name: str) -> None:
                nonlocal running, most
                running += 1
                most = max(most, running)
                order.append(name)
                await gate.wait()
                running -= 1

            await worker.start()
            for number in range(2):
                await work.send(f"first {number}")
            await until(lambda: worker.stats.running == 2, "two run")
            for priority in (0, 9, 5, 9):
                await work.send_with(priority=priority)(f"{priority}")
            await until(lambda: worker.stats.waiting == 4, "four wait")
            gate.set()
            await done(worker, succeeded=6)
            await worker.stop()

            assert most == 2
            assert order[2:] == ["9", "9", "5", "0"]

    run(scenario)


def test_functions_that_block_share_the_same_limit() -> None:
    async def scenario() -> None:
        async with PubSub() as pubsub:
            worker = Worker(pubsub=pubsub, concurrency=3)
            barrier, inside = threading.Barrier(3), threading.Semaphore(3)

            @worker.task("q")
            def work() -> None:
                assert inside.acquire(blocking=False), "more than three"
                barrier.wait(10)  # only three at once get through
                inside.release()

            for _ in range(9):
                await work.send()
            await worker.start()
            await done(worker, succeeded=9)
            await worker.stop()
            assert worker.stats.dead == worker.stats.retried == 0

    run(scenario)


def test_what_a_task_sets_in_its_context_the_next_does_not_find() -> None:
    async def scenario() -> None:
        async with PubSub() as pubsub:
            worker, found = Worker(pubsub=pubsub, concurrency=1), []

            @worker.task("q")
            async def one() -> None:
                found.append(variable.get())
                variable.set("dirty")

            @worker.task("q")
            def two() -> None:
                found.append(variable.get())
                variable.set("dirty")

            for task in (one, one, two, two, one):
                await task.send()
            await worker.start()
            await done(worker, succeeded=5)
            await worker.stop()
            assert found == ["clean"] * 5

    run(scenario)


def test_each_end_is_told_to_listeners_and_to_the_log_without_payloads(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "penstock.worker")

    async def scenario() -> None:
        async with PubSub() as pubsub:
            worker = Worker(pubsub=pubsub)
            successes: list[TaskResult] = []
            failures: list[TaskResult] = []
            worker.on_success(successes.append)

            @worker.on_failure
            async def failed(result: TaskResult) -> None:
                await asyncio.sleep(0)
                failures.append(result)

            @worker.task("q", max_retries=1, backoff=0)
            async def work(secret: str, fails: bool = False) -> None:
                if fails:
                    raise ValueError

            first = await work.send("password")
            second = await work.send("password", fails=True)
            await worker.start()
            await done(worker, succeeded=1, dead=1)
            await worker.stop()

            [success] = successes
            assert (success.task, success.queue, success.message_id, success.attempt) == ("work", "q", first, 1)
            assert (success.outcome, success.error, success.max_retries) == (Outcome.SUCCEEDED, None, 1)
            assert success.seconds >= 0
            assert [(one.message_id, one.outcome, one.attempt, one.delay) for one in failures] == [
                (second, Outcome.RETRIED, 1, 0.0),
                (second, Outcome.DEAD, 2, None),
            ]
            assert all(isinstance(one.error, ValueError) for one in failures)
            lines = [record.getMessage() for record in caplog.records if "task=" in record.getMessage()]
            assert len(lines) == 3
            assert any(
                f"task=work queue=q id={first} attempt=1/2 seconds=" in line and "outcome=succeeded" in line for line in lines
            )
            assert "password" not in caplog.text

    run(scenario)


def test_a_retry_is_one_line_of_the_log_and_a_dead_letter_has_the_frames_of_the_task_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        async with PubSub() as pubsub:
            worker = Worker(pubsub=pubsub)

            @worker.task("q", max_retries=2, backoff=0)
            def in_thread() -> None:
                raise ValueError("no\nroute")

            @worker.task("q", max_retries=2, backoff=0)
            async def in_loop() -> None:
                in_thread()

            await in_thread.send()
            await in_loop.send()
            await worker.start()
            await done(worker, dead=2)
            await worker.close()

    run(scenario)

    retried = [one for one in caplog.records if "outcome=retried" in one.getMessage()]
    assert [one.exc_info for one in retried] == [None] * 4
    assert all(
        "\n" not in line and "error='ValueError: no\\nroute' at=test_worker.py:" in line for line in map(str, caplog.messages)
    )
    dead = [one for one in caplog.records if "outcome=dead" in one.getMessage()]
    for one in dead:
        assert one.exc_info is not None
        frames = [frame.name for frame in traceback.extract_tb(one.exc_info[2])]
        assert frames[0] in {"in_thread", "in_loop"}
    assert len(dead) == 2


def test_a_listener_that_fails_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with PubSub() as pubsub:
            worker = Worker(pubsub=pubsub)

            @worker.on_success
            def broken(result: TaskResult) -> None:
                raise RuntimeError("the listener is broken")

            await worker.task("q", name="work")(lambda: None).send()
            await worker.start()
            await done(worker, succeeded=1)
            await worker.stop()
            assert "the listener is broken" in caplog.text

    run(scenario)
