"""Durable publishing to the journal on PostgreSQL, alone and with a synchronous standby on the same machine and disk.

Against the journal on SQLite, and against the statement that a commit is: the same rows, fenced, through libpq.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

from benchmarks.durable import open_broker
from benchmarks.row import Benchmark, Row, Run, alternate, missing, paired_ratio, payloads, spread
from penstock import Broker, Message, MessageQueue, SubscriptionOptions
from penstock.journal.core import chunk as chunks
from penstock.journal.core import events
from penstock.journal.postgres import _COMMIT, PostgresJournal
from penstock.journal.postgres_connection import Address, Session, bytea_array, number_array
from penstock.journal.sql_reader import STREAM_BITS
from penstock.values.message import StoredMessage
from tests.postgres_server import PROGRAMS, PostgresServer, postgres_server, standby_of

BATCH = 100
SYNCED = {"fsync": "on", "full_page_writes": "on"}


class BareCommit:
    """The statement of a commit, with content that was encoded before."""

    def __init__(self, address: str, data: list[bytes]) -> None:
        PostgresJournal(address).close()
        self._session = Session(Address(address).connect("bare"))
        messages = [StoredMessage(0, each, None, "", 5, len(each)) for each in data]
        self._body = chunks.encode(chunks.pack(messages))
        self._record = events.encode([events.Published(1, 0, 0, len(data))])
        self._count = len(data)
        self._next = 0

    def publish(self) -> None:
        count, first = self._count, self._next
        columns = (1 << STREAM_BITS | first, count, 100 * count, 0, 5, 0, 0)
        arrays = [number_array([value]) for value in columns]
        self._session.execute(_COMMIT, 1, 1, first, count, 0, first, 0, self._record, *arrays, bytea_array([self._body]))
        self._next += count

    def close(self) -> None:
        self._session.close()


def publish_batches(run: Run) -> Iterator[Row]:
    """Both rows: without and with a standby."""
    for is_replicated, reach in ((False, 0.6), (True, 0.25)):
        what = f"durable publish, batches of {BATCH}, PostgreSQL{' with a synchronous standby' if is_replicated else ''}"
        if PROGRAMS is None:
            yield missing("postgres-batch", what, f"≥ {reach} of SQLite", "PostgreSQL is not installed")
            continue
        with ExitStack() as stack:
            server = stack.enter_context(postgres_server(SYNCED))
            if is_replicated:
                stack.enter_context(standby_of(server, SYNCED))
                _wait_for_standby(server)
            yield from _rows(run, stack, server, what, reach)


def _wait_for_standby(server: PostgresServer) -> None:
    until = time.perf_counter() + 60
    while not server.execute("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"):
        assert time.perf_counter() < until, "the standby does not follow"
        time.sleep(0.05)


def _rows(run: Run, stack: ExitStack, server: PostgresServer, what: str, reach: float) -> Iterator[Row]:
    commits = run.of(150, 60)
    data = payloads(BATCH)
    bare = stack.enter_context(closing(BareCommit(server.new_database(), data)))
    broker = stack.enter_context(Broker(journal=PostgresJournal(server.new_database())))
    queue = MessageQueue(broker=broker)
    queue.register_topic("t")
    queue.register_subscription("s", "t", SubscriptionOptions(ack_deadline_seconds=600))
    sqlite = stack.enter_context(open_broker(run.directory("sqlite")))

    def rate(publish: Callable[[], object]) -> float:
        start = time.perf_counter()
        for _ in range(commits):
            publish()
        return commits * BATCH / (time.perf_counter() - start)

    variants: dict[str, Callable[[], float]] = {
        "ours": lambda: rate(lambda: queue.publish("t", [Message(data=each) for each in data])),
        "sqlite": lambda: rate(lambda: sqlite.publish("t", [Message(data=each) for each in data])),
        "bare": lambda: rate(bare.publish),
    }
    for variant in variants.values():
        variant()
    found = alternate(run.of(11, 7), variants)
    for other, name, least in (("sqlite", "the journal on SQLite", reach), ("bare", "the bare fenced statement", 0.7)):
        ratio = paired_ratio(found["ours"], found[other])
        yield Row(
            "postgres-batch",
            what,
            statistics.median(found["ours"]),
            "messages/s",
            statistics.median(found[other]),
            name,
            ratio,
            f"≥ {least} of {name}",
            ratio >= least,
            spread(found["ours"]),
        )


BENCHMARKS: dict[str, Benchmark] = {"postgres-batch": publish_batches}
