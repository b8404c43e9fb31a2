"""A program that talks to a server loads its client, and no broker."""

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


def loaded(program: str, url: str, project: str) -> list[str]:
    """The modules of Penstock that a program has loaded when it ends, after it printed that it received something."""
    ending = "import sys\nprint(*[name for name in sys.modules if name.partition('.')[0] == 'penstock'])\n"
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
    modules = loaded(program, shared_server.url, project)
    assert "penstock.errors" in modules
    assert [name for name in modules if f"{name}.".startswith(tuple(f"{one}." for one in FORBIDDEN))] == []
    assert len(modules) <= MOST, sorted(modules)
