"""What a replay is: which messages again, where to, and how fast. Nothing here reads or writes."""

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
    """How many times as fast as the original: 1 for `original`, 10 for `10x`; None for `full`, all of it now."""
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
    """How long it takes until the last message is delivered, in microseconds, after the first is."""
    return 0 if speed is None else round((last - first) / speed)


@dataclass(frozen=True, slots=True)
class Replay:
    """A range of a stream that is to be published again. Bounds that are None do not bound.

    `from_offset` and `since` belong to the range, `to_offset` and `until` do not. Instants are in microseconds.
    """

    stream: str
    to: str
    replay_id: str
    """What makes it happen once: a second replay with the same id adds nothing, and one with other arguments is an error."""
    from_offset: int | None = None
    to_offset: int | None = None
    since: int | None = None
    until: int | None = None
    where: str | None = None
    """A condition in SQL over the columns of MESSAGES."""
    speed: float | None = None
    storage: str = "auto"
    ago: Mapping[str, str] = field(default_factory=dict)
    """Of `since` and `until` those that were given as a time before now, as they were written: `2h` is the same again later."""

    def arguments(self) -> dict[str, str]:
        """What was asked for, as text. The storage is not part of it: each gives the same rows."""
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
        """An error that names what differs from the arguments with which this id was used before."""
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
    """How much a replay is. `first` and `last` are publish times in microseconds; None when there is nothing."""

    rows: int
    bytes: int
    first_offset: int | None = None
    last_offset: int | None = None
    first: int | None = None
    last: int | None = None
    is_repeat: bool = False
    """Whether a replay with this id was published before, so that nothing was added."""

    def duration(self, speed: float | None) -> int:
        """How long handing it out takes, in microseconds."""
        return 0 if self.first is None or self.last is None else duration(self.first, self.last, speed)
