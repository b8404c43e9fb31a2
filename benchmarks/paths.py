"""How many functions and files of Penstock one message passes on its way: ``python -m benchmarks.paths [WAY …]``.

A way is walked once to warm up, then `REPEATS` times, one message each. A function counts if it ran every time, so that timers
and signs of life that happen to fall into one walk do not. Comprehensions are not counted. Only documented names are imported, so
this runs on older checkouts too: set PYTHONPATH to their `src`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from unittest.mock import patch

import penstock
from penstock import Message, MessageQueue, PubSub, QueueManager

ROOT = str(Path(penstock.__file__).parent)
REPEATS = 5
SECONDS = 60.0
UNNAMED = {"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "<module>"}

Walks = list[Counter[CodeType]]


class Tracer:
    """Counts the calls of Penstock's functions in every thread that starts after it, and in this one."""

    def __init__(self) -> None:
        self._calls: Counter[CodeType] | None = None
        self._left_out: int | None = None
        self._is_ours: dict[CodeType, bool] = {}
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def close(self) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    @contextmanager
    def walk(self, walks: Walks, *, without_this_thread: bool = False) -> Iterator[None]:
        """Count what happens inside; this thread may only be here to watch."""
        self._left_out = threading.get_ident() if without_this_thread else None
        calls: Counter[CodeType] = Counter()
        self._calls = calls
        try:
            yield
        finally:
            self._calls = None
        walks.append(calls)

    def _profile(self, frame: FrameType, event: str, _: object) -> None:
        calls = self._calls
        if calls is None or event != "call":
            return
        code = frame.f_code
        is_ours = self._is_ours.get(code)
        if is_ours is None:
            is_ours = code.co_filename.startswith(ROOT) and code.co_name not in UNNAMED
            self._is_ours[code] = is_ours
        if is_ours and threading.get_ident() != self._left_out:
            calls[code] += 1


def until(is_so: Callable[[], bool], what: str) -> None:
    """Look until something is so. Whoever looks is not counted."""
    deadline = time.monotonic() + SECONDS
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {SECONDS:.0f} s")
        time.sleep(0.005)


class Endpoint:
    """An HTTP server that takes every POST. Use it as a context manager."""

    def __init__(self) -> None:
        self.count = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                outer.count += 1
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base class's name
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/"

    def __enter__(self) -> Endpoint:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def embedded(tracer: Tracer) -> Walks:
    """PubSub in memory: publish, receive from the stream, ack and wait for its confirmation."""
    walks: Walks = []

    async def main() -> None:
        async with PubSub() as pubsub:
            topic = pubsub.topic("orders")
            await topic.create()
            subscription = await topic.subscription("billing").create()
            arrived: asyncio.Queue[Any] = asyncio.Queue()
            subscription.on("message", arrived.put_nowait)
            subscription.open()
            for _ in range(REPEATS + 1):
                with tracer.walk(walks):
                    await topic.publish_message(b"one dozen")
                    await (await arrived.get()).ack_with_response()
            await subscription.close()

    asyncio.run(main())
    return walks


def google_push(tracer: Tracer) -> Walks:
    """Publish over gRPC until the endpoint has answered the push and the message is settled: the server alone."""
    import grpc
    from google.pubsub_v1.types import pubsub

    from penstock.testing.server import LocalServer

    walks: Walks = []
    topic, name = "projects/penstock/topics/orders", "projects/penstock/subscriptions/billing"
    with Endpoint() as endpoint, LocalServer() as server, grpc.insecure_channel(server.grpc) as channel:

        def call(path: str, message: Any) -> None:
            channel.unary_unary(f"/google.pubsub.v1.{path}")(type(message).serialize(message), timeout=SECONDS)

        call("Publisher/CreateTopic", pubsub.Topic(name=topic))
        push = pubsub.PushConfig(push_endpoint=endpoint.url)
        call("Subscriber/CreateSubscription", pubsub.Subscription(name=name, topic=topic, push_config=push))
        stats = MessageQueue(broker=server.broker).stats
        for number in range(REPEATS + 1):
            with tracer.walk(walks, without_this_thread=True):
                call("Publisher/Publish", pubsub.PublishRequest(topic=topic, messages=[{"data": b"one dozen"}]))
                until(lambda number=number: stats("billing").acked_total > number, "the push")  # type: ignore[misc]
    return walks


def router(tracer: Tracer) -> Walks:
    """From a work queue of the server through its router to a POST and its ack, without the publish."""
    from penstock.testing.server import LocalServer

    walks: Walks = []
    with tempfile.TemporaryDirectory() as place, Endpoint() as endpoint:
        config = Path(place) / "router.json"
        queues = [{"queueName": "orders", "queueUri": "penstock:///queues/orders", "visibilityTimeout": 60}]
        config.write_text(json.dumps({"queues": queues, "processingPools": [{"code": "HOOKS", "concurrency": 10}]}))
        with LocalServer(router=str(config), router_allow=("127.0.0.0/8",)) as server:
            work = QueueManager(broker=server.broker)
            if "orders" not in work.list():
                work.create("orders")
            for number in range(REPEATS + 1):
                with tracer.walk(walks, without_this_thread=True):
                    body = {"id": f"order-{number}", "poolCode": "HOOKS", "mediationTarget": endpoint.url, "messageGroupId": "g"}
                    work.publish("orders", body)
                    until(lambda number=number: work.stats("orders").acked_total > number, "the delivery")  # type: ignore[misc]
    return walks


