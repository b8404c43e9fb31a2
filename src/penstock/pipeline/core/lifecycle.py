"""Computes the life of a message in a subscription from its events. The rules are the same for a finite table and a stream.

    leased ──acked, dead_lettered, dropped──> a row                  dropped, dead_lettered (never delivered) ──> a row
      │ ▲
      └─┘ nacked, expired: the next attempt    released: as if it had not been leased; the first attempt again: no life at all

A life starts with the first delivery, or with its end if there was none; a message that only waits has no life yet. A life ends
when the message is settled, and gives one row. If the message is delivered again after that (a dead letter is redriven, a
subscription is sought back), it has another life and gives another row. A first attempt during a life, or another message id at
the same offset (a topic was created again), ends the old life without a known outcome: it is `open`.
To keep memory bounded, `Lives.expire` drops lives without new events: they give an `open` row. Events after that are late: they
give a separate row, marked `is_late`, with the end but not the beginning.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Self

import msgspec

BUCKET = 4096
"""The number of neighbouring messages that are folded together: one call and one stored state for all of them."""

ACKED, DEAD_LETTERED, DROPPED, OPEN = "acked", "dead_lettered", "dropped", "open"
KINDS = ("published", "leased", ACKED, "nacked", "expired", "released", "extended", DEAD_LETTERED, DROPPED)
"""The events that define a life; all others may be left out."""

_FAILURES = frozenset({"nacked", "expired"})
_TIME_DIGITS = 14
_OFFSET_DIGITS = 10


class Event(NamedTuple):
    """One event, with times in microseconds and 0 or "" for missing values. A `published` event has no subscription."""

    offset: int
    at: int
    kind: str
    subscription: str | None
    message_offset: int
    message_id: str | None
    attempt: int = 0
    consumer: str | None = None
    until: int = 0
    """When the next event is due: the deadline of a lease, the end of a delay."""
    cause: str = ""
    """How the last lease ended, if the message died or was dropped with it: `nacked` or `expired`."""


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
    """A marker row, not a life: all lives that were settled before this event are known. It is open, so it is not counted."""
    return Row("", 0, None, None, None, None, at, 0, 0, 0, None, None, None, OPEN, False, event_offset)


class Life(msgspec.Struct, array_like=True, gc=False):
    """The state of a message that has been delivered and is not settled."""

    message_id: str | None
    is_late: bool
    first_delivered_at: int | None = None
    leased_at: int | None = None
    """The start of the current lease; None between two leases."""
    attempts: int = 0
    nacks: int = 0
    expiries: int = 0
    consumer: str | None = None
    updated_at: int = 0
    until: int = 0
    event_offset: int = 0

    def count(self, failure: str) -> None:
        """Count a lease that ended with this failure."""
        if failure == "nacked":
            self.nacks += 1
        elif failure == "expired":
            self.expiries += 1

    def row(self, subscription: str, message_offset: int, outcome: str, settled_at: int | None) -> Row:
        """The row of a life that has ended or is dropped."""
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
    """The publish time of a message, which is part of its id."""
    return None if message_id is None else int(message_id[:_TIME_DIGITS], 16)


def _is_beginning(kind: str, attempt: int, cause: str) -> bool:
    """Whether a life may start with this event: a first delivery, or an end without any delivery."""
    if kind == "leased":
        return attempt <= 1
    return kind in {DEAD_LETTERED, DROPPED} and attempt == 0 and cause not in _FAILURES


class _Run(msgspec.Struct, array_like=True, gc=False):
    """Messages at neighbouring offsets whose ids differ only in the offset."""

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
    """The unsettled lives of some messages of one stream, and the ids of recently published messages.

    The ids are needed for `dropped` events, which do not have them: one record may drop a million messages.
    """

    def __init__(self) -> None:
        self._lives: dict[str, dict[int, Life]] = {}
        self._published: dict[int, str] = {}

    @classmethod
    def load(cls, stored: bytes) -> Self:
        """Restore the result of `dump`."""
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
        """Process events in the order of their offsets; returns the rows of the lives that they end."""
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
        """Drop lives whose last event, and whose next due event, are before the watermark; returns their open rows."""
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
        """Drop everything; returns the rows of lives that are open at the end of a finite table."""
        rows = [
            life.row(subscription, offset, OPEN, None)
            for subscription, lives in self._lives.items()
            for offset, life in lives.items()
        ]
        self._lives, self._published = {}, {}
        return rows

    def next_expiry(self) -> int | None:
        """The time after which `expire` has something to do; None if nothing is stored.

        If only ids are stored, the last of them counts: no row is delayed by that.
        """
        dues = [max(life.updated_at, life.until) for lives in self._lives.values() for life in lives.values()]
        if dues:
            return min(dues)
        return max((int(message_id[:_TIME_DIGITS], 16) for message_id in self._published.values()), default=None)
