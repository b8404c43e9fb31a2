"""The ledger of a query: what a commit of a batch means, and how far a batch has got."""

from __future__ import annotations

import msgspec
import pytest

from penstock.broker.core import ledger as ledgers
from penstock.broker.core.ledger import REMEMBERED_FOR, VERSION, Ledger, Verdict, verdict
from penstock.errors import CorruptLog


def made(batch: int, *, rows: int = 10, done: int = 10, at: int = 0) -> Ledger:
    return Ledger(VERSION, batch, at, "w", rows, done)


@pytest.mark.parametrize(
    ("known", "batch", "wanted"),
    [
        (None, 0, Verdict.PUBLISH),
        (None, 7, Verdict.PUBLISH),
        (made(3), 4, Verdict.PUBLISH),
        (made(3), 9, Verdict.PUBLISH),
        (made(3), 3, Verdict.REPEAT),
        (made(3), 2, Verdict.REPEAT),
        (made(3, done=9), 2, Verdict.FINISH_FIRST),
        (made(3, done=0), 3, Verdict.FINISH_FIRST),
        (made(3, done=0), 4, Verdict.FINISH_FIRST),
        (made(3, rows=0, done=0), 3, Verdict.REPEAT),
    ],
)
def test_a_batch_is_published_once_and_numbers_only_go_up(known: Ledger | None, batch: int, wanted: Verdict) -> None:
    assert verdict(known, batch) is wanted


def test_a_slice_that_goes_to_several_streams_is_counted_when_it_has_gone_to_all() -> None:
    state = made(1, done=4)

    first = state.passed(8, 1, now=5)
    second = first.passed(8, 2, now=6)
    whole = second.passed(8, 0, now=7)

    assert (first.done, first.until, first.turns) == (4, 8, 1)
    assert (second.done, second.until, second.turns) == (4, 8, 2)
    assert (whole.done, whole.until, whole.turns, whole.at) == (8, 0, 0, 7)
    assert not whole.is_finished
    assert whole.passed(10, 0, now=8).is_finished


@pytest.mark.parametrize(
    ("state", "now", "wanted"),
    [
        (made(1), REMEMBERED_FOR - 1, False),
        (made(1), REMEMBERED_FOR, True),
        (made(1, done=9), REMEMBERED_FOR * 2, False),
    ],
)
def test_a_query_is_forgotten_when_it_is_silent_and_owes_nothing(state: Ledger, now: int, wanted: bool) -> None:
    assert ledgers.is_forgotten(state, now) is wanted


def test_what_is_stored_comes_back() -> None:
    state = made(5, done=3).passed(6, 1, now=9)

    assert ledgers.decode("writes/q", ledgers.encode(state)) == state


@pytest.mark.parametrize("body", [b"", b"\x93\x01", msgspec.msgpack.encode({"batch": 1})])
def test_a_damaged_ledger_is_refused(body: bytes) -> None:
    with pytest.raises(CorruptLog, match="writes/q"):
        ledgers.decode("writes/q", body)
