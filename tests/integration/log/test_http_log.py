"""`HttpLog` against a real server: what it reads and writes, how it goes on after a cut, and what it gives up on."""

from __future__ import annotations

import contextlib
import pickle
import socket
import threading
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import Message, MessageQueue, QueueManager
from penstock.access import Keyring, Verb
from penstock.clock import SystemClock, monotonic
from penstock.durations import SECOND
from penstock.errors import (
    CursorNotFound,
    InvalidArgument,
    OutOfRange,
    PartNotFound,
    PenstockError,
    PermissionDenied,
    QueueNotFound,
    ServerUnreachable,
    StreamReplaced,
    TopicNotFound,
    Unauthenticated,
    Unavailable,
    Unimplemented,
)
from penstock.log.arrow import MESSAGES
from penstock.log.directory import DirectoryLog
from penstock.log.http import HttpLog
from penstock.log.log import EVENTS, Committed, Staged, StreamSpan
from penstock.log.open import open_log
from penstock.log.place import place_of
from penstock.log.server import reading
from penstock.testing.server import LocalServer
from tests.integration.log.log_server import ask, bury, fill


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    with LocalServer(data_dir=tmp_path_factory.mktemp("log")) as server:
        fill(server.broker, "orders", 20_000)
        MessageQueue(broker=server.broker).register_topic("sink")
        bury(server.broker, "jobs")
        yield server


class Logs:
    """Opens logs, and closes them at the end of a test."""

    def __init__(self) -> None:
        self._open: list[HttpLog] = []

    def __call__(self, endpoint: str, **options: Any) -> HttpLog:
        self._open.append(HttpLog(endpoint, **options))
        return self._open[-1]

    def close(self) -> None:
        for log in self._open:
            log.close()


@pytest.fixture
def logs() -> Iterator[Logs]:
    logs = Logs()
    yield logs
    logs.close()


@pytest.fixture
def log(server: LocalServer, logs: Logs) -> HttpLog:
    return logs(server.url)


def only(log: HttpLog, name: str = "orders") -> StreamSpan:
    (span,) = log.spans([name]).streams
    return span


def reading_of(log: HttpLog) -> Generator[pa.RecordBatch, None, None]:
    """A read of all orders, which can be closed."""
    span = only(log)
    read = log.messages(span, 0, span.latest)
    assert isinstance(read, Generator)
    return read


