"""A planned batch: for how long it keeps what is to be tried again."""

import asyncio

import pytest

from penstock.http.client.transport import Answer
from penstock.router.core.circuit import ExportedBreaker, State
from penstock.router.core.message import DEFAULT_POOL
from penstock.router.core.outcome import DEFAULT_DELAY
from penstock.router.core.shares import PoolShare
from penstock.router.mediator import endpoint
from penstock.router.options import RouterOptions
from penstock.router.planned import PlannedRouter, routed
from penstock.testing import ManualClock
from tests.unit.router.doubles import TARGET, ScriptedTransport, body


def kept(answer: Answer, breaker: ExportedBreaker | None = None) -> list[tuple[int, float]]:
    """What a task keeps of two messages of a group when their target answers like this: offsets and delays."""

    async def drain() -> list[tuple[int, float]]:
        transport = ScriptedTransport(lambda _: answer)
        breakers = {} if breaker is None else {endpoint(TARGET, has_path=False): breaker}
        options = RouterOptions(retry_pause=0)
        shares = [PoolShare("P", 2), PoolShare(DEFAULT_POOL, 1)]
        router = PlannedRouter(shares, breakers, options, transport, clock=ManualClock())
        drained = await router.drain([routed(0, "Q", offset, f"m{offset}", body(f"m{offset}", "g")) for offset in (1, 2)], 60)
        return [(one.offset, one.delay) for one in drained.endings[0].keep]

    return asyncio.run(drain())


@pytest.mark.parametrize(
    ("answer", "delay"),
    [
        (Answer(200, b'{"ack": false, "delaySeconds": 1}'), 1),
        (Answer(200, b'{"ack": false, "delaySeconds": 90}'), 90),
        (Answer(429, retry_after="2"), 2),
        (Answer(500), DEFAULT_DELAY),
    ],
)
def test_a_group_is_kept_for_as_long_as_its_target_asks(answer: Answer, delay: int) -> None:
    assert kept(answer) == [(1, delay), (2, delay)]


def test_a_group_is_kept_until_the_circuit_breaker_of_its_target_may_close() -> None:
    is_open = ExportedBreaker(State.OPEN, open_for=5_000_000)
    assert kept(Answer(200), is_open) == [(1, 5), (2, 5)]
