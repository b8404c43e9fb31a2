"""The tests of the journal on PostgreSQL notice what would lose or double messages: each of these mistakes fails one of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.broker.commits import Commits, _Unknown
from penstock.errors import JournalUncertain, PenstockError
from penstock.journal import postgres as postgres_journal
from penstock.journal import postgres_reader
from penstock.journal.postgres_connection import Address, Session
from tests.integration import test_postgres_journal as tests
from tests.integration.test_postgres_journal import no_heartbeat, pair
from tests.postgres_server import PostgresServer, needs_postgres

pytestmark = [needs_postgres, pytest.mark.long]
__all__ = ["no_heartbeat", "pair"]

Pair = tuple[PostgresServer, PostgresServer]
FENCE = "FOR SHARE"


def fails(test: Callable[[], None]) -> None:
    """A test must notice the mistake."""
    try:
        test()
    except (AssertionError, PenstockError, pytest.fail.Exception):
        return
    pytest.fail("no test noticed the mistake")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tests, "PATIENCE", 5)


@pytest.mark.parametrize("fence", ["FOR KEY SHARE", ""])
@pytest.mark.usefixtures("impatient")
def test_a_fence_that_does_not_hold_is_noticed(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch, fence: str) -> None:
    assert FENCE in postgres_journal._COMMIT
    monkeypatch.setattr(postgres_journal, "_COMMIT", postgres_journal._COMMIT.replace(FENCE, fence))
    fails(lambda: tests.test_a_takeover_waits_for_the_commit_that_is_under_way(postgres))


@pytest.mark.usefixtures("impatient")
def test_an_epoch_that_nobody_checks_is_noticed(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    unchecked = postgres_journal._COMMIT.replace("AND epoch = $2::bigint FOR SHARE", "AND $2::bigint > 0")
    monkeypatch.setattr(postgres_journal, "_COMMIT", unchecked)
    fails(lambda: tests.test_an_owner_whose_epoch_is_over_writes_nothing_and_is_notified_once(postgres))


@pytest.mark.usefixtures("impatient", "no_heartbeat")
def test_a_warning_that_is_ignored_is_noticed(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Session, "_note", lambda *_: None)
    end = "pg_cancel_backend"
    fails(lambda: tests.test_a_commit_whose_wait_for_the_standby_is_ended_counts_only_when_it_is_replicated(pair, end))


@pytest.mark.usefixtures("impatient", "no_heartbeat")
def test_an_unknown_outcome_that_is_undone_is_noticed(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def undo(self: Commits, unknown: _Unknown, error: JournalUncertain) -> None:
        self._pending[:0] = unknown.commit.events[: unknown.kept]
        self._note_trouble(error)

    monkeypatch.setattr(Commits, "_suspend", undo)
    fails(lambda: tests.test_a_publish_with_an_unknown_outcome_keeps_its_offset_and_a_repeat_finds_it(pair))


@pytest.mark.usefixtures("impatient")
def test_readers_without_a_bound_are_noticed(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    class Unbounded(postgres_reader.PostgresReader):
        def __init__(self, address: str) -> None:
            super().__init__(Address(address), 1)

    monkeypatch.setattr(tests, "ReadOnlyPostgres", Unbounded)
    fails(lambda: tests.test_readers_see_nothing_beyond_what_is_confirmed(pair))
