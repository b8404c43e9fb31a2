"""The caller of an operation, and its permissions.

The answer depends only on the token and on the names in the call, never on what exists. A refusal is the same for a topic that
exists and for one that does not, so it cannot be used to find out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from penstock.errors import PermissionDenied


class Verb(StrEnum):
    """The actions on topics, subscriptions, queues, snapshots and schemas. Only `read` includes another one, `metrics`."""

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
    """A part of `consume`. It cannot be granted alone; tokens made before these existed keep what they had without `consume`."""

    SEE = "see"
    """See the payloads of messages without consuming them."""
    PUSH = "push"
    """Have the messages of a subscription pushed to an endpoint."""
    HOLD = "hold"
    """Keep messages of a stream in the log beyond its retention."""
    HOLD_EVENTS = "hold_events"
    """The same for the event log, which has events of all names."""


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
    """The verbs that tokens had beside theirs before the verb `metrics` existed."""
    return frozenset(action for verb in verbs for action in _ONCE_INCLUDED.get(verb, ()))


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller. `project` is None for all projects; `patterns` are matched with names without their project.

    `verbs` contains the verbs that were granted and all that these include.
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
        """Whether the call is allowed. Without a name, it is about the whole project, such as a listing."""
        if verb not in self.verbs or (self.project is not None and project != self.project):
            return False
        return name is None or "*" in self.patterns or _expression(self.patterns).fullmatch(name) is not None

    def may_everywhere(self, verb: Action) -> bool:
        """Whether the verb is allowed for every name of every project, so that single names need no check."""
        return self.project is None and verb in self.verbs and "*" in self.patterns

    def check(self, verb: Action, project: str, name: str | None = None, *, kind: str = "resource") -> None:
        """Raise PermissionDenied unless the call is allowed; `kind` is topic, queue or another kind of resource."""
        if not self.may(verb, project, name):
            needed = verb if isinstance(verb, Verb) else Verb.CONSUME
            raise PermissionDenied(needed.value, f"project {project}" if name is None else f"{kind} {name} of project {project}")


ANYONE = Principal(token_id="", project=None, verbs=frozenset(Verb))
"""The caller of a server without authentication: everything is allowed."""


@lru_cache(maxsize=1024)
def _expression(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(_translated, patterns)), re.DOTALL)


def _translated(pattern: str) -> str:
    """Translate a glob to a regular expression: `*` is any text, `?` any character, all else itself.

    Each piece between two stars takes its first match and is not tried elsewhere (an atomic group). This finds a match whenever
    there is one, and a pattern with many stars does not take exponential time.
    """
    first, *rest = (".".join(map(re.escape, piece.split("?"))) for piece in pattern.split("*"))
    if not rest:
        return first
    *middle, last = rest
    return first + "".join(f"(?>.*?{piece})" for piece in middle if piece) + f".*{last}"
