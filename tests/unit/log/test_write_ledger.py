"""The ledger of a query: what a commit of a batch means, and how far a batch has got."""

from __future__ import annotations

import msgspec
import pytest

from penstock.errors import CorruptLog
from penstock.log import write_ledger
from penstock.log.write_ledger import REMEMBERED_FOR, STAGED_FOR, VERSION, Ledger, Verdict, key_of, verdict


def made(batch: int, *, rows: int = 10, done: int = 10, at: int = 0) -> Ledger:
    return Ledger(VERSION, batch, at, "w", rows, done)


def test_a_batch_is_published_once_and_numbers_only_go_up(subtests: pytest.Subtests) -> None:
    rows: list[tuple[Ledger | None, int, Verdict]] = [
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
    ]
    for known, batch, wanted in rows:
        with subtests.test(known=known, batch=batch):
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


def test_a_query_is_forgotten_when_it_is_silent_and_owes_nothing(subtests: pytest.Subtests) -> None:
    drawn = msgspec.structs.replace(made(1), directory="a" * 32)  # by Spark's sink, once, for a write without a query
    rows: list[tuple[str, Ledger, int, bool]] = [
        ("q", made(1), REMEMBERED_FOR - 1, False),
        ("q", made(1), REMEMBERED_FOR, True),
        ("q", made(1, done=9), REMEMBERED_FOR * 2, False),
        ("a" * 32, drawn, STAGED_FOR - 1, False),
        ("a" * 32, drawn, STAGED_FOR, True),
        ("b" * 32, drawn, STAGED_FOR, False),
        (key_of(None, "w"), made(1), 0, True),
        (key_of(None, "w"), made(1, done=9), REMEMBERED_FOR * 2, False),
    ]
    for key, state, now, wanted in rows:
        with subtests.test(key=key, state=state, now=now):
            assert write_ledger.is_forgotten(key, state, now) is wanted


def test_a_write_without_a_query_is_a_repeat_only_if_nothing_was_staged_since(subtests: pytest.Subtests) -> None:
    rows: list[tuple[Ledger | None, bool, bool, Verdict]] = [
        (None, False, False, Verdict.PUBLISH),
        (None, True, True, Verdict.PUBLISH),
        (None, False, True, Verdict.REPEAT),
        (made(0), True, True, Verdict.PUBLISH),
        (made(0, done=1), True, False, Verdict.FINISH_FIRST),
    ]
    for known, is_staged, is_published, wanted in rows:
        with subtests.test(known=known, is_staged=is_staged, is_published=is_published):
            assert write_ledger.verdict_of_write(known, is_staged=is_staged, is_published=is_published) is wanted


def test_what_is_stored_comes_back() -> None:
    state = made(5, done=3).passed(6, 1, now=9)

    assert write_ledger.decode("writes/q", write_ledger.encode(state)) == state


def test_a_damaged_ledger_is_refused(subtests: pytest.Subtests) -> None:
    rows: list[bytes] = [b"", b"\x93\x01", msgspec.msgpack.encode({"batch": 1})]
    for body in rows:
        with subtests.test(body=body), pytest.raises(CorruptLog, match="writes/q"):
            write_ledger.decode("writes/q", body)
