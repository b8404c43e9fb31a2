"""Nodes as processes on a real PostgreSQL: who owns the log, what a killed and a stopped owner leave, and what clients see."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock import PubSub
from penstock import sync as blocking
from penstock.cli.main import main
from penstock.errors import PenstockError
from penstock.hub.client.client import HubClient
from penstock.log.http import HttpLog
from penstock.testing.proxy import FaultyProxy
from penstock.testing.server import ServerProcess
from tests.ports import free_port
from tests.postgres_server import PostgresServer, needs_postgres, postgres_server, standby_of

pytestmark = needs_postgres
PATIENCE = 60.0


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture
def journal(postgres: PostgresServer) -> str:
    return postgres.new_database()


def eventually(condition: Callable[[], Any], what: str) -> Any:
    """What the condition returns, when it is true; errors of a server that is not there yet count as no."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        try:
            if found := condition():
                return found
        except (OSError, PenstockError):
            pass
        time.sleep(0.02)
    raise AssertionError(f"waited in vain: {what}")


def get(url: str, path: str) -> Any:
    with urllib.request.urlopen(url + path, timeout=5) as answer:
        return json.loads(answer.read())


class Cluster:
    """Nodes a, b, … on one database."""

    def __init__(self, journal: str) -> None:
        self.journal = journal
        self.nodes: dict[str, ServerProcess] = {}
        self._ports: dict[str, int] = {}

    def add(self, name: str, journal: str | None = None) -> ServerProcess:
        """Start a node; one that was there before gets its port again."""
        port = self._ports.setdefault(name, free_port())
        node = ServerProcess(journal=journal or self.journal, node=name, port=port, shutdown_seconds=2)
        self.nodes[name] = node.start()
        return node

    @property
    def servers(self) -> list[str]:
        return [f"http://127.0.0.1:{port}" for port in self._ports.values()]

    def owner(self) -> str | None:
        """Who owns the log, as any node that answers says."""
        for node in self.nodes.values():
            try:
                page = get(node.url, "/nodes")
            except OSError:
                continue
            return next((one["node"] for one in page["nodes"] if one["state"] == "owner" and one["silent_seconds"] < 3), None)
        return None

    def stop(self) -> None:
        for node in self.nodes.values():
            if node.process.poll() is None:
                node.process.send_signal(signal.SIGCONT)
            node.stop()


@pytest.fixture
def cluster(journal: str) -> Iterator[Cluster]:
    cluster = Cluster(journal)
    try:
        yield cluster
    finally:
        cluster.stop()


class Publisher(threading.Thread):
    """Publishes numbers one after the other, and notes what was confirmed, refused and unknown."""

    def __init__(self, servers: list[str]) -> None:
        super().__init__(daemon=True)
        self.confirmed: dict[int, str] = {}
        self.failed: list[int] = []
        self.gaps: list[float] = []
        self._servers = servers
        self._enough = threading.Event()

    def run(self) -> None:
        with blocking.PubSub(self._servers) as pubsub:
            topic, number, last = pubsub.topic("orders"), 0, time.monotonic()
            while not self._enough.is_set():
                number += 1
                try:
                    self.confirmed[number] = topic.publish_message(b"%d" % number)
                except PenstockError:
                    self.failed.append(number)
                now = time.monotonic()
                self.gaps.append(now - last)
                last = now

    def finish(self) -> None:
        self._enough.set()
        self.join(PATIENCE)
        assert not self.is_alive()


def stored(servers: list[str]) -> dict[int, str]:
    """The numbers in the subscription, with their ids; each must be there once."""
    found: dict[int, str] = {}
    with blocking.PubSub(servers) as pubsub:
        subscription = pubsub.subscription("all")
        backlog = subscription.stats().backlog
        for message in subscription:
            assert int(message.data) not in found or found[int(message.data)] == message.id
            found[int(message.data)] = message.id
            message.ack()
            if len(found) >= backlog:
                break
    return found


