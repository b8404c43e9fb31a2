"""Redrives over the log API: each dead letter goes back at most once for a redrive, in order, whatever is killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from penstock import DeadLetterPolicy, Message, MessageQueue, QueueManager, SubscriptionOptions
from penstock.access import Keyring, Verb
from penstock.clock import SystemClock
from penstock.errors import InvalidArgument, NotFound, PermissionDenied
from penstock.log.http import HttpLog
from penstock.pipeline.core.redrive import Letter, ordered
from penstock.sync import PubSub
from penstock.testing.server import LocalServer
from tests.integration.log.test_log_api_kill import Server, running

KILLS = int(os.environ.get("PENSTOCK_REDRIVE_KILLS", "3"))
LETTERS, RATE = 300, 400


class Place:
    """A server in this process, and its log."""

    def __init__(self, server: LocalServer) -> None:
        self.server = server
        self.queues = QueueManager(broker=server.broker)
        self.topics = MessageQueue(broker=server.broker)
        self.log = HttpLog(server.url)

    def kill(self, queue: str, count: int) -> list[str]:
        """Make the next messages of a queue dead letters; their ids."""
        ids = []
        for _ in range(count):
            message = self.queues.consume(queue)
            assert message is not None
            self.queues.nack(queue, message.message_id, requeue=False, error="no")
            ids.append(message.message_id)
        return ids


@pytest.fixture
def place() -> Iterator[Place]:
    with LocalServer() as server:
        here = Place(server)
        here.queues.create("jobs")
        for number in range(3):
            here.queues.publish("jobs", str(number))
        yield here
        here.log.close()


def letters(log: HttpLog) -> list[Letter]:
    """The last death of each message, as a redrive orders them."""
    events = log.spans().events
    table = pa.Table.from_batches(log.dead_letters(events.earliest, events.latest)).to_pylist()
    found = [
        Letter(row["stream"], row["subscription"], row["message_offset"], row["message_id"], round(row["at"].timestamp() * 1e6))
        for row in table
    ]
    return ordered(found, None)


def named(found: list[Letter]) -> list[tuple[str, int]]:
    return [(letter.message_id, letter.died_at) for letter in found]


def test_a_letter_goes_back_once_for_a_redrive_also_when_it_dies_again(place: Place) -> None:
    ids = place.kill("jobs", 3)
    found = letters(place.log)
    assert [letter.message_id for letter in found] == ids

    done = place.log.redrive("first", "queue:jobs", named(found[:2]))
    assert (done.redriven, done.is_repeat) == (2, False)
    assert place.kill("jobs", 2) == ids[:2], "in the order of publishing"

    again = place.log.redrive("first", "queue:jobs", named(found[:2]))
    assert (again.redriven, again.is_repeat) == (2, True)
    rest = place.log.redrive("first", "queue:jobs", named(found))
    assert (rest.redriven, rest.is_repeat) == (3, False)
    assert place.kill("jobs", 1) == ids[2:]

    assert place.log.redrive("second", "queue:jobs", named(found)).redriven == 0, "these deaths are over"
    assert place.log.redrive("third", "queue:jobs", named(letters(place.log))).redriven == 3
    assert place.log.redrive("third", "queue:jobs", []).redriven == 3


def test_a_letter_of_a_subscription_goes_back_to_that_subscription_only(place: Place) -> None:
    for name in ("orders", "failed"):
        place.topics.register_topic(name)
    options = SubscriptionOptions(dead_letter_policy=DeadLetterPolicy("failed", 1))
    place.topics.register_subscription("billing", "orders", options)
    place.topics.register_subscription("shipping", "orders")
    place.topics.register_subscription("late", "failed")
    place.topics.publish("orders", [Message(b"1")])
    (received,) = place.topics.pull("billing", 1)
    place.topics.nack(received.ack_id)
    (other,) = place.topics.pull("shipping", 1)
    place.topics.ack(other.ack_id)
    (letter,) = letters(place.log)
    assert letter.source == "subscription:billing"

    assert place.log.redrive("r", letter.source, named([letter])).redriven == 1

    (again,) = place.topics.pull("billing", 1)
    assert again.id == received.id
    assert place.topics.pull("shipping", 1) == []
    assert place.log.redrive("s", letter.source, named([letter])).redriven == 0, "it is on its way"


def test_the_first_note_of_a_redrive_is_kept(place: Place) -> None:
    assert place.log.begin_redrive("r", "first") == "first"
    assert place.log.begin_redrive("r", "second") == "first"


def test_what_cannot_be_redriven_is_named(place: Place, subtests: pytest.Subtests) -> None:
    place.kill("jobs", 2)
    first, second = named(letters(place.log))
    place.queues.create("other")
    cases: list[tuple[str, list[tuple[str, int]], type[Exception], str]] = [
        ("queue:none", [first], NotFound, "none"),
        ("jobs", [first], InvalidArgument, "queue:NAME"),
        ("queue:other", [first], InvalidArgument, "ids of messages of the queue"),
        ("queue:jobs", [("x", 1)], InvalidArgument, "'x'"),
        ("queue:jobs", [second, first], InvalidArgument, "order of publishing"),
        ("queue:jobs", [first, first], InvalidArgument, "each once"),
    ]
    for source, given, kind, said in cases:
        with subtests.test(source=source, letters=given), pytest.raises(kind, match=said):
            place.log.redrive("r", source, given)
    assert len(place.queues.dead_letters("jobs")) == 2


def test_only_those_who_manage_a_queue_redrive_it(tmp_path: Path) -> None:
    keyring = Keyring(tmp_path / "tokens.json")
    make: Callable[..., str] = lambda *verbs, **limits: keyring.create("t", SystemClock().now(), verbs=verbs, **limits)  # noqa: E731
    manager, other, reader = make(Verb.MANAGE), make(Verb.MANAGE, patterns=["x*"]), make(Verb.READ, Verb.CONSUME, Verb.PUBLISH)
    with LocalServer(auth="token", token_file=tmp_path / "tokens.json") as server:
        place = Place(server)
        place.queues.create("jobs")
        place.queues.publish("jobs", "1")
        (name,) = place.kill("jobs", 1)
        died_at = int(place.queues.dead_letters("jobs")[0].dead_lettered_at.timestamp() * 1_000_000 + 0.5)
        for token in (other, reader):
            with HttpLog(server.url, token=token) as log, pytest.raises(PermissionDenied):
                log.redrive("r", "queue:jobs", [(name, died_at)])
        with HttpLog(server.url, token=reader) as log, pytest.raises(PermissionDenied):
            log.begin_redrive("r", "note")
        with HttpLog(server.url, token=manager) as log:
            assert log.begin_redrive("r", "note") == "note"
            assert log.redrive("r", "queue:jobs", [(name, died_at)]).redriven == 1
        with HttpLog(server.url, token=other) as log, pytest.raises(PermissionDenied, match="redrive r"):
            log.begin_redrive("r", "note")


# ── kill -9 ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def die(log: HttpLog, keys: dict[str, str], seen: dict[str, list[int]]) -> None:
    """Take all that waits, in order, and make dead letters of it again."""
    while (batch := log.leases("reaper", "subscription:billing", rows=10_000)).rows:
        assert batch.fresh, "what it made a dead letter stays one"
        found = [row for part in log.leased("reaper", batch.batch, batch.cuts[0], batch.cuts[-1]) for row in part.to_pylist()]
        found.sort(key=lambda row: row["position"])
        for row in found:
            seen.setdefault(keys[row["message_id"]], []).append(row["offset"])
        dead: dict[str, Any] = {"offsets": [row["offset"] for row in found], "error": "again"}
        log.settle("reaper", batch.batch, {"dead": [dead]})


def redriven(log: HttpLog) -> Counter[str]:
    """How often each message was redriven, as the event log has it."""
    events = log.spans().events
    rows = pa.Table.from_batches(log.events(events.earliest, events.latest)).to_pylist()
    return Counter(row["message_id"] for row in rows if row["kind"] == "redriven")


@pytest.mark.timeout(120 + 30 * KILLS)
def test_kills_of_driver_and_server_redrive_nothing_twice_and_keep_the_order(tmp_path: Path) -> None:
    with running(tmp_path / "data") as (server, log):
        with PubSub(server.url) as pubsub:
            for name in ("orders", "failed"):
                pubsub.topic(name).create()
            options = SubscriptionOptions(message_ordering=True, dead_letter_policy=DeadLetterPolicy("failed", 1))
            pubsub.topic("orders").subscription("billing").create(options)
            pubsub.topic("failed").subscription("late").create()
        keys = [f"key-{number % 7}" for number in range(LETTERS)]
        log.stage("fill", "0", [pa.record_batch({"value": [b"x"] * LETTERS, "key": keys})], stream="orders")
        log.commit("fill", ["0"])
        span = log.spans(["orders"]).streams[0]
        ids = pa.Table.from_batches(log.messages(span, 0, LETTERS, columns=["message_id"]))["message_id"].to_pylist()
        key_of = dict(zip(ids, keys, strict=True))
        die(log, key_of, {})
        for number in range(KILLS):
            seen: dict[str, list[int]] = {}
            file = tmp_path / "letters.json"
            file.write_bytes(msgspec.json.encode([asdict(letter) for letter in letters(log)]))
            _redrive_under_fire(server, f"r{number}", file, number % 3, lambda seen=seen: die(log, key_of, seen))  # type: ignore[misc]
            assert redriven(log) == Counter(dict.fromkeys(ids, number + 1)), "each letter once for each redrive"
            assert {key: len(offsets) for key, offsets in seen.items()} == Counter(keys)
            assert all(offsets == sorted(offsets) for offsets in seen.values()), "in order"


def _redrive_under_fire(server: Server, name: str, file: Path, kind: int, reap: Callable[[], None]) -> None:
    """Redrive until all letters have gone back; the first time something is killed: the driver, the server, or both."""
    driver = _driver(server, name, file)
    try:
        assert driver.stdout is not None
        driver.stdout.readline()  # the first slice
        threading.Event().wait(random.uniform(0, 0.5))
        driver.send_signal(signal.SIGSTOP)  # what it has asked for may be done, and its answer is lost
        if kind != 0:
            server.kill_and_restart()
        reap()
        if kind == 1:
            driver.send_signal(signal.SIGCONT)
            assert driver.wait(60) == 0
    finally:
        driver.kill()
        driver.communicate()
    if kind != 1:
        again = _driver(server, name, file)
        again.communicate(timeout=60)
        assert again.returncode == 0
    reap()


def _driver(server: Server, name: str, file: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.integration.log.redrive_driver", server.url, name, str(RATE), str(file)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
