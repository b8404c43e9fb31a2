"""The servers that a router takes messages from, one of each kind, as the proofs need them: filled, killed, looked into.

A place is a context manager. `uri` and `environment` are for the router's configuration; `lease` is the visibility timeout there.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import msgspec
import nats
from nats.js.api import RetentionPolicy, StorageType, StreamConfig

from penstock import NewMessage, QueueManager
from penstock.router.broker_records import dead_letter_queue
from penstock.testing.proxy import FaultyProxy
from penstock.testing.server import ServerProcess
from penstock.values.policy import ROUTER_QUEUE
from tests.integration.router.activemq_server import ActiveMqServer, Client
from tests.integration.router.nats_server import NatsServer
from tests.integration.router.sqs_server import KEYS, SqsServer
from tests.ports import free_port

QUEUE = "orders"
"""What the queue is called, at its server and in the router."""
TOGETHER = 1_000
Bodies = Sequence[tuple[str, bytes]]
"""Groups and bodies of messages, in order."""


class Place(ABC):
    """One queue at one server."""

    lease = 20
    environment: Mapping[str, str] = {}
    can_be_killed = True
    can_be_watched = True
    """Whether `left` may be asked while a router runs."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder

    @property
    @abstractmethod
    def uri(self) -> str:
        """For the router."""

    @property
    def other_uri(self) -> str:
        """Another way to write where the same queue is."""
        return self.uri.replace("127.0.0.1", "localhost")

    @abstractmethod
    def fill(self, bodies: Bodies) -> None:
        """Put messages into the queue; returns when they are safe there."""

    @abstractmethod
    def left(self, router_data: Path) -> int:
        """How many messages are there, handed out or not. No router runs, unless the place can be watched."""

    def dead(self, router_data: Path) -> list[str]:
        """The ids of the messages that are dead. No router runs."""
        return dead_of(router_data, dead_letter_queue(QUEUE))

    def kill(self) -> None:
        """The server is gone, without a goodbye."""
        raise NotImplementedError

    def start(self) -> None:
        """It is there again."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def dead_of(data_dir: Path, queue: str) -> list[str]:
    """The ids of the messages among the dead letters of a work queue."""
    with QueueManager(data_dir=data_dir) as manager:
        letters = manager.dead_letters(queue) if manager.exists(queue) else []
        return [msgspec.json.decode(letter.message.payload)["id"] for letter in letters]


def fill_work_queue(data_dir: Path, bodies: Bodies) -> None:
    """Put messages into a work queue of a broker that does not run, as the router would make it."""
    with QueueManager(data_dir=data_dir) as manager:
        if not manager.exists(QUEUE):
            manager.create(QUEUE, ROUTER_QUEUE)
        for first in range(0, len(bodies), TOGETHER):
            manager.publish_many(QUEUE, [NewMessage(body) for _, body in bodies[first : first + TOGETHER]])


def left_in_work_queue(data_dir: Path) -> int:
    """How many messages such a queue holds."""
    with QueueManager(data_dir=data_dir) as manager:
        found = manager.stats(QUEUE)
        return found.depth + found.delayed + found.in_flight


class OwnQueue(Place):
    """A queue of Penstock in the router's own process. It is filled before the router starts."""

    uri = f"penstock:///queues/{QUEUE}"
    other_uri = f"penstock:///queues/%{ord(QUEUE[0]):X}{QUEUE[1:]}"
    can_be_killed = can_be_watched = False

    def fill(self, bodies: Bodies) -> None:
        fill_work_queue(self.folder, bodies)

    def left(self, router_data: Path) -> int:
        return left_in_work_queue(router_data)

    def dead(self, router_data: Path) -> list[str]:
        return dead_of(router_data, QUEUE)

    def start(self) -> None:
        """It is where the router is."""

    def kill(self) -> None:
        """It goes with the router."""


class RemoteQueue(Place):
    """A queue of a Penstock server."""

    can_be_watched = False

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._port = free_port()
        self._server: ServerProcess | None = None

    @property
    def uri(self) -> str:
        return f"penstock://127.0.0.1:{self._port}/queues/{QUEUE}"

    def fill(self, bodies: Bodies) -> None:
        self._stop()
        fill_work_queue(self.folder, bodies)
        self.start()

    def left(self, router_data: Path) -> int:
        self._stop()
        return left_in_work_queue(self.folder)

    def dead(self, router_data: Path) -> list[str]:
        self._stop()
        return dead_of(self.folder, QUEUE)

    def start(self) -> None:
        self._server = ServerProcess(self.folder, native_port=self._port).start()

    def kill(self) -> None:
        if self._server is not None:
            self._server.kill()
            self._server = None

    def _stop(self) -> None:
        if self._server is not None:
            self._server.stop()
            self._server = None