def rows(batches: Iterator[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for batch in batches for row in batch.to_pylist()]


def offsets(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def test_a_server_and_its_directory_say_the_same(server: LocalServer, log: HttpLog) -> None:
    directory = DirectoryLog(server.server.settings.data_dir)  # type: ignore[arg-type]  # it has one
    spans = log.spans()

    assert spans == directory.spans()
    for span in spans.streams:
        whole = span.earliest, span.latest
        assert rows(log.messages(span, *whole)) == rows(directory.messages(span, *whole))
    events = spans.events.earliest, spans.events.latest
    assert rows(log.events(*events)) == rows(directory.events(*events))
    assert rows(log.dead_letters(*events)) == rows(directory.dead_letters(*events))
    times = {"orders": only(log).published_at, EVENTS: 0}
    assert log.offsets_at(times) == directory.offsets_at(times)
    assert log.offsets_for({"orders": 3}, 1000) == directory.offsets_for({"orders": 3}, 1000)
    assert log.sizes_after({"orders": 3}) == directory.sizes_after({"orders": 3})
    directory.close()


def test_streams_are_chosen(log: HttpLog) -> None:
    assert [span.stream for span in log.spans(pattern="(ord|queue:).*").streams] == ["orders", "queue:jobs"]
    assert [span.stream for span in log.spans(["sink", "orders"]).streams] == ["sink", "orders"]
    assert log.spans([]).streams == []


def test_many_long_names_and_keys_fit_into_one_call(log: HttpLog) -> None:
    with pytest.raises(TopicNotFound):
        log.spans([f"{'n' * 200}-{n}" for n in range(300)])
    keys = ["k1", *(f"{'k' * 200}-{n}" for n in range(1000))]
    assert offsets(log.messages(only(log), 0, 11, keys=keys)) == [1, 6]


def test_columns_come_in_the_order_that_is_asked_for(log: HttpLog) -> None:
    (batch,) = log.messages(only(log), 0, 5, columns=["value", "offset"])

    assert batch.schema == pa.schema([MESSAGES.field("value"), MESSAGES.field("offset")])


def test_rows_are_the_same_however_they_travel(server: LocalServer, logs: Logs) -> None:
    for compression in ("none", "lz4", "zstd", "auto"):
        log = logs(server.url, compression=compression)
        assert offsets(log.messages(only(log), 0, 20_000)) == list(range(20_000)), compression


def test_it_can_be_pickled_and_used_elsewhere(server: LocalServer, log: HttpLog) -> None:
    log.spans()
    copy = pickle.loads(pickle.dumps(log))

    assert copy.spans() == log.spans()
    assert repr(copy) == f"<log at {server.url}>"
    copy.close()
    copy.close()
    assert copy.spans() == log.spans(), "a closed one opens again"
    copy.close()


def test_one_connection_is_kept(server: LocalServer, log: HttpLog) -> None:
    accepted = ask(server.url, "GET", "/metrics").body.decode()
    for _ in range(20):
        log.spans()
        list(log.messages(only(log), 0, 10))
    after = ask(server.url, "GET", "/metrics").body.decode()

    def count(text: str) -> float:
        (line,) = [line for line in text.splitlines() if line.startswith("penstock_http_connections_accepted_total")]
        return float(line.split()[-1])

    assert count(after) - count(accepted) == 2, "its own, and that of the second question"


def test_a_read_that_is_closed_ends_at_the_server(server: LocalServer, log: HttpLog) -> None:
    read = reading_of(log)
    next(read)
    read.close()

    wait_for(lambda: metric(server, "penstock_log_reads") == 0)


def test_the_errors_of_the_server_are_raised_as_they_are(log: HttpLog) -> None:
    span = only(log)
    cases: list[tuple[Any, type[PenstockError], tuple[Any, ...]]] = [
        (lambda: log.spans(["nope"]), TopicNotFound, ("nope",)),
        (lambda: log.spans(["queue:nope"]), QueueNotFound, ("nope",)),
        (lambda: list(log.messages(span, 0, 20_001)), OutOfRange, ("orders", 20_001, 0, 20_000)),
        (lambda: list(log.messages(StreamSpan("orders", 99, 0, 9, 0), 0, 9)), StreamReplaced, ("orders", 1, 99)),
        (lambda: list(log.messages(span, 0, 9, columns=["nope"])), InvalidArgument, ()),
        (lambda: log.delete_cursor("a/b"), InvalidArgument, ()),
        (lambda: log.commit("w", ["p"], query="none", batch=0), PartNotFound, ("p of write w",)),
        (lambda: log.stage("w", "p", [pa.record_batch({"value": ["", "b"]})], stream="sink"), InvalidArgument, ()),
        (lambda: log.stage("", "p", []), InvalidArgument, ()),
    ]
    for call, kind, fields in cases:
        with pytest.raises(kind) as caught:
            call()
        assert type(caught.value) is kind
        assert not fields or caught.value.args == fields
        assert caught.value.hint or kind in {OutOfRange, InvalidArgument}


def test_cursors(log: HttpLog) -> None:
    log.advance("job", {"orders": 5}, holds=False)
    log.advance("job", {EVENTS: 1})

    (cursor,) = log.cursors()
    assert (cursor.name, cursor.offsets, cursor.lag["orders"], cursor.holds) == ("job", {"orders": 5, EVENTS: 1}, 19_995, False)
    log.delete_cursor("job")
    log.delete_cursor("job")
    assert log.cursors() == []
    assert issubclass(CursorNotFound, PenstockError)


def test_a_write(log: HttpLog) -> None:
    batches = [pa.record_batch({"value": [f"{n} {m}" for m in range(1000)]}) for n in range(10)]
    before = only(log, "sink").latest

    assert log.stage("w", "p", iter(batches), stream="sink") == Staged(
        "p", 10_000, log.stage("w", "p", batches, stream="sink").bytes
    )
    assert log.commit("w", ["p"], query="q", batch=0) == Committed(10_000, is_repeat=False)
    assert log.commit("w", ["p"], query="q", batch=0) == Committed(10_000, is_repeat=True)
    assert log.commit("w", [], query="noted", note="é" * 10_000) == Committed(0, is_repeat=False, note="é" * 10_000)
    assert log.commit("w", [], query="noted", note="other").note == "é" * 10_000
    with pytest.raises(InvalidArgument, match="note is 'x' and query is missing"):
        log.commit("w", [], note="x")
    with pytest.raises(InvalidArgument, match="note"):
        log.commit("w", [], query="noted", note="x" * 10_001)
    log.stage("unnamed", "p", [pa.record_batch({"value": ["a"]})], stream="sink")
    assert log.commit("unnamed", ["p"]) == Committed(1, is_repeat=False)
    assert log.commit("unnamed", ["p"]) == Committed(1, is_repeat=True)
    assert only(log, "sink").latest == before + 10_001
    assert log.stage("w", "none", [], stream="sink").rows == 0
    log.abort("w")
    log.abort("w")


def test_large_messages(server: LocalServer, log: HttpLog) -> None:
    MessageQueue(broker=server.broker).register_topic("large")
    values = [bytes([n]) * (10 * 1024 * 1024 - n) for n in range(4)]
    log.stage("large", "p", [pa.record_batch({"value": pa.array([value])}) for value in values], stream="large")
    log.commit("large", ["p"], query="large", batch=0)

    found = [value for batch in log.messages(only(log, "large"), 0, 4) for value in batch.column("value").to_pylist()]
    assert found == values


def test_tokens(tmp_path: Path, logs: Logs) -> None:
    keyring = Keyring(tmp_path / "tokens")
    secret = keyring.create("job", SystemClock().now(), patterns=("ord*",))
    reader = keyring.create("reader", SystemClock().now(), verbs=[Verb.READ])
    with LocalServer(auth="token", token_file=tmp_path / "tokens") as server:
        fill(server.broker, "orders", 3)
        fill(server.broker, "p/orders", 5)
        assert only(logs(server.url, token=secret)).latest == 3
        assert only(logs(server.url, token=secret, project="p")).latest == 5
        with pytest.raises(PermissionDenied, match="secret"):
            logs(server.url, token=secret).spans(["secret"])
        with pytest.raises(Unauthenticated, match="no token"):
            logs(server.url).spans()
        with pytest.raises(PermissionDenied, match="may not publish to topic orders"):
            logs(server.url, token=reader).stage("w", "p", [], stream="orders")
        assert logs(server.url, token=secret).create_topic("ord-made")
        assert not logs(server.url, token=secret).create_topic("ord-made")
        with pytest.raises(Unauthenticated, match="not a Penstock token"):
            logs(server.url, token="pk_nobody").spans()


def test_what_cannot_be_an_address_is_refused_at_once(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Any, dict[str, Any]]] = [
        ("", {}),
        ("127.0.0.1:80", {}),
        ("ftp://127.0.0.1", {}),
        ("http://", {}),
        ("http://127.0.0.1:99999", {}),
        ("http://127.0.0.1/?a=b", {}),
        ("http://user:secret@127.0.0.1", {}),
        (None, {}),
        ("http://127.0.0.1", {"compression": "gzip"}),
        ("http://127.0.0.1", {"timeout": 0}),
        ("http://127.0.0.1", {"token": "a\nb"}),
    ]
    for endpoint, options in cases:
        with subtests.test(endpoint=endpoint, options=options):
            with pytest.raises(InvalidArgument) as caught:
                HttpLog(endpoint, **options)
            assert "secret" not in str(caught.value)


def test_the_directory_of_a_server_on_this_machine_is_found(
    server: LocalServer, log: HttpLog, tmp_path: Path, logs: Logs
) -> None:
    assert log.directory() == str(server.server.settings.data_dir)
    assert logs(server.url, project="shop").directory() is None
    with LocalServer() as in_memory:
        assert logs(in_memory.url).directory() is None
    keyring = Keyring(tmp_path / "tokens")
    whole = keyring.create("whole", SystemClock().now(), verbs=[Verb.READ, Verb.CONSUME])
    some = keyring.create("some", SystemClock().now(), verbs=[Verb.READ, Verb.CONSUME], patterns=("orders-*",))
    with LocalServer(data_dir=tmp_path / "data", auth="token", token_file=tmp_path / "tokens") as guarded:
        assert logs(guarded.url, token=whole).directory() == str(tmp_path / "data")
        assert logs(guarded.url, token=some).directory() is None
        (tmp_path / "data" / "FORMAT").rename(tmp_path / "FORMAT")
        (tmp_path / "data" / "FORMAT").write_bytes((tmp_path / "FORMAT").read_bytes())
        assert place_of(tmp_path / "data") != place_of(tmp_path), "another file under the same name"


def test_readers_share_a_rate(tmp_path: Path, logs: Logs) -> None:
    with LocalServer(data_dir=tmp_path, log_read_rate=4 << 20) as server:
        fill(server.broker, "orders", 40, 100_000)
        log = logs(server.url)
        span, begun = only(log), monotonic()
        reads = [threading.Thread(target=lambda: rows(log.messages(span, 0, 40))) for _ in range(2)]
        for read in reads:
            read.start()
        for read in reads:
            read.join()
        # The last piece is written without a wait.
        assert monotonic() - begun > 1.7 * SECOND


def test_open_log(server: LocalServer) -> None:
    data_dir = server.server.settings.data_dir
    assert isinstance(open_log(endpoint=server.url), HttpLog)
    by_path = open_log(path=data_dir)
    assert isinstance(by_path, DirectoryLog)
    by_path.close()
    for options in ({}, {"endpoint": server.url, "path": data_dir}, {"path": data_dir, "token": "t"}):
        with pytest.raises(InvalidArgument, match="expected"):
            open_log(**options)  # type: ignore[arg-type]


# ── when things go wrong ─────────────────────────────────────────────────────────────────────────────────────────────────


def metric(server: LocalServer, name: str) -> float:
    text = ask(server.url, "GET", "/metrics").body.decode()
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith((f"{name} ", f"{name}{{")))


