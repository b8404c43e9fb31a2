"""How a worker stops, what it makes, and from where calls are sent."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock import PubSub, QueueConfig
from penstock.access import Keyring, Verb
from penstock.clock import SystemClock
from penstock.errors import FailedPrecondition, InvalidArgument, PermissionDenied, QueueNotFound
from penstock.testing.server import LocalServer
from penstock.worker import Worker
from tests.integration.client.quiet import run, until
from tests.integration.client.stats import stats_are
from tests.integration.worker.doing import Make, done


def test_a_stop_waits_for_what_runs_and_gives_the_rest_back_at_once(make: Make) -> None:
    async def scenario() -> None:
        async with make() as pubsub:
            worker, gate = Worker(pubsub=pubsub, concurrency=1), asyncio.Event()

            @worker.task("q")
            async def work() -> None:
                await gate.wait()

            for _ in range(3):
                await work.send()
            await worker.start()
            await until(lambda: worker.stats.running == 1 and worker.stats.waiting == 2, "one runs, two wait")
            stopping = asyncio.create_task(worker.stop())
            await stats_are(pubsub.queue("q"), depth=2, in_flight=1)
            assert not stopping.done()
            gate.set()
            await stopping
            await worker.stop()

            assert worker.stats.succeeded == 1
            await stats_are(pubsub.queue("q"), depth=2, in_flight=0, acked_total=1)

            await worker.start()
            await done(worker, succeeded=3)
            await worker.stop()

    run(scenario)


@pytest.mark.parametrize("manner", ["polite", "stubborn", "thread"])
def test_what_does_not_end_in_time_is_cut_short_and_given_back_as_if_never_tried(
    make: Make, manner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.worker.worker.CANCEL_SECONDS", 0.2)

    async def scenario() -> None:
        async with make() as pubsub:
            worker = Worker(pubsub=pubsub, shutdown_seconds=0.05)
            gate, began, ended = threading.Event(), threading.Event(), threading.Event()

            async def polite() -> None:
                began.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    ended.set()

            async def stubborn() -> None:
                began.set()
                while not gate.is_set():
                    with contextlib.suppress(asyncio.CancelledError):
                        await asyncio.sleep(0.005)
                ended.set()

            def thread() -> None:
                began.set()
                gate.wait(60)
                ended.set()

            function: Any = {"polite": polite, "stubborn": stubborn, "thread": thread}[manner]
            await worker.task("q", name="work", max_retries=0)(function).send()
            await worker.start()
            await until(began.is_set, "it has begun")
            await worker.stop()

            assert (worker.stats.returned, worker.stats.succeeded, worker.stats.dead) == (1, 0, 0)
            await stats_are(pubsub.queue("q"), depth=1, in_flight=0, dead_letters=0)
            [again] = await pubsub.queue("q").consume()
            assert again.retry_count == 0
            gate.set()
            await until(lambda: ended.is_set() and worker.stats.abandoned_threads == 0, "it ends, unheard")

    run(scenario)


def test_a_queue_that_is_deleted_ends_the_worker_with_the_reason(make: Make) -> None:
    async def scenario() -> None:
        async with make() as pubsub:
            worker = Worker(pubsub=pubsub)

            @worker.task("q")
            async def work() -> None: ...

            serving = asyncio.create_task(worker.serve())
            await until(lambda: worker._executor is not None, "it works")
            await work.send()
            await done(worker, succeeded=1)
            await pubsub.queue("q").delete()
            with pytest.raises(QueueNotFound):
                await serving

    run(scenario)


def test_queues_are_made_as_told_or_not_at_all(make: Make) -> None:
    async def scenario() -> None:
        async with make() as pubsub:
            worker = Worker(pubsub=pubsub, queue_config=QueueConfig(max_retries=7))
            sent = worker.task("sent", name="sent")(lambda: None)
            worker.task("started", name="started")(lambda: None)
            await sent.send()
            await worker.start()
            await done(worker, succeeded=1)
            await worker.stop()
            assert [(await pubsub.queue(name).config()).max_retries for name in ("sent", "started")] == [7, 7]

            strict = Worker(pubsub=pubsub, create_queues=False)
            task = strict.task("missing")(lambda: None)
            with pytest.raises(QueueNotFound):
                await task.send()
            with pytest.raises(QueueNotFound):
                await strict.serve()

    run(scenario)


def test_a_worker_may_work_for_some_of_its_queues() -> None:
    async def scenario() -> None:
        async with PubSub() as pubsub:
            worker = Worker(pubsub=pubsub)
            ran: list[str] = []
            tasks = [worker.task(name, name=name)(partial(ran.append, name)) for name in ("a", "b")]
            for task in tasks:
                await task.send()
            with pytest.raises(InvalidArgument, match="no task uses the queue 'c', expected some of a, b"):
                await worker.start(["c"])
            await worker.start(["b"])
            await done(worker, succeeded=1)
            await worker.stop()
            assert ran == ["b"]
            await stats_are(pubsub.queue("a"), depth=1)

    run(scenario)


def test_a_worker_without_tasks_says_so() -> None:
    async def scenario() -> None:
        async with PubSub() as pubsub:
            with pytest.raises(FailedPrecondition, match="the worker has no tasks"):
                await Worker(pubsub=pubsub).start()

    run(scenario)


def test_calls_are_sent_from_threads_and_from_tasks_that_block(server: LocalServer, project: str) -> None:
    worker, ran = Worker(server.url, project=project), []

    @worker.task("q")
    def outer() -> None:
        ran.append("outer")
        inner.send_sync("from a task")

    @worker.task("q")
    async def inner(text: str) -> None:
        ran.append(text)

    async def scenario() -> None:
        async with worker:
            await worker.start()
            await outer.send()
            await asyncio.to_thread(inner.send_with(priority=9).sync, "from a thread")
            with pytest.raises(FailedPrecondition, match="would block the running event loop"):
                inner.send_sync("from the loop")
            await done(worker, succeeded=3)

    run(scenario)
    assert sorted(ran) == ["from a task", "from a thread", "outer"]


def test_calls_are_sent_without_any_loop_and_then_run_in_one(server: LocalServer, project: str) -> None:
    worker = Worker(server.url, project=project)
    task = worker.task("q", name="work")(lambda: None)
    ids = [task.send_sync() for _ in range(3)]
    assert len(set(ids)) == 3

    async def scenario() -> None:
        async with worker:
            await worker.start()  # the connection moves to this loop
            await done(worker, succeeded=3)
            await task.send()
            await done(worker, succeeded=4)

    run(scenario)


def test_calls_are_sent_from_one_loop_after_another(server: LocalServer, project: str) -> None:
    worker = Worker(server.url, project=project)
    task = worker.task("q", name="work")(lambda: None)

    async def scenario() -> None:
        async with worker:
            assert len(set(await asyncio.gather(*(task.send() for _ in range(5))))) == 5

    run(scenario)
    run(scenario)


def test_a_worker_on_a_data_directory_finds_what_was_sent_before(tmp_path: Path) -> None:
    def made() -> tuple[Worker, Any]:
        worker = Worker(data_dir=tmp_path / "data")
        return worker, worker.task("q", name="work")(lambda: None)

    async def send() -> None:
        worker, task = made()
        async with worker:
            await task.send()

    async def work() -> None:
        worker, _ = made()
        async with worker:
            await worker.start()
            await done(worker, succeeded=1)

    run(send)
    run(work)


def test_the_server_is_found_in_the_environment(server: LocalServer, project: str, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = Worker()  # made before anybody says where
    task = worker.task("q", name="work")(lambda: None)
    monkeypatch.setenv("PENSTOCK_SERVER", server.url)
    monkeypatch.setenv("PENSTOCK_PROJECT", project)

    async def scenario() -> None:
        async with worker:
            await task.send()
            await worker.start()
            await done(worker, succeeded=1)
        async with PubSub(server.url, project=project) as pubsub:
            assert await pubsub.queues() == ["q"]

    run(scenario)


def test_a_signal_while_the_server_is_looked_for_ends_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        came, leave = asyncio.Event(), asyncio.Event()

        async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            came.set()
            await leave.wait()  # and never an answer
            writer.close()

        silent = await asyncio.start_server(accept, "127.0.0.1", 0)
        port = silent.sockets[0].getsockname()[1]
        worker = Worker(f"http://127.0.0.1:{port}")
        worker.task("q", name="work")(lambda: None)
        serving = asyncio.create_task(worker.serve())
        await came.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        await until(worker._over.is_set, "the signal has come")
        leave.set()
        await serving  # without an error: nobody wants to know any more
        silent.close()

    run(scenario)


def test_a_listener_that_never_ends_keeps_no_worker_from_stopping(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("penstock.worker.worker.CANCEL_SECONDS", 0.1)

    async def scenario() -> None:
        async with PubSub() as pubsub:
            worker, release = Worker(pubsub=pubsub), asyncio.Event()

            @worker.on_success
            async def slow(_: object) -> None:
                await release.wait()

            await worker.task("q", name="work")(lambda: None).send()
            await worker.start()
            await done(worker, succeeded=1)
            await worker.stop()
            assert "a listener still runs" in caplog.text
            release.set()

    run(scenario)


FORKED = """
import os, sys
from penstock import Worker
worker = Worker(sys.argv[1], project=sys.argv[2])
task = worker.task("q", name="work")(lambda: None)
task.send_sync()
child = os.fork()
task.send_sync()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
os._exit(0)
"""


def test_a_process_that_forks_sends_from_both(server: LocalServer, project: str) -> None:
    done = subprocess.run([sys.executable, "-c", FORKED, server.url, project], timeout=60, check=False)
    assert done.returncode == 0

    async def scenario() -> None:
        async with PubSub(server.url, project=project) as pubsub:
            await stats_are(pubsub.queue("q"), depth=3)

    run(scenario)


def test_tokens_need_no_more_than_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keyring, now = Keyring(tmp_path / "tokens.json"), SystemClock().now()
    everything = keyring.create("owner", now)
    works = keyring.create("worker", now, verbs=[Verb.CONSUME, Verb.READ])
    sends = keyring.create("sender", now, verbs=[Verb.PUBLISH])
    monkeypatch.setenv("PENSTOCK_TOKEN", works)

    def made(url: str, token: str | None) -> tuple[Worker, Any]:
        worker = Worker(url, token=token)
        return worker, worker.task("q", name="work")(lambda: None)

    with LocalServer(auth="token", token_file=tmp_path / "tokens.json") as server:

        async def scenario() -> None:
            worker, _ = made(server.url, None)
            with pytest.raises(PermissionDenied):  # the queue is missing, and it may not make it
                await worker.serve()
            owner, task = made(server.url, everything)
            async with owner:
                await task.send()
            sender, task = made(server.url, sends)
            async with sender:
                await task.send()
                with pytest.raises(PermissionDenied):
                    await sender.serve()
            async with worker:
                await worker.start()
                await done(worker, succeeded=2)

        run(scenario)
