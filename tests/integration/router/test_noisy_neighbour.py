"""A target that is dead or slow, and what it has waiting, against others on its queue: they are served as if it were not there.

How much later they are served is measured by the benchmarks; here the bounds are generous.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from penstock.testing.hostile import HOSTILE
from penstock.testing.target import Target
from tests.integration.router.places import QUEUE, OwnQueue, fill_work_queue
from tests.integration.router.proof import body_of
from tests.integration.router.router_process import RouterProcess, until

HEALTHY = 50
EACH = 20
PATIENCE = 100.0
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


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("count", "kind", "has_own_pool", "is_first"),
    [
        pytest.param(2_000, "never answers", True, True, id="never answers, before all others, few"),
        pytest.param(20_000, "never answers", True, True, marks=pytest.mark.long, id="never answers, before all others"),
        pytest.param(20_000, "never answers", True, False, marks=pytest.mark.long, id="never answers, among others"),
        pytest.param(20_000, "refuses", True, True, marks=pytest.mark.long, id="refuses, before all others"),
        pytest.param(20_000, "refuses", False, False, marks=pytest.mark.long, id="refuses, in one pool with the others"),
    ],
)
def test_one_dead_target_keeps_nothing_from_fifty_healthy_ones(
    count: int, kind: str, has_own_pool: bool, is_first: bool, tmp_path: Path
) -> None:
    with Target(HOSTILE["never answers"]) as dead, healthy_targets() as healthy:
        if kind == "refuses":
            dead.stop()
        pool = "DEAD" if has_own_pool else "H"
        stuck = [body_of(f"dead-{number}", dead.url, f"dead-{number % 1_000}", pool) for number in range(count)]
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
                lambda: served(healthy) == HEALTHY * EACH, PATIENCE if has_own_pool else 400, "the healthy ones have everything"
            )
            assert resident(router) < MEMORY
            waiting = router.get("/monitoring/pool-stats")[pool]
            assert waiting["activeWorkers"] + waiting["queueSize"] <= waiting["maxConcurrency"] + waiting["maxQueueCapacity"]
            router.kill()
        for which, target in enumerate(healthy):
            assert [request.message_id for request in target.requests] == [f"good-{which}-{number}" for number in range(EACH)]
