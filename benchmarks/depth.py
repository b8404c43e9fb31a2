"""What an operation costs in a deep queue, by what it costs in a shallow one: one message a call, the depth kept."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator

from benchmarks.row import PAYLOAD, Benchmark, Row, Run
from penstock import Message, MessageQueue, SubscriptionOptions

SHALLOW = 1_000
LIMIT = 1.5
VERBS = ("publish", "pull", "nack", "ack")
Maker = Callable[[int, random.Random], Message]


def plain(number: int, _: random.Random) -> Message:
    return Message(data=b"%0*d" % (PAYLOAD, number))


def prioritised(number: int, chance: random.Random) -> Message:
    return Message(data=b"%0*d" % (PAYLOAD, number), priority=chance.randrange(10))


def keyed(number: int, chance: random.Random) -> Message:
    return Message(data=b"%0*d" % (PAYLOAD, number), ordering_key=f"key-{chance.getrandbits(30) % 10_000_000}")


def expiring(number: int, chance: random.Random) -> Message:
    return Message(data=b"%0*d" % (PAYLOAD, number), ttl=3_600 + chance.randrange(3_600))


KINDS: dict[str, Maker] = {"plain": plain, "priorities": prioritised, "keys": keyed, "time to live": expiring}


def filled(maker: Maker, depth: int) -> MessageQueue:
    chance = random.Random(depth)
    queue = MessageQueue()
    queue.register_topic("t")
    options = SubscriptionOptions(
        max_messages=100 * depth, max_bytes=1 << 38, ack_deadline_seconds=600, message_ordering=maker is keyed
    )
    queue.register_subscription("s", "t", options)
    for at in range(0, depth, 1_000):
        queue.publish("t", [maker(at + index, chance) for index in range(1_000)])
    return queue


def cycles(queue: MessageQueue, messages: list[Message]) -> dict[str, float]:
    """Microseconds a call for each verb. Every message published takes the place of one that is acked."""
    clock = time.perf_counter
    spent = dict.fromkeys(VERBS, 0.0)
    for message in messages:
        started = clock()
        queue.publish("t", [message])
        published = clock()
        first = queue.pull("s")
        pulled = clock()
        queue.nack(first[0].ack_id)
        nacked = clock()
        second = queue.pull("s")
        again = clock()
        queue.ack(second[0].ack_id)
        acked = clock()
        spent["publish"] += published - started
        spent["pull"] += (pulled - published) + (again - nacked)
        spent["nack"] += nacked - pulled
        spent["ack"] += acked - again
    return {verb: total / len(messages) * 1e6 / (2 if verb == "pull" else 1) for verb, total in spent.items()}


def depth(run: Run) -> Iterator[Row]:
    deep_count = run.of(1_000_000, 200_000)
    rounds, calls = run.of(15, 9), run.of(400, 300)
    for kind, maker in KINDS.items():
        chance = random.Random(kind)
        queues = {"shallow": filled(maker, SHALLOW), "deep": filled(maker, deep_count)}
        found: dict[str, list[dict[str, float]]] = {"shallow": [], "deep": []}
        for turn in range(-2, rounds):
            for name in ("shallow", "deep") if turn % 2 else ("deep", "shallow"):
                times = cycles(queues[name], [maker(turn * calls + index, chance) for index in range(calls)])
                if turn >= 0:
                    found[name].append(times)
        for queue in queues.values():
            queue.close()
        for verb in VERBS:
            deep = [each[verb] for each in found["deep"]]
            shallow = [each[verb] for each in found["shallow"]]
            ratio = statistics.median(mine / other for mine, other in zip(deep, shallow, strict=True))
            yield Row(
                "depth",
                f"{verb}, {kind}, at depth {deep_count:,}",
                statistics.median(deep),
                "µs",
                statistics.median(shallow),
                f"at depth {SHALLOW:,}",
                ratio,
                f"≤ {LIMIT} ×",
                ratio <= LIMIT,
                (min(deep), max(deep)),
            )


BENCHMARKS: dict[str, Benchmark] = {"depth": depth}
