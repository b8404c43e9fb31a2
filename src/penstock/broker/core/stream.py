"""A stream: the append-only log of one topic or one work queue, as the broker knows it while it runs."""

from __future__ import annotations

from penstock.broker.core.image import StreamImage
from penstock.broker.core.message import Batch, StoredMessage
from penstock.broker.core.pages import Pages
from penstock.broker.core.producers import Producers
from penstock.broker.core.queue import Queue

Place = tuple[int, int]
"""Where a published message is: (offset, publish_at)."""


class Stream:
    """Offsets, the messages that are in memory, and the queues that are fed."""

    __slots__ = (
        "created_at",
        "earliest",
        "kind",
        "name",
        "next_offset",
        "number",
        "pages",
        "producers",
        "published_at",
        "queues",
    )

    def __init__(self, image: StreamImage) -> None:
        self.number = image.number
        self.kind = image.kind
        self.name = image.name
        self.created_at = image.created_at
        self.next_offset = image.next_offset
        self.earliest = 0
        """Everything from here on is in the log."""
        self.published_at = image.published_at
        self.producers: Producers = image.producers
        self.pages = Pages()
        self.queues: list[Queue] = []

    def image(self) -> StreamImage:
        """The state as plain data."""
        return StreamImage(
            self.number, self.kind, self.name, self.created_at, self.next_offset, self.published_at, self.producers
        )

    @property
    def has_open_queue(self) -> bool:
        """Whether somebody would receive a message published now."""
        return any(queue.has_space() for queue in self.queues)

    def known(self, batch: Batch, first: int, staged: dict[tuple[str, int], Place]) -> tuple[Batch, list[Place | None]]:
        """Split a batch of an idempotent producer: what is new, and for every message the place it already has."""
        places: list[Place | None] = []
        fresh: list[StoredMessage] = []
        pairs: list[tuple[str, int] | None] = []
        for message, pair in zip(batch.messages, batch.producers or [], strict=True):
            place = None if pair is None else self.producers.find(*pair) or staged.get(pair)
            places.append(place)
            if place is None:
                if pair is not None:
                    staged[pair] = (first + len(fresh), message.publish_at)
                fresh.append(message)
                pairs.append(pair)
        size = sum(message.size for message in fresh)
        return Batch(fresh, size, batch.priority, batch.keyed, pairs), places
