"""The queue API over RESP3, the protocol of Redis clients; the commands are in `binary_commands`.

Requests are arrays of bulk strings, or one line of words that begins with a command. Answers are RESP3 after `HELLO 3`, RESP2
before it. Announced lengths are checked before anything is stored.
"""

from __future__ import annotations

from penstock.api.queues import Queues
from penstock.errors import InvalidArgument
from penstock.http.authentication import Gate
from penstock.queue_api import binary_commands
from penstock.queue_api.binary_commands import Args, Ok
from penstock.queue_api.socket_server import CONNECTION_COMMANDS, Call, FramingError, Inbox, Refused, SocketLimits, SocketServer
from penstock.values.queue import Delivery

MAX_LINE_BYTES = 4096
MAX_ITEMS = 1024

_END = b"\r\n"


class Resp3Server(SocketServer):
    """Serves RESP3 on one port."""

    def __init__(self, queues: Queues, *, gate: Gate | None = None, limits: SocketLimits | None = None) -> None:
        super().__init__(queues, Resp3Codec, gate=gate, limits=limits)


class Resp3Codec(Inbox):
    """RESP3 without its sockets."""

    name = "RESP3"
    is_ordered = True

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self._items: list[bytes] | None = None
        """The bulk strings of the incomplete request."""
        self._left = 0
        self._size = 0
        self._version = 2

    def _next(self) -> Call | Refused | None:
        while self._items is None:
            line = self._line()
            if line is None:
                return None
            if line.startswith(b"*"):
                count = _length(line, MAX_ITEMS, "an array")
                self._items, self._left, self._size = ([], count, len(line)) if count > 0 else (None, 0, 0)
            elif words := line.split():
                return _inline(words, len(line))
        while self._left:
            item = self._bulk()
            if item is None:
                return None
            self._items.append(item)
            self._left -= 1
        items, self._items = self._items, None
        return _call(items, self._size)

    def arrived(self) -> int:
        """How many bytes of an incomplete request have arrived."""
        return self.waiting() + (0 if self._items is None else self._size)

    def answer(self, call_id: int, value: object) -> bytes:
        out = bytearray()
        self._write(value, out)
        return bytes(out)

    def refusal(self, call_id: int, text: str) -> bytes:
        return b"-" + text.replace("\r", " ").replace("\n", " ").encode(errors="replace") + _END

    def greet(self, args: Args) -> object:
        """Answer HELLO, and switch to the requested version."""
        if args:
            version = binary_commands.as_integer(args[0], "the version")
            if version not in {2, 3}:
                raise InvalidArgument.of("the version", version, "2 or 3")
            self._version = version
        return {"server": "penstock", "proto": self._version, "mode": "standalone", "role": "master", "modules": []}

    def _line(self) -> bytes | None:
        end = self._buffer.find(b"\n", self._at, self._at + MAX_LINE_BYTES)
        if end < 0:
            if len(self._buffer) - self._at >= MAX_LINE_BYTES:
                raise FramingError("a line is too long")
            return None
        line = bytes(self._buffer[self._at : end])
        self._at = end + 1
        return line.removesuffix(b"\r")

    def _bulk(self) -> bytes | None:
        start = self._at
        line = self._line()
        if line is None:
            return None
        if not line.startswith(b"$"):
            raise FramingError("expected a bulk string")
        length = _length(line, self.limit - self._size, "a bulk string")
        if length < 0:
            raise FramingError("a bulk string of a request cannot be null")
        end = self._at + length
        if len(self._buffer) < end + 2:
            self._at = start
            return None
        if self._buffer[end : end + 2] != _END:
            raise FramingError("a bulk string is longer than its length says")
        item = bytes(self._buffer[self._at : end])
        self._at = end + 2
        self._size += len(line) + length
        return item

    def _write(self, value: object, out: bytearray) -> None:
        is_third = self._version == 3
        match value:
            case None:
                out += b"_\r\n" if is_third else b"$-1\r\n"
            case Ok():
                out += b"+OK\r\n"
            case bool():
                out += (b"#t\r\n" if value else b"#f\r\n") if is_third else b":%d\r\n" % value
            case int() if -(1 << 63) <= value < 1 << 63:
                out += b":%d\r\n" % value
            case int():
                self._write(str(value), out)
            case float():
                text = repr(value).encode()
                out += b",%b\r\n" % text if is_third else b"$%d\r\n%b\r\n" % (len(text), text)
            case str() | bytes():
                data = value.encode() if isinstance(value, str) else value
                out += b"$%d\r\n%b\r\n" % (len(data), data)
            case Delivery():
                self._write([value.message_id, value.data, value.priority, value.retry_count], out)
            case dict():
                out += b"%%%d\r\n" % len(value) if is_third else b"*%d\r\n" % (2 * len(value))
                for key, item in value.items():
                    self._write(key, out)
                    self._write(item, out)
            case list():
                out += b"*%d\r\n" % len(value)
                for item in value:
                    self._write(item, out)
            case _:
                raise TypeError(type(value).__name__)


def _call(words: list[bytes], size: int) -> Call:
    name = words[0][:100].decode(errors="replace").upper()
    return Call(0, name, words[1:], size)


def _inline(words: list[bytes], size: int) -> Call:
    """A line of words. Other protocols send lines too, so a line that is not a command ends the connection."""
    call = _call(words, size)
    if (call.command not in binary_commands.COMMANDS and call.command not in CONNECTION_COMMANDS) or words[-1].startswith(
        b"HTTP/"
    ):
        raise FramingError("the line is not a command, expected an array of bulk strings or a line that begins with a command")
    return call


def _length(line: bytes, most: int, kind: str) -> int:
    digits = line[1:]
    if len(digits) > 12 or not digits.removeprefix(b"-").isdigit():
        raise FramingError(f"the length of {kind} is not a number")
    length = int(digits)
    if not -1 <= length <= most:
        raise FramingError(f"{kind} of {length} is more than {max(most, 0)}")
    return length
