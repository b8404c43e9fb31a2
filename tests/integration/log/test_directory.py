"""A data directory that is only read: the same rows as its broker gives, with a broker, without one, and after a crash."""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock import Broker, Message, MessageQueue, QueueManager
from penstock.errors import (
    BrokerClosed,
    CorruptLog,
    FailedPrecondition,
    InvalidArgument,
    OutOfRange,
    PenstockError,
    TopicNotFound,
    Unavailable,
    UnsupportedFormat,
)
from penstock.journal import sql_reader
from penstock.log.arrow import DEAD_LETTERS, EVENTS, MESSAGES, event_parts, message_parts, read_events, read_stream
from penstock.log.directory import DirectoryLog
from penstock.log.log import Log, StreamSpan
from penstock.testing import ManualClock

NOBODY = 65_534


def filled(path: Path, count: int = 30) -> None:
    """A directory with a topic, a subscription, a queue, and a dead letter."""
    with Broker(clock=ManualClock(), data_dir=path) as broker:
        use(broker, count)


def use(broker: Broker, count: int = 30) -> None:
    queue, queues = MessageQueue(broker=broker), QueueManager(broker=broker)
    queue.register_topic("orders")
    queue.register_subscription("billing", "orders")
    queues.create("tasks")
    for number in range(count):
        queue.publish("orders", [Message(f"{number} {each}".encode(), ordering_key=f"k{each}") for each in range(3)])
    queues.publish("tasks", "dies")
    message = queues.consume("tasks")
    assert message is not None
    queues.nack("tasks", message.message_id, requeue=False)
    for delivery in queue.pull("billing", 10):
        queue.ack(delivery.ack_id)


def contents(log: Log) -> tuple[dict[str, pa.Table], pa.Table, pa.Table]:
    """Everything that a log holds."""
    found = log.spans()
    streams = {
        span.stream: pa.Table.from_batches(log.messages(span, span.earliest, span.latest), MESSAGES) for span in found.streams
    }
    within = found.events.earliest, found.events.latest
    return (
        streams,
        pa.Table.from_batches(log.events(*within), EVENTS),
        pa.Table.from_batches(log.dead_letters(*within), DEAD_LETTERS),
    )


