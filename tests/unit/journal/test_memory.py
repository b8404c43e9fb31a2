"""The journal in memory: how much of the event log it keeps."""

from __future__ import annotations

import pytest

from penstock.journal import memory
from penstock.journal.core.events import Acked
from penstock.journal.memory import MemoryJournal


@pytest.fixture
def journal(monkeypatch: pytest.MonkeyPatch) -> MemoryJournal:
    monkeypatch.setattr(memory, "EVENT_RECORDS", 100)
    monkeypatch.setattr(memory, "EVENTS", 1_000)
    monkeypatch.setattr(memory, "SLACK", 10)
    return MemoryJournal()


def acked(count: int) -> Acked:
    return Acked(1, 0, [*range(count)], 0, 1)


def test_records_of_many_events_are_bounded_by_their_events(journal: MemoryJournal) -> None:
    for number in range(1, 201):
        journal.note(acked(50))
        first, stop = journal.event_range()
        assert stop == 50 * number
        assert min(stop, 1_000) <= stop - first <= 1_000 + 11 * 50
    first, stop = journal.event_range()
    assert [offset for offset, _ in journal.read_events(first, stop)] == [*range(first, stop, 50)]


def test_records_of_few_events_are_bounded_by_their_number(journal: MemoryJournal) -> None:
    for number in range(1, 501):
        journal.note(acked(1))
        first, stop = journal.event_range()
        assert stop == number
        assert min(stop, 100) <= stop - first <= 111


def test_what_is_held_stays_however_many_events_it_has(journal: MemoryJournal) -> None:
    journal.hold_events(50)
    for _ in range(200):
        journal.note(acked(50))
    assert journal.event_range() == (50, 10_000)
    journal.hold_events(None)
    for _ in range(11):
        journal.note(acked(50))
    first, stop = journal.event_range()
    assert stop - first <= 1_000 + 11 * 50
