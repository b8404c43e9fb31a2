"""Reading what comes: whole lines wherever the pieces end, and nobody is waited for."""

import argparse
import asyncio
import os
import threading
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.input import BATCH, BATCH_BYTES, _cut, _sent, check_source, line, lines
from penstock.errors import InvalidArgument, Unavailable


@pytest.mark.parametrize(
    ("pieces", "found"),
    [
        ([b"a\nb\n"], [b"a", b"b"]),
        ([b"a\nb"], [b"a", b"b"]),
        ([b"\n\n\r\na\r\n"], [b"a"]),
        ([b"a\nb", b"c\nd\n"], [b"a", b"bc", b"d"]),
        ([b"a\nb", b"c\n", b"d\ne"], [b"a", b"bc", b"d", b"e"]),
        ([b"\xff\x00\n"], [b"\xff\x00"]),
    ],
)
def test_lines_are_whole_wherever_the_pieces_end(pieces: list[bytes], found: list[bytes]) -> None:
    async def main() -> None:
        reading, writing = os.pipe()
        os.write(writing, pieces[0])
        coming = iter([*pieces[1:], b""])
        seen: list[bytes] = []
        if len(pieces) == 1:
            os.close(writing)
        async with asyncio.timeout(30):
            async for some in lines(reading):
                seen += some
                if len(pieces) > 1 and (piece := next(coming, None)) is not None:  # each when the last has been read
                    os.write(writing, piece) if piece else os.close(writing)
        os.close(reading)
        assert seen == found

    asyncio.run(main())


def test_nothing_is_no_line() -> None:
    async def main() -> None:
        reading, writing = os.pipe()
        os.close(writing)
        assert [some async for some in lines(reading)] == []
        assert await line(reading) == ""
        os.close(reading)

    asyncio.run(main())


def test_the_answer_of_a_person_is_one_line() -> None:
    async def main() -> None:
        reading, writing = os.pipe()
        os.write(writing, b" Yes \nmore")
        assert await line(reading) == "Yes"
        os.close(reading)
        os.close(writing)

    asyncio.run(main())


def test_who_is_cancelled_does_not_wait_for_a_reader() -> None:
    reading, writing = os.pipe()

    async def main() -> None:
        waiting = asyncio.ensure_future(line(reading))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

    asyncio.run(main())  # returns, although nobody ever writes
    os.close(writing)
    os.close(reading)


def test_a_read_that_comes_late_takes_nothing_from_a_file_that_has_the_number_by_then(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "first").write_bytes(b"first")
    (tmp_path / "second").write_bytes(b"second")
    reading = os.open(tmp_path / "first", os.O_RDONLY)
    late: list[threading.Thread] = []

    def keep(thread: threading.Thread) -> None:
        late.append(thread)

    async def main() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", keep)
            waiting = asyncio.ensure_future(line(reading))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        os.close(reading)
        second = os.open(tmp_path / "second", os.O_RDONLY)
        assert second == reading
        late[0].start()
        late[0].join()
        assert await line(second) == "second"
        os.close(second)

    asyncio.run(main())


def test_what_cannot_be_read_is_an_error() -> None:
    reading, writing = os.pipe()

    async def main() -> None:
        with pytest.raises(OSError, match="Bad file descriptor"):
            await line(writing)

    asyncio.run(main())
    os.close(writing)
    os.close(reading)


@given(sizes=st.lists(st.sampled_from([0, 1, 1_000, BATCH_BYTES // 2, BATCH_BYTES, BATCH_BYTES + 1]), max_size=20))
def test_batches_hold_everything_in_order_and_are_not_too_large(sizes: list[int]) -> None:
    messages = [bytes(size) for size in sizes]
    batches = _cut(messages)

    assert [message for batch in batches for message in batch] == messages
    assert all(len(batch) == 1 or sum(map(len, batch)) <= BATCH_BYTES for batch in batches)


def test_small_messages_go_many_at_once() -> None:
    assert [len(batch) for batch in _cut([b"x"] * (2 * BATCH + 1))] == [BATCH, BATCH, 1]


async def batches_of(count: int) -> AsyncGenerator[list[bytes], None]:
    for number in range(count):
        yield [str(number).encode()]


@pytest.mark.parametrize("most", [1, 4])
def test_no_more_than_so_many_are_under_way_and_they_come_back_in_order(most: int) -> None:
    async def main() -> None:
        running, highest = 0, 0

        async def send(batch: list[bytes]) -> list[str]:
            nonlocal running, highest
            running += 1
            highest = max(highest, running)
            await asyncio.sleep(0)
            running -= 1
            return [batch[0].decode()]

        assert [ids[0] async for ids in _sent(batches_of(20), send, most)] == [str(number) for number in range(20)]
        assert 1 <= highest <= most

    asyncio.run(main())


def test_the_first_that_fails_ends_it_and_leaves_nothing_running() -> None:
    async def main() -> None:
        begun: list[bytes] = []

        async def send(batch: list[bytes]) -> list[str]:
            begun.append(batch[0])
            if batch[0] == b"3":
                raise Unavailable("not now")
            await asyncio.sleep(0)
            return [batch[0].decode()]

        got: list[str] = []

        async def take() -> None:
            async for ids in _sent(batches_of(1_000), send, 4):
                got.extend(ids)

        with pytest.raises(Unavailable):
            await take()
        assert got == ["0", "1", "2"]
        assert len(begun) <= 8
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())


def test_a_failure_is_told_while_nothing_more_comes() -> None:
    async def main() -> None:
        is_closed = False

        async def one_and_no_more() -> AsyncGenerator[list[bytes], None]:
            nonlocal is_closed
            try:
                yield [b"x"]
                await asyncio.Event().wait()
            finally:
                is_closed = True

        async def send(batch: list[bytes]) -> list[str]:
            raise Unavailable("not now")

        async def take() -> None:
            async for _ in _sent(one_and_no_more(), send, 4):
                pass

        async with asyncio.timeout(30):
            with pytest.raises(Unavailable):
                await take()
        assert is_closed

    asyncio.run(main())


def source(**given_: object) -> argparse.Namespace:
    return argparse.Namespace(**{"data": [], "file": None, "lines": False, "count": 1} | given_)


@pytest.mark.parametrize("wrong", [{"data": ["x"], "file": "f"}, {"data": ["x"], "lines": True}, {"lines": True, "count": 2}])
def test_what_excludes_each_other_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument, match="expected one or the other"):
        check_source(source(**wrong))


def test_nothing_to_publish_is_told_to_a_person(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    with pytest.raises(InvalidArgument, match="nothing to publish"):
        check_source(source())
    check_source(source(file="-"))
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    check_source(source())