def files(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


# ── the same rows ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_it_gives_what_the_broker_gives(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path) as broker:
        use(broker)
        broker.sync()
        with DirectoryLog(tmp_path) as log:
            streams, events, dead = contents(log)
        assert streams.keys() == {"orders", "queue:tasks"}
        for name, rows in streams.items():
            assert rows.equals(pa.Table.from_batches(read_stream(broker, name)))
            rows.validate(full=True)
        assert events.equals(pa.Table.from_batches(read_events(broker)))
        assert dead["value"].to_pylist() == [b"dies"]
        assert dead["stream"].to_pylist() == ["queue:tasks"]


def test_it_sees_what_is_written_meanwhile(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path) as broker, DirectoryLog(tmp_path) as log:
        assert log.spans().streams == []
        queue = MessageQueue(broker=broker)
        for number in range(20):
            queue.register_topic(f"t{number}")
            queue.publish(f"t{number}", [Message(b"x")] * (number + 1))
            spans = log.spans([f"t{number}"])
            assert [(span.earliest, span.latest) for span in spans.streams] == [(0, number + 1)]
            assert spans.events.latest == broker.journal.event_range()[1]
        queue.unregister_topic("t7")
        assert len(log.spans().streams) == 19
        with pytest.raises(TopicNotFound):
            log.spans(["t7"])


def test_one_that_was_away_for_long_begins_again_at_the_checkpoint(tmp_path: Path) -> None:
    clock = ManualClock()
    with Broker(clock=clock, data_dir=tmp_path) as broker, DirectoryLog(tmp_path) as log:
        queue = MessageQueue(broker=broker)
        queue.register_topic("orders")
        assert [span.stream for span in log.spans().streams] == ["orders"]
        queue.unregister_topic("orders")
        queue.register_topic("users")
        for _ in range(3):
            clock.advance(30 * 86_400)
            broker.journal.checkpoint(broker.catalog.state())
            queue.publish("users", [Message(b"x")])
            broker.sync()
        assert broker.journal.event_range()[0] > 2
        assert [(span.stream, span.latest) for span in log.spans().streams] == [("users", 3)]
        broker.close()  # the journal announces what leaves before it is gone, and now it is
        assert log.spans().events.earliest == broker.journal.event_range()[0]


def test_events_and_dead_letters_of_some_streams(tmp_path: Path) -> None:
    filled(tmp_path)
    with DirectoryLog(tmp_path) as log:
        latest = log.spans().events.latest
        found = pa.Table.from_batches(log.events(0, latest, streams=["queue:tasks"]))
        assert set(found["stream"].to_pylist()) == {"queue:tasks"}
        assert found["kind"].to_pylist() == ["queue_created", "published", "leased", "dead_lettered"]
        assert list(log.dead_letters(0, latest, streams=["orders"])) == []
        with pytest.raises(TopicNotFound, match="missing"):
            log.events(0, latest, streams=["orders", "missing"])


def test_projects_are_kept_apart(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path) as broker:
        queue = MessageQueue(broker=broker)
        for name in ("orders", "shop/orders", "shop/users"):
            queue.register_topic(name)
            queue.publish(name, [Message(name.encode())])
    with DirectoryLog(tmp_path) as log:
        assert [span.stream for span in log.spans().streams] == ["orders"]
        assert set(contents(log)[1]["stream"].to_pylist()) == {"orders", "shop/orders", "shop/users"}
    with DirectoryLog(tmp_path, project="shop") as log:
        streams, events, _ = contents(log)
        assert {name: rows["value"].to_pylist() for name, rows in streams.items()} == {
            "orders": [b"shop/orders"],
            "users": [b"shop/users"],
        }
        assert events["stream"].to_pylist() == ["orders", "orders", "users", "users"]
    with DirectoryLog(tmp_path, project="nobody") as log:
        assert log.spans().streams == []
    with pytest.raises(InvalidArgument, match="project"):
        DirectoryLog(tmp_path, project="a/b")


# ── without a broker, and where nothing may be written ───────────────────────────────────────────────────────────────────


def crashed(origin: Path, copy: Path) -> None:
    """What a broker that ended without a word leaves: the write-ahead log still holds all of it."""
    with Broker(data_dir=origin) as broker:
        use(broker)
        broker.sync()
        shutil.copytree(origin, copy)
    assert (copy / "penstock.db-wal").stat().st_size > 0


def closed(origin: Path, copy: Path) -> None:
    filled(origin)
    shutil.copytree(origin, copy)
    assert not (copy / "penstock.db-wal").exists()


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory that everybody may enter, which pytest's own is not."""
    path = Path(tempfile.mkdtemp())
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@contextmanager
def unwritable(path: Path) -> Iterator[None]:
    """A data directory that this process may read and not write, also when it runs as root."""
    for file in path.iterdir():
        file.chmod(0o444)
    path.chmod(0o555)
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(NOBODY)
    try:
        with pytest.raises(OSError, match="denied"):
            (path / "try").touch()
        yield
    finally:
        if is_root:
            os.seteuid(0)
        path.chmod(0o755)


@pytest.mark.parametrize("left", [closed, crashed])
def test_without_a_broker_everything_is_there_and_nothing_changes(tmp_path: Path, left: type) -> None:
    left(tmp_path / "origin", tmp_path / "data")
    before = files(tmp_path / "data")
    with DirectoryLog(tmp_path / "data") as log:
        streams, events, dead = contents(log)
        assert log.spans() == log.spans()
    assert streams["orders"].num_rows == 90
    assert events["kind"].to_pylist().count("acked") == 10
    assert dead.num_rows == 1
    after = files(tmp_path / "data")
    beside = {"penstock.db-shm", "penstock.db-wal"}
    assert {name: body for name, body in after.items() if name not in beside} == {
        name: body for name, body in before.items() if name not in beside
    }
    assert after.get("penstock.db-wal", b"") == before.get("penstock.db-wal", b"")
    with Broker(data_dir=tmp_path / "data") as broker:
        assert sum(batch.num_rows for batch in read_stream(broker, "orders")) == 90


@pytest.mark.parametrize("left", [closed, crashed])
def test_a_directory_that_cannot_be_written_is_read(shared: Path, left: type) -> None:
    left(shared / "origin", shared / "data")
    before = files(shared / "data")
    with unwritable(shared / "data"), DirectoryLog(shared / "data") as log:
        for _ in range(2):
            streams, events, _ = contents(log)
            assert streams["orders"].num_rows == 90
            assert events["kind"].to_pylist().count("acked") == 10
    assert files(shared / "data") == before


def test_where_a_part_of_the_log_cannot_be_read_nothing_is_left_out_in_silence(shared: Path) -> None:
    crashed(shared / "origin", shared / "data")
    (shared / "data" / "penstock.db-shm").unlink()
    with unwritable(shared / "data"), pytest.raises(FailedPrecondition, match=r"penstock\.db-wal holds a part of the log"):
        DirectoryLog(shared / "data")


def test_a_broker_that_opens_a_still_directory_is_noticed(shared: Path) -> None:
    closed(shared / "origin", shared / "data")
    with unwritable(shared / "data"), DirectoryLog(shared / "data") as log:
        span = log.spans().streams[0]
        lock = os.open(shared / "data" / "LOCK", os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            with pytest.raises(Unavailable, match="a broker has opened it"):
                list(log.messages(span, span.earliest, span.latest))
        finally:
            os.close(lock)
        assert sum(batch.num_rows for batch in log.messages(span, span.earliest, span.latest)) == span.latest


def test_a_broker_may_start_and_stop_while_it_is_read(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path) as broker:
        use(broker)
    with DirectoryLog(tmp_path) as log:
        for life in range(3):
            with Broker(data_dir=tmp_path) as broker:
                MessageQueue(broker=broker).publish("orders", [Message(b"again")])
                assert log.spans(["orders"]).streams[0].latest == 91 + life
            assert contents(log)[0]["orders"].num_rows == 91 + life


# ── what goes wrong ──────────────────────────────────────────────────────────────────────────────────────────────────────


def no_format(path: Path) -> None:
    (path / "FORMAT").unlink()
    (path / "high-water").unlink()


def lost_format(path: Path) -> None:
    (path / "FORMAT").unlink()


def another_format(path: Path) -> None:
    (path / "FORMAT").write_text("penstock data directory, format 2\n")


def no_database(path: Path) -> None:
    (path / "penstock.db").unlink()


def empty_database(path: Path) -> None:
    (path / "penstock.db").write_bytes(b"")


def cut_database(path: Path) -> None:
    with (path / "penstock.db").open("r+b") as file:
        file.truncate(4_096)


def other_database(path: Path) -> None:
    (path / "penstock.db").unlink()
    with sqlite3.connect(path / "penstock.db") as database:
        database.execute("CREATE TABLE t (a)")
    database.close()


def flipped(table: str, column: str = "body") -> object:
    def damage(path: Path) -> None:
        with sqlite3.connect(path / "penstock.db") as database:
            database.execute(f"UPDATE {table} SET {column} = CAST(zeroblob(length({column})) AS BLOB)")
        database.close()

    damage.__name__ = f"flipped_{table}"
    return damage


def no_event(path: Path) -> None:
    """The last event of the checkpoint is there; those since have a hole."""
    with sqlite3.connect(path / "penstock.db") as database:
        database.execute("DELETE FROM checkpoint")
        database.execute("DELETE FROM events WHERE first = 6")
    database.close()


@pytest.mark.parametrize(
    ("damage", "error", "text"),
    [
        (no_format, InvalidArgument, "with the file FORMAT in it"),
        (lost_format, CorruptLog, "FORMAT: the file is missing"),
        (another_format, UnsupportedFormat, "format 2 of a newer version"),
        (no_database, CorruptLog, r"penstock\.db: the file is missing"),
        (empty_database, CorruptLog, "no database begins here"),
        (cut_database, CorruptLog, "cut short"),
        (other_database, CorruptLog, "tables are missing"),
        (flipped("meta", "value"), CorruptLog, "format is"),
        (flipped("checkpoint"), CorruptLog, "the checkpoint: the checksum does not fit"),
        (flipped("chunks"), CorruptLog, "offsets 0 to 2 of stream 1: the checksum does not fit"),
        (flipped("events"), CorruptLog, "the checksum does not fit"),
        (no_event, CorruptLog, "event 6: the event is not in the log"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_damage_is_told_and_nothing_is_repaired(tmp_path: Path, damage: type, error: type[PenstockError], text: str) -> None:
    filled(tmp_path)
    damage(tmp_path)
    before = {name: body for name, body in files(tmp_path).items() if not name.endswith(("-shm", "-wal"))}
    with pytest.raises(error, match=text), DirectoryLog(tmp_path) as log:
        contents(log)
    assert {name: body for name, body in files(tmp_path).items() if not name.endswith(("-shm", "-wal"))} == before


def test_what_is_no_data_directory_is_refused(tmp_path: Path, subtests: pytest.Subtests) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    cases: list[tuple[Any, str]] = [
        (tmp_path / "missing", "but it does not exist"),
        (tmp_path / "file", "this is a file"),
        (tmp_path / "empty", "with the file FORMAT in it"),
        ("", "path"),
        (7, "path"),
        (None, "path"),
        (tmp_path / "a\0b", "path"),
    ]
    for path, text in cases:
        with subtests.test(path=path), pytest.raises(InvalidArgument, match=text):
            DirectoryLog(path)
    assert sorted(file.name for file in tmp_path.rglob("*")) == ["empty", "file"]


def test_a_range_that_is_not_there_is_refused_at_once(tmp_path: Path, subtests: pytest.Subtests) -> None:
    filled(tmp_path)
    cases: list[tuple[Any, Any, type[PenstockError]]] = [
        (0, 91, OutOfRange),
        (-1, 5, OutOfRange),
        (5, 4, OutOfRange),
        (91, 91, OutOfRange),
        ("0", 5, InvalidArgument),
        (0, 5.0, InvalidArgument),
        (0, None, InvalidArgument),
    ]
    with DirectoryLog(tmp_path) as log:
        [span] = log.spans(["orders"]).streams
        beyond = log.spans().events.latest + 1
        for start, stop, error in cases:
            with subtests.test(start=start, stop=stop):
                with pytest.raises(error):
                    log.messages(span, start, stop)
                first, last = (beyond if bound == 91 else bound for bound in (start, stop))
                with pytest.raises(error):
                    log.events(first, last)
                with pytest.raises(error):
                    log.dead_letters(first, last)
        with pytest.raises(InvalidArgument, match="columns"):
            log.messages(span, 0, 1, columns=["offset", "nonsense"])
        with pytest.raises(FailedPrecondition, match="deleted and recreated"):
            log.messages(StreamSpan("orders", 99, 0, 5, 0), 0, 5)


def test_retention_that_overtakes_a_reader_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_reader, "FETCH_ROWS", 2)
    with Broker(data_dir=tmp_path) as broker:
        queue = MessageQueue(broker=broker)
        queue.register_topic("orders")
        for _ in range(8):
            queue.publish("orders", [Message(b"x" * 10)] * 10)
        with DirectoryLog(tmp_path) as log:
            [span] = log.spans(["orders"]).streams
            parts = message_parts(log._view, span, 0, 80, batch_rows=1)
            assert next(parts)[1] == 10
            broker.journal.trim(span.number, [20, 30, 40])
            assert next(parts)[1] == 20
            with pytest.raises(OutOfRange) as caught:
                next(parts)
            error = caught.value
            assert (error.stream, error.offset, error.earliest, error.latest) == ("orders", 20, 50, 80)
            assert log.spans(["orders"]).streams[0].earliest == 50
    with Broker(data_dir=tmp_path) as broker:
        assert broker.catalog.topics["orders"].earliest == 50, "a restart knows the hole as well"


def test_events_that_leave_while_they_are_read_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_reader, "FETCH_ROWS", 2)
    clock = ManualClock()
    with Broker(clock=clock, data_dir=tmp_path) as broker:
        queue = MessageQueue(broker=broker)
        queue.register_topic("orders")
        for _ in range(8):
            clock.advance(1)
            queue.publish("orders", [Message(b"x")])
        with DirectoryLog(tmp_path) as log:
            parts = event_parts(log._view, 0, 9, batch_rows=1)
            assert next(parts)[1] == 1
            broker.journal.checkpoint(broker.catalog.state())
            broker.journal.trim_events(clock.now() - 3_000_000)
            earliest = broker.journal.event_range()[0]
            with pytest.raises(OutOfRange, match=r"_penstock\.events") as caught:
                list(parts)
            assert caught.value.earliest == earliest == 5
            assert caught.value.offset < earliest


def test_a_reader_that_pauses_keeps_nothing_from_being_tidied_up(tmp_path: Path) -> None:
    with Broker(data_dir=tmp_path) as broker:
        use(broker, 300)
        with DirectoryLog(tmp_path) as log:
            [span] = log.spans(["orders"]).streams
            batches = log.messages(span, 0, span.latest)
            next(batches)
            events = log.events(0, 100)
            next(events)
            with sqlite3.connect(tmp_path / "penstock.db") as database:
                busy, _, _ = database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            database.close()
            assert busy == 0, "no reader holds a transaction"


def test_it_may_be_closed_twice_and_is_then_over(tmp_path: Path) -> None:
    filled(tmp_path)
    log = DirectoryLog(tmp_path)
    log.close()
    log.close()
    with pytest.raises(BrokerClosed):
        log.spans()
