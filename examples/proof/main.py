"""Proof: a broker, a server, its clients, a worker, a hub, a router and Spark, in the terminal, in two minutes.

Everything shown is real: a broker with a data directory, the machine's clock, processes that are killed, the clients of others.
Every sentence marked "proved" was checked a moment before; it ends with exit code 1 at the first that does not hold.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from penstock import (
    Broker,
    Message,
    MessageQueue,
    QueueConfig,
    QueueManager,
    QueueMessage,
    ReceivedMessage,
    RetryPolicy,
    SubscriptionOptions,
    __version__,
)
from penstock.clock import monotonic
from penstock.durations import SECOND
from penstock.errors import ConsumerNotFound, PenstockError
from proof.client_chapter import ClientDemo
from proof.crash import PUBLISHERS, crash, recover
from proof.hub_chapter import HubDemo
from proof.pipeline_chapter import PAGE, PipelineDemo, SparkInstallation
from proof.router_chapter import RouterDemo
from proof.screen import ClaimFailed, Screen
from proof.server_chapter import ServerDemo

PATIENCE = 60.0  # seconds that a step waits at most for what must come sooner
KILLS = (500, 1_000, 1_500, 2_000, 5_000)
YOURSELF = (
    "Start a server yourself (docs/quickstart.md continues from there):",
    "  .venv/bin/penstock serve",
    '  async with PubSub("http://127.0.0.1:8085") as pubsub: ...',
    "  open http://127.0.0.1:8085/docs, or export PUBSUB_EMULATOR_HOST=127.0.0.1:8085",
)


class GatewayDown(Exception):
    """What the payment gateway of the proof raises while it is broken."""


class Gateway:
    """The outside world: charges cards, and for a while cannot do yen."""

    def __init__(self) -> None:
        self.is_repaired = False

    def charge(self, payment: dict[str, str]) -> None:
        """Charge a card, or say why not."""
        if payment["currency"] == "JPY" and not self.is_repaired:
            raise GatewayDown("no route to the bank")


class Demo:
    """The steps, over one broker that both APIs share."""

    def __init__(self, screen: Screen, directory: Path) -> None:
        self.screen = screen
        self.directory = directory
        self.broker = Broker(data_dir=directory / "broker")
        self.topics = MessageQueue(broker=self.broker)
        self.queues = QueueManager(broker=self.broker)
        self.gateway = Gateway()
        self.failed_id = ""

    def run(self) -> None:
        """All steps, in order."""
        with self.broker:
            self.publish()
            self.fan_out()
            self.priorities()
            self.retries()
            self.dead_letter()
            self.redrive()
            self.life()
            self.ordering_keys()
            self.lost_worker()
        self.crash()

    def publish(self) -> None:
        """A publish is on disk when it returns."""
        screen, topics = self.screen, self.topics
        screen.step("Publish")
        topics.register_topic("orders")
        topics.register_subscription("billing", "orders")
        topics.register_subscription("shipping", "orders")
        topics.register_subscription("customs", "orders", SubscriptionOptions(filter='NOT attributes.country = "FR"'))
        orders = [
            Message(data=f"order {number}".encode(), attributes={"country": country})
            for number, country in enumerate(["FR", "JP", "FR", "BR"], 1)
        ]
        started = monotonic()
        ids = topics.publish("orders", orders)
        took = (monotonic() - started) / 1000
        screen.say(f"4 orders to the topic 'orders' in one call: {took:.1f} ms, disk sync included.")
        screen.table(["message id", "data", "country"], zip(ids, _texts(orders), ["FR", "JP", "FR", "BR"], strict=True))
        screen.proves("ids are unique and sort by time", ids == sorted(set(ids)), ids)
        on_disk = b"".join(path.read_bytes() for path in (self.directory / "broker").glob("penstock.db*"))
        screen.proves("when publish returned, all four were in the log's files", all(order.data in on_disk for order in orders))

    def fan_out(self) -> None:
        """Every subscription has its own copy."""
        screen, topics = self.screen, self.topics
        screen.step("Fan out")
        screen.say('Three subscriptions; customs has the filter NOT attributes.country = "FR".')
        got = {name: topics.pull(name, max_messages=10) for name in ("billing", "shipping", "customs")}
        screen.table(
            ["subscription", "receives"],
            [[name, ", ".join(message.data.decode() for message in messages)] for name, messages in got.items()],
        )
        counts = [len(messages) for messages in got.values()]
        screen.proves("every subscription got every message that its filter lets through", counts == [4, 4, 2], counts)
        topics.ack_many([message.ack_id for message in got["billing"]])
        left = [topics.stats(name).backlog for name in got]
        screen.proves("billing's acks settled nothing for the others: backlogs are 0, 4 and 2", left == [0, 4, 2], left)
        for name in ("shipping", "customs"):
            topics.ack_many([message.ack_id for message in got[name]])

    def priorities(self) -> None:
        """The urgent first, equals by age."""
        screen, queues = self.screen, self.queues
        screen.step("Priorities")
        queues.create("jobs")
        sent = [("report", 1), ("invoice", 5), ("alarm", 9), ("mail", 5), ("cleanup", 0)]
        places = [queues.publish("jobs", name, priority=priority).position for name, priority in sent]
        messages = queues.consume_many("jobs", "worker")
        order = [message.payload for message in messages]
        screen.table(
            ["sent", "priority", "place on arrival", "consumed"],
            [[name, priority, place, f"{order.index(name) + 1}."] for (name, priority), place in zip(sent, places, strict=True)],
        )
        wanted = ["alarm", "invoice", "mail", "report", "cleanup"]
        screen.proves("9 comes first, 0 last, and equals in the order they were sent", order == wanted, order)
        for message in messages:
            queues.ack("jobs", message.message_id)

    def retries(self) -> None:
        """A failure waits longer each time, and alone."""
        screen, queues = self.screen, self.queues
        screen.step("A failing consumer, and retries with backoff")
        screen.say("A payment gateway cannot do yen. The queue retries after 0.5, 1 and 2 seconds.")
        config = QueueConfig(max_retries=3, retry_policy=RetryPolicy(minimum_backoff=0.5, maximum_backoff=60))
        queues.create("payments", config)
        for currency in ("EUR", "JPY", "USD"):
            queues.publish("payments", {"amount": "12.00", "currency": currency})
        started, rows, failures, open_payments = monotonic(), [], [], 3
        while open_payments:
            message = queues.consume("payments", "cashier", timeout=PATIENCE)
            if message is None:
                break
            at = (monotonic() - started) / SECOND
            outcome = self._charge(message)
            open_payments -= outcome != "requeued"
            if outcome != "acked":
                failures.append(at)
                self.failed_id = message.message_id
            rows.append([f"{at:.2f} s", message.payload["currency"], message.retry_count + 1, outcome])
        screen.table(["at", "payment", "delivery", "outcome"], rows)
        waits = [later - earlier for earlier, later in pairwise(failures)]
        shown = ", ".join(f"{wait:.2f} s" for wait in waits)
        screen.proves(
            f"the failing payment was tried 4 times, with waits of {shown}",
            len(waits) == 3 and all(wait >= least - 0.01 for wait, least in zip(waits, (0.5, 1, 2), strict=True)),
            waits,
        )
        screen.proves("it did not hold up the others", [row[1] for row in rows[:3]] == ["EUR", "JPY", "USD"], rows)

    def dead_letter(self) -> None:
        """What cannot be processed is kept, with the reason."""
        screen = self.screen
        screen.step("A dead letter")
        letters = self.queues.dead_letters("payments")
        screen.table(
            ["payment", "reason", "attempts", "last error"],
            [[letter.message.payload["currency"], letter.reason, letter.attempts, letter.last_error] for letter in letters],
        )
        screen.proves(
            "it is kept as a dead letter, with payload, reason and last error",
            [(letter.message.payload, letter.reason, letter.attempts, letter.last_error) for letter in letters]
            == [({"amount": "12.00", "currency": "JPY"}, "max_retries_exceeded", 4, "GatewayDown: no route to the bank")],
            letters,
        )

    def redrive(self) -> None:
        """A dead letter gets another life."""
        screen, queues = self.screen, self.queues
        screen.step("Redrive")
        self.gateway.is_repaired = True
        count = queues.redrive("payments", where=lambda letter: "no route" in (letter.last_error or ""))
        screen.say(f"The gateway is repaired. redrive(where=...) put {count} dead letter back.")
        message = queues.consume("payments", "cashier")
        outcome = self._charge(message) if message is not None else "nothing came"
        screen.proves(
            "it came back with its old id and no retries counted, and was charged",
            message is not None and (message.message_id, message.retry_count, outcome) == (self.failed_id, 0, "acked"),
            (message, outcome),
        )
        stats = queues.stats("payments")
        screen.proves("the queue and its dead letters are empty", (stats.depth, stats.dead_letters) == (0, 0), stats)

    def life(self) -> None:
        """The event log has all of it."""
        screen = self.screen
        screen.step("The whole life of that message")
        events = self.broker.history(self.failed_id)
        screen.say(f"broker.history({self.failed_id!r}), from the event log:")
        screen.table(
            ["event", "at", "what", "delivery", "more"],
            [
                [
                    row.offset,
                    f"{(row.at - events[0].at) / SECOND:.2f} s",
                    row.kind,
                    row.attempt or "",
                    row.detail.get("reason") or row.detail.get("error") or row.consumer or "",
                ]
                for row in events
            ],
        )
        kinds = [row.kind for row in events]
        wanted = ["published", *["leased", "nacked"] * 3, "leased", "dead_lettered", "redriven", "leased", "acked"]
        screen.proves("from publish to ack nothing is missing and nothing was invented", kinds == wanted, kinds)

    def ordering_keys(self) -> None:
        """Per key one at a time, and in order."""
        screen, topics = self.screen, self.topics
        screen.step("Ordering keys")
        topics.register_topic("edits")
        topics.register_subscription("index", "edits", SubscriptionOptions(message_ordering=True))
        names = ["ann 1", "bob 1", "ann 2", "ann 3", "bob 2"]
        ids = topics.publish("edits", [Message(data=name.encode(), ordering_key=name[:3]) for name in names])
        first = topics.pull("index", max_messages=10)
        screen.say(f"Sent: {', '.join(names)}. A pull of 10 gives: {', '.join(_texts(first))}.")
        screen.proves("one message a key is out at a time", _texts(first) == ["ann 1", "bob 1"], first)
        topics.nack(first[0].ack_id)
        why = topics.explain("index", ids[2])
        screen.say(f"'ann 1' fails. explain('ann 2') says: {why and why.reason}, by 'ann 1'.")
        screen.proves(
            "nothing overtakes a failed message of its key",
            why is not None and (why.reason, why.by) == ("key_blocked", ids[0]),
            why,
        )
        topics.ack(first[1].ack_id)
        seen = ["bob 1"]
        while batch := topics.pull("index", max_messages=10):
            seen += _texts(batch)
            topics.ack_many([message.ack_id for message in batch])
        screen.say(f"Acked, in this order: {', '.join(seen)}.")
        by_key = [[name for name in seen if name.startswith(key)] for key in ("ann", "bob")]
        screen.proves(
            "each key's messages were processed in order", by_key == [["ann 1", "ann 2", "ann 3"], ["bob 1", "bob 2"]], seen
        )

    def lost_worker(self) -> None:
        """A lease that runs out frees its message."""
        screen, queues = self.screen, self.queues
        screen.step("A worker that goes silent")
        queues.create("thumbnails", QueueConfig(ack_deadline_secs=1))
        queues.publish("thumbnails", "photo.jpg")
        held = queues.consume("thumbnails", "worker 1")
        started = monotonic()
        again = queues.consume("thumbnails", "worker 2", timeout=PATIENCE)
        waited = (monotonic() - started) / SECOND
        screen.say("Worker 1 takes a message with a lease of 1 s and is not heard of again.")
        screen.proves(
            f"after {waited:.2f} s worker 2 has it: retry {again.retry_count if again else '?'}",
            held is not None and again is not None and again.message_id == held.message_id and 0.9 <= waited < PATIENCE,
            (held, again, waited),
        )
        assert again is not None, "proved above"
        try:
            queues.ack("thumbnails", again.message_id, "worker 1")
            refusal = "none"
        except ConsumerNotFound as error:
            refusal = error.reason
        screen.proves(f"when worker 1 acks after all, it is refused: {refusal}", refusal == "consumer_not_found", refusal)
        queues.ack("thumbnails", again.message_id, "worker 2")
        screen.proves("worker 2's ack settles it", queues.stats("thumbnails").acked_total == 1)

    def crash(self) -> None:
        """Confirmed is confirmed, whatever happens to the process."""
        screen = self.screen
        screen.step("Crash: kill -9, and recovery")
        screen.say(
            f"A child process opens a data directory. Its {PUBLISHERS} threads publish, one message a call, and report"
            f" each id that was confirmed. In the middle it is killed. {len(KILLS)} times, on the same directory:"
        )
        directory = self.directory / "crash"
        crashes = [crash(directory, number, after) for number, after in enumerate(KILLS, 1)]
        confirmed = [one for each in crashes for one in each.confirmed]
        screen.table(["kill", "confirmed before it"], [[n, f"{len(each.confirmed):,}"] for n, each in enumerate(crashes, 1)])
        screen.proves("every child was killed by SIGKILL in the middle of its work", all(each.is_killed for each in crashes))
        screen.proves(
            "while it lived, a second process was refused the directory", all(each.is_second_refused for each in crashes)
        )
        started = monotonic()
        found = recover(directory)
        took = (monotonic() - started) / SECOND
        lost, extra = set(confirmed) - set(found.ids), set(found.ids) - set(confirmed)
        screen.say(f"Opened the directory again, pulled and acked everything in {took:.1f} s.")
        screen.table(
            ["confirmed", "found", "lost", "unconfirmed but found"],
            [[f"{len(counted):,}" for counted in (confirmed, found.ids, lost, extra)]],
        )
        screen.proves(f"{len(confirmed):,} confirmed, 0 lost", not lost, sorted(lost)[:3])
        screen.proves("each came once, and each publisher's messages in the order it sent them", found.is_in_order)
        screen.proves(
            "the rest is at most the one publish that each thread was in when killed",
            len(extra) <= PUBLISHERS * len(KILLS),
            len(extra),
        )

    def _charge(self, message: QueueMessage) -> str:
        """The whole of a worker: do it, then ack; release it when it fails."""
        try:
            self.gateway.charge(message.payload)
        except GatewayDown as error:
            return self.queues.nack("payments", message.message_id, error=f"GatewayDown: {error}").action
        self.queues.ack("payments", message.message_id)
        return "acked"


def _texts(messages: Sequence[Message | ReceivedMessage]) -> list[str]:
    return [message.data.decode() for message in messages]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m proof", description="See every part of Penstock at work, in the terminal.")
    parser.add_argument(
        "--install-spark",
        metavar="COMMAND",
        default="",
        help="a command that installs PySpark and Java; if they are missing, it runs while the earlier steps run",
    )
    return parser.parse_args()


def main() -> int:
    """Run every step; 0 when every claim held."""
    arguments = _arguments()
    screen = Screen()
    screen.title(
        f"Penstock {__version__}: a broker, a server, its clients, a worker, a hub, a router, Spark",
        "Real processes, files, clients and time. Each claim is checked.",
    )
    try:
        with (
            tempfile.TemporaryDirectory(prefix="penstock-proof-") as directory,
            SparkInstallation(screen, arguments.install_spark, Path(directory) / "installation.log") as spark,
        ):
            Demo(screen, Path(directory)).run()
            ServerDemo(screen, Path(directory) / "server").run()
            ClientDemo(screen, Path(directory) / "client").run()
            HubDemo(screen, Path(directory) / "hub").run()
            RouterDemo(screen, Path(directory) / "router").run()
            PipelineDemo(screen, Path(directory) / "pipeline", Path(PAGE)).run(spark)
    except ClaimFailed as failure:
        screen.fail(str(failure))
        return 1
    except KeyboardInterrupt:
        screen.fail("interrupted")
        return 130
    except PenstockError as error:
        screen.fail(f"{type(error).__name__}: {error}")
        return 1
    screen.say("")
    for line in YOURSELF:
        screen.say(line)
    screen.end(f"{screen.claims} claims checked, all held, in {screen.seconds:.1f} s. The data was temporary and is gone.")
    return 0
