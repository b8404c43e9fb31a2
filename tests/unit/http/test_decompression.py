"""Compressed bodies: what they become, in how many steps, and which are refused."""

import gzip
import zlib
from itertools import chain

import pytest
from aiohttp import web

from penstock.http.decompression import MAX_MEMBERS, STEP_BYTES, Unpacker
from penstock.http.refusal import Refusal

TEXT = b"a message that is sent many times; " * 10_000
RAW = zlib.compressobj(wbits=-15)
PACKED = [
    ("gzip", gzip.compress(TEXT), TEXT),
    ("gzip", gzip.compress(TEXT) + gzip.compress(b"another member"), TEXT + b"another member"),
    ("gzip", gzip.compress(bytes(2 * STEP_BYTES)), bytes(2 * STEP_BYTES)),
    ("gzip", b"", b""),
    ("deflate", zlib.compress(TEXT), TEXT),
    ("deflate", RAW.compress(TEXT) + RAW.flush(), TEXT),
]


def unpacked(coding: str, *pieces: bytes) -> list[bytes]:
    unpacker = Unpacker(coding)
    steps = [*chain.from_iterable(unpacker.steps(piece) for piece in pieces)]
    unpacker.finish()
    return steps


def test_a_body_is_unpacked_however_it_arrives_and_no_step_is_large(subtests: pytest.Subtests) -> None:
    for coding, packed, plain in PACKED:
        for size in (1, 1000, len(packed) or 1):
            with subtests.test(coding=coding, bytes=len(packed), pieces_of=size):
                steps = unpacked(coding, *(packed[at : at + size] for at in range(0, len(packed), size)))
                assert b"".join(steps) == plain
                assert max(map(len, steps), default=0) <= STEP_BYTES


def test_a_body_that_is_broken_cut_short_or_made_of_countless_parts_is_refused(subtests: pytest.Subtests) -> None:
    whole = gzip.compress(TEXT)
    for coding, packed in [
        ("gzip", b"oops"),
        ("gzip", whole[:-1]),
        ("gzip", whole + b"trailing"),
        ("gzip", gzip.compress(b"") * (MAX_MEMBERS + 1)),
        ("deflate", zlib.compress(TEXT)[:-5]),
        ("deflate", zlib.compress(TEXT) * 2),
    ]:
        with subtests.test(coding=coding, starts=packed[:10]), pytest.raises(web.RequestPayloadError):
            unpacked(coding, packed)


def test_an_unknown_encoding_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(Refusal, match="is 'br', expected gzip or deflate") as caught:
        Unpacker("br")
    assert (caught.value.status, caught.value.headers["Accept-Encoding"]) == (415, "gzip, deflate")
