"""The names of the hub: addresses of actors, topics, and the patterns that subscriptions may use instead of topics.

An address is a kind and a name in lower case: `@(browser/client-ui)`. A topic is 1 to 256 letters, digits, `_`, `-` and `/`. In a
pattern a level may be `+`, any one level, and the last may be `#`, any number of further levels, none included: `orders/#` covers
`orders` and `orders/eu/new`.
"""

from __future__ import annotations

import re

from penstock.hub.core.refusal import Refusal
from penstock.hub.core.rules import MAX_TOPIC

HUB = "@(cloudflare/signal-hub)"
"""The address of the hub in specification 002: the sender of replies, and `via` in forwarded messages."""
EVERYONE = "@(broadcast/all)"
"""The recipient of a broadcast, where one has to be named."""
MAX_ADDRESS = 256

_ADDRESS = re.compile(r"@\([a-z0-9-]+/[a-z0-9-]+\)").fullmatch


def is_address(text: str) -> bool:
    """Whether a text is the canonical address of an actor."""
    return len(text) <= MAX_ADDRESS and _ADDRESS(text) is not None


def address_of(kind_and_name: str) -> str:
    """The address of an actor from its name in a token: `browser/client-ui`, or the address itself."""
    return kind_and_name if kind_and_name.startswith("@(") else f"@({kind_and_name})"


_TOPIC = re.compile(rf"[a-zA-Z0-9/_-]{{1,{MAX_TOPIC}}}").fullmatch
_LEVEL = re.compile(r"[a-zA-Z0-9_-]*|\+").fullmatch
MAX_PATTERN_LEVELS = 10
"""The maximum number of levels of a pattern with wildcards: a message may visit up to 2 * 2**levels places in the table."""
RESOLUTION = f"send a topic of 1 to {MAX_TOPIC} letters, digits, / _ and -"


def is_topic(text: object) -> bool:
    return isinstance(text, str) and _TOPIC(text) is not None


def is_pattern(text: object) -> bool:
    """Whether a value is valid for a subscription: a topic, or a pattern with `+` or `#` as whole levels, `#` last."""
    if not isinstance(text, str) or not 0 < len(text) <= MAX_TOPIC:
        return False
    levels = text.split("/")
    if levels[-1] == "#":
        levels.pop()
    return all(_LEVEL(level) is not None for level in levels)


def has_wildcard(pattern: str) -> bool:
    """Whether a pattern contains `+` or `#`."""
    return "+" in pattern or "#" in pattern


def covers(pattern: str, other: str) -> bool:
    """Whether a pattern covers a topic, or every topic that another pattern covers."""
    wanted, given = pattern.split("/"), other.split("/")
    if given[-1] == "#":
        if wanted[-1] != "#":
            return False
        given = given[:-1] or ["+"]  # every topic has a level, so `#` covers no more than `+/#`
    if wanted[-1] == "#":
        wanted.pop()
        given = given[: len(wanted)]
    if len(wanted) != len(given):
        return False
    for want, have in zip(wanted, given, strict=True):  # noqa: SIM110  # called for every publish: takes half the time of `all`
        if want not in ("+", have):
            return False
    return True


def overlaps(one: str, other: str) -> bool:
    """Whether there is a topic that both patterns cover."""
    left, right = one.split("/"), other.split("/")
    for index in range(max(len(left), len(right))):
        have = left[index] if index < len(left) else None
        want = right[index] if index < len(right) else None
        if have == "#" or want == "#":
            return True
        if have is None or want is None or (have != want and "+" not in {have, want}):
            return False
    return True


def checked_topic(topic: object) -> str:
    """The topic of a publish. Raises a Refusal with the error text of the specification if it is invalid."""
    if isinstance(topic, str) and _TOPIC(topic) is not None:
        return topic
    if is_pattern(topic):
        raise Refusal(
            "internal_error",
            "topic is required",
            reason="wildcard_topic",
            resolution="publish to one topic; + and # are for subscriptions only",
            details={"topic": topic},
        )
    raise _invalid(topic, RESOLUTION)


def checked_pattern(pattern: object) -> str:
    """The topic or pattern of a subscription. Raises a Refusal with the error text of the specification if it is invalid."""
    if isinstance(pattern, str) and is_pattern(pattern):
        if has_wildcard(pattern) and pattern.count("/") >= MAX_PATTERN_LEVELS:
            raise Refusal(
                "internal_error",
                "topic is required",
                reason="too_many_levels",
                resolution=f"subscribe to a pattern of at most {MAX_PATTERN_LEVELS} levels; # covers all further ones",
                details={"topic": pattern},
            )
        return pattern
    raise _invalid(pattern, f"{RESOLUTION}; in a subscription a level may be +, and the last one #")


def _invalid(topic: object, resolution: str) -> Refusal:
    details = {"topic": topic[: MAX_TOPIC + 1]} if isinstance(topic, str) else {}
    reason = "missing_topic" if topic is None else "invalid_topic"
    return Refusal("internal_error", "topic is required", reason=reason, resolution=resolution, details=details)
