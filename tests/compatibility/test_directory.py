"""A data directory that an earlier version wrote, as a kill left it, is opened with everything that was in it."""

import base64
import io
import json
import lzma
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock import Broker, MessageQueue, QueueManager
from penstock.log.directory import DirectoryLog
from penstock.testing import ManualClock
from penstock.testing.server import LocalServer
from tests.compatibility.conversation import RECORDED, Replay, Talk, load

NOTES: dict[str, Any] = json.loads((RECORDED / "notes.json").read_text(encoding="utf-8"))
"""What was outstanding when the directory was copied, and how many seconds after the start of the clock that was."""


def clock() -> ManualClock:
    """The instant at which the directory was copied: leases have not run out yet."""
    found = ManualClock()
    found.advance(NOTES["seconds"])
    return found


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A copy of the directory."""
    packed = (RECORDED / "directory.txt").read_bytes()
    with tarfile.open(fileobj=io.BytesIO(lzma.decompress(base64.decodebytes(packed)))) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "data"


@pytest.fixture
def broker(directory: Path) -> Iterator[Broker]:
    with Broker(data_dir=directory, clock=clock()) as broker:
        yield broker


@pytest.mark.server
def test_everything_that_can_be_asked_is_answered_as_by_the_version_that_wrote_it(
    directory: Path, subtests: pytest.Subtests
) -> None:
    """Settings, backlogs, leases, dead letters, snapshots, schemas, policies, cursors and the hub's log; then acks and a seek."""
    with (
        LocalServer(data_dir=directory, clock=clock(), hub_history=("chat",)) as server,
        Talk(server.server) as talk,
    ):
        replay = Replay(talk, is_exact=True)
        for number, step in enumerate(load("directory")):
            with subtests.test(step=number, request=step.request):
                assert replay.differences(step) == []


def test_subscriptions_have_their_backlogs(broker: Broker) -> None:
    topics = MessageQueue(broker=broker)
    backlogs = {each.name: topics.stats(each.name).backlog for each in topics.get_all_subscriptions()}

    expected = {"audit": 5, "europe": 3, "ordered": 8, "once": 8, "failing": 6, "paused": 3, "dead": 2}
    assert {name: backlogs[name] for name in expected} == expected


def test_settings_are_those_that_were_given(broker: Broker) -> None:
    topics, queues = MessageQueue(broker=broker), QueueManager(broker=broker)
    options = {each.name: each.options for each in topics.get_all_subscriptions()}

    assert options["europe"].filter == 'attributes.region = "eu"'
    assert options["ordered"].message_ordering
    assert options["once"].exactly_once
    policy = options["failing"].dead_letter_policy
    assert policy is not None
    assert (policy.dead_letter_topic, policy.max_delivery_attempts) == ("orders-dead", 5)
    assert topics.stats("paused").paused
    assert queues.list() == ["tasks", "small"]


@pytest.mark.parametrize("subscription", ["audit", "ordered", "once"])
def test_what_was_leased_then_is_acknowledged_now(broker: Broker, subscription: str) -> None:
    topics = MessageQueue(broker=broker)
    held = NOTES[f"{subscription} held"]
    before = topics.stats(subscription)
    assert before.in_flight == len(held) == 2

    topics.ack_many(held)

    after = topics.stats(subscription)
    assert (after.in_flight, after.backlog) == (0, before.backlog - 2)


def test_what_was_leased_then_is_delivered_again_when_its_deadline_has_passed(directory: Path) -> None:
    late = clock()
    with Broker(data_dir=directory, clock=late) as broker:
        late.advance(601)
        topics = MessageQueue(broker=broker)
        again = {each.data for each in topics.pull("audit", 10) if each.delivery_attempt == 2}
        assert len(again) == 2


def test_messages_of_one_key_come_in_order(broker: Broker) -> None:
    topics = MessageQueue(broker=broker)
    taken: dict[str, list[int]] = {"key-0": [], "key-1": []}
    topics.ack_many(NOTES["ordered held"])
    while pulled := topics.pull("ordered", 10):
        for message in pulled:
            taken[message.ordering_key or ""].append(int(message.attributes["n"]))
            topics.ack(message.ack_id)

    assert taken == {"key-0": [2, 4, 6], "key-1": [3, 5, 7]}


def test_dead_letters_of_a_subscription_say_why(broker: Broker) -> None:
    letters = MessageQueue(broker=broker).pull("dead", 10)

    assert sorted(letter.data for letter in letters) == [b"order 6", b"order 7"]
    assert {letter.attributes["penstock.reason"] for letter in letters} == {"max_retries_exceeded"}
    assert {letter.attributes["penstock.source"] for letter in letters} == {"failing"}


def test_a_work_queue_has_its_messages_and_its_dead_letters(broker: Broker) -> None:
    queues = QueueManager(broker=broker)
    stats = queues.stats("tasks")
    assert (stats.depth, stats.in_flight, stats.delayed, stats.dead_letters) == (2, 1, 1, 1)
    [letter] = queues.dead_letters("tasks")
    assert (letter.message.payload, letter.reason, letter.last_error) == (b"\x00\xff", "explicit_nack", "no good")

    [held] = NOTES["tasks held"]
    queues.ack("tasks", held)
    assert queues.redrive("tasks") == 1
    taken = [message.payload for message in queues.consume_many("tasks", max_messages=10)]
    assert taken == [b"\x00\xff", {"json": [1, None]}, "waits"]


def test_a_snapshot_brings_back_what_was_acknowledged_since(broker: Broker) -> None:
    topics = MessageQueue(broker=broker)
    topics.seek("audit", snapshot="before-deploy")

    assert topics.stats("audit").backlog == 6


def test_the_log_can_be_read_without_a_server(directory: Path) -> None:
    with DirectoryLog(directory) as log:
        spans = {span.stream: span.latest for span in log.spans(["orders", "hub.chat"]).streams}

    assert spans == {"orders": 8, "hub.chat": 3}
