"""The rules of a replay: which messages, where to, and how fast. No I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.durations import to_datetime
from penstock.errors import InvalidArgument
from penstock.pipeline.core.same_arguments import check_id, check_same, texts

REPLAYED_FROM, REPLAY = "penstock.replayed_from", "penstock.replay"
"""The attributes that mark a replayed message: the id of the original, and the id of the replay."""

FULL, ORIGINAL = "full", "original"
FASTEST = 1_000_000
_SPEED = re.compile(r"([0-9]{1,7}(?:\.[0-9]{1,6})?)x", re.ASCII)


def speed_of(text: str) -> float | None:
    """The speed as a factor of the original: 1 for `original`, 10 for `10x`; None for `full`, everything at once."""
    if text == FULL:
        return None
    if text == ORIGINAL:
        return 1.0
    found = _SPEED.fullmatch(text)
    speed = float(found[1]) if found else 0
    if not 0 < speed <= FASTEST:
        raise InvalidArgument.of("the speed", text, f"{FULL}, {ORIGINAL}, or a factor such as 10x or 0.5x, up to {FASTEST}x")
    return speed


def duration(first: int, last: int, speed: float | None) -> int:
    """The time from the delivery of the first message to that of the last, in microseconds."""
    return 0 if speed is None else round((last - first) / speed)


@dataclass(frozen=True, slots=True)
class Replay:
    """A range of a stream to publish again. Bounds that are None do not limit it.

    The range includes `from_offset` and `since`, but not `to_offset` and `until`. Times are in microseconds.
    """

    stream: str
    to: str
    replay_id: str
    """Makes the replay happen once: a second one with the same id adds nothing; with other arguments it is an error."""
    from_offset: int | None = None
    to_offset: int | None = None
    since: int | None = None
    until: int | None = None
    where: str | None = None
    """A condition in SQL over the columns of MESSAGES."""
    speed: float | None = None
    storage: str = "auto"
    ago: Mapping[str, str] = field(default_factory=dict)
    """The text of `since` and `until` if they are relative to now: a later `2h` counts as the same argument."""

    def arguments(self) -> dict[str, str]:
        """The arguments as text, without the storage, since each storage gives the same rows."""
        times = {name: at and to_datetime(at).isoformat() for name, at in (("since", self.since), ("until", self.until))}
        given: dict[str, object] = {
            "stream": self.stream,
            "to": self.to,
            "from_offset": self.from_offset,
            "to_offset": self.to_offset,
            **times,
            **self.ago,
            "where": self.where,
            "speed": FULL if self.speed is None else f"{self.speed:g}x",
        }
        return texts(given)

    def check_arguments(self, before: Mapping[str, str]) -> None:
        """Raise InvalidArgument with the differences if this id was used before with other arguments."""
        check_same("replay", self.replay_id, self.arguments(), before)

    def __post_init__(self) -> None:
        for low, high, names in (
            (self.from_offset, self.to_offset, ("from_offset", "to_offset")),
            (self.since, self.until, ("since", "until")),
        ):
            if low is not None and high is not None and low >= high:
                raise InvalidArgument(
                    f"the range is empty: {names[0]} is not before {names[1]}", hint=f"{names[1]} does not belong to the range"
                )
        check_id("replay", self.replay_id)
        if self.where is not None and not self.where.strip():
            raise InvalidArgument("the condition is empty", hint="leave it out to replay all of the range")


@dataclass(frozen=True, slots=True)
class ReplayExtent:
    """The size of a replay. `first` and `last` are publish times in microseconds; None if there are no messages."""

    rows: int
    bytes: int
    first_offset: int | None = None
    last_offset: int | None = None
    first: int | None = None
    last: int | None = None
    is_repeat: bool = False
    """Whether this replay id was published before, so that nothing was added."""

    def duration(self, speed: float | None) -> int:
        """How long the delivery takes, in microseconds."""
        return 0 if self.first is None or self.last is None else duration(self.first, self.last, speed)
