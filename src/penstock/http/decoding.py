"""Errors of decoding a request, as sentences that name the field."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from types import MappingProxyType

import msgspec

from penstock.errors import InvalidArgument

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The errors of decoding. A ValidationError is a DecodeError too: valid JSON of an unexpected shape."""
MAX_SHOWN = 100
"""How many characters of a client's text an error shows."""
MAX_NEAR = 64
"""The longest word for which a similar name is suggested. Names are shorter, and the search takes longer for longer words."""
_PLACE = " - at `"
_MISSING = re.compile(r"Object missing required field `(.*)`")
_UNKNOWN = "Object contains unknown field `"


def explain(
    error: Exception,
    fields: type[msgspec.Struct] | None = None,
    nested: Mapping[str, type[msgspec.Struct]] = MappingProxyType({}),
) -> InvalidArgument:
    """An error of decoding, as a sentence that names the field, with the most similar name for an unknown field.

    `nested` has the types of fields that are objects themselves, by the names of the fields.
    """
    if isinstance(error, RecursionError):
        return InvalidArgument("the body is nested too deeply")
    if not isinstance(error, msgspec.ValidationError):
        return InvalidArgument(f"the body is not JSON: {error}")
    # The text may contain words of the client, as long as its request. So it is cut before it is matched with patterns.
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
    """A hint for an unknown word: the most similar known word, or all of them."""
    near = difflib.get_close_matches(word, known, 1) if len(word) <= MAX_NEAR else []
    return f"did you mean {near[0]!r}?" if near else f"known are: {', '.join(known)}" if known else None


def _fields_at(where: str, fields: type[msgspec.Struct] | None, nested: Mapping[str, type[msgspec.Struct]]) -> tuple[str, ...]:
    """The names of the fields at this place of the payload."""
    kind = nested.get(where.rpartition(".")[2].partition("[")[0]) if where else fields
    return kind.__struct_fields__ if kind is not None else ()
