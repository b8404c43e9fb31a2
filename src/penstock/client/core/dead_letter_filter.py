"""Conditions on dead letters: `reason=max_retries_exceeded AND attempts>3 AND age>1h`.

A condition is a field, an operator and a value; several are joined by AND, and all must hold:

    error, id, task          =  !=  ~ (contains)  !~  text; upper and lower case count for = and !=, not for ~ and !~
    header.NAME              the same; a header that is not there is an empty text
    reason                   the same; = and != take one of the reasons that there are
    attempts, priority       =  !=  >  >=  <  <=      whole numbers
    age                      >  >=  <  <=             since it became a dead letter: 90, 500ms, 30s, 5m, 2h, 30d

A value with spaces stands in quotes, 'one way' or "the other"; in them a backslash keeps the next character as it is.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from penstock.durations import SECOND, duration_seconds
from penstock.errors import InvalidArgument
from penstock.values.queue import EXPLICIT_NACK, MAX_RETRIES_EXCEEDED, TTL_EXPIRED

T = TypeVar("T")

MAX_LENGTH = 10_000

_REASONS = {
    MAX_RETRIES_EXCEEDED: MAX_RETRIES_EXCEEDED,
    TTL_EXPIRED: TTL_EXPIRED,
    "rejected": EXPLICIT_NACK,
    EXPLICIT_NACK: EXPLICIT_NACK,
}
"""The existing reasons, by their accepted spellings."""
_NUMBERS = ("attempts", "priority")
_FIELDS = "reason, error, id, task, attempts, priority, age or header.NAME"

_CONDITION = re.compile(
    r"""\s*(?P<field>[A-Za-z_][\w.-]*)\s*(?P<sign>!=|!~|>=|<=|=|~|>|<)\s*"""
    r"""(?:"(?P<double>(?:[^"\\]|\\.)*)"|'(?P<single>(?:[^'\\]|\\.)*)'|(?P<bare>[^\s"']+))(?=\s|$)""",
    re.DOTALL,
)
_AND = re.compile(r"\s+and(?=\s|$)", re.IGNORECASE)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)

_TEXT_SIGNS: dict[str, Callable[[str, str], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "~": lambda text, part: part.casefold() in text.casefold(),
    "!~": lambda text, part: part.casefold() not in text.casefold(),
}
_AGE_SIGNS: dict[str, Callable[[int, int], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
_NUMBER_SIGNS = {"=": operator.eq, "!=": operator.ne, **_AGE_SIGNS}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterFields:
    """The fields of a dead letter for conditions."""

    message_id: str
    reason: str
    error: str | None
    attempts: int
    priority: int
    dead_at: int
    headers: Mapping[str, str] = field(default_factory=dict)
    task: str = ""
    """The task that the message calls, if it is a call of a worker's task."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition: the field, and the test of its value."""

    field: str
    holds: Callable[[Any], bool]
    """For a text or a number, depending on the field."""


@dataclass(frozen=True, slots=True)
class DeadLetterFilter:
    """Conditions on a letter, which must all hold; without conditions every letter matches."""

    conditions: tuple[Condition, ...] = ()

    @classmethod
    def parse(cls, text: str) -> DeadLetterFilter:
        """Parse conditions; InvalidArgument names the place of an error."""
        if not isinstance(text, str) or not text.strip() or len(text) > MAX_LENGTH:
            raise InvalidArgument.of(
                "where", text, f"conditions such as attempts>3 AND error~timeout, up to {MAX_LENGTH} characters"
            )
        conditions, at = [], 0
        while True:
            found = _CONDITION.match(text, at)
            if found is None:
                raise _wrong(text, at, "a condition such as attempts>3 or error~'timed out'")
            conditions.append(_condition(text, found))
            at = found.end()
            if not text[at:].strip():
                return cls(tuple(conditions))
            joint = _AND.match(text, at)
            if joint is None:
                raise _wrong(text, at, "AND, or the end; quote a value that has spaces")
            at = joint.end()

    def matches(self, letter: DeadLetterFields, now: int) -> bool:
        return all(condition.holds(_value(letter, condition.field, now)) for condition in self.conditions)


def _value(letter: DeadLetterFields, name: str, now: int) -> str | int:
    match name:
        case "reason":
            return letter.reason
        case "error":
            return letter.error or ""
        case "id":
            return letter.message_id
        case "task":
            return letter.task
        case "attempts":
            return letter.attempts
        case "priority":
            return letter.priority
        case "age":
            return now - letter.dead_at
        case _:
            return letter.headers.get(name.removeprefix("header."), "")


def _condition(text: str, found: re.Match[str]) -> Condition:
    name = found["field"]
    quoted = found["double"] if found["double"] is not None else found["single"]
    value = _ESCAPED.sub(r"\1", quoted) if quoted is not None else found["bare"]
    if name == "reason" and found["sign"] in {"=", "!="}:
        if value not in _REASONS:
            raise _wrong(text, found.end("sign"), f"one of the reasons {', '.join(_REASONS)}; reason~ accepts a part of one")
        value = _REASONS[value]
    if name in {"reason", "error", "id", "task"} or re.fullmatch(r"header\..+", name):
        return Condition(name, _test(text, found, _TEXT_SIGNS, value))
    if name in _NUMBERS:
        if not re.fullmatch(r"[0-9]{1,9}", value, re.ASCII):
            raise _wrong(text, found.end("sign"), "a whole number")
        return Condition(name, _test(text, found, _NUMBER_SIGNS, int(value)))
    if name != "age":
        raise _wrong(text, found.start("field"), f"one of the fields {_FIELDS}")
    try:
        span = round(duration_seconds(value) * SECOND)
    except ValueError:
        raise _wrong(text, found.end("sign"), "a duration as in 500ms, 30s, 5m, 2h, 30d") from None
    return Condition(name, _test(text, found, _AGE_SIGNS, span))


def _test(text: str, found: re.Match[str], signs: Mapping[str, Callable[[T, T], bool]], value: T) -> Callable[[T], bool]:
    holds = signs.get(found["sign"])
    if holds is None:
        raise _wrong(text, found.start("sign"), f"one of {' '.join(signs)} after {found['field']}")
    return lambda seen: holds(seen, value)


def _wrong(text: str, at: int, wanted: str) -> InvalidArgument:
    at += len(text[at:]) - len(text[at:].lstrip())
    seen = repr(text[at : at + 30]) if at < len(text) else "its end"
    return InvalidArgument(f"invalid condition at {seen} (character {at + 1}), expected {wanted}")
