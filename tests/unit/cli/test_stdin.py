"""Reading what comes: whole lines wherever the pieces end, and nobody is waited for."""

import asyncio
import os

import pytest

from penstock.cli.stdin import line, lines


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


def test_what_cannot_be_read_is_an_error() -> None:
    reading, writing = os.pipe()

    async def main() -> None:
        with pytest.raises(OSError, match="Bad file descriptor"):
            await line(writing)

    asyncio.run(main())
    os.close(writing)
    os.close(reading)
