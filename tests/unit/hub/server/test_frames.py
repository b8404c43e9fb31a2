"""What a client's bytes are read as, however they are cut.

What each kind of wrong frame ends in over a real socket is in tests/integration/hub/hostile_frames.py.
"""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.hub.core.close_codes import BROKEN_FRAME, NOT_UTF8, TOO_LARGE, Close
from penstock.hub.core.refusal import Refusal
from penstock.hub.server.frames import (
    BINARY,
    CLOSE,
    CONTINUATION,
    PING,
    PONG,
    READ_LIMIT_FACTOR,
    TEXT,
    Frame,
    FrameReader,
    is_close_code,
)
from tests.integration.hub.wire import frame

LIMIT = 70_000


def read(*parts: bytes, limit: int = LIMIT, most: int = 1_000_000) -> list[Frame]:
    """What these parts of a stream of bytes are read as, each of them as soon as it comes."""
    reader, frames = FrameReader(limit), list[Frame]()
    for part in parts:
        reader.feed(part)
        reader.read(most, frames)
        while reader.has_more:
            reader.read(most, frames)
    return frames


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


@given(
    st.lists(
        st.tuples(st.sampled_from((TEXT, PING, PONG)), st.text(max_size=40), st.integers(0, 3), st.binary(min_size=4, max_size=4))
    ),
    st.integers(1, 60),
    st.integers(1, 5),
)
def test_frames_are_the_same_however_they_are_cut(sent: list[tuple[int, str, int, bytes]], size: int, most: int) -> None:
    data, wanted = b"", list[Frame]()
    for opcode, text, parts, mask in sent:
        payload = text.encode()
        if opcode != TEXT:
            payload = payload[:125]
            data += frame(opcode, payload, mask=mask)
            wanted.append((opcode, payload))
            continue
        pieces = [payload, *[b""] * parts]
        for number, piece in enumerate(pieces):
            data += frame(CONTINUATION if number else TEXT, piece, fin=number == parts, mask=mask)
        wanted.append(text)

    assert read(*cut(data, size), most=most) == wanted


def test_every_length_is_read(subtests: pytest.Subtests) -> None:
    for length in (0, 1, 125, 126, 127, 65_535, 65_536, LIMIT):
        with subtests.test(length=length):
            text = "x" * length
            data = frame(TEXT, text.encode()) + frame(PING, b"next")
            assert read(data) == read(*cut(data, 16_000)) == [text, (PING, b"next")]


def test_a_message_above_the_limit_is_refused_and_the_next_one_is_read(subtests: pytest.Subtests) -> None:
    for length in (LIMIT + 1, LIMIT * READ_LIMIT_FACTOR - 1):
        whole = frame(TEXT, b"x" * length)
        halves = frame(TEXT, b"x" * LIMIT, fin=False) + frame(CONTINUATION, b"x" * (length - LIMIT))
        for data in (whole, halves, frame(BINARY, b"x" * length)):
            for size in (len(data) + 100, 65_536, 9_999):
                with subtests.test(length=length, size=size):
                    refusal, after = read(*cut(data + frame(TEXT, b"after"), size))
                    assert isinstance(refusal, Refusal)
                    assert (refusal.code, refusal.details["size"]) == ("message_too_large", length)
                    assert after == "after"


def test_what_is_not_text_is_refused() -> None:
    (refusal, after) = read(frame(BINARY, b"x", fin=False) + frame(CONTINUATION) + frame(TEXT, b"after"))
    assert isinstance(refusal, Refusal)
    assert (refusal.reason, after) == ("binary_frame", "after")


