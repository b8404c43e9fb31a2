"""STOMP frames, whole and in pieces, from servers that mean well and from others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.router.sources.stomp import HEAD_LIMIT, FrameReader, NotStomp, escape, frame, headers, unescape

WIRE = (
    b"CONNECTED\nversion:1.2\nheart-beat:0,0\n\n\0\n"
    b"\n\n"
    b"MESSAGE\ncontent-length:5\nmessage-id:a\\cb\n\n\0\n\0\n\n\0\n"
    b"MESSAGE\nmessage-id:t\n\ntext\0"
    b"RECEIPT\nreceipt-id:1\n\n\0\n"
)
FRAMES = [
    ("CONNECTED\nversion:1.2\nheart-beat:0,0", b""),
    ("MESSAGE\ncontent-length:5\nmessage-id:a\\cb", b"\0\n\0\n\n"),
    ("MESSAGE\nmessage-id:t", b"text"),
    ("RECEIPT\nreceipt-id:1", b""),
]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, len(WIRE)])
def test_frames_are_the_same_in_pieces_of_any_size(size: int) -> None:
    reader = FrameReader()
    found = [made for start in range(0, len(WIRE), size) for made in reader.feed(WIRE[start : start + size])]

    assert found == FRAMES


@given(st.lists(st.tuples(st.binary(max_size=40), st.booleans()), max_size=6), st.lists(st.integers(1, 60), min_size=1))
def test_what_is_written_is_read_however_it_is_cut(bodies: list[tuple[bytes, bool]], sizes: list[int]) -> None:
    sent = []
    for body, has_length in bodies:
        length = {"content-length": str(len(body))} if has_length or b"\0" in body else {}
        sent.append((frame("SEND", {"a": "b", **length}, body), body))
    wire, reader, found = b"\n".join(data for data, _ in sent), FrameReader(), []
    while wire:
        for size in sizes:
            found += reader.feed(wire[:size])
            wire = wire[size:]

    assert [body for _, body in found] == [body for _, body in sent]


def test_a_body_of_megabytes_in_small_pieces_is_not_searched_again_and_again() -> None:
    body = b"x" * 3_000_000
    for fields in ({"content-length": str(len(body))}, {}):
        wire, reader, found = frame("MESSAGE", fields, body), FrameReader(), []
        for start in range(0, len(wire), 1000):
            found += reader.feed(wire[start : start + 1000])
        assert [len(got) for _, got in found] == [len(body)]


@given(st.text())
def test_escaping_is_undone(text: str) -> None:
    written = escape(text)

    assert unescape(written) == text
    assert not set(written) & {"\n", "\r", ":"}


@pytest.mark.parametrize(
    ("written", "meant"), [("a\\cb", "a:b"), ("\\\\c", "\\c"), ("\\n\\r", "\n\r"), ("\\t", "\\t"), ("end\\", "end\\")]
)
def test_escapes(written: str, meant: str) -> None:
    assert unescape(written) == meant


def test_headers_are_as_they_came() -> None:
    assert headers("MESSAGE\na:1\nb:x\\cy\nc:\nd:e:f") == {"a": "1", "b": "x\\cy", "c": "", "d": "e:f"}
    with pytest.raises(NotStomp):
        headers("MESSAGE\nno colon")


@pytest.mark.parametrize(
    "wire",
    [
        b"MESSAGE\ncontent-length:-1\n\nx\0",
        b"MESSAGE\ncontent-length:many\n\nx\0",
        b"MESSAGE\ncontent-length:\n\nx\0",
        b"MESSAGE\ncontent-length:1\n\nxy\0",
        b"MESSAGE\n\xff:1\n\n\0",
        b"x" * (HEAD_LIMIT + 2),
    ],
    ids=["negative", "no number", "empty", "too short", "no text", "endless head"],
)
def test_what_is_no_stomp_is_refused(wire: bytes) -> None:
    with pytest.raises(NotStomp):
        FrameReader().feed(wire)
