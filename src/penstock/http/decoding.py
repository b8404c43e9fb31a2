"""Errors of decoding a request, as sentences that name the field."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from types import MappingProxyType

import msgspec

from penstock.errors import InvalidArgument

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding raises. A ValidationError is a DecodeError: JSON, and not what was expected."""
MAX_SHOWN = 100
"""How much of a client's own word an error shows."""
MAX_NEAR = 64
"""Names are shorter: for a longer word none is near, and to look for one would take time that grows with the word."""
_PLACE = " - at `"
_MISSING = re.compile(r"Object missing required field `(.*)`")
_UNKNOWN = "Object contains unknown field `"


def explain(
    error: Exception,
    fields: type[msgspec.Struct] | None = None,
    nested: Mapping[str, type[msgspec.Struct]] = MappingProxyType({}),
) -> InvalidArgument:
    """An error of decoding, as the sentence that names the field, with the nearest name for one that is not known.

    `nested` has the types of fields that are objects themselves, by the names of the fields.
    """
    if isinstance(error, RecursionError):
        return InvalidArgument("the body is nested too deeply")
    if not isinstance(error, msgspec.ValidationError):
        return InvalidArgument(f"the body is not JSON: {error}")
    # The text may hold words of the client, as long as its request. So it is cut, and no pattern looks at more than the rest.
    text = str(error)
    problem, _, where = text.rpartition(_PLACE) if _PLACE in text else (text, "", "")
    problem, where = problem[: 2 * MAX_SHOWN], where[:MAX_SHOWN].removeprefix("key in ").removeprefix("$").removesuffix("`")
    where = where.removeprefix(".").removeprefix("payload").removeprefix(".")
    inside = f"{where}." if where else ""
    if missing := _MISSING.fullmatch(problem):
        return InvalidArgument(f"{inside}{missing[1]} is missing")
    if problem.startswith(_UNKNOWN):
        unknown = problem.removeprefix(_UNKNOWN).removesuffix("`")
        hint = instead(unknown, _fields_at(where, fields, nested))
        return InvalidArgument(f"{inside}{unknown[:MAX_SHOWN]} is not a field of this command", hint=hint)
    return InvalidArgument(f"{where or 'the body'}: {problem[0].lower()}{problem[1:]}")


def instead(word: str, known: Collection[str]) -> str | None:
    """What to write instead of a word that is not known."""
    near = difflib.get_close_matches(word, known, 1) if len(word) <= MAX_NEAR else []
    return f"did you mean {near[0]!r}?" if near else f"known are: {', '.join(known)}" if known else None


def _fields_at(where: str, fields: type[msgspec.Struct] | None, nested: Mapping[str, type[msgspec.Struct]]) -> tuple[str, ...]:
    """The names that a field may have at a place of the payload."""
    kind = nested.get(where.rpartition(".")[2].partition("[")[0]) if where else fields
    return kind.__struct_fields__ if kind is not None else ()
