"""A worker as a process: it is stopped, hurried and killed, and so is its server. No task is lost."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import PubSub, QueueConfig
from penstock.testing.server import LocalServer, ServerProcess
from penstock.work import DeadLetter, QueueStats
from penstock.worker import Worker
from tests.integration.client.quiet import run
from tests.integration.client.stats import stats_are
from tests.integration.worker.processes import WorkerProcess
from tests.ports import free_port


@pytest.fixture
def server() -> Iterator[LocalServer]:
    with LocalServer() as server:
        yield server


def send(server: str, *names: str, task: str = "work", retries: int = 0) -> None:
    worker = Worker(server, queue_config=QueueConfig(max_retries=retries))
    task_of = worker.task("q", name=task)(lambda name: None)

    async def scenario() -> None:
        async with worker:
            await asyncio.gather(*(task_of.send(name) for name in names))

    run(scenario)


def looked_at(server: str) -> QueueStats:
    found: list[QueueStats] = []

    async def scenario() -> None:
        async with PubSub(server) as pubsub:
            found.append(await pubsub.queue("q").stats())

    run(scenario)
    return found[0]


def letters(server: str) -> list[DeadLetter]:
    found: list[DeadLetter] = []

    async def scenario() -> None:
        async with PubSub(server) as pubsub:
            found.extend(await pubsub.queue("q").dead_letters())

    run(scenario)
    return found


@pytest.mark.crash
def test_a_task_that_kills_its_worker_becomes_a_dead_letter_and_harms_nobody_else(
    server: LocalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.api.feed.GRACE_SECONDS", 0.2)
    send(server.url, "poison", task="dies", retries=1)
    send(server.url, *(f"waits-{number}" for number in range(20)), retries=1)
    for _ in range(2):  # the first try and the retry
        with WorkerProcess(tmp_path, server.url, "--concurrency", "1") as victim:
            assert victim.wait() == -signal.SIGKILL
    with WorkerProcess(tmp_path, server.url, "--concurrency", "1") as heir:
        ended = {heir.wait_for("ended").split()[-1] for _ in range(20)}
        heir.signal(signal.SIGTERM)
        assert heir.wait() == 0

    assert ended == {f"waits-{number}" for number in range(20)}
    [letter] = letters(server.url)
    assert (letter.attempts, letter.last_error) == (2, "its consumer was lost while working on it")


@pytest.mark.crash
def test_a_task_whose_worker_is_killed_runs_again_elsewhere(
    server: LocalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.api.feed.GRACE_SECONDS", 0.2)
    send(server.url, "a", "b", "c", retries=1)
    with WorkerProcess(tmp_path, server.url, "--concurrency", "2", HANG="1") as victim:
        began = {victim.wait_for("began")[-1], victim.wait_for("began")[-1]}
        victim.signal(signal.SIGKILL)
        assert victim.wait() == -signal.SIGKILL
    with WorkerProcess(tmp_path, server.url) as heir:
        ended = {heir.wait_for("ended")[-1] for _ in range(3)}
        heir.signal(signal.SIGTERM)
        assert heir.wait() == 0

    assert began < ended == {"a", "b", "c"}
    stats = looked_at(server.url)
    assert (stats.depth, stats.in_flight, stats.dead_letters, stats.acked_total) == (0, 0, 0, 3)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_what_runs_end_and_gives_the_rest_back(server: LocalServer, tmp_path: Path, number: signal.Signals) -> None:
    path = tmp_path / "go"
    send(server.url, str(path), str(path), task="until_there_is")
    with WorkerProcess(tmp_path, server.url, "--concurrency", "1") as worker:
        worker.wait_for("began")
        worker.signal(number)
        worker.wait_for("worker=stopping running=1")
        path.touch()
        worker.wait_for("ended")
        assert worker.wait() == 0
        assert "worker=stopped succeeded=1 retried=0 dead=0 returned=0" in worker.said[-1]

    stats = looked_at(server.url)
    assert (stats.depth, stats.in_flight, stats.acked_total) == (1, 0, 1)


@pytest.mark.parametrize("task", ["work", "until_there_is"])
def test_a_second_signal_stops_at_once_and_gives_everything_back(server: LocalServer, tmp_path: Path, task: str) -> None:
    send(server.url, "never", task=task)
    with WorkerProcess(tmp_path, server.url, HANG="1") as worker:
        worker.wait_for("began")
        worker.signal(signal.SIGTERM)
        worker.wait_for("worker=stopping running=1")
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0
        assert "returned=1" in worker.said[-1]

    stats = looked_at(server.url)
    assert (stats.depth, stats.in_flight, stats.dead_letters) == (1, 0, 0)


@pytest.mark.crash
def test_a_worker_outlives_its_server(tmp_path: Path) -> None:
    ports: dict[str, Any] = {"port": free_port(), "native_port": free_port()}
    (tmp_path / "app").mkdir()
    with ServerProcess(tmp_path / "data", **ports) as first:
        send(first.url, *(f"early-{number}" for number in range(20)))
        with WorkerProcess(tmp_path / "app", first.url) as worker:
            for _ in range(20):
                worker.wait_for("ended")
            first.kill()
            worker.wait_for("problem=")
            with ServerProcess(tmp_path / "data", **ports) as second:
                send(second.url, *(f"late-{number}" for number in range(20)))
                late = {worker.wait_for("ended late").split()[-1] for _ in range(20)}
                worker.signal(signal.SIGTERM)
                assert worker.wait() == 0

                async def scenario() -> None:
                    async with PubSub(second.url) as pubsub:
                        await stats_are(pubsub.queue("q"), depth=0, in_flight=0, dead_letters=0)

                run(scenario)
    assert len(late) == 20
