"""Instructions of one message in memory, counted by valgrind: ``python -m benchmarks.instructions [CASE …] [--checkout DIR …]``.

On a shared machine times say little, and instructions say nearly the same each time. Every step of a case is warmed up and
counted by itself. Only documented names are imported, so older checkouts can be counted too; the router is counted by the
checkout's own `benchmarks.router_load`, with a target in another process.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock import FlowControl, Message, MessageQueue, NewMessage, PubSub, QueueConfig, QueueManager

DATA = bytes(100)
MANY = 100
WARM = 40
TOGETHER = "together"

Step = tuple[str, Callable[[], object]]


def rounds_of(many: int) -> int:
    """How often a step is counted."""
    return 200 if many == 1 else 20


def mark() -> None:
    """Valgrind recognizes the call, and starts the count again."""
    time.tzset()


def count(name: str, steps: list[Step], many: int) -> None:
    """Count steps that follow each other, and print what was counted."""
    for _ in range(WARM):
        for _, step in steps:
            step()
    for step_name, step in steps:
        mark()
        for _ in range(rounds_of(many)):
            step()
        mark()
        print(f"{name}\t{step_name}\t{many * rounds_of(many)}")


def message_queue(name: str, many: int) -> None:
    with MessageQueue() as queue:
        queue.register_topic("t")
        queue.register_subscription("s", "t")
        held: list[str] = []

        def publish() -> None:
            queue.publish("t", [Message(DATA) for _ in range(many)])

        def pull() -> None:
            held.extend([message.ack_id for message in queue.pull("s", many)])

        def ack() -> None:
            if many == 1:
                queue.ack(held.pop())
            else:
                queue.ack_many([held.pop() for _ in range(many)])

        count(name, [("publish", publish), ("pull", pull), ("ack", ack)], many)


def queue_manager(name: str, many: int) -> None:
    with QueueManager() as queues:
        queues.create("q", QueueConfig(default_prefetch=10_000, max_prefetch=10_000))
        held: list[str] = []

        def publish() -> None:
            if many == 1:
                queues.publish("q", DATA)
            else:
                queues.publish_many("q", [NewMessage(DATA) for _ in range(many)])

        def consume() -> None:
            if many == 1:
                message = queues.consume("q")
                assert message is not None, "it was published"
                held.append(message.message_id)
            else:
                held.extend([message.message_id for message in queues.consume_many("q", max_messages=many)])

        def ack() -> None:
            if many == 1:
                queues.ack("q", held.pop())
            else:
                queues.ack_many("q", [held.pop() for _ in range(many)])

        count(name, [("publish", publish), ("consume", consume), ("ack", ack)], many)


def pubsub(name: str, many: int) -> None:
    """The event loop is counted, too."""

    async def main() -> None:
        async with PubSub() as client:
            topic = client.topic("t")
            await topic.create()
            subscription = await topic.subscription("s", flow_control=FlowControl(max_messages=1_000)).create()
            arrived: asyncio.Queue[None] = asyncio.Queue()

            def handle(message: Any) -> None:
                message.ack()
                arrived.put_nowait(None)

            async def walk(rounds: int) -> None:
                for _ in range(rounds):
                    if many == 1:
                        await topic.publish_message(DATA)
                    else:
                        await topic.publish_many([Message(DATA) for _ in range(many)])
                    for _ in range(many):
                        await arrived.get()

            subscription.on("message", handle)
            subscription.open()
            await walk(WARM)
            mark()
            await walk(rounds_of(many))
            mark()
            print(f"{name}\tpublish, receive, ack\t{many * rounds_of(many)}")
            await subscription.close()

    asyncio.run(main())


def router(name: str, many: int) -> None:
    """From a queue that was filled before, through a pool, to a target and the ack. The first connections are counted, too."""
    import uvloop

    from benchmarks import router_load
    from benchmarks.router_target import router_target

    class Marked(router_load.Meter):  # of the checkout that is counted
        def __init__(self) -> None:
            super().__init__()
            mark()

        def read(self, number: int) -> dict[str, float]:
            mark()
            return super().read(number)

    router_load.Meter = Marked  # type: ignore[misc]
    with router_target("empty") as target:
        uvloop.run(router_load.embedded(target.url, many))
    print(f"{name}\tqueue to target, ack\t{many}")


CASES: dict[str, tuple[Callable[[str, int], None], int]] = {
    "message-queue": (message_queue, 1),
    "message-queue-100": (message_queue, MANY),
    "queue-manager": (queue_manager, 1),
    "queue-manager-100": (queue_manager, MANY),
    "pubsub": (pubsub, 1),
    "pubsub-100": (pubsub, MANY),
    "router": (router, 5_000),
}


def counted(cases: list[str], checkout: Path) -> dict[tuple[str, str], float]:
    """Instructions of the steps of these cases, by case and step, for one message."""
    environment = os.environ | {"PYTHONPATH": f"{checkout / 'src'}:{checkout}", "PYTHONHASHSEED": "0"}
    with tempfile.TemporaryDirectory(prefix="penstock-callgrind-") as place:
        valgrind = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={place}/out", "--dump-before=tzset"]
        command = [*valgrind, sys.executable, "-P", __file__, "--run", *cases]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"counting failed in {checkout}:\n{done.stderr[-2000:]}")
        found: dict[tuple[str, str], float] = {}
        for index, line in enumerate(done.stdout.splitlines(), 1):
            case, step, messages = line.split("\t")
            # Each step is between two marks; what was counted before its first mark belongs to no step.
            total = re.search(r"^totals: (\d+)", Path(f"{place}/out.{2 * index}").read_text(), re.MULTILINE)
            assert total is not None, "valgrind wrote no total"
            together = found.pop((case, TOGETHER), 0.0)
            found[case, step] = int(total[1]) / int(messages)
            found[case, TOGETHER] = together + found[case, step]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.instructions", description=(__doc__ or "").partition(":")[0])
    parser.add_argument("cases", metavar="CASE", nargs="*", help=f"only these: {', '.join(CASES)}")
    parser.add_argument("--checkout", type=Path, action="append", help="where the sources to count are, several times to compare")
    parser.add_argument("--run", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := sorted({*options.cases} - {*CASES}):
        parser.error(f"no case is called {', '.join(unknown)}; there are {', '.join(CASES)}")
    cases = options.cases or [*CASES]
    if options.run:
        for case in cases:
            run, many = CASES[case]
            run(case, many)
        return
    checkouts = [place.resolve() for place in options.checkout or [Path(__file__).parents[1]]]
    found = [counted(cases, place) for place in checkouts]
    print(f"{'case':18} {'step':22}", *(f"{place.name:>12}" for place in checkouts))
    for case, step in found[0]:
        print(f"{case:18} {step:22}", *(f"{one[case, step]:12,.0f}" for one in found))


if __name__ == "__main__":
    main()