def hub(tracer: Tracer) -> Walks:
    """HubClient publishes, the server forwards, another HubClient receives."""
    from penstock.client import HubClient
    from penstock.testing.server import LocalServer

    walks: Walks = []

    async def main(url: str) -> None:
        async with (
            HubClient(url, address="@(demo/ann)") as ann,
            HubClient(url, address="@(demo/bob)") as bob,
            ann.subscribe("chat/+") as messages,
        ):
            for _ in range(REPEATS + 1):
                with tracer.walk(walks):
                    await asyncio.gather(bob.publish("chat/lobby", {"text": "hello"}), messages.get(SECONDS))

    with LocalServer() as server:
        asyncio.run(main(server.url))
    return walks


def spark_read(tracer: Tracer) -> Walks:
    """A batch read of one message as driver and task make it, and the server; Spark itself does not run."""
    from pyspark.sql import types

    from penstock.pipeline.source import PenstockDataSource
    from penstock.testing.server import LocalServer

    kinds = {
        "string": types.StringType(),
        "binary": types.BinaryType(),
        "tinyint": types.ByteType(),
        "int": types.IntegerType(),
        "bigint": types.LongType(),
        "timestamp": types.TimestampType(),
        "map<string,string>": types.MapType(types.StringType(), types.StringType()),
    }
    walks: Walks = []
    with tempfile.TemporaryDirectory() as place, LocalServer(data_dir=Path(place)) as server:
        topics = MessageQueue(broker=server.broker)
        topics.register_topic("orders")
        topics.publish("orders", [Message(b"one dozen")])
        source = PenstockDataSource({"endpoint": server.url, "subscribe": "orders"})
        schema = types.StructType()
        for column in str(source.schema()).split(", "):
            name, kind, *rest = column.split(" ")
            schema = schema.add(name, kinds[kind], not rest)
        for _ in range(REPEATS + 1):
            with tracer.walk(walks):
                reader = PenstockDataSource({"endpoint": server.url, "subscribe": "orders"}).reader(schema)
                batches: list[Any] = [batch for part in reader.partitions() for batch in reader.read(part)]
            assert sum(batch.num_rows for batch in batches) == 1
    return walks


class Task:
    """What the sink asks of Spark's context of a task."""

    def partitionId(self) -> int:  # noqa: N802  # Spark's name
        return 0

    def taskAttemptId(self) -> int:  # noqa: N802  # Spark's name
        return 0

    def getLocalProperty(self, _: str) -> None:  # noqa: N802  # Spark's name
        return None


def spark_write(tracer: Tracer) -> Walks:
    """A batch write of one row: staged by the task, committed by the driver, published by the server."""
    import pyarrow as pa
    from pyspark import TaskContext
    from pyspark.sql import types

    from penstock.pipeline.source import PenstockDataSource
    from penstock.testing.server import LocalServer

    walks: Walks = []
    schema = types.StructType([types.StructField("value", types.BinaryType())])
    with tempfile.TemporaryDirectory() as place, LocalServer(data_dir=Path(place)) as server:
        topics = MessageQueue(broker=server.broker)
        topics.register_topic("orders")
        topics.register_subscription("billing", "orders")
        with patch.object(TaskContext, "get", Task):
            for number in range(REPEATS + 1):
                rows = pa.record_batch({"value": [b"one dozen"]})
                with tracer.walk(walks):
                    sink: Any = PenstockDataSource({"endpoint": server.url, "topic": "orders"}).writer(schema, overwrite=False)
                    sink.commit([sink.write(iter([rows]))])
                assert topics.stats("billing").backlog == number + 1
    return walks


WAYS: dict[str, tuple[str, Callable[[Tracer], Walks]]] = {
    "embedded": ("embedded publish to ack", embedded),
    "google-push": ("Google publish to push", google_push),
    "router": ("queue to router to POST", router),
    "hub": ("hub publish to subscriber", hub),
    "spark-read": ("Spark read", spark_read),
    "spark-write": ("Spark write", spark_write),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paths", description=(__doc__ or "").partition(":")[0])
    parser.add_argument("ways", metavar="WAY", nargs="*", help=f"only these: {', '.join(WAYS)}")
    parser.add_argument("--names", action="store_true", help="also print the name of every function")
    options = parser.parse_args()
    if unknown := sorted({*options.ways} - {*WAYS}):
        parser.error(f"no way is called {', '.join(unknown)}; there are {', '.join(WAYS)}")
    print(f"{'way of one message':28}  functions  files  calls")
    for name in options.ways or WAYS:
        what, walk = WAYS[name]
        tracer = Tracer()
        try:
            walks = walk(tracer)[1:]
        finally:
            tracer.close()
        always = {code for code in walks[0] if all(code in each for each in walks)}
        calls = min(sum(each[code] for code in always) for each in walks)
        files = {code.co_filename for code in always}
        print(f"{what:28}  {len(always):9}  {len(files):5}  {calls:5}", flush=True)
        if options.names:
            for place in sorted(f"{code.co_filename[len(ROOT) + 1 :]}: {code.co_qualname}" for code in always):
                print(f"    {place}")


if __name__ == "__main__":
    main()
