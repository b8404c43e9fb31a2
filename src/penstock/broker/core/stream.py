"""A stream: the append-only log of one topic or one work queue, as the broker keeps it in memory."""

from __future__ import annotations

from penstock.broker.core.pages import Pages
from penstock.broker.core.queue import Queue
from penstock.journal.core.checkpoint import StreamImage
from penstock.journal.core.producers import Producers
from penstock.values.descriptions import StreamDescription
from penstock.values.message import Batch, StoredMessage
from penstock.values.policy import Overflow

Place = tuple[int, int]
"""Where a published message is: (offset, publish_at)."""


Pair = tuple[str, int]
"""What makes a publish idempotent: (producer_id, sequence)."""


class Stream:
    """Offsets, the messages in memory, and the queues that it feeds."""

    __slots__ = (
        "created_at",
        "earliest",
        "kind",
        "may_refuse",
        "name",
        "next_offset",
        "number",
        "pages",
        "producers",
        "published_at",
        "queues",
        "retention",
        "shed_at",
        "spec",
    )

    def __init__(self, image: StreamImage) -> None:
        self.number = image.number
        self.kind = image.kind
        self.name = image.name
        self.created_at = image.created_at
        self.next_offset = image.next_offset
        self.earliest = 0
        """The log has everything from this offset on."""
        self.published_at = image.published_at
        self.producers: Producers = image.producers
        self.spec = image.spec
        self.retention = image.retention
        self.pages = Pages()
        self.queues: list[Queue] = []
        self.shed_at = 0
        """In memory: how large it may grow before retention checks it."""
        self.may_refuse = False
        """Whether a publish can be refused because a queue is full."""

    def attach(self, queue: Queue) -> None:
        self.queues.append(queue)
        self.may_refuse = self.may_refuse or queue.policy.overflow == Overflow.REJECT

    def detach(self, queue: Queue) -> None:
        self.queues = [other for other in self.queues if other is not queue]
        self.may_refuse = any(other.policy.overflow == Overflow.REJECT for other in self.queues)

    def describe(self) -> StreamDescription:
        """Its public description, as of now."""
        return StreamDescription(
            self.number,
            self.kind,
            self.name,
            self.created_at,
            self.spec,
            self.retention,
            self.earliest,
            self.next_offset,
            len(self.queues),
        )

    def image(self) -> StreamImage:
        """The state as plain data."""
        return StreamImage(
            self.number,
            self.kind,
            self.name,
            self.created_at,
            self.next_offset,
            self.published_at,
            self.producers,
            self.spec,
            self.retention,
        )

    def room(self) -> int:
        """How many more messages would be received by its queues."""
        return max((queue.room() for queue in self.queues), default=0)

    def known(self, batch: Batch, first: int, at: int, staged: dict[Pair, Place]) -> tuple[Batch, list[Place | None] | None]:
        """Split a batch of an idempotent producer: the new messages, and for every message its earlier place, if any has one.

        `first` and `at` are the place of its first new message; `staged` are pairs that are staged before it for the same commit.
        """
        if batch.is_whole and batch.producers and (pair := batch.producers[0]) is not None:
            place = self.producers.find(*pair) or staged.get(pair)
            if place is None:
                return batch, None
            known: list[Place | None] = [(place[0] + index, place[1]) for index in range(len(batch.messages))]
            return Batch([], 0, batch.priority, batch.keyed, []), known
        places: list[Place | None] = []
        fresh: list[StoredMessage] = []
        pairs: list[Pair | None] = []
        own: dict[Pair, Place] = {}
        for message, pair in zip(batch.messages, batch.producers or [], strict=True):
            place = None if pair is None else self.producers.find(*pair) or staged.get(pair) or own.get(pair)
            places.append(place)
            if place is None:
                if pair is not None:
                    own[pair] = (first + len(fresh), at)
                fresh.append(message)
                pairs.append(pair)
        return Batch(fresh, sum(message.size for message in fresh), batch.priority, batch.keyed, pairs), places
