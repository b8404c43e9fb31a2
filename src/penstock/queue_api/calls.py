"""Decodes a call into the type of its command, or explains what is wrong with it.

The types are made from the table of commands. So exactly what is documented is decoded, in one pass over the bytes.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Union, cast

import msgspec

from penstock.errors import PenstockError, Unimplemented
from penstock.http.decoding import MAX_SHOWN, UNREADABLE, explain, instead
from penstock.queue_api import requests
from penstock.queue_api.commands import COMMANDS, Command


class Call(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, tag_field="command"):
    """The fields of every call beside its command and its payload."""

    request_id: str | None = None


def _call_type(command: Command) -> type[Call]:
    """The type of a call of one command; the payload may be omitted if the command has no fields."""
    payload: tuple[Any, ...] = ("payload", command.fields)
    if command.fields is requests.NoFields:
        payload = ("payload", command.fields | None, None)
    elif issubclass(command.fields, requests.MessageFields):
        payload = ("payload", Annotated[command.fields, requests.ONE_PAYLOAD])
    name = "".join(word.capitalize() for word in re.split(r"[._]", command.name))
    made = msgspec.defstruct(f"{name}Call", [payload], bases=(Call,), tag=command.name, kw_only=True)
    made.__doc__ = command.fields.__doc__
    return cast(type[Call], made)  # defstruct does not know this about the bases


CALLS: dict[type[Call], Command] = {_call_type(command): command for command in COMMANDS.values()}
AnyCall: Any = Union[tuple(CALLS)]  # noqa: UP007  # made of a table
_decode = msgspec.json.Decoder(AnyCall).decode


NESTED: dict[str, type[msgspec.Struct]] = {
    "messages": requests.MessageFields,
    "config": requests.Settings,
    "retry_policy": requests.Backoff,
}
"""The types of fields that are objects."""


class _Head(msgspec.Struct):
    """The readable part of a call that is malformed."""

    command: Any = None
    request_id: Any = None


_decode_head = msgspec.json.Decoder(_Head).decode


def decode(body: bytes) -> Call:
    """Decode a call; the error names the problem and its place."""
    try:
        call: Call = _decode(body)
    except UNREADABLE as error:
        raise _explained(body, error) from None
    return call


def request_id(body: bytes) -> str | None:
    """The request id of an undecodable call, if it has one."""
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
        return Unimplemented(f"unknown command {name[:MAX_SHOWN]!r}", hint=instead(name, COMMANDS))
    return explain(error, COMMANDS[name].fields if isinstance(name, str) else None, NESTED)
