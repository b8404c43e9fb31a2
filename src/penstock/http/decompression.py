"""Compressed bodies, unpacked in small steps.

A few kilobytes may unpack to gigabytes, so nothing is unpacked before the caller is known and a handler reads the body, and each
step costs a fraction of a millisecond. The reader decides after each step whether the body has become too large.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from aiohttp import web

from penstock.http.refusal import Refusal

CODINGS = ("gzip", "deflate")
STEP_BYTES = 64 * 1024
"""The most that one step unpacks."""
MAX_MEMBERS = 1024
"""How many gzip files one body may be made of: each one costs something, even an empty one."""
_GZIP, _ZLIB, _RAW = 31, 15, -15  # zlib's numbers for what is around the compressed data
_DEFLATE = 8  # the method in the first byte of what zlib wrapped


class Unpacker:
    """One body with a Content-Encoding of `CODINGS`. Feed what arrives to `steps`, and call `finish` at its end."""

    def __init__(self, coding: str) -> None:
        if coding not in CODINGS:
            raise Refusal(
                415,
                f"the body's Content-Encoding is {coding[:40]!r}, expected {' or '.join(CODINGS)}",
                reason="unsupported_encoding",
                hint="send the body without compression, or with gzip",
                headers={"Accept-Encoding": ", ".join(CODINGS)},
                closes=True,
            )
        self._is_gzip = coding == "gzip"
        self._inflater: zlib._Decompress | None = None
        self._members = 0

    def steps(self, data: bytes) -> Iterator[bytes]:
        """Unpack what arrived: at most STEP_BYTES, or nothing, for each step of the iterator."""
        has_more = bool(data)
        while has_more:
            inflater = self._inflater or self._next_member(data)
            try:
                piece = inflater.decompress(data, STEP_BYTES)
            except zlib.error:
                raise web.RequestPayloadError("the compressed body is broken") from None
            if inflater.eof:
                self._inflater, data = None, inflater.unused_data
                has_more = bool(data)
            else:
                self._inflater, data = inflater, inflater.unconsumed_tail
                has_more = bool(data) or len(piece) == STEP_BYTES  # a full step may have left some inside
            yield piece

    def finish(self) -> None:
        """Refuse a body that ended too early."""
        if self._inflater is not None:
            raise web.RequestPayloadError("the compressed body is cut short")

    def _next_member(self, data: bytes) -> zlib._Decompress:
        self._members += 1
        if self._members > (MAX_MEMBERS if self._is_gzip else 1):
            raise web.RequestPayloadError("the compressed body has too many parts")
        if self._is_gzip:
            return zlib.decompressobj(_GZIP)
        # Some clients leave out what the standard wants around deflated data.
        return zlib.decompressobj(_ZLIB if data[0] & 0xF == _DEFLATE else _RAW)
