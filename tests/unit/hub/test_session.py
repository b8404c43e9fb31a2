"""What waits for one connection: never more than it may, nothing lost, nothing out of order, and known when it stalls."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.hub.core.session import Outbox


def frame(length: int) -> tuple[int, tuple[bytes, ...]]:
    return length, (b"x" * length,)


def filled(*lengths: int, max_bytes: int = 100, max_messages: int = 10, now: int = 0) -> Outbox:
    outbox = Outbox(max_bytes, max_messages)
    for length in lengths:
        assert outbox.push(*frame(length), now)
    return outbox


def test_frames_come_out_as_they_went_in() -> None:
    outbox = Outbox(100, 10)
    head, tail = b"head", b"tail"

    assert outbox.push(12, (head, b"@one", tail), 0)
    assert outbox.push(3, (b"two",), 0)

    assert (len(outbox), outbox.bytes) == (2, 15)
    first, second = outbox.take(100)
    assert first == (12, (head, b"@one", tail))
    assert first[1][0] is head, "parts are passed on, not copied"
    assert second == (3, (b"two",))
    assert (len(outbox), outbox.bytes) == (0, 0)


@pytest.mark.parametrize(
    ("waiting", "length", "is_taken"),
    [
        ((), 100, True),
        ((), 101, True),  # alone, whatever its size
        ((60,), 40, True),
        ((60,), 41, False),
        ((1,) * 9, 1, True),
        ((1,) * 10, 1, False),
        ((101,), 0, False),
    ],
)
def test_it_takes_what_may_wait_and_no_more(waiting: tuple[int, ...], length: int, is_taken: bool) -> None:
    outbox = filled(*waiting)

    assert outbox.push(*frame(length), 0) is is_taken

    assert len(outbox) == len(waiting) + is_taken
    assert outbox.bytes == sum(waiting) + is_taken * length


@pytest.mark.parametrize(
    ("room", "taken"),
    [(-1, []), (0, []), (1, [10]), (29, [10]), (30, [10, 20]), (59, [10, 20]), (60, [10, 20, 30]), (1000, [10, 20, 30])],
)
def test_a_take_fills_the_room_with_whole_frames(room: int, taken: list[int]) -> None:
    outbox = filled(10, 20, 30)

    assert [length for length, _ in outbox.take(room)] == taken

    assert outbox.bytes == 60 - sum(taken)
    assert [length for length, _ in outbox.take(60)] == [10, 20, 30][len(taken) :]


def test_a_frame_larger_than_the_room_goes_alone() -> None:
    outbox = filled(500, max_bytes=100)

    assert outbox.take(64) == [frame(500)]
    assert outbox.take(64) == []


def test_it_is_stalled_when_nothing_was_taken_for_the_span() -> None:
    outbox = filled(10, now=1_000)
    outbox.push(*frame(10), 1_500)  # what joins later does not begin the span anew

    assert not outbox.is_stalled(1_999, 1_000)
    assert outbox.is_stalled(2_000, 1_000)
    assert outbox.stalled_since == 1_000


def test_an_empty_one_is_never_stalled() -> None:
    outbox = filled(10, now=0)
    outbox.take(10)

    assert outbox.stalled_since is None
    assert not outbox.is_stalled(10**15, 1)


def test_a_take_begins_the_span_anew_from_the_next_look() -> None:
    outbox = filled(10, 10, now=0)
    outbox.take(10)

    assert not outbox.is_stalled(5_000, 1_000)
    assert not outbox.is_stalled(5_999, 1_000)
    assert outbox.is_stalled(6_000, 1_000)


def test_a_take_without_room_is_no_take() -> None:
    outbox = filled(10, now=0)
    outbox.take(0)

    assert outbox.is_stalled(1_000, 1_000)


def test_cleared_it_is_as_new() -> None:
    outbox = filled(60, 40, now=0)
    outbox.clear()

    assert (len(outbox), outbox.bytes, outbox.stalled_since) == (0, 0, None)
    assert outbox.push(*frame(100), 7)
    assert outbox.stalled_since == 7


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 120)), max_size=60))
def test_nothing_that_was_taken_in_is_lost_doubled_or_overtaken(steps: list[tuple[bool, int]]) -> None:
    outbox = Outbox(100, 5)
    went_in: list[bytes] = []
    came_out: list[bytes] = []
    for step, (is_push, size) in enumerate(steps):
        if is_push:
            name = str(step).encode()
            if outbox.push(size, (name,), step):
                went_in.append(name)
        else:
            frames = outbox.take(size)
            assert bool(frames) == (size > 0 and len(came_out) < len(went_in))
            assert len(frames) <= 1 or sum(length for length, _ in frames) <= size
            came_out += [parts[0] for _, parts in frames]
        assert len(outbox) == len(went_in) - len(came_out) <= 5
        assert len(outbox) <= 1 or outbox.bytes <= 100
    came_out += [parts[0] for _, parts in outbox.take(1000)]
    assert came_out == went_in
    assert outbox.bytes == 0


def test_what_waited_elsewhere_is_taken_in_however_much_it_is() -> None:
    outbox, other = Outbox(10, 2), filled(6, 4, 3, now=1)

    outbox.extend(other.take(100), 5)
    outbox.extend(other.take(100), 6)

    assert (len(outbox), outbox.bytes, outbox.stalled_since) == (3, 13, 5)
    assert not outbox.push(*frame(1), 7)
    outbox.extend([frame(2)], 8)
    assert ([length for length, _ in outbox.take(100)], outbox.bytes) == ([6, 4, 3, 2], 0)