def wait_for(condition: Any) -> None:
    """Return when something is so; what announces it is at the server, so it is asked for again and again."""
    moment = threading.Event()
    for _ in range(3_000):
        if condition():
            return
        moment.wait(0.02)
    raise AssertionError("it did not happen in time")


class Gate:
    """A TCP proxy that cuts connections after so many bytes of answers, a few times."""

    def __init__(self, port: int, cuts: list[int]) -> None:
        self._port = port
        self._cuts = cuts
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._run, daemon=True)]
        self._threads[0].start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self._listener.close()
        for end in self._sockets:
            end.close()

    def _run(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            server = socket.create_connection(("127.0.0.1", self._port))
            limit = self._cuts.pop(0) if self._cuts else None
            self._sockets += [client, server]
            threading.Thread(target=self._pump, args=(client, server, None), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, limit), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, limit: int | None) -> None:
        try:
            while data := source.recv(65536):
                target.sendall(data if limit is None else data[:limit])
                if limit is not None and (limit := limit - len(data)) <= 0:
                    break
        except OSError:
            pass
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.log.server.reading.BATCH_BYTES", 20_000)


@pytest.mark.usefixtures("small_batches")
def test_a_cut_read_goes_on_after_the_last_row(server: LocalServer, logs: Logs) -> None:
    gate = Gate(server.server.port, [100, 0, 50_000, 300_000, 200_001, 3, 400_000])
    log, direct = logs(gate.url), logs(server.url)
    span = only(direct)

    assert offsets(log.messages(span, 0, 20_000)) == list(range(20_000))
    assert gate.connections == 8
    gate.close()


