"""Damage: every kind is refused with what and where, and nothing is repaired, deleted or taken for a new store."""

from __future__ import annotations

import gc
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest

from penstock import Broker, Message, MessageQueue, QueueManager, SubscriptionOptions
from penstock.errors import CorruptLog, DataDirectoryInUse, InvalidArgument
from penstock.journal.sqlite import SqliteJournal
from penstock.testing import ManualClock

PAGE = 4096
DATABASE, WAL = "penstock.db", "penstock.db-wal"

Damage = Callable[[Path], None]
Content = dict[str, object]


def work(broker: Broker, start: int, count: int) -> None:
    queue, manager = MessageQueue(broker=broker), QueueManager(broker=broker)
    for number in range(start, start + count):
        keyed = Message(data=b"keyed %d " % number + bytes([number % 256]) * 700, attributes={"n": str(number)}, ordering_key="k")
        plain = Message(data=b"plain %d " % number + bytes([number % 256]) * 700)
        queue.publish("orders", [keyed])
        queue.publish("logs", [plain, plain])
        manager.publish("tasks", b"task %d" % number, priority=number % 10)
    for received in queue.pull("billing", count) + queue.pull("search", 4):
        queue.ack(received.ack_id)
    if task := manager.consume("tasks"):
        manager.nack("tasks", task.message_id, requeue=False)
    broker.sync()


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """`closed`: a store after a clean end. `killed`: the same, opened again, with confirmed commits that are only in its -wal."""
    folder = tmp_path_factory.mktemp("stores")
    with Broker(data_dir=folder / "closed", clock=ManualClock()) as broker:
        queue, manager = MessageQueue(broker=broker), QueueManager(broker=broker)
        for topic, subscription in (("orders", "billing"), ("logs", "search")):
            queue.register_topic(topic)
            queue.register_subscription(subscription, topic, SubscriptionOptions(message_ordering=True))
        manager.create("tasks")
        work(broker, 0, 20)
    with Broker(data_dir=folder / "closed", clock=ManualClock()) as broker:
        work(broker, 20, 20)
    shutil.copytree(folder / "closed", folder / "alive")
    with Broker(data_dir=folder / "alive", clock=ManualClock()) as broker:
        work(broker, 40, 20)
        # What a killed process leaves; the index of its -wal, which SQLite makes anew, is left out.
        shutil.copytree(folder / "alive", folder / "killed", ignore=shutil.ignore_patterns("*-shm"))
    assert (folder / "killed" / WAL).stat().st_size > 10 * PAGE
    return {"closed": folder / "closed", "killed": folder / "killed"}


def snapshot(path: Path) -> dict[str, bytes]:
    """Every byte there is, but for LOCK, which says who came last, and the index of the -wal. An empty -wal holds nothing."""
    kept = {one.name: one.read_bytes() for one in path.iterdir() if one.name != "LOCK" and not one.name.endswith("-shm")}
    return {name: data for name, data in kept.items() if data or name != WAL}


def content(path: Path) -> Content:
    """Everything that can be seen in a store."""
    found: Content = {}
    with Broker(data_dir=path, clock=ManualClock()) as broker:
        queue, manager = MessageQueue(broker=broker), QueueManager(broker=broker)
        found["topics"] = queue.get_all_topics()
        found["subscriptions"] = queue.get_all_subscriptions()
        found["queues"] = [(name, manager.config(name)) for name in manager.list()]
        found["dead"] = manager.dead_letters("tasks")
        for name in ("billing", "search"):
            found[f"{name} stats"] = queue.stats(name)
        found["tasks stats"] = manager.stats("tasks")
        for stream in broker.catalog.streams.values():
            found[f"log of {stream.name}"] = [
                (summary, list(chunk.messages(summary.published_at)))
                for summary, chunk in broker.journal.read(stream.number, 0, 1 << 40)
            ]
        found["events"] = list(broker.journal.read_events(0, broker.journal.event_range()[1]))
        for name in ("billing", "search"):
            found[f"{name} deliveries"] = queue.pull(name, 100)
        found["tasks deliveries"] = [manager.consume("tasks", f"c{number}") for number in range(100)]
    return found


