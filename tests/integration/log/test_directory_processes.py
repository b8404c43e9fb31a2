"""Two processes: one publishes, deletes and is killed, another reads its data directory all the while."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from penstock import Broker
from penstock.clock import monotonic
from penstock.log.arrow import EVENTS, MESSAGES, read_events, read_stream
from penstock.log.directory import DirectoryLog
from penstock.log.log import StreamSpan

PATIENCE = 60_000_000
PUBLISHER = """
import sys
from penstock import Message, MessageQueue

with MessageQueue(data_dir=sys.argv[1]) as queue:
    queue.register_topic("orders")
    queue.register_subscription("billing", "orders")
    number = 0
    while True:
        queue.publish("orders", [Message(b"%d" % each) for each in range(number, number + 1 + number % 40)])
        number += 1 + number % 40
        for delivery in queue.pull("billing", 10):
            queue.ack(delivery.ack_id)
        queue.register_topic(f"t{number}")
        queue.unregister_topic(f"t{number}")
        print(number, flush=True)
"""


@contextmanager
def publisher(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that publishes until it is killed, and says how far it is."""
    process = subprocess.Popen([sys.executable, "-c", PUBLISHER, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline(), "it has begun"
        yield process
    finally:
        process.kill()
        process.stdout.close()
        process.wait(30)


def messages(log: DirectoryLog, span: StreamSpan, start: int) -> pa.Table:
    return pa.Table.from_batches(log.messages(span, start, span.latest), MESSAGES)


def test_a_log_is_read_whole_and_in_order_while_another_process_writes_it(tmp_path: Path) -> None:
    rows, events = [MESSAGES.empty_table()], [EVENTS.empty_table()]
    confirmed = 0
    with publisher(tmp_path) as process, DirectoryLog(tmp_path) as log:
        assert process.stdout is not None
        until = monotonic() + PATIENCE
        read = happened = 0
        while read < 5_000 and monotonic() < until:
            confirmed = int(process.stdout.readline())
            spans = log.spans(["orders"])
            [span] = spans.streams
            assert span.latest >= confirmed, "what was confirmed is there"
            assert span.latest >= read
            rows.append(messages(log, span, read))
            events.append(pa.Table.from_batches(log.events(happened, spans.events.latest), EVENTS))
            read, happened = span.latest, spans.events.latest
        process.kill()
        process.wait(30)
        [span] = log.spans(["orders"]).streams
        rows.append(messages(log, span, read))
        found, told = pa.concat_tables(rows), pa.concat_tables(events)
        assert found["value"].to_pylist() == [b"%d" % number for number in range(span.latest)]
        assert found.equals(messages(log, span, 0)), "the same range gives the same rows"
        again = pa.Table.from_batches(log.events(0, happened), EVENTS)
        assert told.equals(again), "also of what was deleted since"
        assert told["offset"].to_pylist() == list(range(happened))
        assert told.filter(pa.compute.is_in(told["kind"], pa.array(["published", "leased"])))["stream"].null_count == 0
    with Broker(data_dir=tmp_path) as broker:
        # SQLite's recovery may bring back one more transaction: written whole, but killed before readers were told
        kept = pa.Table.from_batches(read_stream(broker, "orders"), MESSAGES)
        assert found.equals(kept.slice(0, len(found)))
        assert told.equals(pa.Table.from_batches(read_events(broker, 0, happened), EVENTS))


def test_threads_share_one_log_of_a_busy_process(tmp_path: Path) -> None:
    troubles: list[BaseException] = []
    with publisher(tmp_path) as process, DirectoryLog(tmp_path) as log:
        assert process.stdout is not None

        def read() -> None:
            try:
                for _ in range(20):
                    [span] = log.spans(["orders"]).streams
                    found = messages(log, span, max(span.latest - 500, 0))
                    assert found["offset"].to_pylist() == list(range(max(span.latest - 500, 0), span.latest))
            except BaseException as error:  # noqa: BLE001  # reported by the thread that checks
                troubles.append(error)

        readers = [threading.Thread(target=read) for _ in range(3)]
        for reader in readers:
            reader.start()
        while any(reader.is_alive() for reader in readers):
            process.stdout.readline()
        for reader in readers:
            reader.join(30)
    assert troubles == []
