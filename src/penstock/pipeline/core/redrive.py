"""What a redrive is: which dead letters, how fast, in which order; and how far it is. Nothing here reads or writes.

selection (frozen at an offset of the event log) ──> by queue, in the order of publishing ──> slices, each moved once
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby

from penstock.durations import SECOND, to_datetime
from penstock.errors import InvalidArgument
from penstock.pipeline.core.dead_letters import VERSIONS
from penstock.pipeline.core.same_arguments import check_id, check_same, texts

SLICE = 500
"""How many letters are moved at once."""
SLICES_PER_SECOND = 4
"""With a rate: how often letters are moved, so that they do not come in one burst a second."""


@dataclass(frozen=True, slots=True)
class Redrive:
    """Dead letters that are to be delivered again. `since` belongs to the range, `until` does not; both in microseconds."""

    redrive_id: str
    """What makes it happen once: a second redrive with this id continues the first, with other arguments it is an error."""
    streams: tuple[str, ...] = ()
    """Of these only: a topic, or `queue:NAME`."""
    sql: str | None = None
    """A condition in SQL over the columns of a letter."""
    since: int | None = None
    until: int | None = None
    limit: int | None = None
    """At most this many, the oldest first."""
    rate: float | None = None
    """At most this many a second."""
    version_attributes: tuple[str, ...] = VERSIONS
    ago: Mapping[str, str] = field(default_factory=dict)
    """Of `since` and `until` those that were given as a time before now, as they were written: `2h` is the same again later."""

    def __post_init__(self) -> None:
        check_id("redrive", self.redrive_id)
        if self.since is not None and self.until is not None and self.since >= self.until:
            raise InvalidArgument("the range is empty: since is not before until", hint="until does not belong to the range")
        if self.sql is not None and not self.sql.strip():
            raise InvalidArgument("the condition is empty", hint="leave it out to redrive all dead letters")
        if self.rate is not None and not 0 < self.rate <= SECOND:
            raise InvalidArgument.of("the rate", self.rate, f"more than 0, at most {SECOND:,} letters a second")

    def arguments(self) -> dict[str, str]:
        """What was asked for, as text. The rate may differ when it is continued."""
        times = {name: at and to_datetime(at).isoformat() for name, at in (("since", self.since), ("until", self.until))}
        streams = " ".join(sorted(self.streams)) or None
        versions = None if self.version_attributes == VERSIONS else " ".join(self.version_attributes)
        return texts(
            {"streams": streams, "sql": self.sql, **times, **self.ago, "limit": self.limit, "version_attributes": versions}
        )

    def check_arguments(self, before: Mapping[str, str]) -> None:
        """An error that names what differs from the arguments with which this id was used before."""
        check_same("redrive", self.redrive_id, self.arguments(), before)


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter that was selected."""

    stream: str
    subscription: str
    offset: int
    message_id: str
    died_at: int
    """In microseconds."""
    is_gone: bool = False
    """Whether it was redriven or removed after the selection was fixed."""

    @property
    def source(self) -> str:
        """Where it is requeued, as the log API names it."""
        is_queue = self.stream == f"queue:{self.subscription}"
        return self.stream if is_queue else f"subscription:{self.subscription}"


@dataclass(frozen=True, slots=True)
class TargetState:
    """How deliveries to a target, or by the consumers of a queue or subscription, have ended recently."""

    name: str
    successes: int
    failures: int
    last_success: datetime | None = None
    last_failure: datetime | None = None
    error: str = ""
    """The newest."""

    @property
    def is_failing(self) -> bool:
        """Whether its newest delivery failed."""
        if self.last_failure is None:
            return False
        return self.last_success is None or self.last_success < self.last_failure


@dataclass(frozen=True, slots=True)
class RedrivePlan:
    """What a redrive would do now."""

    letters: Sequence[Letter]
    """By queue or subscription, in the order of publishing."""
    targets: Sequence[TargetState] = ()

    @property
    def counts(self) -> dict[str, int]:
        """How many letters of each queue or subscription."""
        return {source: len([*letters]) for source, letters in groupby(self.letters, lambda letter: letter.source)}


def ordered(letters: Iterable[Letter], limit: int | None) -> list[Letter]:
    """By queue or subscription, in the order of publishing; of a message that died twice its last death. The oldest `limit`."""
    newest: dict[tuple[str, int], Letter] = {}
    for letter in sorted(letters, key=lambda one: one.died_at):
        newest[letter.source, letter.offset] = letter
    chosen = sorted(newest.values(), key=lambda letter: (letter.died_at, letter.source, letter.offset))[:limit]
    return sorted(chosen, key=lambda letter: (letter.source, letter.offset))


def slices(letters: Sequence[Letter], rate: float | None) -> Iterator[tuple[str, list[Letter], int]]:
    """(source, letters of it, microseconds until the next slice), in order."""
    most = SLICE if rate is None else max(min(SLICE, round(rate / SLICES_PER_SECOND)), 1)
    for source, found in groupby(letters, lambda letter: letter.source):
        of_source = [*found]
        for first in range(0, len(of_source), most):
            part = of_source[first : first + most]
            yield source, part, 0 if rate is None else round(len(part) / rate * SECOND)
