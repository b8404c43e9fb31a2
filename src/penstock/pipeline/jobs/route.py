"""The route job: runs the router's deliveries on Spark, in batches that the broker plans.

    driver                                    tasks
    leases ──> the batch of each queue        read their part ──by task of pool and group──> deliver
    settle <── results of all tasks <──────── results, states of breakers, permits of rates

The broker keeps the order between batches: unsettled messages of a batch come first in the next one. So Spark has no state, and
after a crash of the driver or a task, the same messages are repeated. Only the driver knows the limits of pools: it divides them
among the tasks with each batch.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote, urlsplit

import msgspec
import pyarrow as pa

from penstock.clock import monotonic
from penstock.durations import SECOND
from penstock.errors import InvalidArgument, NotFound, PenstockError
from penstock.http.client.allowed_addresses import AllowedAddresses
from penstock.http.client.client import HttpTransport
from penstock.log.http import HttpLog
from penstock.log.log import Leases
from penstock.pipeline.failure import as_penstock_error
from penstock.router.core.circuit import Breaker, ExportedBreaker, merge
from penstock.router.core.config import PoolConfig, QueueConfig, RouterConfig, shown_uri
from penstock.router.core.message import DEFAULT_POOL
from penstock.router.core.pool import DEFAULT_CONCURRENCY, RateLimit
from penstock.router.core.shares import PoolShare, shares, task_of, width_of
from penstock.router.options import RouterOptions
from penstock.router.planned import Drained, Endings, PlannedRouter, routed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.pipeline.job import Target
    from penstock.router.core.message import RoutedMessage

ROWS = 50_000
"""New messages of a queue in a batch: every batch costs Spark a fraction of a second, whatever its size."""
MAX_BYTES = 256 * 1024 * 1024
BUDGET = 60.0
LEASE_SECONDS = 300.0
_NOT_A_WORD = re.compile(r"[^A-Za-z0-9._:+@-]")
_READ = pa.schema(
    [
        ("task", pa.int32()),
        ("queue", pa.int32()),
        ("position", pa.int64()),
        ("offset", pa.int64()),
        ("message_id", pa.string()),
        ("tried", pa.int32()),
        ("failures", pa.int32()),
        ("wait", pa.int64()),
        ("value", pa.binary()),
    ]
)
_READ_SPARK = (
    "task int, queue int, position bigint, offset bigint, message_id string, tried int, failures int, wait bigint, value binary"
)
_DONE = pa.schema([("drained", pa.binary())])


@dataclass(frozen=True, slots=True)
class Route:
    """The settings of a route job. Durations are seconds."""

    target: Target
    config: RouterConfig
    """The whole configuration; this job uses the queues and pools with the engine `spark`."""
    options: RouterOptions = field(default_factory=RouterOptions, repr=False)
    rows: int = ROWS
    budget: float = BUDGET
    interval: float = 1.0
    """How often to check for messages if there are none."""
    tasks: int | None = None
    """None: the number of Spark's cores."""
    is_once: bool = False


class Batch(NamedTuple):
    """The result of a batch."""

    number: int
    settled: int
    """Delivered, or dead-lettered."""
    carried: int
    """Left for later batches."""
    cut: int
    """Calls that were cancelled by the time budget."""
    seconds: float


@dataclass(frozen=True, slots=True)
class Source:
    """A queue of the configuration at the server, and the query that leases its messages."""

    name: str
    """The name in the configuration."""
    address: str
    """The name in the log API."""

    @property
    def query(self) -> str:
        return _NOT_A_WORD.sub(lambda found: f"={ord(found[0]):x}", f"route:{self.address}")


def sources(config: RouterConfig, endpoint: str) -> list[Source]:
    """The queues that Spark reads, with those of their redriven dead letters. Raises InvalidArgument for a queue elsewhere."""
    found = [_source(queue, endpoint) for queue in config.of("spark").queues]
    if not found:
        raise InvalidArgument(
            "no queue of the configuration has the engine spark", hint='give a pool, or a queue, "engine": "spark"'
        )
    names = {source.address for source in found}
    letters = [f"queue:router.{one.address.partition(':')[2]}"[:206] for one in found if one.address.startswith("subscription:")]
    return [*found, *(Source(address.partition(":")[2], address) for address in letters if address not in names)]


def _source(queue: QueueConfig, endpoint: str) -> Source:
    parts = urlsplit(queue.uri)
    kind, _, name = parts.path.removeprefix("/").partition("/")
    kinds = {"queues": "queue", "subscriptions": "subscription"}
    if parts.scheme not in {"penstock", "penstocks"} or kind not in kinds or not name:
        raise InvalidArgument.of(
            f"the queue {queue.name!r}", shown_uri(queue.uri), "penstock:///queues/NAME or penstock:///subscriptions/NAME"
        )
    if parts.hostname is not None and parts.hostname != urlsplit(endpoint).hostname:
        raise InvalidArgument.of(f"the server of the queue {queue.name!r}", parts.hostname, f"that of --endpoint, {endpoint}")
    return Source(queue.name, f"{kinds[kind]}:{unquote(name)}")


