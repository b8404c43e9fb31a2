"""Disks that fail, fill up and forget: at every single call of a run."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from penstock import Broker, DeadLetterPolicy, Message, MessageQueue, QueueConfig, QueueManager, SubscriptionOptions
from penstock.broker import commits
from penstock.errors import JournalUnavailable
from penstock.journal import sqlite
from penstock.journal.sqlite import SqliteJournal
from penstock.testing import FaultyDisk, ManualClock
from penstock.testing.faults import Call

T = TypeVar("T")

ROUNDS = 4
POWER_LOSSES = int(os.environ.get("PENSTOCK_POWER_LOSSES", "1"))
"""How many different halves of what was not synced are tried at each call."""


@pytest.fixture(autouse=True)
def frequent_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short run must pass through everything a long one does."""
    monkeypatch.setattr(commits, "CHECKPOINT_EVENTS", 12)
    monkeypatch.setattr(sqlite, "CHECKPOINT_PAGES", 12)
    monkeypatch.setattr(os, "fsync", lambda file: None)  # the machine stays up; waiting for its disk would prove nothing


class Run:
    """A script of everything a broker does, that goes on when the journal refuses, and knows what was confirmed."""

    def __init__(self, path: Path, vfs: str | None) -> None:
        self.path = path
        self.vfs = vfs
        self.clock = ManualClock()
        self.confirmed: dict[str, list[bytes]] = {"orders": [], "dead": [], "tasks": []}
        self.refused: list[bytes] = []
        self.acked: set[bytes] = set()
        self.disk: FaultyDisk | None = None

    def all(self) -> None:
        broker = self.open()
        for number in range(ROUNDS):
            self.round(broker, number)
            if number == ROUNDS // 2:
                self.close(broker)
                broker = self.open()
        self.close(broker)

    def open(self) -> Broker:
        while True:
            try:
                broker = Broker(journal=SqliteJournal(self.path, vfs=self.vfs), clock=self.clock)
            except JournalUnavailable:
                self.heal()
            else:
                return broker

    def close(self, broker: Broker) -> None:
        try:
            broker.close()
        except JournalUnavailable:
            self.heal()

    def heal(self) -> None:
        assert self.disk is not None, "nothing may fail on a disk that is well"
        assert self.disk.faults, "a refusal has a cause"
        self.disk.heal()

    def round(self, broker: Broker, number: int) -> None:
        queue, manager = MessageQueue(broker=broker), QueueManager(broker=broker)
        self.prepare(queue, manager)
        for keyed in (True, False):
            body = [f"{number}.{keyed}.{index}".encode() * (1 + 40 * index) for index in range(4)]
            keys = ["key-0", "key-1"] if keyed else ["", ""]
            messages = [Message(data=data, ordering_key=keys[index % 2]) for index, data in enumerate(body)]
            self.publish(broker, "orders", body, partial(queue.publish, "orders", messages))
        task = f"task {number}".encode()
        publish = partial(manager.publish, "tasks", task, priority=number, producer_id="p", sequence=number)
        self.publish(broker, "tasks", [task], publish)
        for index, received in enumerate(queue.pull("billing", 6)):
            if index % 3:
                queue.ack(received.ack_id)
                self.acked.add(received.data)
            else:
                queue.nack(received.ack_id)
        if job := manager.consume("tasks"):
            if number % 3:
                manager.ack("tasks", job.message_id)
                self.acked.add(job.payload)
            else:
                manager.nack("tasks", job.message_id, requeue=False)
        self.clock.advance(11)

    def prepare(self, queue: MessageQueue, manager: QueueManager) -> None:
        options = SubscriptionOptions(message_ordering=True, dead_letter_policy=DeadLetterPolicy("dead", 2))
        steps: list[tuple[Callable[[str], bool], str, Callable[[], None]]] = [
            (queue.topic_exists, "orders", lambda: queue.register_topic("orders")),
            (queue.topic_exists, "dead", lambda: queue.register_topic("dead")),
            (queue.subscription_exists, "graves", lambda: queue.register_subscription("graves", "dead")),
            (queue.subscription_exists, "billing", lambda: queue.register_subscription("billing", "orders", options)),
            (manager.exists, "tasks", lambda: manager.create("tasks", QueueConfig())),
        ]
        for exists, name, create in steps:
            while not exists(name):
                try:
                    create()
                except JournalUnavailable:
                    self.heal()
                    wait_until_green(queue.broker)

    def publish(self, broker: Broker, stream: str, body: list[bytes], publish: Callable[[], object]) -> None:
        """Publish; when it is refused, the broker says so, serves on, and takes the same message once the disk is well."""
        try:
            publish()
        except JournalUnavailable:
            self.refused += body
            assert is_red(broker)
            MessageQueue(broker=broker).pull("billing", 1)
            self.heal()
            publish()
            assert not is_red(broker)
        self.confirmed[stream] += body


