"""Groups dead letters by cause, and suggests what to do about each group. No I/O.

    dead letters ──traits_of──> equal traits (counted on Spark) ──merged──> groups ──suggested──> the report

Letters with equal traits are one group at first. Then groups with irrelevant differences are merged: fields that are missing in
some payloads, a word of the error that differs nearly each time (a name), versions if there are many.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime

import msgspec

from penstock.pipeline.core.dead_letters import MASK, fields_of

SIMILAR = 0.6
"""Payloads are of the same kind if they share at least this part of their fields."""
VARIABLE = 8
"""A word of an error with more values than this is a name or an id."""
MAX_VERSIONS = 2
"""An error that occurs in more versions of the code than this does not depend on the version."""
SAMPLES = 3
MANY = "several"


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters of one queue or subscription with one cause. Published and printed as JSON, so fields may only be added."""

    id: str = ""
    stream: str
    """`queue:NAME` for a work queue."""
    subscription: str
    reason: str
    error: str
    """Normalised."""
    target: str
    status: int
    shape: str
    version: str
    count: int
    first_at: datetime
    last_at: datetime
    samples: list[str]
    """Message ids: the oldest, the newest, and one in between."""
    example: str = ""
    """The unchanged error of one of them."""
    action: str = ""
    condition: str = ""
    """The SQL condition for `penstock pipeline redrive --sql` that selects them among the letters of their stream."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a triage."""

    at: datetime
    total: int
    groups: list[Group]
    """The largest first."""


def report(rows: Iterable[Group], at: datetime) -> Report:
    """The merged groups, each with an id and a suggestion. `rows` are groups of equal traits."""
    found = sorted(merged([*rows]), key=lambda group: (-group.count, group.stream, group.error, group.shape, group.version))
    groups = [
        msgspec.structs.replace(group, id=_id_of(group), action=suggested(group), condition=condition_of(group))
        for group in found
    ]
    return Report(at=at, total=sum(group.count for group in groups), groups=groups)


def merged(groups: Sequence[Group]) -> list[Group]:
    """Merge groups that have only irrelevant differences."""
    named = _without_names(groups)
    shaped: list[Group] = []
    for alike in _by(named, lambda group: (*_cause(group), group.version)):
        shaped += _similar_shapes(alike)
    found: list[Group] = []
    for alike in _by(shaped, lambda group: (*_cause(group), group.shape)):
        versions = {group.version for group in alike}
        found += [_joined(alike, version=MANY)] if len(versions) > MAX_VERSIONS else alike
    return found


def _cause(group: Group) -> tuple[object, ...]:
    return group.stream, group.subscription, group.reason, group.error, group.target, group.status


def _without_names(groups: Sequence[Group]) -> list[Group]:
    """Replace a word of an error, or two in a row, by a mask if it differs nearly each time."""
    patterns: dict[Around, set[tuple[str, ...]]] = defaultdict(set)
    for _ in range(2):
        values: dict[Around, set[tuple[str, ...]]] = defaultdict(set)
        split = [(group, tuple(group.error.split(" "))) for group in groups]
        for group, words in split:
            for around, place, width in _places(group, words):
                values[around].add(words[place : place + width])
        names = {around for around, found in values.items() if _are_names(found)}
        if not names:
            break
        changed = []
        for group, words in split:
            masked = _masked(group, words, names)
            if masked != words:
                patterns[_where(group)].add(masked)
            changed.append(_with_error(group, masked))
        groups = _joined_equals(changed)
    # Errors that are too rare to detect a name in them may match the pattern of others.
    fitted = []
    for group in groups:
        words = tuple(group.error.split(" "))
        fitting = (one for one in patterns[_where(group)] if one != words and _fits(words, one))
        fitted.append(_with_error(group, next(fitting, words)))
    return _joined_equals(fitted)


Around = tuple[object, ...]
"""The group of an error, and its words without those at one place."""


def _places(group: Group, words: tuple[str, ...]) -> Iterator[tuple[Around, int, int]]:
    """Each word and each two in a row, with the words around them: (around, place, width)."""
    where = _where(group)
    for width in (1, 2):
        for place in range(len(words) - width + 1):
            yield (*where, place, width, *words[:place], *words[place + width :]), place, width


def _are_names(found: set[tuple[str, ...]]) -> bool:
    return all(len({*column}) > VARIABLE for column in zip(*found, strict=True))


def _where(group: Group) -> Around:
    return group.stream, group.subscription, group.reason, group.target, group.status


def _with_error(group: Group, words: tuple[str, ...]) -> Group:
    return msgspec.structs.replace(group, error=" ".join(words))


def _joined_equals(groups: Sequence[Group]) -> list[Group]:
    return [_joined(alike) for alike in _by(groups, lambda one: (*_cause(one), one.shape, one.version))]


