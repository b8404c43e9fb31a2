"""What waits to be written to one connection: bounded, so that one that does not read costs a known amount of memory.

A frame is its length in bytes and the parts it is made of; parts are shared with the outboxes of other connections, yet count in
full, since each connection that falls behind may be the last one that holds them.
"""

from __future__ import annotations

Frame = tuple[int, tuple[bytes, ...]]


class Outbox:
    """Frames in the order they came. Says no when it is full; what that means for the connection is the hub's to decide."""

    # A list, not a deque: most outboxes are empty most of the time, and an empty deque holds ten times as much memory.
    __slots__ = ("_frames", "_max_bytes", "_max_messages", "bytes", "stalled_since")

    def __init__(self, max_bytes: int, max_messages: int) -> None:
        self._max_bytes = max_bytes
        self._max_messages = max_messages
        self._frames: list[Frame] = []
        self.bytes = 0
        """How much waits, without the headers of frames."""
        self.stalled_since: int | None = None
        """Since when something waits and nothing was taken; None while nothing waits, and until the next look after a `take`."""

    def __len__(self) -> int:
        return len(self._frames)

    def push(self, length: int, parts: tuple[bytes, ...], now: int) -> bool:
        """Take a frame in; False when it would be more than may wait. One frame alone may always wait, however large."""
        frames = self._frames
        if frames:
            total = self.bytes + length
            if total > self._max_bytes or len(frames) >= self._max_messages:
                return False
            self.bytes = total
        else:
            self.bytes = length
            self.stalled_since = now
        frames.append((length, parts))
        return True

    def extend(self, frames: list[Frame], now: int) -> None:
        """Take in frames that waited elsewhere, however many they are: to be let go must not be the end of anybody."""
        if frames and not self._frames:
            self.stalled_since = now
        self._frames.extend(frames)
        self.bytes += sum(length for length, _ in frames)

    def take(self, room: int) -> list[Frame]:
        """The first frames, up to `room` bytes: at least one when there is any room at all, since a frame cannot be cut."""
        frames = self._frames
        if room <= 0 or not frames:
            return []
        self.stalled_since = None
        if self.bytes <= room:
            self._frames = []
            self.bytes = 0
            return frames
        size = count = 0
        for length, _ in frames:
            if count and size + length > room:
                break
            size += length
            count += 1
        taken = frames[:count]
        del frames[:count]
        self.bytes -= size
        return taken

    def is_stalled(self, now: int, span: int) -> bool:
        """Whether nothing was taken for a span though something waits. The first look after a `take` begins the span."""
        if not self._frames:
            return False
        if self.stalled_since is None:
            self.stalled_since = now
        return now - self.stalled_since >= span

    def clear(self) -> None:
        """Drop what waits."""
        self._frames = []
        self.bytes = 0
        self.stalled_since = None