def test_a_frame_that_is_forbidden_ends_everything(subtests: pytest.Subtests) -> None:
    began = frame(TEXT, b"a", fin=False)
    rows: dict[str, tuple[bytes, Close]] = {
        "without a mask": (frame(TEXT, b"{}", mask=None), BROKEN_FRAME),
        "an empty ping without a mask": (frame(PING, mask=None), BROKEN_FRAME),
        "a continuation without a mask": (began + frame(CONTINUATION, b"b", mask=None), BROKEN_FRAME),
        "a reserved bit": (frame(TEXT, b"{}", rsv=4), BROKEN_FRAME),
        "a reserved bit of a continuation": (began + frame(CONTINUATION, rsv=4), BROKEN_FRAME),
        "an unknown opcode": (frame(3), BROKEN_FRAME),
        "a ping in fragments": (frame(PING, fin=False), BROKEN_FRAME),
        "a long ping": (frame(PING, b"x" * 126)[:2], BROKEN_FRAME),
        "a continuation of nothing": (frame(CONTINUATION), BROKEN_FRAME),
        "a text in a text": (began + frame(TEXT, b"b"), BROKEN_FRAME),
        "a text in an empty text": (frame(TEXT, fin=False) + frame(TEXT, b"b"), BROKEN_FRAME),
        "a close of one byte": (frame(CLOSE, b"x"), BROKEN_FRAME),
        "a close with an unknown code": (frame(CLOSE, struct.pack("!H", 5000)), BROKEN_FRAME),
        "a reason that is no UTF-8": (frame(CLOSE, struct.pack("!H", 1000) + b"\xff"), NOT_UTF8),
        "a text that is no UTF-8": (frame(TEXT, b"\xff"), NOT_UTF8),
        "fragments that are no UTF-8": (began + frame(CONTINUATION, b"\xff"), NOT_UTF8),
        "far above the limit": (frame(TEXT, b"x" * LIMIT * READ_LIMIT_FACTOR)[:10], TOO_LARGE),
        "fragments far above the limit": (
            frame(TEXT, b"x" * LIMIT, fin=False) + frame(CONTINUATION, b"x" * LIMIT * (READ_LIMIT_FACTOR - 1))[:10],
            TOO_LARGE,
        ),
        "a negative length": (struct.pack("!BBq", 0x80 | TEXT, 0x80 | 127, -1), TOO_LARGE),
    }
    for name, (data, close) in rows.items():
        with subtests.test(name=name):
            assert read(frame(TEXT, b"before") + data + frame(TEXT, b"after"), frame(TEXT, b"after")) == ["before", close]
            assert read(*cut(data, 1)) == [close]


def test_only_codes_that_are_ever_sent_are_close_codes() -> None:
    codes = [code for code in range(65_536) if is_close_code(code)]
    assert codes == [*range(1000, 1004), *range(1007, 1015), *range(3000, 5000)]


def test_a_close_is_read_with_what_is_in_it() -> None:
    payload = struct.pack("!H", 4999) + "später".encode()
    assert read(frame(CLOSE, payload) + frame(CLOSE)) == [(CLOSE, payload), (CLOSE, b"")]


def test_no_more_frames_are_read_than_asked_for_and_fragments_are_counted() -> None:
    reader, frames = FrameReader(LIMIT), list[Frame]()
    reader.feed(frame(TEXT, b"whole") * 3 + frame(TEXT, fin=False) + frame(CONTINUATION, fin=False) * 8 + frame(CONTINUATION))

    assert reader.read(4, frames) == 1
    assert (frames, reader.has_more) == (["whole"] * 3, True)
    assert reader.read(8, frames) == 8
    assert (len(frames), reader.has_more) == (3, True)
    assert reader.read(8, frames) == 1
    assert (frames, reader.has_more) == (["whole"] * 3 + [""], False)


def test_bytes_that_nobody_made_do_no_harm() -> None:
    """Whatever it is: frames, then one close or more to come; nothing raises."""
    chance = random.Random(7)
    for _ in range(2_000):
        found = read(*cut(chance.randbytes(chance.randrange(1, 200)), chance.randrange(1, 50)))
        assert [one for one in found[:-1] if isinstance(one, Close)] == []
