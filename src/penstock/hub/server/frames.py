"""Parses the frames of a WebSocket client (RFC 6455). No I/O: `HubSocket` feeds it and decides when to continue.

A server has to close a connection for a frame without a mask or a close code that does not exist, and the hub has to count
fragments and give its own reason for a frame that is too large. aiohttp's reader does the first three differently and hides the
rest; see docs/decisions/0043.
"""

from __future__ import annotations

from collections.abc import MutableSequence

from aiohttp._websocket.helpers import websocket_mask as unmask  # compiled: 20 times faster than Python can do it

from penstock.hub.core.close_codes import BROKEN_FRAME, NOT_UTF8, TOO_LARGE, Close
from penstock.hub.core.refusal import Refusal

READ_LIMIT_FACTOR = 4
"""A message above the limit is refused and the connection stays open; above this many times the limit it is closed."""
CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
MAX_CONTROL = 125
"""The largest payload of a control frame, in bytes. A larger length value means that the length is in the following bytes."""

Control = tuple[int, bytes]
"""A close, a ping or a pong: its opcode and its payload."""
Frame = str | Refusal | Close | Control
"""A text; the refusal of an unreadable message; the reason why the connection has to end; or a control frame."""

_FIN, _OPCODE, _MASKED = 0x80, 0x0F, 0x80
_WHOLE_TEXT = _FIN | TEXT
_HEADS = {
    fin | opcode: opcode
    for fin in (0, _FIN)
    for opcode in (CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG)
    if fin or opcode < CLOSE  # control frames are never fragmented
}
"""The allowed first bytes of a frame, and their opcodes."""