def is_red(broker: Broker) -> bool:
    return broker.health is not None


def wait_until_green(broker: Broker) -> None:
    """The broker tries again by itself."""
    pause = threading.Event()
    for _ in range(6_000):
        if not is_red(broker):
            return
        pause.wait(0.01)
    pytest.fail("the disk is well, and the broker has not noticed in 60 seconds")


def stored(broker: Broker, name: str) -> list[bytes]:
    """What the log of a topic or work queue holds, in order; fails when its offsets are not dense."""
    catalog = broker.catalog
    stream = catalog.topics[name] if name in catalog.topics else catalog.streams[catalog.work_queue(name).stream]
    found: list[bytes] = []
    for summary, chunk in broker.journal.read(stream.number, 0, 1 << 40):
        assert summary.first == len(found)
        found += [message.data for message in chunk.messages(summary.published_at)]
    assert len(found) == stream.next_offset
    return found


def exists(broker: Broker, name: str) -> bool:
    return name in broker.catalog.topics or name in broker.catalog.work_queues


def in_order(wanted: list[T], found: list[T]) -> bool:
    """Whether `wanted` is in `found`, in its order, with others between perhaps."""
    rest = iter(found)
    return all(one in rest for one in wanted)


def check(path: Path, confirmed: dict[str, list[bytes]], acked: set[bytes]) -> None:
    """Open a directory with a good disk: everything confirmed is stored in order, and what is not acked is still to be had."""
    with FaultyDisk() as disk:
        journal = SqliteJournal(path, vfs=disk.name)
        with Broker(journal=journal, clock=ManualClock()) as broker:
            journal.verify()
            check_content(broker, confirmed, acked)


def check_content(broker: Broker, confirmed: dict[str, list[bytes]], acked: set[bytes]) -> None:
    reachable: list[bytes] = []
    for name, messages in confirmed.items():
        if messages or exists(broker, name):
            found = stored(broker, name)
            assert in_order(messages, found)
    assert isinstance(broker.clock, ManualClock)
    broker.clock.advance(3600)
    queue, manager = MessageQueue(broker=broker), QueueManager(broker=broker)
    for subscription in ("billing", "graves"):
        while queue.subscription_exists(subscription) and (some := queue.pull(subscription, 100)):
            reachable += [one.data for one in some]
            queue.ack_many([one.ack_id for one in some])
    if manager.exists("tasks"):
        reachable += [letter.message.payload for letter in manager.dead_letters("tasks")]
        while job := manager.consume("tasks"):
            reachable.append(job.payload)
            manager.ack("tasks", job.message_id)
    wanted = {one for messages in confirmed.values() for one in messages}
    assert wanted - acked <= set(reachable)
    assert queue.publish("orders", [Message(data=b"after")]) if queue.topic_exists("orders") else True


def test_after_a_power_loss_at_any_call_everything_confirmed_is_there_in_order(tmp_path: Path) -> None:
    data, images = tmp_path / "data", tmp_path / "images"
    images.mkdir()
    moments: list[tuple[Call, Path, dict[str, list[bytes]], set[bytes]]] = []

    def lose_power(call: Call) -> None:
        confirmed = {name: list(messages) for name, messages in run.confirmed.items()}
        for chance in range(POWER_LOSSES):
            image = images / f"{call.number}-{chance}"
            disk.power_loss(data, image, seed=call.number * 1000 + chance)
            moments.append((call, image, confirmed, set(run.acked)))

    with FaultyDisk(lose_power) as disk:
        run = Run(data, disk.name)
        data.mkdir()
        run.all()
        disk.power_loss(data, images / "end", seed=0)
        moments.append((Call(disk.calls + 1, "open", "nothing: the end"), images / "end", run.confirmed, run.acked))

    assert len(moments) > 150
    for call, image, confirmed, acked in moments:
        try:
            check(image, confirmed, acked)
        except BaseException as error:
            error.add_note(f"the power failed before {call}: {image.name}")
            raise


