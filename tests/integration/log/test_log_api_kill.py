"""kill -9 of the server under readers and writers of the log API, and what a slow reader costs it."""

from __future__ import annotations

import os
import random
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.log.http import HttpLog
from penstock.log.log import Committed
from penstock.testing.server import ServerProcess

KILLS = int(os.environ.get("PENSTOCK_LOG_KILLS", "2"))
MIB = 1024 * 1024
PATIENCE = 120.0


class Server:
    """A server that comes back on the same port whenever it is killed."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def kill_and_restart(self) -> None:
        self.process.kill()
        self.start()

    def rss(self) -> int:
        """Bytes of memory that it holds."""
        lines = Path(f"/proc/{self.process.process.pid}/status").read_text(encoding="ascii").splitlines()
        (line,) = [line for line in lines if line.startswith("VmRSS")]
        return int(line.split()[1]) * 1024

    def start(self) -> None:
        self.process = ServerProcess(self._data_dir, port=self.port).start()


@contextmanager
def running(path: Path) -> Iterator[tuple[Server, HttpLog]]:
    server = Server(path)
    try:
        with HttpLog(server.url, timeout=PATIENCE) as log:
            yield server, log
    finally:
        server.process.stop()


def write(
    log: HttpLog, stream: str, batch: int, values: list[bytes], *, parts: int = 2, progress: threading.Event | None = None
) -> Committed:
    """Stage and commit a batch in some parts; each call that succeeds is progress."""
    size, progress = -(-len(values) // parts), progress or threading.Event()
    for part in range(parts):
        piece = pa.array(values[part * size : (part + 1) * size], pa.binary())
        rows = pa.table({"value": piece}).to_batches(max_chunksize=1000)
        log.stage(f"{stream}-{batch}", str(part), rows, stream=stream)
        progress.set()
    result = log.commit(f"{stream}-{batch}", [str(part) for part in range(parts)], query=stream, batch=batch)
    progress.set()
    return result


def test_a_reader_goes_on_when_the_server_is_killed_and_comes_back(tmp_path: Path) -> None:
    with running(tmp_path) as (server, log):
        log.create_topic("orders")
        values = [f"{number} ".encode().ljust(2000, b".") for number in range(10_000)]
        write(log, "orders", 0, values)
        span = log.spans(["orders"]).streams[0]
        got: list[bytes] = []
        kills = 0
        for batch in log.messages(span, 0, span.latest):
            got += batch.column("value").to_pylist()
            if not kills and len(got) > 3_000:
                kills += 1
                server.kill_and_restart()

        assert kills == 1
        assert got == values


def test_every_row_is_published_once_however_often_the_server_is_killed(tmp_path: Path) -> None:
    chance = random.Random(5)
    with running(tmp_path) as (server, log):
        log.create_topic("sink")
        stop, progress = threading.Event(), threading.Event()
        problems, committed = list[Exception](), list[bytes]()

        def work() -> None:
            number = 0
            try:
                while not stop.is_set():
                    values = [f"{number} {row}".encode() for row in range(5_000)]
                    write(log, "sink", number, values, progress=progress)
                    committed.extend(values)
                    number += 1
            except Exception as error:  # noqa: BLE001  # told below, where it fails the test
                problems.append(error)
                progress.set()

        worker = threading.Thread(target=work)
        worker.start()
        for _ in range(KILLS):
            progress.clear()
            assert progress.wait(PATIENCE)
            stop.wait(chance.uniform(0.0, 0.3))
            server.kill_and_restart()
        stop.set()
        worker.join(PATIENCE)

        assert not problems
        span = log.spans(["sink"]).streams[0]
        batches = log.messages(span, 0, span.latest, columns=["value"])
        found = [value for batch in batches for value in batch.column(0).to_pylist()]
        assert len(found) == len(committed) > 0
        assert found == committed
        assert log.commit("none", [], query="sink", batch=0).is_repeat


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, HttpLog]]:
    """A server with a stream of 200 MiB."""
    with running(tmp_path_factory.mktemp("large")) as (server, log):
        log.create_topic("large")
        for batch in range(4):
            write(log, "large", batch, [bytes([number]) * (MIB // 4) for number in range(200)], parts=4)
        yield server, log


@pytest.mark.long
def test_a_slow_reader_costs_two_batches_and_no_more(large: tuple[Server, HttpLog]) -> None:
    server, log = large
    span = log.spans(["large"]).streams[0]
    # What writing took is given back by now, or counts against nobody.
    list(log.messages(span, 0, 100))
    before = server.rss()
    reads = [log.messages(span, 0, span.latest, columns=["value"]) for _ in range(3)]
    peak = before
    for _ in range(4):
        for read in reads:
            next(read)
            peak = max(peak, server.rss())

    # A batch is there more than once for a moment, as it is stored and as it is sent, and what is freed is not returned at once.
    assert peak - before < 240 * MIB, f"{(peak - before) // MIB} MiB for three readers of 200 MiB"
    total = sum(batch.num_rows for batch in reads[0])
    assert 0 < total < span.latest
    log.close()


@pytest.mark.long
def test_readers_that_go_away_leave_nothing_behind(large: tuple[Server, HttpLog]) -> None:
    server, log = large
    span = log.spans(["large"]).streams[0]
    for _ in range(70):  # more than may read at one time
        read = log.messages(span, 0, span.latest, columns=["value"])
        next(read)
        del read

    assert sum(batch.num_rows for batch in log.messages(span, 0, span.latest, columns=["offset"])) == span.latest
    assert server.process.process.poll() is None


@pytest.mark.long
def test_a_server_that_stops_ends_reads_at_once_and_the_reader_goes_on_later(large: tuple[Server, HttpLog]) -> None:
    server, log = large
    span = log.spans(["large"]).streams[0]
    read = log.messages(span, 0, span.latest)
    count = next(read).num_rows
    assert server.process.stop() == 0
    server.start()

    assert count + sum(batch.num_rows for batch in read) == span.latest
