"""The simulator repeats itself exactly, finds a broker that breaks a promise, and finds nothing in ours."""

from __future__ import annotations

import logging
import pickle
import random
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any

import pytest

from penstock import Broker, DeadLetterPolicy, FlowControl, Message, ReceivedMessage, RetryPolicy, SubscriptionOptions
from penstock.broker.core.queue import Queue
from penstock.broker.core.stream import Stream
from penstock.broker.writer import Placement
from penstock.testing import Report, Simulation, SimulationFailed
from penstock.values.message import Batch

OPTIONS = {
    "plain": SubscriptionOptions(),
    "ordered": SubscriptionOptions(message_ordering=True),
    "two at a time": SubscriptionOptions(message_ordering=True, flow_control=FlowControl(max_messages=2)),
    "few bytes": SubscriptionOptions(ack_deadline_seconds=60, flow_control=FlowControl(max_bytes=20)),
    "patient": SubscriptionOptions(message_ordering=True, retry_policy=RetryPolicy(100, 600)),
    "one attempt": SubscriptionOptions(message_ordering=True, dead_letter_policy=DeadLetterPolicy("dead", 1)),
    "filtered": SubscriptionOptions(filter='NOT hasPrefix(attributes.number, "1")'),
    "small": SubscriptionOptions(max_messages=5, overflow="discard"),
}


@pytest.mark.parametrize("crashes", [0, 2], ids=["memory", "durable"])
def test_the_same_seed_gives_the_same_trace(crashes: int) -> None:
    one, other = (Simulation(seed=7, steps=120, crashes=crashes).run() for _ in range(2))

    assert one == other
    assert len(one.trace) > 100
    assert one.crashes == crashes


def test_each_seed_gives_a_schedule_and_messages_of_its_own() -> None:
    drawn: list[float] = []

    def produce(number: int, chance: random.Random, now: datetime) -> Message:
        drawn.append(chance.random())
        return Message(b"%d" % number)  # equal in all runs, so that only the schedules make traces differ

    traces = {Simulation(seed=seed, steps=50, crashes=0, produce=produce).run().trace for seed in range(20)}

    assert len(traces) == 20
    assert len(set(drawn)) == len(drawn)


def test_schedules_meet_every_action_and_every_failure() -> None:
    lines = [line for seed in range(10) for line in Simulation(seed=seed, crashes=0).run().trace]
    actions = {line[10:].split(":")[0].split(" to ")[0].strip() for line in lines}

    assert actions >= {"publish", "deliver", "ack", "nack", "forget", "extend", "wait", "lose the answer", "ack too late"}


def test_the_global_random_generator_is_neither_used_nor_changed() -> None:
    random.seed(1)
    state = random.getstate()
    one = Simulation(seed=7, steps=50, crashes=0).run()
    assert random.getstate() == state

    random.seed(2)
    assert Simulation(seed=7, steps=50, crashes=0).run() == one


@pytest.mark.parametrize("seeds", [range(30), pytest.param(range(30, 300), marks=pytest.mark.long)], ids=["few", "many"])
def test_schedules_in_memory_keep_every_guarantee(seeds: range) -> None:
    for seed in seeds:
        Simulation(seed=seed, crashes=0).run()


@pytest.mark.parametrize("seeds", [range(6), pytest.param(range(6, 60), marks=pytest.mark.long)], ids=["few", "many"])
def test_schedules_with_crashes_keep_every_guarantee(seeds: range) -> None:
    for seed in seeds:
        assert Simulation(seed=seed, steps=100, crashes=2).run().crashes >= 1


def test_any_options_can_be_simulated(subtests: pytest.Subtests) -> None:
    for name, options in OPTIONS.items():
        with subtests.test(options=name):
            for seed in range(3):
                Simulation(seed=seed, steps=80, crashes=0, options=options).run()


def test_messages_that_expire_are_not_taken_for_lost() -> None:
    def fleeting(number: int, chance: random.Random, now: datetime) -> Message:
        return Message(b"%d" % number, ordering_key=chance.choice(["", "k"]), ttl=chance.choice([None, 5, 60]))

    for seed in range(3):
        Simulation(seed=seed, crashes=0, produce=fleeting).run()
        Simulation(seed=seed, crashes=0, produce=fleeting, options=SubscriptionOptions()).run()


