"""A call as it comes over the wire: decoded into the type of its command, or explained.

The types are made from the table of commands. So what is decoded is what is documented, in one pass over the bytes.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection
from typing import Annotated, Any, Union, cast

import msgspec

from penstock.doors.queue import requests
from penstock.doors.queue.commands import COMMANDS, Command
from penstock.errors import InvalidArgument, PenstockError, Unimplemented


class Call(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="command"):
    """What every call has beside its command and its payload."""

    request_id: str | None = None


def _call_type(command: Command) -> type[Call]:
    """The type of a call of one command; the payload of a command without fields may be left out."""
    payload: tuple[Any, ...] = ("payload", command.fields)
    if command.fields is requests.NoFields:
        payload = ("payload", command.fields, msgspec.field(default_factory=command.fields))
    elif issubclass(command.fields, requests.Draft):
        payload = ("payload", Annotated[command.fields, requests.ONE_PAYLOAD])
    name = "".join(word.capitalize() for word in re.split(r"[._]", command.name))
    made = msgspec.defstruct(f"{name}Call", [payload], bases=(Call,), tag=command.name, kw_only=True)
    made.__doc__ = command.fields.__doc__
    return cast(type[Call], made)  # defstruct does not say so of its bases


CALLS: dict[type[Call], Command] = {_call_type(command): command for command in COMMANDS.values()}
AnyCall: Any = Union[tuple(CALLS)]  # noqa: UP007  # made of a table
_decode = msgspec.json.Decoder(AnyCall).decode


class _Head(msgspec.Struct):
    """What can be read of a call that is not well-formed."""

    command: Any = None
    request_id: Any = None


_decode_head = msgspec.json.Decoder(_Head).decode

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding raises. A ValidationError is a DecodeError: JSON, and not what was wanted."""


def decode(body: bytes) -> Call:
    """A call, or the error that says what is wrong with it and where."""
    try:
        call: Call = _decode(body)
    except UNREADABLE as error:
        raise _explained(body, error) from None
    return call


def request_id(body: bytes) -> str | None:
    """The request id of a call that could not be decoded, if it has one."""
    try:
        found = _decode_head(body).request_id
    except UNREADABLE:
        return None
    return found if isinstance(found, str) else None


def _explained(body: bytes, error: Exception) -> PenstockError:
    try:
        name = _decode_head(body).command
    except UNREADABLE:
        return explain(error)
    if isinstance(name, str) and name not in COMMANDS:
        return Unimplemented(f"unknown command {name[:MAX_SHOWN]!r}", hint=_instead(name, COMMANDS))
    return explain(error, COMMANDS[name].fields if isinstance(name, str) else None)


MAX_SHOWN = 100
"""How much of a client's own word an error shows."""
MAX_NEAR = 64
"""Names are shorter: for a longer word none is near, and to look for one would take time that grows with the word."""
_PLACE = " - at `"
_MISSING = re.compile(r"Object missing required field `(.*)`")
_UNKNOWN = "Object contains unknown field `"


def explain(error: Exception, fields: type[msgspec.Struct] | None = None) -> InvalidArgument:
    """An error of decoding, as the sentence that names the field, with the nearest name for one that is not known."""
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
        hint = _instead(unknown, _fields_at(where, fields))
        return InvalidArgument(f"{inside}{unknown[:MAX_SHOWN]} is not a field of this command", hint=hint)
    return InvalidArgument(f"{where or 'the body'}: {problem[0].lower()}{problem[1:]}")


def _instead(word: str, known: Collection[str]) -> str | None:
    """What to write instead of a word that is not known."""
    near = difflib.get_close_matches(word, known, 1) if len(word) <= MAX_NEAR else []
    return f"did you mean {near[0]!r}?" if near else f"known are: {', '.join(known)}" if known else None


def _fields_at(where: str, fields: type[msgspec.Struct] | None) -> tuple[str, ...]:
    """The names that a field may have at a place of the payload."""
    nested = {"messages": requests.Draft, "config": requests.Settings, "retry_policy": requests.Backoff}
    kind = nested.get(where.rpartition(".")[2].partition("[")[0]) if where else fields
    return kind.__struct_fields__ if kind is not None else ()
