"""Identifiers that carry their own address: nothing has to be indexed to find what they name.

A message id is publish time, stream and offset; an ack id is queue, offset, attempt and epoch. Both are lower-case
hexadecimal of fixed width, so message ids sort by time as plain text, and an id of one can never be taken for the other.
"""

from __future__ import annotations

from typing import TypeGuard

MAX_STREAMS = 1 << 23
MAX_OFFSET = 1 << 40

_DIGITS = "0123456789abcdef"
_MESSAGE_ID = 30
_ACK_ID = 32


def message_id(publish_at: int, stream: int, offset: int) -> str:
    """The id of the message at `offset` of `stream`, published at `publish_at`."""
    return f"{publish_at:014x}{stream:06x}{offset:010x}"


def parse_message_id(text: object) -> tuple[int, int, int] | None:
    """(publish_at, stream, offset), or None when this was never a message id."""
    if not _is_hex(text, _MESSAGE_ID):
        return None
    return int(text[:14], 16), int(text[14:20], 16), int(text[20:], 16)


def message_ids(publish_at: int, stream: int, offsets: range) -> list[str]:
    """The ids of messages published together."""
    prefix = f"{publish_at:014x}{stream:06x}"
    return [f"{prefix}{offset:010x}" for offset in offsets]


def ack_id(queue: int, offset: int, attempt: int, epoch: int) -> str:
    """The id of one delivery: the same message delivered again gets another."""
    return f"{queue:06x}{offset:010x}{attempt:08x}{epoch:08x}"


def parse_ack_id(text: object) -> tuple[int, int, int, int] | None:
    """(queue, offset, attempt, epoch), or None when this was never an ack id."""
    if not _is_hex(text, _ACK_ID):
        return None
    # One number cut into its parts: cheaper than to cut the text.
    number = int(text, 16)
    return number >> 104, number >> 64 & 0xFFFFFFFFFF, number >> 32 & 0xFFFFFFFF, number & 0xFFFFFFFF


def _is_hex(text: object, width: int) -> TypeGuard[str]:
    return isinstance(text, str) and len(text) == width and not text.strip(_DIGITS)
