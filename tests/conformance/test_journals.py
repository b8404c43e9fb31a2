"""Every journal keeps the contract that `penstock.testing.conformance` ships, and the suite finds those that do not."""

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.journal.journal import Commit, Journal
from penstock.journal.memory import MemoryJournal
from penstock.journal.postgres import PostgresJournal
from penstock.journal.sqlite import SqliteJournal
from penstock.testing.conformance import JOURNAL_CHECKS, JournalCheck, check_journal
from tests.postgres_server import PostgresServer, needs_postgres


@pytest.mark.parametrize("check", JOURNAL_CHECKS, ids=lambda check: check.__name__)
def test_the_sqlite_journal_keeps_the_contract(check: JournalCheck, tmp_path: Path) -> None:
    check(lambda: SqliteJournal(tmp_path / "data"))


@needs_postgres
@pytest.mark.parametrize("check", JOURNAL_CHECKS, ids=lambda check: check.__name__)
def test_the_postgres_journal_keeps_the_contract(check: JournalCheck, postgres: PostgresServer) -> None:
    address = postgres.new_database()
    check(lambda: PostgresJournal(address))


def test_the_memory_journal_keeps_the_contract() -> None:
    check_journal(lambda _: MemoryJournal())


class ForgetfulJournal(MemoryJournal):
    """Loses the last message of a commit of many."""

    def append(self, commit: Commit) -> None:
        for append in commit.appends:
            if len(append.batch.messages) > 1:
                append.batch.messages.pop()
        super().append(commit)


class HastyJournal(MemoryJournal):
    """Says that it is durable and is not."""

    is_durable = True


class UntidyJournal(MemoryJournal):
    """Trims one chunk too many."""

    def trim(self, stream: int, chunks: list[int]) -> None:
        super().trim(stream, [*chunks, *(summary.first for summary in self.summaries(stream, 102, 103))])


class AmnesiacJournal(MemoryJournal):
    """Forgets young events, too."""

    def trim_events(self, before: int) -> None:
        super().trim_events(before + 1)


@pytest.mark.parametrize("broken", [ForgetfulJournal, HastyJournal, UntidyJournal, AmnesiacJournal])
def test_a_journal_that_breaks_its_contract_is_found_and_the_promise_named(broken: Callable[[], Journal]) -> None:
    with pytest.raises(AssertionError, match=r"; found .*"):
        check_journal(lambda _: broken())
