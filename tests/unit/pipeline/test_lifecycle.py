"""The life of a message from its events: expected rows by hand, and what must hold for any events."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.ids import message_id
from penstock.pipeline.core.lifecycle import Event, Lives, Row

MS = 1000
PUBLISHED = 1_000 * MS
ID = message_id(PUBLISHED, 1, 7)


def event(offset: int, ms: int, kind: str, attempt: int = 0, **more: object) -> Event:
    """An event of message 7 in the subscription `s`, `ms` milliseconds after 0."""
    given: dict[str, object] = {
        "subscription": None if kind == "published" else "s",
        "message_offset": 7,
        "message_id": ID,
    } | more
    return Event(offset, ms * MS, kind, attempt=attempt, **given)  # type: ignore[arg-type]  # names of fields, checked by use


def row(**columns: object) -> Row:
    """A row of an uneventful life, but for some columns."""
    usual: dict[str, object] = {
        "subscription": "s",
        "message_offset": 7,
        "message_id": ID,
        "published_at": PUBLISHED,
        "first_delivered_at": 1_010 * MS,
        "settled_at": 1_025 * MS,
        "updated_at": 1_025 * MS,
        "attempts": 1,
        "nacks": 0,
        "expiries": 0,
        "consumer": "w1",
        "wait_ms": 10.0,
        "processing_ms": 15.0,
        "outcome": "acked",
        "is_late": False,
        "event_offset": 2,
    }
    return Row(**(usual | columns))  # type: ignore[arg-type]  # names of fields, checked by use


def settle_once() -> list[Event]:
    return [event(0, 1_000, "published"), event(1, 1_010, "leased", 1, consumer="w1"), event(2, 1_025, "acked", 1)]


def never_delivered(**columns: object) -> Row:
    """A row of a message that ended without a delivery."""
    absent = {"first_delivered_at": None, "attempts": 0, "consumer": None, "wait_ms": None, "processing_ms": None}
    return row(**absent | columns)


def test_a_message_that_is_delivered_and_acked_gives_one_row() -> None:
    assert Lives().fold(settle_once()) == [row()]


def test_the_publish_time_is_in_the_id_so_the_published_event_is_not_needed() -> None:
    assert Lives().fold(settle_once()[1:]) == [row()]


def test_a_message_that_only_waits_has_no_row() -> None:
    lives = Lives()

    assert lives.fold(settle_once()[:1]) == []
    assert lives.finish() == []


def test_attempts_nacks_and_expiries_are_counted_and_processing_is_that_of_the_last_lease() -> None:
    events = [
        event(0, 1_010, "leased", 1, consumer="w1"),
        event(1, 1_020, "nacked", 1),
        event(2, 1_030, "leased", 2, consumer="w2"),
        event(3, 1_090, "expired", 2),
        event(4, 1_100, "leased", 3, consumer="w3"),
        event(5, 1_105, "extended"),
        event(6, 1_140, "acked", 3),
    ]

    settled = 1_140 * MS
    assert Lives().fold(events) == [
        row(
            settled_at=settled,
            updated_at=settled,
            attempts=3,
            nacks=1,
            expiries=1,
            consumer="w3",
            processing_ms=40.0,
            event_offset=6,
        )
    ]


def test_a_released_lease_does_not_count() -> None:
    events = [
        event(0, 1_002, "leased", 1, consumer="gone"),
        event(1, 1_004, "released", 0),
        *(e._replace(offset=e.offset + 1) for e in settle_once()[1:]),
    ]

    assert Lives().fold(events) == [row(event_offset=3)]


def test_a_released_second_lease_leaves_the_first_attempt() -> None:
    events = [
        event(0, 1_010, "leased", 1, consumer="w1"),
        event(1, 1_011, "nacked", 1),
        event(2, 1_012, "leased", 2, consumer="gone"),
        event(3, 1_013, "released", 1),
        event(4, 1_020, "leased", 2, consumer="w1"),
        event(5, 1_025, "acked", 2),
    ]

    assert Lives().fold(events) == [row(attempts=2, nacks=1, processing_ms=5.0, event_offset=5)]


@pytest.mark.parametrize(("cause", "nacks", "expiries"), [("nacked", 1, 0), ("expired", 0, 1)])
def test_a_dead_letter_counts_the_failure_that_killed_it(cause: str, nacks: int, expiries: int) -> None:
    events = [event(1, 1_010, "leased", 1, consumer="w1"), event(2, 1_025, "dead_lettered", 1, cause=cause)]

    assert Lives().fold(events) == [row(outcome="dead_lettered", nacks=nacks, expiries=expiries)]


def test_a_message_that_dies_of_age_between_two_leases_was_not_being_processed() -> None:
    events = [
        event(0, 1_010, "leased", 1, consumer="w1"),
        event(1, 1_015, "nacked", 1),
        event(2, 1_025, "dead_lettered", 1, cause="ttl"),
    ]

    assert Lives().fold(events) == [row(outcome="dead_lettered", nacks=1, processing_ms=None)]


def test_a_message_that_is_dropped_or_dies_before_any_delivery_has_a_row_with_no_attempt() -> None:
    published = event(0, 1_000, "published")

    dropped = Lives().fold([published, event(2, 1_025, "dropped", message_id=None)])
    died = Lives().fold([published, event(2, 1_025, "dead_lettered", cause="ttl")])

    assert dropped == [never_delivered(outcome="dropped")]
    assert died == [never_delivered(outcome="dead_lettered")]


def test_a_dropped_message_whose_publishing_is_unknown_has_no_id() -> None:
    assert Lives().fold([event(2, 1_025, "dropped", message_id=None)]) == [
        never_delivered(outcome="dropped", message_id=None, published_at=None)
    ]


def test_a_dead_letter_that_is_redriven_lives_again() -> None:
    death = [event(1, 1_010, "leased", 1, consumer="w1"), event(2, 1_025, "dead_lettered", 1, cause="nacked")]
    again = [event(4, 2_010, "leased", 1, consumer="w2"), event(5, 2_011, "acked", 1)]

    first, second = Lives().fold(death + again)

    assert first == row(outcome="dead_lettered", nacks=1)
    at = 2_011 * MS
    assert second == row(
        first_delivered_at=2_010 * MS,
        settled_at=at,
        updated_at=at,
        consumer="w2",
        wait_ms=1010.0,
        processing_ms=1.0,
        event_offset=5,
    )


def test_what_a_seek_delivers_again_gives_another_row() -> None:
    again = [e._replace(offset=e.offset + 10) for e in settle_once()[1:]]

    assert Lives().fold(settle_once() + again) == [row(), row(event_offset=12)]


def test_a_first_attempt_in_the_midst_of_a_life_ends_it_as_open() -> None:
    """The subscription was sought beyond the message, and then back."""
    events = [event(0, 1_005, "leased", 1, consumer="w0"), *settle_once()[1:]]

    lost, settled = Lives().fold(events)

    assert (lost.outcome, lost.settled_at, lost.consumer, lost.event_offset) == ("open", None, "w0", 0)
    assert settled == row()


def test_a_topic_made_anew_has_other_messages_at_the_same_offsets() -> None:
    other = message_id(PUBLISHED + 5 * MS, 2, 7)
    events = [
        event(0, 1_005, "leased", 1, consumer="w1"),
        event(1, 1_015, "leased", 2, consumer="w1", message_id=other),
        event(2, 1_020, "acked", 2, message_id=other),
    ]

    lost, settled = Lives().fold(events)

    assert (lost.message_id, lost.outcome) == (ID, "open")
    assert (settled.message_id, settled.outcome, settled.attempts) == (other, "acked", 2)


def test_subscriptions_do_not_touch_each_other() -> None:
    other = [e._replace(subscription="t", consumer="w2") if e.subscription else e for e in settle_once()]
    events = sorted([*settle_once(), *other[1:]], key=lambda e: e.offset)

    assert Lives().fold(events) == [row(), row(subscription="t", consumer="w2")]


def test_a_life_without_news_is_let_go_after_its_lease_would_have_ended() -> None:
    lives = Lives()
    lives.fold([event(1, 1_010, "leased", 1, consumer="w1", until=1_500 * MS)])

    assert lives.next_expiry() == 1_500 * MS
    assert lives.expire(1_500 * MS) == []
    assert lives.expire(1_500 * MS + 1) == [
        row(outcome="open", settled_at=None, updated_at=1_010 * MS, processing_ms=None, event_offset=1)
    ]
    assert lives.next_expiry() is None


def test_what_comes_for_a_life_that_was_let_go_is_late() -> None:
    lives = Lives()
    lives.fold([event(1, 1_010, "leased", 1, consumer="w1")])
    lives.expire(1_011 * MS)

    late = lives.fold([event(2, 1_025, "acked", 1)])

    assert late == [row(is_late=True, first_delivered_at=None, wait_ms=None, processing_ms=None, consumer=None)]


@pytest.mark.parametrize(
    "beginning",
    [
        event(1, 1_010, "leased", 2, consumer="w1"),
        event(1, 1_010, "nacked", 1),
        event(1, 1_010, "expired", 1),
        event(1, 1_010, "extended"),
        event(1, 1_010, "released", 1),
    ],
    ids=lambda e: e.kind,
)
def test_a_life_whose_beginning_is_unknown_is_late_to_its_end(beginning: Event) -> None:
    (settled,) = Lives().fold([beginning, event(2, 1_025, "acked", 2)])

    assert settled.is_late
    assert settled.first_delivered_at is None
    assert settled.wait_ms is None
    assert settled.attempts == 2


def test_a_life_that_starts_over_by_a_release_is_not_late() -> None:
    lives = Lives()
    late = [event(0, 1_002, "extended"), event(0, 1_003, "released", 0)]

    assert lives.fold(late + settle_once()[1:]) == [row()]


def test_ids_are_kept_as_long_as_a_late_drop_may_want_them() -> None:
    lives = Lives()
    lives.fold([event(0, 1_000, "published")])

    lives.expire(PUBLISHED)
    assert lives.next_expiry() == PUBLISHED
    lives.expire(PUBLISHED + 1)

    assert lives.next_expiry() is None


def test_what_is_stored_of_a_batch_published_together_is_short() -> None:
    lives = Lives()
    together = [Event(offset, PUBLISHED, "published", None, offset, message_id(PUBLISHED, 1, offset)) for offset in range(4096)]
    lives.fold(together)

    assert len(lives.dump()) < 60


def test_what_is_stored_knows_the_ids_of_the_messages_that_were_published_and_of_no_others() -> None:
    lives = Lives()
    lives.fold([Event(offset, PUBLISHED, "published", None, offset, message_id(PUBLISHED, 1, offset)) for offset in (0, 2)])

    restored = Lives.load(lives.dump())
    rows = restored.fold([event(9, 1_025, "dropped", message_id=None, message_offset=offset) for offset in (0, 1, 2)])

    assert [row.message_id for row in rows] == [message_id(PUBLISHED, 1, 0), None, message_id(PUBLISHED, 1, 2)]


KINDS = ("published", "leased", "leased", "acked", "nacked", "expired", "released", "extended", "dead_lettered", "dropped")


@st.composite
def histories(draw: st.DrawFn) -> list[Event]:
    """Any events in any order, likely and unlikely ones: a fold must not trust its input."""
    found = []
    for offset in range(draw(st.integers(0, 40))):
        kind, message = draw(st.sampled_from(KINDS)), draw(st.integers(0, 3))
        found.append(
            Event(
                offset,
                draw(st.integers(0, 50)) * MS,
                kind,
                None if kind == "published" else draw(st.sampled_from(["s", "t"])),
                message,
                None if kind == "dropped" else message_id(draw(st.sampled_from([1, 2])) * MS, 1, message),
                draw(st.integers(0, 3)),
                draw(st.sampled_from([None, "w"])),
                draw(st.integers(0, 60)) * MS,
                draw(st.sampled_from(["", "nacked", "expired", "ttl"])),
            )
        )
    return found


@given(histories())
def test_every_settling_event_gives_exactly_one_row_and_every_row_is_of_one_event(events: list[Event]) -> None:
    lives = Lives()
    rows = lives.fold(events) + lives.finish()

    settling = [e.offset for e in events if e.kind in {"acked", "dead_lettered", "dropped"}]
    assert [r.event_offset for r in rows if r.outcome != "open"] == settling
    assert len({(r.event_offset, r.outcome) for r in rows}) == len(rows)
    assert all(r.nacks + r.expiries <= len(events) and r.attempts >= 0 for r in rows)


@given(histories(), st.lists(st.integers(0, 40), max_size=4))
def test_cutting_the_events_into_batches_and_storing_in_between_changes_nothing(events: list[Event], cuts: list[int]) -> None:
    whole = Lives()
    expected = whole.fold(events) + whole.finish()

    rows: list[Row] = []
    lives = Lives()
    edges = [0, *sorted(cuts), len(events)]
    for start, stop in pairwise(edges):
        rows += lives.fold(events[start:stop])
        lives = Lives.load(lives.dump())
    assert rows + lives.finish() == expected


@given(histories(), st.integers(0, 70))
def test_nothing_is_remembered_after_the_last_expiry(events: list[Event], watermark: int) -> None:
    lives = Lives()
    lives.fold(events)

    lives.expire(watermark * MS)
    due = lives.next_expiry()
    assert due is None or due >= min(watermark, 1) * MS
    lives.expire(100 * MS)

    assert lives.next_expiry() is None
    assert lives.finish() == []
