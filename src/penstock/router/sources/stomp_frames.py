"""STOMP 1.2 frames as bytes: written, and read from what arrives in pieces of any size. No I/O.

A frame that was read is its head, as text and still escaped, and its body. Most of a head is never looked at: who needs a
header asks `header`, or `headers` for all of them. Lines end with a line feed alone, as ActiveMQ writes them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from penstock.errors import Unavailable

Frame = tuple[str, bytes]
"""Head and body."""

HEAD_LIMIT: Final = 1 << 20
"""Bytes of a head; more than that is no STOMP."""

_LENGTH: Final = "\ncontent-length:"
_ESCAPES: Final = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", ":": "\\c"}
_ESCAPED: Final = {"\\\\": "\\", "\\n": "\n", "\\r": "\r", "\\c": ":"}
_TO_ESCAPE: Final = re.compile(r"[\\\n\r:]")
_TO_UNESCAPE: Final = re.compile(r"\\.")


class NotStomp(Unavailable):
    """What arrived is no STOMP: the other end is not what the address says, or the stream is damaged."""


def escape(text: str) -> str:
    """A header's name or value as it is written."""
    return _TO_ESCAPE.sub(lambda found: _ESCAPES[found[0]], text)


def unescape(text: str) -> str:
    """A header's name or value as it was meant; an escape that STOMP does not know stays as it is."""
    if "\\" not in text:
        return text
    if "\\\\" not in text:  # then colons are all there is, mostly: ids are full of them
        plain = text.replace("\\c", ":")
        if "\\" not in plain:
            return plain
    return _TO_UNESCAPE.sub(lambda found: _ESCAPED.get(found[0], found[0]), text)


def frame(command: str, headers: Mapping[str, str], body: bytes = b"") -> bytes:
    """A frame to send. Names and values are escaped already, or hold nothing that must be."""
    lines = "".join([f"{name}:{value}\n" for name, value in headers.items()])
    return b"%s\n%s\n%s\0" % (command.encode(), lines.encode(), body)


def headers(head: str) -> dict[str, str]:
    """The headers of a head, escaped as they came."""
    try:
        return dict([line.split(":", 1) for line in head.split("\n")[1:]])
    except ValueError:
        raise NotStomp("a header without a colon came from the server") from None


def header(head: str, mark: str) -> str | None:
    """One header of a head, escaped as it came; the mark is its name between a line feed and a colon."""
    at = head.find(mark)
    if at < 0:
        return None
    at += len(mark)
    end = head.find("\n", at)
    return head[at:] if end < 0 else head[at:end]


class FrameReader:
    """Takes bytes as they arrive, gives the frames that are whole."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self._needed = 0
        """So many bytes have to be there before it is worth looking again: a large body arrives in many pieces."""
        self._seen = 0
        """So many of the kept bytes hold no end of a body whose length was not said."""

    def feed(self, data: bytes) -> list[Frame]:
        """What became whole by these bytes; NotStomp when they cannot be frames."""
        source: bytes | bytearray = data
        if self._kept:
            self._kept += data
            if len(self._kept) < self._needed:
                return []
            source = self._kept
        found: list[Frame] = []
        end = self._read(source, found)
        if source is self._kept:
            del self._kept[:end]
        else:
            self._kept += data[end:]
        return found

    def _read(self, source: bytes | bytearray, found: list[Frame]) -> int:
        """Collect the whole frames; returns where the first that is not whole begins."""
        place, size = 0, len(source)
        self._needed = 0
        while place < size:
            if source[place] in b"\n\r":  # a heart-beat, or what follows a frame
                place += 1
                continue
            blank = source.find(b"\n\n", place)
            if blank < 0:
                if size - place > HEAD_LIMIT:
                    raise NotStomp(f"a head of more than {HEAD_LIMIT:,} bytes came from the server")
                break
            start = blank + 2
            head, length = self._head(source[place:blank])
            if length is None:
                end = source.find(b"\0", max(start, place + self._seen))
                if end < 0:
                    self._seen = size - place
                    break
            else:
                end = start + length
                if end >= size:
                    self._needed = end + 1 - place
                    break
                if source[end]:
                    raise NotStomp("a body that is longer than its content-length came from the server")
            found.append((head, bytes(source[start:end])))
            place, self._seen = end + 1, 0
        return place

    @staticmethod
    def _head(data: bytes | bytearray) -> tuple[str, int | None]:
        """The head as text, and how long its body is, if it says."""
        try:
            head = data.decode()
            said = header(head, _LENGTH)
            if said is None:
                return head, None
            length = int(said)
        except ValueError:  # also what is no UTF-8
            raise NotStomp("a head that is no STOMP came from the server") from None
        if length < 0:
            raise NotStomp(f"a content-length of {length} came from the server")
        return head, length
