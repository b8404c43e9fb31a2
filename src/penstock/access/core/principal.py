"""The caller, and what it may do.

The answer depends on the token and on the names in the call alone, never on what exists. So a refusal is the same for a topic
that is there and for one that is not, and cannot be used to find out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from penstock.errors import PermissionDenied


class Verb(StrEnum):
    """What can be done to a topic, subscription, queue, snapshot or schema. Only `read` includes another, `metrics`."""

    PUBLISH = "publish"
    CONSUME = "consume"
    """Pull, acknowledge, release, extend; see payloads, set push endpoints, hold retention."""
    MANAGE = "manage"
    """Create, change, delete, purge, seek."""
    READ = "read"
    """Get, list, stats; no payloads."""
    METRICS = "metrics"
    """Counters and health."""


class Right(StrEnum):
    """What `consume` includes. It is not given by itself; tokens from before these needed `consume` keep them."""

    SEE = "see"
    """See the payloads of messages without consuming them."""
    PUSH = "push"
    """Have the messages of a subscription pushed to an endpoint."""
    HOLD = "hold"
    """Keep messages of a stream in the log beyond its retention."""
    HOLD_EVENTS = "hold_events"
    """The same for the event log, which is about all names."""


Action = Verb | Right

_INCLUDED: dict[Action, frozenset[Action]] = {
    Verb.READ: frozenset({Verb.METRICS}),
    Verb.CONSUME: frozenset({Right.SEE, Right.PUSH, Right.HOLD}),
}
_ONCE_INCLUDED: dict[Action, frozenset[Action]] = {
    Verb.READ: frozenset({Right.SEE, Right.HOLD, Right.HOLD_EVENTS}),
    Verb.MANAGE: frozenset({Right.PUSH}),
}


def once_included(verbs: Iterable[Verb]) -> frozenset[Action]:
    """What verbs included beside themselves when tokens had no verb `metrics`."""
    return frozenset(action for verb in verbs for action in _ONCE_INCLUDED.get(verb, ()))


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller. `project` None stands for every project; `patterns` are matched with the plain name inside the project.

    `verbs` has all that those which were given include.
    """

    token_id: str
    project: str | None
    verbs: frozenset[Action]
    patterns: tuple[str, ...] = ("*",)

    def __post_init__(self) -> None:
        included = {action for verb in self.verbs for action in _INCLUDED.get(verb, ())}
        if Verb.CONSUME in self.verbs and "*" in self.patterns:
            included.add(Right.HOLD_EVENTS)
        object.__setattr__(self, "verbs", self.verbs | included)

    def may(self, verb: Action, project: str, name: str | None = None) -> bool:
        """Whether the call is allowed. Without a name the project as a whole is meant, as for a listing."""
        if verb not in self.verbs or (self.project is not None and project != self.project):
            return False
        return name is None or "*" in self.patterns or _expression(self.patterns).fullmatch(name) is not None

    def may_everywhere(self, verb: Action) -> bool:
        """Whether the verb is allowed for every name of every project, so that names need not be asked about one by one."""
        return self.project is None and verb in self.verbs and "*" in self.patterns

    def check(self, verb: Action, project: str, name: str | None = None, *, kind: str = "resource") -> None:
        """Raise PermissionDenied unless the call is allowed; `kind` is the word for what is named: topic, queue, …."""
        if not self.may(verb, project, name):
            needed = verb if isinstance(verb, Verb) else Verb.CONSUME
            raise PermissionDenied(needed.value, f"project {project}" if name is None else f"{kind} {name} of project {project}")


ANYONE = Principal(token_id="", project=None, verbs=frozenset(Verb))
"""The caller of a server that asks for no tokens: may do everything."""


@lru_cache(maxsize=1024)
def _expression(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(_translated, patterns)), re.DOTALL)


def _translated(pattern: str) -> str:
    """A glob as a regular expression: `*` is any text, `?` any character, all else itself.

    Every piece between two stars takes the first place that fits and never looks for another (an atomic group). That finds a
    match whenever there is one, and keeps a pattern full of stars from taking exponential time.
    """
    first, *rest = (".".join(map(re.escape, piece.split("?"))) for piece in pattern.split("*"))
    if not rest:
        return first
    *middle, last = rest
    return first + "".join(f"(?>.*?{piece})" for piece in middle if piece) + f".*{last}"
