"""What a check knows of the server behind a source, and the words that the checks are written in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

from penstock.clock import monotonic
from penstock.durations import SECOND
from penstock.errors import Unavailable
from penstock.router.core.message import SourceMessage
from penstock.router.source import Source

SHORT: Final = 2
"""Seconds of a lease that a check waits for."""
LONG: Final = 60
"""Seconds of a lease that no check waits for: what comes before is not its end."""
EARLY: Final = 0.3
"""Seconds by which a server may be early: some count from when they sent, some round."""
PATIENCE: Final = 20.0
"""Seconds after which what should come at once counts as not coming."""
TIME_LIMIT: Final = 90.0
MANY: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Abilities:
    """What the server behind a source can do. A check that needs more is left out."""

    keeps_order: bool = True
    """Delivers in the order of arrival."""
    keeps_place: bool = True
    """A message that is nacked with no delay comes before those that were behind it."""
    gives_back_in_order: bool = True
    """What a stopped source held comes first, and in order."""
    remembers_after_crash: bool = True
    """What a source held that died comes first, and in order, at the next start; otherwise it comes when its leases end."""
    has_leases: bool = True
    """A message that nothing is said of is redelivered while its source lives."""
    counts: bool = True
    """Says how often a message was delivered."""
    restarts: bool = True
    """Can be killed and started again, and loses nothing by that."""
    has_connection: bool = True
    """Can be away."""
    takes_empty: bool = True
    """A body may be empty."""
    takes_binary: bool = True
    """A body may be any bytes, and not text alone."""
    largest: int = 200_000
    """Bytes of a body."""
    most_held: int = MANY
    """How many messages may be delivered at a time."""
    keeps_dead: bool = False
    """The source fulfils `KeepsDeadLetters`."""
    takes_messages: bool = True
    """The source fulfils `AcceptsMessages`."""


class SourceDriver(Protocol):
    """A server, and how a check reaches it without the source under test."""

    can: Abilities

    async def begin(self) -> None:
        """Make an empty queue that nobody has used, and connect a client of the driver's own to it."""

    async def end(self) -> None:
        """Close what `begin` opened. The server runs, whatever the check has done to it."""

    def open(self, lease_seconds: int) -> Source:
        """A source of the queue, not started. The next one that is opened is the same router's next life."""

    def open_elsewhere(self) -> Source:
        """A source of a server that does not exist."""

    async def crash(self, source: Source) -> None:
        """End a source as if its process were killed: its connections break, and nothing more is sent."""

    async def send(self, bodies: Sequence[bytes]) -> None:
        """Put messages into the queue, in this order."""

    async def left(self) -> int:
        """How many messages are in the queue, delivered or not."""

    async def stop_server(self) -> None:
        """Kill it."""

    async def start_server(self) -> None:
        """Start it again, on the same address with the same data; returns when it answers."""


SourceCheck = Callable[[SourceDriver], Awaitable[None]]

NEEDS: dict[SourceCheck, tuple[str, ...]] = {}
"""Which abilities a check is about."""


def needs(*abilities: str) -> Callable[[SourceCheck], SourceCheck]:
    """Mark a check as one for servers that can do this."""

    def note(check: SourceCheck) -> SourceCheck:
        NEEDS[check] = abilities
        return check

    return note


def bodies(count: int) -> list[bytes]:
    """Bodies whose order is that of their bytes."""
    return [b'{"id":"%05d"}' % number for number in range(count)]


@asynccontextmanager
async def started(driver: SourceDriver, lease_seconds: int = LONG) -> AsyncIterator[Source]:
    """A source that is started, and stopped at the end."""
    source = driver.open(lease_seconds)
    await source.start()
    try:
        yield source
    finally:
        await source.stop()


async def some(source: Source, want: int, patience: float = PATIENCE) -> Sequence[SourceMessage]:
    """At least one message, and at most this many, of a server that may have to be found again first."""
    until = monotonic() + int(patience * SECOND)
    while monotonic() < until:
        try:
            if found := await source.poll(want, 1):
                return found
        except Unavailable:
            await asyncio.sleep(0.05)
    raise AssertionError(f"broken promise: a message is delivered within {patience:.0f} s")


async def take(source: Source, count: int, patience: float = PATIENCE) -> list[SourceMessage]:
    """Exactly this many messages, with as many polls as it takes."""
    taken: list[SourceMessage] = []
    while len(taken) < count:
        taken += await some(source, count - len(taken), patience)
    return taken


async def emptied(driver: SourceDriver) -> None:
    """Return when nothing is left in the queue; a server may need a moment to say so."""
    until = monotonic() + int(PATIENCE * SECOND)
    while (left := await driver.left()) and monotonic() < until:  # noqa: ASYNC110  # a server has no event for it
        await asyncio.sleep(0.02)
    equal(left, 0, "nothing is left in the queue")


def same_again(driver: SourceDriver, first: SourceMessage, again: SourceMessage, *, is_counted: bool = True) -> None:
    """The second is the first one, delivered once more. Where nobody tried it, the source may leave it uncounted."""
    equal((again.broker_id, again.body), (first.broker_id, first.body), "the same message is redelivered, with the same id")
    if driver.can.counts and is_counted:
        equal(again.count, first.count + 1, "the delivery is counted")


def same_bodies(driver: SourceDriver, seen: Iterable[SourceMessage], wanted: Sequence[bytes], promise: str) -> None:
    """These messages came, and in this order where the server keeps one."""
    found = [received.body for received in seen]
    equal(found if driver.can.keeps_order else sorted(found), [*wanted] if driver.can.keeps_order else sorted(wanted), promise)


def elapsed(instant: int) -> float:
    """Seconds since then."""
    return (monotonic() - instant) / SECOND


def holds(is_so: bool, promise: str) -> None:
    """The promise is kept, or named in the error."""
    if not is_so:
        raise AssertionError(f"broken promise: {promise}")


def equal(found: Any, wanted: Any, promise: str) -> None:  # Any: values of any type are compared
    """The promise is kept, or the error shows both."""
    if found != wanted:
        raise AssertionError(f"broken promise: {promise}\n  found:  {_shown(found)}\n  expected: {_shown(wanted)}")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 600 else f"{text[:300]} … {text[-300:]}"
