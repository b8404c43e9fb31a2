"""Which topics have a log behind them: a pattern of hub topics, bound to one topic of the broker.

What is published to a bound topic goes into the log first and is forwarded from there, in the log's order, together with what
services publish to the same topic of the broker. So it has a position that outlives the hub, and a history to recover from.
"""

from __future__ import annotations

EVERYTHING = "#"


class Binding:
    """A pattern and its log. `next_offset` is how far the log has been forwarded: what a subscriber missed lies below it."""

    __slots__ = ("epoch", "next_offset", "pattern", "stream")

    def __init__(self, pattern: str, stream: str, *, epoch: str = "", next_offset: int = 0) -> None:
        self.pattern = pattern
        self.stream = stream
        """The name of the broker's topic."""
        self.epoch = epoch
        """Names this log for as long as it exists. Set, like `next_offset`, by the host before the hub starts."""
        self.next_offset = next_offset

    @property
    def base(self) -> str:
        """The topic of messages that say none, since a service published them: the pattern's beginning."""
        return self.pattern.removesuffix("#").rstrip("/") or "messages"