@pytest.mark.usefixtures("small_batches")
def test_a_reader_that_took_its_time_and_was_cut_goes_on(
    server: LocalServer, logs: Logs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server cuts who takes nothing for long: the time that the caller took is not the server's silence."""
    now = 0
    monkeypatch.setattr("penstock.log.http.monotonic", lambda: now)
    gate = Gate(server.server.port, [30_000])
    log = logs(gate.url, timeout=10)
    batches = log.messages(only(logs(server.url)), 0, 20_000)
    first = next(batches)
    now += 11 * SECOND

    assert offsets(iter([first, *batches])) == list(range(20_000))
    assert gate.connections == 2
    gate.close()


def test_a_large_batch_is_sent_in_pieces(server: LocalServer, logs: Logs) -> None:
    log = logs(server.url, compression="zstd")
    log.create_topic("large-batch")
    rows = pa.record_batch({"value": [bytes(3 * 1024 * 1024)] * 30})

    assert log.stage("large-batch", "0", [rows], stream="large-batch").rows == 30


@pytest.mark.usefixtures("small_batches")
def test_a_cut_search_goes_on_too(server: LocalServer, logs: Logs) -> None:
    gate = Gate(server.server.port, [60_000, 100_000])
    log = logs(gate.url)

    assert offsets(log.messages(only(logs(server.url)), 0, 20_000, keys=["k2"])) == list(range(2, 20_000, 5))
    assert gate.connections == 3
    gate.close()


def test_calls_are_tried_again_and_given_up_in_time(server: LocalServer, logs: Logs) -> None:
    gate = Gate(server.server.port, [0, 10, 0])
    assert logs(gate.url).spans(["orders"]).streams[0].latest == 20_000
    gate.close()
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with pytest.raises(ServerUnreachable, match=f"127.0.0.1:{port}"):
        logs(f"http://127.0.0.1:{port}", timeout=0.2).spans()


def test_a_cut_write_is_sent_again(server: LocalServer, logs: Logs) -> None:
    gate = Gate(server.server.port, [0, 0])
    log = logs(gate.url)
    batches = iter([pa.record_batch({"value": ["a"] * 1000})])

    assert log.stage("cut", "p", batches, stream="sink").rows == 1000
    log.abort("cut")
    gate.close()


def test_too_many_reads_are_told_to_come_back(server: LocalServer, monkeypatch: pytest.MonkeyPatch, logs: Logs) -> None:
    with LocalServer(data_dir=None) as small:
        fill(small.broker, "orders", 2000, 20_000)
        monkeypatch.setattr(reading, "MAX_READS", 1)
        log, second = logs(small.url), logs(small.url, timeout=0.3)
        span = only(log)
        held = reading_of(log)
        next(held)
        with pytest.raises(Unavailable, match="reads run already"):
            list(second.messages(span, 0, 10))
        refused = ask(small.url, "GET", "/log/messages?stream=orders")
        assert (refused.status, refused.headers["Retry-After"], refused.error["reason"]) == (503, "1", "too_many_reads")
        held.close()
        assert offsets(log.messages(span, 0, 10)) == list(range(10))


def test_retention_that_overtakes_a_reader_is_an_error_and_no_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logs: Logs
) -> None:
    monkeypatch.setattr("penstock.log.server.reading.BATCH_BYTES", 1_000_000)
    with LocalServer(data_dir=tmp_path) as server:
        fill(server.broker, "orders", 3000, 10_000, at_once=100)
        log = logs(server.url)
        span = only(log)
        read = log.messages(span, 0, 3000, columns=["offset", "value"])
        got = next(read).column("offset").to_pylist()
        stream = server.broker.catalog.topic("orders")
        firsts = [summary.first for summary in server.broker.journal.summaries(stream.number, 0, 2500)]
        server.broker.journal.trim(stream.number, firsts)
        stream.earliest = 2500
        with pytest.raises(OutOfRange) as caught:
            got.extend(offset for batch in read for offset in batch.column("offset").to_pylist())
        assert got == list(range(len(got))), "no gap in what came"
        assert caught.value.stream == "orders"
        assert (caught.value.offset, caught.value.earliest) == (len(got), 2500)


