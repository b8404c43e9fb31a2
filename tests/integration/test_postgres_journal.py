"""A broker on PostgreSQL: who owns the log, and what becomes of a commit whose answer does not come."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from penstock import Broker, Message, MessageQueue, QueueManager
from penstock.broker import broker as broker_module
from penstock.clock import monotonic
from penstock.errors import (
    FailedPrecondition,
    InvalidArgument,
    JournalUnavailable,
    JournalUncertain,
    LogInUse,
    LogLost,
    PenstockError,
    Unavailable,
    UnsupportedFormat,
)
from penstock.journal import postgres as postgres_journal
from penstock.journal import postgres_connection
from penstock.journal.core import events
from penstock.journal.journal import Commit
from penstock.journal.postgres import PostgresJournal, evict
from penstock.journal.postgres_reader import ReadOnlyPostgres
from tests.postgres_server import PostgresServer, needs_postgres, standby_of

pytestmark = needs_postgres

PATIENCE = 60
WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query LIKE '%WITH own%'"
"""The backends whose commit waits for the standby."""


def wait_for(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"it did not happen within {PATIENCE} s"
        time.sleep(0.01)


@contextmanager
def in_a_thread(call: Callable[[], Any]) -> Iterator[list[Any]]:
    """Run a call beside the test; its result or its error is in the list at the end of the block."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(call())
        except PenstockError as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    yield outcome
    thread.join(60)
    assert outcome, "the call did not return"


@contextmanager
def opened(address: str, **options: Any) -> Iterator[PostgresJournal]:
    journal = PostgresJournal(address, **options)
    try:
        yield journal
    finally:
        journal.close()


@contextmanager
def queue_at(address: str) -> Iterator[MessageQueue]:
    with Broker(journal=PostgresJournal(address)) as broker:
        yield MessageQueue(broker=broker)


def paused(at: int) -> Commit:
    return Commit(at, [], [events.Paused(7, at, True)])


def times(journal: PostgresJournal | ReadOnlyPostgres) -> list[int]:
    return [event.at for _, event in journal.read_events(*journal.event_range())]


def pid_of(journal: PostgresJournal) -> int:
    owner = journal.owner()
    assert owner is not None
    return owner.pid


def test_a_broker_keeps_everything_in_postgresql(postgres: PostgresServer) -> None:
    address = postgres.new_database()
    with queue_at(address) as queue:
        queue.register_topic("orders")
        queue.register_subscription("billing", "orders")
        queue.publish("orders", [Message(data=b"order 1"), Message(data=b"order 2")])
        [message] = queue.pull("billing", max_messages=1)
        queue.ack(message.ack_id)
        queue.broker.cursors.advance("archive", {"orders": 1}, queue.broker.clock.now(), holds=True)
    with queue_at(address) as queue:
        assert queue.stats("billing").backlog == 1
        assert [message.data for message in queue.pull("billing", max_messages=9)] == [b"order 2"]
        assert queue.broker.cursors.get("archive").offsets == {"orders": 1}


def test_a_log_has_one_owner(postgres: PostgresServer) -> None:
    address = postgres.new_database()
    first = PostgresJournal(address, node="a", advertised="http://a:8085")
    with pytest.raises(LogInUse, match="node 'a', since"):
        PostgresJournal(address, node="b")
    owner = first.owner()
    assert owner is not None
    assert (owner.epoch, owner.node, owner.address) == (1, "a", "http://a:8085")
    other = PostgresJournal(address, node="b", number=2)
    other.append(paused(1))
    other.close()
    first.append(paused(2))
    first.close()
    with opened(address, node="b") as second:
        assert second.epoch == 2
        assert times(second) == [2]


def test_an_owner_whose_epoch_is_over_writes_nothing_and_is_notified_once(postgres: PostgresServer) -> None:
    address = postgres.new_database()
    lost: list[bool] = []
    with opened(address, on_lost=lambda: lost.append(True)) as journal:
        journal.append(paused(1))
        postgres.execute("UPDATE penstock.logs SET epoch = epoch + 1", address)
        writes: list[Callable[[], None]] = [
            lambda: journal.append(paused(2)),
            lambda: journal.trim(7, [0]),
            lambda: journal.append(Commit(1, [], [])),
        ]
        for write in writes:
            with pytest.raises(LogLost):
                write()
        assert times(journal) == [1]
        assert lost == [True]


