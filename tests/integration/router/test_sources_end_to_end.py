"""Every source from its server to a target, while the server is killed under load and started again: nothing is lost or stuck."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from penstock.testing.target import Target, respond
from tests.integration.router.places import PLACES, QUEUE, Place
from tests.integration.router.proof import body_of
from tests.integration.router.router_process import RouterProcess, until

MESSAGES = 500
GROUPS = 50
POOL = "P"


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[] if kind == "nats" else [pytest.mark.long])
        for kind, place in PLACES.items()
        if place.can_be_killed
    ],
)
def test_a_server_that_is_killed_under_load_loses_nothing(kind: str, tmp_path: Path) -> None:
    with PLACES[kind](tmp_path / "place") as place, Target(respond(200, after=0.02)) as target:
        place.fill(
            [
                (f"g{number % GROUPS}", body_of(f"m{number}", target.url, f"g{number % GROUPS}", POOL))
                for number in range(MESSAGES)
            ]
        )
        config = {
            "queues": [{"queueName": QUEUE, "queueUri": place.uri, "visibilityTimeout": place.lease}],
            "processingPools": [{"code": POOL, "concurrency": 40}],
        }
        with RouterProcess(tmp_path / "router", config, environment=place.environment) as router:
            for share in (4, 2):
                target.wait_for(MESSAGES // share, 60)
                place.kill()
                place.start()
            until(lambda: len({request.message_id for request in target.requests}) == MESSAGES, 120, "all are delivered")
            router.until_empty()
            # A server that forgot acks when it was killed hands those messages out once more.
            until(lambda: _depth(router, place) == 0, 60, "the queue is empty")
            assert router.stop() == 0
        assert place.left(router.data_dir) == 0
        assert place.dead(router.data_dir) == []
        counts = Counter(request.message_id for request in target.requests)
        assert counts.keys() == {f"m{number}" for number in range(MESSAGES)}
        # At least once: what the server forgot of its last moments may come again, to a router that remembers what it did.
        redelivered = sum(counts.values()) - MESSAGES
        assert redelivered <= MESSAGES // 2, f"{redelivered} redeliveries"
        assert "Traceback" not in router.log, router.log


def _depth(router: RouterProcess, place: Place) -> int:
    """How many messages are in the queue, by the server's own word or as the router has it from there."""
    if place.can_be_watched:
        return place.left(router.data_dir)
    router.post("/monitoring/broker-stats/refresh")
    found = router.get("/monitoring/queue-stats")[QUEUE]
    return int(found["pendingMessages"] + found["messagesNotVisible"])