class Planned(NamedTuple):
    """A leased batch of a queue."""

    number: int
    """The number of the queue in this job."""
    source: Source
    leases: Leases


class RouteJob:
    """The driver: plans batches, runs their delivery, and settles them."""

    def __init__(self, spark: SparkSession, route: Route) -> None:
        assert route.target.endpoint is not None, "a data directory can be read only"
        self._spark, self._route = spark, route
        self._sources = sources(route.config, route.target.endpoint)
        spark_pools = route.config.of("spark").pools
        default = PoolConfig(DEFAULT_POOL, DEFAULT_CONCURRENCY, engine="spark")
        self._pools = {pool.code: pool for pool in (default, *spark_pools)}
        self._elsewhere = frozenset(pool.code for pool in route.config.of("local").pools)
        self._tasks = route.tasks or _cores(spark)
        self._options = replace(route.options, per_target=max(route.options.per_target // self._tasks, 1))
        self._breakers: dict[str, Breaker] = {}
        self._limits = {pool.code: RateLimit(pool.rate_per_minute) for pool in self._pools.values() if pool.rate_per_minute}
        self._batches = 0
        self._log: HttpLog

    def run(self, stop: threading.Event, told: Callable[[Batch], None]) -> None:
        """Deliver batches until `stop` is set or, with `is_once`, until nothing can be delivered now. Then release the leases.

        After an error, the batch is left as it is: the next run starts with it.
        """
        with closing(_log(self._route.target)) as self._log:
            while not stop.is_set():
                begun = monotonic()
                planned = self._plan()
                ready = [one for one in planned if not one.leases.wait]
                for one in planned:
                    if one.leases.wait:  # so that it does not delay new messages
                        self._log.settle(one.source.query, one.leases.batch, {})
                if ready:
                    told(self._deliver(ready, begun))
                elif self._route.is_once:
                    break
                else:
                    stop.wait(min([self._route.interval, *(one.leases.wait for one in planned)]))
            for source in self._sources:
                self._log.release(source.query)

    def _plan(self) -> list[Planned]:
        """The batches of all queues that have something to deliver."""
        found: list[Planned] = []
        for number, source in enumerate(self._sources):
            try:
                leases = self._log.leases(
                    source.query,
                    source.address,
                    rows=self._route.rows,
                    max_bytes=MAX_BYTES,
                    seconds=LEASE_SECONDS,
                    parts=self._tasks,
                )
            except NotFound:
                if source.address.startswith("queue:router."):
                    continue  # it is created with the first dead letter
                raise
            if leases.rows:
                found.append(Planned(number, source, leases))
        return found

    def _deliver(self, planned: Sequence[Planned], begun: int) -> Batch:
        self._batches += 1
        with self._held(planned), as_penstock_error():
            done = [msgspec.msgpack.decode(row.drained, type=Drained) for row in self._frame(planned).collect()]
        self._learn(done)
        settled = carried = 0
        for one in planned:
            endings = Endings()
            for drained in done:
                if (part := drained.endings.get(one.number)) is not None:
                    endings.add(part)
            fields = {name: getattr(endings, name) for name in endings.__struct_fields__}
            answer = self._log.settle(one.source.query, one.leases.batch, {**fields, "router_name": one.source.name})
            settled += endings.settled
            carried += answer.carried
        cut = sum(drained.cut for drained in done)
        return Batch(self._batches, settled, carried, cut, (monotonic() - begun) / SECOND)

    def _frame(self, planned: Sequence[Planned]) -> DataFrame:
        """The frame that delivers the batches: one row for each task with messages."""
        now = monotonic()
        target, tasks = self._route.target, self._tasks
        widths = {code: width_of(pool, tasks) for code, pool in self._pools.items()}
        parts = [
            Part(one.number, one.source, one.leases.batch, start, end)
            for one in planned
            for start, end in zip(one.leases.cuts, one.leases.cuts[1:], strict=False)
        ]
        own: dict[int, list[PoolShare]] = {task: [] for task in range(tasks)}
        for code, pool in self._pools.items():
            permits = self._limits[code].export(now) if code in self._limits else ()
            for task, share in shares(pool, permits, tasks).items():
                own[task].append(share)
        breakers = {name: breaker.export(now) for name, breaker in self._breakers.items()}
        names = {number: source.name for number, source in enumerate(self._sources)}
        deliver = Deliver(names, own, breakers, self._options, self._elsewhere, self._route.budget)
        rows = self._spark.range(0, len(parts), 1, len(parts)).mapInArrow(Read(target, parts, widths, tasks), _READ_SPARK)
        in_order = rows.repartitionById(tasks, "task").sortWithinPartitions("queue", "position")
        return in_order.mapInArrow(deliver, "drained binary")

    def _learn(self, done: Sequence[Drained]) -> None:
        """Merge the breaker states and the used permits of the tasks."""
        now = monotonic()
        states: dict[str, list[ExportedBreaker]] = {}
        for drained in done:
            for name, state in drained.breakers.items():
                states.setdefault(name, []).append(state)
            for code, permits in drained.permits.items():
                self._limits[code].add(permits, now)
        self._breakers |= {name: Breaker.restore(merge(some), now) for name, some in states.items()}

    @contextmanager
    def _held(self, planned: Sequence[Planned]) -> Iterator[None]:
        """Extend the leases of batches while they are being delivered."""
        is_over = threading.Event()

        def extend() -> None:
            while not is_over.wait(LEASE_SECONDS / 4):
                with closing(_log(self._route.target)) as log:
                    for one in planned:
                        try:
                            log.extend(one.source.query, one.leases.batch, LEASE_SECONDS)
                        except PenstockError:
                            continue  # its settlement reports what was lost

        thread = threading.Thread(target=extend, name="penstock-route-leases", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()


class Part(NamedTuple):
    """A part of a batch that one task reads."""

    queue: int
    source: Source
    batch: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Read:
    """Runs in a task: reads parts of batches, and assigns each message to the task that delivers it."""

    target: Target
    parts: Sequence[Part]
    widths: Mapping[str, int]
    tasks: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with closing(_log(self.target)) as log:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    part = self.parts[number]
                    for found in log.leased(part.source.query, part.batch, part.start, part.stop):
                        yield self._rows(part, found)

    def _rows(self, part: Part, found: pa.RecordBatch) -> pa.RecordBatch:
        columns = [found.column(name) for name in ("position", "offset", "message_id", "tried", "failures")]
        bodies = found.column("value")
        places = [self._task(body) for body in bodies.to_pylist()]
        return pa.record_batch(
            [
                pa.array(places, pa.int32()),
                pa.repeat(pa.scalar(part.queue, pa.int32()), found.num_rows),
                *columns,
                found.column("wait").cast(pa.int64()),
                bodies,
            ],
            schema=_READ,
        )

    def _task(self, body: bytes) -> int:
        pointer = routed(0, "", 0, "", body).pointer
        pool = pointer.pool if pointer.pool in self.widths else DEFAULT_POOL
        return task_of(pool, self.widths[pool], pointer.group, self.tasks)


@dataclass(frozen=True, slots=True)
class Deliver:
    """Runs in a task: delivers its messages on its own event loop."""

    names: Mapping[int, str]
    own: Mapping[int, Sequence[PoolShare]]
    breakers: Mapping[str, ExportedBreaker]
    options: RouterOptions = field(repr=False)
    elsewhere: frozenset[str]
    budget: float

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        items: list[RoutedMessage] = []
        task, now = 0, monotonic()
        for batch in batches:
            task = batch.column("task")[0].as_py()
            items += self._items(batch, now)
        if not items:
            return
        with asyncio.Runner(loop_factory=_faster_loop()) as runner:
            drained = runner.run(self._deliver(items, task))
        yield pa.record_batch([pa.array([msgspec.msgpack.encode(drained)], pa.binary())], schema=_DONE)

    def _items(self, batch: pa.RecordBatch, now: int) -> Iterator[RoutedMessage]:
        columns = ("queue", "offset", "message_id", "value", "tried", "failures", "wait")
        rows = zip(*(batch.column(name).to_pylist() for name in columns), strict=True)
        for queue, offset, message_id, value, tried, failures, wait in rows:
            item = routed(queue, self.names[queue], offset, message_id, value)
            item.attempts, item.failures, item.due = tried, failures, now + wait if wait else 0
            yield item

    async def _deliver(self, items: Sequence[RoutedMessage], task: int) -> Drained:
        transport = HttpTransport(self.options, AllowedAddresses(self.options.allow_targets))
        try:
            planned = PlannedRouter(self.own[task], self.breakers, self.options, transport, elsewhere=self.elsewhere)
            return await planned.drain(items, self.budget)
        finally:
            await transport.close()


def _faster_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The factory of uvloop, if it is installed."""
    try:
        import uvloop  # noqa: PLC0415  # an extra
    except ModuleNotFoundError:
        return None
    return uvloop.new_event_loop


def _log(target: Target) -> HttpLog:
    assert target.endpoint is not None, "a data directory can be read only"
    return HttpLog(target.endpoint, token=target.token, project=target.project)


def _cores(spark: SparkSession) -> int:
    """The number of tasks that run at a time."""
    context = getattr(spark, "_sc", None)  # a session of Spark Connect has none
    return context.defaultParallelism if context is not None else int(spark.conf.get("spark.sql.shuffle.partitions", "4") or 4)