def drain(path: Path, delivered: list[bytes]) -> None:
    with MessageQueue(data_dir=path, clock=ManualClock()) as queue:
        while some := queue.pull("search", 10):
            delivered += [one.data for one in some]


def sql(path: Path, statement: str) -> None:
    connection = apsw.Connection(str(path / DATABASE))
    connection.execute(statement)
    connection.close()


def cut(name: str, keep: Callable[[int], int]) -> Damage:
    return lambda path: os.truncate(path / name, keep((path / name).stat().st_size))


def overwrite(name: str, at: Callable[[bytes], int], data: bytes) -> Damage:
    def damage(path: Path) -> None:
        before = (path / name).read_bytes()
        start = at(before)
        assert start >= 0, "the place to damage was not found"
        assert before[start : start + len(data)] != data
        (path / name).write_bytes(before[:start] + data + before[start + len(data) :])

    return damage


def run_sql(statement: str) -> Damage:
    return lambda path: sql(path, statement)


def write(name: str, text: str) -> Damage:
    def damage(path: Path) -> None:
        (path / name).write_text(text)

    return damage


def remove(*names: str) -> Damage:
    def damage(path: Path) -> None:
        for name in names:
            (path / name).unlink()

    return damage


def make_folder(name: str) -> Damage:
    def damage(path: Path) -> None:
        (path / name).unlink()
        (path / name).mkdir()

    return damage


def middle(data: bytes) -> int:
    return len(data) // 2


FLIP = "SET body = CAST(substr(body, 1, length(body) / 2) || x'ff00ff' || substr(body, length(body) / 2 + 4) AS BLOB)"