def first_failure(simulate: Callable[[int], Simulation], seeds: int = 30) -> SimulationFailed:
    for seed in range(seeds):
        try:
            simulate(seed).run()
        except SimulationFailed as error:
            return error
    raise AssertionError(f"not found in {seeds} runs")


def test_a_handler_that_is_not_idempotent_is_caught_and_its_line_repeats_it() -> None:
    charged: Counter[str] = Counter()

    def charge(message: ReceivedMessage) -> None:
        charged[message.attributes["number"]] += 1

    def check(report: Report) -> None:
        twice = [number for number, times in charged.items() if times > 1]
        charged.clear()
        assert not twice, f"charged twice: {twice[0]}"

    error = first_failure(lambda seed: Simulation(seed=seed, steps=60, crashes=0, handler=charge, check=check))

    assert "charged twice: " in error.problem
    assert str(error).startswith("Simulation(seed=")
    assert len(str(error).splitlines()) == 1
    line = error.line.replace(charge.__qualname__, "charge").replace(check.__qualname__, "check")
    with pytest.raises(SimulationFailed) as again:
        eval(line, {"Simulation": Simulation, "charge": charge, "check": check})
    assert (again.value.problem, again.value.trace) == (error.problem, error.trace)


def test_an_assertion_in_a_handler_fails_the_run_and_is_not_a_nack() -> None:
    def suspicious(message: ReceivedMessage) -> None:
        assert message.delivery_attempt == 1, "delivered again"

    error = first_failure(lambda seed: Simulation(seed=seed, crashes=0, handler=suspicious))

    assert "delivered again" in error.problem


def test_a_failure_survives_pickle() -> None:
    error = SimulationFailed("Simulation(seed=5).run()", "3 messages were lost", ("0.0  publish: x",))
    copied = pickle.loads(pickle.dumps(error))

    assert (str(copied), copied.trace) == (str(error), error.trace)
    assert str(error) == "Simulation(seed=5).run()  # 3 messages were lost"


class Acking(Broker):
    """Takes every fifth nack for an ack."""

    nacks = 0

    def settle(self, *args: Any) -> Any:
        *given, verb = args
        if verb is Queue.nack:
            self.nacks += 1
            verb = Queue.ack if self.nacks % 5 == 0 else verb
        return super().settle(*[*given, verb])


def _altered(
    honest: Callable[[Stream, Batch, int], Placement], stream: Stream, batch: Batch, now: int, **fields: Any
) -> Placement:
    for message in batch.messages:
        for name, value in fields.items():
            setattr(message, name, value)
    return honest(stream, batch, now)


class Hasty(Broker):
    """Knows no ordering keys."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.publish_now = partial(_altered, self.publish_now, key="")


class Garbling(Broker):
    """Gives every message the same payload."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.publish_now = partial(_altered, self.publish_now, data=b"lorem ipsum")


class Deaf(Broker):
    """Forgets that leases end."""

    def catch_up(self) -> int:
        return self.clock.now()


def volatile(clock: Any, data_dir: Any) -> Broker:
    """Keeps nothing on disk."""
    return Broker(clock=clock)


@pytest.mark.parametrize(
    ("broken", "problem"),
    [
        (Acking, "lost|counted as acked|overtook"),
        (Hasty, "was changed|overtook|same time"),
        (Garbling, "was changed"),
        (Deaf, "never settled|was over, was taken"),
        (volatile, "SubscriptionNotFound|TopicNotFound"),
    ],
)
def test_a_broken_broker_is_caught_and_its_line_repeats_it(broken: Callable[..., Broker], problem: str) -> None:
    logging.disable(logging.WARNING)
    try:
        error = first_failure(lambda seed: Simulation(seed=seed, steps=60, crashes=1 if broken is volatile else 0, broker=broken))
        with pytest.raises(SimulationFailed, match=problem) as again:
            eval(error.line, {"Simulation": Simulation, broken.__name__: broken})
    finally:
        logging.disable(logging.NOTSET)

    assert f"broker={broken.__name__}" in error.line
    assert (str(again.value), again.value.trace) == (str(error), error.trace)