class Nats(Place):
    """A stream of JetStream, on disk, from which what is acked goes."""

    lease = 5

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._server = NatsServer(folder)

    @property
    def uri(self) -> str:
        return f"nats://{self._server.place}/ORDERS/router?subject=orders.>"

    def fill(self, bodies: Bodies) -> None:
        asyncio.run(self._fill(bodies))

    async def _fill(self, bodies: Bodies) -> None:
        client = await nats.connect(f"nats://{self._server.place}")
        try:
            stream = client.jetstream(publish_async_max_pending=2 * TOGETHER)
            kept = StreamConfig(
                name="ORDERS", subjects=["orders.>"], retention=RetentionPolicy.WORK_QUEUE, storage=StorageType.FILE
            )
            await stream.add_stream(kept)
            for first in range(0, len(bodies), TOGETHER):
                sent = [await stream.publish_async("orders.new", body) for _, body in bodies[first : first + TOGETHER]]
                await asyncio.gather(*sent)
        finally:
            await client.close()

    def left(self, router_data: Path) -> int:
        return asyncio.run(self._left())

    async def _left(self) -> int:
        client = await nats.connect(f"nats://{self._server.place}")
        try:
            # What the consumer says: a server that was killed may have forgotten that it removed messages from the stream, and
            # keep them for ever, though no consumer wants them.
            found = await client.jetstream().consumer_info("ORDERS", "router")
            return (found.num_pending or 0) + (found.num_ack_pending or 0)
        finally:
            await client.close()

    def start(self) -> None:
        self._server.start()

    def kill(self) -> None:
        self._server.kill()


class ActiveMq(Place):
    """A queue of an ActiveMQ."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._server = ActiveMqServer(folder)

    @property
    def uri(self) -> str:
        return self._server.uri(QUEUE)

    def fill(self, bodies: Bodies) -> None:
        asyncio.run(self._fill(bodies))

    async def _fill(self, bodies: Bodies) -> None:
        client = await Client.connect(self._server.port)
        for first in range(0, len(bodies), TOGETHER):
            await client.send(QUEUE, [body for _, body in bodies[first : first + TOGETHER]])
        client.close()

    def left(self, router_data: Path) -> int:
        return asyncio.run(self._left())

    async def _left(self) -> int:
        client = await Client.connect(self._server.port)
        try:
            return len(await client.left(QUEUE))
        finally:
            client.close()

    def start(self) -> None:
        self._server.start()

    def kill(self) -> None:
        self._server.kill()


class SqsFifo(Place):
    """A FIFO queue of an SQS (moto's). Its death is a network that is cut: moto keeps everything in memory."""

    lease = 5

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._rest = ExitStack()
        self._server = SqsServer(folder)
        self._proxy: FaultyProxy | None = None
        self._url = ""

    @property
    def uri(self) -> str:
        return self._url

    @property
    def environment(self) -> Mapping[str, str]:  # type: ignore[override]  # another port each time
        assert self._proxy is not None
        # A router stops after its polls: short ones, or each stop would take up to 20 s.
        wait = {"PENSTOCK_ROUTER_SQS_WAIT_TIME_SECONDS": "2"}
        return {**KEYS, **wait, "SQS_ENDPOINT_OVERRIDE": f"http://{self._proxy.address}"}

    def fill(self, bodies: Bodies) -> None:
        self._server.send(self._url, [body.decode() for _, body in bodies], [group for group, _ in bodies])

    def left(self, router_data: Path) -> int:
        return self._server.left(self._url)

    def start(self) -> None:
        if self._proxy is not None:
            self._proxy.accept()
            return
        self._rest.enter_context(self._server)
        self._proxy = self._rest.enter_context(FaultyProxy("127.0.0.1", self._server.port))
        self._url = self._server.create_queue(is_fifo=True)

    def kill(self) -> None:
        assert self._proxy is not None
        self._proxy.refuse()
        self._proxy.cut()

    def __exit__(self, *_: object) -> None:
        self._rest.close()


PLACES: dict[str, type[Place]] = {
    "own queue": OwnQueue,
    "remote queue": RemoteQueue,
    "nats": Nats,
    "activemq": ActiveMq,
    "sqs": SqsFifo,
}
