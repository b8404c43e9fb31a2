"""The simulator repeats itself exactly, passes on a sound broker, and finds one that is not."""

from __future__ import annotations

import logging
import pickle
import random
import textwrap
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from penstock import Broker, DeadLetterPolicy, FlowControl, Message, ReceivedMessage, RetryPolicy, SubscriptionOptions
from penstock.broker.core.queue import Queue
from penstock.testing import Report, Simulation, SimulationFailed, simulator


@pytest.mark.parametrize("crashes", [0, 2], ids=["memory", "durable"])
def test_the_same_seed_gives_the_same_trace(crashes: int) -> None:
    one, other = (Simulation(seed=7, steps=120, crashes=crashes).run() for _ in range(2))

    assert one == other
    assert len(one.trace) > 100
    assert one.crashes == crashes


def test_another_seed_gives_another_trace() -> None:
    traces = {Simulation(seed=seed, steps=50, crashes=0).run().trace for seed in range(20)}

    assert len(traces) == 20


def test_nobody_elses_randomness_is_used_or_disturbed() -> None:
    random.seed(1)  # the global one, to see that it is left alone
    state = random.getstate()
    one = Simulation(seed=7, steps=50, crashes=0).run()
    assert random.getstate() == state

    random.seed(2)
    assert Simulation(seed=7, steps=50, crashes=0).run() == one


@pytest.mark.parametrize("tens", range(30))
def test_hundreds_of_schedules_in_memory_keep_every_guarantee(tens: int) -> None:
    for seed in range(tens * 10, tens * 10 + 10):
        Simulation(seed=seed, crashes=0).run()


@pytest.mark.parametrize("seed", range(30))
def test_schedules_with_crashes_keep_every_guarantee(seed: int) -> None:
    report = Simulation(seed=seed, steps=100, crashes=2).run()

    assert report.crashes >= 1


def test_a_run_meets_everything_it_is_there_for() -> None:
    lines = [line for seed in range(20) for line in Simulation(seed=seed, crashes=0).run().trace]
    verbs = Counter(line.split(":")[0].split("  ")[-1].split(" to ")[0].strip() for line in lines)

    assert verbs.keys() >= {"publish", "deliver", "ack", "nack", "forget", "extend", "wait", "lose the answer", "ack too late"}


@pytest.mark.parametrize(
    "options",
    [
        SubscriptionOptions(),
        SubscriptionOptions(message_ordering=True),
        SubscriptionOptions(message_ordering=True, flow_control=FlowControl(max_messages=2)),
        SubscriptionOptions(ack_deadline_seconds=60, flow_control=FlowControl(max_bytes=20)),
        SubscriptionOptions(message_ordering=True, retry_policy=RetryPolicy(100, 600)),
        SubscriptionOptions(message_ordering=True, dead_letter_policy=DeadLetterPolicy("dead", 1)),
        SubscriptionOptions(filter='NOT hasPrefix(attributes.number, "1")'),
        SubscriptionOptions(max_messages=5, overflow="discard"),
    ],
    ids=["plain", "ordered", "two at a time", "few bytes", "patient", "one attempt", "filtered", "small"],
)
def test_any_options_can_be_simulated(options: SubscriptionOptions) -> None:
    for seed in range(5):
        Simulation(seed=seed, steps=80, crashes=0, options=options).run()


def test_a_handler_sees_every_message_and_decides_its_fate() -> None:
    seen: set[str] = set()

    def handle(message: ReceivedMessage) -> None:
        seen.add(message.attributes["number"])
        if message.attributes["number"].endswith("3"):
            raise ValueError("I do not like threes")

    report = Simulation(seed=3, crashes=0, handler=handle).run()

    assert {message.attributes["number"] for message in report.acked} <= seen
    assert {message.attributes["number"][-1] for message in report.dead} == {"3"}


def test_messages_may_be_the_users_own() -> None:
    def invoice(number: int, chance: random.Random, now: datetime) -> Message:
        return Message(
            b"invoice", {"due": str(now + timedelta(days=chance.randrange(30)))}, ordering_key=f"customer {number % 2}"
        )

    report = Simulation(seed=3, steps=50, crashes=1, produce=invoice).run()

    assert {message.ordering_key for message in report.acked} == {"customer 0", "customer 1"}


def test_messages_that_expire_are_not_taken_for_lost() -> None:
    def fleeting(number: int, chance: random.Random, now: datetime) -> Message:
        return Message(b"%d" % number, ordering_key=chance.choice(["", "k"]), ttl=chance.choice([None, 5, 60]))

    for seed in range(10):
        Simulation(seed=seed, crashes=0, produce=fleeting).run()
        Simulation(seed=seed, crashes=0, produce=fleeting, options=SubscriptionOptions()).run()


# ── what is broken is found ──────────────────────────────────────────────────────────────────────────────────────────────────


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


def test_a_handler_that_never_succeeds_without_a_dead_letter_policy_is_caught() -> None:
    def refuse(message: ReceivedMessage) -> None:
        raise ConnectionError("down")

    error = first_failure(lambda seed: Simulation(seed=seed, steps=30, crashes=0, handler=refuse, options=SubscriptionOptions()))

    assert "never settled" in error.problem


class Acking(Broker):
    """Takes every fifth nack for an ack."""

    nacks = 0

    def settle(self, *args: Any) -> Any:
        *given, verb = args
        if verb is Queue.nack:
            self.nacks += 1
            verb = Queue.ack if self.nacks % 5 == 0 else verb
        return super().settle(*[*given, verb])


class Hasty(Broker):
    """Knows no ordering keys."""

    def publish(self, *args: Any) -> Any:
        for message in args[2].messages:
            message.key = ""
        return super().publish(*args)


class Garbling(Broker):
    """Gives every message the same payload."""

    def publish(self, *args: Any) -> Any:
        for message in args[2].messages:
            message.data = b"lorem ipsum"
        return super().publish(*args)


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


def test_the_line_says_only_what_is_not_the_default() -> None:
    assert repr(Simulation(seed=5)) == "Simulation(seed=5)"
    assert repr(Simulation(seed=5, steps=9, crashes=0)) == "Simulation(seed=5, steps=9, crashes=0)"


def test_a_failure_survives_pickle() -> None:
    error = SimulationFailed("Simulation(seed=5).run()", "3 messages were lost", ("0.0  publish: x",))

    twin = pickle.loads(pickle.dumps(error))
    assert (str(twin), twin.trace) == (str(error), error.trace)
    assert str(error) == "Simulation(seed=5).run()  # 3 messages were lost"


def test_the_example_of_the_module_runs() -> None:
    text = simulator.__doc__ or ""
    example = textwrap.dedent("\n".join(line for line in text.splitlines() if line.startswith("    ") or not line))

    assert "Simulation(seed=seed" in example
    exec(compile(example, "example", "exec"), {})