def prepare(cluster: Cluster) -> None:
    with blocking.PubSub(cluster.servers) as pubsub:
        pubsub.topic("orders").create()
        pubsub.topic("orders").subscription("all").create()


@pytest.mark.parametrize(
    "kills",
    [2, pytest.param(int(os.environ.get("PENSTOCK_NODE_KILLS", "10")), marks=[pytest.mark.long, pytest.mark.timeout(14_400)])],
)
def test_the_owner_is_killed_and_another_node_continues(kills: int, cluster: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    cluster.add("a")
    second = cluster.add("b")
    eventually(lambda: cluster.owner() == "a", "a owns the log")
    assert get(second.url, "/health/ready")["status"] == "ready"
    prepare(cluster)
    publisher = Publisher(cluster.servers)
    publisher.start()
    for number in range(kills):
        victim, heir = ("a", "b") if number % 2 == 0 else ("b", "a")
        before = len(publisher.confirmed)
        eventually(lambda: len(publisher.confirmed) > before + 50, "some are confirmed")  # noqa: B023
        before = len(publisher.confirmed)
        cluster.nodes[victim].kill()
        eventually(lambda: len(publisher.confirmed) > before + 50, "publishing continues")  # noqa: B023
        eventually(lambda: cluster.owner() == heir, "the other owns the log")  # noqa: B023
        cluster.nodes.pop(victim)
        cluster.add(victim)
    publisher.finish()
    assert not publisher.failed
    assert stored(cluster.servers) == publisher.confirmed
    assert main(["nodes", "--server", ",".join(cluster.servers)]) == 0
    out = capsys.readouterr().out
    assert f"owner, epoch {kills + 1}" in out
    assert "standby" in out


@pytest.mark.long
def test_a_stopped_owner_writes_nothing_when_it_continues(cluster: Cluster) -> None:
    first = cluster.add("a")
    cluster.add("b")
    eventually(lambda: cluster.owner() == "a", "a owns the log")
    prepare(cluster)
    publisher = Publisher(cluster.servers)
    publisher.start()
    eventually(lambda: len(publisher.confirmed) > 50, "some are confirmed")
    first.process.send_signal(signal.SIGSTOP)
    stopped_at, before = time.monotonic(), len(publisher.confirmed)
    eventually(lambda: len(publisher.confirmed) > before + 50, "publishing continues at b")
    took = time.monotonic() - stopped_at
    first.process.send_signal(signal.SIGCONT)
    eventually(lambda: [one["state"] for one in get(first.url, "/nodes")["nodes"]] == ["standby", "owner"], "a stands by")
    with blocking.PubSub(first.url) as pubsub:  # which relays, or names the owner
        pubsub.topic("orders").publish_message(b"0")
    publisher.finish()
    assert not publisher.failed
    found = stored(cluster.servers)
    assert found.pop(0)
    assert found == publisher.confirmed
    assert "has lost the log and stands by" in first.log
    assert took < 30, took


def test_what_consumers_hold_and_what_apis_keep_survives_a_takeover(cluster: Cluster) -> None:
    """Leases, dead letters, delayed messages, cursors and durable subscriptions of the hub are in the journal."""
    first = cluster.add("a")
    eventually(lambda: cluster.owner() == "a", "a owns the log")
    cluster.add("b")

    async def before() -> str:
        async with PubSub(cluster.servers) as pubsub:
            queue = pubsub.queue("tasks")
            await queue.create(max_retries=0)
            for text in ("held", "dead", "later"):
                await queue.publish(text)
            (held,) = await queue.consume(ack_deadline=600)
            (dead,) = await queue.consume()
            dead.nack(requeue=False, error="broken")
            await pubsub.trace(held.id)  # which is answered when everything before is on disk
            await pubsub.topic("orders").create()
        async with HubClient(cluster.servers, address="@(agent/billing)") as hub, hub.subscribe("bills/eu", durable=True):
            pass
        async with HubClient(cluster.servers, address="@(agent/shop)") as hub:
            await hub.publish("bills/eu", {"sum": 7})
        return held.id

    async def after(held: str) -> None:
        async with PubSub(cluster.servers) as pubsub:
            queue = pubsub.queue("tasks")
            assert [letter.last_error for letter in await queue.dead_letters()] == ["broken"]
            (later,) = await queue.consume(10, wait=30)
            assert later.payload == "later", "what another consumer holds is not delivered again"
            (consumer, *_) = [one for one in await queue.consumers() if one.messages]
            assert held in {one.message_id for one in consumer.messages}
        async with (
            HubClient(cluster.servers, address="@(agent/billing)") as hub,
            hub.subscribe("bills/eu", durable=True) as bills,
        ):
            async for bill in bills:
                assert bill.data == {"sum": 7}
                await bill.ack()
                break

    held = asyncio.run(before())
    with HttpLog(cluster.servers) as log:
        log.advance("billing", {"orders": 0})
    first.kill()
    cluster.nodes.pop("a")
    eventually(lambda: cluster.owner() == "b", "b owns the log")
    asyncio.run(after(held))
    with HttpLog(cluster.servers) as log:
        assert [cursor.name for cursor in log.cursors()] == ["billing"]


@pytest.mark.long
def test_a_read_node_serves_the_log_of_a_standby_and_relays_the_rest(postgres: PostgresServer, cluster: Cluster) -> None:
    first = cluster.add("a")
    eventually(lambda: cluster.owner() == "a", "a owns the log")
    prepare(cluster)
    with standby_of(postgres) as standby:
        address = standby.url(cluster.journal.rpartition("/")[2])
        with ServerProcess(journal=address, read_only=True, node="r") as reader:
            eventually(lambda: get(reader.url, "/health/ready")["status"] == "ready", "the read node knows the owner")
            with blocking.PubSub(reader.url) as pubsub:  # which goes to the owner
                ids = [pubsub.topic("orders").publish_message(b"%d" % number) for number in range(100)]
            with HttpLog(reader.url) as log, HttpLog(first.url) as owner:
                eventually(lambda: log.spans(["orders"]).streams[0].latest == 100, "everything confirmed is there")
                span = log.spans(["orders"]).streams[0]
                assert [row["message_id"] for batch in log.messages(span, 0, 100) for row in batch.to_pylist()] == ids
                log.advance("billing", {"orders": 40})
                assert [cursor.name for cursor in owner.cursors()] == ["billing"]
                assert log.offsets_for({"orders": 0}, 1_000_000) == {"orders": 100}
                first.kill()
                cluster.nodes.pop("a")
                assert [batch.num_rows for batch in log.messages(span, 10, 20)] == [10]
            assert get(reader.url, "/nodes")["lag_seconds"] is not None
        postgres.configure(synchronous_standby_names="")


@pytest.mark.long
def test_an_owner_that_is_cut_off_from_the_database_gives_up(postgres: PostgresServer, cluster: Cluster) -> None:
    """Its clients still reach it, so it must send them away."""
    with FaultyProxy("127.0.0.1", postgres.port) as proxy:
        first = cluster.add("a", cluster.journal.replace(f"127.0.0.1:{postgres.port}", proxy.address))
        eventually(lambda: cluster.owner() == "a", "a owns the log")
        cluster.add("b")
        prepare(cluster)
        publisher = Publisher(cluster.servers)
        publisher.start()
        eventually(lambda: len(publisher.confirmed) > 50, "some are confirmed")
        proxy.swallow()
        before = len(publisher.confirmed)
        eventually(lambda: len(publisher.confirmed) > before + 50, "publishing continues at b")
        proxy.heal()
        eventually(lambda: [one["state"] for one in get(first.url, "/nodes")["nodes"]] == ["standby", "owner"], "a stands by")
        publisher.finish()
        assert stored(cluster.servers).items() >= publisher.confirmed.items()