# name: (which store, what is done to it, what the refusal must mention)
REFUSED_WHEN_OPENED: dict[str, tuple[str, Damage, str]] = {
    "database cut to nothing": ("closed", cut(DATABASE, lambda size: 0), DATABASE),
    "database cut to half": ("closed", cut(DATABASE, lambda size: size // 2), DATABASE),
    "database cut by a page": ("closed", cut(DATABASE, lambda size: size - PAGE), DATABASE),
    "database cut by a byte": ("closed", cut(DATABASE, lambda size: size - 1), DATABASE),
    "database of a killed process cut to nothing": ("killed", cut(DATABASE, lambda size: 0), DATABASE),
    "database of a killed process cut to half": ("killed", cut(DATABASE, lambda size: size // 2 // PAGE * PAGE), DATABASE),
    "database missing": ("closed", remove(DATABASE), DATABASE),
    "database of a killed process missing": ("killed", remove(DATABASE), DATABASE),
    "database and FORMAT missing": ("closed", remove(DATABASE, "FORMAT"), ""),
    "database header overwritten": ("closed", overwrite(DATABASE, lambda data: 0, b"\xee" * 100), DATABASE),
    "database page size overwritten": ("closed", overwrite(DATABASE, lambda data: 16, b"\x00\x03"), ""),
    "database schema overwritten": ("closed", overwrite(DATABASE, lambda data: 100, b"\xee" * (PAGE - 100)), ""),
    "database all zeros": ("closed", write(DATABASE, "\0" * 40 * PAGE), DATABASE),
    "database is text": ("closed", write(DATABASE, "hello\n" * 10_000), DATABASE),
    "database is a folder": ("closed", make_folder(DATABASE), DATABASE),
    "-wal cut to nothing": ("killed", cut(WAL, lambda size: 0), "event"),
    "-wal deleted": ("killed", remove(WAL), "event"),
    "-wal cut in the middle": ("killed", cut(WAL, lambda size: size // 2), "event"),
    "-wal cut by a byte": ("killed", cut(WAL, lambda size: size - 1), "event"),
    "-wal damaged in the middle": ("killed", overwrite(WAL, middle, b"\xee\xdd\xcc\xbb" * 4), "event"),
    "-wal header overwritten": ("killed", overwrite(WAL, lambda data: 0, b"\xee" * 32), "event"),
    "FORMAT missing": ("closed", remove("FORMAT"), "FORMAT"),
    "FORMAT missing after a kill": ("killed", remove("FORMAT"), "FORMAT"),
    "FORMAT empty": ("closed", write("FORMAT", ""), "FORMAT"),
    "FORMAT of something else": ("closed", write("FORMAT", "hello\n"), "FORMAT"),
    "FORMAT is a folder": ("closed", make_folder("FORMAT"), "FORMAT"),
    "meta without a number": ("closed", run_sql("UPDATE meta SET value = 'x' WHERE name = 'format'"), "format"),
    "meta empty": ("closed", run_sql("DELETE FROM meta"), "format"),
    "table chunks dropped": ("closed", run_sql("DROP TABLE chunks"), "tables"),
    "table events dropped": ("closed", run_sql("DROP TABLE events"), "tables"),
    "table meta dropped": ("closed", run_sql("DROP TABLE meta"), "tables"),
    "table checkpoint dropped": ("closed", run_sql("DROP TABLE checkpoint"), "tables"),
    "a column is missing": ("closed", run_sql("ALTER TABLE events RENAME COLUMN crc TO crr"), "crc"),
    "checkpoint body damaged": ("closed", run_sql(f"UPDATE checkpoint {FLIP}"), "checkpoint"),
    "checkpoint of another moment": ("closed", run_sql("UPDATE checkpoint SET events = events - 1"), "checkpoint"),
    "checkpoint from the future": ("closed", run_sql("UPDATE checkpoint SET events = events + 1000"), "checkpoint"),
    "checkpoint empty": ("closed", run_sql("UPDATE checkpoint SET body = x''"), "checkpoint"),
    "checkpoint of another type": ("closed", run_sql("UPDATE checkpoint SET body = 'text'"), "checkpoint"),
    "the last event record gone": (
        "closed",
        run_sql("DELETE FROM events WHERE first = (SELECT max(first) FROM events)"),
        "event",
    ),
    "all event records gone": ("closed", run_sql("DELETE FROM events"), "event"),
    "event record after the checkpoint damaged": (
        "killed",
        run_sql(
            f"UPDATE events {FLIP} WHERE first = (SELECT min(first) FROM events WHERE first > (SELECT events FROM checkpoint))"
        ),
        "event",
    ),
    "event record after the checkpoint gone": (
        "killed",
        run_sql("DELETE FROM events WHERE first = (SELECT min(first) FROM events WHERE first > (SELECT events FROM checkpoint))"),
        "event",
    ),
    "checkpoint gone and older events trimmed": (
        "closed",
        run_sql("DELETE FROM events WHERE first < (SELECT max(first) FROM events); DELETE FROM checkpoint"),
        "event",
    ),
    "keyed message that waits damaged": (
        "killed",
        run_sql(f"UPDATE chunks {FLIP} WHERE position = (SELECT max(position) FROM chunks WHERE keyed)"),
        "offset",
    ),
}


@pytest.fixture
def small_heap() -> Iterator[None]:
    """Leave out of garbage collections what other tests have left, which makes them slow."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("small_heap")
def test_decision_59_damage_is_refused_with_what_and_where_and_nothing_is_touched(
    stores: dict[str, Path], tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for number, (name, (store, damage, mention)) in enumerate(REFUSED_WHEN_OPENED.items()):
        path = tmp_path / f"{number}"
        shutil.copytree(stores[store], path)
        with subtests.test(damage=name):
            damage(path)
            refuses(path, mention)


def refuses(path: Path, mention: str) -> None:
    before = snapshot(path) if all(one.is_file() for one in path.iterdir()) else {}
    for _ in range(2):
        with pytest.raises(CorruptLog) as caught:
            Broker(data_dir=path, clock=ManualClock())
        assert str(path) in str(caught.value)
        assert mention in str(caught.value)
        assert "backup" in (caught.value.hint or "")
        assert (caught.value.transient, caught.value.code) == (False, 15)
        del caught
        gc.collect()
        if before:
            assert snapshot(path) == before


def test_the_stores_that_are_damaged_here_are_good_before(stores: dict[str, Path], tmp_path: Path) -> None:
    for name, store in stores.items():
        shutil.copytree(store, tmp_path / name)
        journal = SqliteJournal(tmp_path / name)
        journal.verify()
        journal.close()
        assert content(tmp_path / name)["billing stats"]


@pytest.mark.parametrize("table", ["chunks", "events"])
def test_decision_59_damaged_bodies_are_found_by_whoever_reads_them_and_by_verify(
    stores: dict[str, Path], tmp_path: Path, table: str
) -> None:
    path = tmp_path / "data"
    shutil.copytree(stores["closed"], path)
    sql(path, f"UPDATE {table} {FLIP} WHERE rowid = (SELECT rowid FROM {table} ORDER BY rowid LIMIT 1 OFFSET 5)")

    journal = SqliteJournal(path)
    with pytest.raises(CorruptLog, match=r"offset|event"):
        journal.verify()
    journal.close()
    with pytest.raises(CorruptLog, match=r"offset|event"):
        content(path)


def test_decision_59_a_message_with_a_damaged_payload_is_never_delivered(stores: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "data"
    shutil.copytree(stores["closed"], path)
    with MessageQueue(data_dir=path, clock=ManualClock()) as queue:
        waiting = queue.peek("search", 100)[-1]
    overwrite(DATABASE, lambda data: data.rfind(waiting.data[:20]) + 3, b"?")(path)

    delivered: list[bytes] = []
    with pytest.raises(CorruptLog, match="offset"):
        drain(path, delivered)
    assert not any(data.endswith(waiting.data[4:]) for data in delivered)


def test_a_waiting_message_that_is_gone_from_the_log_is_not_passed_over(stores: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "data"
    shutil.copytree(stores["closed"], path)
    with Broker(data_dir=path, clock=ManualClock()) as broker:
        number = broker.catalog.topics["logs"].number
    sql(path, f"DELETE FROM chunks WHERE position = (SELECT max(position) FROM chunks WHERE position >> 40 = {number}) - 4")

    with pytest.raises(CorruptLog):
        drain(path, [])


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 15, 19, 29, 32))])
def test_any_flipped_byte_is_noticed_or_harmless(stores: dict[str, Path], tmp_path: Path, seed: int) -> None:
    """Bytes all over the file; whatever can still be read is exactly what was written."""
    rng = random.Random(seed)
    good = tmp_path / "good"
    shutil.copytree(stores["closed"], good)
    expected = content(good)
    original = (stores["closed"] / DATABASE).read_bytes()
    noticed = 0
    for number in range(40):
        path = tmp_path / f"{number}"
        shutil.copytree(stores["closed"], path)
        at, mask = rng.randrange(len(original)), rng.randrange(1, 256)
        overwrite(DATABASE, lambda data, at=at: at, bytes([original[at] ^ mask]))(path)  # type: ignore[misc]
        try:
            found = content(path)
        except CorruptLog:
            noticed += 1
            continue
        except Exception as error:
            error.add_note(f"byte {at} (page {at // PAGE + 1}, {at % PAGE}) ^ {mask:#x}")
            raise
        differing = [name for name in expected if found[name] != expected[name]]
        assert not differing, f"byte {at} (page {at // PAGE + 1}, {at % PAGE}) ^ {mask:#x} changed {differing} silently"
    assert noticed > 5


COLUMNS = [
    *(("chunks", column) for column in ("count", "size", "published_at", "plain", "keyed")),
    *(("events", column) for column in ("count", "at")),
]


def test_the_checksum_covers_every_column(stores: dict[str, Path], tmp_path: Path, subtests: pytest.Subtests) -> None:
    for table, column in COLUMNS:
        path = tmp_path / f"{table}-{column}"
        shutil.copytree(stores["closed"], path)
        third = f"(SELECT rowid FROM {table} ORDER BY rowid LIMIT 1 OFFSET 3)"
        sql(path, f"UPDATE {table} SET {column} = {column} + 1 WHERE rowid = {third}")
        with subtests.test(table=table, column=column), pytest.raises(CorruptLog):
            content(path)


def test_a_data_directory_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    for path in (tmp_path / "file", tmp_path / "file" / "inside"):
        with pytest.raises(InvalidArgument, match="data_dir"):
            Broker(data_dir=path)
    assert (tmp_path / "file").read_text() == "precious"


def test_foreign_files_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.mkdir()
    (path / "README").write_text("precious")
    (path / "folder").mkdir()
    for _ in range(2):
        with Broker(data_dir=path):
            pass
    assert (path / "README").read_text() == "precious"
    assert (path / "folder").is_dir()


@pytest.mark.parametrize("text", ["somebody's notes\n", ""])
def test_a_foreign_database_of_the_same_name_is_not_taken_over(tmp_path: Path, text: str) -> None:
    path = tmp_path / "data"
    path.mkdir()
    if text:
        (path / DATABASE).write_text(text * 100)
    else:
        sql(path, "CREATE TABLE theirs (x); INSERT INTO theirs VALUES (1)")
    before = snapshot(path)

    with pytest.raises(CorruptLog):
        Broker(data_dir=path)
    gc.collect()
    assert snapshot(path) == before


OPEN_AS_NOBODY = """
import os, sys
from penstock import Broker
import penstock.journal.sqlite
from penstock.errors import PenstockError
os.setuid(65534)
for path in sys.argv[1:]:
    try:
        Broker(data_dir=path)
    except PenstockError as error:
        print(path, type(error).__name__, error)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become nobody")
def test_a_directory_that_may_not_be_read_or_written_is_refused(stores: dict[str, Path], tmp_path: Path) -> None:
    for folder in (tmp_path, *list(tmp_path.parents)[:2]):
        folder.chmod(0o755)
    paths = {mode: tmp_path / f"{mode:o}" for mode in (0o000, 0o400, 0o500, 0o555)}
    before = {}
    for mode, path in paths.items():
        shutil.copytree(stores["closed"], path)
        path.chmod(mode)
        before[path] = snapshot(path)

    command = [sys.executable, "-c", OPEN_AS_NOBODY, *map(str, paths.values())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    for path, line in zip(paths.values(), done.stdout.splitlines(), strict=True):
        assert line.count(str(path)) >= 2, "the error names the directory"
        assert snapshot(path) == before[path]


def test_a_lock_file_left_by_a_dead_process_does_not_matter(stores: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "data"
    shutil.copytree(stores["killed"], path)
    (path / "LOCK").write_text("process 999999999\n")

    with Broker(data_dir=path, clock=ManualClock()) as broker:
        assert MessageQueue(broker=broker).pull("billing")


@pytest.fixture
def other_process(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    path = tmp_path / "data"
    program = (
        "import sys; from penstock import Broker; b = Broker(data_dir=sys.argv[1]); print('open', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"open\n"
    yield path, child.pid
    child.communicate()


def test_decision_59_a_directory_open_in_another_process_is_refused_and_its_holder_named(other_process: tuple[Path, int]) -> None:
    path, holder = other_process
    with pytest.raises(DataDirectoryInUse, match=str(holder)) as caught:
        Broker(data_dir=path)
    assert str(path) in str(caught.value)


def test_decision_59_a_second_open_in_the_same_process_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    with MessageQueue(data_dir=tmp_path / "data") as queue:
        queue.register_topic("orders")
        (tmp_path / "link").symlink_to(tmp_path / "data")
        for path in (tmp_path / "data", tmp_path / "data" / ".." / "data", tmp_path / "link"):
            with pytest.raises(DataDirectoryInUse, match=str(os.getpid())):
                Broker(data_dir=path)
        queue.publish("orders", [Message(data=b"still works")])
    with Broker(data_dir=tmp_path / "data"):
        pass
