"""The structures that make the core fast, each against the plain thing it stands for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.backoff import exponential
from penstock.broker.core import leases as leases_module
from penstock.broker.core.leases import Consumer, Lease, Leases
from penstock.broker.core.ordering import KeyLanes
from penstock.broker.core.pages import OVERHEAD, PAGE, Pages
from penstock.broker.core.ready import Level, Ready
from penstock.broker.core.waiting import Waiting
from penstock.durations import FOREVER, instant, micros, to_datetime
from penstock.errors import InvalidArgument
from penstock.ids import ack_id, message_id, parse_ack_id, parse_message_id
from penstock.journal.core.ranges import holds, merge, overlaps, subtract
from penstock.values.message import StoredMessage
from tests.property.strategies import effort, patience

pytestmark = patience

spans = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 6)), max_size=8).map(
    lambda pairs: [(start, start + length) for start, length in pairs]
)
picks = st.integers(0, 1 << 16)


def offsets_of(ranges: list[tuple[int, int]]) -> set[int]:
    return {offset for start, stop in ranges for offset in range(start, stop)}


# ── ready ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def take(level: Level, most: int) -> list[int]:
    """Take offsets the way a queue does: runs where there are runs, one by one where not."""
    taken: list[int] = []
    while level.count and len(taken) < most:
        start, stop = level.take(most - len(taken))
        if start < stop:
            taken += range(start, stop)
        else:
            taken.append(level.first())
            level.pop()
    return taken


LEVEL_MOVES = st.lists(
    st.tuples(st.sampled_from(["publish", "publish", "take", "take", "return", "return", "remove"]), picks), max_size=60
)


@effort(8)
@given(moves=LEVEL_MOVES)
def test_a_level_gives_its_offsets_in_order_of_age_like_a_sorted_list(moves: list[tuple[str, int]]) -> None:
    level, waiting, away, fresh = Level(), list[int](), list[int](), 0
    for move, pick in moves:
        match move:
            case "publish":
                fresh += pick // 4 % 2  # sometimes a gap: an offset of another priority
                level.add(fresh, fresh + 1 + pick % 4)
                waiting += range(fresh, fresh + 1 + pick % 4)
                fresh += 1 + pick % 4
            case "take":
                taken = take(level, pick % 5)
                assert taken == waiting[: pick % 5]
                del waiting[: len(taken)]
                away += taken
            case "return" if away:
                offset = away.pop(pick % len(away))
                level.add(offset, offset + 1)
                waiting = sorted([*waiting, offset])
            case "remove" if waiting:
                offset = waiting.pop(pick % len(waiting))
                level.remove(offset)
                away.append(offset)
            case _:
                continue
        assert level.count == len(waiting)
        assert merge(level.ranges()) == merge((offset, offset + 1) for offset in waiting)
        assert sum(stop - start for start, stop in level.ranges()) == len(waiting)
        assert [offset for offset in range(fresh) if offset in level] == waiting
    assert take(level, len(waiting)) == waiting


@effort(8)
@given(messages=st.lists(st.integers(0, 9), max_size=40), removed=st.sets(st.integers(0, 39)))
def test_ready_gives_the_most_urgent_first_and_the_oldest_of_them(messages: list[int], removed: set[int]) -> None:
    ready = Ready()
    for offset, priority in enumerate(messages):
        ready.add(priority, offset, offset + 1)
    for offset in removed & set(range(len(messages))):
        ready.remove(messages[offset], offset)
    left = [offset for offset in range(len(messages)) if offset not in removed]
    assert all((offset in ready) == (offset in left) for offset in range(len(messages)))
    assert merge(ready.ranges()) == merge((offset, offset + 1) for offset in left)
    for priority in range(10):
        assert ready.ahead(priority) == sum(messages[offset] >= priority for offset in left)
    taken = [offset for level in ready.levels for offset in take(level, level.count)]
    assert taken == sorted(left, key=lambda offset: (-messages[offset], offset))


# ── ordering ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


LANE_MOVES = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "add", "lease", "lease", "lease", "come back", "settle", "remove", "widen"]),
        st.sampled_from("abc"),
        picks,
    ),
    max_size=60,
)


@effort(12)
@given(moves=LANE_MOVES)
def test_a_key_is_leased_in_order_to_one_consumer_and_its_next_message_is_reserved_for_that(
    moves: list[tuple[str, str, int]],
) -> None:
    """What comes back here need not be the last that was leased: `leased_after` says what must come back with it."""
    ready, consumers = Ready(), [Consumer("w1", reserved=Ready()), Consumer("w2", reserved=Ready())]
    lanes, waiting = KeyLanes(ready, ()), dict[str, list[int]]()
    leased: dict[str, list[int]] = {}
    holders: dict[str, Consumer | None] = {}

    def priority(offset: int) -> int:
        return moves[offset][2] % 10

    def places() -> tuple[list[int], list[list[int]]]:
        """What is deliverable to everybody, and to each consumer alone."""
        common, own = list[int](), [list[int](), list[int]()]
        for key, line in waiting.items():
            holder = holders.get(key) if leased.get(key) else None
            if line and not leased.get(key):
                common.append(line[0])
            elif line and holder is not None and len(leased[key]) < holder.key_window:
                own[consumers.index(holder)].append(line[0])
        return common, own

    def offsets(place: Ready | None) -> list[int]:
        assert place is not None
        return sorted(offset for start, stop in place.ranges() for offset in range(start, stop))

    for fresh, (move, key, pick) in enumerate(moves):
        line, held = waiting.setdefault(key, []), leased.setdefault(key, [])
        if move == "add":
            lanes.add(key, fresh, priority(fresh))
            line.append(fresh)
        elif move == "lease" and line:
            common, own = places()
            place, holder = ready, [*consumers, None][pick % 3]
            if line[0] not in common:
                holder = holders[key]
                if holder is None or line[0] not in own[consumers.index(holder)]:
                    continue
                assert holder.reserved is not None
                place = holder.reserved
            place.remove(priority(line[0]), line[0])
            lanes.lease(key, line[0], holder)
            holders[key] = holder
            held.append(line.pop(0))
        elif move in {"come back", "settle"} and held:
            offset = held.pop(pick % len(held))
            if move == "settle":
                lanes.settle(key, offset)
            else:
                lanes.come_back(key, offset, priority(offset))
                waiting[key] = sorted([*line, offset])
                assert lanes.leased_after(key, offset) == [later for later in held if later > offset]
        elif move == "remove" and line:
            lanes.remove(key, line.pop(pick % len(line)))
        elif move == "widen":
            consumer = consumers[pick % 2]
            consumer.key_window = 1 + pick % 3
            for other, out in leased.items():
                if out and holders[other] is consumer:
                    lanes.widen(other)
        common, own = places()
        assert offsets(ready) == sorted(common)
        assert [offsets(consumer.reserved) for consumer in consumers] == [sorted(each) for each in own]
        assert lanes.reserved == sum(map(len, own))
        assert sorted(lanes.waiting()) == sorted(offset for each in waiting.values() for offset in each)
        for each in "abc":
            out, rest = leased.get(each, []), waiting.get(each, [])
            assert lanes.head(each) == (out[0] if out else rest[0] if rest else None)
            assert [offset for offset in range(fresh + 1) if lanes.holds(each, offset)] == rest


# ── waiting ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Waiter:
    priority: int
    key: str
    due: int = 0
    is_leased: bool = False


WAITING_MOVES = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "add", "lease", "come back", "settle", "remove", "wake", "wake"]),
        picks,
        st.integers(0, 3),
        st.sampled_from(["", "a", "a", "b"]),
    ),
    max_size=60,
)


@effort(12)
@given(moves=WAITING_MOVES)
def test_what_waits_is_deliverable_when_it_is_due_and_leads_its_key(moves: list[tuple[str, int, int, str]]) -> None:
    waiting, model, now = Waiting(), dict[int, Waiter](), 0

    def deliverable() -> list[int]:
        heads = {key: min(o for o, one in model.items() if one.key == key) for key in {one.key for one in model.values()}}
        able = [
            offset
            for offset, one in model.items()
            if not one.is_leased and one.due <= now and (not one.key or heads[one.key] == offset)
        ]
        return sorted(able, key=lambda offset: (-model[offset].priority, offset))

    for fresh, (move, pick, step, key) in enumerate(moves):
        leased = sorted(offset for offset, one in model.items() if one.is_leased)
        here = sorted(offset for offset, one in model.items() if not one.is_leased)
        if move == "add":
            model[fresh] = Waiter(pick % 3, key, now + step if step else 0)
            waiting.add(fresh, pick % 3, key, now + step if step else None)
        elif move == "lease" and (able := deliverable()):
            level = next(level for level in waiting.ready.levels if level.count)
            assert take(level, 1) == able[:1]
            model[able[0]].is_leased = True
            if model[able[0]].key:
                waiting.lanes.lease(model[able[0]].key, able[0], None)
        elif move == "come back" and leased:
            offset = leased[pick % len(leased)]
            one = model[offset]
            one.is_leased, one.due = False, now + step if step else 0
            waiting.come_back(offset, one.priority, one.key, now + step if step else None)
        elif move == "settle" and leased:
            offset = leased[pick % len(leased)]
            one = model.pop(offset)
            if one.key:
                waiting.lanes.settle(one.key, offset)
        elif move == "remove" and here:
            offset = here[pick % len(here)]
            one = model.pop(offset)
            waiting.remove(offset, one.priority, one.key)
        elif move == "wake":
            now += step
            waiting.wake(now)
        assert waiting.upcoming(1_000) == deliverable()
        delayed = [one.due for one in model.values() if not one.is_leased and one.due > now]
        assert waiting.delayed == len(delayed)
        assert waiting.next_due() == min(delayed, default=FOREVER)
        assert waiting.ranges() == merge((offset, offset + 1) for offset, one in model.items() if not one.is_leased)


# ── leases ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


LEASE_MOVES = st.lists(
    st.tuples(
        st.sampled_from(["grant", "grant", "again", "end", "move", "move", "due", "next", "oldest"]), picks, st.integers(0, 6)
    ),
    max_size=60,
)


@effort(8)
@given(moves=LEASE_MOVES)
def test_leases_end_at_their_deadline_and_only_the_live_ones(moves: list[tuple[str, int, int]]) -> None:
    leases, live, consumers = Leases(), dict[int, Lease](), [Consumer("w1"), Consumer("w2"), None]
    fresh = now = 0
    with mock.patch.object(leases_module, "_LEFTOVERS", 3):  # so that sweeping happens in a short life, too
        for move, pick, step in moves:
            some = live[sorted(live)[pick % len(live)]] if live else None
            if move == "grant":
                consumer = consumers[pick % 3]
                granted = [Lease(now + step, fresh + i, 1, 0, stored(pick % 7), consumer) for i in range(1 + pick % 4)]
                granted = granted[::-1] if pick % 2 else granted  # urgent ones come first, whatever their age
                leases.grant(granted, now + step)
                live |= {lease.offset: lease for lease in granted}
                fresh += len(granted)
                if consumer is not None:
                    consumer.held.update(lease.offset for lease in granted)
            elif move == "again" and fresh > len(live):
                settled = sorted(set(range(fresh)) - set(live))
                again = Lease(now + step, settled[pick % len(settled)], 2, 0, stored(pick % 7))
                leases.grant([again], now + step)
                live[again.offset] = again
            elif move == "end" and some is not None:
                leases.end([some])
                del live[some.offset]
            elif move == "move" and some is not None:
                leases.move(some, now + step)
                moved = leases.get(some.offset)
                assert moved is not None
                live[some.offset] = moved
            elif move == "due":
                now += step
                ended = []
                for lease in leases.due(now):
                    leases.end([lease])
                    ended.append(lease)
                assert {lease.offset for lease in ended} == {o for o, lease in live.items() if lease.deadline <= now}
                assert [lease.deadline for lease in ended] == sorted(lease.deadline for lease in ended)
                live = {offset: lease for offset, lease in live.items() if lease.deadline > now}
            elif move == "next":
                assert leases.next_deadline() == min((lease.deadline for lease in live.values()), default=None)
            elif move == "oldest":
                assert leases.oldest() == min(live, default=None)
            assert len(leases) == len(live)
            assert {lease.offset: lease.deadline for lease in leases.live()} == {o: lease.deadline for o, lease in live.items()}
            assert leases.size == sum(lease.message.size for lease in live.values())
            for consumer in consumers[:2]:
                assert consumer is not None
                assert consumer.held == {lease.offset for lease in live.values() if lease.consumer is consumer}


def stored(size: int) -> StoredMessage:
    return StoredMessage(0, b"x" * size, None, "", 5, size)


# ── pages ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


@effort(8)
@given(
    moves=st.lists(
        st.tuples(
            st.sampled_from(["append", "append", "put", "drop", "thin"]), st.integers(0, 3 * PAGE), st.integers(1, PAGE + 9)
        ),
        max_size=12,
    ),
    looks=st.lists(st.tuples(st.integers(0, 4 * PAGE), st.integers(0, 2 * PAGE)), max_size=6),
)
def test_pages_hold_messages_like_a_dict(moves: list[tuple[str, int, int]], looks: list[tuple[int, int]]) -> None:
    pages, model = Pages(), dict[int, StoredMessage]()
    for move, at, count in moves:
        if move in {"drop", "thin"}:
            page = range(at // PAGE * PAGE, at // PAGE * PAGE + PAGE)
            kept = [(at, min(at + count, page.stop))] if move == "thin" else []
            gone = [offset for offset in page if offset in model and not (kept and kept[0][0] <= offset < kept[0][1])]
            assert pages.drop(at // PAGE, kept) == sum(model.pop(offset).size + OVERHEAD for offset in gone)
            assert (at // PAGE in pages) == any(offset in model for offset in page)
        else:
            first = max(model, default=-1) + 1 if move == "append" else at
            if any(offset in model for offset in range(first, first + count)):
                continue
            messages = [stored(offset % 5) for offset in range(first, first + count)]
            pages.put(first, messages, sum(message.size for message in messages))
            model |= dict(enumerate(messages, first))
        assert pages.size == sum(message.size + OVERHEAD for message in model.values())
    for start, length in looks:
        assert pages.get(start) is model.get(start)
        expected = []
        for offset in range(start, start + length):
            if offset not in model:
                break
            expected.append(model[offset])
        found = pages.span(start, start + length)
        assert len(found) == len(expected)
        assert all(one is other for one, other in zip(found, expected, strict=True))
    assert set(pages.page_numbers()) >= {offset // PAGE for offset in model}


# ── ranges ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


@effort(8)
@given(ranges=spans)
def test_merged_ranges_are_sorted_disjoint_and_hold_the_same_offsets(ranges: list[tuple[int, int]]) -> None:
    merged = merge(ranges)
    assert offsets_of(merged) == offsets_of(ranges)
    assert all(stop < start for (_, stop), (start, _) in pairwise(merged))
    assert merge(merged) == merged


@effort(8)
@given(ranges=spans, holes=spans)
def test_subtracting_ranges_is_subtracting_sets(ranges: list[tuple[int, int]], holes: list[tuple[int, int]]) -> None:
    left = subtract(merge(ranges), merge(holes))
    assert offsets_of(left) == offsets_of(ranges) - offsets_of(holes)
    assert left == sorted(left)
    assert all(start < stop for start, stop in left)


@effort(8)
@given(ranges=spans, start=st.integers(0, 50), length=st.integers(0, 8))
def test_asking_ranges_is_asking_sets(ranges: list[tuple[int, int]], start: int, length: int) -> None:
    merged, offsets = merge(ranges), offsets_of(ranges)
    assert holds(merged, start) == (start in offsets)
    if length:
        assert overlaps(merged, start, start + length) == bool(offsets & set(range(start, start + length)))


# ── ids ──────────────────────────────────────────────────────────────────────────────────────────────────────────────────

places = st.tuples(st.integers(0, (1 << 56) - 1), st.integers(0, (1 << 24) - 1), st.integers(0, (1 << 40) - 1))
deliveries = st.tuples(
    st.integers(0, (1 << 24) - 1), st.integers(0, (1 << 40) - 1), st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 32) - 1)
)


@effort(8)
@given(place=places, other=places)
def test_decision_30_message_ids_come_back_and_sort_by_time(place: tuple[int, int, int], other: tuple[int, int, int]) -> None:
    assert parse_message_id(message_id(*place)) == place
    assert (message_id(*place) < message_id(*other)) == (place < other)
    assert (message_id(*place) == message_id(*other)) == (place == other)


@effort(8)
@given(delivery=deliveries, place=places)
def test_ack_ids_come_back_and_are_never_taken_for_message_ids(
    delivery: tuple[int, int, int, int], place: tuple[int, int, int]
) -> None:
    assert parse_ack_id(ack_id(*delivery)) == delivery
    assert parse_message_id(ack_id(*delivery)) is None
    assert parse_ack_id(message_id(*place)) is None


ID_LIKE = st.one_of(st.text(), st.text("0123456789abcdefABCDEF+-_ xX٣", min_size=29, max_size=33), st.integers(), st.none())


@effort(8)
@given(text=ID_LIKE)
def test_a_text_is_an_id_only_if_the_broker_would_write_it_so(text: object) -> None:
    place, delivery = parse_message_id(text), parse_ack_id(text)
    assert place is None or message_id(*place) == text
    assert delivery is None or ack_id(*delivery) == text


# ── time ─────────────────────────────────────────────────────────────────────────────────────────────────────────────────

CENTURY = 100 * 365 * 86_400 * 1_000_000


@effort(8)
@given(span=st.integers(0, CENTURY))
def test_decision_35_a_duration_is_exact_to_the_microsecond(span: int) -> None:
    assert micros(timedelta(microseconds=span), "span") == span
    assert micros(span // 1_000_000, "span") == span // 1_000_000 * 1_000_000
    if span < CENTURY // 100:  # a float has no more digits than that
        assert micros(span / 1_000_000, "span") == span


@effort(8)
@given(at=st.integers(0, CENTURY), hours=st.integers(-23, 23))
def test_decision_35_an_instant_comes_back_as_the_same_utc_datetime(at: int, hours: int) -> None:
    moment = to_datetime(at)
    assert moment.tzinfo is UTC
    assert instant(moment, "at") == at
    assert instant(moment.astimezone(timezone(timedelta(hours=hours))), "at") == at


@effort(8)
@given(
    value=st.one_of(
        st.floats(max_value=-1e-6),
        st.sampled_from([math.nan, math.inf, -math.inf, True, False, None, "5", b"5"]),
        st.timedeltas(max_value=timedelta(microseconds=-1)),
    )
)
def test_what_is_no_duration_is_refused(value: object) -> None:
    with pytest.raises(InvalidArgument):
        micros(value, "span")


def test_an_instant_without_a_time_zone_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="time zone"):
        instant(datetime(2026, 1, 1), "at")  # noqa: DTZ001  # that it is naive is the point


@effort(8)
@given(attempt=st.integers(1, 80), minimum=st.integers(0, 10**13), maximum=st.integers(0, 10**13))
def test_decision_3_backoff_doubles_up_to_its_maximum(attempt: int, minimum: int, maximum: int) -> None:
    assert exponential(attempt, minimum, maximum) == min(minimum * 2 ** (attempt - 1), maximum)
    assert exponential(attempt + 10**6, minimum, maximum) == (maximum if minimum else 0)
