"""A worker as a process: it is stopped, hurried and killed, and so is its server. No task is lost."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock import PubSub, QueueConfig
from penstock.testing.server import LocalServer, ServerProcess
from penstock.values.queue import DeadLetter
from penstock.worker import Worker
from tests.integration.client.quiet import run
from tests.integration.client.stats import stats_are
from tests.integration.worker.processes import WorkerProcess
from tests.ports import free_port


@dataclass
class Shop:
    """A project of a server, in which workers work for the queue `q`."""

    folder: Path
    url: str
    project: str = "penstock"

    def send(self, *names: str, task: str = "work", retries: int = 0) -> None:
        worker = Worker(self.url, project=self.project, queue_config=QueueConfig(max_retries=retries))
        task_of = worker.task("q", name=task)(lambda name: None)

        async def scenario() -> None:
            async with worker:
                await asyncio.gather(*(task_of.send(name) for name in names))

        run(scenario)

    def worker(self, *arguments: str, **environment: str) -> WorkerProcess:
        return WorkerProcess(self.folder, self.url, *arguments, PENSTOCK_PROJECT=self.project, **environment)

    def holds(self, **stats: int) -> None:
        """Return when the queue's numbers are these."""

        async def scenario() -> None:
            async with PubSub(self.url, project=self.project) as pubsub:
                await stats_are(pubsub.queue("q"), **stats)

        run(scenario)

    def letters(self) -> list[DeadLetter]:
        found: list[DeadLetter] = []

        async def scenario() -> None:
            async with PubSub(self.url, project=self.project) as pubsub:
                found.extend(await pubsub.queue("q").dead_letters())

        run(scenario)
        return found


@pytest.fixture
def shop(shared_server: LocalServer, project: str, tmp_path: Path) -> Shop:
    return Shop(tmp_path, shared_server.url, project)


def test_a_task_that_kills_its_worker_becomes_a_dead_letter_and_harms_nobody_else(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.api.feed.GRACE_SECONDS", 0.2)
    shop.send("poison", task="dies", retries=1)
    shop.send(*(f"waits-{number}" for number in range(20)), retries=1)
    ended: list[str] = []
    for _ in range(2):  # the first try and the retry
        with shop.worker("--concurrency", "1") as victim:
            assert victim.wait() == -signal.SIGKILL
        # A worker that starts within the grace of the one before gets other tasks first.
        ended += [line.split()[-1] for line in victim.said if "ended" in line]
    shop.holds(in_flight=0, dead_letters=1)
    with shop.worker("--concurrency", "1") as heir:
        while len(ended) < 20:
            ended.append(heir.wait_for("ended").split()[-1])
        heir.signal(signal.SIGTERM)
        assert heir.wait() == 0

    assert sorted(ended) == sorted(f"waits-{number}" for number in range(20))
    [letter] = shop.letters()
    assert (letter.attempts, letter.last_error) == (2, "its consumer was lost while working on it")


def test_a_task_whose_worker_is_killed_runs_again_elsewhere(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.api.feed.GRACE_SECONDS", 0.2)
    shop.send("a", "b", "c", retries=1)
    with shop.worker("--concurrency", "2", HANG="1") as victim:
        began = {victim.wait_for("began")[-1], victim.wait_for("began")[-1]}
        victim.signal(signal.SIGKILL)
        assert victim.wait() == -signal.SIGKILL
    with shop.worker() as heir:
        ended = {heir.wait_for("ended")[-1] for _ in range(3)}
        heir.signal(signal.SIGTERM)
        assert heir.wait() == 0

    assert began < ended == {"a", "b", "c"}
    shop.holds(depth=0, in_flight=0, dead_letters=0, acked_total=3)


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_a_signal_lets_what_runs_end_and_gives_the_rest_back(shop: Shop, number: signal.Signals) -> None:
    path = shop.folder / "go"
    shop.send(str(path), str(path), task="until_there_is")
    with shop.worker("--concurrency", "1") as worker:
        worker.wait_for("began")
        worker.signal(number)
        worker.wait_for("worker=stopping running=1")
        path.touch()
        worker.wait_for("ended")
        assert worker.wait() == 0
        assert "worker=stopped succeeded=1 retried=0 dead=0 returned=0" in worker.said[-1]

    shop.holds(depth=1, in_flight=0, acked_total=1)


@pytest.mark.parametrize("task", [pytest.param("work", marks=pytest.mark.long), "until_there_is"])
def test_a_second_signal_stops_at_once_and_gives_everything_back(shop: Shop, task: str) -> None:
    shop.send("never", task=task)
    with shop.worker(HANG="1") as worker:
        worker.wait_for("began")
        worker.signal(signal.SIGTERM)
        worker.wait_for("worker=stopping running=1")
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0
        assert "returned=1" in worker.said[-1]

    shop.holds(depth=1, in_flight=0, dead_letters=0)


def test_a_worker_outlives_its_server(tmp_path: Path) -> None:
    ports: dict[str, Any] = {"port": free_port(), "native_port": free_port()}
    with ServerProcess(tmp_path / "data", **ports) as first:
        shop = Shop(tmp_path, first.url)
        shop.send(*(f"early-{number}" for number in range(20)))
        with shop.worker() as worker:
            for _ in range(20):
                worker.wait_for("ended")
            first.kill()
            worker.wait_for("problem=")
            with ServerProcess(tmp_path / "data", **ports):
                shop.send(*(f"late-{number}" for number in range(20)))
                late = {worker.wait_for("ended late").split()[-1] for _ in range(20)}
                worker.signal(signal.SIGTERM)
                assert worker.wait() == 0
                shop.holds(depth=0, in_flight=0, dead_letters=0)
    assert len(late) == 20
