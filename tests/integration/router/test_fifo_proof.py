"""Order within groups, whatever fails: groups of messages over every source, calls that fail at random, routers that come and go.

PENSTOCK_FIFO_GROUPS and PENSTOCK_FIFO_MESSAGES are how many groups, and messages in each; `make test-long` takes 60 and 20,
`make torture` 1,000 and 200.
What is checked is written down in `proof`. SQS gets 200 groups of 20 at most: moto looks at all messages for each handed out.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from penstock.clock import monotonic
from penstock.durations import SECOND
from penstock.testing.target import Request, Target
from tests.integration.router.places import PLACES, QUEUE, Place
from tests.integration.router.proof import POOLS, Found, Lives, Plan, Unreliable, check, message_id
from tests.integration.router.router_process import RouterProcess, until

PLAN = Plan(int(os.environ.get("PENSTOCK_FIFO_GROUPS", "12")), int(os.environ.get("PENSTOCK_FIFO_MESSAGES", "8")))
MOST_OF_SQS = Plan(min(PLAN.groups, 200), min(PLAN.messages, 20))
IS_SMALL = PLAN.total <= 10_000
ENDS = ("stop", "kill") if IS_SMALL else ("stop", "kill", "stop", "kill")
"""How the routers end that do not live to see everything delivered."""
TIMES = {"retry_pause": 0.05, "delay": 1}
PATIENCE = 60 + PLAN.total / 20
CONCURRENCY = 4 if IS_SMALL else 32


def config(place: Place) -> object:
    return {
        "queues": [{"queueName": QUEUE, "queueUri": place.uri, "visibilityTimeout": place.lease}],
        "processingPools": [{"code": f"P{number}", "concurrency": CONCURRENCY} for number in range(POOLS)],
    }


@pytest.mark.timeout(120 + 4 * PATIENCE)
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[] if kind in {"own queue", "nats"} else [pytest.mark.long]) for kind in PLACES]
)
def test_groups_are_delivered_in_order_while_calls_fail_and_routers_end(kind: str, tmp_path: Path) -> None:
    plan = MOST_OF_SQS if kind == "sqs" else PLAN
    bad = plan.bad()
    unreliable, lives = Unreliable(bad), Lives()
    router_folder = tmp_path / "router"
    # A queue of the router's own process is in its data.
    place_folder = router_folder / "data" if kind == "own queue" else tmp_path / "place"
    with PLACES[kind](place_folder) as place, Target(unreliable) as target:
        place.fill(plan.bodies(target.url))
        router = RouterProcess(router_folder, config(place), environment=place.environment, times=TIMES)
        for number, end in enumerate(ENDS, 1):
            _live(router, target, unreliable, lives, plan.total * number // (len(ENDS) + 1), end)
        _live(router, target, unreliable, lives, plan.total, "whole")
        found = check(target.requests, unreliable, lives, plan)
        assert found.is_right, f"{unreliable.faults} calls failed\n{found}"
        assert place.left(router.data_dir) == 0
        dead = place.dead(router.data_dir)
        assert set(dead) == bad
        # One that was kept and not acked when its router was killed is kept twice.
        assert len(dead) - len(bad) <= sum(count for name, count in found.repeats.items() if name in bad)
    for word in ("Traceback", "Task exception was never retrieved"):
        assert word not in router.log, router.log


def _live(router: RouterProcess, target: Target, unreliable: Unreliable, lives: Lives, wanted: int, end: str) -> None:
    """One life of a router, until so many messages are done."""
    lives.begin()
    with router:
        try:
            until(lambda: len(unreliable.done) >= wanted, PATIENCE, f"{wanted} messages are done")
            if end == "whole":
                router.until_empty()
            if end == "kill":
                router.kill()
            else:
                assert router.stop() == 0
        except AssertionError as error:
            error.add_note(f"{len(unreliable.done)} are done; the router says:\n{router.log[-4000:]}")
            raise
    until(lambda: target.connections == 0, 60, "the target knows that the router is gone")
    lives.end(by_kill=end == "kill")


@pytest.mark.timeout(120 + 2 * PATIENCE)
@pytest.mark.parametrize("kind", [pytest.param(kind, marks=[] if kind == "nats" else [pytest.mark.long]) for kind in PLACES])
def test_groups_are_delivered_in_order_while_the_configuration_changes(kind: str, tmp_path: Path) -> None:
    plan = Plan(8, 150)
    unreliable, lives = Unreliable(set(), share=0.02), Lives()
    router_folder = tmp_path / "router"
    place_folder = router_folder / "data" if kind == "own queue" else tmp_path / "place"
    with PLACES[kind](place_folder) as place, Target(unreliable) as target:
        place.fill(plan.bodies(target.url))
        router = RouterProcess(router_folder, config(place), environment=place.environment, times=TIMES)
        steps = _changed(place)
        lives.begin()
        with router:
            for number, step in enumerate(steps, 1):
                _until_done(router, unreliable, plan.total * number // (len(steps) + 1))
                for one in step:
                    router.configure(one)
            _until_done(router, unreliable, plan.total)
            router.until_empty()
            assert router.stop() == 0
        lives.end(by_kill=False)
        found = check(target.requests, unreliable, lives, plan)
        assert found.is_right, f"{unreliable.faults} calls failed\n{found}\n{router.log}"
        assert place.left(router.data_dir) == 0


def _changed(place: Place) -> list[list[object]]:
    """Configurations one after the other, those of a list without a pause; each differs from the one before it."""
    queue = {"queueName": QUEUE, "queueUri": place.uri, "visibilityTimeout": place.lease}
    longer = {**queue, "visibilityTimeout": place.lease + 1}
    pools = [{"code": f"P{number}", "concurrency": CONCURRENCY} for number in range(POOLS)]

    def made(*queues: object, count: int = POOLS) -> object:
        return {"queues": queues, "processingPools": pools[:count]}

    return [
        [made(longer)],
        [made(), made(longer)],
        [made({**longer, "connections": 3})],
        [made(queue)],
        [made(queue, count=1), made(queue)],
        [made({**queue, "queueUri": place.other_uri})],
        [made(), made(queue)],
        [made({**queue, "queueName": "renamed"})],
        [made(), made(queue, count=2)],
        [made(queue)],
    ]


def _until_done(router: RouterProcess, unreliable: Unreliable, wanted: int) -> None:
    try:
        until(lambda: len(unreliable.done) >= wanted, PATIENCE, f"{wanted} messages are done")
    except AssertionError as error:
        error.add_note(f"{len(unreliable.done)} are done; the router says:\n{router.log[-4000:]}")
        raise


# name: (which messages of a group of three the target sees in each life, what the check finds). "1!" fails, "K" is a kill, "S" a
# stop, "0-" stays open.
SEEN: dict[str, tuple[str, Found]] = {
    "in order": ("0 1! 1 2", Found()),
    "a head that fails is overtaken": ("0! 1 0 2", Found(inversions=["g0-1", "g0-0", "g0-2"])),
    "a gap after a restart": ("0 S 2 1", Found(inversions=["g0-2", "g0-1"])),
    "one that failed is lost": ("0 1! K 2", Found(inversions=["g0-2"], missing=["g0-1"])),
    "what was not acked is repeated as a whole": ("0 1 K 0 1 2", Found(repeats={"g0-0": 1, "g0-1": 1})),
    "a part of it": ("0 1 K 1 2", Found(repeats={"g0-1": 1})),
    "a hole in what is repeated": ("0 1 K 0 2", Found(repeats={"g0-0": 1}, inversions=["g0-2"])),
    "repeated though nobody was killed": ("0 1 S 1 2", Found(repeats={"g0-1": 1}, needless=["g0-1"])),
    "repeated in one life": ("0 0 1 2", Found(repeats={"g0-0": 0}, needless=["g0-0"], inversions=["g0-0"])),
    "two at a time": ("0- 1 2", Found(overlaps=["g0-1", "g0-2"])),
    "nothing more": ("0 1", Found(missing=["g0-2"])),
}


def test_the_check_finds_what_it_is_for(subtests: pytest.Subtests) -> None:
    for name, (seen, wanted) in SEEN.items():
        with subtests.test(name):
            found = check_of(seen)
            found.inversions = [text.partition(" ")[0] for text in found.inversions]
            assert found == wanted


def check_of(seen: str) -> Found:
    """What the check finds in a row of `SEEN`."""
    unreliable, lives = Unreliable(set()), Lives()
    requests: list[Request] = []
    make = partial(Request, method="POST", path="/", headers={})
    lives.begin()
    for word in seen.split():
        if word in {"K", "S"}:
            lives.end(by_kill=word == "K")
            lives.begin()
            continue
        body = b'{"messageId": "%s"}' % message_id(0, int(word[0])).encode()
        request = make(len(requests), body=body, started_at=monotonic(), status=500 if "!" in word else 200)
        request.ended_at = monotonic() + (SECOND if "-" in word else 0)
        requests.append(request)
    return check(requests, unreliable, lives, Plan(1, 3))
