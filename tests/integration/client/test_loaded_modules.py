"""A program loads what it uses: a client of a server no broker, a broker in memory neither a database nor an event loop."""

from __future__ import annotations

import subprocess
import sys

import pytest

from penstock.testing.server import LocalServer

MOST = 60
FORBIDDEN = ("penstock.broker", "penstock.journal", "penstock.log", "penstock.api", "penstock.access", "penstock.server")

PUBSUB = """
import asyncio
from penstock import PubSub

async def main():
    async with PubSub(URL, project=PROJECT) as pubsub:
        topic = await pubsub.topic("orders").create()
        subscription = await topic.subscription("billing").create()
        await topic.publish_message(b"received")
        async for message in subscription:
            print(message.data.decode())
            message.ack()
            break

asyncio.run(main())
"""
BLOCKING = """
from penstock.sync import PubSub

with PubSub(URL, project=PROJECT) as pubsub:
    queue = pubsub.queue("tasks").create()
    queue.publish("received")
    [task] = queue.consume(wait=20)
    print(task.payload)
    task.ack()
"""
WORKER = """
import asyncio
from penstock import Worker

worker = Worker(URL, project=PROJECT)
done = asyncio.Event()

@worker.task("letters")
async def deliver(text):
    print(text)
    done.set()

async def main():
    async with worker:
        await deliver.send("received")
        await worker.start()
        await done.wait()

asyncio.run(main())
"""
HUB = """
import asyncio
from penstock.client import HubClient

async def main():
    async with HubClient(URL, address="@(demo/ann)") as hub, hub.subscribe("chat/+") as messages:
        await hub.publish(f"chat/{PROJECT}", {"text": "received"}, type="chat:said")
        async for message in messages:
            print(message.data["text"])
            break

asyncio.run(main())
"""


MESSAGE_QUEUE = """
from penstock import Message, MessageQueue

with MessageQueue() as queue:
    queue.register_topic("orders")
    queue.register_subscription("billing", "orders")
    queue.publish("orders", [Message(b"received")])
    [message] = queue.pull("billing")
    queue.ack(message.ack_id)
    print(message.data.decode())
"""
QUEUE_MANAGER = """
from penstock import QueueManager

with QueueManager() as queues:
    queues.create("tasks")
    queues.publish("tasks", "received")
    message = queues.consume("tasks")
    queues.ack("tasks", message.message_id)
    print(message.payload)
"""


def loaded(program: str, url: str, project: str) -> list[str]:
    """The modules that a program has loaded when it ends, after it printed that it received something."""
    ending = "import sys\nprint(*sys.modules)\n"
    ran = subprocess.run(
        [sys.executable, "-c", f"URL, PROJECT = {url!r}, {project!r}\n{program}{ending}"],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    received, modules = ran.stdout.splitlines()
    assert received == "received"
    return modules.split()


@pytest.mark.parametrize("program", [PUBSUB, BLOCKING, WORKER, HUB], ids=["pubsub", "sync", "worker", "hub"])
def test_a_client_of_a_server_loads_few_modules_and_no_broker(program: str, shared_server: LocalServer, project: str) -> None:
    modules = [name for name in loaded(program, shared_server.url, project) if name.partition(".")[0] == "penstock"]
    assert "penstock.errors" in modules
    assert [name for name in modules if f"{name}.".startswith(tuple(f"{one}." for one in FORBIDDEN))] == []
    assert len(modules) <= MOST, sorted(modules)


@pytest.mark.parametrize("program", [MESSAGE_QUEUE, QUEUE_MANAGER], ids=["message-queue", "queue-manager"])
def test_a_broker_in_memory_loads_no_database_and_no_event_loop(program: str) -> None:
    assert {"apsw", "asyncio", "concurrent.futures", "ctypes"}.isdisjoint(loaded(program, "", ""))


def test_the_http_client_loads_no_http_server() -> None:
    modules = loaded("import penstock.http.client.client\nprint('received')\n", "", "")
    assert {"aiohttp", "penstock.http.port"}.isdisjoint(modules)
