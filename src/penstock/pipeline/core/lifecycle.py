"""The life of a message in a subscription, told from its events. Plain rules, the same for a finite table and an endless stream.

    leased ──acked, dead_lettered, dropped──> a row                  dropped, dead_lettered (never delivered) ──> a row
      │ ▲
      └─┘ nacked, expired: the next attempt    released: as if it had not been leased; the first attempt again: no life at all

A life begins with the first delivery, or with the end when there was none; a message that only waits has none yet. It is over
when it is settled, and gives one row. Delivered again after that (a dead letter redriven, a subscription sought back), it lives
again and gives another row. A first attempt in the midst of a life, or another message id at the same offset (a topic made
again), ends the old life unseen: it is `open`.

So that memory stays bounded, `Lives.expire` drops lives without news: they give an `open` row. What comes for one after
that is late: it gives a row of its own, marked `is_late`, which knows the end and not the beginning.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Self

import msgspec

BUCKET = 4096
"""This many neighbouring messages are folded together: one call and one stored state for all of them."""

ACKED, DEAD_LETTERED, DROPPED, OPEN = "acked", "dead_lettered", "dropped", "open"
KINDS = ("published", "leased", ACKED, "nacked", "expired", "released", "extended", DEAD_LETTERED, DROPPED)
"""The events that tell a life; all others may be left out."""

_FAILURES = frozenset({"nacked", "expired"})
_TIME_DIGITS = 14
_OFFSET_DIGITS = 10


class Event(NamedTuple):
    """One event, with instants in microseconds and 0 or "" for what it does not say. A `published` one has no subscription."""

    offset: int
    at: int
    kind: str
    subscription: str | None
    message_offset: int
    message_id: str | None
    attempt: int = 0
    consumer: str | None = None
    until: int = 0
    """When there will be news: the deadline of a lease, the end of a delay."""
    cause: str = ""
    """How the last lease ended, where the message died or was dropped with it: `nacked` or `expired`."""


class Row(NamedTuple):
    """One life."""

    subscription: str
    message_offset: int
    message_id: str | None
    published_at: int | None
    first_delivered_at: int | None
    settled_at: int | None
    updated_at: int
    attempts: int
    nacks: int
    expiries: int
    consumer: str | None
    wait_ms: float | None
    processing_ms: float | None
    outcome: str
    is_late: bool
    event_offset: int


def mark(event_offset: int, at: int) -> Row:
    """No life: that all lives which were settled before this event are known. Open, so that nothing counts it."""
    return Row("", 0, None, None, None, None, at, 0, 0, 0, None, None, None, OPEN, False, event_offset)


class Life(msgspec.Struct, array_like=True, gc=False):
    """What is known of a message that has been delivered and is not settled."""

    message_id: str | None
    is_late: bool
    first_delivered_at: int | None = None
    leased_at: int | None = None
    """Since when it is leased; None between two leases."""
    attempts: int = 0
    nacks: int = 0
    expiries: int = 0
    consumer: str | None = None
    updated_at: int = 0
    until: int = 0
    event_offset: int = 0

    def count(self, failure: str) -> None:
        """Count a lease that ended so."""
        if failure == "nacked":
            self.nacks += 1
        elif failure == "expired":
            self.expiries += 1

    def row(self, subscription: str, message_offset: int, outcome: str, settled_at: int | None) -> Row:
        """Its row, now that it is over or given up."""
        published_at = publish_time(self.message_id)
        first, leased_at = self.first_delivered_at, self.leased_at
        return Row(
            subscription,
            message_offset,
            self.message_id,
            published_at,
            first,
            settled_at,
            self.updated_at,
            self.attempts,
            self.nacks,
            self.expiries,
            self.consumer,
            None if first is None or published_at is None else (first - published_at) / 1000,
            None if settled_at is None or leased_at is None else (settled_at - leased_at) / 1000,
            outcome,
            self.is_late,
            self.event_offset,
        )


def publish_time(message_id: str | None) -> int | None:
    """When a message was published, which its id says."""
    return None if message_id is None else int(message_id[:_TIME_DIGITS], 16)


def _is_beginning(kind: str, attempt: int, cause: str) -> bool:
    """Whether a life may begin so: with a first delivery, or with an end before any."""
    if kind == "leased":
        return attempt <= 1
    return kind in {DEAD_LETTERED, DROPPED} and attempt == 0 and cause not in _FAILURES


class _Run(msgspec.Struct, array_like=True, gc=False):
    """Messages at neighbouring offsets whose ids differ in the offset alone."""

    first: int
    stop: int
    prefix: str


class _StoredLives(msgspec.Struct, array_like=True):
    """Lives as they are stored between two batches. The version is first, so that another format is recognized."""

    version: int
    lives: dict[str, dict[int, Life]]
    runs: list[_Run]


_VERSION = 1
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_StoredLives).decode


class Lives:
    """The unsettled lives of some messages of one stream, and the ids of those that were published lately.

    The ids are for `dropped` events, which do not say them: one record may drop a million messages.
    """

    def __init__(self) -> None:
        self._lives: dict[str, dict[int, Life]] = {}
        self._published: dict[int, str] = {}

    @classmethod
    def load(cls, stored: bytes) -> Self:
        """What `dump` made."""
        lives, kept = cls(), _decode(stored)
        lives._lives = kept.lives
        for run in kept.runs:
            for offset in range(run.first, run.stop):
                lives._published[offset] = f"{run.prefix}{offset:0{_OFFSET_DIGITS}x}"
        return lives

    def dump(self) -> bytes:
        runs: list[_Run] = []
        for offset, message_id in sorted(self._published.items()):
            prefix = message_id[:-_OFFSET_DIGITS]
            if runs and runs[-1].stop == offset and runs[-1].prefix == prefix:
                runs[-1].stop += 1
            else:
                runs.append(_Run(offset, offset + 1, prefix))
        return _encode(_StoredLives(_VERSION, self._lives, runs))

    def fold(
        self, events: Iterable[Event | tuple[int, int, str, str | None, int, str | None, int, str | None, int, str]]
    ) -> list[Row]:
        """Take events in the order of their offsets; returns the rows of the lives that they end."""
        rows: list[Row] = []
        published = self._published
        for event_offset, at, kind, subscription, offset, message_id, attempt, consumer, until, cause in events:
            if kind == "published":
                if message_id is not None:
                    published[offset] = message_id
                continue
            if subscription is None:
                continue
            lives = self._lives.get(subscription)
            if lives is None:
                lives = self._lives[subscription] = {}
            life = lives.get(offset)
            if life is not None and (
                (kind == "leased" and attempt == 1) or (message_id is not None and message_id != life.message_id)
            ):
                rows.append(life.row(subscription, offset, OPEN, None))
                life = None
            if life is None:
                is_late = not _is_beginning(kind, attempt, cause)
                life = lives[offset] = Life(message_id or published.get(offset), is_late)
            life.updated_at, life.until, life.event_offset = at, until, event_offset
            if kind == "leased":
                if life.first_delivered_at is None and not life.is_late:
                    life.first_delivered_at = at
                life.leased_at, life.consumer = at, consumer
                life.attempts = max(attempt, life.attempts + 1)
            elif kind == "extended":
                pass
            elif kind == "released":
                life.attempts, life.leased_at = attempt, None
                if not attempt:
                    del lives[offset]
            elif kind in _FAILURES:
                life.attempts, life.leased_at = max(attempt, life.attempts), None
                life.count(kind)
            else:
                life.attempts = max(attempt, life.attempts)
                life.count(cause)
                rows.append(life.row(subscription, offset, kind, at))
                del lives[offset]
        return rows

    def expire(self, watermark: int) -> list[Row]:
        """Let go of what had its last news, and was to have its next, before an instant; returns the rows of open lives."""
        rows: list[Row] = []
        for subscription, lives in self._lives.items():
            silent = [offset for offset, life in lives.items() if max(life.updated_at, life.until) < watermark]
            rows += [lives.pop(offset).row(subscription, offset, OPEN, None) for offset in silent]
        self._lives = {subscription: lives for subscription, lives in self._lives.items() if lives}
        self._published = {
            offset: message_id
            for offset, message_id in self._published.items()
            if int(message_id[:_TIME_DIGITS], 16) >= watermark
        }
        return rows

    def finish(self) -> list[Row]:
        """Let go of everything: the rows of lives that are open at the end of a finite table."""
        rows = [
            life.row(subscription, offset, OPEN, None)
            for subscription, lives in self._lives.items()
            for offset, life in lives.items()
        ]
        self._lives, self._published = {}, {}
        return rows

    def next_expiry(self) -> int | None:
        """The instant after which `expire` has something to do; None when nothing is remembered.

        Ids alone may wait for the last of them: nobody misses a row.
        """
        dues = [max(life.updated_at, life.until) for lives in self._lives.values() for life in lives.values()]
        if dues:
            return min(dues)
        return max((int(message_id[:_TIME_DIGITS], 16) for message_id in self._published.values()), default=None)
