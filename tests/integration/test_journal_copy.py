"""A log goes from a data directory to PostgreSQL and back, and stays the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock import Broker, DeadLetterPolicy, Message, MessageQueue, QueueManager, SubscriptionOptions, backup
from penstock.errors import CorruptLog, DataDirectoryInUse, FailedPrecondition, InvalidArgument, LogInUse
from penstock.journal.postgres import PostgresJournal
from penstock.journal_copy import copy
from penstock.testing import ManualClock
from tests.acceptance.command import Penstock
from tests.postgres_server import PostgresServer, needs_postgres

pytestmark = needs_postgres


def filled(path: Path) -> None:
    """A log with a bit of everything: keys, priorities, dead letters, holes, a checkpoint and events since."""
    clock = ManualClock()
    with Broker(data_dir=path, clock=clock) as broker:
        queue, manager = MessageQueue(broker=broker), QueueManager(broker=broker)
        for topic in ("orders", "failed"):
            queue.register_topic(topic)
        options = SubscriptionOptions(dead_letter_policy=DeadLetterPolicy("failed", 5), message_ordering=True)
        queue.register_subscription("billing", "orders", options)
        queue.register_subscription("later", "failed")
        manager.create("tasks")
        for number in range(50):
            queue.publish(
                "orders", [Message(data=b"%d" % number * 100, attributes={"n": str(number)}, ordering_key=str(number % 3))]
            )
        for _ in range(7):
            for received in queue.pull("billing", max_messages=2):
                queue.nack(received.ack_id)
            clock.advance(60)
        broker.cursors.advance("archive", {"orders": 5}, clock.now(), holds=True)
    with Broker(data_dir=path, clock=clock) as broker:
        MessageQueue(broker=broker).publish("orders", [Message(data=b"since the checkpoint")])
        broker.sync()


def seen(broker: Broker) -> object:
    """What a user sees of a log."""
    queue = MessageQueue(broker=broker)
    messages = [(one.id, one.data, one.attributes) for one in queue.pull("billing", max_messages=100)]
    return messages, queue.stats("later"), broker.cursors.get("archive").offsets, broker.journal.event_range()[0]


def test_a_log_goes_to_postgresql_and_back_and_stays_the_same(postgres: PostgresServer, tmp_path: Path) -> None:
    address, clock = postgres.new_database(), ManualClock()
    filled(tmp_path / "data")
    report = backup.verify(tmp_path / "data")
    print_there = copy(str(tmp_path / "data"), address)
    print_back = copy(address, str(tmp_path / "back"))
    places: list[str | Path] = [tmp_path / "data", address, tmp_path / "back"]
    assert {backup.fingerprint(place) for place in places} == {print_there} == {print_back}
    assert [backup.verify(place)._replace(tokens=0) for place in places] == [report._replace(tokens=0)] * 3
    views = []
    for place in places:
        options = {"journal": PostgresJournal(place)} if isinstance(place, str) else {"data_dir": place}
        with Broker(clock=clock, **options) as broker:
            views.append(seen(broker))
    assert views[0] == views[1] == views[2]
    # They have gone separate ways now, and that shows.
    assert backup.fingerprint(address) != print_there


def test_a_copy_needs_a_source_and_an_empty_target_that_nobody_uses(postgres: PostgresServer, tmp_path: Path) -> None:
    address, other = postgres.new_database(), postgres.new_database()
    filled(tmp_path / "data")
    data = str(tmp_path / "data")
    copy(data, address)
    for source, target, text in (
        (str(tmp_path / "nothing"), other, "source is"),
        (other, str(tmp_path / "new"), "with something in it"),
        (data, address, "whose log is empty"),
        (address, data, "does not exist or is empty"),
    ):
        with pytest.raises(InvalidArgument, match=text):
            copy(source, target)
    with Broker(data_dir=data), pytest.raises(DataDirectoryInUse):
        copy(data, other)
    with Broker(journal=PostgresJournal(address)), pytest.raises(LogInUse):
        copy(address, str(tmp_path / "new"))
    staged = tmp_path / "data" / "staged" / "_" / "write"
    staged.mkdir(parents=True)
    (staged / "part.arrow").touch()
    with pytest.raises(FailedPrecondition, match="not committed"):
        copy(data, other)
    assert not (tmp_path / "new").exists()


def test_a_damaged_source_leaves_nothing_at_the_target(postgres: PostgresServer, tmp_path: Path) -> None:
    address = postgres.new_database()
    filled(tmp_path / "data")
    copy(str(tmp_path / "data"), address)
    postgres.execute(
        "UPDATE penstock.chunks SET body = 'x' WHERE position = (SELECT max(position) FROM penstock.chunks)", address
    )
    assert backup.verify(address).problems
    with pytest.raises(CorruptLog, match="checksum"):
        copy(address, str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()
    postgres.execute("INSERT INTO penstock.meta VALUES (1, 'unfinished_copy', 1)", address)
    with pytest.raises(FailedPrecondition, match="not complete"):
        PostgresJournal(address)


def test_the_commands_copy_and_verify(postgres: PostgresServer, tmp_path: Path) -> None:
    address = postgres.new_database()
    filled(tmp_path / "data")
    penstock = Penstock(tmp_path)
    copied = penstock("journal", "copy", str(tmp_path / "data"), address)
    assert copied.code == 0, copied.err
    found = [penstock("verify", "--fingerprint", place) for place in (str(tmp_path / "data"), address)]
    assert found[0].out == found[1].out
    assert found[0].out.splitlines()[1].removeprefix("fingerprint: ") in copied.out
    refused = penstock("journal", "copy", "postgresql://me:secret@127.0.0.1/x", str(tmp_path / "new"))
    assert refused.code
    assert "secret" not in refused.err
    assert "PGPASSWORD" in refused.err