def test_a_takeover_waits_for_the_commit_that_is_under_way(postgres: PostgresServer) -> None:
    """The fence: while a commit is open, its epoch cannot be raised. FOR KEY SHARE would let it."""
    address = postgres.new_database()
    with opened(address) as journal, postgres.connect(address) as blocker:
        journal.append(paused(1))
        # The commit's own insert waits for this one, after its fence has been passed.
        blocker.execute("BEGIN")
        blocker.execute("INSERT INTO penstock.events VALUES (1, 1, 1, 1, 1, 99, 0, '')")
        with in_a_thread(lambda: journal.append(paused(2))) as outcome:
            wait_for(lambda: postgres.execute("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'transactionid'"))
            raised = threading.Event()

            def raise_epoch() -> None:
                postgres.execute("UPDATE penstock.logs SET epoch = epoch + 1", address)
                raised.set()

            with in_a_thread(raise_epoch):
                wait_for(
                    lambda: (
                        raised.is_set()
                        or postgres.execute(
                            "SELECT 1 FROM pg_stat_activity WHERE query LIKE 'UPDATE penstock.logs%' AND wait_event_type = 'Lock'"
                        )
                    )
                )
                assert not raised.is_set(), "the epoch was raised beside a commit that is under way"
                blocker.execute("ROLLBACK")
        assert outcome == [None]
        with pytest.raises(LogLost):
            journal.append(paused(3))
        assert times(journal) == [1, 2]


def test_a_lost_connection_before_a_commit_is_not_noticed(postgres: PostgresServer) -> None:
    address = postgres.new_database()
    with opened(address) as journal:
        for at in range(5):
            postgres.execute(f"SELECT pg_terminate_backend({pid_of(journal)}, 5000)")
            journal.append(paused(at))
        assert times(journal) == [0, 1, 2, 3, 4]
        assert journal.epoch == 1


def test_nothing_is_stored_while_postgresql_is_away_and_writing_continues_after_it() -> None:
    server = PostgresServer()
    try:
        address = server.new_database()
        with queue_at(address) as queue:
            queue.register_topic("orders")
            queue.register_subscription("billing", "orders")
            queue.publish("orders", [Message(data=b"before")])
            server.kill()
            unknown = 0
            for _ in range(3):
                with pytest.raises(Unavailable) as caught:
                    queue.publish("orders", [Message(data=b"meanwhile")])
                unknown += isinstance(caught.value, JournalUncertain)
            assert unknown <= 1, "only the first can have reached the server"
            assert queue.broker.health is not None
            server.start()
            wait_for(lambda: queue.broker.health is None)
            queue.publish("orders", [Message(data=b"after")])
            assert [message.data for message in queue.pull("billing", max_messages=9)] == [b"before", b"after"]
    finally:
        server.remove()


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[PostgresServer, PostgresServer]]:
    """A primary and its synchronous standby."""
    primary = PostgresServer()
    try:
        with standby_of(primary) as standby:
            wait_for(lambda: primary.execute("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"))
            yield primary, standby
    finally:
        primary.remove()


@contextmanager
def without_standby(pair: tuple[PostgresServer, PostgresServer]) -> Iterator[None]:
    primary, standby = pair
    standby.stop()
    try:
        yield
    finally:
        standby.start()
        wait_for(lambda: primary.execute("SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"))


