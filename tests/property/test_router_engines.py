"""The router in one process and the router in tasks: the same outcome of every message, whatever its target answers.

Both run in virtual time: the local router over a queue in memory, and planned batches of a broker whose messages are delivered by
several `PlannedRouter`s, as the tasks of a job do it.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from penstock import Broker, QueueManager
from penstock.durations import SECOND
from penstock.http.client.transport import Answer, Failure, FailureKind
from penstock.log.leased_batches import LeasedBatches, Source
from penstock.log.server.leasing import settlement_of
from penstock.log.server.requests import SettlementAsked
from penstock.router.core.config import PoolConfig, QueueConfig, RouterConfig
from penstock.router.core.message import DEFAULT_GROUP, DEFAULT_POOL, RoutedMessage
from penstock.router.core.shares import shares, task_of, width_of
from penstock.router.options import RouterOptions
from penstock.router.planned import Drained, Endings, PlannedRouter, routed
from penstock.router.router import Router
from penstock.testing import ManualClock
from penstock.values.policy import ROUTER_QUEUE
from tests.property.strategies import effort, patience
from tests.unit.router.doubles import KeptRecords, MemorySource, Request, ScriptedTransport, body

pytestmark = patience

TASKS = 3
MOST_BATCHES = 500
POOLS = (PoolConfig("P", 4), PoolConfig("SLOW", 2, 60), PoolConfig(DEFAULT_POOL, 2))
RETRIED = (Answer(500), Answer(503), Failure(FailureKind.TIMEOUT), Failure(FailureKind.UNREACHABLE))
"""An attempt calls three times for these."""
ONCE = (
    Answer(302),
    Answer(429, retry_after="2"),
    Answer(429, retry_after="90"),
    Answer(503, retry_after="1"),
    Answer(200, b'{"ack": false, "delaySeconds": 3}'),
    Answer(200, b'{"ack": false, "delaySeconds": 120}'),
)
LAST = (Answer(200), Answer(204), Answer(201, b'{"ack": true}'), Answer(400), Answer(404), Answer(501), Answer(500))


class Post(msgspec.Struct, frozen=True):
    """A message, and what its target answers, attempt after attempt; the last answer stays."""

    group: str
    pool: str
    answers: tuple[Answer | Failure, ...]
    seconds: float
    """How long the target takes."""

    @property
    def calls(self) -> list[Answer | Failure]:
        return [answer for answer in self.answers for _ in range(3 if answer in RETRIED else 1)]


def posts() -> st.SearchStrategy[list[Post]]:
    # At most nine calls: the tenth could open the breaker, and whether it does in an attempt depends on the time of day.
    ends = st.tuples(st.lists(st.sampled_from((*RETRIED, *ONCE)), max_size=2), st.sampled_from(LAST))
    made = st.builds(
        Post,
        st.sampled_from(["a", "b", "c", DEFAULT_GROUP]),
        st.sampled_from(["P", "P", "SLOW", "NOWHERE"]),
        ends.map(lambda found: (*found[0], found[1])),
        st.sampled_from([0, 0, 0.2, 4]),
    )
    return st.lists(made, min_size=1, max_size=12)


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose time jumps to the next timer when there is nothing else to do."""

    def __init__(self) -> None:
        self.seconds = 0.0
        super().__init__()

    def time(self) -> float:
        return self.seconds

    def _run_once(self) -> None:
        state: Any = self
        if not state._ready and state._scheduled:
            self.seconds = max(self.seconds, state._scheduled[0]._when)
        super()._run_once()  # type: ignore[misc]  # the base class has it


