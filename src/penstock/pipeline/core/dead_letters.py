"""The cause of a dead letter in a form that can be compared with others. No I/O.

It consists of the error without the parts that differ from message to message, the target, the status of the answer, the shape of
the payload, and the version of the code.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from penstock.values.queue import task_name

MAX_ERROR = 500
"""The number of characters of an error that are considered."""
MAX_SHAPE = 300
MAX_FIELDS = 24
"""An object with more fields is treated as a map, whose keys do not describe a shape."""
MAX_DEPTH = 3
MASK = "…"
VERSIONS = ("code_version", "app_version", "version", "release", "code.version", "app.version", "service.version")
"""Attributes that may have the version of the code; the first existing one is used."""
ROUTER_TARGET = "router.target"
"""The header with the target of a message that a router gave up."""

_TRACEBACK = "Traceback (most recent call last)"
_QUOTED = re.compile(r"(?<!\w)'[^'\n]*'(?!\w)|\"[^\"\n]*\"|`[^`\n]*`|<[^<>\n]*>")
_QUOTES = re.compile(r"['\"`<]")
_URL = re.compile(r"\b([a-z][a-z0-9+]{1,9}://)[^\s,;)\]}]+")
_INSTANT = re.compile(
    r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?)?(?: ?(?:Z|UTC|[+-]\d\d:?\d\d))?\b"
    r"|\b\d\d?:\d\d:\d\d(?:[.,]\d+)?\b"
    r"|\b(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),? )?\d\d? (?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\w* \d{4}\b"
)
# A number after one of these words is an error code, and is kept.
_WORD = re.compile(
    r"(?P<code>\b(?:status|status_code|code|errno|sqlstate|http|signal)\b[ =:#]{1,2}-?[0-9A-Z]{1,5}\b(?![\w-]*\d))"
    r"|[^\s,;:()\[\]{}=|]*[0-9][^\s,;()\[\]{}=|]*(?: ?(?:ns|µs|us|ms|s|sec|secs|seconds?|min|minutes?|hours?|bytes|[KMGT]i?B)"
    r"\b)?",
    re.IGNORECASE,
)
_REPEATED = re.compile(r"…(?:[\s,;:/.=|-]*…)+")
_STATUS = re.compile(r"\b(?:status(?: code)?|status_code|http(?:/\d(?:\.\d)?)?)\b[ =:#]{1,2}([1-5]\d\d)\b", re.IGNORECASE)
_ANY_DIGIT = re.compile(r"[0-9]")
_IN_PATH = re.compile(r"(?<=/)(?=[^/]*\d)[^/]+")


class Traits(NamedTuple):
    """The properties that dead letters with the same cause have in common."""

    error: str
    target: str
    status: int
    """0 if there was no answer with a status."""
    shape: str
    version: str


def normalised(error: str) -> str:
    """An error without the parts that differ from message to message: quoted text, ids, numbers with their units, ports, times.

    Of a traceback only the last line is used. Error codes (`status 503`, `errno 111`) are kept.
    """
    if error.startswith(_TRACEBACK):
        error = error.rstrip().rpartition("\n")[2]
    return _normalised(error[:MAX_ERROR])


@lru_cache(maxsize=8_192)
def _normalised(error: str) -> str:
    shown = error
    if _QUOTES.search(shown):
        shown = _QUOTED.sub(MASK, shown)
    if "://" in shown:
        shown = _URL.sub(_masked_url, shown)
    if _ANY_DIGIT.search(shown):
        shown = _INSTANT.sub(MASK, shown)
        shown = _WORD.sub(_masked_word, shown)
    if MASK in shown:
        shown = _REPEATED.sub(MASK, shown)
    return " ".join(shown.split())


def _masked_word(found: re.Match[str]) -> str:
    """An error code unchanged, anything else masked; the name before a port is kept."""
    if found["code"]:
        return found["code"]
    text = found[0]
    name, colon, _ = text.partition(":")
    return f"{name}:{MASK}" if colon and not _ANY_DIGIT.search(name) else MASK


def _masked_url(found: re.Match[str]) -> str:
    """Scheme and host of a URL, without its port and with the ids in its path masked."""
    try:
        parts = urlsplit(found[0])
        host = parts.hostname or ""
    except ValueError:
        return found[1] + MASK
    # A host that is an IP address, or contains a number, is one of many.
    return f"{found[1]}{MASK if _ANY_DIGIT.search(host) else host}{_IN_PATH.sub(MASK, parts.path)}"


def status_of(error: str) -> int:
    """The HTTP status that an error names; 0 if none."""
    found = _STATUS.search(error)
    return int(found[1]) if found else 0


def shape_of(payload: Any) -> str:
    """Names and types of a JSON value, to a depth of three: `{amount: number, lines: [{sku: string}]}`."""
    return _shape(payload, MAX_DEPTH)[:MAX_SHAPE]


def _shape(value: Any, depth: int) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "string"
    if isinstance(value, list):
        return f"[{_shape(value[0], depth - 1) if value and depth else ''}]"
    if not depth or len(value) > MAX_FIELDS:
        return f"{{{MASK}}}" if value else "{}"
    fields = sorted(f"{MASK if _is_id(name) else name}: {_shape(value[name], depth - 1)}" for name in value)
    return f"{{{', '.join(dict.fromkeys(fields))}}}"


def _is_id(name: str) -> bool:
    """Whether the name of a field looks like an id."""
    return len(name) > 12 and _ANY_DIGIT.search(name) is not None


def fields_of(shape: str) -> frozenset[str]:
    """The parts of a shape, to compare two shapes."""
    return frozenset(re.split(r"[{},\[\] ]+", shape)) - {""}


def traits_of(
    value: bytes | None, attributes: Mapping[str, str], error: str | None, *, version_attributes: Sequence[str] = VERSIONS
) -> Traits:
    """The traits of a dead letter. `value` is None if retention has removed the message."""
    payload: Any = None
    shape = "removed by retention"
    if value is not None:
        try:
            payload = msgspec.json.decode(value)
            shape = shape_of(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            shape = _kind_of(value)
    target = attributes.get(ROUTER_TARGET) or _target_in(payload)
    version = next((attributes[name] for name in version_attributes if name in attributes), "")
    text = error or ""
    return Traits(normalised(text), target, status_of(text[:MAX_ERROR]), shape, version[:100])


def _kind_of(value: bytes) -> str:
    if not value:
        return "empty"
    try:
        value.decode()
    except UnicodeDecodeError:
        return "bytes"
    return "text"


def _target_in(payload: Any) -> str:
    """The target that a router would deliver it to, or the task that a worker would run."""
    if not isinstance(payload, dict):
        return ""
    target = payload.get("mediationTarget")
    if isinstance(target, str):
        return _IN_PATH.sub(MASK, target.partition("?")[0].partition("#")[0])[:MAX_SHAPE]
    return task_name(payload)