@pytest.fixture
def no_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but what the test does is written."""
    monkeypatch.setattr(postgres_journal, "BEAT_SECONDS", 3_600)
    monkeypatch.setattr(postgres_journal, "IDLE_SECONDS", 3_600)


@pytest.mark.usefixtures("no_heartbeat")
@pytest.mark.parametrize("end", ["pg_cancel_backend", "pg_terminate_backend"])
def test_a_commit_whose_wait_for_the_standby_is_ended_counts_only_when_it_is_replicated(
    pair: tuple[PostgresServer, PostgresServer], end: str
) -> None:
    primary, standby = pair
    address = primary.new_database()
    with opened(address) as journal:
        journal.append(paused(1))
        with without_standby(pair), in_a_thread(lambda: journal.append(paused(2))) as outcome:
            wait_for(lambda: primary.execute(WAITING))
            [(pid,)] = primary.execute(WAITING)
            primary.execute(f"SELECT {end}({pid})")
            # The row is there, and is not replicated; the journal waits for a commit that is.
            wait_for(lambda: primary.execute("SELECT count(*) FROM penstock.events", address) == [(2,)])
            wait_for(lambda: primary.execute("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"))
            assert outcome == [], "a commit was confirmed without the standby"
            standby.start()
        assert outcome == [None]
        assert times(journal) == [1, 2]


def test_a_standby_that_is_missing_is_reported(
    pair: tuple[PostgresServer, PostgresServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_journal, "PATIENCE", 0)
    primary, _ = pair
    with queue_at(primary.new_database()) as queue:
        queue.register_topic("orders")
        with without_standby(pair), in_a_thread(lambda: queue.publish("orders", [Message(data=b"x")])) as outcome:
            wait_for(lambda: "standby" in (queue.broker.health or ""))
            assert outcome == []
            pair[1].start()
        wait_for(lambda: queue.broker.health is None)


@pytest.mark.usefixtures("no_heartbeat")
def test_an_owner_that_gives_up_in_a_commit_does_not_know_its_outcome(pair: tuple[PostgresServer, PostgresServer]) -> None:
    primary, _ = pair
    address = primary.new_database()
    with opened(address) as journal:
        journal.append(paused(1))
        with without_standby(pair), in_a_thread(lambda: journal.append(paused(2))) as outcome:
            wait_for(lambda: primary.execute(WAITING))
            journal.abandon()
        assert isinstance(outcome[0], JournalUncertain)
        with pytest.raises(LogLost):
            journal.is_stored()
        with pytest.raises(LogLost):
            journal.append(paused(3))
    evict(address, 0)
    with opened(address) as journal:
        assert times(journal) == [1, 2]


@pytest.mark.usefixtures("no_heartbeat")
def test_a_publish_with_an_unknown_outcome_keeps_its_offset_and_a_repeat_finds_it(
    pair: tuple[PostgresServer, PostgresServer],
) -> None:
    primary, _ = pair
    address = primary.new_database()
    name = address.rpartition("/")[2]
    with queue_at(address) as queue:
        queue.register_topic("orders")
        queue.register_subscription("billing", "orders")
        unknown = Message(data=b"unknown", producer_id="p", sequence=1)
        with without_standby(pair), in_a_thread(lambda: queue.publish("orders", [unknown])) as outcome:
            wait_for(lambda: primary.execute(WAITING))
            [(pid,)] = primary.execute(WAITING)
            # The commit ends, and nobody can ask for it: it is stored, and its publisher cannot know.
            primary.execute(f"SET synchronous_commit = local; ALTER DATABASE {name} ALLOW_CONNECTIONS false")
            primary.execute(f"SELECT pg_terminate_backend({pid})")
            wait_for(lambda: outcome)
        assert isinstance(outcome[0], JournalUncertain)
        with pytest.raises(JournalUnavailable, match="not known"):
            queue.publish("orders", [Message(data=b"refused")])
        assert queue.pull("billing", max_messages=9) == []
        primary.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
        wait_for(lambda: queue.broker.health is None)
        [other] = queue.publish("orders", [Message(data=b"other")])
        [repeated] = queue.publish("orders", [unknown])
        messages = queue.pull("billing", max_messages=9)
        assert [(message.id, message.data) for message in messages] == [(repeated, b"unknown"), (other, b"other")]


def test_readers_see_nothing_beyond_what_is_confirmed(pair: tuple[PostgresServer, PostgresServer]) -> None:
    primary, standby = pair
    address = primary.new_database()
    with opened(address) as journal:
        journal.append(paused(1))
        journal.append(Commit(0, [], []))
        [(written,)] = primary.execute("SELECT pg_current_wal_lsn()")
        wait_for(lambda: standby.execute(f"SELECT pg_last_wal_replay_lsn() >= '{written}'") == [(True,)])
        name = address.rpartition("/")[2]
        with closing(ReadOnlyPostgres(standby.url(name))) as reader:
            wait_for(lambda: times(reader) == [1])
            # A commit that is on the standby, and that no later one has confirmed.
            columns = "count, at, epoch, commit_id, crc, body"
            primary.execute(f"INSERT INTO penstock.events SELECT log, first + 1, {columns} FROM penstock.events", address)
            wait_for(lambda: standby.execute("SELECT count(*) FROM penstock.events", standby.url(name)) == [(2,)])
            assert reader.event_range() == (0, 1)
            assert times(reader) == [1]
            primary.execute("UPDATE penstock.logs SET confirmed = 2", address)
            wait_for(lambda: reader.event_range() == (0, 2))


def test_an_owner_that_gets_no_answer_delivers_nothing(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_module, "SILENT", 2_000_000)
    with queue_at(postgres.new_database()) as queue:
        journal = queue.broker.journal
        assert isinstance(journal, PostgresJournal)
        tasks = QueueManager(broker=queue.broker)
        tasks.create("tasks")
        tasks.publish("tasks", b"1")
        backend = pid_of(journal)
        os.kill(backend, signal.SIGSTOP)
        try:
            wait_for(lambda: monotonic() - journal.alive_at > 2_000_000)
            assert tasks.consume("tasks", "worker") is None
            with in_a_thread(lambda: tasks.consume("tasks", "worker", 60)) as outcome:
                os.kill(backend, signal.SIGCONT)
        finally:
            os.kill(backend, signal.SIGCONT)
        assert outcome[0].payload == b"1"


def test_what_is_no_journal_is_refused(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    address = postgres.new_database()
    with pytest.raises(FailedPrecondition, match="there is no log"):
        ReadOnlyPostgres(address)
    with pytest.raises(Unavailable, match=r"cannot connect to postgresql://postgres@127.0.0.1:1/x"):
        PostgresJournal("postgresql://postgres:secret@127.0.0.1:1/x")
    for wrong in ("data", "mysql://x", "postgresql://a:p%zz@h/d", 7):
        with pytest.raises(InvalidArgument) as caught:
            PostgresJournal(wrong)  # type: ignore[arg-type]
        assert "p%zz" not in str(caught.value)
    PostgresJournal(address).close()
    monkeypatch.setattr(postgres_connection, "FORMAT", 2)
    monkeypatch.setattr(postgres_connection, "STEPS", {1: "ALTER TABLE logs ADD COLUMN colour text"})
    PostgresJournal(address).close()
    assert postgres.execute("SELECT colour FROM penstock.logs", address) == [(None,)]
    monkeypatch.undo()
    with pytest.raises(UnsupportedFormat):
        PostgresJournal(address)