class FrameReader:
    """Parses the bytes of one client into frames. After a `Close` it reads nothing more."""

    __slots__ = ("_at", "_data", "_limit", "_message", "_needed", "_opcode", "_size", "_skip", "is_over")

    def __init__(self, max_message_bytes: int) -> None:
        self._limit = max_message_bytes
        self._data: bytes | bytearray = b""
        """The received bytes; everything before `_at` is parsed."""
        self._at = 0
        self._needed = 2
        """The number of bytes needed to continue."""
        self._skip = 0
        """The remaining bytes of a message above the limit, which are dropped when they arrive."""
        self._opcode: int | None = None
        """The opcode of a message whose fragments are arriving; None between messages."""
        self._message = bytearray()
        self._size = 0
        self.is_over = False
        """Whether there was a frame after which the connection has to end."""

    def feed(self, data: bytes) -> None:
        if self.is_over:
            return
        if self._skip:
            skipped = min(self._skip, len(data))
            self._skip -= skipped
            if skipped == len(data):
                return
            data = data[skipped:]
        if not self._data:
            self._data = data
            return
        if isinstance(self._data, bytes):
            self._data = bytearray(self._data)
        if self._at:
            del self._data[: self._at]
            self._at = 0
        self._data += data

    @property
    def has_more(self) -> bool:
        """Whether there may be something to read without further bytes."""
        return len(self._data) - self._at >= self._needed

    def read(self, most: int, frames: MutableSequence[Frame]) -> int:
        """Parse at most `most` frames and append them to `frames`; returns how many were fragments."""
        fragments = 0
        try:
            while most and len(self._data) - self._at >= self._needed:
                most -= 1
                fragments += self._next(frames)
        except _Fatal as error:
            frames.append(error.close)
            self.is_over = True
            self._data, self._message, self._at, self._needed = b"", bytearray(), 0, 2
        return fragments

    def _next(self, frames: MutableSequence[Frame]) -> bool:
        """Read a frame, if all of it has arrived; True if it is a fragment of a message."""
        data, at = self._data, self._at
        first, second = data[at], data[at + 1]
        opcode = TEXT if first == _WHOLE_TEXT and self._opcode is None else self._checked(first, second)
        if second < _MASKED:
            raise _Fatal(BROKEN_FRAME)
        size, start, total = second & 0x7F, at + 6, 0
        if size > MAX_CONTROL:
            wide = 2 if size == MAX_CONTROL + 1 else 8
            if len(data) - at < 2 + wide:
                self._needed = 2 + wide
                return False
            size, start = int.from_bytes(data[at + 2 : at + 2 + wide]), start + wide
        if opcode < CLOSE:
            total = self._size + size
            if total > self._limit:
                return self._drop(frames, first, total, start, start + size)
        stop = start + size
        if stop > len(data):
            self._needed = stop - at
            return False
        payload = bytearray(data[start:stop])
        unmask(bytes(data[start - 4 : start]), payload)
        self._advance(stop)
        if first == _WHOLE_TEXT:
            frames.append(_text(payload))
            return False
        if opcode >= CLOSE:
            if opcode == CLOSE:
                _check_close(payload)
            frames.append((opcode, bytes(payload)))
            return False
        self._message += payload
        self._add(frames, first, total)
        return True

    def _drop(self, frames: MutableSequence[Frame], first: int, total: int, start: int, stop: int) -> bool:
        """Skip a frame of a message above the limit: only its size matters. True if it is a fragment."""
        if total >= self._limit * READ_LIMIT_FACTOR:
            raise _Fatal(TOO_LARGE)
        end = len(self._data)
        if end < start:
            self._needed = start - self._at
            return False
        self._skip = max(stop - end, 0)
        self._message = bytearray()
        self._advance(min(stop, end))
        self._add(frames, first, total)
        return first != _WHOLE_TEXT

    def _add(self, frames: MutableSequence[Frame], first: int, total: int) -> None:
        """Complete the message if this was its last frame. `total` is its size so far."""
        if self._opcode is None:
            self._opcode = first & _OPCODE
        self._size = total
        if first & _FIN:
            opcode, message = self._opcode, self._message
            self._opcode, self._size, self._message = None, 0, bytearray()
            if total > self._limit:
                frames.append(_too_large(total, self._limit))
            else:
                frames.append(_BINARY if opcode == BINARY else _text(message))

    def _advance(self, at: int) -> None:
        """Mark everything before `at` as read."""
        self._needed = 2
        if at == len(self._data):
            self._data, self._at = b"", 0
        else:
            self._at = at

    def _checked(self, first: int, second: int) -> int:
        """The opcode of a frame that is not a complete text message. Raises `_Fatal` if the frame is not allowed here."""
        opcode = _HEADS.get(first)
        is_here = (
            opcode is not None
            and (opcode < CLOSE or second & 0x7F <= MAX_CONTROL)
            and (opcode >= CLOSE or (opcode == CONTINUATION) == (self._opcode is not None))
        )
        if opcode is None or not is_here:
            raise _Fatal(BROKEN_FRAME)
        return opcode


class _Fatal(Exception):
    """A frame after which nothing more is read."""

    def __init__(self, close: Close) -> None:
        super().__init__()
        self.close = close


def _text(payload: bytearray) -> str:
    try:
        return payload.decode()
    except UnicodeDecodeError:
        raise _Fatal(NOT_UTF8) from None


def _check_close(payload: bytearray) -> None:
    if payload and (len(payload) == 1 or not is_close_code(int.from_bytes(payload[:2]))):
        raise _Fatal(BROKEN_FRAME)
    _text(payload[2:])


def is_close_code(code: int) -> bool:
    """Whether a client may send this code: a registered code that may appear in frames, or one for libraries or applications."""
    return 1000 <= code <= 1003 or 1007 <= code <= 1014 or 3000 <= code <= 4999


def _too_large(size: int, limit: int) -> Refusal:
    return Refusal(
        "message_too_large",
        f"the frame has {size} bytes, at most {limit} are accepted",
        reason="message_too_large",
        resolution="send less at once, or raise the server's hub_max_message_bytes",
        details={"size": size, "limit": limit},
    )


_BINARY = Refusal(
    "internal_error",
    "the frame is binary, expected a text frame with a JSON object",
    reason="binary_frame",
    resolution="send JSON as text; put bytes into it as base64",
)