def _fits(words: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    return len(words) == len(pattern) and all(mask in (MASK, word) for word, mask in zip(words, pattern, strict=True))


def _masked(group: Group, words: tuple[str, ...], names: set[Around]) -> tuple[str, ...]:
    found = [*words]
    for around, place, width in _places(group, words):
        if around in names:
            found[place : place + width] = [MASK] * width
    return tuple(found)


def _similar_shapes(groups: Sequence[Group]) -> list[Group]:
    """Merge groups whose payloads are of the same kind, with the most frequent shape."""
    kinds: list[tuple[frozenset[str], list[Group]]] = []
    for group in sorted(groups, key=lambda one: -one.count):
        fields = fields_of(group.shape)
        for known, members in kinds:
            if fields == known or (fields and len(fields & known) >= SIMILAR * len(fields | known)):
                members.append(group)
                break
        else:
            kinds.append((fields, [group]))
    return [_joined(members) for _, members in kinds]


def _joined(groups: Sequence[Group], version: str | None = None) -> Group:
    """One group for several, with the properties of the largest."""
    if len(groups) == 1 and version is None:
        return groups[0]
    first = max(groups, key=lambda group: group.count)
    ids = [sample for group in groups for sample in group.samples]
    return msgspec.structs.replace(
        first,
        version=first.version if version is None else version,
        count=sum(group.count for group in groups),
        first_at=min(group.first_at for group in groups),
        last_at=max(group.last_at for group in groups),
        samples=_some(ids),
    )


def _some(ids: Iterable[str]) -> list[str]:
    """The first, the last and one in between, in the order of ids, which is the order of publishing."""
    found = sorted({*ids})
    return found if len(found) <= SAMPLES else [found[0], found[len(found) // 2], found[-1]]


def _by(groups: Iterable[Group], key: Callable[[Group], tuple[object, ...]]) -> list[list[Group]]:
    found: dict[tuple[object, ...], list[Group]] = defaultdict(list)
    for group in groups:
        found[key(group)].append(group)
    return [*found.values()]


def _id_of(group: Group) -> str:
    """A short id, which is always the same for the same cause."""
    text = "\n".join(map(str, (*_cause(group), group.shape, group.version)))
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:12]


def condition_of(group: Group) -> str:
    """The condition that selects the letters of a group, by all its traits except the shape of the payload."""
    parts = [f"reason = {_quoted(group.reason)}", f"error_pattern LIKE {_pattern(group.error)}"]
    if group.stream != f"queue:{group.subscription}":
        parts.insert(0, f"subscription = {_quoted(group.subscription)}")
    if group.status:
        parts.append(f"status = {group.status}")
    if group.target:
        parts.append(f"target = {_quoted(group.target)}")
    if group.version not in {"", MANY}:
        parts.append(f"version = {_quoted(group.version)}")
    return " AND ".join(parts)


def _quoted(text: str) -> str:
    """A text as a literal of Spark SQL: in double quotes, since the shell command has single quotes around the condition."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _pattern(error: str) -> str:
    """An error with masks as a LIKE pattern."""
    return _quoted(re.sub(r"[\\%_]", r"\\\g<0>", error).replace(MASK, "%"))


_BY_STATUS = {
    401: "renew the credentials that the target expects, then redrive",
    403: "allow the caller at the target, then redrive",
    404: "correct the target's address, then redrive",
    408: "raise the timeout or make the target faster, then redrive",
    409: "check whether the target has it already; if so purge, else redrive",
    410: "the target takes these no longer: purge",
    413: "send smaller payloads; these are too large for the target",
    429: "redrive with --rate below the target's limit",
}
_BY_WORDS = (
    (("timed out", "timeout", "deadline"), "raise the timeout or make the target faster, then redrive"),
    (
        ("refused", "unreachable", "reset", "no route", "resolve", "connection", "broken pipe", "unavailable"),
        "redrive when the target answers again",
    ),
    (("certificate", "ssl", "tls"), "renew the certificate, then redrive"),
    (("permission", "denied", "unauthorized", "forbidden", "credential"), "allow the caller, then redrive"),
    (("deadlock", "lock wait", "serialization", "conflict", "too many connections"), "redrive with a low --rate"),
    (("memory", "killed", "disk", "no space"), "give the consumer more memory or disk, then redrive"),
    (
        ("json", "decode", "parse", "schema", "valid", "missing", "required", "unexpected"),
        "correct the publisher or let the consumer accept this payload, then redrive",
    ),
    (("error:", "exception", "traceback"), "correct the code of the consumer, deploy it, then redrive"),
)


def suggested(group: Group) -> str:
    """A suggestion what to do about a group."""
    if group.status in _BY_STATUS:
        return _BY_STATUS[group.status]
    if 400 <= group.status < 500:
        return "the target refuses these: correct the payload or the target, then redrive"
    if group.status >= 500:
        return "redrive when the target answers again"
    if group.reason == "ttl_expired":
        return "they waited longer than they live: add consumers; redrive only if they are still of use"
    text = group.error.lower()
    for words, action in _BY_WORDS:
        if any(word in text for word in words):
            return action
    if not text and group.reason == "max_retries_exceeded":
        return "not settled in time: raise the ack deadline or look for consumers that end, then redrive"
    return "look at a sample with penstock trace, correct the cause, then redrive"
