"""What a Spark write has staged survives the node that received it: before its commit is decided, and after."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from penstock import Broker, MessageQueue
from penstock.errors import JournalUnavailable
from penstock.journal.journal import Commit
from penstock.journal.postgres import PostgresJournal
from tests.postgres_server import PostgresServer, needs_postgres
from tests.unit.log.desk import Desk, rows

pytestmark = needs_postgres


@contextmanager
def node(address: str) -> Iterator[Desk]:
    """The owner of the log, with files of its own."""
    with Broker(journal=PostgresJournal(address)) as broker:
        if "t" not in broker.catalog.topics:
            MessageQueue(broker=broker).register_topic("t")
        desk = Desk(broker)
        try:
            yield desk
        finally:
            desk.writes.close()


def test_parts_that_one_node_received_are_published_by_the_next(postgres: PostgresServer) -> None:
    address = postgres.new_database()
    with node(address) as first:
        first.stage("w", "p0", rows(value=[b"a", b"b"]))
        first.stage("w", "p1", rows(value=[b"c"]))
        first.stage("gone", "p0", rows(value=[b"x"]))
        first.writes.staging.abort("gone")
        listed = first.writes.staging.listed()
    with node(address) as second:
        assert second.writes.staging.listed() == listed
        assert second.files() == []
        assert second.commit("w", "p0", "p1").rows == 3
        assert second.commit("w", "p0", "p1").is_repeat
        assert second.values() == [b"a", b"b", b"c"]
    assert postgres.execute("SELECT count(*) FROM penstock.staged", address) == [(0,)]


def test_a_batch_that_one_node_decided_is_finished_by_the_next(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    address = postgres.new_database()
    with node(address) as first:
        first.stage("w", "p0", rows(value=[b"a", b"b"]))
        append = first.broker.journal.append

        def full(commit: Commit) -> None:
            if commit.appends:
                raise JournalUnavailable("db", "the node dies here")
            append(commit)

        monkeypatch.setattr(first.broker.journal, "append", full)
        with pytest.raises(JournalUnavailable):
            first.commit("w", "p0")
    with node(address) as second:
        for _ in range(600):
            if second.values():
                break
            threading.Event().wait(0.05)
        assert second.values() == [b"a", b"b"]
        assert second.commit("w", "p0").is_repeat