def calls_of_a_run(tmp_path: Path) -> int:
    with FaultyDisk() as disk:
        Run(tmp_path / "count", disk.name).all()
        return disk.calls


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.long) for part in (1, 2, 3))])
def test_an_error_at_any_call_fails_the_publish_or_nothing_and_heals(tmp_path: Path, part: int) -> None:
    """Every call of a run is refused, by turns: once or until healed, EIO or ENOSPC."""
    refused = 0
    for number in range(1 + part, calls_of_a_run(tmp_path) + 1, 4):
        turn = number // 4
        error, times = ("EIO", "ENOSPC")[turn % 2], (1, None)[turn // 2 % 2]
        path = tmp_path / str(number)
        path.mkdir()
        disk = FaultyDisk()
        try:
            with disk:
                run = Run(path / "data", disk.name)
                run.disk = disk
                disk.fail(error, at=number, times=times)
                run.all()
                disk.heal()
                disk.power_loss(path / "data", path / "image", seed=number)
            check(path / "data", run.confirmed, run.acked)
            check(path / "image", run.confirmed, run.acked)
            refused += len(run.refused)
        except BaseException as failure:
            failure.add_note(f"{error} at call {number}, {'once' if times else 'until healed'}: {disk.faults[:3]}")
            raise
    assert refused > 10


@pytest.fixture
def disk() -> Iterator[FaultyDisk]:
    with FaultyDisk() as disk:
        yield disk


@pytest.fixture
def queue(tmp_path: Path, disk: FaultyDisk) -> Iterator[MessageQueue]:
    broker = Broker(journal=SqliteJournal(tmp_path / "data", vfs=disk.name), clock=ManualClock())
    queue = MessageQueue(broker=broker)
    queue.register_topic("orders")
    queue.register_subscription("billing", "orders")
    yield queue
    disk.heal()
    broker.close()


@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
def test_while_the_disk_refuses_consuming_goes_on_and_every_publish_fails(
    queue: MessageQueue, disk: FaultyDisk, error: str
) -> None:
    queue.publish("orders", [Message(data=b"%d" % number) for number in range(10)])
    disk.fail(error)

    for _ in range(3):
        with pytest.raises(JournalUnavailable):
            queue.publish("orders", [Message(data=b"refused")])
    deliveries = queue.pull("billing", 10)
    assert [delivery.data for delivery in deliveries] == [b"%d" % number for number in range(10)]
    assert queue.ack_many([delivery.ack_id for delivery in deliveries[:5]]) == []
    assert is_red(queue.broker)

    disk.heal()
    queue.publish("orders", [Message(data=b"taken")])
    assert not is_red(queue.broker)
    assert [delivery.data for delivery in queue.pull("billing", 10)] == [b"taken"]


def test_health_stays_red_until_something_was_really_written(queue: MessageQueue, disk: FaultyDisk) -> None:
    disk.fail("ENOSPC")
    with pytest.raises(JournalUnavailable):
        queue.publish("orders", [Message(data=b"refused")])

    for _ in range(3):  # the broker tries again by itself, and fails
        tries, pause = len(disk.faults), threading.Event()
        while len(disk.faults) == tries:
            pause.wait(0.01)
        assert is_red(queue.broker)
    disk.heal()
    queue.publish("orders", [Message(data=b"taken")])
    assert not is_red(queue.broker)


def test_a_message_that_dies_while_the_disk_refuses_stops_no_consumer_and_arrives_later(tmp_path: Path, disk: FaultyDisk) -> None:
    clock = ManualClock()
    with Broker(journal=SqliteJournal(tmp_path / "dying", vfs=disk.name), clock=clock) as broker:
        queue = MessageQueue(broker=broker)
        for topic in ("orders", "dead"):
            queue.register_topic(topic)
        queue.register_subscription("graves", "dead")
        options = SubscriptionOptions(dead_letter_policy=DeadLetterPolicy("dead", 1))
        queue.register_subscription("billing", "orders", options)
        queue.publish("orders", [Message(data=data) for data in (b"nacked", b"expires", b"lives")])
        nacked, _ = queue.pull("billing", 2)
        disk.fail("ENOSPC")

        queue.nack(nacked.ack_id)
        clock.advance(11)
        assert [delivery.data for delivery in queue.pull("billing")] == [b"lives"]
        assert queue.stats("billing").dead_lettered_total == 2
        assert is_red(broker)

        disk.heal()
        wait_until_green(broker)
        assert [delivery.data for delivery in queue.pull("graves", 10)] == [b"nacked", b"expires"]


def test_health_turns_green_by_itself_when_there_is_space_again(queue: MessageQueue, disk: FaultyDisk) -> None:
    queue.publish("orders", [Message(data=b"one")])
    disk.fail("ENOSPC")
    with pytest.raises(JournalUnavailable):
        queue.publish("orders", [Message(data=b"refused")])
    queue.ack(queue.pull("billing")[0].ack_id)
    disk.heal()

    wait_until_green(queue.broker)


def test_health_turns_green_by_itself_when_there_is_nothing_to_write(queue: MessageQueue, disk: FaultyDisk) -> None:
    disk.fail("EIO")
    with pytest.raises(JournalUnavailable):
        queue.publish("orders", [Message(data=b"refused")])
    disk.heal()

    wait_until_green(queue.broker)


def test_a_refused_creation_leaves_nothing_and_can_be_repeated(queue: MessageQueue, disk: FaultyDisk) -> None:
    disk.fail("ENOSPC")
    with pytest.raises(JournalUnavailable):
        queue.register_topic("invoices")
    assert not queue.topic_exists("invoices")
    disk.heal()
    wait_until_green(queue.broker)
    queue.register_topic("invoices")


def test_a_mark_that_cannot_be_written_fails_no_publish(queue: MessageQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", refuse)
    done = threading.Event()

    def publish() -> None:
        queue.publish("orders", [Message(data=b"one")])
        done.set()

    threading.Thread(target=publish, daemon=True).start()
    assert done.wait(60), "the publisher waits for a writer that has died"
    monkeypatch.undo()
    assert [delivery.data for delivery in queue.pull("billing")] == [b"one"]


def test_a_broker_that_cannot_write_at_its_end_says_so_and_lets_go_of_the_directory(
    tmp_path: Path, disk: FaultyDisk, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "ending"
    broker = Broker(journal=SqliteJournal(path, vfs=disk.name), clock=ManualClock())
    queue = MessageQueue(broker=broker)
    queue.register_topic("orders")
    queue.register_subscription("billing", "orders")
    queue.publish("orders", [Message(data=b"one")])
    disk.fail("EIO")
    queue.ack(queue.pull("billing")[0].ack_id)
    try:
        broker.close()
    except JournalUnavailable:
        pass
    else:
        assert "cannot write" in caplog.text
    disk.heal()
    with Broker(data_dir=path, clock=ManualClock()) as again:
        assert stored(again, "orders") == [b"one"]


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, bool]]:
    """What is synced past SQLite, and whether the directory had its FORMAT then."""
    seen: list[tuple[Path, bool]] = []
    real = os.fsync

    def note(file: int) -> None:
        path = Path(f"/proc/self/fd/{file}").readlink()
        seen.append((path, (path.parent / "FORMAT").exists()))
        real(file)

    monkeypatch.setattr(os, "fsync", note)
    return seen


def test_the_names_of_new_directories_are_made_durable_too(tmp_path: Path, synced: list[tuple[Path, bool]]) -> None:
    with Broker(data_dir=tmp_path / "a" / "b" / "c"):
        pass
    assert {tmp_path, tmp_path / "a", tmp_path / "a" / "b", tmp_path / "a" / "b" / "c"} <= {path for path, _ in synced}


def test_format_appears_only_when_it_is_whole(tmp_path: Path, synced: list[tuple[Path, bool]]) -> None:
    with Broker(data_dir=tmp_path / "data"):
        pass
    assert [is_there for path, is_there in synced if path.name.startswith("FORMAT")] == [False]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "small"
    path.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", path], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("only root may mount a small file system")
    yield path
    subprocess.run(["umount", path], check=True)


def fill(queue: MessageQueue, confirmed: list[bytes]) -> None:
    for number in range(100):
        body = b"%d" % number + bytes(30_000)
        queue.publish("orders", [Message(data=body)])
        confirmed.append(body)


def test_a_file_system_that_is_really_full_refuses_serves_and_recovers(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    confirmed: list[bytes] = []
    with MessageQueue(data_dir=small_disk / "data", clock=ManualClock()) as queue:
        queue.register_topic("orders")
        queue.register_subscription("billing", "orders")
        ballast.write_bytes(bytes(1024 * 1024))
        with pytest.raises(JournalUnavailable):
            fill(queue, confirmed)
        assert is_red(queue.broker)
        assert [one.data for one in queue.pull("billing", 2)] == confirmed[:2]
        ballast.unlink()
        queue.publish("orders", [Message(data=b"after")])
        assert not is_red(queue.broker)
        confirmed.append(b"after")
    with MessageQueue(data_dir=small_disk / "data", clock=ManualClock()) as queue:
        assert stored(queue.broker, "orders") == confirmed
