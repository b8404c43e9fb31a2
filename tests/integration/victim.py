"""A process that publishes and consumes until it is killed, and notes in a file what it was told and what it got.

    python -m tests.integration.victim PLACE NOTES_DIR LIFE SEED

PLACE is a data directory or the address of a PostgreSQL database, which may be cut off under it.

Notes are single writes of a line of JSON to a file of its own: what was written before SIGKILL survives it.

    ["ready"]                        the broker is open
    ["intent", stream, payload]      about to be published
    ["confirmed", stream, payload, id]
    ["refused", stream, payload]     the journal could not write, and nothing was stored
    ["unknown", stream, payload]     it was stored, or not
    ["delivered", queue, payload, key, id]      written before the ack
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from penstock import Broker, Message, MessageQueue, QueueConfig, QueueManager, SubscriptionOptions
from penstock.broker import commits
from penstock.clock import Clock
from penstock.errors import InvalidAckId, JournalUnavailable, JournalUncertain, LogInUse, MessageNotFound, Unavailable
from penstock.journal import sqlite
from penstock.journal.journal import is_database

KEYS = 16
PRODUCERS = 3
FAITHFUL = 2
"""Producers that number their messages and repeat what was not confirmed."""
CONSUMERS = 2


PAUSE = threading.Event()
"""Never set: something to wait for."""

T = TypeVar("T")


class Notes:
    """The file of one life."""

    def __init__(self, folder: Path, life: int) -> None:
        self._file = os.open(folder / f"{life:05}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, *fields: str | int) -> None:
        os.write(self._file, json.dumps(fields).encode() + b"\n")

    def outcome(self, stream: str, payloads: list[str], publish: Callable[[], T]) -> T | None:
        """What a publish returns; None if it was refused, or nobody knows whether it is stored."""
        try:
            return publish()
        except JournalUncertain:
            kind = "unknown"
        except JournalUnavailable:
            kind = "refused"
        for payload in payloads:
            self.write(kind, stream, payload)
        PAUSE.wait(0.02)
        return None


def read_notes(folder: Path) -> Iterator[list[str]]:
    """The notes of all lives, in order; a last line that was cut by the kill is left out."""
    for path in sorted(folder.iterdir()):
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                yield json.loads(line)


def faithful_payload(producer: int, sequence: int) -> str:
    return f"faithful-{producer} {sequence}"


def next_sequence(folder: Path, producer: int) -> int:
    """The first sequence number that was never confirmed."""
    prefix = f'["confirmed", "orders", "faithful-{producer} '
    for path in sorted(folder.iterdir(), reverse=True):
        text = path.read_text()
        found = text.rfind(prefix)
        if found >= 0:
            return int(text[found + len(prefix) :].split('"')[0]) + 1
    return 0


def publish_topic(queue: MessageQueue, notes: Notes, producer: int, life: int, rng: random.Random) -> None:
    """Keyed and unkeyed messages, one by one and in batches; a key belongs to one producer."""
    numbers = itertools.count()
    while True:
        messages = []
        for _ in range(1 if rng.random() < 0.5 else rng.randrange(2, 9)):
            key = f"{producer}-{rng.randrange(KEYS)}" if rng.random() < 0.7 else ""
            payload = f"{producer} {life} {next(numbers)}"
            notes.write("intent", "orders", payload)
            messages.append(Message(data=payload.encode() + b" " * rng.randrange(400), ordering_key=key))
        payloads = [message.data.decode().rstrip() for message in messages]
        ids = notes.outcome("orders", payloads, functools.partial(queue.publish, "orders", messages))
        for payload, message_id in zip(payloads, ids or [], strict=ids is not None):
            notes.write("confirmed", "orders", payload, message_id)


def publish_faithfully(queue: MessageQueue, notes: Notes, producer: int, first: int) -> None:
    for sequence in itertools.count(first):
        payload = faithful_payload(producer, sequence)
        notes.write("intent", "orders", payload)
        message = Message(
            data=payload.encode(), ordering_key=f"faithful-{producer}", producer_id=f"faithful-{producer}", sequence=sequence
        )
        publish = functools.partial(queue.publish, "orders", [message])
        while (ids := notes.outcome("orders", [payload], publish)) is None:
            pass  # a repeat of what was stored is not stored twice
        notes.write("confirmed", "orders", payload, ids[0])


def publish_tasks(manager: QueueManager, notes: Notes, life: int, rng: random.Random) -> None:
    for number in itertools.count():
        payload = f"task {life} {number}"
        notes.write("intent", "tasks", payload)
        result = notes.outcome(
            "tasks", [payload], functools.partial(manager.publish, "tasks", payload, priority=rng.randrange(10))
        )
        if result is not None:
            notes.write("confirmed", "tasks", payload, result.message_id)


def consume_subscription(queue: MessageQueue, notes: Notes, name: str, rng: random.Random, pause: threading.Event) -> None:
    while True:
        try:
            deliveries = queue.pull(name, rng.randrange(1, 20))
        except Unavailable:  # the database is away, and the message is not in memory
            deliveries = []
        for delivery in deliveries:
            notes.write("delivered", name, delivery.data.decode().rstrip(), delivery.ordering_key or "", delivery.id)
            try:
                if rng.random() < 0.1:
                    queue.nack(delivery.ack_id)
                else:
                    queue.ack(delivery.ack_id)
            except InvalidAckId:
                continue
        if not deliveries:
            pause.wait(0.002)


def consume_tasks(manager: QueueManager, notes: Notes, consumer: str, rng: random.Random) -> None:
    while True:
        try:
            task = manager.consume("tasks", consumer, timeout=1, ack_deadline=1)
        except Unavailable:
            task = None
        if task is not None:
            notes.write("delivered", "tasks", task.payload, "", task.message_id)
            try:
                if rng.random() < 0.1:
                    manager.nack("tasks", task.message_id, requeue=rng.random() < 0.7)
                else:
                    manager.ack("tasks", task.message_id)
            except MessageNotFound:
                continue


def die(trouble: threading.ExceptHookArgs) -> None:
    """A thread that fails ends the process, which its parent notices."""
    os.write(2, f"{trouble.thread}: {trouble.exc_value!r}\n".encode())
    os._exit(3)


def open_broker(place: str, clock: Clock | None = None) -> Broker:
    """The broker of a place, as soon as its owner before is gone."""
    if not is_database(place):
        return Broker(data_dir=place, clock=clock)
    from penstock.journal.postgres import PostgresJournal  # psycopg is an extra

    for _ in range(600):
        with suppress(LogInUse, Unavailable):
            return Broker(journal=PostgresJournal(place), clock=clock)
        PAUSE.wait(0.1)
    raise TimeoutError("the owner before is not gone")


def main(place: str, notes_dir: Path, life: int, seed: int) -> None:
    commits.CHECKPOINT_EVENTS = 300
    sqlite.CHECKPOINT_PAGES = 40
    rng = random.Random(seed)
    firsts = [next_sequence(notes_dir, producer) for producer in range(FAITHFUL)]
    notes = Notes(notes_dir, life)
    broker = open_broker(place)
    queue, manager = MessageQueue(broker=broker), QueueManager(broker=broker)
    if not queue.topic_exists("orders"):
        queue.register_topic("orders")
    for name, is_ordered in (("billing", True), ("audit", False)):
        if not queue.subscription_exists(name):
            queue.register_subscription(name, "orders", SubscriptionOptions(message_ordering=is_ordered))
    if not manager.exists("tasks"):
        manager.create("tasks", QueueConfig(max_retries=3))
    notes.write("ready", os.getpid())

    def seeded() -> random.Random:
        return random.Random(rng.getrandbits(32))

    pause = threading.Event()
    jobs: list[tuple[Callable[..., None], tuple[object, ...]]] = [
        *((publish_topic, (queue, notes, producer, life, seeded())) for producer in range(PRODUCERS)),
        *((publish_faithfully, (queue, notes, producer, first)) for producer, first in enumerate(firsts)),
        (publish_tasks, (manager, notes, life, seeded())),
        *((consume_subscription, (queue, notes, "billing", seeded(), pause)) for _ in range(CONSUMERS)),
        (consume_subscription, (queue, notes, "audit", seeded(), pause)),
        *((consume_tasks, (manager, notes, f"worker-{number}", seeded())) for number in range(CONSUMERS)),
    ]
    threads = [threading.Thread(target=job, args=arguments) for job, arguments in jobs]
    threading.excepthook = die
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
