"""A broker belongs to the process that opened it: a forked child gets an error from every call, the parent does not notice."""

from __future__ import annotations

import asyncio
import inspect
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from penstock import Broker, Message, MessageQueue, QueueManager, sync
from penstock.client import AckResponse
from penstock.errors import DataDirectoryInUse, OpenedBeforeFork
from penstock.journal.sqlite import SqliteJournal
from penstock.log.directory import DirectoryLog
from penstock.testing.server import LocalServer

PATIENCE = 60


def start_in_child(function: Callable[[], Any]) -> Callable[[], Any]:
    """Call a function in a forked child; call the result for what it returned or raised there."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(PATIENCE)  # a child that waits forever ends nevertheless
        try:
            result = function()
        except BaseException as error:  # noqa: BLE001  # the parent looks at it
            result = error
        os.write(writing, pickle.dumps(result))
        os._exit(0)
    os.close(writing)

    def finish() -> Any:
        with os.fdopen(reading, "rb") as pipe:
            result = pickle.loads(pipe.read())
        assert os.waitpid(child, 0)[1] == 0
        return result

    return finish


def in_child(function: Callable[[], Any]) -> Any:
    """What a function returns or raises in a forked child."""
    return start_in_child(function)()


def error_of(function: Callable[[], Any]) -> str:
    try:
        return f"returned {function()!r}"
    except Exception as error:  # noqa: BLE001  # the caller looks at it
        return type(error).__name__


def errors_of_all(thing: object) -> dict[str, str]:
    """What each public method of an object raises, called with as many words as it needs."""
    found = {}
    for name, method in inspect.getmembers(type(thing), inspect.isfunction):
        if not name.startswith("_") and name != "close":
            parameters = list(inspect.signature(method).parameters.values())[1:]
            words = ["x" for one in parameters if one.default is one.empty and one.kind is one.POSITIONAL_OR_KEYWORD]
            found[name] = error_of(lambda name=name, words=words: getattr(thing, name)(*words))  # type: ignore[misc]
    return found


@pytest.mark.parametrize("place", ["memory", "durable"])
def test_every_call_of_a_child_is_refused_and_the_parent_goes_on(place: str, tmp_path: Path, subtests: pytest.Subtests) -> None:
    data_dir = tmp_path / "data" if place == "durable" else None
    with Broker(data_dir=data_dir) as broker:
        queue, manager = MessageQueue(broker=broker), QueueManager(broker=broker)
        queue.register_topic("orders")
        queue.register_subscription("billing", "orders")
        manager.create("tasks")
        queue.publish("orders", [Message(b"1")])
        manager.publish("tasks", "1")
        held, task = queue.pull("billing")[0], manager.consume("tasks")
        assert task is not None

        def use() -> dict[str, str]:
            found = {f"broker.{name}": kind for name, kind in errors_of_all(broker).items()}
            found["publish"] = error_of(lambda: queue.publish("orders", [Message(b"child")]))
            found["ack"] = error_of(lambda: queue.ack(held.ack_id))
            found["ack_many"] = error_of(lambda: queue.ack_many([held.ack_id]))
            found["pull"] = error_of(lambda: queue.pull("billing"))
            found["stats"] = error_of(lambda: queue.stats("billing"))
            found["publish to a queue"] = error_of(lambda: manager.publish("tasks", "child"))
            found["ack of a queue"] = error_of(lambda: manager.ack("tasks", task.message_id))
            found["consume"] = error_of(lambda: manager.consume("tasks", timeout=PATIENCE))
            found["health"] = error_of(lambda: broker.health)
            queue.close()
            broker.close()
            return found

        for call, kind in in_child(use).items():
            with subtests.test(call):
                assert kind == "OpenedBeforeFork"
        queue.publish("orders", [Message(b"2")])
        queue.ack(held.ack_id)
        manager.ack("tasks", task.message_id)
        manager.publish("tasks", "2")
        assert [message.data for message in queue.pull("billing", 9)] == [b"2"]
        assert broker.health is None
    if data_dir is not None:
        with MessageQueue(data_dir=data_dir) as queue:
            assert queue.stats("billing").acked_total == 1
            queue.publish("orders", [Message(b"3")])


def test_the_error_names_the_process_and_says_what_to_do(tmp_path: Path) -> None:
    with MessageQueue(data_dir=tmp_path) as queue:
        error = in_child(lambda: queue.publish("orders", [Message(b"child")]))
    assert isinstance(error, OpenedBeforeFork)
    assert str(error) == f"this broker belongs to process {os.getpid()}, which opened it before this process was forked"
    assert error.hint == "open one after the fork, or let all processes connect to one server"


SCRIPT = """
import os, sys, threading
from pathlib import Path
from penstock import Message, MessageQueue
from penstock.client import AckResponse
from penstock.errors import DataDirectoryInUse, OpenedBeforeFork

