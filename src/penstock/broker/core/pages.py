"""Messages in memory, by offset, in pages.

Offsets are dense, so a page of 256 costs one pointer for each message. A broker in memory keeps all pages; a durable one keeps a
window, drops pages that the log has, and reads them again when needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.journal.core.ranges import Ranges
from penstock.values.message import StoredMessage

PAGE = 256
OVERHEAD = 200
"""Memory of a message besides its bytes: its record, the objects in it and the pointers to it."""
_SHIFT = 8
_MASK = PAGE - 1


class Pages:
    """The resident messages of one stream."""

    __slots__ = ("_pages", "size")

    def __init__(self) -> None:
        self._pages: dict[int, list[StoredMessage | None]] = {}
        self.size = 0
        """Bytes of the messages in memory, including `OVERHEAD`."""

    def get(self, offset: int) -> StoredMessage | None:
        """The message, if it is resident."""
        page = self._pages.get(offset >> _SHIFT)
        if page is None:
            return None
        index = offset & _MASK
        return page[index] if index < len(page) else None

    def span(self, start: int, stop: int) -> list[StoredMessage]:
        """The messages from offset `start` up to `stop`, or up to the first that is not resident."""
        page = self._pages.get(start >> _SHIFT)
        if page is not None and stop - start == 1 and start & _MASK < len(page):
            message = page[start & _MASK]
            return [message] if message is not None else []
        found: list[StoredMessage] = []
        while start < stop:
            page = self._pages.get(start >> _SHIFT)
            if page is None:
                break
            index = start & _MASK
            part = page[index : index + stop - start]
            if not part:
                break
            if None in part:
                part = part[: part.index(None)]
                found += part  # type: ignore[arg-type]  # cut before the first None
                break
            found += part  # type: ignore[arg-type]  # no None in it
            start += len(part)
            if start & _MASK:
                break
        return found

    def put(self, first: int, messages: Sequence[StoredMessage], size: int) -> int:
        """Add messages of `size` bytes from offset `first` on, which were not held before. Returns the memory that they take."""
        count, index = len(messages), first & _MASK
        taken = size + OVERHEAD * count
        self.size += taken
        page = self._pages.get(first >> _SHIFT)
        if page is not None and len(page) == index and index + count <= PAGE:
            page += messages
            return taken
        position = 0
        while position < count:
            offset = first + position
            index = offset & _MASK
            page = self._pages.setdefault(offset >> _SHIFT, [])
            part = messages[position : position + PAGE - index]
            if len(page) < index:
                page += [None] * (index - len(page))
            page[index : index + len(part)] = part
            position += len(part)
        return taken

    def drop(self, page_number: int, kept: Ranges | None = None) -> int:
        """Drop a page, except the offsets in `kept`; returns the memory that this frees."""
        page = self._pages.pop(page_number, None)
        if page is None:
            return 0
        freed = sum(message.size + OVERHEAD for message in page if message is not None)
        if kept:
            rest: list[StoredMessage | None] = [None] * len(page)
            for start, stop in kept:
                part = slice(start - page_number * PAGE, stop - page_number * PAGE)
                rest[part] = page[part]
            if held := [message.size + OVERHEAD for message in rest if message is not None]:
                self._pages[page_number] = rest
                freed -= sum(held)
        self.size -= freed
        return freed

    def __contains__(self, page_number: int) -> bool:
        return page_number in self._pages

    def page_numbers(self) -> Iterator[int]:
        """The resident pages, in the order in which they were added."""
        return iter(self._pages)
