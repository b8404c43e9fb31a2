"""Messages of one commit to one stream, as columns.

A chunk has columns instead of rows: it is encoded and decoded in a few calls, whatever the number of messages, and its payloads
are in one buffer with their ends, in the layout of Arrow. A column without values is None.
"""

from __future__ import annotations

from array import array
from itertools import accumulate
from typing import TypeVar

import msgspec

from penstock.values.message import StoredMessage, summarize

T = TypeVar("T")

_IS_BIG_ENDIAN = array("I", [1]).tobytes()[0] == 0


class Chunk(msgspec.Struct, array_like=True, gc=False):
    """The columns. Stored as a MessagePack array: columns are only ever added at the end, with a default."""

    ends: bytes
    """Where each payload ends in `data`, as little-endian unsigned 32-bit numbers."""
    data: bytes
    attributes: list[dict[str, str] | None] | None = None
    keys: list[str] | None = None
    priorities: int | list[int] = 0
    expires_at: list[int | None] | None = None
    deliver_at: list[int | None] | None = None
    max_attempts: list[int | None] | None = None
    contents: int | list[int] = 0
    origins: list[int | None] | None = None
    published: list[int] | None = None
    """Publish times, if they are not all that of the chunk."""

    @property
    def count(self) -> int:
        return len(self.ends) // 4

    def messages(self, published_at: int) -> list[StoredMessage]:
        """The messages, as they were given to `pack`."""
        ends, data = numbers(self.ends), self.data
        attributes = self.attributes or [None] * len(ends)
        keys = self.keys or [""] * len(ends)
        result = []
        start = 0
        for index, end in enumerate(ends):
            message = StoredMessage(published_at, data[start:end], attributes[index], keys[index], 0, end - start)
            start = end
            result.append(message)
        for message, priority in zip(result, _spread(self.priorities, len(ends)), strict=True):
            message.priority = priority
        if self.attributes or self.keys:
            for message in result:
                message.size = size_of(message)
        self._set_rare(result)
        return result

    def _set_rare(self, messages: list[StoredMessage]) -> None:
        if self.contents:
            for message, content in zip(messages, _spread(self.contents, len(messages)), strict=True):
                message.content = content
        if self.published is not None:
            for message, published_at in zip(messages, self.published, strict=True):
                message.publish_at = published_at
        for name, values in (
            ("expires_at", self.expires_at),
            ("deliver_at", self.deliver_at),
            ("max_attempts", self.max_attempts),
            ("origin_at", self.origins),
        ):
            if values is not None:
                for message, value in zip(messages, values, strict=True):
                    setattr(message, name, value)


class Summary(msgspec.Struct, gc=False):
    """The metadata of a stored chunk, known without reading its body."""

    first: int
    count: int
    size: int
    published_at: int
    priority: int | None
    """As in `Batch`: the priority of all messages, if they are plain."""
    keyed: bool


def pack(messages: list[StoredMessage]) -> Chunk:
    if len(messages) == 1:
        return _pack_one(messages[0])
    payloads = [message.data for message in messages]
    ends = array("I", accumulate(map(len, payloads)))
    if _IS_BIG_ENDIAN:
        ends.byteswap()
    chunk = Chunk(ends.tobytes(), b"".join(payloads))
    chunk.attributes = _unless_empty([message.attributes for message in messages])
    keys = [message.key for message in messages]
    chunk.keys = keys if any(keys) else None
    chunk.priorities = _single([message.priority for message in messages])
    chunk.contents = _single([message.content for message in messages])
    if summarize(messages).priority is None:
        chunk.expires_at = _unless_empty([message.expires_at for message in messages])
        chunk.deliver_at = _unless_empty([message.deliver_at for message in messages])
    chunk.max_attempts = _unless_empty([message.max_attempts for message in messages])
    chunk.origins = _unless_empty([message.origin_at for message in messages])
    if messages[0].publish_at != messages[-1].publish_at:
        chunk.published = [message.publish_at for message in messages]
    return chunk


def _pack_one(message: StoredMessage) -> Chunk:
    """The same for one message, as a single publisher commits it, without loops over lists."""
    return Chunk(
        len(message.data).to_bytes(4, "little"),
        message.data,
        [message.attributes] if message.attributes else None,
        [message.key] if message.key else None,
        message.priority,
        [message.expires_at] if message.expires_at is not None else None,
        [message.deliver_at] if message.deliver_at is not None else None,
        [message.max_attempts] if message.max_attempts is not None else None,
        message.content,
        [message.origin_at] if message.origin_at is not None else None,
    )


def size_of(message: StoredMessage) -> int:
    """The bytes that count against limits: data, attributes and ordering key."""
    size = len(message.data) + len(message.key.encode())
    for key, value in (message.attributes or {}).items():
        size += len(key.encode()) + len(value.encode())
    return size


def numbers(ends: bytes) -> array[int]:
    """The column of ends as numbers."""
    values = array("I", ends)
    if _IS_BIG_ENDIAN:
        values.byteswap()
    return values


encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(Chunk)


def decode(body: bytes) -> Chunk:
    return _decoder.decode(body)


def _single(values: list[int]) -> int | list[int]:
    return values[0] if values.count(values[0]) == len(values) else values


def _spread(values: int | list[int], count: int) -> list[int]:
    return [values] * count if isinstance(values, int) else values


def _unless_empty(values: list[T]) -> list[T] | None:
    return values if values.count(None) != len(values) else None  # type: ignore[arg-type]  # looking for the absent ones