class LoopClock(ManualClock):
    """Tells the time of a virtual loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._start, self._loop = super().now(), loop

    def now(self) -> int:
        return self._start + round(self._loop.time() * SECOND)


class Targets(ScriptedTransport):
    """Answers each message as its post says, each from a host of its own."""

    def __init__(self, made: list[Post]) -> None:
        super().__init__(lambda _: None)
        self._posts = made
        self._seen: dict[str, int] = defaultdict(int)

    def post(self, *args: Any, **kwargs: Any) -> Request:
        request = super().post(*args, **kwargs)
        post = self._posts[int(request.message_id[1:])]
        calls, number = post.calls, self._seen[request.message_id]
        self._seen[request.message_id] += 1
        asyncio.get_running_loop().call_later(post.seconds, request.answer, calls[min(number, len(calls) - 1)])
        return request


class Lives:
    """What became of each message: its attempts, and its end."""

    def __init__(self) -> None:
        self.attempts: dict[str, list[tuple[int, int, int, str, str]]] = defaultdict(list)
        self.ends: dict[str, str] = {}
        self.order: dict[str, list[str]] = defaultdict(list)
        """By group: messages in the order in which their first calls were made."""

    def called(self, transport: Targets, made: list[Post]) -> None:
        for message_id in dict.fromkeys(transport.called):
            post = made[int(message_id[1:])]
            if post.group != DEFAULT_GROUP:
                self.order[f"{post.pool}/{post.group}"].append(message_id)


def bodies(made: list[Post]) -> list[bytes]:
    return [
        body(f"m{number}", post.group, pool=post.pool, target=f"https://m{number}.example/hook")
        for number, post in enumerate(made)
    ]


async def local(made: list[Post], options: RouterOptions) -> Lives:
    """Through the router of one process."""
    clock, lives, transport, records = LoopClock(asyncio.get_running_loop()), Lives(), Targets(made), KeptRecords()
    source = MemorySource(clock)
    source.put(*bodies(made))
    router = Router(lambda _: source, transport, records, options, clock)
    await router.apply(RouterConfig((QueueConfig("Q", "test://"),), POOLS))
    while source.left:  # noqa: ASYNC110  # virtual seconds
        await asyncio.sleep(1)
    await router.stop()
    for one in records.attempts:
        lives.attempts[one.message_id].append((one.number, one.calls, one.status, str(one.outcome), one.error))
    lives.ends = dict.fromkeys((f"m{number}" for number in range(len(made))), "delivered")
    lives.ends |= {message_id: f"{reason}: {error}" for message_id, reason, error in records.buried}
    lives.called(transport, made)
    return lives


async def planned(made: list[Post], options: RouterOptions, rows: int) -> Lives:
    """In planned batches of at most `rows` new messages, by several tasks at a time."""
    clock, lives, transport = LoopClock(asyncio.get_running_loop()), Lives(), Targets(made)
    with Broker(clock=clock) as broker:
        queues = QueueManager(broker=broker)
        queues.create("q", ROUTER_QUEUE)
        names = {queues.publish("q", one).message_id: f"m{number}" for number, one in enumerate(bodies(made))}
        batches, source = LeasedBatches(broker), Source("queue", "q")
        while (batch := batches.plan("job", source, rows=rows, max_bytes=1 << 30, hold_for=3600 * SECOND)).leases:
            assert batch.batch < MOST_BATCHES, "some message is never settled"
            await asyncio.sleep(max(batch.due - clock.now(), 0) / SECOND)
            endings = Endings()
            for drained in await deliver(batches, batch.batch, options, transport, clock):
                if 0 in drained.endings:
                    endings.add(drained.endings[0])
            asked = msgspec.convert({"batch": batch.batch, **msgspec.to_builtins(endings)}, SettlementAsked)
            batches.settle("job", batch.batch, settlement_of(asked, clock.now()))
            for _, message_id, _, _, number, calls, status, _, outcome, error in endings.attempts:
                lives.attempts[message_id].append((number, calls, status, outcome, error))
        letters = queues.dead_letters("q")
        assert queues.stats("q").depth == 0
    lives.ends = dict.fromkeys(names.values(), "delivered")
    lives.ends |= {names[letter.message.message_id]: f"{letter.reason}: {letter.last_error}" for letter in letters}
    lives.called(transport, made)
    return lives


async def deliver(
    batches: LeasedBatches, batch: int, options: RouterOptions, transport: Targets, clock: LoopClock
) -> list[Drained]:
    found = sorted(batches.messages("job", batch, 0, 1 << 40), key=lambda message: message.position)
    widths = {pool.code: width_of(pool, TASKS) for pool in POOLS}
    by_task: dict[int, list[RoutedMessage]] = defaultdict(list)
    for message in found:
        item = routed(0, "q", message.lease.offset, str(message.lease.offset), message.lease.message.data)
        if (carried := message.carried) is not None:
            item.attempts, item.failures, item.due = carried.attempts, carried.failures, carried.due
        code = item.pointer.pool if item.pointer.pool in widths else DEFAULT_POOL
        by_task[task_of(code, widths[code], item.pointer.group, TASKS)].append(item)
    dealt = [shares(pool, (), TASKS) for pool in POOLS]
    routers = {
        task: PlannedRouter([one[task] for one in dealt if task in one], {}, options, transport, clock=clock) for task in by_task
    }
    return await asyncio.gather(*(routers[task].drain(items, 60) for task, items in by_task.items()))


@effort(10)
@given(made=posts(), max_attempts=st.sampled_from([None, 1, 2]), rows=st.sampled_from([1, 3, 100]))
def test_both_engines_come_to_the_same_outcome_of_every_message(made: list[Post], max_attempts: int | None, rows: int) -> None:
    if max_attempts is None:  # what fails forever would be tried forever
        made = [
            msgspec.structs.replace(
                post, answers=(*post.answers, Answer(200)) if post.answers[-1] == Answer(500) else post.answers
            )
            for post in made
        ]
    options = RouterOptions(max_attempts=max_attempts, retry_pause=1)
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        ours = runner.run(local(made, options))
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        theirs = runner.run(planned(made, options, rows))
    assert theirs.attempts == ours.attempts
    assert theirs.ends == ours.ends
    for group, order in theirs.order.items():
        assert order == sorted(order, key=lambda name: int(name[1:])), group
    assert theirs.order == ours.order
