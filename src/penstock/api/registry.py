"""Operations by their names: how arguments and results are read from the wire, as the signatures say."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, get_type_hints

import msgspec

from penstock.api.operations import Operations
from penstock.errors import Unimplemented


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation as the wire knows it."""

    name: str
    parameters: tuple[str, ...]
    read_arguments: Callable[[bytes], msgspec.Struct]
    read_result: Callable[[bytes], Any]


@cache
def operation(name: str) -> Operation:
    """An operation by its name; Unimplemented when there is none."""
    method = getattr(Operations, name, None) if not name.startswith("_") else None
    if not inspect.iscoroutinefunction(method):
        raise Unimplemented(f"operation {name[:80]!r} is not known here", hint="client and server may be of different versions")
    return _operation(method)


def _operation(method: Callable[..., Awaitable[Any]]) -> Operation:
    hints = get_type_hints(method)
    parameters = list(inspect.signature(method).parameters.values())[1:]
    fields = [
        (one.name, hints[one.name]) if one.default is inspect.Parameter.empty else (one.name, hints[one.name], one.default)
        for one in parameters
    ]
    arguments = msgspec.defstruct(method.__name__, fields, kw_only=True, forbid_unknown_fields=True)
    return Operation(
        method.__name__,
        tuple(one.name for one in parameters),
        msgspec.msgpack.Decoder(arguments).decode,
        msgspec.msgpack.Decoder(hints["return"]).decode,
    )
