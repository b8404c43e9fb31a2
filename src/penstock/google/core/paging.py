"""Pages of a listing. A page token names the last item of a page, so changes between two pages shift nothing.

A token belongs to one listing (its call and its parent); in another one it is refused, as is an invalid one. It is not secret,
and protects nothing.
"""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from bisect import bisect_right
from collections.abc import Sequence
from zlib import crc32

from penstock.errors import InvalidArgument

DEFAULT_PAGE_SIZE = 100
MAX_PAGE_SIZE = 1000

_SUM_BYTES = 4


def page(keys: Sequence[str], page_size: int, token: str, listing: str) -> tuple[slice, str]:
    """The sorted keys of the page, and the token of the next page, which is empty after the last.

    `listing` identifies the listing: the call and its parent, such as `topics of projects/p`.
    """
    if page_size < 0:
        raise InvalidArgument.of("page_size", page_size, f"1 to {MAX_PAGE_SIZE}, or 0 for {DEFAULT_PAGE_SIZE}")
    size = min(page_size or DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE)
    start = bisect_right(keys, _last_shown(token, listing)) if token else 0
    end = start + size
    return slice(start, end), _token(keys[end - 1], listing) if end < len(keys) else ""


def _token(key: str, listing: str) -> str:
    data = key.encode()
    return urlsafe_b64encode(_sum(data, listing) + data).decode().rstrip("=")


def _last_shown(token: str, listing: str) -> str:
    try:
        data = urlsafe_b64decode(f"{token}{'=' * (-len(token) % 4)}".encode("ascii"))
        key = data[_SUM_BYTES:].decode()
    except (binascii.Error, UnicodeError):
        data, key = b"", ""
    if data[:_SUM_BYTES] != _sum(key.encode(), listing):
        raise InvalidArgument.of("page_token", token, "the next_page_token of the previous page of the same listing")
    return key


def _sum(key: bytes, listing: str) -> bytes:
    return crc32(key, crc32(listing.encode())).to_bytes(_SUM_BYTES, "big")