def test_a_stream_that_is_made_again_is_another_one(tmp_path: Path, logs: Logs) -> None:
    with LocalServer(data_dir=tmp_path) as server:
        fill(server.broker, "orders", 10)
        log = logs(server.url)
        span = only(log)
        MessageQueue(broker=server.broker).unregister_topic("orders")
        with pytest.raises(TopicNotFound):
            list(log.messages(span, 0, 10))
        fill(server.broker, "orders", 10)
        with pytest.raises(StreamReplaced, match="deleted and recreated"):
            list(log.messages(span, 0, 10))


def test_a_server_without_the_door_is_told_as_such(logs: Logs) -> None:
    class Plain(threading.Thread):
        def __init__(self) -> None:
            super().__init__(daemon=True)
            self.listener = socket.create_server(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"

        def run(self) -> None:
            client, _ = self.listener.accept()
            client.recv(65536)
            client.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\n\r\nsorry")
            client.close()
            self.listener.close()

    plain = Plain()
    plain.start()
    with pytest.raises(Unimplemented, match="no log API"):
        logs(plain.url).spans()


def test_a_queue_is_written_to_with_its_defaults(server: LocalServer, log: HttpLog) -> None:
    log.stage("jobs", "p", [pa.record_batch({"value": ["do this"]})], stream="queue:jobs")
    log.commit("jobs", ["p"], query="jobs", batch=0)

    job = QueueManager(broker=server.broker).consume("jobs")
    assert job is not None
    assert (job.payload, job.priority) == (b"do this", 5)


def test_publishing_goes_on_while_somebody_reads(server: LocalServer, log: HttpLog) -> None:
    read = reading_of(log)
    next(read)
    assert MessageQueue(broker=server.broker).publish("sink", [Message(b"now")])
    read.close()