queue = MessageQueue(data_dir=sys.argv[1])
queue.register_topic("orders")
queue.register_subscription("billing", "orders")
queue.publish("orders", [Message(b"1")])
files = {path.name: path.stat().st_ino for path in Path(sys.argv[1]).iterdir()}
statuses = []
for ending in ("sys.exit", "last line", "dropped"):
    child = os.fork()
    if not child:
        try:
            queue.publish("orders", [Message(b"child")])
        except OpenedBeforeFork:
            pass
        if ending == "sys.exit":
            sys.exit(0)
        if ending == "dropped":
            import gc
            del queue
            gc.collect()
        break
    statuses.append(os.waitpid(child, 0)[1])
else:
    assert statuses == [0, 0, 0], statuses
    assert {path.name: path.stat().st_ino for path in Path(sys.argv[1]).iterdir()} == files
    queue.publish("orders", [Message(b"2")])
    queue.ack_many(message.ack_id for message in queue.pull("billing", 9))
    queue.close()
    with MessageQueue(data_dir=sys.argv[1]) as queue:
        assert queue.stats("billing").acked_total == 2
        queue.broker.journal.verify()
    print("the parent did not notice")
"""


def test_a_child_that_ends_in_any_way_leaves_the_files_alone(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-X", "dev", str(script), str(tmp_path / "data")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "the parent did not notice\n", "")


def test_a_child_that_lives_on_does_not_lock_the_directory_and_cannot_open_it(tmp_path: Path) -> None:
    ours, other = tmp_path / "ours", tmp_path / "other"
    reading, writing = os.pipe()
    queue = MessageQueue(data_dir=ours)
    queue.register_topic("orders")

    def use() -> list[str]:
        os.close(writing)
        os.read(reading, 1)  # until the parent has closed it
        # SQLite would take locks for its own that only the parent held.
        found = [error_of(lambda: MessageQueue(data_dir=ours)), error_of(lambda: DirectoryLog(ours))]
        with MessageQueue(data_dir=other) as own:
            own.register_topic("orders")
            return [*found, str(own.topic_exists("orders"))]

    finish = start_in_child(use)
    assert isinstance(in_child(lambda: MessageQueue(data_dir=ours)), DataDirectoryInUse)
    queue.close()
    with MessageQueue(data_dir=ours) as queue:
        assert queue.topic_exists("orders")
    os.close(writing)
    assert finish() == ["OpenedBeforeFork", "OpenedBeforeFork", "True"]
    os.close(reading)


def test_journals_and_readers_of_the_log_are_refused_too(tmp_path: Path) -> None:
    with MessageQueue(data_dir=tmp_path) as queue:
        queue.register_topic("orders")
    journal = SqliteJournal(tmp_path)
    log = DirectoryLog(tmp_path)

    def use() -> list[str]:
        found = [error_of(lambda: journal.earliest(1)), error_of(log.spans)]
        journal.close()
        log.close()
        return found

    assert in_child(use) == ["OpenedBeforeFork", "OpenedBeforeFork"]
    assert [span.stream for span in log.spans().streams] == ["orders"]
    log.close()
    journal.close()


def test_the_instance_of_the_process_is_another_one_in_a_child() -> None:
    MessageQueue.get_instance().register_topic("orders")
    try:
        assert in_child(lambda: MessageQueue.get_instance().topic_exists("orders")) is False
        assert MessageQueue.get_instance().topic_exists("orders")
    finally:
        MessageQueue.reset_instance()


@pytest.mark.parametrize("place", ["embedded", "server"])
def test_a_client_of_a_broker_or_a_server_is_refused(place: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        url = stack.enter_context(LocalServer()).url if place == "server" else None
        pubsub: Any = stack.enter_context(sync.PubSub(url, data_dir=None if url else tmp_path))
        topic = pubsub.topic("orders").create()
        subscription = topic.subscription("billing").create()
        topic.publish_message(b"1")
        [message] = subscription.pull(wait=PATIENCE)

        def use() -> list[str]:
            found = [
                error_of(lambda: topic.publish_message(b"child")),
                error_of(lambda: subscription.pull(wait=PATIENCE)),
                error_of(message.ack),
                error_of(lambda: pubsub.topic("others")),
                error_of(lambda: asyncio.run(pubsub._inner.topic("orders").publish_message(b"child"))),
                error_of(lambda: asyncio.run(topic._inner.publish_message(b"child"))),
            ]
            pubsub.close()
            return found

        assert set(in_child(use)) == {"OpenedBeforeFork"}
        topic.publish_message(b"2")
        assert message.ack_with_response() == AckResponse.SUCCESS
        [message] = subscription.pull(wait=PATIENCE)
        assert message.data == b"2"
