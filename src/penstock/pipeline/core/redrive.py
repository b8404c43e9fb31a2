"""The rules of a redrive: which dead letters, how fast, in which order. No I/O.

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
"""The maximum number of letters that are moved at once."""
SLICES_PER_SECOND = 4
"""With a rate: how often letters are moved, so that they do not arrive in one burst a second."""


@dataclass(frozen=True, slots=True)
class Redrive:
    """Dead letters to deliver again. The range includes `since` but not `until`; both are in microseconds."""

    redrive_id: str
    """Makes the redrive happen once: a second one with this id continues the first; with other arguments it is an error."""
    streams: tuple[str, ...] = ()
    """Only letters of these streams: a topic, or `queue:NAME`."""
    sql: str | None = None
    """A condition in SQL over the columns of a letter."""
    since: int | None = None
    until: int | None = None
    limit: int | None = None
    """The maximum number of letters, the oldest first."""
    rate: float | None = None
    """The maximum number of letters a second."""
    version_attributes: tuple[str, ...] = VERSIONS
    ago: Mapping[str, str] = field(default_factory=dict)
    """The text of `since` and `until` if they are relative to now: a later `2h` counts as the same argument."""

    def __post_init__(self) -> None:
        check_id("redrive", self.redrive_id)
        if self.since is not None and self.until is not None and self.since >= self.until:
            raise InvalidArgument("the range is empty: since is not before until", hint="until does not belong to the range")
        if self.sql is not None and not self.sql.strip():
            raise InvalidArgument("the condition is empty", hint="leave it out to redrive all dead letters")
        if self.rate is not None and not 0 < self.rate <= SECOND:
            raise InvalidArgument.of("the rate", self.rate, f"more than 0, at most {SECOND:,} letters a second")

    def arguments(self) -> dict[str, str]:
        """The arguments as text, without the rate, which may differ when it is continued."""
        times = {name: at and to_datetime(at).isoformat() for name, at in (("since", self.since), ("until", self.until))}
        streams = " ".join(sorted(self.streams)) or None
        versions = None if self.version_attributes == VERSIONS else " ".join(self.version_attributes)
        return texts(
            {"streams": streams, "sql": self.sql, **times, **self.ago, "limit": self.limit, "version_attributes": versions}
        )

    def check_arguments(self, before: Mapping[str, str]) -> None:
        """Raise InvalidArgument with the differences if this id was used before with other arguments."""
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
        """The queue or subscription where it is requeued, as named in the log API."""
        is_queue = self.stream == f"queue:{self.subscription}"
        return self.stream if is_queue else f"subscription:{self.subscription}"


@dataclass(frozen=True, slots=True)
class TargetState:
    """The recent results of deliveries to a target, or of the consumers of a queue or subscription."""

    name: str
    successes: int
    failures: int
    last_success: datetime | None = None
    last_failure: datetime | None = None
    error: str = ""
    """The newest error."""

    @property
    def is_failing(self) -> bool:
        """Whether the newest delivery failed."""
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
        """The number of letters of each queue or subscription."""
        return {source: len([*letters]) for source, letters in groupby(self.letters, lambda letter: letter.source)}


def ordered(letters: Iterable[Letter], limit: int | None) -> list[Letter]:
    """The oldest `limit` letters, by queue or subscription, in publish order. If a message died twice, the last counts."""
    newest: dict[tuple[str, int], Letter] = {}
    for letter in sorted(letters, key=lambda one: one.died_at):
        newest[letter.source, letter.offset] = letter
    chosen = sorted(newest.values(), key=lambda letter: (letter.died_at, letter.source, letter.offset))[:limit]
    return sorted(chosen, key=lambda letter: (letter.source, letter.offset))


def slices(letters: Sequence[Letter], rate: float | None) -> Iterator[tuple[str, list[Letter], int]]:
    """(source, its letters, microseconds until the next slice), in order."""
    most = SLICE if rate is None else max(min(SLICE, round(rate / SLICES_PER_SECOND)), 1)
    for source, found in groupby(letters, lambda letter: letter.source):
        of_source = [*found]
        for first in range(0, len(of_source), most):
            part = of_source[first : first + most]
            yield source, part, 0 if rate is None else round(len(part) / rate * SECOND)
