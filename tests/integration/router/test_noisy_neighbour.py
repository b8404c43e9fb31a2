"""A target that is dead or slow, and what it has waiting, against others on its queue: they are served as if it were not there.

How much later they are served is measured by the benchmarks; here the bounds are generous.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from penstock.testing.hostile import HOSTILE
from penstock.testing.target import Target, respond
from tests.integration.router.places import QUEUE, OwnQueue, fill_work_queue
from tests.integration.router.proof import body_of
from tests.integration.router.router_process import RouterProcess, until

DEAD = 20_000
HEALTHY = 50
EACH = 20
PATIENCE = 30.0
MEMORY = 400_000_000
"""Bytes that the whole process may have."""


@contextmanager
def healthy_targets() -> Iterator[list[Target]]:
    with ExitStack() as stack:
        yield [stack.enter_context(Target()) for _ in range(HEALTHY)]


def router_over(folder: Path, bodies: list[bytes], pools: dict[str, int]) -> RouterProcess:
    """A router with these pools, and everything in its queue before it starts."""
    fill_work_queue(folder / "data", [("", body) for body in bodies])
    config = {
        "queues": [{"queueName": QUEUE, "queueUri": OwnQueue.uri}],
        "processingPools": [{"code": code, "concurrency": concurrency} for code, concurrency in pools.items()],
    }
    return RouterProcess(folder, config)


def resident(router: RouterProcess) -> int:
    """Bytes of memory that a router has."""
    status = Path(f"/proc/{router.process.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) * 1024


def served(targets: list[Target]) -> int:
    return sum(len(target.requests) for target in targets)


# name: (what the dead one does, whether it has a pool of its own, whether all its messages come before those of the others)
CASES = {
    "never answers, before all others": ("never answers", True, True),
    "never answers, among others": ("never answers", True, False),
    "refuses, before all others": ("refuses", True, True),
    "refuses, in one pool with the others": ("refuses", False, False),
}


@pytest.mark.parametrize("name", CASES)
def test_one_dead_target_keeps_nothing_from_fifty_healthy_ones(name: str, tmp_path: Path) -> None:
    kind, has_own_pool, is_first = CASES[name]
    with Target(HOSTILE["never answers"]) as dead, healthy_targets() as healthy:
        if kind == "refuses":
            dead.stop()
        pool = "DEAD" if has_own_pool else "H"
        stuck = [body_of(f"dead-{number}", dead.url, f"dead-{number % 1_000}", pool) for number in range(DEAD)]
        good = [
            body_of(f"good-{which}-{number}", target.url, f"good-{which}", "H")
            for number in range(EACH)
            for which, target in enumerate(healthy)
        ]
        if not is_first:
            step = len(stuck) // len(good)
            stuck, good = [], [body for number, one in enumerate(good) for body in (*stuck[number * step :][:step], one)]
        with router_over(tmp_path, stuck + good, {"DEAD": 10, "H": 50}) as router:
            # In one pool with the dead one they come in as it makes room: all of them, but not at once.
            until(
                lambda: served(healthy) == HEALTHY * EACH, PATIENCE if has_own_pool else 100, "the healthy ones have everything"
            )
            assert resident(router) < MEMORY
            waiting = router.get("/monitoring/pool-stats")[pool]
            assert waiting["activeWorkers"] + waiting["queueSize"] <= waiting["maxConcurrency"] + waiting["maxQueueCapacity"]
            router.kill()
        for which, target in enumerate(healthy):
            assert [request.message_id for request in target.requests] == [f"good-{which}-{number}" for number in range(EACH)]


def test_one_slow_pool_does_not_starve_others_on_its_queue(tmp_path: Path) -> None:
    # What drove the original to send back what a pool has no room for: one pool with one worker and 10,000 calls of 5 s, and
    # every other pool of the queue stood still for 14 hours.
    with Target(respond(200, after=5)) as slow, Target() as fast:
        bodies = [body_of(f"slow-{number}", slow.url, f"s{number}", "SLOW") for number in range(10_000)]
        bodies += [body_of(f"fast-{number}", fast.url, f"f{number % 10}", "FAST") for number in range(500)]
        with router_over(tmp_path, bodies, {"SLOW": 1, "FAST": 20}) as router:
            fast.wait_for(500, PATIENCE)
            assert resident(router) < MEMORY
            router.kill()
        assert len(fast.requests) == 500
        assert slow.peak == 1
