"""Order within groups, whatever fails: groups of messages over every source, calls that fail at random, routers that end and begin.

PENSTOCK_FIFO_GROUPS and PENSTOCK_FIFO_MESSAGES are how many groups, and messages in each; `make torture` takes 1,000 and 200.
What is checked is written down in `proof`.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import pytest

from penstock.testing.target import Request, Target
from tests.integration.router.places import PLACES, QUEUE, Place
from tests.integration.router.proof import POOLS, Lives, Plan, Unreliable, check, message_id
from tests.integration.router.router_process import RouterProcess, until

PLAN = Plan(int(os.environ.get("PENSTOCK_FIFO_GROUPS", "60")), int(os.environ.get("PENSTOCK_FIFO_MESSAGES", "20")))
ENDS = ("stop", "kill", "stop", "kill") if PLAN.total > 10_000 else ("stop", "kill")
"""How the routers end that do not live to see everything delivered."""
TIMES = {"retry_pause": 0.05, "delay": 2}
PATIENCE = 60 + PLAN.total / 50
CONCURRENCY = 4 if PLAN.groups < 200 else 32


def config(place: Place) -> object:
    return {
        "queues": [{"queueName": QUEUE, "queueUri": place.uri, "visibilityTimeout": place.lease}],
        "processingPools": [{"code": f"P{number}", "concurrency": CONCURRENCY} for number in range(POOLS)],
    }


@pytest.mark.crash
@pytest.mark.timeout(4 * PATIENCE)
@pytest.mark.parametrize("kind", PLACES)
def test_groups_are_delivered_in_order_while_calls_fail_and_routers_end(kind: str, tmp_path: Path) -> None:
    bad = PLAN.bad()
    unreliable, lives = Unreliable(bad), Lives()
    router_folder = tmp_path / "router"
    # A queue of the router's own process is in its data.
    place_folder = router_folder / "data" if kind == "own queue" else tmp_path / "place"
    with PLACES[kind](place_folder) as place, Target(unreliable) as target:
        place.fill(PLAN.bodies(target.url))
        router = RouterProcess(router_folder, config(place), environment=place.environment, times=TIMES)
        for number, end in enumerate((*ENDS, "whole"), 1):
            wanted = PLAN.total if end == "whole" else PLAN.total * number // (len(ENDS) + 1)
            lives.begin()
            with router:
                try:
                    until(lambda: len(unreliable.done) >= wanted, PATIENCE, f"{wanted} messages are done")
                    if end == "kill":
                        router.kill()
                    else:
                        if end == "whole":
                            router.until_empty()
                        assert router.stop() == 0
                except AssertionError as error:
                    error.add_note(f"{len(unreliable.done)} done, in flight {router.in_flight()[:5]}\n{router.log[-4000:]}")
                    raise
            until(lambda: target.connections == 0, 10, "the target knows that the router is gone")
            lives.end(by_kill=end == "kill")
        found = check(target.requests, unreliable, lives, PLAN)
        import sys as _s; _s.path.insert(0,"/tmp/k"); import timeline; timeline.show(target, lives)  # TMP
        summary = f"{kind}: {PLAN.total} messages, {unreliable.faults} faults, repeated after kills: {sum(found.repeats.values())}"
        sys.stderr.write(f"{summary}\n")
        assert found.is_right, f"{summary}\n{found}"
        assert place.left(router.data_dir) == 0
        dead = place.dead(router.data_dir)
        assert set(dead) == bad
        # One that was kept and not acked when its router was killed is kept twice.
        assert len(dead) - len(bad) <= sum(count for name, count in found.repeats.items() if name in bad)
    for word in ("Traceback", "Task exception was never retrieved"):
        assert word not in router.log, router.log
